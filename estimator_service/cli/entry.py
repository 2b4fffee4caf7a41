"""The `acceptd` command. Free of third-party imports, so that a missing extra is one clear line."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from estimator_service.polling import read_in_place


def main() -> NoReturn:
    """Runs the command line and ends the process: status 0 on success, 1 on failure, 2 on misuse."""
    _open_closed()
    if sys.argv[1:2] == ["serve"]:
        read_in_place()
    try:
        from estimator_service.cli.app import run  # noqa: PLC0415  (imported where its absence can be reported)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"acceptd", "estimator_service"}:
            raise
        sys.stderr.write(
            f'error: {missing} is not installed; the acceptd command needs: pip install "acceptd[service]"\n'
        )
        _leave(1)
    _leave(run())


def _open_closed() -> None:
    """Gives each standard stream that was closed before the start (`>&-`) the null device, as daemons do.

    Otherwise the next socket or file gets its number, and what is printed goes there or fails.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _leave(status: int) -> NoReturn:
    """Ends the process without the destructors of native libraries.

    gRPC and Arrow have threads of their own, which may still run while the destructors take away what they use; such a
    crash (apache/arrow#38352, #39862) would turn a command that did its work into a failure. A command has closed
    everything it opened when it returns, and what it printed is written here.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            # Whoever read has enough, as `head` does.
            status = status or 1
        except OSError as error:
            with suppress(OSError):
                sys.stderr.write(f"error: {stream.name} cannot be written: {error}\n")
            status = status or 1
    os._exit(status)
