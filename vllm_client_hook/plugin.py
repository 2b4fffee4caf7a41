"""Entry point of `vllm.general_plugins`. Runs in every vLLM process, several times, before anything is loaded.

It never raises (that would kill the worker), opens nothing, starts nothing, and touches no device. Without an address
it does nothing at all; with one it arranges for `patch` to act where a worker's modules are loaded.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import Final

from acceptd import __version__
from acceptd.errors import AcceptdError
from vllm_client_hook import config, gate

#: Below "vllm", so that the line shows up with vLLM's own logging configuration.
LOGGER: Final = "vllm.acceptd"

_registered = False


def register() -> None:
    """Installs the hook, or says in one line why it stands aside."""
    global _registered  # noqa: PLW0603 (once a process, however often vLLM loads its plugins)
    if _registered:
        return
    _registered = True
    try:
        settings = config.load(os.environ)
        if not settings.address:
            _say(logging.INFO, "not active: no address (set ACCEPTD_ADDRESS)")
            return
        gate.require_release(_vllm_version())
        from vllm_client_hook import patch  # noqa: PLC0415 (nothing is loaded for a hook that stands aside)

        patch.install(settings)
    except AcceptdError as error:
        _say(logging.WARNING, f"not active: {error}")
    except Exception as error:
        _say(logging.ERROR, f"not active: {type(error).__name__}: {error}")


def _say(level: int, line: str) -> None:
    # One line an engine, not one a process: children of the process that the user started keep quiet.
    if multiprocessing.parent_process() is None:
        logger = logging.getLogger(LOGGER)
        # vLLM may set up logging only after it has loaded its plugins; then nothing below a warning is shown.
        logger.log(level if logger.hasHandlers() else max(level, logging.WARNING), "acceptd %s: %s", __version__, line)


def _vllm_version() -> str:
    import vllm  # noqa: PLC0415 (a plugin is imported while vLLM itself may still be loading)

    return str(getattr(vllm, "__version__", "unknown"))
