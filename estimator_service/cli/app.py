"""The command line's root: which commands there are, and how any of them fails."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

from acceptd.errors import AcceptdError

#: Modules of this package, each with a `register(app)` that adds its commands, by the heading `--help` puts them under.
COMMANDS = {
    "Service": ("serve", "demo", "store", "token"),
    "Look": ("pairs", "watch", "history", "workers", "costs", "audit", "doctor"),
    "Operate": ("pin", "mode", "transfer"),
    "Recordings": ("lab", "simulate"),
    "Other": ("version",),
}

_HELP = """Learns online how likely a vLLM target accepts each draft token, and keeps every worker supplied with it.

A PAIR is named by its id or any unique prefix of it; `acceptd pairs` lists them."""


def build() -> typer.Typer:
    """The application with every command registered."""
    app = typer.Typer(
        name="acceptd",
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    for heading, names in COMMANDS.items():
        before = len(app.registered_commands)
        for name in names:
            import_module(f"{__package__}.{name}").register(app)
        for command in app.registered_commands[before:]:
            command.rich_help_panel = heading
    return app


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit status. A failure is one line on stderr, never a traceback.

    ACCEPTD_DEBUG=1 in the environment lets exceptions through, for those who work on acceptd itself.
    """
    try:
        build()(args=arguments, prog_name="acceptd")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except AcceptdError as error:
        return _failed(str(error))
    except Exception as error:
        if os.environ.get("ACCEPTD_DEBUG"):
            raise
        return _failed(f"{type(error).__name__}: {error} (ACCEPTD_DEBUG=1 shows where)")
    return 0


def _failed(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 1
