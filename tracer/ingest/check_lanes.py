"""Which device events overlap where nothing should, which run over their successors, and which devices fall silent early?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.ingest.lanes import in_order, repeats

SILENT_SHARE: Final = 0.1
SILENT_GAPS: Final = 10
ENOUGH: Final = 100
"""A device stops early if it is silent for this share of the profile at its end, this many times its longest pause before, and has
that many events."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Overlaps:
    """Overlaps on exclusive timelines; repeats of an event are left out.

    Attributes:
        late: places of events that begin before an earlier one of their timeline has ended.
        before_end_ns: by how much, one a place of ``late``.
        covering: places of events that cover whole later ones.
        covered: how many they cover.
        sum_ns, union_ns: durations on the timelines that have overlaps, summed, and what they cover.
    """

    late: Ints
    before_end_ns: Ints
    covering: Ints
    covered: int
    sum_ns: int
    union_ns: int


def find_overlaps(
    timeline: NDArray[np.int32],
    start: Ints,
    end: Ints,
    fingerprint: NDArray[np.uint64],
    is_exclusive: NDArray[np.bool_],
) -> Overlaps:
    """Overlaps among events, all with ends not before their starts.

    Args:
        timeline: number of each event's timeline.
        start: ns.
        end: ns.
        fingerprint: as in ``Stage.add_events``.
        is_exclusive: whether the event's timeline runs one thing at a time.
    """
    chosen = np.flatnonzero(is_exclusive)
    order = in_order(timeline[chosen], start[chosen], end[chosen], int(timeline.max(initial=0)) + 1)
    twin = repeats(order, start[chosen], end[chosen], fingerprint[chosen])
    rows = order.rows[twin[order.rows] < 0]
    rows = chosen[rows]
    s, e, t = start[rows], end[rows], timeline[rows]
    is_first = np.concatenate([[True], t[1:] != t[:-1]]) if len(t) else np.empty(0, bool)
    reach, reacher = _running_reach(e, is_first)
    before = np.where(is_first, np.int64(np.iinfo(np.int64).min), np.roll(reach, 1))
    is_late = s < before
    is_covered = is_late & (e <= before) & (e > s)
    new = np.where(is_late, np.maximum(e - before, 0), e - s)
    touched = np.isin(t, t[is_late])
    return Overlaps(
        rows[is_late],
        (before - s)[is_late],
        np.sort(rows[np.unique(np.roll(reacher, 1)[is_covered])]),
        int(is_covered.sum()),
        int((e - s)[touched].sum()),
        int(new[touched].sum()),
    )


def _running_reach(end: Ints, is_first: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Latest end so far in each group, and the place it is of."""
    if not len(end):
        return end, end
    low = int(end.min())
    group = np.cumsum(is_first) - 1
    # ranks instead of times, so that groups can be told apart in one number without overflow
    _, rank = np.unique(end - low, return_inverse=True)
    stacked = np.maximum.accumulate(rank + group * len(end))
    is_new = np.concatenate([[True], stacked[1:] > stacked[:-1]])
    place = np.maximum.accumulate(np.where(is_new, np.arange(len(end)), 0))
    return end[place], place


def stops_early(owner: Ints, start: Ints, end: Ints, last_ns: int) -> list[tuple[int, int]]:
    """Owners that fall silent early, with the time when they do.

    Args:
        owner: of each event.
        start: ns.
        end: ns.
        last_ns: when the profile ends.
    """
    found = []
    for number in np.unique(owner).tolist():
        own = owner == number
        if own.sum() < ENOUGH:
            continue
        rows = np.argsort(start[own], kind="stable")
        s, reach = start[own][rows], np.maximum.accumulate(end[own][rows])
        pause = int((s[1:] - reach[:-1]).max(initial=0))
        silence = last_ns - int(reach[-1])
        if silence > SILENT_SHARE * (last_ns - int(s[0])) and silence > SILENT_GAPS * pause:
            found.append((number, int(reach[-1])))
    return found
