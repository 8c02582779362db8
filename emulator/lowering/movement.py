"""How are gathers, scatters, copies between layouts and joins lowered? Mostly as DMA."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from trnprof.emulator.core import Core
from trnprof.emulator.cost import gpsimd_ps, pe_transpose_ps
from trnprof.emulator.lowering.elementwise import (
    base_name,
    elementwise_plan,
    instruction_ps,
    working_dtype,
)
from trnprof.emulator.lowering.plan import (
    GPSIMD,
    TENSOR,
    VECTOR,
    Access,
    OpPlan,
    Stage,
    flat_access,
    flat_accesses,
    numel,
    rows_and_columns,
)
from trnprof.emulator.workload import Operation, TensorRef

GATHERS = frozenset("embedding index index_select gather take unfold_backward".split())
SCATTERS = frozenset(
    "embedding_dense_backward index_put _unsafe_index_put index_add scatter scatter_add "
    "index_copy index_fill masked_scatter".split()
)
JOINS = frozenset(
    "cat stack constant_pad_nd slice_backward select_backward select_scatter slice_scatter repeat roll "
    "flip _unsafe_view_copy split_with_sizes_copy reflection_pad2d unbind_copy as_strided_scatter "
    "repeat_interleave im2col col2im _chunk_cat".split()
)
SHARDS = frozenset("fsdp::all_gather_copy_in fsdp::split_with_sizes_copy fsdp::chunk_cat".split())
"""FSDP2 lays shards side by side to be gathered, takes apart what was gathered, lays gradients in chunks to be reduced."""
COPIES = frozenset("clone copy _to_copy contiguous".split())
POOLS = frozenset(
    "max_pool2d_with_indices avg_pool2d max_pool2d_with_indices_backward avg_pool2d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward upsample_nearest2d upsample_bilinear2d".split()
)
ACCUMULATE_EFFICIENCY = 0.5
"""DMA that adds into memory runs at half rate before Trainium3 (NKI architecture guide)."""


def plan_movement(core: Core, op: Operation) -> OpPlan | None:
    """The plan of an operation that moves data, or None for other operators."""
    name = base_name(op.name)
    if not op.outputs or not op.inputs:
        return None
    if name in GATHERS:
        return _gather(core, op)
    if name in SCATTERS:
        return _scatter(core, op)
    if name in JOINS:
        return _join(core, op)
    if name in SHARDS:
        return _repack(core, op)
    if name in COPIES and _transposes(op):
        return _transposed_copy(core, op)
    if name in POOLS:
        return _pool(core, op)
    return None


def _gather(core: Core, op: Operation) -> OpPlan:
    """One software descriptor a row of the result; GpSimd makes them from the indices."""
    out = op.outputs[0]
    rows, columns = rows_and_columns(out)
    itemsize = max(1, out.nbytes // max(1, numel(out)))
    table, *rest = op.inputs
    read = Access(table, out.nbytes, max(1, columns * itemsize), False, software=True)
    return OpPlan(
        "producer",
        rows,
        columns,
        max(1, math.ceil(rows / 128)),
        (_descriptors(core, op, rows),),
        (read, *flat_accesses(rest)),
        (flat_access(out),),
    )


def _scatter(core: Core, op: Operation) -> OpPlan:
    """Rows are read, added and written back at half rate; a fresh result is filled with zeros first."""
    out = op.outputs[0]
    source = max(op.inputs, key=lambda r: r.nbytes if r.tensor != out.tensor else 0)
    rows, columns = rows_and_columns(source)
    itemsize = max(1, source.nbytes // max(1, numel(source)))
    fresh = all(r.tensor != out.tensor for r in op.inputs)
    scattered = Access(
        out,
        source.nbytes + (out.nbytes if fresh else 0),
        max(1, columns * itemsize),
        False,
        software=True,
        efficiency=ACCUMULATE_EFFICIENCY,
    )
    reads = flat_accesses(r for r in op.inputs if r.tensor != out.tensor)
    if not fresh:
        # nothing of it is read into SBUF, but what it held must be there
        reads += (Access(out, 0, 1, by_row=False),)
    return OpPlan(
        "producer",
        rows,
        columns,
        max(1, math.ceil(rows / 128)),
        (_descriptors(core, op, rows),),
        reads,
        (scattered,),
    )


def _descriptors(core: Core, op: Operation, rows: int) -> Stage:
    """GpSimd builds one descriptor a row, 128 an instruction."""
    instructions = max(1, math.ceil(rows / 128))
    return Stage(GPSIMD, base_name(op.name), instructions * gpsimd_ps(core, 128), instructions)


def _join(core: Core, op: Operation) -> OpPlan:
    """Bytes pass through SBUF once; no engine works on them."""
    return _moved(op.outputs[0], op.inputs, op.outputs)


def _repack(core: Core, op: Operation) -> OpPlan:
    """Each byte of the shards is read once and written once; a change of datatype is one vector pass, as that of ``_to_copy`` is.

    ``all_gather_copy_in`` returns the whole buffer too, of which it has written its rank's part.
    """
    written = op.outputs
    if op.name == "fsdp::all_gather_copy_in":
        written = (min(op.outputs, key=numel),)
    whole = max((*op.inputs, *written), key=numel)
    if all(ref.dtype == whole.dtype for ref in (*op.inputs, *written)):
        return _moved(whole, op.inputs, written)
    rows, columns = rows_and_columns(whole)
    return replace(elementwise_plan(core, op, "1", numel(whole), rows, columns), form="producer")


def _moved(whole: TensorRef, reads: Iterable[TensorRef], writes: Iterable[TensorRef]) -> OpPlan:
    """Tensors read and written as they are, in pieces of the one that holds all of them."""
    rows, columns = rows_and_columns(whole)
    return OpPlan(
        "move",
        rows,
        columns,
        max(1, math.ceil(whole.nbytes / (128 * 8192))),
        (),
        flat_accesses(reads),
        flat_accesses(writes),
    )


def _transposes(op: Operation) -> bool:
    source = op.inputs[-1] if base_name(op.name) == "copy" else op.inputs[0]
    return not source.contiguous and len(source.shape) > 1 and numel(source) > 1


def _transposed_copy(core: Core, op: Operation) -> OpPlan:
    """128 x 128 blocks through the PE array and out of PSUM again."""
    out = op.outputs[0]
    dtype = working_dtype(op)
    rows, columns = rows_and_columns(out)
    work = pe_transpose_ps(core, rows, columns, dtype)
    blocks = math.ceil(rows / 128) * math.ceil(columns / 128)
    _, copy = instruction_ps(core, "P", dtype, min(columns, 512))
    pieces = max(1, math.ceil(rows / 128) * math.ceil(columns / 512))
    flops = 2.0 * rows * columns * 128
    stages = (
        Stage(TENSOR, "transpose", work, blocks, flops=flops, is_transpose=True, dtype=dtype),
        Stage(VECTOR, "tensor_copy", copy * pieces, pieces, dtype=dtype),
    )
    return OpPlan(
        "producer",
        rows,
        columns,
        pieces,
        stages,
        flat_accesses(r for r in op.inputs if r.tensor != out.tensor),
        (flat_access(out),),
    )


def _pool(core: Core, op: Operation) -> OpPlan:
    """One tensor_tensor a kernel position over the pooled tensor (NKI has no pooling instruction)."""
    out = max(op.outputs, key=numel) if "backward" in op.name else op.outputs[0]
    inner: TensorRef = max(op.inputs, key=numel)
    window = op.arguments.get("kernel_size") or []
    positions = math.prod(window) if window else max(1, round(numel(inner) / max(1, numel(out))))
    dtype = working_dtype(op)
    pooled = op.inputs[0] if window and "backward" in op.name else out
    per_partition = max(1, math.ceil(numel(pooled) / 128))
    engine, cost = instruction_ps(core, "2", dtype, per_partition * positions)
    rows, columns = rows_and_columns(out)
    tiles = max(1, math.ceil(per_partition / 2048))
    return OpPlan(
        "producer",
        rows,
        columns,
        tiles,
        (Stage(engine, base_name(op.name), cost, tiles * positions, dtype=dtype),),
        flat_accesses(op.inputs),
        flat_accesses(op.outputs),
    )
