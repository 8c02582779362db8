"""Which device events overlap where nothing should, which run over their successors, and which devices fall silent early?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
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
    """Overlaps among events, all with ends not before their starts; one without length overlaps nothing.

    Args:
        timeline: number of each event's timeline.
        start: ns.
        end: ns.
        fingerprint: as in ``Stage.add_events``.
        is_exclusive: whether the event's timeline runs one thing at a time.
    """
    chosen = slice(None) if is_exclusive.all() else np.flatnonzero(is_exclusive)
    order = in_order(timeline[chosen], start[chosen], end[chosen], int(timeline.max(initial=0)) + 1)
    twin = repeats(order, start[chosen], end[chosen], fingerprint[chosen])
    rows = order.rows if (twin < 0).all() else order.rows[twin[order.rows] < 0]
    rows = rows if isinstance(chosen, slice) else chosen[rows]
    rows = rows[end[rows] > start[rows]]
    before_end, coverer = _overrun(timeline, start, end, rows)
    is_late = before_end > 0
    if not is_late.any():
        return Overlaps(rows[:0], before_end[:0], coverer[:0], 0, 0, 0)
    s, e, t = start[rows], end[rows], timeline[rows]
    is_covered = coverer >= 0
    new = np.where(is_late, np.maximum(e - s - before_end, 0), e - s)
    touched = np.isin(t, t[is_late])
    return Overlaps(
        rows[is_late],
        before_end[is_late],
        np.unique(coverer[is_covered]),
        int(is_covered.sum()),
        int((e - s)[touched].sum()),
        int(new[touched].sum()),
    )


@compiled
def _overrun(timeline: Any, start: Any, end: Any, rows: Any) -> Any:
    """By how much each event begins before all earlier ones of its timeline have ended, and the earlier one that covers it (or -1).

    Args:
        timeline: number of each event's timeline.
        start: ns.
        end: ns.
        rows: the events in order of timeline, start, longest first; all have a length.
    """
    before_end = np.zeros(len(rows), np.int64)
    coverer = np.full(len(rows), -1, np.int64)
    last = np.int64(-1)
    for place in range(len(rows)):
        row = rows[place]
        if last < 0 or timeline[row] != timeline[last]:
            last = row
            continue
        if start[row] < end[last]:
            before_end[place] = end[last] - start[row]
            if end[row] <= end[last]:
                coverer[place] = last
        if end[row] > end[last]:
            last = row
    return before_end, coverer


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
