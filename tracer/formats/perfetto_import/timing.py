"""When does each event begin and end, and which beginning belongs to which end?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.perfetto_import.heads import BEGIN, BY_ID, BY_ID_AND_NAME, END
from trnprof.tracer.formats.perfetto_import.labels import Labels
from trnprof.tracer.formats.perfetto_import.tracks import Track
from trnprof.tracer.formats.protobuf_wire import Ints

_MAX_SEARCH: Final = 512
"""Open slices that an end by name is compared with; no more lie open on one track in Perfetto either."""


@dataclass
class Timing:
    """All events of a file, by number in the order of the file.

    Attributes:
        kind: BEGIN, END, INSTANT, SAMPLE or COMPLETE.
        time_ns: on the trace's clock; known where ``is_timed``.
        complete, lasted_ns: which ones are COMPLETE, and how long each took.
        track: index into ``tracks``.
        tracks: in order of their first event.
        partner: END of a BEGIN and the other way round; -1 for none.
        ends_say_more: whether an END says something that belongs to its slice.
        base_unix_ns: Unix time of the trace clock's zero, None if unknown.
    """

    kind: NDArray[np.int8]
    time_ns: Ints
    is_timed: NDArray[np.bool_]
    complete: Ints
    lasted_ns: Ints
    track: NDArray[np.int32]
    tracks: list[Track]
    partner: Ints
    ends_say_more: bool
    base_unix_ns: int | None

    def end_ns(self, unfinished: int) -> Ints:
        """End of each event that begins something; ``unfinished`` for one that never ends."""
        ends = self.time_ns.copy()
        ends[self.complete] += self.lasted_ns
        begins = np.flatnonzero(self.kind == BEGIN)
        partner = self.partner[begins]
        ends[begins] = np.where(partner >= 0, self.time_ns[partner], unfinished)
        return ends

    def pair(self, labels: Labels | None) -> None:
        """Find the BEGIN that each END ends: the last one open on its track, of its name and categories where it says them.

        In order of time, and of the file at the same time.

        Args:
            labels: of all events; None if no END has any and no track is known by an id.
        """
        if labels is not None:
            self._split_tracks(labels)
        self.partner = np.full(len(self.kind), -1, np.int64)
        is_edge = (self.kind == BEGIN) | (self.kind == END)
        chosen = np.flatnonzero(self.is_timed & is_edge)
        order = chosen[np.lexsort((self.time_ns[chosen], self.track[chosen]))]
        none = np.zeros(0, np.uint64)
        name, category = (none, none) if labels is None else (labels.name, labels.category)
        _pair(order, self.kind, self.track, name, category, self.partner)

    def _split_tracks(self, labels: Labels) -> None:
        """Tracks known by an id are those of one id *and* category or name."""
        kinds = np.array([t[0] for t in self.tracks] or [0], np.int64)[self.track]
        rows = np.flatnonzero((kinds == BY_ID) | (kinds == BY_ID_AND_NAME))
        if not len(rows):
            return
        label = np.where(kinds[rows] == BY_ID, labels.category[rows], labels.name[rows])
        pairs = np.rec.fromarrays([self.track[rows], label])
        _, first, index = np.unique(pairs, return_index=True, return_inverse=True)
        tracks = self.track[rows[first]].tolist()
        self.tracks += [
            (*self.tracks[t], int(x)) for t, x in zip(tracks, label[first], strict=True)
        ]
        self.track[rows] = len(self.tracks) - len(first) + index


@compiled
def _pair(
    order: Ints,
    kind: NDArray[np.int8],
    track: NDArray[np.int32],
    name: NDArray[np.uint64],
    category: NDArray[np.uint64],
    partner: Ints,
) -> None:
    stack = np.empty(order.size, np.int64)
    depth, current = 0, -1
    for event in order:
        if track[event] != current:
            depth, current = 0, track[event]
        if kind[event] == BEGIN:
            stack[depth] = event
            depth += 1
            continue
        place = depth - 1
        if name.size:
            lowest = max(0, depth - _MAX_SEARCH)
            while place >= lowest and not _fits(event, stack[place], name, category):
                place -= 1
            if place < lowest:
                place = -1
        if place >= 0:
            partner[event], partner[stack[place]] = stack[place], event
            for above in range(place + 1, depth):
                stack[above - 1] = stack[above]
            depth -= 1


@compiled
def _fits(end: int, begin: int, name: NDArray[np.uint64], category: NDArray[np.uint64]) -> bool:
    """Whether an END may end a BEGIN: what both say is the same; a BEGIN without categories is ended by none that has some."""
    if name[end] and name[begin] and name[end] != name[begin]:
        return False
    return not category[end] or category[end] == category[begin]
