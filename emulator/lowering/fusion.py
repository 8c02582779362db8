"""Which operations run as one kernel? Chains that share rows and fit SBUF, as a compiler would fuse them.

Greedy and in issue order: an elementwise, normalisation, softmax or reduction operation joins the running group when it
reads what the group made (or updates the same parameters, as the operations of an optimizer do), covers the same iteration space, and
the tiles of everything the group touches fit the working half of SBUF twice over. Matrix products, convolutions,
attention and gathers start a group and never join one. A collective is alone, and so is what was given its cost: it ends the running group. Views cost
nothing and break nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trnprof.emulator.core import Core
from trnprof.emulator.lowering.elementwise import base_name
from trnprof.emulator.lowering.matmul import WORKING_FRACTION
from trnprof.emulator.lowering.plan import COLLECTIVE_FORM, GIVEN_FORM, OpPlan
from trnprof.emulator.lowering.rowwise import REDUCTIONS
from trnprof.emulator.workload import Operation

MAXIMUM_MEMBERS = 24
"""Longest chain, so that one group stays readable in a timeline."""

SMALLEST_TILE_COLUMNS = 512
"""An elementwise group may hold as many tensors as leave tiles of this many columns."""


@dataclass
class _Open:
    """The group under construction."""

    members: list[int]
    rows: int
    elements: int
    columns: int
    rowwise: bool
    optimizer: bool
    produced: set[int] = field(default_factory=set)
    unaligned: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    reread: set[int] = field(default_factory=set)


def group_operations(
    core: Core, operations: Sequence[Operation], plans: Sequence[OpPlan], *, fuse: bool
) -> list[tuple[int, ...]]:
    """Positions of the operations of each kernel, in issue order; operations without device work are left out.

    Args:
        core: the described core, for its SBUF.
        operations: of one step.
        plans: one an operation.
        fuse: False makes one kernel an operation (eager execution).
    """
    groups: list[tuple[int, ...]] = []
    group: _Open | None = None
    for position, (op, plan) in enumerate(zip(operations, plans, strict=True)):
        if plan.form == "none":
            continue
        if group is not None and fuse and _joins(core, group, op, plan):
            _add(group, position, op, plan)
            continue
        if group is not None:
            groups.append(tuple(group.members))
        if plan.form in (COLLECTIVE_FORM, GIVEN_FORM):
            groups.append((position,))
            group = None
            continue
        optimizer = op.phase == "optimizer" and plan.form == "elementwise"
        group = _Open(
            [], plan.rows, plan.rows * plan.columns, plan.columns, plan.form == "rowwise", optimizer
        )
        _add(group, position, op, plan)
    if group is not None:
        groups.append(tuple(group.members))
    return groups


def _joins(core: Core, group: _Open, op: Operation, plan: OpPlan) -> bool:
    if plan.form not in ("elementwise", "rowwise") or len(group.members) >= MAXIMUM_MEMBERS:
        return False
    inputs = {r.tensor for r in op.inputs}
    if inputs & group.unaligned or any(
        not r.contiguous and r.tensor in group.produced for r in op.inputs
    ):
        return False
    same_update = group.optimizer and op.phase == "optimizer" and plan.form == "elementwise"
    if not (inputs & group.produced or same_update):
        return False
    if any(r.tensor in group.reread for r in op.outputs):
        # its later tiles would find overwritten what its earlier ones read
        return False
    elements = plan.rows * plan.columns
    if elements not in (group.elements, group.rows):
        return False
    touched = group.touched | inputs | {r.tensor for r in op.outputs}
    streams = plan.form == "elementwise" or base_name(op.name) in REDUCTIONS
    columns = group.columns if streams else max(group.columns, plan.columns)
    return _fits(core, group, plan, columns, len(touched))


def _fits(core: Core, group: _Open, plan: OpPlan, columns: int, tensors: int) -> bool:
    """Two tiles of every tensor, rows whole if anything in the group works along them."""
    if not (group.rowwise or plan.form == "rowwise"):
        columns = min(columns, SMALLEST_TILE_COLUMNS)
    if group.optimizer:
        tensors, columns = 8, SMALLEST_TILE_COLUMNS
    room = core.sbuf_usable_bytes_per_partition * WORKING_FRACTION
    return 2 * tensors * columns * 4 <= room


def _add(group: _Open, position: int, op: Operation, plan: OpPlan) -> None:
    group.members.append(position)
    group.rowwise |= plan.form == "rowwise"
    group.touched |= {r.tensor for r in (*op.inputs, *op.outputs)}
    group.columns = max(group.columns, plan.columns if plan.form == "rowwise" else 0)
    for access in plan.reads:
        if not access.by_row or access.nbytes > access.ref.nbytes:
            group.reread.add(access.ref.tensor)
    for access in plan.writes:
        whole = access.ref.nbytes >= access.ref.storage_nbytes
        (group.produced if access.by_row and whole else group.unaligned).add(access.ref.tensor)
