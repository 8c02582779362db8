"""How does a program run whose tensors have no data? What asks for values gets placeholders, each kind noted once.

Data loading stays real: a DataLoader works outside the fake mode and its batches become fake when the device uses them.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

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

from trnprof.emulator.capture.imports import when_imported
from trnprof.emulator.capture.moe_load import MoeLoad
from trnprof.emulator.capture.torch_asked import Asked
from trnprof.emulator.capture.torch_collectives import Spec, spec_of
from trnprof.emulator.capture.torch_exchanged import exchange_known
from trnprof.emulator.capture.torch_known import Known, KnownValues
from trnprof.emulator.capture.torch_routing import Routing

if TYPE_CHECKING:
    from trnprof.emulator.capture.torch_messages import Messages

_DEVICE: Final = torch.ops.prim.device.default
_META: Final = torch.device("meta")


class FakeRun:
    """The fake mode, and the answers to questions about values.

    Attributes:
        messages: what ranks send each other, None where there is one.

    Args:
        note: takes remarks for people.
        load: of the experts that tokens are routed to.
        place: path of the module whose forward runs; None outside of all.
        refuse: ends the program.
    """

    def __init__(
        self,
        note: Callable[[str], object],
        load: MoeLoad,
        place: Callable[[], str | None],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.asked = Asked()
        self.messages: Messages | None = None
        self._known = KnownValues()
        self._routing = Routing(load, self._known, place, refuse)
        self._specs: dict[Any, Spec | None] = {}
        self._note = note

    def notes(self) -> list[str]:
        """Remarks for people on what was asked and assumed."""
        return [*self._routing.notes(), *self.asked.notes()]

    def install(self) -> None:
        """From now on tensors are made without data."""
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        self._patch_values()
        self._patch_conversion()
        self._patch_saving()
        self._patch_data_loader()
        when_imported("transformers.utils.import_utils", _let_masks_be_looked_at)
        self.mode.__enter__()
        self._note("the program ran on fake tensors: shapes are real, values are not")

    def leave(self) -> None:
        """A forked child makes real tensors."""
        self.mode.__exit__(None, None, None)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation, or its placeholder where the result depends on values."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            tensor = args[0]  # asked more often than all else; answered as the mode does
            return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device
        if func._opname == "histc" and not args[0].dtype.is_floating_point:
            return self._histogram(args, kwargs)
        try:
            out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            stand_in = _STAND_INS.get(func._opname)
            if stand_in is None:
                raise
            return stand_in(self, func, args, kwargs)
        if func not in self._specs:
            self._specs[func] = spec_of(func.namespace, func._opname)
        spec = self._specs[func]
        if spec is not None:
            names = [a.name for a in func._schema.arguments if not a.kwarg_only]
            whole = (*args, *(kwargs.get(name) for name in names[len(args) :]))
            exchange_known(self._known, func._opname, spec, whole, out)
            if self.messages is not None and func.namespace == "c10d":
                self.messages.follow(func, args, self._known)
        else:
            self._known.follow(func, args, kwargs, out)
            self._routing.follow(func, args, kwargs, out)
        return out

    def _find(self, tensor: torch.Tensor) -> Known | None:
        """The values of a tensor that the program reads."""
        found = self._known.find(tensor)
        if found is not None and found.routers:
            self._routing.read(found.routers)
        return found

    def _patch_values(self) -> None:
        tensor, asked, find = torch.Tensor, self.asked, self._find

        def item(self: Any) -> Any:
            before = asked.reads
            value = tensor.item(self)
            return value if asked.reads == before else asked.placeholder(value)

        def decides(self: Any) -> bool:
            before = asked.reads
            value = tensor.__bool__(self)
            if asked.reads > before:
                asked.reads = before
                asked.decide()
            return bool(value)

        def numpy(self: Any, *_: Any, **__: Any) -> Any:
            found = find(self)
            if found is not None:
                with unset_fake_temporarily():
                    return found.values.numpy().copy()
            asked.reads += 1
            return np.zeros(tuple(self.shape), dtype=_numpy_dtype(self.dtype))

        def tolist(self: Any) -> Any:
            return self.item() if self.dim() == 0 else numpy(self).tolist()

        def array(self: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
            return numpy(self).astype(dtype) if dtype is not None else numpy(self)

        def formatted(self: Any, spec: str) -> str:
            return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

        FakeTensor.item = item
        FakeTensor.__bool__ = decides
        FakeTensor.tolist = tolist
        FakeTensor.numpy = numpy
        FakeTensor.__array__ = array
        FakeTensor.__format__ = formatted

    def _patch_conversion(self) -> None:
        """``module.to(dtype)`` swaps parameters, which fake ones refuse: replace their data instead."""
        apply = torch.nn.Module._apply

        @functools.wraps(apply)
        def replacing_apply(module: Any, fn: Any, recurse: bool = True) -> Any:
            for child in module.children() if recurse else ():
                child._apply(fn)  # which some modules override
            _apply_to_own(module, fn)
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

    def _scalar(self, _: Any, args: tuple[Any, ...], __: Any) -> Any:
        found = self._find(args[0])
        if found is None or not found.is_exact:
            self.asked.reads += 1
        if found is not None:
            with unset_fake_temporarily():
                return found.values.item()
        dtype = args[0].dtype
        if dtype == torch.bool:
            return False
        return 0.0 if dtype.is_floating_point else 0j if dtype.is_complex else 0

    def _equal(self, _: Any, args: tuple[Any, ...], __: Any) -> bool:
        found = [self._find(tensor) for tensor in args[:2]]
        known = [f.values for f in found if f is not None]
        if len(known) == 2:
            with unset_fake_temporarily():
                return bool(torch.equal(*known))
        self.asked.reads += 1
        return False

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self._computed(func, args, kwargs)
        if out is not None:
            return out
        shape = (args[0].numel(), args[0].dim())
        return self._assumed("nonzero: every element was taken to be nonzero", self._new(shape))

    def _masked_select(self, func: Any, args: tuple[Any, ...], _: Any) -> Any:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        known = self._find(args[1])
        if known is not None:
            with unset_fake_temporarily():
                count = int(known.values.expand(shape).sum())
            return self._new((count,), args[0].dtype)
        return self._assumed(
            "masked_select: every element was taken", self._new((math.prod(shape),), args[0].dtype)
        )

    def _unique(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self._computed(func, args, kwargs)
        if out is not None:
            return out
        values = args[0]
        flat = self._new((values.numel(),), values.dtype)
        assumed = flat, self._new(tuple(values.shape)), self._new((values.numel(),))
        return self._assumed("unique: every element was taken to be unique", assumed)

    def _counts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        if weights is None:
            out = self._computed(func, args[:1], {"minlength": least})
            if out is not None:
                return out
        dtype = torch.int64 if weights is None else torch.float64
        counts = self._new((max(1, least),), dtype)
        return counts if least else self._assumed("bincount: one bin was assumed", counts)

    def _histogram(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of integers, as on an accelerator: the CPU has none."""
        bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
        out = self._new((bins,), args[0].dtype)
        found = self._known.find(args[0])
        if found is not None:
            with unset_fake_temporarily():
                values = torch.histc(found.values.double(), *args[1:], **kwargs)
                values = values.to(out.dtype)
            self._known.learn(out, found._replace(values=values))
        return out

    def _index(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        indices: list[Any] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(index)
                continue
            known = self._find(index)
            if known is not None:
                with unset_fake_temporarily():
                    places = known.values.nonzero(as_tuple=True)
                indices += [self._learned(place.contiguous(), known) for place in places]
            else:
                self._assumed("index: every element of the mask was taken to be true", None)
                indices.extend(self._new((index.numel(),)) for _ in range(index.dim()))
        out = torch.ops.aten.index.Tensor(args[0], indices)
        self._known.follow(torch.ops.aten.index.Tensor, (args[0], indices), {}, out)
        return out

    def _repeat(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self._computed(func, args, kwargs)
        if out is not None:
            return out
        shape = (args[0].numel(),)
        return self._assumed("repeat_interleave: one repetition each was assumed", self._new(shape))

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operator gives for values that are known; None for those that are not."""
        found = self._find(args[0])
        if found is None:
            return None
        with unset_fake_temporarily():
            values = func(found.values, *args[1:], **kwargs)
        if isinstance(values, tuple):
            return tuple(self._learned(each, found) for each in values)
        return self._learned(values, found)

    def _learned(self, values: torch.Tensor, source: Known) -> torch.Tensor:
        out = self._new(tuple(values.shape), values.dtype, values.stride())
        self._known.learn(out, source._replace(values=values))
        return out

    def _assumed(self, assumption: str, out: Any) -> Any:
        self.asked.shapes[assumption] += 1
        return out

    def _new(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.int64,
        stride: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        with self.mode:
            if stride is not None:
                return torch.empty_strided(shape, stride, dtype=dtype)
            return torch.empty(shape, dtype=dtype)


_STAND_INS: dict[str, Callable[[FakeRun, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    "_local_scalar_dense": FakeRun._scalar,
    "equal": FakeRun._equal,
    "nonzero": FakeRun._nonzero,
    "masked_select": FakeRun._masked_select,
    "_unique2": FakeRun._unique,
    "unique_consecutive": FakeRun._unique,
    "index": FakeRun._index,
    "repeat_interleave": FakeRun._repeat,
    "bincount": FakeRun._counts,
}


def _let_masks_be_looked_at(module: Any) -> None:
    """On fake tensors transformers keeps every mask; values that are known let it leave out a mask of ones, as on real ones."""
    module.is_fake_tensor = lambda _: False


def _apply_to_own(module: torch.nn.Module, fn: Any) -> None:
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            changed = fn(parameter)
        if _kind(changed) == _kind(parameter):
            continue
        memo = parameter.__dict__.get("_trnprof_converted")
        if memo is None or _kind(memo) != _kind(changed):
            memo = torch.nn.Parameter(changed, parameter.requires_grad)
            parameter.__dict__["_trnprof_converted"] = memo  # a tied parameter stays tied
        module._parameters[name] = memo
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a conversion may change: one from the meta device makes values."""
    return tensor.dtype, tensor.shape, tensor.device.type


def _numpy_dtype(dtype: torch.dtype) -> Any:
    name = str(dtype).removeprefix("torch.")
    return np.dtype(name if name in np.sctypeDict else "float32")
