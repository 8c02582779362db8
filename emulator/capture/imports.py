"""How is something done to a module as soon as the program imports it, and not before?"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call the action with a module once it has been imported; now, if it has been."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _Waiting(name, action))


class _Waiting:
    """Lets the usual finders find one module, and its loader report."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of the module that is waited for; None for all others."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._action(module)

            loader.exec_module = exec_module
        return spec
