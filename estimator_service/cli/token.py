"""`acceptd token`: makes the bearer tokens that a service accepts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from acceptd.errors import ConfigError
from acceptd.names import path_shown
from estimator_service.access.identity import Role
from estimator_service.access.tokens import line_of, new_token, parse
from estimator_service.cli.options import Json
from estimator_service.cli.output import print_json

_HELP = "Bearer tokens: made once, kept by the service as hashes."


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = typer.Typer(help=_HELP, no_args_is_help=True)
    group.command("new")(new)
    app.add_typer(group, name="token", rich_help_panel="Service")


def new(
    name: Annotated[str, typer.Option(help="Whose it is, for logs and the audit.")],
    role: Annotated[Role, typer.Option(help="worker: its pairs' stream; reader: looks; operator: also changes.")],
    tokens: Annotated[
        Path, typer.Option("--tokens", envvar="ACCEPTD_TOKENS", metavar="FILE", help="The service's file of hashes.")
    ],
    pairs: Annotated[
        list[str] | None,
        typer.Option("--pairs", help="Of a worker: pattern over a pair's id or the target's name; several times."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a token: its hash is added to FILE, the token itself is printed once and kept nowhere.

    A running service reads FILE again by itself. To revoke a token, delete its line.

    Examples:
      acceptd token new --name rack1 --role worker --pairs 'llama*' --tokens /etc/acceptd/tokens > rack1.token
      acceptd token new --name ana --role operator --tokens /etc/acceptd/tokens
    """
    if pairs and role is not Role.WORKER:
        raise typer.BadParameter(f"--pairs with --role {role}; accepted: with --role worker alone")
    token = new_token()
    line = line_of(name, role, tuple(pairs or ["*"]), token)
    _append(tokens, line)
    if as_json:
        print_json({"name": name, "role": role, "pairs": pairs or ["*"], "token": token})
    else:
        sys.stdout.write(token + "\n")


def _append(path: Path, line: str) -> None:
    """Adds a line in one write. Raises ConfigError if the file is none of tokens."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
            before = file.read()
            parse(before, path_shown(path))
            file.write(("\n" if before and not before.endswith("\n") else "") + line + "\n")
    except OSError as error:
        raise ConfigError(f"{path_shown(path)}: {error.strerror}; accepted: a file in a writable directory") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path_shown(path)} is no file of tokens") from None
