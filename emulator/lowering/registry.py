"""Which lowering serves which operator? A list of functions, asked in turn; then the stated roofline fallback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trnprof.emulator.core import Core
from trnprof.emulator.given import given_cost
from trnprof.emulator.lowering.attention import plan_attention
from trnprof.emulator.lowering.convolution import plan_convolution
from trnprof.emulator.lowering.elementwise import elementwise_plan, plan_elementwise
from trnprof.emulator.lowering.matmul import plan_matmul
from trnprof.emulator.lowering.movement import plan_movement
from trnprof.emulator.lowering.plan import EXCHANGE, GIVEN, NOTHING, OpPlan, numel, rows_and_columns
from trnprof.emulator.lowering.rowwise import plan_rowwise
from trnprof.emulator.lowering.selection import plan_selection
from trnprof.emulator.workload import Operation

Lowering = Callable[[Core, Operation], OpPlan | None]

LOWERINGS: tuple[Lowering, ...] = (
    plan_matmul,
    plan_attention,
    plan_convolution,
    plan_movement,
    plan_rowwise,
    plan_selection,
    plan_elementwise,
)
"""To add an operator: extend the table of one of these, or add a function here."""

NO_WORK = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided _local_scalar_dense item resize_ set_ "
    "is_same_size _assert_async _assert_scalar record_stream lift_fresh detach detach_ _has_compatible_shallow_copy_type "
    "sym_size _version requires_grad_ equal _nested_tensor_from_mask".split()
)


def plan_operation(core: Core, op: Operation) -> OpPlan:
    """What one operation asks of the core.

    An operator that no lowering knows is charged the roofline: each tensor moved once, one vector pass over the
    largest; ``exact`` is then False, and reports count it.
    """
    if op.collective is not None:
        return EXCHANGE
    if given_cost(op) is not None:
        return GIVEN
    if op.is_view or op.name in NO_WORK or op.name.startswith("prim::"):
        return NOTHING
    if all(numel(r) == 0 for r in op.outputs or op.inputs):
        return NOTHING
    for lowering in LOWERINGS:
        plan = lowering(core, op)
        if plan is not None:
            return plan
    return _fallback(core, op)


def _fallback(core: Core, op: Operation) -> OpPlan:
    largest = max((*op.outputs, *op.inputs), key=numel)
    rows, columns = rows_and_columns(largest)
    plan = elementwise_plan(core, op, "1", numel(largest), rows, columns)
    return replace(plan, form="producer", exact=False)
