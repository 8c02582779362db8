"""What does a PyTorch program compute? Every aten operation of forward, backward and optimizer, as it is dispatched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from trnprof.emulator.capture.torch_context import Context
from trnprof.emulator.capture.torch_fake import Placeholders
from trnprof.emulator.capture.torch_storages import Storages
from trnprof.emulator.workload import Operation, TensorRef, WorkloadStep

STARTERS = frozenset("mm addmm bmm baddbmm convolution mv dot".split())
"""Operators that begin the timeline of a program without modules."""

_NEVER = frozenset("_local_scalar_dense set_ _assert_async is_same_size sym_size".split())


@dataclass(frozen=True, slots=True)
class Facts:
    """What the schema of an operator says, looked up once.

    Attributes:
        name: without namespace for aten, without overload.
        arguments: names of its arguments in order.
        writes: positions and names of the arguments it overwrites.
        aliases: its results are views of its arguments.
        flops: torch's own formula, None if it does not count this operator.
    """

    name: str
    arguments: tuple[str, ...]
    writes: frozenset[str]
    aliases: bool
    flops: Callable[..., int] | None


class CaptureMode(TorchDispatchMode):
    """Records operations while the program runs.

    Args:
        storages: identities of tensors.
        context: where in the program we are.
        placeholders: answers for what fake tensors cannot tell; None when the program really runs.
        sink: takes steps, resident tensors and operations.
    """

    def __init__(
        self,
        storages: Storages,
        context: Context,
        placeholders: Placeholders | None,
        sink: Sink,
    ) -> None:
        super().__init__()
        self._storages = storages
        self._context = context
        self._placeholders = placeholders
        self._sink = sink
        self._facts: dict[Any, Facts] = {}
        self._step = -1
        self.recording = True
        self.host_operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, then note it."""
        kwargs = kwargs or {}
        if not self.recording:
            return func(*args, **kwargs)
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = _facts_of(func)
        before = self._inputs(facts, args, kwargs)
        if self._placeholders is None:
            result = func(*args, **kwargs)
        else:
            result = self._placeholders.run(func, args, kwargs)
        if before is not None:
            self._note(func, facts, args, kwargs, result, before)
        return result

    def _inputs(
        self, facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[torch.Tensor] | None:
        """The tensors read, or None if this is host work: set-up, data loading, questions about a tensor."""
        if facts.name in _NEVER:
            return None
        context = self._context
        tensors = list(_tensors((*args, *kwargs.values())))
        inside = bool(context.modules or context.optimizers) or (
            torch._C._current_graph_task_id() != -1
        )
        if not context.started:
            differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
            if not (inside or differentiable or facts.name in STARTERS):
                return None
            context.started = True
            inside = True
        if inside or any(self._storages.is_known(t) for t in tensors):
            return tensors
        self.host_operations += 1
        return None

    def _note(
        self,
        func: Any,
        facts: Facts,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        tensors: list[torch.Tensor],
    ) -> None:
        context, storages = self._context, self._storages
        phase = context.phase()
        if self._step < 0 or (context.boundary and phase == "forward"):
            self._open_step()
        place = context.place(phase)
        made = "optimizer_state" if phase == "optimizer" and facts.name == "zeros_like" else "activation"
        inputs = tuple(self._read(t) for t in tensors)
        written = [t for t in _tensors((result,))]
        if not written:
            written = [t for name in facts.writes for t in _tensors((_argument(facts, name, args, kwargs),))]
        outputs = tuple(storages.ref(t, made) for t in written)
        freed = storages.take_freed()
        storages.known.update(r.tensor for r in outputs)
        self._sink.operation(
            Operation(
                name=facts.name,
                phase=phase,
                step=self._step,
                inputs=inputs,
                outputs=outputs,
                module_path=place.module_path,
                module_class=place.module_class,
                source_file=place.source_file,
                source_line=place.source_line,
                model_flops=_flops(facts, args, kwargs, result),
                is_view=_is_view(facts, inputs, outputs),
                freed=freed,
                arguments=_plain_arguments(facts, args, kwargs),
            )
        )

    def _read(self, tensor: torch.Tensor) -> TensorRef:
        """A tensor read; one that no recorded operation made was there before, or came from the host."""
        ref = self._storages.ref(tensor, "input")
        if ref.tensor not in self._storages.known:
            self._storages.known.add(ref.tensor)
            self._sink.resident(ref)
        return ref

    def _open_step(self) -> None:
        self._step += 1
        source = self._context.boundary or "optimizer"
        if self._step == 0 and not torch.is_grad_enabled():
            source = "forward"
        self._context.boundary = ""
        self._sink.step(WorkloadStep(self._step, f"step {self._step}", source))


class Sink:
    """What takes the records; see session."""

    def operation(self, op: Operation) -> None:
        """One operation."""
        raise NotImplementedError

    def resident(self, ref: TensorRef) -> None:
        """A tensor that was there before."""
        raise NotImplementedError

    def step(self, step: WorkloadStep) -> None:
        """A step begins."""
        raise NotImplementedError


def _facts_of(func: Any) -> Facts:
    schema = func._schema
    namespace, _, base = schema.name.partition("::")
    writes = frozenset(
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )
    aliases = not writes and any(
        r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
    )
    return Facts(
        name=base if namespace == "aten" else schema.name,
        arguments=tuple(a.name for a in schema.arguments),
        writes=writes,
        aliases=aliases,
        flops=flop_registry.get(func._overloadpacket),
    )


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Tensors in arguments or results, lists flattened."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _argument(facts: Facts, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position = facts.arguments.index(name)
    return args[position] if position < len(args) else kwargs.get(name)


def _is_view(facts: Facts, inputs: tuple[TensorRef, ...], outputs: tuple[TensorRef, ...]) -> bool:
    """No data moves: an alias by its schema, or a result that shares its only input's storage unwritten."""
    if facts.aliases:
        return True
    if facts.writes or not outputs or not inputs:
        return False
    return all(o.tensor == inputs[0].tensor for o in outputs)


def _flops(facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
    """torch.utils.flop_counter's count; its attention formula also for the CPU kernel, which it does not list."""
    if facts.flops is not None:
        return float(facts.flops(*args, **kwargs, out_val=result))
    if facts.name == "_scaled_dot_product_flash_attention_for_cpu":
        return float(sdpa_flop_count(*(t.shape for t in args[:3])))
    if facts.name == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return float(sdpa_backward_flop_count(*(t.shape for t in args[:4])))
    return 0.0


_SHORT_LIST = 8


def _plain_arguments(
    facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Numbers, flags and short lists of them, by name."""
    plain = {}
    for name, value in (*zip(facts.arguments, args, strict=False), *kwargs.items()):
        if isinstance(value, bool | int | float):
            plain[name] = value if value == value and abs(value) != float("inf") else str(value)
        elif isinstance(value, list | tuple) and 0 < len(value) <= _SHORT_LIST:
            if all(isinstance(v, bool | int) for v in value):
                plain[name] = list(value)
    return plain
