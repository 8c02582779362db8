"""In whose forward does the program stand, and what is the path of that module?"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from trnprof.emulator.capture.torch_tensors import Storage, Storages, parts


class ModulePlace(NamedTuple):
    """Dotted path from its root ("" for the root itself), and class name."""

    path: str
    class_name: str


TOP = ModulePlace("", "")


class Modules:
    """The stack of modules whose forward runs, and the paths of all modules under the roots seen.

    Attributes:
        stack: innermost last.
        depth: how many of them belong to the device: a root without parameters and buffers that is fed host tensors (a
            transform in a data set) does not.
        found: storages whose role was learned, and whether they were there before; for the caller to take.
    """

    def __init__(self, storages: Storages) -> None:
        self.stack: list[tuple[ModulePlace, bool]] = []
        self.depth = 0
        self.found: list[tuple[Storage, bool]] = []
        self._storages = storages
        self._places: weakref.WeakKeyDictionary[torch.nn.Module, ModulePlace] = (
            weakref.WeakKeyDictionary()
        )
        self._owners: dict[int, ModulePlace] = {}

    def is_device_root(self, module: torch.nn.Module, args: Any, has_begun: bool) -> bool:
        """Whether an outermost module's forward is work of the device.

        Args:
            module: the outermost module.
            args: what it is called with.
            has_begun: the recording has begun, so that what tensors are for is known.
        """
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            return True
        tensors = (a for a in args if isinstance(a, torch.Tensor))
        return any(t.requires_grad or (has_begun and self._storages.is_device(t)) for t in tensors)

    def enter(self, module: torch.nn.Module, is_device: bool) -> None:
        """Its forward begins."""
        place = self._places.get(module)
        if place is None:
            self.learn(module)
            place = self._places[module]
        self.stack.append((place, is_device))
        self.depth += is_device

    def leave(self) -> None:
        """The innermost forward has ended."""
        if self.stack:
            _, is_device = self.stack.pop()
            self.depth -= is_device

    def current(self) -> ModulePlace:
        """The innermost module; TOP outside all."""
        return self.stack[-1][0] if self.stack else TOP

    def owner(self, tensor: torch.Tensor) -> ModulePlace:
        """The module that has this parameter; TOP if none is known."""
        storage = self._storages.find(next(parts(tensor), tensor))
        return TOP if storage is None else self._owners.get(storage.number, TOP)

    def learn(self, root: torch.nn.Module) -> None:
        """Paths of all modules under a root that has none yet, owners and roles of their parameters and buffers."""
        for name, module in root.named_modules():
            path = ".".join(part for part in name.split(".") if part != "_orig_mod")
            place = self._places.setdefault(module, ModulePlace(path, type(module).__name__))
            for tensor, role in _tensors(module):
                self._owners.setdefault(self.mark(tensor, role, True).number, place)

    def mark(self, tensor: torch.Tensor, role: str, is_resident: bool) -> Storage:
        """Give a tensor its role, and keep what was not known for ``found``.

        Args:
            tensor: a parameter, a buffer, state of an optimizer.
            role: its role.
            is_resident: it was there before the device began, unless an operation has made it.
        """
        known = self._storages.find(tensor)
        is_new = known is None
        if known is None or known.role != role:
            if known is not None and known.role in ("parameter", "buffer"):
                return known
            known = self._storages.mark(tensor, role)
            self.found.append((known, is_resident and is_new))
        return known


def _tensors(module: torch.nn.Module) -> Iterator[tuple[torch.Tensor, str]]:
    for parameter in module.parameters(recurse=False):
        if not torch.nn.parameter.is_lazy(parameter):
            yield from ((part, "parameter") for part in parts(parameter))
    for buffer in module.buffers(recurse=False):
        if not torch.nn.parameter.is_lazy(buffer):
            yield from ((part, "buffer") for part in parts(buffer))
