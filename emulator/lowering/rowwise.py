"""How are softmax, normalisation, loss and reduction lowered? Letters along a row, and sums over rows on the PE array."""

from __future__ import annotations

import math
from dataclasses import replace

from trnprof.emulator.core import Core
from trnprof.emulator.cost import matmul_ps
from trnprof.emulator.lowering.elementwise import base_name, instruction_ps, working_dtype
from trnprof.emulator.lowering.plan import (
    TENSOR,
    OpPlan,
    Stage,
    flat_accesses,
    numel,
    rows_and_columns,
)
from trnprof.emulator.workload import Operation, TensorRef

ROWWISE: dict[str, str] = {
    # max, exp with accumulated sum, scale by the reciprocal
    "_softmax": "RS1",
    "softmax": "RS1",
    # the same, and zeros for a row without any key: its sum is compared, and the row multiplied by that
    "_safe_softmax": "RS11",
    # max, exp with accumulated sum, subtract
    "_log_softmax": "RS1",
    # grad * out, sum, (grad - sum) * out
    "_softmax_backward_data": "2R2",
    # sum of grad, exp(out), grad - exp * sum
    "_log_softmax_backward_data": "RS2",
    # bn_stats, (x - mean) * rstd in one tensor_scalar, * weight, + bias
    "native_layer_norm": "R122",
    "_fused_rms_norm": "2R12",
    "native_group_norm": "R11",
    "native_batch_norm": "R11",
    "_native_batch_norm_legit": "R11",
    "_batch_norm_with_update": "R11",
    # grad * weight, normalised x, two sums with a product, (g - a - x b) * rstd
    "native_layer_norm_backward": "21R2R21",
    "_fused_rms_norm_backward": "212R21",
    "native_group_norm_backward": "1R2R21",
    "native_batch_norm_backward": "1R2R21",
    # compare an iota with the label, multiply and sum
    "nll_loss_forward": "12",
    "nll_loss2d_forward": "12",
    "nll_loss_backward": "1",
    "nll_loss2d_backward": "1",
    "cumsum": "2",
    "logsumexp": "RS",
    "argmax": "RR",
    "argmin": "RR",
    "var": "R1",
    "std": "R1",
    "var_mean": "R1",
}
REDUCTIONS = frozenset(
    "sum mean amax amin max min prod any all norm linalg_vector_norm nansum count_nonzero".split()
)
SUMS_OVER_ROWS = frozenset({"native_layer_norm_backward", "_fused_rms_norm_backward"})
"""Backward passes that also sum over rows, for the weight and bias gradients: a matmul with a column of ones."""


def plan_rowwise(core: Core, op: Operation) -> OpPlan | None:
    """The plan of a row-wise operation or reduction, or None for other operators."""
    name = base_name(op.name)
    if not op.inputs or not op.outputs:
        return None
    source = max(op.inputs, key=numel)
    if name in REDUCTIONS:
        if op.name.startswith("_foreach_"):
            return row_plan(core, op, "1R", *_as_one_row(op))
        return _plan_reduction(core, op, source)
    code = ROWWISE.get(name)
    if code is None:
        return None
    rows, columns = _row_space(op, name, source)
    plan = row_plan(core, op, code, rows, columns)
    if name in SUMS_OVER_ROWS:
        plan = _with_stage(plan, sum_over_rows(core, op, rows, 2 * columns, working_dtype(op)))
        first, *sums = plan.writes
        plan = replace(plan, writes=(first, *(replace(w, by_row=False) for w in sums)))
    return plan


def _row_space(op: Operation, name: str, source: TensorRef) -> tuple[int, int]:
    """What a row is: the softmax dimension, a group of a sample, a channel of a sample, or the last dimension."""
    if "softmax" in name:
        return _softmax_space(op, source)
    if "group_norm" in name and len(source.shape) > 1:
        rows = source.shape[0] * max(1, int(op.arguments.get("group", 1)))
        return rows, numel(source) // max(1, rows)
    if "batch_norm" in name and len(source.shape) > 1:
        samples, channels, *positions = source.shape
        return (samples * channels, math.prod(positions)) if positions else (channels, samples)
    return rows_and_columns(source)


