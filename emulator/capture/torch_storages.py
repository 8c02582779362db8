"""Which tensor is which? A number for every storage that lives, its role, and when it dies."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from trnprof.emulator.workload import TensorRef

_DTYPES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class Storages:
    """Numbers storages while they live; a storage that is freed and allocated again gets a new number.

    Attributes:
        known: numbers of storages that a recorded operation made or read.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._watchers: dict[int, weakref.ref[Any]] = {}
        self._roles: dict[int, str] = {}
        self._freed: list[int] = []
        self._next = 0
        self.known: set[int] = set()

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self._numbers.get(key)
        if found is not None:
            return found
        number = self._next
        self._next += 1
        self._numbers[key] = number
        self._watchers[number] = weakref.ref(storage, lambda _: self._died(key, number))
        if isinstance(tensor, torch.nn.Parameter):
            self._roles[number] = "parameter"
        return number

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a recorded operation made or read it."""
        return self._numbers.get(tensor.untyped_storage()._cdata, -1) in self.known

    def mark(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        """Say what the storages of some tensors are for."""
        for tensor in tensors:
            self._roles[self.number(tensor)] = role

    def ref(self, tensor: torch.Tensor, role: str) -> TensorRef:
        """A tensor as an operation sees it; ``role`` serves if nothing better is known."""
        number = self.number(tensor)
        known = self._roles.setdefault(number, role)
        itemsize = tensor.element_size()
        stride = tensor.stride()
        return TensorRef(
            tensor=number,
            shape=tuple(int(s) for s in tensor.shape),
            dtype=_DTYPES[tensor.dtype],
            nbytes=tensor.numel() * itemsize,
            storage_nbytes=int(tensor.untyped_storage().nbytes()),
            role=known,
            contiguous=not stride or stride[-1] == 1 or tensor.shape[-1] == 1,
        )

    def take_freed(self) -> tuple[int, ...]:
        """Known storages that died since the last call."""
        if not self._freed:
            return ()
        freed, self._freed = self._freed, []
        return tuple(freed)

    def _died(self, key: int, number: int) -> None:
        if self._numbers.get(key) == number:
            del self._numbers[key]
        self._watchers.pop(number, None)
        self._roles.pop(number, None)
        if number in self.known:
            self.known.discard(number)
            self._freed.append(number)
