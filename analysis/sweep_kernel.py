"""How are the events of a unit added up in one walk through time? Compiled; imported only when first needed.

Events are taken in order of unit and start, cells (pieces of a unit's time that do not overlap) by unit and start too. Every sum is of what of an
event lies in a cell, so that cells add up to any window that is made of them. A union is exact in one walk: of an event counts what lies
beyond the latest end so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled, inlined

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
F64 = NDArray[np.float64]

LEVELS, PHASE_LEVELS = 3, 8
LAST_PHASE = PHASE_LEVELS // 2 - 1
COUNTERS = 11
"""Columns of ``counters``: FLOPs (all, transposes, adjusted, adjusted transposes), HBM bytes (read, written), DMA (count, bytes, ns), collectives (count, ns)."""
OPERATOR_SUMS = 7
"""Columns of its sums of an operator: events that start, adjusted FLOPs, HBM bytes, DMA bytes, DMAs that start, covered ns, summed ns."""
NO_STEP = -(2**31)


@inlined
def _beyond(reach: I64, at: int, start: int, end: int) -> int:
    """What an interval adds to a union whose latest end so far is ``reach[at]``, which it moves on."""
    if end <= reach[at]:
        return 0
    added: int = end - max(start, reach[at])
    reach[at] = end
    return added


@compiled
def level_sums(
    order: I64, starts: I64, ends: I64, kinds: I32, kind_levels: I8, unit_events: I64, unit_cells: I64, cell_starts: I64, cell_ends: I64, count: int
) -> tuple[I64, I64]:  # fmt: skip
    """What each cell is covered for by the levels up to each, and how many events of each level start in it.

    Args:
        order: int64[n], rows of events by unit and start.
        starts: int64[n], of events.
        ends: int64[n].
        kinds: int32[n], index into the next one.
        kind_levels: int8[k], below ``count``.
        unit_events: int64[u + 1], where the events of each unit begin in ``order``.
        unit_cells: int64[u + 1], where its cells begin.
        cell_starts: int64[c].
        cell_ends: int64[c].
        count: of levels.

    Returns:
        int64[c, count + 1] ns: columns 0 to count - 1 the union of levels 0 to that column; the last one the union of level 1 alone;
        and int64[c, count], events that start.
    """
    covered = np.zeros((len(cell_starts), count + 1), np.int64)
    begun = np.zeros((len(cell_starts), count), np.int64)
    reach = np.empty(count + 1, np.int64)
    waiting = np.empty(len(starts), np.int64)
    for unit in range(len(unit_cells) - 1):
        at, last = unit_events[unit], unit_events[unit + 1]
        held = 0
        for cell in range(unit_cells[unit], unit_cells[unit + 1]):
            begin, until = cell_starts[cell], cell_ends[cell]
            reach[:] = begin
            old, turn, held = held, 0, 0
            while turn < old or (at < last and starts[order[at]] < until):
                if turn < old:
                    event = waiting[turn]
                    turn += 1
                else:
                    event = order[at]
                    at += 1
                if ends[event] > until:
                    waiting[held] = event
                    held += 1
                start, end, level = (
                    max(starts[event], begin),
                    min(ends[event], until),
                    kind_levels[kinds[event]],
                )
                if starts[event] >= begin:
                    begun[cell, level] += 1
                for number in range(level, count):
                    covered[cell, number] += _beyond(reach, number, start, end)
                if level == 1:
                    covered[cell, count] += _beyond(reach, count, start, end)
    return covered, begun


@compiled
def unit_sums(
    order: I64, starts: I64, ends: I64, kinds: I32, flags: I8, flops: F64, payloads: I64, dtypes: I32, ops: I64, own: I32, steps: I32,
    kind_levels: I8, kind_workers: I8, kind_resources: I32, kind_dma: I8, kind_collective: I8, kind_matmul: I8,
    dtype_factors: F64, op_operators: I32, op_phases: I8,
    unit_events: I64, unit_cells: I64, cell_starts: I64, cell_ends: I64,
    resource_count: int, operator_count: int, worker_count: int, op_count: int,
) -> tuple[F64, I64, I64, I64, I64, F64, I64, I64]:  # fmt: skip
    """Everything of the first screen that is a sum or a union over the events of a cell.

    Args:
        order: int64[n], rows of events by unit and start.
        starts: int64[n], of events.
        ends: int64[n].
        kinds: int32[n], what it is on which lane, index into what begins with ``kind_``.
        flags: int8[n]: 1 a transpose, 2 reads HBM, 4 writes it.
        flops: float64[n].
        payloads: int64[n], bytes.
        dtypes: int32[n], index into ``dtype_factors``.
        ops: int64[n], below ``op_count``; below 0 where there is none.
        own: int32[n], the operator of an event whose operation has none; empty: all have.
        steps: int32[n], NO_STEP where there is none.
        kind_levels: int8[k]: 0 computes, 1 communicates, 2 moves data.
        kind_workers: int8[k], below ``worker_count``.
        kind_resources: int32[k], ordinal within the unit.
        kind_dma: int8[k].
        kind_collective: int8[k].
        kind_matmul: int8[k], whether FLOPs are those of matmuls.
        dtype_factors: float64[d], BF16-equivalents of one FLOP.
        op_operators: int32[o], below ``operator_count``; below 0 where there is none.
        op_phases: int8[o], ordinal of the phase; the last one is that of events without operation.
        unit_events: int64[u + 1], where the events of each unit begin in ``order``.
        unit_cells: int64[u + 1], where its cells begin.
        cell_starts: int64[c].
        cell_ends: int64[c].
        resource_count: of the unit that has most.
        operator_count: of operators.
        worker_count: of workers.
        op_count: of operations.

    Returns:
        counters float64[c, COUNTERS]; resources int64[c, resource_count, 3] (events that start, summed ns, covered ns);
        covered int64[c, LEVELS + 2 + PHASE_LEVELS] ns (unions of levels up to each, of DMAs, of collectives, of phase levels up to each);
        rows of operators: int64[r, 2] (cell, operator), int64[r, worker_count] (covered ns of each worker), float64[r, OPERATOR_SUMS];
        executions int64[x, 3] (cell, op, step), some of them more than once; int64[c] summed ns.
    """
    cells = len(cell_starts)
    counters = np.zeros((cells, COUNTERS), np.float64)
    by_resource = np.zeros((cells, resource_count, 3), np.int64)
    unions = LEVELS + 2 + PHASE_LEVELS
    covered = np.zeros((cells, unions), np.int64)
    summed = np.zeros(cells, np.int64)
    reach = np.empty(unions, np.int64)
    resource_reach = np.empty(resource_count, np.int64)
    room = 1024
    keys = np.empty((room, 2), np.int64)
    busy = np.zeros((room, worker_count), np.int64)
    worker_reach = np.empty((room, worker_count), np.int64)
    sums = np.zeros((room, OPERATOR_SUMS), np.float64)
    row_reach = np.empty(room, np.int64)
    row_of = np.full(operator_count, -1, np.int64)
    rows = 0
    runs = np.empty((1024, 3), np.int64)
    run_count = 0
    op_cell = np.full(op_count, -1, np.int64)
    op_step = np.zeros(op_count, np.int32)
    waiting = np.empty(len(starts), np.int64)
    for unit in range(len(unit_cells) - 1):
        at, last = unit_events[unit], unit_events[unit + 1]
        held = 0
        for cell in range(unit_cells[unit], unit_cells[unit + 1]):
            begin, until = cell_starts[cell], cell_ends[cell]
            reach[:] = begin
            resource_reach[:] = begin
            old, turn, held = held, 0, 0
            while turn < old or (at < last and starts[order[at]] < until):
                if turn < old:
                    event = waiting[turn]
                    turn += 1
                else:
                    event = order[at]
                    at += 1
                if ends[event] > until:
                    waiting[held] = event
                    held += 1
                if max(ends[event], starts[event] + 1) <= begin:
                    continue
                start, end = max(starts[event], begin), min(ends[event], until)
                length = end - start
                whole = ends[event] - starts[event]
                share = length / whole if whole > 0 else 1.0
                begins = 1 if starts[event] >= begin else 0
                summed[cell] += length
                kind = kinds[event]
                level, is_dma = kind_levels[kind], kind_dma[kind]
                flop = flops[event] * share if kind_matmul[kind] else 0.0
                payload = payloads[event] * share if is_dma else 0.0
                adjusted = flop * dtype_factors[dtypes[event]]
                op = ops[event]
                phase, operator = LAST_PHASE, -1
                if 0 <= op < len(op_operators):
                    phase, operator = op_phases[op], op_operators[op]
                if operator < 0:
                    operator = own[event]
                flag = flags[event]
                read = payload if flag & 2 else 0.0
                written = payload if flag & 4 else 0.0
                counters[cell, 0] += flop
                counters[cell, 2] += adjusted
                if flag & 1:
                    counters[cell, 1] += flop
                    counters[cell, 3] += adjusted
                counters[cell, 4] += read
                counters[cell, 5] += written
                counters[cell, 7] += payload
                if is_dma:
                    counters[cell, 6] += begins
                    counters[cell, 8] += length
                if kind_collective[kind]:
                    counters[cell, 9] += begins
                    counters[cell, 10] += length
                resource = kind_resources[kind]
                by_resource[cell, resource, 0] += begins
                by_resource[cell, resource, 1] += length
                by_resource[cell, resource, 2] += _beyond(resource_reach, resource, start, end)
                for number in range(level, LEVELS):
                    covered[cell, number] += _beyond(reach, number, start, end)
                if is_dma:
                    covered[cell, LEVELS] += _beyond(reach, LEVELS, start, end)
                if kind_collective[kind]:
                    covered[cell, LEVELS + 1] += _beyond(reach, LEVELS + 1, start, end)
                first_phase = LEVELS + 2 + phase + (0 if level == 0 else PHASE_LEVELS // 2)
                for number in range(first_phase, unions):
                    covered[cell, number] += _beyond(reach, number, start, end)
                row = row_of[operator]
                if row < 0 or keys[row, 0] != cell:
                    if rows == room:
                        keys, sums, row_reach = _grown(keys), _grown(sums), _grown(row_reach)
                        busy, worker_reach = _grown(busy), _grown(worker_reach)
                        room *= 2
                    row = rows
                    rows += 1
                    row_of[operator] = row
                    keys[row, 0], keys[row, 1] = cell, operator
                    busy[row] = 0
                    worker_reach[row] = begin
                    sums[row] = 0.0
                    row_reach[row] = begin
                sums[row, 0] += begins
                sums[row, 1] += adjusted
                sums[row, 2] += read + written
                sums[row, 3] += payload
                sums[row, 6] += length
                if is_dma:
                    sums[row, 4] += begins
                sums[row, 5] += _beyond(row_reach, row, start, end)
                worker = kind_workers[kind]
                busy[row, worker] += _beyond(worker_reach[row], worker, start, end)
                if op >= 0 and (op_cell[op] != cell or op_step[op] != steps[event]):
                    op_cell[op], op_step[op] = cell, steps[event]
                    if run_count == len(runs):
                        runs = _grown(runs)
                    runs[run_count, 0], runs[run_count, 1], runs[run_count, 2] = cell, op, steps[event]  # fmt: skip
                    run_count += 1
    return counters, by_resource, covered, keys[:rows], busy[:rows], sums[:rows], runs[:run_count], summed  # fmt: skip


@compiled
def _grown(rows: Any) -> Any:
    """The same rows with room for as many more."""
    return np.concatenate((rows, np.empty_like(rows)))


@compiled
def idle_sums(
    order: I64, starts: I64, ends: I64, kinds: I32, reasons: I32, kind_lanes: I32, reason_of: I8, unit_events: I64, unit_cells: I64, cell_starts: I64, cell_ends: I64,
    unit_steps: I64, step_starts: I64, step_ends: I64, lane_units: I32, lane_resources: I32,
    resource_count: int, reason_count: int, none_after: int, host: int,
) -> tuple[I64, I64]:  # fmt: skip
    """Charge the gaps of every lane, as ``waits.idle_gaps`` does, to the cells that they lie in.

    Args:
        order: int64[n], rows of events by unit, start and end.
        starts: int64[n], of events.
        ends: int64[n].
        kinds: int32[n], index into ``kind_lanes``.
        reasons: int32[n], why the lane idled before it, index into ``reason_of``.
        kind_lanes: int32[k], ordinal of the lane.
        reason_of: int8[w], ordinal of the reason.
        unit_events: int64[u + 1], where the events of each unit begin in ``order``.
        unit_cells: int64[u + 1], where its cells begin.
        cell_starts: int64[c], touching within a unit.
        cell_ends: int64[c].
        unit_steps: int64[u + 1], where the steps of each unit begin.
        step_starts: int64[s], sorted by unit, start and end.
        step_ends: int64[s].
        lane_units: int32[l].
        lane_resources: int32[l].
        resource_count: of the unit that has most.
        reason_count: of reasons.
        none_after: the reason of what no event ends.
        host: the reason whose gaps are wanted.

    Returns:
        int64[c, resource_count, reason_count] ns, and int64[g, 3]: unit, start and end of the gaps of reason ``host``.
    """
    idle = np.zeros((len(cell_starts), resource_count, reason_count), np.int64)
    found = np.empty((256, 3), np.int64)
    count = 0
    earliest, latest = -(2**61), 2**61
    before = np.full(len(lane_units), earliest, np.int64)
    for unit in range(len(unit_cells) - 1):
        step, last_step = unit_steps[unit], unit_steps[unit + 1]
        first, last = unit_cells[unit], unit_cells[unit + 1]
        for at in range(unit_events[unit], unit_events[unit + 1]):
            event = order[at]
            start, lane, reason = starts[event], kind_lanes[kinds[event]], reason_of[reasons[event]]
            while step + 1 < last_step and step_starts[step + 1] <= start:
                step += 1
            boundary = earliest
            if step < last_step and step_starts[step] <= start:
                boundary = step_starts[step] if start < step_ends[step] else step_ends[step]
            idle_from = before[lane]
            until = max(idle_from, start)
            boundary = min(max(boundary, idle_from), until)
            resource = lane_resources[lane]
            _charge(idle, cell_starts, cell_ends, first, last, resource, none_after, idle_from, boundary)  # fmt: skip
            _charge(idle, cell_starts, cell_ends, first, last, resource, reason, boundary, start)  # fmt: skip
            if reason == host and start > boundary:
                if count == len(found):
                    found = _grown(found)
                found[count, 0], found[count, 1], found[count, 2] = unit, boundary, start
                count += 1
            before[lane] = max(idle_from, ends[event])
    for lane in range(len(lane_units)):
        unit = lane_units[lane]
        _charge(idle, cell_starts, cell_ends, unit_cells[unit], unit_cells[unit + 1], lane_resources[lane], none_after, before[lane], latest)  # fmt: skip
    return idle, found[:count]


@compiled
def _charge(
    idle: I64, cell_starts: I64, cell_ends: I64, first: int, last: int, resource: int, reason: int, start: int, end: int
) -> None:  # fmt: skip
    if end <= start or first == last:
        return
    low, high = first, last
    while high - low > 1:
        middle = (low + high) // 2
        if cell_starts[middle] <= start:
            low = middle
        else:
            high = middle
    for cell in range(low, last):
        if cell_starts[cell] >= end:
            break
        length = min(end, cell_ends[cell]) - max(start, cell_starts[cell])
        if length > 0:
            idle[cell, resource, reason] += length