def _plan_reduction(core: Core, op: Operation, source: TensorRef) -> OpPlan:
    """Sums along the last dimensions are vector reductions; sums over leading ones go through the PE array."""
    dims = op.arguments.get("dim", op.arguments.get("dims"))
    rank = len(source.shape)
    axes = {d % rank for d in _as_list(dims)} if rank and dims is not None else set(range(rank))
    if not axes:
        axes = set(range(rank))
    code = "1R" if "norm" in op.name else "R"
    if rank and (rank - 1) not in axes:
        columns = math.prod(source.shape[i] for i in range(rank) if i not in axes)
        rows = numel(source) // max(1, columns)
        stage = sum_over_rows(core, op, rows, columns, working_dtype(op))
        return OpPlan(
            "rowwise",
            rows,
            columns,
            max(1, math.ceil(rows / core.sbuf_partitions)),
            (stage,),
            flat_accesses(op.inputs),
            flat_accesses(op.outputs, by_row=False),
        )
    rows = max(1, math.prod(source.shape[i] for i in range(rank) if i not in axes))
    columns = numel(source) // rows
    if rows < core.sbuf_partitions and columns > core.sbuf_partitions:
        # a full sum: partial sums on every partition first, then one small matmul with ones
        rows, columns = core.sbuf_partitions, math.ceil(numel(source) / core.sbuf_partitions)
        plan = row_plan(core, op, code, rows, columns)
        return _with_stage(plan, sum_over_rows(core, op, rows, 1, working_dtype(op)))
    return row_plan(core, op, code, rows, columns)


def row_plan(core: Core, op: Operation, code: str, rows: int, columns: int) -> OpPlan:
    """``code`` over every row; a row longer than a quarter of SBUF is read twice."""
    dtype = working_dtype(op)
    row_tiles = max(1, math.ceil(rows / core.sbuf_partitions))
    stages: list[Stage] = []
    for letter in code:
        engine, cost = instruction_ps(core, letter, dtype, columns)
        stages.append(Stage(engine, base_name(op.name), cost * row_tiles, row_tiles, dtype=dtype))
    long_row = columns * 4 * 3 > core.sbuf_usable_bytes_per_partition / 4
    factor = 2.0 if long_row and len(code) > 1 else 1.0
    return OpPlan(
        "rowwise",
        rows,
        columns,
        row_tiles,
        merge_stages(stages),
        flat_accesses(op.inputs, factor=factor),
        tuple(replace(w, by_row=numel(w.ref) >= rows) for w in flat_accesses(op.outputs)),
    )


def merge_stages(stages: list[Stage]) -> tuple[Stage, ...]:
    """Neighbouring stages of one engine as one, their instructions a dependent chain."""
    merged: list[Stage] = []
    for stage in stages:
        if merged and merged[-1].engine == stage.engine and stage.engine != TENSOR:
            last = merged[-1]
            merged[-1] = Stage(
                last.engine,
                last.name,
                last.work_ps + stage.work_ps,
                last.instructions + stage.instructions,
                last.chain + 1,
                dtype=last.dtype,
            )
        else:
            merged.append(stage)
    return tuple(merged)


def sum_over_rows(core: Core, op: Operation, rows: int, columns: int, dtype: str) -> Stage:
    """Sum over partitions: ones [rows, 1] stationary, [rows, columns] moving."""
    work = matmul_ps(core, rows, 1, columns, dtype)
    count = math.ceil(rows / core.tensor.rows) * math.ceil(columns / core.tensor.moving_columns)
    return Stage(TENSOR, base_name(op.name), work, count, flops=2.0 * rows * columns, dtype=dtype)


def _with_stage(plan: OpPlan, stage: Stage) -> OpPlan:
    return replace(plan, stages=(*plan.stages, stage))


def _as_one_row(op: Operation) -> tuple[int, int]:
    total = sum(numel(r) for r in op.inputs)
    return 128, max(1, math.ceil(total / 128))


def _softmax_space(op: Operation, source: TensorRef) -> tuple[int, int]:
    dims = _as_list(op.arguments.get("dim", -1))
    columns = source.shape[dims[0] % len(source.shape)] if source.shape and dims else 1
    return numel(source) // max(1, columns), columns


def _as_list(dims: object) -> list[int]:
    return [int(d) for d in dims] if isinstance(dims, list | tuple) else [int(str(dims))]
