"""How is a matrix product cut into tiles, and what does that move?

C[M, N] = A[M, K] B[K, N]. The tensor engine multiplies [128 K, 128] stationary by [128 K, 512] moving tiles into PSUM
(fp32, 8 banks of 512 columns); VectorE copies finished tiles to SBUF. Which operand is stationary is free: the
cheaper order is taken. How often A and B cross from HBM depends on what fits SBUF: the plan keeps the best of three
classic blockings. Layouts are assumed to be chosen so that no operand needs a transpose (docs: known limits).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnprof.emulator.core import Core
from trnprof.emulator.cost import matmul_ps
from trnprof.emulator.lowering.elementwise import instruction_ps
from trnprof.emulator.lowering.plan import (
    TENSOR,
    VECTOR,
    OpPlan,
    Stage,
    matrix_access,
    numel,
)
from trnprof.emulator.workload import Operation, TensorRef

_RANKS = {"bmm": 3, "baddbmm": 3, "baddbmm_": 3, "addbmm": 3, "mv": 2, "addmv": 2}
"""Dimensions that the left operand has at least; anything else is not that operator."""

WORKING_FRACTION = 0.5
"""Share of usable SBUF for the tiles of the running kernel; the other half keeps tensors between kernels."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """How often each operand is read from HBM."""

    a_passes: int
    b_passes: int


def plan_matmul(core: Core, op: Operation) -> OpPlan | None:
    """The plan of mm, addmm, bmm, baddbmm, addmv, mv and dot, or None for other operators."""
    if op.name == "_grouped_mm":
        return _plan_grouped(core, op)
    match op.name:
        case "mm" | "bmm" | "mv" | "dot" | "_int_mm" | "matmul" | "linear":
            if len(op.inputs) < 2:
                return None
            a, b, extra = op.inputs[0], op.inputs[1], op.inputs[2:]
        case "addmm" | "addmm_" | "baddbmm" | "baddbmm_" | "addmv" | "addbmm":
            if len(op.inputs) < 3:
                return None
            a, b, extra = op.inputs[1], op.inputs[2], op.inputs[:1]
        case _:
            return None
    if len(a.shape) < _RANKS.get(op.name, 1) or len(b.shape) < (3 if "bmm" in op.name else 1):
        return None
    m, k, n, batch = _sizes(op.name, a, b)
    return matmul_plan(core, op, a, b, extra, (batch, m, k, n))


def _plan_grouped(core: Core, op: Operation) -> OpPlan | None:
    """One product a group (an expert), all groups of the same size: what their offsets say depends on values.

    Rows of A [T, K] by group times B [E, K, N]; or, for gradients of the weights, columns of A [K, T] times rows of B [T, N].
    """
    if len(op.inputs) < 3 or len(op.inputs[2].shape) != 1:
        return None
    a, b, offsets = op.inputs[:3]
    groups = max(1, offsets.shape[0])
    match len(a.shape), len(b.shape):
        case 2, 3:
            sizes = math.ceil(a.shape[0] / groups), a.shape[1], b.shape[2]
        case 2, 2:
            sizes = a.shape[0], math.ceil(a.shape[1] / groups), b.shape[1]
        case _:
            return None
    return matmul_plan(core, op, a, b, op.inputs[3:], (groups, *sizes))


def matmul_plan(
    core: Core,
    op: Operation,
    a: TensorRef,
    b: TensorRef,
    extra: tuple[TensorRef, ...],
    sizes: tuple[int, int, int, int],
) -> OpPlan:
    """A plan of ``batch`` products [m, k] x [k, n], also for what becomes one (convolution).

    Args:
        core: the described core.
        op: the operation, for its outputs and name.
        a: left operand.
        b: right operand.
        extra: further inputs, added to the product (bias).
        sizes: batch, m, k, n.
    """
    batch, m, k, n = sizes
    dtype = a.dtype
    itemsize = max(1, a.nbytes // max(1, numel(a)))
    blocking = choose_blocking(core, m, k, n, itemsize)
    product, evacuation = product_stages(core, op.name, m, k, n, dtype, batch)
    stages = [product, evacuation]
    if extra:
        work, pieces = out_of_psum(core, "2", dtype, batch * math.ceil(m / 128), n)
        stages[-1] = Stage(VECTOR, op.name, work, pieces, evacuates=False, dtype=dtype)
    return OpPlan(
        "producer",
        batch * m,
        n,
        max(1, batch * math.ceil(m / 128) * math.ceil(n / 512)),
        tuple(stages),
        (
            matrix_access(a, by_row=True, passes=blocking.a_passes),
            matrix_access(b, by_row=batch > 1, passes=blocking.b_passes),
            *(matrix_access(r, by_row=False) for r in extra),
        ),
        tuple(matrix_access(r, by_row=True) for r in op.outputs),
    )


def product_stages(
    core: Core, name: str, m: int, k: int, n: int, dtype: str, batch: int = 1
) -> tuple[Stage, Stage]:
    """Tensor-engine work of ``batch`` products and the copy of their results out of PSUM."""
    work = min(matmul_ps(core, k, m, n, dtype), matmul_ps(core, k, n, m, dtype))
    count = math.ceil(k / 128) * math.ceil(m / 128) * math.ceil(n / 512)
    product = Stage(
        TENSOR, name, batch * work, batch * count, flops=2.0 * batch * m * k * n, dtype=dtype
    )
    copy, pieces = out_of_psum(core, "P", "float32", batch * math.ceil(m / 128), n)
    return product, Stage(VECTOR, "tensor_copy", copy, pieces, evacuates=True, dtype=dtype)


def out_of_psum(core: Core, letter: str, dtype: str, blocks: int, n: int) -> tuple[int, int]:
    """Work in ps and instructions of bringing ``blocks`` results [128, n] out of PSUM, a bank at a time."""
    full, rest = divmod(n, 512)
    work = full * instruction_ps(core, letter, dtype, 512)[1]
    if rest:
        work += instruction_ps(core, letter, dtype, rest)[1]
    return blocks * work, blocks * math.ceil(n / 512)


def choose_blocking(core: Core, m: int, k: int, n: int, itemsize: int) -> Blocking:
    """The blocking with the least traffic among those whose double-buffered tiles fit half of SBUF.

    * keep a block of A rows with all of K, stream B: A once, B once a block;
    * keep a block of B columns with all of K, stream A: B once, A once a block;
    * keep a [rows, columns] block of C in half the PSUM banks, stream both along K.
    """
    budget = core.sbuf_usable_bytes_per_partition * core.sbuf_partitions * WORKING_FRACTION
    choices: list[Blocking] = []
    stream = 2 * 512 * k * itemsize
    rows = _fit(budget - stream, k * itemsize, m, 128)
    if rows:
        choices.append(Blocking(1, math.ceil(m / rows)))
    columns = _fit(budget - stream / 4, k * itemsize, n, 128)
    if columns:
        choices.append(Blocking(math.ceil(n / columns), 1))
    banks = core.psum_banks // 2
    rows, columns = (min(m, 512), 512) if banks >= 4 else (128, 512)
    choices.append(Blocking(math.ceil(n / columns), math.ceil(m / max(1, rows))))
    return min(choices, key=lambda c: (m * c.a_passes + n * c.b_passes, c.a_passes))


def _fit(room: float, unit_bytes: int, size: int, granule: int) -> int:
    """Largest block of a dimension, in whole granules, that fits; 0 if none does."""
    fits = max(0, int(room // max(1, unit_bytes)))
    if fits >= size:
        return size
    return fits // granule * granule


def _sizes(name: str, a: TensorRef, b: TensorRef) -> tuple[int, int, int, int]:
    """m, k, n, batch of the product of two captured operands."""
    if name in ("bmm", "baddbmm", "baddbmm_", "addbmm"):
        return a.shape[-2], a.shape[-1], b.shape[-1], a.shape[0]
    if name in ("mv", "addmv"):
        return a.shape[-2], a.shape[-1], 1, 1
    if name == "dot":
        return 1, a.shape[-1], 1, 1
    rows, k = math.prod(a.shape[:-1]), a.shape[-1]
    if name == "linear":
        return rows, k, (b.shape[0] if len(b.shape) > 1 else 1), 1
    return rows, k, (b.shape[-1] if len(b.shape) > 1 else 1), 1
