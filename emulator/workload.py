"""What was captured: the operations of a program, in the order it issued them, with the tensors they touch.

A Workload knows nothing of a machine. It is saved in the trace (``workload.arrow``), so that ``trnprof emulate`` can
time it on another system without running the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorRef:
    """One tensor as an operation sees it.

    Attributes:
        tensor: number of the tensor object's *storage*: two views of one storage share it.
        shape: sizes.
        dtype: short name: float32, bfloat16, float16, int64, bool, …
        nbytes: bytes this view touches (numel x element size).
        storage_nbytes: bytes of the whole storage.
        role: parameter, buffer, input, activation, gradient, optimizer_state.
        contiguous: whether the innermost dimension has stride 1.
    """

    tensor: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    storage_nbytes: int
    role: str
    contiguous: bool = True


@dataclass(frozen=True, slots=True)
class Operation:
    """One captured operation.

    Attributes:
        name: operator without overload and namespace for aten (``mm``, ``add``, ``_foreach_add_``), with namespace
            otherwise (``mylib::op``).
        phase: forward, backward or optimizer.
        step: ordinal of the step it belongs to.
        inputs: tensors read, in argument order (lists flattened).
        outputs: tensors written or returned; an in-place operation lists the storage it overwrites.
        module_path: dotted path of the innermost module in whose forward (or backward of it) it ran, "" at top level.
        module_class: class name of that module.
        source_file: file of the innermost line outside torch, "" unknown.
        source_line: its line, 0 unknown.
        model_flops: as torch.utils.flop_counter counts, 0 where it does not.
        is_view: no data moves.
        freed: storages whose last reference died before this operation started.
        arguments: the non-tensor arguments that lowering needs (dim, keepdim, stride, padding, groups, …), JSON values.
    """

    name: str
    phase: str
    step: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    module_path: str = ""
    module_class: str = ""
    source_file: str = ""
    source_line: int = 0
    model_flops: float = 0.0
    is_view: bool = False
    freed: tuple[int, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkloadStep:
    """One step: its ordinal, label and what marked it (marker, optimizer, profiler, forward)."""

    step: int
    label: str
    source: str


@dataclass(frozen=True)
class Workload:
    """The captured program.

    Attributes:
        operations: in issue order; their step never decreases.
        steps: one entry a step that has operations.
        resident: tensors alive before the first operation (parameters, optimizer state, inputs): what HBM holds at the
            start.
        notes: what the capture wants said: graph breaks, placeholders, skipped host operations.
        complete: False if the program was killed while capturing.
    """

    operations: tuple[Operation, ...]
    steps: tuple[WorkloadStep, ...]
    resident: tuple[TensorRef, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
