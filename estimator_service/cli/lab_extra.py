"""What `pip install "acceptd[lab]"` brings, and what is said without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from acceptd.errors import ConfigError


@contextmanager
def lab_extra() -> Iterator[None]:
    """Imports of the lab: heavy, and of an extra that may be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"acceptd", "estimator_service"}:
            raise
        raise ConfigError(f'{missing} is not installed; this command needs: pip install "acceptd[lab]"') from error
