"""How is fused attention lowered? Tile by tile, without writing the scores to HBM.

For 128 queries at a time: scores Q K^T on the PE array, row maximum on VectorE, exp with accumulated sum on ScalarE,
the probabilities transposed on the PE array (they are needed with keys on partitions), P V on the PE array, and the
result scaled on its way out of PSUM. Causal attention skips the blocks above the diagonal. The backward pass recomputes
the probabilities and does five products (scores, dV, dP, dQ, dK) and two transposes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trnprof.emulator.core import Core
from trnprof.emulator.cost import matmul_ps, pe_transpose_ps
from trnprof.emulator.lowering.elementwise import instruction_ps
from trnprof.emulator.lowering.plan import TENSOR, OpPlan, Stage, flat_access, flat_accesses
from trnprof.emulator.workload import Operation

QUERIES = 128
"""Query rows of one tile: the partition count."""


def plan_attention(core: Core, op: Operation) -> OpPlan | None:
    """The plan of the scaled_dot_product family, or None for other operators."""
    if "scaled_dot_product" not in op.name or len(op.inputs) < 3:
        return None
    backward = op.name.endswith("_backward")
    operands = op.inputs[1:4] if backward else op.inputs[:3]
    if len(operands) < 3 or any(len(r.shape) < 3 for r in operands):
        return None
    query, key, value = operands
    heads = math.prod(query.shape[:-2])
    queries, depth = query.shape[-2:]
    keys, value_depth = key.shape[-2], value.shape[-1]
    causal = bool(op.arguments.get("is_causal", False))
    blocks = max(1, heads * math.ceil(queries / QUERIES))
    share = _causal_share(queries, keys) if causal else 1.0
    stages = _stages(
        core, op, blocks, heads * queries, keys, depth, value_depth, query.dtype, share, backward
    )
    alone = query.tensor not in (key.tensor, value.tensor)
    reads = tuple(
        replace(access, by_row=alone and access.ref.tensor == query.tensor)
        for access in flat_accesses(op.inputs)
    )
    writes = tuple(flat_access(r, by_row=not backward) for r in op.outputs if r.nbytes)
    return OpPlan(
        "producer",
        heads * queries,
        value_depth,
        blocks,
        stages,
        reads,
        writes,
        independent=heads,
    )


def _stages(
    core: Core,
    op: Operation,
    blocks: int,
    rows: int,
    keys: int,
    depth: int,
    value_depth: int,
    dtype: str,
    share: float,
    backward: bool,
) -> tuple[Stage, ...]:
    q = min(QUERIES, max(1, math.ceil(rows / blocks)))

    def product(count: float, k: int, moving: int) -> Stage:
        work = min(
            matmul_ps(core, k, q, moving, dtype),
            matmul_ps(core, k, moving, q, dtype),
        )
        instructions = math.ceil(k / 128) * math.ceil(moving / 512)
        return Stage(
            TENSOR,
            op.name,
            round(blocks * count * work * share),
            round(blocks * count * instructions),
            flops=2.0 * rows * k * moving * count * share,
            dtype=dtype,
        )

    def transpose(count: int) -> Stage:
        work = pe_transpose_ps(core, q, keys, dtype)
        return Stage(
            TENSOR,
            "transpose",
            round(blocks * count * work * share),
            blocks * count * math.ceil(keys / 128),
            flops=2.0 * rows * 128 * keys * count * share,
            is_transpose=True,
            dtype=dtype,
        )

    def along_keys(letters: str) -> list[Stage]:
        stages = []
        for letter in letters:
            engine, cost = instruction_ps(core, letter, dtype, keys)
            stages.append(Stage(engine, op.name, round(blocks * cost * share), blocks, dtype=dtype))
        return stages

    _, out = instruction_ps(core, "P", "float32", value_depth)
    evacuate = Stage("Vector", op.name, blocks * out, blocks, dtype=dtype)
    if not backward:
        return (
            product(1, depth, keys),
            *along_keys("RS"),
            transpose(1),
            *along_keys("P"),
            product(1, keys, value_depth),
            evacuate,
        )
    return (
        product(2, depth, keys),
        *along_keys("S2P"),
        transpose(2),
        *along_keys("P"),
        product(3, keys, value_depth),
        evacuate,
    )


def _causal_share(queries: int, keys: int) -> float:
    """Share of the [queries, keys] blocks on or below the diagonal."""
    tiles = math.ceil(queries / QUERIES)
    return min(1.0, (tiles + 1) / (2 * tiles)) if queries == keys else 1.0
