"""Who a client of the service says it is, and whom it trusts: the same files for the hook and for the commands."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from acceptd.addresses import is_loopback
from acceptd.errors import ConfigError
from acceptd.names import path_shown

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes of a token's file. Ours hold some 50; what is longer is another kind of file.
_MAX_TOKEN_FILE: Final = 4096
_SCHEME: Final = re.compile(r"(dns|ipv4|ipv6):(///?)?")


def variable(name: str) -> str:
    """The environment variable of a field.

    >>> variable("ca_file")
    'ACCEPTD_CA_FILE'
    """
    return f"ACCEPTD_{name.upper()}"


@dataclass(frozen=True)
class Certificates:
    """PEM, as `grpc.ssl_channel_credentials` takes them. key, cert: None without a client certificate."""

    ca: bytes
    key: bytes | None = field(repr=False)
    cert: bytes | None


@dataclass(frozen=True)
class Identity:
    """How a channel to the service is secured: paths, "" for none. The files are read anew for each connection, so they
    can be rotated.

    token_file: bearer token. ca_file: turns TLS on and names whom to trust. cert_file, key_file: client certificate.
    name: how whoever gave them calls a field. Raises ConfigError for a certificate that would never be shown.
    """

    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    name: Callable[[str], str] = field(default=variable, kw_only=True)

    def __post_init__(self) -> None:
        """Refuses half a client certificate, and one without TLS."""
        ca, cert, key = map(self.name, ("ca_file", "cert_file", "key_file"))
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError(f"{cert} and {key} belong together: one of them is missing")
        if self.cert_file and not self.ca_file:
            raise ConfigError(f"{cert} without {ca}; accepted: both, since {ca} turns TLS on")

    def check_files(self) -> Self:
        """Itself. Raises ConfigError for a path that is no file."""
        for each in FILES:
            path = getattr(self, each)
            if path and not os.path.isfile(path):
                raise ConfigError(f"{self.name(each)} names {path_shown(path)}, which is not a file")
        return self

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries. Raises ConfigError, which never quotes the file, if it holds no token."""
        if not self.token_file:
            return ()
        data = self._read("token_file", _MAX_TOKEN_FILE + 1)
        token = data.decode("ascii", "replace").strip()
        if not token or len(data) > _MAX_TOKEN_FILE or " " in token or not (token.isascii() and token.isprintable()):
            raise ConfigError(
                f"{self.name('token_file')} names {path_shown(self.token_file)}, which holds no token; "
                "accepted: a file with one token and no more"
            )
        return (("authorization", f"Bearer {token}"),)

    def certificates(self) -> Certificates | None:
        """For TLS; None without it.

        Raises ConfigError for files that cannot be read, hold no PEM, do not belong together or ask for a passphrase.
        """
        if not self.ca_file:
            return None
        from acceptd.pem import check_authorities, check_chain  # noqa: PLC0415 (OpenSSL: only where there is TLS)

        ca, key, cert = self._read("ca_file"), None, None
        try:
            check_authorities(ca)
        except ValueError as error:
            raise self._unusable(error, "PEM certificates", "ca_file") from None
        if self.cert_file:
            key, cert = self._read("key_file"), self._read("cert_file")
            try:
                check_chain(cert, key)
            except (ValueError, OSError) as error:
                accepted = "a PEM chain and its key without a passphrase"
                raise self._unusable(error, accepted, "cert_file", "key_file") from None
        return Certificates(ca, key, cert)

    def exposed(self, address: str) -> bool:
        """Whether the token crosses a network in the clear on its way to `address` (`host:port` or `unix:path`)."""
        if not self.token_file or self.ca_file or address.startswith("unix:"):
            return False
        # gRPC's own way to write them: `dns:///host:port`, `ipv4:127.0.0.1:1`.
        bare = _SCHEME.sub("", address)
        return not is_loopback(bare.rpartition(":")[0].removeprefix("[").removesuffix("]"))

    def _read(self, name: str, size: int = -1) -> bytes:
        path = getattr(self, name)
        try:
            with Path(path).open("rb") as file:
                return file.read(size)
        except OSError as error:
            raise ConfigError(
                f"{self.name(name)} names {path_shown(path)}, which cannot be read ({error.strerror})"
            ) from None

    def _unusable(self, error: Exception, accepted: str, *names: str) -> ConfigError:
        named = ", ".join(f"{self.name(name)} names {path_shown(getattr(self, name))}" for name in names)
        return ConfigError(f"{named}: {error}; accepted: {accepted}")


#: The fields that are paths.
FILES: Final = tuple(each.name for each in fields(Identity) if each.name.endswith("_file"))
