"""Which events of a profile have times that cannot be, and what is done with each?

Nothing is altered silently: every kind is counted with an example. An event without a believable end stays where it began and has
no duration, so that no total counts it; one without a believable start becomes an instant on a track of its own; a repeat of an
event is left out. What the profile said stays in the event's attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.lanes import Ints, Order, in_order, repeats
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.units import format_ns

DAY_NS: Final = 86_400_000_000_000
"""No profile of these tools runs for a day: longer than all starts are apart *and* than this is taken for a corrupted stamp."""
LONELY_GAPS: Final = 10
"""A start of exactly 0 is a missing one if the others are at least this many times as far from it as from each other."""
FEW: Final = 10
"""… and if there are at least this many others."""
OPEN_NS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Verdicts:
    """What is to be done with the events of a stage.

    Attributes:
        start_ns: starts; 0-length stand-ins for lane choice where there is none.
        end_ns: ends for lane choice: OPEN_NS while open, the start where the end is not believed.
        order: of the events by timeline and start.
        twin: the row that each repeats, -1 for none; repeats are left out.
        has_no_end: an end that is not believed: no duration, on a lane beyond the others.
        has_no_start: a start that is not believed: an instant on the track of those set aside.
        is_open: unfinished as the profile has it.
    """

    start_ns: Ints
    end_ns: Ints
    order: Order
    twin: Ints
    has_no_end: NDArray[np.bool_]
    has_no_start: NDArray[np.bool_]
    is_open: NDArray[np.bool_]


def judge(stage: Stage) -> Verdicts:
    """Look at the times of all events of a closed stage; findings go into its audit."""
    timeline, start, end = (stage.times(name) for name in ("timeline", "start_ns", "end_ns"))
    has_no_start = _without_start(start)
    is_open = (end == UNFINISHED) & ~has_no_start
    credible = start[~has_no_start]
    span_ns = int(credible.max()) - int(credible.min()) if len(credible) else 0
    is_negative = (end < start) & ~is_open & ~has_no_start
    with np.errstate(over="ignore"):
        duration = end - start
    # a difference that wraps around is longer than any trace, too
    is_endless = ~is_negative & ~is_open & ~has_no_start
    is_endless &= (duration < 0) | (duration > max(span_ns, DAY_NS))
    has_no_end = is_negative | is_endless
    lane_end = np.where(is_open, OPEN_NS, np.where(has_no_end | has_no_start, start, end))
    order = in_order(timeline, start, lane_end, len(stage.timelines))
    twin = repeats(order, start, end, stage.times("fingerprint"))
    judged = Verdicts(start, lane_end, order, twin, has_no_end, has_no_start, is_open)
    _tell(stage.audit, stage.label, judged, is_negative, duration)
    return judged


def _without_start(start: Ints) -> NDArray[np.bool_]:
    """Starts of exactly 0 while all others are far off, and starts more than a day from nearly all others."""
    missing: NDArray[np.bool_] = start == 0
    others = start[~missing]
    if missing.any() and len(others) >= FEW and missing.sum() * FEW <= len(start):
        low, high = int(others.min()), int(others.max())
        distance = low if low > 0 else -high
        if distance <= LONELY_GAPS * (high - low):
            missing[:] = False
    else:
        missing[:] = False
    if len(start) > FEW:
        middle = int(np.median(start[~missing]))
        with np.errstate(over="ignore"):
            far = (start < middle - DAY_NS) | (start > middle + DAY_NS)
        if 0 < far.sum() * FEW <= len(start):
            missing |= far
    return missing


def _tell(
    audit: Audit, label: str, judged: Verdicts, is_negative: NDArray[np.bool_], duration: Ints
) -> None:
    no_total = "they have no duration in the trace and count in no total"
    for kind, mask, message in (
        (
            "negative_duration",
            is_negative,
            f"events that end before they start were taken as unfinished: {no_total}",
        ),
        (
            "impossible_duration",
            judged.has_no_end & ~is_negative,
            f"events longer than the whole trace and than a day were taken as unfinished: {no_total}",
        ),
        (
            "impossible_timestamp",
            judged.has_no_start,
            "events without a believable start (0, or far from all others) are instants on the track 'set aside'",
        ),
        ("unfinished", judged.is_open, "events had not ended when the recording did"),
        (
            "duplicate_events",
            judged.twin >= 0,
            "events that are there more than once, alike in everything, were kept once",
        ),
    ):
        rows = np.flatnonzero(mask)
        if not len(rows):
            continue
        row = int(rows[0])
        length = "" if judged.is_open[row] else f", duration {format_ns(int(duration[row]))}"
        severity = "note" if kind == "unfinished" else "warning"
        audit.add(
            kind,
            severity,
            label,
            message,
            unreliable="durations, busy time and counts of the events concerned",
            count=len(rows),
            example=f"event {row} at {int(judged.start_ns[row])} ns{length}",
        )


def first_believed_ns(stage: Stage) -> int | None:
    """The first start of a closed stage that can be believed, on its own clock; None without events."""
    start = stage.times("start_ns")
    believed = start[~_without_start(start)] if len(start) else start
    return int(believed.min()) if len(believed) else None
