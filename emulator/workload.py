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
class CollectiveCall:
    """What an operation asks of other ranks.

    Attributes:
        kind: a name of ``collectives.messages.COLLECTIVES``.
        group: index into the groups of the workload.
        nbytes: the full buffer as nccl-tests counts it: the input of all_reduce and reduce_scatter, the output of all_gather, a rank's send
            buffer of all_to_all; what is sent for the others.
        root: position in the group of who broadcasts, sends (or, of a receive, of whom it is received).
        target: position in the group of who receives what is sent, -1 where it is not from one to one. Of a permute: where the root's
            buffer goes; that of each other rank goes as far along the group, to the next one for -1.
        sent_bytes: of a ragged all_to_all, what this rank sends to each position; empty where all get the same.
        received_bytes: where all get the same of a rank, but not of all ranks, what this rank receives from each position: what that
            rank sends to everyone. Empty else.
    """

    kind: str
    group: int
    nbytes: int
    root: int = 0
    target: int = -1
    sent_bytes: tuple[int, ...] = ()
    received_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that communicate.

    Attributes:
        name: as the program calls it: the dimension of its mesh, the description of the group, or "world".
        ranks: ranks of the world, by position.
        siblings: all groups that do the same at the same time elsewhere in the world, this one among them: they share links with it.
    """

    name: str
    ranks: tuple[int, ...]
    siblings: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class World:
    """Who was captured, and for whom it stands.

    Attributes:
        size: ranks in all.
        rank: the one that was captured.
        members: ranks that do what it does, each in its groups, itself among them; empty: all that no other program claims.
        label: what it is among ranks that differ ("stage 1"), "" where nothing is known.
    """

    size: int = 1
    rank: int = 0
    members: tuple[int, ...] = ()
    label: str = ""


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
        collective: what it asks of other ranks; None where it is this rank's own affair.
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
    collective: CollectiveCall | None = None


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
        groups: process groups of collectives.
        world: ranks of the program.
        others: what ranks do that do something else (stages of a pipeline): a program each, with storages, groups and a world of its own.
    """

    operations: tuple[Operation, ...]
    steps: tuple[WorkloadStep, ...]
    resident: tuple[TensorRef, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    groups: tuple[ProcessGroup, ...] = ()
    world: World = field(default_factory=World)
    others: tuple[Workload, ...] = ()
