"""Which events lie where? The data engine of the timeline: flat sorted arrays and exact answers about them.

All tracks lie behind one another in the same arrays, sorted by (track, start). The running maximum of the ends (``reach``)
and the cumulative length of the union (``cum``) give the busy time before any moment exactly, for any input::

    F(t) = cum[i] - max(0, reach[i - 1] - t)     with i = number of starts before t

because every event among the first i starts before t, so [t, reach) is covered without a gap. On a proper lane (nothing overlaps)
``reach`` is the end itself and is not stored. Times are rebased to the first event of their clock; ``key`` is the rebased start plus
``track * stride``, so that one searchsorted serves all tracks at once. Where that would exceed int64, ``stride`` is 0 and searches
go track by track.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from trnprof.tracer.reader import Trace

BLOCK = 8
"""Events a block; ``block_max`` and ``block_at`` hold the longest of each full block."""

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Clock:
    """One time axis.

    Attributes:
        clock_id: as in the tracks table.
        label: what people call it, such as ``device``.
        lo: first start, in ns on the clock itself.
        hi: last end; exceeds ``lo`` by at least 1.
        zero: what the ruler calls 0.
    """

    clock_id: int
    label: str
    lo: int
    hi: int
    zero: int


@dataclass(frozen=True, eq=False)
class Store:
    """The events of a trace, indexed for drawing (about 24 bytes an event).

    Attributes:
        trace: where the rest of an event's columns are.
        clocks: the time axes, by position (``band``).
        track_ids: track id of each track position, ascending.
        bands: clock position of each track.
        offsets: events of track k are ``offsets[k]:offsets[k + 1]``.
        key: rebased start of each event + track * stride.
        stride: see the module; 0 when searches go track by track.
        cum: union of the busy time before each event, over all tracks, modulo 2^64; one longer than the events.
        reach: running maximum of the ends, in the terms of ``key``; None when nothing overlaps.
        durations: duration of each event; None when nothing overlaps.
        labels: index into ``names`` and ``categories`` of each event.
        names: names, as recorded (not yet fit for a terminal).
        categories: category of each label.
        rows: row of each event in ``trace.events``; None when they are in this order already.
        block_max: longest duration of each full block of events.
        block_at: its position within the block.
        open_events: events without an end, drawn to the end of their clock.
        overlaps: events that start before an earlier one of their track has ended.
        dangling: events of tracks that are not in the tracks table (not drawn).
    """

    trace: Trace
    clocks: tuple[Clock, ...]
    track_ids: Int
    bands: Int
    offsets: Int
    key: Int
    stride: int
    cum: Int
    reach: Int | None
    durations: Int | None
    labels: NDArray[np.int32]
    names: tuple[str, ...]
    categories: tuple[str, ...]
    rows: NDArray[np.uint32] | Int | None
    block_max: Int
    block_at: NDArray[np.uint8]
    open_events: int
    overlaps: int
    dangling: int

    @property
    def event_count(self) -> int:
        """Events that can be drawn."""
        return len(self.key)

    @property
    def nbytes(self) -> int:
        """Bytes that the index holds."""
        arrays = (self.key, self.cum, self.reach, self.durations, self.labels, self.rows)
        return sum(a.nbytes for a in (*arrays, self.block_max, self.block_at) if a is not None)

    # --- one event -------------------------------------------------------------------------------------------------

    def track_of(self, event: int) -> int:
        """Track position of an event."""
        return int(np.searchsorted(self.offsets, event, "right")) - 1

    def clock_of(self, event: int) -> Clock:
        """The clock of an event's times."""
        return self.clocks[int(self.bands[self.track_of(event)])]

    def start_ns(self, event: int) -> int:
        """Start on the event's own clock."""
        track = self.track_of(event)
        return int(self.key[event]) - track * self.stride + self.clocks[int(self.bands[track])].lo

    def duration_ns(self, event: int) -> int:
        """Duration; of an open event, up to the end of its clock."""
        if self.durations is not None:
            return int(self.durations[event])
        return int(self.cum[event + 1] - self.cum[event])

    def end_ns(self, event: int) -> int:
        """End on the event's own clock."""
        return self.start_ns(event) + self.duration_ns(event)

    def name(self, event: int) -> str:
        """Name, as recorded."""
        return self.names[int(self.labels[event])]

    def category(self, event: int) -> str:
        """Category."""
        return self.categories[int(self.labels[event])]

    def row(self, event: int) -> int:
        """Row of ``trace.events``."""
        return event if self.rows is None else int(self.rows[event])

    def next_event(self, event: int, step: int = 1) -> int:
        """The event ``step`` places later on the same track (negative: earlier), or -1."""
        track, other = self.track_of(event), event + step
        return other if self.offsets[track] <= other < self.offsets[track + 1] else -1

    # --- one track -------------------------------------------------------------------------------------------------

    def starts_before(self, track: int, t_ns: int) -> int:
        """Index just after the last event of the track that starts before ``t_ns``."""
        clock = self.clocks[int(self.bands[track])]
        lo, hi = int(self.offsets[track]), int(self.offsets[track + 1])
        wanted = min(max(t_ns - clock.lo, 0), clock.hi - clock.lo + 1) + track * self.stride
        return lo + int(np.searchsorted(self.key[lo:hi], min(wanted, 2**63 - 1), "left"))

    def event_at(self, track: int, t_ns: int) -> int:
        """The event of the track that covers ``t_ns`` (or is an instant at it), or -1."""
        index = self.starts_before(track, t_ns + 1) - 1
        if index < self.offsets[track]:
            return -1
        covered = self.start_ns(index) == t_ns or self.end_ns(index) > t_ns
        return index if covered else -1

    def events_in(self, track: int, t0_ns: int, t1_ns: int) -> tuple[int, int]:
        """Range of the events that lie in or reach into [t0, t1)."""
        first, last = self.starts_before(track, t0_ns), self.starts_before(track, t1_ns)
        reaches = first > self.offsets[track] and self.end_ns(first - 1) > t0_ns
        return first - int(reaches), last

    def busy_ns(self, track: int, t0_ns: int, t1_ns: int) -> int:
        """Time of [t0, t1) during which the track has an event, exactly."""
        return self._busy_before(track, t1_ns) - self._busy_before(track, t0_ns)

    def _busy_before(self, track: int, t_ns: int) -> int:
        index, first = self.starts_before(track, t_ns), int(self.offsets[track])
        if index == first:
            return 0
        if self.reach is not None:
            clock = self.clocks[int(self.bands[track])]
            reach = int(self.reach[index - 1]) - track * self.stride + clock.lo
        else:
            reach = self.end_ns(index - 1)
        return int(self.cum[index] - self.cum[first]) - max(0, reach - t_ns)

    # --- many events -----------------------------------------------------------------------------------------------

    def durations_of(self, events: Int) -> Int:
        """Durations of the events at these indices."""
        if self.durations is not None:
            return self.durations[events]
        return self.cum[events + 1] - self.cum[events]

    def same_name(self, event: int) -> Int:
        """Indices of all events with this one's name and category."""
        return np.flatnonzero(self.labels == self.labels[event])
