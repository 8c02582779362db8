"""How is convolution lowered? As matrix products over access patterns, without writing an im2col matrix.

Forward: [N OH OW, C/g KH KW] x [C/g KH KW, O/g] for each group. Backward: the same product with input and output channels
exchanged for the input's gradient, and one that contracts over N OH OW for the weight's.
"""

from __future__ import annotations

import math

from trnprof.emulator.lowering.matmul import product_stages
from trnprof.emulator.lowering.plan import OpPlan, Stage, flat_access, matrix_access
from trnprof.emulator.system import Core
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
    groups = max(1, int(op.arguments.get("groups", 1)))
    m = out.shape[0] * math.prod(out.shape[2:])
    k, n = _contraction(weight), max(1, out.shape[1] // groups)
    stages = product_stages(core, op.name, m, k, n, image.dtype, groups)
    return OpPlan(
        "producer",
        m,
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
    groups = max(1, int(op.arguments.get("groups", 1)))
    m = gradient.shape[0] * math.prod(gradient.shape[2:])
    k, n = _contraction(weight), max(1, gradient.shape[1] // groups)
    masks = op.arguments.get("output_mask", [True, True, True])
    stages: list[Stage] = []
    if masks[0]:
        stages += product_stages(core, op.name, m, n, k, image.dtype, groups)
    if masks[1]:
        stages += product_stages(core, op.name, k, m, n, image.dtype, groups)
    return OpPlan(
        "producer",
        m,
        gradient.shape[1],
        max(1, math.ceil(m / 128) * groups),
        tuple(stages),
        (flat_access(gradient), flat_access(image), matrix_access(weight, by_row=False)),
        tuple(flat_access(r, by_row=False) for r in op.outputs if r.nbytes),
    )


def _contraction(weight: TensorRef) -> int:
    """Input channels of a group times kernel size."""
    return math.prod(weight.shape[1:])
