"""Which fake tensors have values all the same? Small ones that a program makes from constants and computes with constants only.

Lengths, masks, counters and flags steer a program: a loop that ends at a maximal length, a mask of ones that is left out. Their
values need no data, so they are computed beside the fake run. What comes from data or weights stays unknown, but for the choices of
routers, which are given (torch_routing): what follows from those is computed up to far larger sizes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from trnprof.emulator.capture.torch_fillings import (
    answer_if_finite,
    filling_from,
    filling_made,
    makes_filling,
    takes_fillings,
)
from trnprof.emulator.capture.torch_tensors import tensors_among

_MOST_INTEGERS: Final = 1 << 16
"""Elements of the largest integer or boolean tensor that is computed: a batch of labels, a mask of 256 x 256."""
_MOST_FLOATS: Final = 16
"""Elements of the largest floating tensor that is computed: scales and factors, no activations."""
MOST_ROUTED: Final = 1 << 24
"""Elements of the largest integer or boolean tensor that is computed from the choices of routers: a mask of 65,536 tokens by 256 experts."""
_MOST_ROUTED_FLOATS: Final = 1 << 22
_FILLED: Final = {"zeros_like": 0, "new_zeros": 0, "zero_": 0, "ones_like": 1, "new_ones": 1}
"""Operators whose result has one value that depends on no input."""
_FILLED_BY_ARGUMENT: Final = {"full_like": 1, "fill_": 1, "new_full": 2}
"""The same, with the position of the argument that says which."""
_MAKES_NONE: Final = frozenset(
    ("empty", "empty_strided", "empty_like", "new_empty", "empty_permuted")
)
_OR: Final = frozenset(("bitwise_or", "bitwise_or_", "logical_or", "logical_or_"))
_AND: Final = frozenset(("bitwise_and", "bitwise_and_", "logical_and", "logical_and_"))


class Known(NamedTuple):
    """Values of a tensor, whether nothing was assumed to get them, and the routers from whose choices they follow."""

    values: torch.Tensor
    is_exact: bool
    routers: frozenset[Any] = frozenset()


class _Base(weakref.ref):  # type: ignore[type-arg]
    """The values of a live storage of fake tensors; of a large one that was filled, the filling alone."""

    __slots__ = ("fetch", "filling", "is_exact", "key", "routers", "values")
    key: int
    values: torch.Tensor | None
    is_exact: bool
    routers: frozenset[Any]
    filling: Any
    fetch: Callable[[], torch.Tensor | None] | None
    """Gets the values when they are asked for, which may take time; None where that was done."""


class KnownValues:
    """Values of the storages that are known, computed operation by operation."""

    def __init__(self) -> None:
        self._bases: dict[int, _Base] = {}
        self._has_routers = False

    def find(self, tensor: torch.Tensor) -> Known | None:
        """The values of a tensor; None if they are not known."""
        if tensor.layout != torch.strided:
            return None
        base = self._bases.get(tensor.untyped_storage()._cdata)
        if base is None:
            is_data = not isinstance(tensor, FakeTensor) and is_small(tensor)
            return Known(tensor, True) if is_data else None
        if base.fetch is not None:
            fetch, base.fetch = base.fetch, None
            with unset_fake_temporarily():
                base.values = fetch()
        if base.values is None or base.values.dtype != tensor.dtype:
            return None
        if not is_small(tensor, bool(base.routers)):
            return None
        with unset_fake_temporarily():
            view = torch.ops.aten.as_strided.default(
                base.values, tensor.shape, tensor.stride(), tensor.storage_offset()
            )
        return Known(view, base.is_exact, base.routers)

    def learn(self, tensor: torch.Tensor, known: Known) -> None:
        """These are the values of a new tensor."""
        self._keep(tensor, known.values, known.is_exact, known.routers)

    def expect(self, tensor: torch.Tensor, fetch: Callable[[], torch.Tensor | None]) -> None:
        """These will be the values of a tensor, if it is the whole of its storage and they are asked for."""
        is_whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        if is_whole and tensor.is_contiguous():
            self._keep(tensor, None, True)
            self._bases[tensor.untyped_storage()._cdata].fetch = fetch

    def write(self, tensor: torch.Tensor, known: Known | None) -> None:
        """Something other than an operation on values has written these into a tensor; None: what nobody knows."""
        storage = tensor.untyped_storage()
        base = self._bases.get(storage._cdata)
        is_whole = storage.nbytes() == tensor.numel() * tensor.element_size()
        if known is None or not (is_whole or (base is not None and base.values is not None)):
            self._bases.pop(storage._cdata, None)
            return
        with unset_fake_temporarily():
            if base is None or base.values is None or is_whole:
                values = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                self.learn(tensor, known._replace(values=values.copy_(known.values)))
            else:
                view = torch.ops.aten.as_strided.default(
                    base.values, tensor.shape, tensor.stride(), tensor.storage_offset()
                )
                view.copy_(known.values)
                base.is_exact &= known.is_exact
                base.routers |= known.routers

    def _keep(
        self,
        tensor: torch.Tensor,
        values: torch.Tensor | None,
        is_exact: bool,
        routers: frozenset[Any] = frozenset(),
        filling: Any = None,
    ) -> None:
        storage = tensor.untyped_storage()
        base = _Base(storage, self._died)
        base.key, base.values, base.is_exact = storage._cdata, values, is_exact
        base.routers, base.filling, base.fetch = routers, filling, None
        self._has_routers |= bool(routers)
        self._bases[base.key] = base

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An operation has run on fake tensors: do it with values too, or forget what it has written."""
        made = tensors_among((out,))
        if not any(isinstance(tensor, FakeTensor) for tensor in made):
            return
        found = None
        if all(map(self._may_be_known, made)):
            found = self._found(func, tensors_among((*args, *kwargs.values())))
        if found is not None:
            is_routed = any(known.routers for known in found.values())
            found = found if all(is_small(tensor, is_routed) for tensor in made) else None
        name = func._opname
        if name in _FILLED or name in _FILLED_BY_ARGUMENT:
            self._fill(name, args, made[0])
        elif (filling := self._filling(name, args, made[0])) is not None:
            self._keep_filling(made[0], filling)
        elif found is None and (answer := answer_if_finite(name, args)) is not None:
            self._keep_filling(made[0], answer)
        elif found is not None and name not in _MAKES_NONE and _is_determined(func):
            self._compute(func, args, kwargs, made, found)
        elif func._schema.is_mutable:
            self._forget(func, args, kwargs)

    def _found(self, func: Any, inputs: list[torch.Tensor]) -> dict[int, Known] | None:
        """Values of all inputs by identity; of a boolean one, where the other decides or is assumed to, False."""
        found: dict[int, Known] = {}
        unknown = []
        if self._has_routers:
            self._unfold(inputs)
        for tensor in inputs:
            known = self.find(tensor)
            if known is not None:
                found[id(tensor)] = known
            elif func._opname in _OR or func._opname in _AND:
                unknown.append(tensor)
            else:
                return None
        if not unknown:
            return found
        if not found or any(t.dtype != torch.bool or not is_small(t) for t in unknown):
            return None
        (other,) = found.values()
        with unset_fake_temporarily():
            decides = bool(other.values.all() if func._opname in _OR else not other.values.any())
            for tensor in unknown:
                values = torch.zeros(tuple(tensor.shape), dtype=torch.bool)
                found[id(tensor)] = Known(values, decides)
        return found

    def _may_be_known(self, tensor: torch.Tensor) -> bool:
        return is_small(tensor, self._has_routers)

    def _unfold(self, inputs: list[torch.Tensor]) -> None:
        """Large tensors of one value get values where they meet what follows from routers."""
        found = [(t, self._base(t)) for t in inputs]
        routers = frozenset[Any]().union(*(base.routers for _, base in found if base is not None))
        for tensor, base in found:
            if not routers or base is None or base.filling is None:
                continue
            storage = tensor.untyped_storage()
            elements = storage.nbytes() // tensor.element_size()
            if elements <= (_MOST_ROUTED_FLOATS if tensor.dtype.is_floating_point else MOST_ROUTED):
                with unset_fake_temporarily():
                    base.values = torch.full((elements,), base.filling, dtype=tensor.dtype)
                base.filling, base.routers = None, routers

    def _base(self, tensor: torch.Tensor) -> _Base | None:
        is_strided = tensor.layout == torch.strided
        return self._bases.get(tensor.untyped_storage()._cdata) if is_strided else None

    def _filling(self, name: str, args: tuple[Any, ...], made: torch.Tensor) -> Any:
        """The value that an operation gives everywhere, where it is from such tensors or makes one too large for values; else None."""
        if made.layout != torch.strided:
            return None
        if makes_filling(name):
            return None if is_small(made) else filling_made(name, args)
        if not takes_fillings(name):
            return None
        found = [(tensor, self._base(tensor)) for tensor in tensors_among(args)]
        known = [(t.dtype, b.filling) for t, b in found if b is not None and b.filling is not None]
        return filling_from(name, known) if len(known) == len(found) else None

    def _keep_filling(self, made: torch.Tensor, filling: Any) -> None:
        with unset_fake_temporarily():
            value = torch.tensor(filling).to(made.dtype)
            if is_small(made):
                values = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype)
                self._keep(made, values.fill_(value), True)
            else:
                self._keep(made, None, True, filling=value.item())

    def _fill(self, name: str, args: tuple[Any, ...], made: torch.Tensor) -> None:
        value = _FILLED.get(name)
        if value is None:
            value = args[_FILLED_BY_ARGUMENT[name]]
        known = self.find(value) if isinstance(value, torch.Tensor) else None
        key = made.untyped_storage()._cdata
        is_whole = made.untyped_storage().nbytes() == made.numel() * made.element_size()
        if isinstance(value, torch.Tensor) and known is None:
            self._bases.pop(key, None)
        elif not is_small(made):
            self._bases.pop(key, None)
            if is_whole and not isinstance(value, torch.Tensor):
                self._keep_filling(made, value)
        elif is_whole or name.endswith("like") or name.startswith("new"):
            with unset_fake_temporarily():
                values = torch.empty_strided(
                    tuple(made.shape), made.stride(), dtype=made.dtype, device="cpu"
                )
                values.fill_(value if known is None else known.values)
            self.learn(made, Known(values, known is None or known.is_exact))
        elif key in self._bases:
            found = self.find(made)
            if found is not None:
                with unset_fake_temporarily():
                    found.values.fill_(value if known is None else known.values)
            else:
                self._bases.pop(key)

    def _compute(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: list[torch.Tensor],
        found: dict[int, Known],
    ) -> None:
        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return found[id(value)].values
            if isinstance(value, list | tuple):
                return [real(item) for item in value]
            return torch.device("cpu") if isinstance(value, torch.device) else value

        try:
            with unset_fake_temporarily():
                result = func(
                    *map(real, args), **{name: real(value) for name, value in kwargs.items()}
                )
        except Exception:  # the fake run went well: it says what becomes of the program
            self._forget(func, args, kwargs)
            return
        is_exact = all(known.is_exact for known in found.values())
        routers = frozenset[Any]().union(*(known.routers for known in found.values()))
        for tensor, values in zip(made, tensors_among((result,)), strict=False):
            base = self._bases.get(tensor.untyped_storage()._cdata)
            if base is not None:
                base.is_exact &= is_exact
                base.routers |= routers
            elif tensor.stride() == values.stride():
                self.learn(tensor, Known(values, is_exact, routers))

    def _forget(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What an operation writes has values that are not known."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in tensors_among((value,)):
                if isinstance(tensor, FakeTensor):
                    self._bases.pop(tensor.untyped_storage()._cdata, None)
                else:
                    self._keep(tensor, None, False)

    def _died(self, base: Any) -> None:
        key = base.key
        if self._bases.get(key) is base:
            del self._bases[key]


def is_small(tensor: torch.Tensor, is_routed: bool = False) -> bool:
    """Whether the values of such a tensor are worth to be computed; where they follow from routers, more are."""
    if tensor.dtype.is_floating_point:
        most = _MOST_ROUTED_FLOATS if is_routed else _MOST_FLOATS
    else:
        most = MOST_ROUTED if is_routed else _MOST_INTEGERS
    return not tensor.dtype.is_complex and tensor.numel() <= most


_determined: dict[Any, bool] = {}


def _is_determined(func: Any) -> bool:
    """Whether an operator gives the same result each time."""
    known = _determined.get(func)
    if known is None:
        known = _determined[func] = torch.Tag.nondeterministic_seeded not in func.tags
    return known
