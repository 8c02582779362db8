"""Which slices do the arrows of a trace lead from and to?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.chrome.match import (
    FLOW_START,
    FLOW_STEP,
    bind,
    chain,
    in_time,
)
from trnprof.tracer.formats.chrome.open import text_hash
from trnprof.tracer.formats.chrome.phases import Phase
from trnprof.tracer.formats.chrome.places import Places
from trnprof.tracer.formats.gathered import Gathered
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.lanes import in_order
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.schema import DEVICE_KINDS

Ints = NDArray[np.int64]

_FOREVER: Final = np.iinfo(np.int64).max
_UNKNOWN: Final = -1


@dataclass
class Flows:
    """Flow events met so far.

    Attributes:
        numbers: key, ts, place (of the block's processes and threads), kind, whether it means the next slice, row: of the stage,
            −1 where it has to be found, −2 − n for the n-th beginning.
        known: process and thread by place.
    """

    numbers: Gathered = field(
        default_factory=lambda: Gathered(
            key=np.uint64,
            ts=np.int64,
            place=np.int32,
            kind=np.int8,
            wants_next=np.bool_,
            row=np.int64,
        )
    )
    known: list[tuple[str | None, str | None]] = field(default_factory=list)
    without_time: int = 0

    def add(self, block: EventBlock, phase: NDArray[np.int8], key: NDArray[np.uint64]) -> None:
        """Remember flow events.

        Args:
            block: with phases s, t and f only.
            phase: of each.
            key: hash of what they are matched by.
        """
        ts, _, has_ts, _ = block.times_ns()
        place, self.known = block.keys("pid", "tid")
        codes, points = block.keys("bp")
        is_enclosing = np.array([point == "e" for (point,) in points])[codes]
        self.without_time += int((~has_ts).sum())
        self.numbers.add(
            int(has_ts.sum()),
            key=key[has_ts],
            ts=ts[has_ts],
            place=place[has_ts],
            kind=phase[has_ts] - Phase.FLOW_START + FLOW_START,
            wants_next=((phase == Phase.FLOW_END) & ~is_enclosing)[has_ts],
            row=_UNKNOWN,
        )

    def add_bound(self, block: EventBlock, rows: Ints, seed: int) -> None:
        """Remember slices that say themselves that a flow begins or ends there (``bind_id``)."""
        if not block.has("bind_id").any():
            return
        ts, _, has_ts, _ = block.times_ns()
        key = text_hash(block.texts("bind_id"), seed + 2)
        for member, kind in (("flow_in", FLOW_STEP), ("flow_out", FLOW_START)):
            codes, known = block.keys(member)
            says = np.array([word in ("true", "1") for (word,) in known])[codes]
            chosen = np.flatnonzero(says & has_ts & (key != 0))
            self.numbers.add(
                len(chosen),
                key=key[chosen],
                ts=ts[chosen],
                place=-1,
                kind=kind,
                wants_next=False,
                row=rows[chosen],
            )

    def finish(
        self,
        stage: Stage,
        places: Places,
        paired_rows: Ints,
        is_slice: NDArray[np.bool_],
        unit_ns: int,
    ) -> None:
        """Bind all and give the arrows to the stage.

        Args:
            stage: takes them.
            places: with all timelines final.
            paired_rows: row of each beginning.
            is_slice: rows of the stage that an arrow may touch.
            unit_ns: flow events are no finer than that; slices are taken for that coarse, too.
        """
        numbers = self.numbers
        if not numbers.count:
            return
        row = numbers["row"].copy()
        is_paired = row < _UNKNOWN
        row[is_paired] = paired_rows[-2 - row[is_paired]]
        unbound = np.flatnonzero(numbers["row"] == _UNKNOWN)
        row[unbound] = self._bind(stage, places, unbound, is_slice, unit_ns)
        source, target, backward = chain(
            in_time(numbers["ts"]), numbers["kind"], numbers["key"], row
        )
        _add(stage, row[source], row[target])
        self._tell(stage, row, np.concatenate([source, target]), backward)

    def _bind(
        self,
        stage: Stage,
        places: Places,
        which: Ints,
        is_slice: NDArray[np.bool_],
        unit_ns: int,
    ) -> Ints:
        place_of = places.place_of(len(stage.timelines))
        known = places.place_numbers(self.known)
        place = known[self.numbers["place"][which]]
        start, end = stage.times("start_ns"), stage.times("end_ns")
        end = np.where(end == UNFINISHED, _FOREVER, end)
        if unit_ns > 1:
            start = start // unit_ns * unit_ns
        count = int(place_of.max(initial=-1)) + 1
        of_row = place_of[stage.times("timeline")]
        order = in_order(
            np.where(of_row < 0, count, of_row), start, np.maximum(start, end), count + 1
        )
        found = np.full(len(which), -1, np.int64)
        has = place >= 0
        numbers = self.numbers
        found[has] = bind(
            order.rows, order.first, start, end, is_slice,
            place[has], numbers["ts"][which][has], numbers["wants_next"][which][has],
        )  # fmt: skip
        return found

    def _tell(self, stage: Stage, row: Ints, used: Ints, backward: int) -> None:
        lost = np.flatnonzero(row < 0)
        ts = self.numbers["ts"]
        stage.audit.add(
            "dangling_flows",
            "note",
            stage.label,
            "flow events at times where their thread has no slice were left out",
            unreliable="arrows between events",
            count=len(lost) + self.without_time,
            example=f"at {int(ts[lost[0]])} ns" if len(lost) else "without a time",
        )
        stage.audit.add(
            "backward_flows",
            "warning",
            stage.label,
            "flows end before they start; their arrows are kept",
            unreliable="the order of events of different processes: their clocks may disagree",
            count=backward,
        )
        is_alone = row >= 0
        is_alone[used] = False
        stage.audit.add(
            "incomplete_flows",
            "note",
            stage.label,
            "flow events have no other half, or lead from a slice to itself",
            unreliable="arrows between events",
            count=int(is_alone.sum()),
        )


def _add(stage: Stage, source: Ints, target: Ints) -> None:
    kinds = np.array([t.kind in DEVICE_KINDS for t in stage.timelines] or [False])
    timeline = stage.times("timeline")
    is_launch = kinds[timeline[target]] & ~kinds[timeline[source]]
    for kind, chosen in (("launch", is_launch), ("data", ~is_launch)):
        if chosen.any():
            stage.add_flows(source[chosen], target[chosen], kind)
