"""How is convolution lowered? As matrix products over access patterns, without writing an im2col matrix.

Forward: [N OH OW, C/g KH KW] x [C/g KH KW, O/g] for each group. Backward: the same product with input and output channels
exchanged for the input's gradient, one that contracts over N OH OW for the weight's, and a sum over N OH OW for the bias's.
A transposed convolution is the same with image and output exchanged.
"""

from __future__ import annotations

import math

from trnprof.emulator.core import Core
from trnprof.emulator.lowering.elementwise import working_dtype
from trnprof.emulator.lowering.matmul import product_stages
from trnprof.emulator.lowering.plan import OpPlan, Stage, flat_access, matrix_access
from trnprof.emulator.lowering.rowwise import sum_over_rows
from trnprof.emulator.workload import Operation, TensorRef


def plan_convolution(core: Core, op: Operation) -> OpPlan | None:
    """The plan of convolution and convolution_backward, or None for other operators."""
    if op.name in ("convolution", "_convolution", "convolution_overrideable"):
        return _forward(core, op)
    if op.name in ("convolution_backward", "convolution_backward_overrideable"):
        return _backward(core, op)
    return None


def _forward(core: Core, op: Operation) -> OpPlan | None:
    if len(op.inputs) < 2 or not op.outputs:
        return None
    image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
    if min(len(image.shape), len(weight.shape), len(out.shape)) < 2:
        return None
    groups, m, k, n = _sizes(op, image, weight, out)
    if op.arguments.get("transposed"):
        k, n = n, k
    stages = product_stages(core, op.name, m, k, n, image.dtype, groups)
    return OpPlan(
        "producer",
        _positions(out),
        out.shape[1],
        max(1, math.ceil(m / 128) * math.ceil(n / 512) * groups),
        stages,
        (flat_access(image), *(matrix_access(r, by_row=False) for r in op.inputs[1:])),
        (flat_access(out),),
    )


def _backward(core: Core, op: Operation) -> OpPlan | None:
    if len(op.inputs) < 3:
        return None
    gradient, image, weight = op.inputs[:3]
    if min(len(gradient.shape), len(image.shape), len(weight.shape)) < 2:
        return None
    groups, m, k, n = _sizes(op, image, weight, gradient)
    wanted = op.arguments.get("output_mask") or [True, True, True]
    stages: list[Stage] = []
    if wanted[0]:
        # a transposed convolution's input gradient is a plain convolution
        inner, outer = (k, n) if op.arguments.get("transposed") else (n, k)
        stages += product_stages(core, op.name, m, inner, outer, image.dtype, groups)
    if wanted[1]:
        stages += product_stages(core, op.name, k, m, n, image.dtype, groups)
    if wanted[-1]:
        dtype = working_dtype(op)
        stages.append(sum_over_rows(core, op, _positions(gradient), gradient.shape[1], dtype))
    return OpPlan(
        "producer",
        _positions(gradient),
        gradient.shape[1],
        max(1, math.ceil(m / 128) * groups),
        tuple(stages),
        (flat_access(gradient), flat_access(image), matrix_access(weight, by_row=False)),
        tuple(flat_access(r, by_row=False) for r in op.outputs if r.nbytes),
    )


def _sizes(
    op: Operation, image: TensorRef, weight: TensorRef, out: TensorRef
) -> tuple[int, int, int, int]:
    """groups, m, k, n of the product [m, k] x [k, n]; transposed, image and output change places."""
    groups = max(1, int(op.arguments.get("groups", 1)))
    plain = image if op.arguments.get("transposed") else out
    return groups, _positions(plain), _contraction(weight), max(1, plain.shape[1] // groups)


def _positions(image: TensorRef) -> int:
    """N OH OW."""
    return image.shape[0] * math.prod(image.shape[2:])


def _contraction(weight: TensorRef) -> int:
    """Input channels of a group times kernel size."""
    return math.prod(weight.shape[1:])
