"""`acceptd version`."""

from __future__ import annotations

import platform

import grpc
import typer
from google import protobuf

from acceptd import __version__
from acceptd.limits import FEATURE_SCHEMA
from estimator_service.cli.options import Json
from estimator_service.cli.output import console, facts, print_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("version")(version)


def version(as_json: Json = False) -> None:
    """Versions of acceptd, its protocol and what it stands on, for a bug report.

    Examples:
      acceptd version
      acceptd version --json
    """
    values = {
        "acceptd": __version__,
        "protocol": "acceptd.v1",
        "feature_schema": str(FEATURE_SCHEMA),
        "python": platform.python_version(),
        "grpc": grpc.__version__,
        "protobuf": protobuf.__version__,
    }
    if as_json:
        print_json(values)
    else:
        console().print(facts(list(values.items())))
