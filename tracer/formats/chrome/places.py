"""On which track does each event lie, and what are the tracks called?

A process has no track of its own: its threads stand under the host, and its name goes before theirs where there are several. A
process is a device only where its name leaves no doubt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.chrome.phases import ROWS, Row
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.stage import Stage, Timeline

_MOST: Final = (1 << 31) - 1
_GPU: Final = re.compile(r"(?:\d+ )?GPU ?(\d{1,6})")
COPIES: Final = "COPY"
_ROCPROF: Final = re.compile(r"(?:\d+ )?(CPU H(IP|SA) API|Markers and Ranges|CPU KFD API)")
_BY_CATEGORY: Final = (Row.ASYNC, Row.OBJECTS)
_NAMES: Final = ("process_name", "thread_name", "process_labels")
_ORDERS: Final = ("process_sort_index", "thread_sort_index")


@dataclass(frozen=True)
class Track:
    """A row of a process.

    Attributes:
        timeline: its number.
        row: what lies on it (``Row`` or a dialect's own number).
        process: text of the process id, None if events have none.
        thread: text of the thread id; the category of async events and objects.
    """

    timeline: int
    row: int
    process: str | None
    thread: str | None


@dataclass
class Places:
    """Rows met so far.

    Attributes:
        stage: has the timelines.
        tracks: in order of first appearance; a track's number is that of its timeline.
        names: (kind of name, process, thread) → name.
        orders: likewise, sort indices.
    """

    stage: Stage
    tracks: list[Track] = field(default_factory=list)
    names: dict[tuple[str, str | None, str | None], str] = field(default_factory=dict)
    orders: dict[tuple[str, str | None, str | None], int] = field(default_factory=dict)
    _by_thread: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    _by_category: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    _names_read: int = 0
    _places: dict[tuple[str | None, str | None], int] = field(default_factory=dict)

    def timelines(self, block: EventBlock, row: NDArray[np.int8]) -> NDArray[np.int32]:
        """The timeline of each event; new ones are made.

        Args:
            block: events.
            row: of each.
        """
        is_categorized = np.isin(row, _BY_CATEGORY)
        if is_categorized.all():
            found, self._by_category = self._numbers(block, "cat", row, self._by_category)
            return found
        found, self._by_thread = self._numbers(
            block, "tid", np.where(is_categorized, np.int8(Row.THREAD), row), self._by_thread,
            is_left_out=is_categorized,
        )  # fmt: skip
        if is_categorized.any():
            chosen = np.flatnonzero(is_categorized)
            found[chosen], self._by_category = self._numbers(
                block.take(chosen), "cat", row[chosen], self._by_category
            )
        return found

    def place_of(self, timeline_count: int) -> NDArray[np.int32]:
        """For each timeline the place that flows mean, its process and thread; -1 for one that flows cannot mean."""
        places: dict[tuple[str | None, str | None], int] = {}
        found = np.full(timeline_count, -1, np.int32)
        for track in self.tracks:
            if track.row in (Row.THREAD, Row.WAIT) or track.row >= Row.FIRST_OF_DIALECT:
                at = (track.process, track.thread)
                found[track.timeline] = places.setdefault(at, len(places))
        self._places = places
        return found

    def place_numbers(self, known: list[tuple[str | None, str | None]]) -> NDArray[np.int32]:
        """The numbers of ``place_of`` for pairs of process and thread; -1 where no event lies."""
        return np.array([self._places.get(at, -1) for at in known] or [-1], np.int32)

    def read_names(self, block: EventBlock) -> None:
        """Remember what metadata events say of processes and threads."""
        _, known = block.keys("name", "pid", "tid", "args.name", "args.labels", "args.sort_index")
        for kind, process, thread, name, labels, order in known[self._names_read :]:
            at = (kind, process, thread if kind in ("thread_name", "thread_sort_index") else None)
            value = labels if kind == "process_labels" else name
            if kind in _NAMES and value:
                self.names[at] = " ".join(value.split())
            elif kind in _ORDERS and order and re.fullmatch(r"-?\d{1,18}", order):
                self.orders[at] = int(order)
        self._names_read = len(known)

    @property
    def is_rocprof(self) -> bool:
        """Whether the processes are those that rocprof names."""
        return any(
            kind == "process_name" and _ROCPROF.fullmatch(name)
            for (kind, _, _), name in self.names.items()
        )

    def device_of(self, process: str | None) -> int | None:
        """The number of the GPU that a process stands for by its name; -1 for rocprof's copies, None if it is none."""
        name = self.names.get(("process_name", process, None), "")
        found = _GPU.fullmatch(name)
        if found:
            return int(found[1])
        is_copies = name == COPIES or bool(re.fullmatch(r"\d+ COPY", name))
        return -1 if is_copies and self.is_rocprof else None

    def finish(self, own: Mapping[int, Timeline]) -> None:
        """Give all timelines their final names, kinds and order.

        Args:
            own: number → definition, of those that a dialect or a device defines.
        """
        processes = list(dict.fromkeys(t.process for t in self.tracks))
        is_one = sum(process is not None for process in processes) <= 1
        first = {process: place for place, process in enumerate(processes)}
        ordered = sorted(self.tracks, key=lambda track: self._key(track, first))
        for place, track in enumerate(ordered):
            self.stage.timelines[track.timeline] = own.get(track.timeline) or Timeline(
                "thread", self._name(track, is_one), sort_order=place
            )

    def prefixes(self) -> dict[str | None, str]:
        """What goes before the names of each process's counters, where there are several processes."""
        processes = {track.process for track in self.tracks} | {
            process for _, process, _ in self.names
        }
        processes.discard(None)
        return (
            {p: self._process(p) for p in processes if p is not None} if len(processes) > 1 else {}
        )

    def thread_name(self, track: Track) -> str:
        """What a thread is called, without its process."""
        name = self.names.get(("thread_name", track.process, track.thread))
        if name is None:
            thread = track.thread
            name = (
                "thread" if thread is None else f"thread {thread}" if _is_number(thread) else thread
            )
        return name

    def _name(self, track: Track, is_one: bool) -> str:
        category = track.thread or "async"
        if track.row == Row.GLOBAL:
            return "global instants"
        if track.row == Row.NO_TIME:
            return "events without a time"
        if track.row == Row.PROCESS:
            name = "process instants"
        elif track.row == Row.ASYNC:
            name = f"{category} (async)" if track.thread else "async"
        elif track.row == Row.OBJECTS:
            name = f"{category} (objects)" if track.thread else "objects"
        else:
            name = self.thread_name(track)
        if is_one or track.process is None:
            return name
        return f"{self._process(track.process)}: {name}"

    def _process(self, process: str) -> str:
        name = self.names.get(("process_name", process, None))
        if name is None:
            return f"process {process}" if _is_number(process) else process
        return name if process in name.split() else f"{name} {process}"

    def _key(self, track: Track, first: Mapping[str | None, int]) -> tuple[int, int, int, int, int]:
        process, thread = track.process, track.thread
        own = 0
        if track.row in (Row.THREAD, Row.WAIT):
            own = self.orders.get(("thread_sort_index", process, thread), 0)
        above = self.orders.get(("process_sort_index", process, None), 0)
        return above, first[process], min(track.row, 2), own, track.timeline

    def _numbers(
        self,
        block: EventBlock,
        second: str,
        row: NDArray[np.int8],
        known_numbers: NDArray[np.int32],
        is_left_out: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        place, known = block.keys("pid", second)
        index = place * ROWS + row
        wanted = len(known) * ROWS
        if wanted > len(known_numbers):
            fresh = np.full(2 * wanted - len(known_numbers), -1, np.int32)
            known_numbers = np.concatenate([known_numbers, fresh])
        found = known_numbers[index]
        is_new = found < 0
        if is_left_out is not None:
            is_new &= ~is_left_out
        if is_new.any():
            values, at = np.unique(index[is_new], return_index=True)
            for code in values[np.argsort(at)].tolist():
                process, thread = known[code // ROWS]
                known_numbers[code] = self._add(code % ROWS, process, thread)
            found = known_numbers[index]
        return found, known_numbers

    def _add(self, row: int, process: str | None, thread: str | None) -> int:
        if row in (Row.PROCESS, Row.GLOBAL, Row.NO_TIME):
            thread = None
        if row in (Row.GLOBAL, Row.NO_TIME):
            process = None
        before = len(self.stage.timelines)
        number = self.stage.timeline((row, process, thread), Timeline("thread", ""))
        if number == before:
            self.tracks.append(Track(number, row, process, thread))
        return number


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def sort_place(number: int) -> int:
    """A number as a sort order."""
    return max(0, min(number, _MOST))
