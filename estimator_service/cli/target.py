"""Which service a command asks, and who the command says it is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import grpc
import typer

from acceptd.errors import ConfigError
from acceptd.limits import MAX_MESSAGE_BYTES
from estimator_service.cli.options import DEFAULT_ADDRESS, Address
from estimator_service.config import parse_address

_PANEL: Final = "Identity"
_OPTIONS: Final[dict[str, Any]] = {
    "address": Address,
    "ca": Annotated[
        str,
        typer.Option(
            envvar="ACCEPTD_CA_FILE",
            metavar="FILE",
            rich_help_panel=_PANEL,
            help="Whom to trust as the service, PEM; turns TLS on.",
        ),
    ],
    "cert": Annotated[
        str,
        typer.Option(envvar="ACCEPTD_CERT_FILE", metavar="FILE", rich_help_panel=_PANEL, help="Client certificate."),
    ],
    "key": Annotated[
        str, typer.Option(envvar="ACCEPTD_KEY_FILE", metavar="FILE", rich_help_panel=_PANEL, help="Its private key.")
    ],
    "token_file": Annotated[
        str,
        typer.Option(
            envvar="ACCEPTD_TOKEN_FILE", metavar="FILE", rich_help_panel=_PANEL, help="File with the bearer token."
        ),
    ],
}


@dataclass(frozen=True)
class Target:
    """address: HOST:PORT. The others: paths, "" for none; `ca` turns TLS on. They are read when a channel is opened."""

    address: str = DEFAULT_ADDRESS
    ca: str = ""
    cert: str = ""
    key: str = ""
    token_file: str = ""

    def open(self) -> grpc.Channel:
        """A channel. Raises ConfigError for a file that cannot be used."""
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
        if bool(self.cert) != bool(self.key):
            raise ConfigError("--cert and --key belong together: one of them is missing")
        if self.cert and not self.ca:
            raise ConfigError("--cert without --ca; accepted: both, since --ca turns TLS on")
        if not self.ca:
            return grpc.insecure_channel(self.address, options)
        ca, cert, key = (
            _read(flag, path) for flag, path in (("--ca", self.ca), ("--cert", self.cert), ("--key", self.key))
        )
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(ca, key, cert), options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
        token = _read("--token-file", self.token_file)
        if token is None:
            return ()
        text = token.decode("ascii", "replace").strip()
        if not text.isprintable() or not text.isascii() or " " in text:
            raise ConfigError(
                f"--token-file {self.token_file}: not a token; accepted: a file that holds one and no more"
            )
        if not self.ca and not parse_address(self.address).loopback:
            sys.stderr.write(f"warning: the token goes to {self.address} in the clear; --ca turns TLS on\n")
        return (("authorization", f"Bearer {text}"),)


#: A service on this machine that asks for nothing.
LOCAL: Final = Target()


def _read(flag: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}; accepted: a readable file") from None


def asks_service(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `target` is made of --address, --ca, --cert, --key and --token-file."""

    @wraps(function)
    def command(**given: Any) -> None:
        function(target=Target(**{name: given.pop(name) for name in _OPTIONS}), **given)

    hints = get_type_hints(function, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "target":
            parameters.append(parameter.replace(kind=keyword, annotation=hints[name]))
            continue
        for option, annotation in _OPTIONS.items():
            default = DEFAULT_ADDRESS if option == "address" else ""
            parameters.append(inspect.Parameter(option, keyword, default=default, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del command.__wrapped__
    return command
