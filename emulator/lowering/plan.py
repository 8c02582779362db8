"""What does one operation ask of the machine? The vocabulary that operator lowerings speak."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trnprof.emulator.workload import TensorRef

TENSOR, VECTOR, SCALAR, GPSIMD, SYNC = "Tensor", "Vector", "Scalar", "GpSimd", "Sync"
ENGINES = (TENSOR, VECTOR, SCALAR, GPSIMD, SYNC)


@dataclass(frozen=True, slots=True)
class Stage:
    """Work of one operation on one engine, summed over its tiles.

    Attributes:
        engine: one of ENGINES.
        name: opcode shown in the timeline.
        work_ps: sum of the issue intervals of its instructions.
        instructions: how many there are.
        chain: dependent instructions in a row on each tile; their latency shows where there are too few tiles to hide it.
        flops: hardware FLOPs (tensor engine).
        is_transpose: a matmul that only moves data.
        evacuates: copies PSUM to SBUF; falls away when a fused consumer reads PSUM itself.
        dtype: datatype that decides the peak.
    """

    engine: str
    name: str
    work_ps: int
    instructions: int
    chain: int = 1
    flops: float = 0.0
    is_transpose: bool = False
    evacuates: bool = False
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Access:
    """One tensor read or written.

    Attributes:
        ref: the tensor.
        nbytes: bytes moved when it must come from or go to HBM, re-reads included.
        row_bytes: contiguous bytes of one partition's row.
        by_row: tile t touches only its share of the rows; otherwise the whole tensor must be there first.
        software: descriptors made by GpSimd (gather, scatter).
        efficiency: fraction of the copy rate.
        place: which part of the iteration space it belongs to: one tensor of a list is touched by its own tiles only.
    """

    ref: TensorRef
    nbytes: int
    row_bytes: int
    by_row: bool = True
    software: bool = False
    efficiency: float = 1.0
    place: tuple[float, float] = (0.0, 1.0)

    def share_at(self, reached: float) -> float:
        """Share of its rows that lie in the first ``reached`` of the iteration space."""
        first, last = self.place
        return min(1.0, max(0.0, (reached - first) / max(last - first, 1e-12)))


@dataclass(frozen=True, slots=True)
class OpPlan:
    """One operation, lowered.

    Attributes:
        form: elementwise, rowwise, producer, move, collective (ranks exchange), given (its cost was), or none (no device work).
        rows, columns: its iteration space: rows are dealt to partitions, columns lie along the free dimension.
        tiles: SBUF-sized pieces it is worked off in.
        stages: engine work, in dependency order.
        reads, writes: tensors.
        exact: lowered by a rule for this operator; False for the roofline fallback.
        independent: parts that share nothing, such as heads: rows of every operand belong to one of them.
    """

    form: str
    rows: int
    columns: int
    tiles: int
    stages: tuple[Stage, ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    exact: bool = True
    independent: int = 1

    def without_evacuation(self) -> OpPlan:
        """The same with PSUM left to the consumer."""
        return replace(self, stages=tuple(s for s in self.stages if not s.evacuates))


NOTHING = OpPlan("none", 0, 0, 0)
COLLECTIVE_FORM = "collective"
EXCHANGE = OpPlan(COLLECTIVE_FORM, 0, 0, 0)
"""What a collective asks of its core's engines: nothing."""

GIVEN_FORM = "given"
GIVEN = OpPlan(GIVEN_FORM, 0, 0, 0)
"""Of an operation whose cost its front end gave (``emulator.given``)."""


def numel(ref: TensorRef) -> int:
    """Number of elements."""
    return math.prod(ref.shape)


def rows_and_columns(ref: TensorRef) -> tuple[int, int]:
    """A tensor as [rows, last dimension]; a vector is spread over the partitions."""
    if not ref.shape:
        return 1, 1
    columns = ref.shape[-1]
    return (numel(ref) // columns, columns) if columns else (0, 0)


def flat_access(ref: TensorRef, *, by_row: bool = True, factor: float = 1.0) -> Access:
    """A dense tensor streamed in any layout: rows as long as 128 partitions allow."""
    nbytes = stored_bytes(ref)
    return Access(ref, round(nbytes * factor), max(1, nbytes // 128), by_row)


def flat_accesses(
    refs: Iterable[TensorRef], *, by_row: bool = True, factor: float = 1.0
) -> tuple[Access, ...]:
    """One access a storage: several views of it are read together, and no byte of it twice."""
    views: dict[int, TensorRef] = {}
    for ref in refs:
        seen = views.get(ref.tensor)
        if seen is not None:
            together = min(stored_bytes(seen) + stored_bytes(ref), ref.storage_nbytes)
            ref = replace(ref, nbytes=together)
        views[ref.tensor] = ref
    return tuple(flat_access(r, by_row=by_row, factor=factor) for r in views.values())


def stored_bytes(ref: TensorRef) -> int:
    """Bytes that a view reaches: an expanded one repeats what is stored once."""
    return min(ref.nbytes, ref.storage_nbytes)


def matrix_access(ref: TensorRef, *, by_row: bool, passes: float = 1.0) -> Access:
    """A matrix loaded with its rows on partitions: contiguous only along its last dimension."""
    _, columns = rows_and_columns(ref)
    itemsize = max(1, ref.nbytes // max(1, numel(ref)))
    return Access(ref, round(stored_bytes(ref) * passes), max(1, columns * itemsize), by_row)
