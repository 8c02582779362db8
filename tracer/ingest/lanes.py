"""On which lane of its timeline does each event of a profile lie, so that nothing overlaps?

Each event takes the lowest lane that is free at its start, in order of start, longest first. For ranges that nest this is their
depth; concurrent ones are spread over as few lanes as can be. An event without length occupies nothing.

Compiled: a profile has millions of events, and each choice depends on the one before.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

Ints = NDArray[np.int64]

_FEW = 32
"""Runs of equal start up to this length are put in order by insertion."""
_SHORT_NUMBERS = 1 << 16


@dataclass(frozen=True)
class Order:
    """Events grouped by timeline, in each by start, longest first, then by row.

    Attributes:
        rows: row numbers in this order.
        first: first place in ``rows`` of each timeline, and one more: their number.
    """

    rows: Ints
    first: Ints


def in_order(timeline: NDArray[np.int32], start_ns: Ints, end_ns: Ints, timelines: int) -> Order:
    """Group and sort.

    Args:
        timeline: number from 0 of each event's timeline.
        start_ns: starts.
        end_ns: ends, not before the starts; the largest int64 for an event that stays open.
        timelines: how many there are.
    """
    counts = np.bincount(timeline, minlength=timelines)
    first = np.concatenate([[0], np.cumsum(counts)])
    # profiles are nearly in order of start, which numpy's stable sort is quick with, and it sorts short numbers by their digits
    rows: Ints = np.argsort(start_ns, kind="stable")
    numbers = timeline.astype(np.uint16) if timelines <= _SHORT_NUMBERS else timeline
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    _put_longest_first(rows, first, start_ns, end_ns)
    return Order(rows, first)


def repeats(order: Order, start_ns: Ints, end_ns: Ints, fingerprint: NDArray[np.uint64]) -> Ints:
    """For each event the earlier one that it repeats: same timeline, times and fingerprint (0: repeats nothing).

    Returns:
        Its row, -1 where there is none.
    """
    return _repeats(order.rows, order.first, start_ns, end_ns, fingerprint)  # type: ignore[no-any-return]


def first_fit(
    order: Order, start_ns: Ints, end_ns: Ints, is_left_out: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], Ints]:
    """The lane of each event, and the number of lanes of each timeline.

    Args:
        order: of the events.
        start_ns: starts.
        end_ns: ends, not before the starts.
        is_left_out: events that get lane -1 and occupy nothing.
    """
    return _first_fit(order.rows, order.first, start_ns, end_ns, is_left_out)  # type: ignore[no-any-return]


@compiled
def _put_longest_first(rows: Any, first: Any, start: Any, end: Any) -> None:
    """Sort runs of equal start in each group by their ends, latest first; of equal ends the order stays."""
    for group in range(len(first) - 1):
        at = first[group]
        while at < first[group + 1]:
            to = at + 1
            while to < first[group + 1] and start[rows[to]] == start[rows[at]]:
                to += 1
            if to - at > _FEW:
                run = rows[at:to].copy()
                rows[at:to] = run[np.argsort(-end[run], kind="mergesort")]
            else:
                for i in range(at + 1, to):
                    row, j = rows[i], i
                    while j > at and end[rows[j - 1]] < end[row]:
                        rows[j] = rows[j - 1]
                        j -= 1
                    rows[j] = row
            at = to


@compiled
def _repeats(rows: Any, first: Any, start: Any, end: Any, fingerprint: Any) -> Any:
    twin = np.full(len(rows), -1, np.int64)
    for group in range(len(first) - 1):
        at = first[group]
        while at < first[group + 1]:
            to = at + 1
            while (
                to < first[group + 1]
                and start[rows[to]] == start[rows[at]]
                and end[rows[to]] == end[rows[at]]
            ):
                to += 1
            if to - at > 1:
                run = np.sort(rows[at:to])
                run = run[np.argsort(fingerprint[run], kind="mergesort")]
                for place in range(1, len(run)):
                    row, before = run[place], run[place - 1]
                    if fingerprint[row] != 0 and fingerprint[row] == fingerprint[before]:
                        twin[row] = before if twin[before] < 0 else twin[before]
            at = to
    return twin


@compiled
def _first_fit(rows: Any, first: Any, start: Any, end: Any, is_left_out: Any) -> Any:
    lane = np.full(len(rows), -1, np.int32)
    lanes = np.zeros(len(first) - 1, np.int64)
    for group in range(len(first) - 1):
        busy = [(np.int64(0), np.int64(0)) for _ in range(0)]
        free = [np.int64(0) for _ in range(0)]
        count = np.int64(0)
        for place in range(first[group], first[group + 1]):
            row = rows[place]
            if is_left_out[row]:
                continue
            if len(busy) == 1 and busy[0][1] == 0 and busy[0][0] <= start[row]:
                busy[0] = (end[row], np.int64(0))  # one after the other: most of what devices do
                lane[row] = 0
                continue
            while len(busy) and busy[0][0] <= start[row]:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if len(free):
                chosen = heapq.heappop(free)
            else:
                chosen = count
                count += 1
            lane[row] = chosen
            heapq.heappush(busy, (end[row], chosen))
        lanes[group] = count
    return lane, lanes
