"""Which service a command asks, and who the command says it is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, Final, get_type_hints

import grpc
import typer

from acceptd.identity import FILES, Identity
from acceptd.limits import MAX_MESSAGE_BYTES
from estimator_service.cli.options import DEFAULT_ADDRESS, Address

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
#: The option that fills each field of `Identity`.
_FILES: Final = {"token_file": "token_file", "ca_file": "ca", "cert_file": "cert", "key_file": "key"}


def flag(name: str) -> str:
    """How a person gives this field of `Identity`.

    >>> flag("ca_file"), flag("token_file")
    ('--ca', '--token-file')
    """
    return "--" + _FILES[name].replace("_", "-")


@dataclass(frozen=True)
class Target:
    """address: HOST:PORT. identity: its files are read when a channel is opened and a call is made."""

    address: str = DEFAULT_ADDRESS
    identity: Identity = field(default_factory=Identity)

    def open(self) -> grpc.Channel:
        """A channel. Raises ConfigError for a file that cannot be used."""
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
        certificates = self.identity.certificates()
        if certificates is None:
            return grpc.insecure_channel(self.address, options)
        credentials = grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.cert)
        return grpc.secure_channel(self.address, credentials, options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries. Raises ConfigError for a file that holds no token."""
        metadata = self.identity.metadata()
        if self.identity.exposed(self.address):
            sys.stderr.write(f"warning: the token goes to {self.address} in the clear; --ca turns TLS on\n")
        return metadata


#: A service on this machine that asks for nothing.
LOCAL: Final = Target()


def asks_service(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `target` is made of --address, --ca, --cert, --key and --token-file."""

    @wraps(function)
    def command(**given: Any) -> None:
        identity = Identity(*(given.pop(_FILES[name]) for name in FILES), name=flag)
        function(target=Target(given.pop("address"), identity), **given)

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
