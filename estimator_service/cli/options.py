"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_ADDRESS = "127.0.0.1:50051"


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise typer.BadParameter(f"{value!r} is no address; accepted: HOST:PORT, such as {DEFAULT_ADDRESS}")
    return value


Address = Annotated[
    str,
    typer.Option(
        "--address", "-a", envvar="ACCEPTD_ADDRESS", callback=_host_and_port, help="The service's gRPC port: HOST:PORT."
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs; coefficients are float32-exact.")]

Pair = Annotated[str, typer.Argument(metavar="PAIR", help="Id of a pair, or any unique prefix of it.")]
