"""How are elementwise operations lowered? One code letter an instruction, a table from operator to letters.

Letters: ``2`` vector tensor_tensor (two full operands), ``1`` vector tensor_scalar or copy, ``b`` one of the two by its
operands, ``S`` scalar-engine activation (table function), ``G`` GpSimd. Counts follow the NKI instruction set: one
tensor_scalar does two operations, scalar_tensor_tensor does ``(a op scalar) op b``, the activation engine has the
derivatives of gelu and silu as functions of their own. The same letters serve ``_foreach_`` and in-place forms.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from trnprof.emulator.core import Core
from trnprof.emulator.cost import gpsimd_ps, scalar_ps, vector_cycles, vector_ps
from trnprof.emulator.lowering.plan import (
    GPSIMD,
    SCALAR,
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

TILE_COLUMNS = 2048
"""Elements a partition of one elementwise tile: enough that the 64-cycle floor is below 3 %, small in SBUF."""

CODES: dict[str, str] = {
    **dict.fromkeys(
        "add sub rsub mul maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and "
        "bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift fmod remainder floor_divide atan2 copysign".split(),
        "b",
    ),
    **dict.fromkeys(
        "neg abs relu clamp clamp_min clamp_max hardtanh leaky_relu threshold floor ceil round trunc sign "
        "logical_not bitwise_not isnan isinf isfinite copy clone _to_copy fill zero zeros ones full zeros_like "
        "ones_like full_like masked_fill triu tril bernoulli rand rand_like randn randn_like normal uniform "
        "exponential dropout lift_fresh_copy new_zeros new_ones new_full scalar_tensor arange "
        "hardsigmoid fill_diagonal alias_copy expand_copy squeeze_copy".split(),
        "1",
    ),
    **dict.fromkeys(
        "exp exp2 log log2 log10 log1p expm1 sqrt rsqrt reciprocal tanh sigmoid gelu silu erf erfc sin cos tan pow "
        "softplus elu selu mish hardswish logit log_sigmoid_forward square asin acos atan sinh cosh".split(),
        "S",
    ),
    "div": "d",
    "true_divide": "d",
    "where": "2",
    "lerp": "22",
    "addcmul": "22",
    "addcdiv": "S22",
    "gelu_backward": "S2",
    "silu_backward": "S2",
    "softplus_backward": "S2",
    "elu_backward": "S2",
    "mish_backward": "S2",
    "hardswish_backward": "12",
    "sigmoid_backward": "22",
    "tanh_backward": "22",
    "threshold_backward": "2",
    "hardtanh_backward": "2",
    "leaky_relu_backward": "2",
    "native_dropout": "12",
    "native_dropout_backward": "2",
    "binary_cross_entropy_with_logits": "S22",
    "mse_loss": "22",
    "mse_loss_backward": "22",
    "smooth_l1_loss": "122",
    "smooth_l1_loss_backward": "122",
    "_fused_adamw": "1221221S1S22",
    "_fused_adam": "1221221S1S22",
    "_fused_adagrad": "122S22",
    "_fused_sgd": "122",
    "_amp_foreach_non_finite_check_and_unscale": "11",
    "glu": "S2",
    "sign_of_zero": "1",
}


def base_name(name: str) -> str:
    """The operator without its foreach prefix and in-place suffix: ``_foreach_addcmul_`` is ``addcmul``."""
    name = name.removeprefix("_foreach_")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def plan_elementwise(core: Core, op: Operation) -> OpPlan | None:
    """The plan of an elementwise operation, or None when its operator is not in the table."""
    code = CODES.get(base_name(op.name))
    if code is None or not op.outputs:
        return None
    elements = max(_elements(op.outputs, op), _elements(op.inputs, op))
    rows, columns = rows_and_columns(max(op.outputs, key=numel))
    return elementwise_plan(core, op, code, elements, rows, columns)


def elementwise_plan(
    core: Core, op: Operation, code: str, elements: int, rows: int, columns: int
) -> OpPlan:
    """A plan that runs ``code`` over ``elements`` elements.

    Args:
        core: the described core.
        op: the operation; its tensors are read and written once.
        code: instruction letters, as the module says.
        elements: elements in all.
        rows: iteration space that later operations may fuse with.
        columns: its last dimension.
    """
    dtype = working_dtype(op)
    per_partition = max(1, math.ceil(elements / core.sbuf_partitions))
    tile = min(TILE_COLUMNS, per_partition)
    tiles = math.ceil(per_partition / tile)
    stages = _stages(core, op, _expand(code, op), dtype, tile, per_partition)
    return OpPlan(
        "elementwise",
        rows,
        columns,
        tiles,
        stages,
        _accesses(op, op.inputs),
        _accesses(op, _written(op)),
    )


def instruction_ps(core: Core, letter: str, dtype: str, elements: float) -> tuple[str, int]:
    """Engine and issue interval of one instruction letter over ``elements`` a partition."""
    match letter:
        case "S":
            return SCALAR, scalar_ps(core, elements)
        case "G":
            return GPSIMD, gpsimd_ps(core, elements)
        case "R":
            return VECTOR, vector_ps(core, elements, vector_cycles(core, "reduce", dtype))
        case "2":
            return VECTOR, vector_ps(core, elements, vector_cycles(core, "tensor_tensor", dtype))
        case "1":
            return VECTOR, vector_ps(core, elements, vector_cycles(core, "copy", dtype))
        case "P":
            return VECTOR, vector_ps(core, elements, vector_cycles(core, "psum_copy", dtype))
    raise ValueError(f"unknown instruction letter {letter!r}")


def working_dtype(op: Operation) -> str:
    """The widest floating datatype among its tensors; integers count as 32-bit."""
    names = [r.dtype for r in (*op.outputs, *op.inputs) if r.dtype.startswith(("float", "bfloat"))]
    if not names:
        return "int32"
    return "float32" if "float32" in names or "float64" in names else names[0]


def _expand(code: str, op: Operation) -> str:
    """Letters ``b`` and ``d`` by operands: a second full tensor makes tensor_tensor, anything smaller tensor_scalar."""
    full = sum(1 for r in op.inputs if numel(r) > 1)
    foreach = op.name.startswith("_foreach_")
    two = full > len(op.outputs) if foreach else full >= 2
    return code.replace("b", "2" if two else "1").replace("d", "S2" if two else "1")


def _stages(
    core: Core, op: Operation, letters: str, dtype: str, tile: int, per_partition: int
) -> tuple[Stage, ...]:
    """Runs of letters on one engine become one stage."""
    full, rest = divmod(per_partition, tile)
    tiles = full + bool(rest)
    stages: list[Stage] = []
    for letter in letters:
        engine, cost = instruction_ps(core, letter, dtype, tile)
        work = full * cost + (instruction_ps(core, letter, dtype, rest)[1] if rest else 0)
        if stages and stages[-1].engine == engine:
            last = stages[-1]
            stages[-1] = Stage(
                engine,
                last.name,
                last.work_ps + work,
                last.instructions + tiles,
                last.chain + 1,
                dtype=dtype,
            )
        else:
            stages.append(Stage(engine, base_name(op.name), work, tiles, dtype=dtype))
    return tuple(stages)


def _elements(refs: tuple[TensorRef, ...], op: Operation) -> int:
    """Largest tensor; for lists of tensors (foreach, fused optimizers) the sum over outputs."""
    sizes = [numel(r) for r in refs]
    if not sizes:
        return 0
    if is_list_operation(op):
        return sum(numel(r) for r in op.outputs) // _lists(op)
    return max(sizes)


def _lists(op: Operation) -> int:
    """How many lists of one length it names as written; fused optimizers name parameters, gradients and states."""
    if op.name.startswith("_fused_adam"):
        return 5 if op.arguments.get("amsgrad") else 4
    if op.name.startswith("_fused_adagrad"):
        return 3
    if op.name.startswith("_fused_sgd"):
        return 3 if op.arguments.get("momentum") else 2
    return 1


def _written(op: Operation) -> tuple[TensorRef, ...]:
    """Its outputs without the gradients, which a fused optimizer only unscales if a scaler asks it to."""
    if not op.name.startswith("_fused_"):
        return op.outputs
    length = len(op.outputs) // _lists(op)
    return op.outputs[:length] + op.outputs[2 * length :]


def _accesses(op: Operation, refs: tuple[TensorRef, ...]) -> tuple[Access, ...]:
    """Each storage once; the tensors of a list lie one after the other in the iteration space."""
    length = len(op.outputs) // _lists(op)
    if not is_list_operation(op) or length < 2:
        return flat_accesses(refs)
    sizes = [numel(r) for r in op.outputs[:length]]
    ends = list(itertools.accumulate(sizes, initial=0))
    total = max(1, ends[-1])
    accesses: dict[tuple[int, int, tuple[float, float]], Access] = {}
    for index, ref in enumerate(refs):
        at = index % length
        place = (0.0, 1.0) if numel(ref) != sizes[at] else (ends[at] / total, ends[at + 1] / total)
        accesses.setdefault((ref.tensor, ref.nbytes, place), replace(flat_access(ref), place=place))
    return tuple(accesses.values())


def is_list_operation(op: Operation) -> bool:
    """Whether it works on lists of tensors, as foreach and fused optimizers do."""
    return op.name.startswith(("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach_"))
