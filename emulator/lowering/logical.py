"""How do the physical cores of a logical one (LNC 2) share an operation? Each does a part, along its largest free dimension.

Rows or columns are dealt out, whichever are more, never what a core sums or normalises over; attention goes by heads. All cores of a
rank are alike, so that one stands for all: a plan is cut down to what that one does. An operand that each of them needs whole (the
weights of a product whose rows are dealt out) is read by each. What SBUF has in one way and another operation needs in another goes
through HBM, where the cores see each other's results. An operation that cannot be dealt out is done by each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from trnprof.emulator.lowering.plan import COLLECTIVE_FORM, Access, OpPlan

_ROWS, _COLUMNS, _WHOLE = "rows", "columns", "whole"


def divide(
    plans: Sequence[OpPlan], groups: Iterable[tuple[int, ...]], cores: int
) -> tuple[tuple[OpPlan, ...], frozenset[int]]:
    """Cut the plans of a step down to one core's part.

    Args:
        plans: of its operations.
        groups: which of them run as one kernel: they are dealt out alike.
        cores: physical ones of a logical core.

    Returns:
        The plans; storages of which operations need different parts, which SBUF cannot keep from one to the other.
    """
    divided = list(plans)
    ways: dict[int, set[str]] = defaultdict(set)
    for group in groups:
        way = _way([plans[i] for i in group], cores)
        for i in group:
            plan = plans[i]
            reads = [(access, _way_of_read(plan, access, way)) for access in plan.reads]
            writes = [(access, _way_of_write(plan, access, way)) for access in plan.writes]
            for access, own in reads + writes:
                ways[access.ref.tensor].add(own)
            if way != _WHOLE:
                divided[i] = _part(plan, reads, writes, way, cores)
    return tuple(divided), frozenset(s for s, different in ways.items() if len(different) > 1)


def _way(plans: Sequence[OpPlan], cores: int) -> str:
    """The larger dimension of the kernel; rows, where anything in it works along them."""
    head = plans[0]
    rows = min(plan.rows for plan in plans)
    if head.form == COLLECTIVE_FORM:
        return _WHOLE
    is_free = all(plan.form != "rowwise" and plan.columns == head.columns for plan in plans)
    if is_free and head.independent < cores and head.columns > head.rows:
        return _COLUMNS if head.columns >= cores else _WHOLE
    return _ROWS if rows >= cores else _WHOLE


def _way_of_read(plan: OpPlan, access: Access, way: str) -> str:
    if way == _WHOLE or access.software:
        return _WHOLE
    if way == _ROWS:
        return _ROWS if access.by_row or plan.independent > 1 else _WHOLE
    return _WHOLE if plan.form == "producer" and access.by_row else _COLUMNS


def _way_of_write(plan: OpPlan, access: Access, way: str) -> str:
    """A sum over rows leaves each core a part of every element: it writes all of them."""
    if way == _ROWS and not access.by_row and plan.independent < 2:
        return _WHOLE
    return _WHOLE if access.software else way


def _part(
    plan: OpPlan,
    reads: Sequence[tuple[Access, str]],
    writes: Sequence[tuple[Access, str]],
    way: str,
    cores: int,
) -> OpPlan:
    stages = tuple(
        replace(
            stage,
            work_ps=math.ceil(stage.work_ps / cores),
            instructions=math.ceil(stage.instructions / cores),
            flops=stage.flops / cores,
        )
        for stage in plan.stages
    )
    return replace(
        plan,
        rows=math.ceil(plan.rows / cores) if way == _ROWS else plan.rows,
        columns=math.ceil(plan.columns / cores) if way == _COLUMNS else plan.columns,
        tiles=math.ceil(plan.tiles / cores),
        stages=stages,
        reads=tuple(_share(access, own, cores) for access, own in reads),
        writes=tuple(_share(access, own, cores) for access, own in writes),
    )


def _share(access: Access, way: str, cores: int) -> Access:
    """A core's part of a tensor; of what is gathered or scattered, its part of the rows that move."""
    nbytes = math.ceil(access.nbytes / cores)
    if access.software:
        return replace(access, nbytes=nbytes)
    if way == _WHOLE:
        return access
    ref = replace(
        access.ref,
        nbytes=math.ceil(access.ref.nbytes / cores),
        storage_nbytes=math.ceil(access.ref.storage_nbytes / cores),
    )
    row_bytes = max(1, access.row_bytes // cores) if way == _COLUMNS else access.row_bytes
    return replace(access, ref=ref, nbytes=nbytes, row_bytes=row_bytes)
