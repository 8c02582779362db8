"""Which tensor is which? A number for each storage while it lives, what it is for, and when it dies.

Two views share their storage's number; memory that is freed and allocated again is another storage. Python keeps one object
for each storage as long as it lives, so a weak reference to it tells its end.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Ref = tuple[int, tuple[int, ...], str, int, int, str, bool]
"""Fields of a TensorRef, in its order."""

DTYPE_NAMES: Final[dict[Any, str]] = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


class Storage(weakref.ref):  # type: ignore[type-arg]
    """A live storage: number, role, and the first view of it that was seen."""

    __slots__ = ("first", "key", "number", "of_optimizer", "role")
    number: int
    role: str
    key: int
    first: Ref | None
    of_optimizer: bool
    """Computed from gradients outside a backward: norms, clipping factors."""

    def current_ref(self) -> Ref | None:
        """The first view of it that was seen, with the role it has now."""
        first = self.first
        return None if first is None else (*first[:5], self.role, first[6])


class Storages:
    """The storages that device operations have touched and that still live."""

    def __init__(self) -> None:
        self.live: dict[int, Storage] = {}
        self._next = 0
        self._freed: list[int] = []

    def find(self, tensor: torch.Tensor) -> Storage | None:
        """What is known of a tensor's storage."""
        try:
            return self.live.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return self.live.get(id(tensor))

    def ref(self, tensor: torch.Tensor, role: str) -> Ref:
        """A tensor as an operation sees it.

        Args:
            tensor: strided, or sparse (then the object itself stands for its storage).
            role: given to the storage if it was not known.
        """
        try:
            storage: Any = tensor.untyped_storage()
            key, storage_nbytes = storage._cdata, storage.nbytes()
            stride = tensor.stride()
        except (NotImplementedError, RuntimeError):
            return self._sparse_ref(tensor, role)
        known = self.live.get(key) or self._watch(storage, key, role)
        shape = tuple(tensor.shape)
        ref = (
            known.number,
            shape,
            DTYPE_NAMES[tensor.dtype],
            tensor.numel() * tensor.element_size(),
            storage_nbytes,
            known.role,
            not stride or stride[-1] == 1 or shape[-1] <= 1,
        )
        if known.first is None:
            known.first = ref
        return ref

    def is_device(self, tensor: torch.Tensor) -> bool:
        """Whether the device has made it or keeps it, rather than been fed with it."""
        known = self.find(tensor)
        return known is not None and known.role != "input"

    def mark(self, tensor: torch.Tensor, role: str) -> Storage:
        """Give a storage a role, whatever it had."""
        known = self.find(tensor)
        if known is None:
            self.ref(tensor, role)
            known = self.find(tensor)
            assert known is not None
        known.role = role
        return known

    def release(self, storage: Any) -> None:
        """The memory of a storage was given back, though the storage lives on: what comes into it is another."""
        known = self.live.pop(storage._cdata, None)
        if known is not None:
            self._freed.append(known.number)

    def take_freed(self) -> list[int]:
        """Numbers of the storages that died since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def forget(self) -> None:
        """Start anew: nothing was touched."""
        self.live = {}
        self._next = 0
        self._freed = []

    def _watch(self, owner: Any, key: int, role: str) -> Storage:
        watched = Storage(owner, self._died)
        watched.number, watched.role, watched.key, watched.first = self._next, role, key, None
        watched.of_optimizer = False
        self._next += 1
        self.live[key] = watched
        return watched

    def _died(self, storage: Any) -> None:
        key, number = storage.key, storage.number
        if self.live.get(key) is storage:
            del self.live[key]
            self._freed.append(number)

    def _sparse_ref(self, tensor: torch.Tensor, role: str) -> Ref:
        known = self.live.get(id(tensor)) or self._watch(tensor, id(tensor), role)
        try:
            parts = (tensor._values(), tensor._indices())
            nbytes = sum(part.numel() * part.element_size() for part in parts)
        except (NotImplementedError, RuntimeError):
            nbytes = tensor.numel() * tensor.element_size()
        dtype = DTYPE_NAMES[tensor.dtype]
        ref = (known.number, tuple(tensor.shape), dtype, nbytes, nbytes, known.role, False)
        if known.first is None:
            known.first = ref
        return ref


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a wrapper (a DTensor) holds; a plain tensor itself."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)  # a DTensor counts its mesh among them
            if isinstance(part, torch.Tensor):
                yield from parts(part)
    else:
        yield tensor


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among arguments or results, and in their lists and tuples."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(v for v in value if isinstance(v, torch.Tensor))
    return found
