"""On which lane does each span of a thread lie, so that nothing overlaps and a child lies below its parent?

A log is a sequence of enter and exit records; their order, not their times, decides. Spans that nest get a lane per depth.
Spans that interleave (a generator that is resumed elsewhere, greenlets) get the lowest lane that is free when they begin, which
for nested spans is the depth as well. Everything over spans is vectorised; only asyncio tasks are looped over.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
"""Position of the exit of a span that is still open."""


def owners(span_serials: Ints, exit_serials: Ints) -> Ints:
    """The span that each exit record ends.

    Args:
        span_serials: serial number of each span, distinct, any order.
        exit_serials: serial number of each exit record.

    Returns:
        Index of the span per exit record; -1 where there is none.
    """
    if not len(span_serials):
        return np.full(len(exit_serials), -1, np.int64)
    order = np.argsort(span_serials, kind="stable")
    ordered = span_serials[order]
    found = np.minimum(np.searchsorted(ordered, exit_serials), len(ordered) - 1)
    return np.where(ordered[found] == exit_serials, order[found], -1)


def assign_lanes(record_span: Ints, is_enter: NDArray[np.bool_], group: Ints, fixed: Ints) -> Ints:
    """The lane of each span within its group: its depth where spans nest, the lowest free lane where they interleave.

    Args:
        record_span: index of the span that each record enters or exits, in order of the log; every span enters once, and
            spans with a fixed lane enter before all others of their group.
        is_enter: whether each record enters (True) or exits.
        group: dense number from 0 of each span's group; groups do not see one another.
        fixed: lane that a span has already, -1 if none.

    Returns:
        int64 lane per span, from 0: no two spans of a group overlap on one lane.
    """
    record_group = group[record_span]
    order = np.argsort(record_group, kind="stable")
    ordered_span, ordered_enter = record_span[order], is_enter[order]
    level = _levels(record_group[order], ordered_enter)
    spans = len(group)
    enter_at = np.empty(spans, np.int64)
    enter_at[ordered_span[ordered_enter]] = np.flatnonzero(ordered_enter)
    exit_at = np.full(spans, NEVER, np.int64)
    exit_at[ordered_span[~ordered_enter]] = np.flatnonzero(~ordered_enter)
    lane = level[enter_at]
    is_closed = exit_at != NEVER
    is_odd = (fixed >= 0) & (fixed != lane)
    is_odd[is_closed] |= level[exit_at[is_closed]] != lane[is_closed]
    if is_odd.any():
        interleaved = np.zeros(int(group.max()) + 1, np.bool_)
        interleaved[group[is_odd]] = True
        chosen = np.flatnonzero(interleaved[group])
        chosen = chosen[np.argsort(enter_at[chosen], kind="stable")]
        lane[chosen] = _first_fit(enter_at[chosen], exit_at[chosen], group[chosen], fixed[chosen])
    return lane


def _levels(record_group: Ints, is_enter: NDArray[np.bool_]) -> Ints:
    """Spans open outside each record's own span: before an enter, after an exit. Records are sorted by group."""
    depth: Ints = np.cumsum(np.where(is_enter, 1, -1))
    first = np.flatnonzero(np.diff(record_group, prepend=-1))
    before = np.where(first > 0, depth[first - 1], 0)
    base = np.repeat(before, np.diff(first, append=len(record_group)))
    level: Ints = depth - base - is_enter
    return level


def _first_fit(enter_at: Ints, exit_at: Ints, group: Ints, fixed: Ints) -> Ints:
    """Lowest free lane of each span, in order of their enters: lane by lane, each a chain "next span that begins after"."""
    lane = fixed.copy()
    level = 0
    while (lane < 0).any():
        candidates = np.flatnonzero((lane < 0) | (fixed == level))
        count = len(candidates)
        groups = group[candidates]
        following = np.searchsorted(enter_at[candidates], exit_at[candidates], side="right")
        leaves = np.append(groups, -1)[following] != groups
        following[leaves] = count
        seeds = np.flatnonzero(np.diff(groups, prepend=-1))
        lane[candidates[_reachable(following, seeds)]] = level
        level += 1
    return lane


def _reachable(following: Ints, seeds: Ints) -> Ints:
    """Indices on the chains that start at ``seeds``, by pointer doubling; ``len(following)`` ends a chain."""
    count = len(following)
    is_reached = np.zeros(count + 1, np.bool_)
    is_reached[seeds] = True
    jump = np.append(following, count)
    for _ in range(count.bit_length()):
        is_reached[jump[np.flatnonzero(is_reached)]] = True
        jump = jump[jump]
    return np.flatnonzero(is_reached[:count])


@dataclass
class TaskSlots:
    """Which block of lanes does each asyncio task of a thread have?

    A task keeps its slot (from 1; 0 is the thread's own code) from one drain to the next as long as it records in each or has
    a span open; slots of others are reused. So there are about as many slots as tasks that record at the same time.
    """

    _held: dict[tuple[int, int], int] = field(default_factory=dict)

    def assign(self, threads: Ints, tasks: Ints, first: Ints, last: Ints) -> Ints:
        """The slot of each group of spans.

        Args:
            threads: number of the thread.
            tasks: identity of the task, 0 for code outside any; (thread, task) are distinct.
            first: position of the group's first record.
            last: position of its last, ``NEVER`` while a span is open.

        Returns:
            int64 slot per group: groups of one thread with the same slot do not overlap.
        """
        slots = np.zeros(len(threads), np.int64)
        keys = list(zip(threads.tolist(), tasks.tolist(), strict=True))
        kept = {key: self._held[key] for key in keys if key in self._held}
        last_of = dict(zip(keys, last.tolist(), strict=True))
        user = {(thread, slot): (thread, task) for (thread, task), slot in kept.items()}
        pool = _Pool(-1, [])
        for group in np.lexsort((first, threads)).tolist():
            thread, task = key = keys[group]
            if task == 0:
                continue
            if thread != pool.thread:
                pool = _Pool(thread, [(last_of[k], s) for k, s in kept.items() if k[0] == thread])
            if key in kept:
                slots[group] = kept[key]
            else:
                slots[group] = pool.take(int(first[group]), last_of[key])
                user[thread, int(slots[group])] = key
        self._held = {key: slot for (_, slot), key in user.items()}
        return slots


class _Pool:
    """Slots of one thread: free again when their user has ended, lowest first; ``busy``: (last, slot) of those kept."""

    def __init__(self, thread: int, busy: list[tuple[int, int]]) -> None:
        self.thread = thread
        self._busy = busy
        heapq.heapify(busy)
        kept = {slot for _, slot in busy}
        self._unused = (slot for slot in itertools.count(1) if slot not in kept)
        self._free: list[int] = []

    def take(self, first: int, last: int) -> int:
        while self._busy and self._busy[0][0] < first:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        slot = heapq.heappop(self._free) if self._free else next(self._unused)
        heapq.heappush(self._busy, (last, slot))
        return slot
