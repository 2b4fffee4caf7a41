"""Has something of ours run before or after a method of vLLM's, which it can neither change nor fail."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("vllm.acceptd")


def after_method(owner: Any, name: str, action: Callable[..., None]) -> None:
    """Has `action` run with the method's arguments once the method has returned; it can neither raise nor answer."""
    _wrap(owner, name, action, first=False)


def before_method(owner: Any, name: str, action: Callable[..., None]) -> None:
    """Has `action` run with the method's arguments before the method; it can neither raise nor answer."""
    _wrap(owner, name, action, first=True)


def _wrap(owner: Any, name: str, action: Callable[..., None], *, first: bool) -> None:
    method = getattr(owner, name, None)
    if method is None:
        return  # a release without it has nothing to follow there

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if first:
            _quietly(action, f"precedes {name}", self, *args, **kwargs)
        result = method(self, *args, **kwargs)
        if not first:
            _quietly(action, f"follows {name}", self, *args, **kwargs)
        return result

    setattr(owner, name, wrapper)


def _quietly(action: Callable[..., None], place: str, *args: Any, **kwargs: Any) -> None:
    try:
        action(*args, **kwargs)
    except Exception:
        logger.exception("acceptd: what %s failed; vLLM goes on", place)
