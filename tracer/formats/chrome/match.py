"""Which end belongs to which beginning, and in which slice does a flow begin or end?

Compiled: each answer depends on all events of its thread before. Time and memory are linear whatever the input, so that no file
can be made to hang the import.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.chrome.phases import Phase
from trnprof.tracer.ingest.stage import UNFINISHED

Ints = NDArray[np.int64]

_BEGIN: Final = int(Phase.BEGIN)
_END: Final = int(Phase.END)
_ASYNC_BEGIN: Final = int(Phase.ASYNC_BEGIN)
_ASYNC_END: Final = int(Phase.ASYNC_END)
_STEP_INTO: Final = int(Phase.STEP_INTO)
_STEP_PAST: Final = int(Phase.STEP_PAST)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

FLOW_START: Final = 0
FLOW_STEP: Final = 1
FLOW_END: Final = 2


def in_time(ts: Ints) -> Ints:
    """Order of events by time; those of one time in file order, or backwards if the whole file is backwards."""
    steps = np.diff(ts)
    if (steps >= 0).all():
        return np.arange(len(ts))
    if (steps <= 0).all():
        return np.arange(len(ts))[::-1].copy()
    return np.argsort(ts, kind="stable")


def pair(
    order: Ints, phase: NDArray[np.int8], group: NDArray[np.uint64], label: NDArray[np.uint64]
) -> tuple[Ints, Ints]:
    """Pair beginnings and ends: an end closes the innermost open beginning of its group that has its label.

    An END whose label none has closes the innermost beginning: the format asks for no name there. An ASYNC_END without a label
    closes the innermost one, too; with a label that none has, nothing.

    Args:
        order: of all events, by time.
        phase: ``Phase`` of each.
        group: what it is paired within: a thread, an id.
        label: of its name, 0 where it has none.

    Returns:
        (the other half of each, -1 where there is none; the ENDs whose names are not those of their beginnings).
    """
    groups, count = dense(group)
    labels, label_count = dense((label ^ (group * _MIX)) * _MIX)
    partner: Ints
    partner, is_other = _pair(order, phase, groups, count, labels, label_count, label)
    return partner, np.flatnonzero(is_other)


def step_times(
    order: Ints, phase: NDArray[np.int8], group: NDArray[np.uint64], ts: Ints, partner: Ints
) -> tuple[Ints, Ints]:
    """When each step of a legacy async event began and ended; for other events both are their time.

    Returns:
        (start, end); equal where nothing of its id is open, ``UNFINISHED`` where that never ends.
    """
    groups, count = dense(group)
    start, end = ts.copy(), ts.copy()
    _steps(order, phase, groups, count, partner, start, end)
    return start, end


def dense(values: NDArray[np.uint64]) -> tuple[NDArray[np.int32], int]:
    """Numbers from 0 in place of values, in order of first appearance, and how many there are."""
    codes, count = _dense(values)
    return codes, int(count)


def bind(
    rows: Ints,
    first: Ints,
    start: Ints,
    end: Ints,
    is_slice: NDArray[np.bool_],
    place: NDArray[np.int32],
    ts: Ints,
    wants_next: NDArray[np.bool_],
) -> Ints:
    """The slice of each flow event.

    Args:
        rows: slices in the order of ``lanes.in_order``, grouped by place.
        first: as in ``lanes.Order``.
        start: of each row.
        end: of each row; the largest int64 for one that stays open.
        is_slice: rows that a flow can be bound to.
        place: of each flow event.
        ts: of each flow event.
        wants_next: it is bound to the next slice that starts there, not to the innermost one around it.

    Returns:
        Row of the slice, -1 where there is none.
    """
    order = np.lexsort((ts, place))
    return _bind(rows, first, start, end, is_slice, order, place, ts, wants_next)  # type: ignore[no-any-return]


def chain(
    order: Ints, kind: NDArray[np.int8], key: NDArray[np.uint64], row: Ints
) -> tuple[Ints, Ints, int]:
    """Arrows between flow events: from each start or step to the steps and ends after it, up to the next start or step.

    Args:
        order: of all flow events, by time.
        kind: FLOW_START, FLOW_STEP or FLOW_END.
        key: events with the same one belong together.
        row: slice of each, -1 where there is none.

    Returns:
        (sources, targets, both as numbers of flow events whose slices differ; how many end before anything of their id has started).
    """
    keys, count = dense(key)
    source, target, backward = _chain(order, kind, keys, count, row)
    return source, target, int(backward)


@compiled
def _dense(values: Any) -> Any:
    size = 256
    slots = np.full(size, -1, np.int32)
    known = np.empty(256, np.uint64)
    codes = np.empty(len(values), np.int32)
    count = 0
    for i in range(len(values)):
        value = np.uint64(values[i])
        h = value * _MIX
        at = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(size - 1))
        while slots[at] >= 0 and known[slots[at]] != value:
            at = (at + 1) & (size - 1)
        if slots[at] < 0:
            slots[at] = count
            known[count] = value
            count += 1
            if count == len(known):
                known = np.concatenate((known, np.empty(count, np.uint64)))
        codes[i] = slots[at]
        if 2 * count > size:
            size *= 4
            slots = np.full(size, -1, np.int32)
            for code in range(count):
                h = known[code] * _MIX
                at = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(size - 1))
                while slots[at] >= 0:
                    at = (at + 1) & (size - 1)
                slots[at] = code
    return codes, count


@compiled
def _pair(
    order: Any, phase: Any, group: Any, groups: Any, label: Any, labels: Any, name: Any
) -> Any:
    rows = len(phase)
    partner = np.full(rows, -1, np.int64)
    is_other = np.zeros(rows, np.bool_)
    top = np.full(groups, -1, np.int64)
    below, above = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
    newest = np.full(labels, -1, np.int64)
    older = np.full(rows, -1, np.int64)
    for i in order:
        kind, g, n = phase[i], group[i], label[i]
        if kind in (_BEGIN, _ASYNC_BEGIN):
            below[i] = top[g]
            if top[g] >= 0:
                above[top[g]] = i
            top[g] = i
            older[i], newest[n] = newest[n], i
        elif kind in (_END, _ASYNC_END):
            b = newest[n] if name[i] != 0 else top[g]
            if b < 0 and kind == _END:
                b = top[g]
                is_other[i] = b >= 0 and name[b] != 0
            if b < 0:
                continue
            partner[i], partner[b] = b, i
            newest[label[b]] = older[b]
            if above[b] >= 0:
                below[above[b]] = below[b]
            else:
                top[g] = below[b]
            if below[b] >= 0:
                above[below[b]] = above[b]
    return partner, is_other


@compiled
def _steps(
    order: Any, phase: Any, group: Any, groups: Any, partner: Any, start: Any, end: Any
) -> None:
    is_open = np.zeros(groups, np.int64)
    step = np.full(groups, -1, np.int64)
    mark = np.zeros(groups, np.int64)
    for i in order:
        kind, g = phase[i], group[i]
        if kind == _ASYNC_BEGIN:
            is_open[g] += 1
            mark[g] = start[i]
        elif kind == _ASYNC_END and partner[i] >= 0:
            is_open[g] -= 1
            if step[g] >= 0:
                end[step[g]] = start[i]
                step[g] = -1
        elif kind == _STEP_INTO and is_open[g] > 0:
            if step[g] >= 0:
                end[step[g]] = start[i]
            step[g] = i
            end[i] = UNFINISHED
        elif kind == _STEP_PAST and is_open[g] > 0:
            now = start[i]
            start[i] = mark[g]
            mark[g] = now


@compiled
def _bind(
    rows: Any, first: Any, start: Any, end: Any, is_slice: Any, order: Any, place: Any, ts: Any, wants_next: Any
) -> Any:  # fmt: skip
    found = np.full(len(ts), -1, np.int64)
    stack = np.empty(len(rows), np.int64)
    depth, at, ahead, last, ended = 0, np.int64(0), np.int64(0), -1, np.int64(-1)
    for query in order:
        if place[query] != last:
            last = place[query]
            depth, at, ahead, ended = 0, first[last], first[last], np.int64(-1)
        stop, now = first[last + 1], ts[query]
        while at < stop and start[rows[at]] <= now:
            if is_slice[rows[at]]:
                while (
                    depth
                    and end[stack[depth - 1]] <= start[rows[at]]
                    and end[stack[depth - 1]] < now
                ):
                    depth -= 1
                stack[depth] = rows[at]
                depth += 1
            at += 1
        if wants_next[query]:
            while ahead < stop and (start[rows[ahead]] < now or not is_slice[rows[ahead]]):
                ahead += 1
            if ahead < stop:
                found[query] = rows[ahead]
            continue
        while depth:
            top = stack[depth - 1]
            if end[top] > now or start[top] == now:
                break
            if end[top] == now and (ended < 0 or end[ended] != now):
                ended = top
            depth -= 1
        if depth:
            found[query] = stack[depth - 1]
        elif ended >= 0 and end[ended] == now:
            found[query] = ended
    return found


@compiled
def _chain(order: Any, kind: Any, key: Any, keys: Any, row: Any) -> Any:
    opening = np.full(keys, -1, np.int64)
    for i in order:
        if kind[i] == FLOW_START and row[i] >= 0 and opening[key[i]] < 0:
            opening[key[i]] = i
    current = np.full(keys, -1, np.int64)
    source, target = np.empty(len(kind), np.int64), np.empty(len(kind), np.int64)
    count, backward = 0, 0
    for i in order:
        if row[i] < 0:
            continue
        k = key[i]
        if kind[i] != FLOW_START:
            origin = current[k]
            is_early = origin < 0 and kind[i] == FLOW_END
            if is_early:
                origin = opening[k]
            if origin >= 0 and row[origin] != row[i]:
                source[count], target[count] = origin, i
                count += 1
                backward += is_early
        if kind[i] != FLOW_END:
            current[k] = i
    return source[:count].copy(), target[:count].copy(), backward
