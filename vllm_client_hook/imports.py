"""Runs a function right after a module was imported, or at once if it is there already.

A vLLM plugin runs in every process; importing the worker's modules in the API server only to patch them would cost
seconds and memory there. So the patch waits for whoever needs the module.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Calls `action(module)` once; it must not raise."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        action(module)
        return
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self._loaded)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._action(module)


class _Loader(Loader):
    """The module's own loader, with a word after it is done."""

    def __init__(self, inner: Any, loaded: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._loaded(module)
