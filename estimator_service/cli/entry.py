"""The `acceptd` command. Free of third-party imports, so that a missing extra is one clear line."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line: 0 on success, 1 on failure, 2 on misuse."""
    try:
        from estimator_service.cli.app import run  # noqa: PLC0415  (imported where its absence can be reported)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"acceptd", "estimator_service"}:
            raise
        sys.stderr.write(
            f'error: {missing} is not installed; the acceptd command needs: pip install "acceptd[service]"\n'
        )
        return 1
    return run()
