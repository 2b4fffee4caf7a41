"""`acceptd export` and `import`: what a pair has learned, as a file."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from google.protobuf.message import DecodeError

from acceptd.errors import ConfigError
from acceptd.limits import MAX_MESSAGE_BYTES
from acceptd.v1 import inspect_pb2
from estimator_service.cli.client import InspectClient
from estimator_service.cli.options import Json, Pair
from estimator_service.cli.output import console, print_json
from estimator_service.cli.pin import report
from estimator_service.cli.target import LOCAL, Target, asks_service

#: What a file begins with.
MAGIC: Final = b"acceptd-pair-export-1\n"
_SUFFIX: Final = ".acceptd"
_LONGEST_NAME: Final = 150


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("export")(asks_service(export))
    app.command("import")(asks_service(import_))


def export(
    pair: Pair,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The pair's id in this directory, unless given."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Write what a pair has learned to a file: statistics, exact counts, coefficients.

    Examples:
      acceptd export llama
      acceptd export llama -o before-the-change.acceptd
    """
    with InspectClient(target) as client:
        found = client.pair(pair).summary.id
        data = MAGIC + client.export(found).SerializeToString()
    file = output or Path(file_name(found))
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; accepted: another file, or --force")
    write_whole(file, data)
    if as_json:
        print_json({"pair": found, "file": str(file), "bytes": len(data)})
    else:
        console().print(f"wrote {found} to {file}")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `acceptd export` wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Also where the service knows the pair already.")] = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Take up what another service learned of a pair, and publish its coefficients.

    Examples:
      acceptd import llama-3-8b~eagle3~k5~23d2a55d.acceptd --address 10.0.0.8:50051
    """
    try:
        if file.stat().st_size > MAX_MESSAGE_BYTES:
            raise ConfigError(f"{file} has {file.stat().st_size} bytes; accepted: at most {MAX_MESSAGE_BYTES}")
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; accepted: what `acceptd export` wrote") from None
    try:
        if not data.startswith(MAGIC):
            raise DecodeError
        content = inspect_pb2.PairExport.FromString(data[len(MAGIC) :])
    except DecodeError:
        raise ConfigError(f"{file} is no export of a pair; accepted: what `acceptd export` wrote") from None
    with InspectClient(target) as client:
        answer = client.import_(content, replace=replace)
    report(answer.state, answer.durability.trouble, as_json)


def file_name(pair: str) -> str:
    """A file's name for a pair's id, in the current directory whatever the service says the id is."""
    return (re.sub(r"[^A-Za-z0-9._~-]+", "-", pair).lstrip(".-~")[:_LONGEST_NAME] or "pair") + _SUFFIX


def write_whole(file: Path, data: bytes) -> None:
    """The file with `data`, or as it was: never a part. Raises ConfigError."""
    partial = ""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".acceptd-", delete=False) as out:
            partial = out.name
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, file)
    except OSError as error:
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise ConfigError(f"{file}: {error.strerror}; accepted: a file in a writable directory") from None
