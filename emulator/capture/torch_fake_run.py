"""How does a program run whose tensors have no data? What asks for values gets placeholders, each kind noted once.

Data loading stays real: a DataLoader works outside the fake mode and its batches become fake when the device uses them.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)


class FakeRun:
    """The fake mode, and the answers to questions about values."""

    def __init__(self, note: Callable[[str], object]) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._note = note

    def install(self) -> None:
        """From now on tensors are made without data."""
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        self._patch_values()
        self._patch_conversion()
        self._patch_saving()
        self._patch_data_loader()
        self.mode.__enter__()
        self._note("the program ran on fake tensors: shapes are real, values are not")

    def leave(self) -> None:
        """A forked child makes real tensors."""
        self.mode.__exit__(None, None, None)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation, or its placeholder where the result depends on values."""
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as failure:
            name = func._opname
            stand_in = _STAND_INS.get(name)
            if stand_in is None:
                raise
            out = stand_in(self, failure, args, kwargs)
            self._note(f"fake tensors: {name} depends on values; {_ASSUMED[name]}")
            return out

    def _patch_values(self) -> None:
        note = self._note

        def numpy(self: Any, *_: Any, **__: Any) -> Any:
            note("fake tensors: numpy() gives zeros")
            return np.zeros(tuple(self.shape), dtype=_numpy_dtype(self.dtype))

        def array(self: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
            return numpy(self).astype(dtype) if dtype is not None else numpy(self)

        def formatted(self: Any, spec: str) -> str:
            return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

        FakeTensor.numpy = numpy
        FakeTensor.__array__ = array
        FakeTensor.__format__ = formatted

    def _patch_conversion(self) -> None:
        """``module.to(dtype)`` swaps parameters, which fake ones refuse: replace their data instead."""
        apply = torch.nn.Module._apply

        @functools.wraps(apply)
        def replacing_apply(module: Any, fn: Any, recurse: bool = True) -> Any:
            for child in module.modules() if recurse else (module,):
                _apply_to_own(child, fn)
            return module

        torch.nn.Module._apply = replacing_apply

    def _patch_saving(self) -> None:
        note = self._note

        @functools.wraps(torch.save)
        def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
            note("fake tensors: torch.save was skipped, there is nothing to save")

        torch.save = save

    def _patch_data_loader(self) -> None:
        loader = torch.utils.data.DataLoader
        base = torch.utils.data.dataloader._BaseDataLoaderIter
        init, iterate, following = loader.__init__, loader.__iter__, base.__next__
        note = self._note

        @functools.wraps(init)
        def one_process(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("num_workers"):
                note(
                    "fake tensors: DataLoader workers are replaced by loading in the program itself"
                )
                kwargs["num_workers"] = 0
                for name in (
                    "prefetch_factor",
                    "persistent_workers",
                    "multiprocessing_context",
                    "timeout",
                ):
                    kwargs.pop(name, None)
            kwargs.pop("pin_memory", None)
            init(self, *args, **kwargs)

        @functools.wraps(iterate)
        def real_iter(self: Any) -> Any:
            with unset_fake_temporarily():
                return iterate(self)

        @functools.wraps(following)
        def real_next(self: Any) -> Any:
            with unset_fake_temporarily():
                return following(self)

        loader.__init__, loader.__iter__, base.__next__ = one_process, real_iter, real_next

    def _scalar(self, failure: Any, args: tuple[Any, ...], _: Any) -> Any:
        dtype = args[0].dtype
        if dtype == torch.bool:
            return False
        return 0.0 if dtype.is_floating_point else 0j if dtype.is_complex else 0

    def _nonzero(self, failure: Any, args: tuple[Any, ...], _: Any) -> Any:
        return self._new((args[0].numel(), args[0].dim()))

    def _masked_select(self, failure: Any, args: tuple[Any, ...], _: Any) -> Any:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return self._new((math.prod(shape),), args[0].dtype)

    def _unique(self, failure: Any, args: tuple[Any, ...], _: Any) -> Any:
        values = args[0]
        flat = self._new((values.numel(),), values.dtype)
        return flat, self._new(tuple(values.shape)), self._new((values.numel(),))

    def _index(self, failure: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        indices: list[Any] = []
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                indices.extend(self._new((index.numel(),)) for _ in range(index.dim()))
            else:
                indices.append(index)
        return torch.ops.aten.index.Tensor(args[0], indices)

    def _repeat(self, failure: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._new((args[0].numel(),))

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        with self.mode:
            return torch.empty(shape, dtype=dtype)


_STAND_INS: dict[str, Callable[[FakeRun, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    "_local_scalar_dense": FakeRun._scalar,
    "equal": lambda *_: False,
    "nonzero": FakeRun._nonzero,
    "masked_select": FakeRun._masked_select,
    "_unique2": FakeRun._unique,
    "unique_consecutive": FakeRun._unique,
    "index": FakeRun._index,
    "repeat_interleave": FakeRun._repeat,
}
_ASSUMED = {
    "_local_scalar_dense": "0 or False was returned",
    "equal": "False was returned",
    "nonzero": "every element was taken to be nonzero",
    "masked_select": "every element was taken",
    "_unique2": "every element was taken to be unique",
    "unique_consecutive": "every element was taken to be unique",
    "index": "every element of the mask was taken to be true",
    "repeat_interleave": "one repetition each was assumed",
}


def _apply_to_own(module: torch.nn.Module, fn: Any) -> None:
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            changed = fn(parameter)
        if changed.dtype == parameter.dtype and changed.shape == parameter.shape:
            continue
        memo = parameter.__dict__.get("_trnprof_converted")
        if memo is None or memo.dtype != changed.dtype:
            memo = torch.nn.Parameter(changed, parameter.requires_grad)
            parameter.__dict__["_trnprof_converted"] = memo  # a tied parameter stays tied
        module._parameters[name] = memo
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)


def _numpy_dtype(dtype: torch.dtype) -> Any:
    name = str(dtype).removeprefix("torch.")
    return np.dtype(name if name in np.sctypeDict else "float32")
