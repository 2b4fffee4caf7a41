"""`acceptd backup` and `restore`: the whole store, on the service's machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from estimator_service.cli.options import Json
from estimator_service.cli.output import console, print_json
from estimator_service.storage.copy import back_up, restore_copy

Store = Annotated[Path, typer.Option("--store", envvar="ACCEPTD_STORE", metavar="FILE", help="The service's store.")]


def register(app: typer.Typer) -> None:
    """Adds both commands."""
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="File to write; replaced at once when it is whole.")],
    store: Store,
    as_json: Json = False,
) -> None:
    """Copy the store, also while the service runs: every pair, their history, marks and the audit.

    Examples:
      acceptd backup /backup/acceptd.sqlite --store /var/lib/acceptd/acceptd.sqlite
    """
    pairs = back_up(store, copy)
    if as_json:
        print_json({"store": str(store), "copy": str(copy), "pairs": pairs})
    else:
        console().print(f"copied {pairs} pairs from {store} to {copy}")


def restore(
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="What `acceptd backup` wrote.")],
    store: Store,
    as_json: Json = False,
) -> None:
    """Put a copy in the store's place. The service must not run; what was there is kept beside it.

    Workers keep any newer version they hold: the service goes on above it.

    Examples:
      acceptd restore /backup/acceptd.sqlite --store /var/lib/acceptd/acceptd.sqlite
    """
    pairs, aside = restore_copy(copy, store, now=time.time())
    if as_json:
        print_json({"store": str(store), "copy": str(copy), "pairs": pairs, "kept": str(aside) if aside else None})
        return
    console().print(f"{store} has the {pairs} pairs of {copy}")
    if aside:
        console().print(f"what was there is now {aside}")
