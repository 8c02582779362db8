"""On which track does each event of a PyTorch profile lie, and what are the tracks called?

Rows are told apart by process and thread as the profile gives them (a device is a process, its streams are threads), and by what
lies on them: a GPU and a Python thread may both be process 0, thread 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.gpu_peaks import Gpu, find_gpu, peak_rows
from trnprof.tracer.formats.kineto.kinds import LAST_EVENT, ROW, Row, is_device
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.stage import Stage, Timeline

_ROWS: Final = len(Row)
_ROW_OF_KIND: Final = np.array([int(ROW[kind]) for kind in sorted(ROW)], np.int64)
_ON_DEVICE: Final = (Row.STREAM, Row.SYNC, Row.GPU_RANGE)
_CHIPS_AFTER: Final = 1 << 24
"""Chips are sorted behind threads."""
_MOST: Final = (1 << 31) - 1
_ENDINGS: Final = {
    Row.PYTHON: " (Python)",
    Row.OVERHEAD: " (profiler overhead)",
    Row.SYNC: " (synchronization)",
    Row.GPU_RANGE: " (annotations)",
    Row.UNTIMED: " (without a time)",
}
_NAMED: Final = {
    "process_name": "args.name",
    "process_labels": "args.labels",
    "thread_name": "args.name",
}

MOST_NAMES: Final = 100_000
"""Names of processes and threads that are remembered: no profile has as many, but a file may say so."""


@dataclass(frozen=True)
class Track:
    """One row of the profile.

    Attributes:
        timeline: its number in the stage.
        row: which row of its process and thread.
        process, thread: as the profile has them.
        place: number of the two.
        device, stream: numbers in the arguments of its first event, None if there are none.
    """

    timeline: int
    row: Row
    process: str
    thread: str
    place: int
    device: int | None
    stream: int | None


@dataclass
class Places:
    """Rows met so far.

    Attributes:
        tracks: by number of timeline.
        processes: process of each place (a place is a process and thread).
        chips: process → number of its chip's timeline.
        names: (kind of name, process, thread) → name.
    """

    stage: Stage
    tracks: dict[int, Track] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)
    chips: dict[str, int] = field(default_factory=dict)
    names: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _timeline: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    _known: list[tuple[Any, ...]] = field(default_factory=list)
    _names_read: int = 0
    _names_left_out: int = 0

    def places(self, block: EventBlock) -> NDArray[np.int64]:
        """The place of each event."""
        place, known = block.keys("pid", "tid")
        self.processes += [_text(process) for process, _ in known[len(self.processes) :]]
        self._known = known
        return place

    def timelines(self, block: EventBlock, kind: NDArray[np.int8]) -> NDArray[np.int32]:
        """The timeline of each event, new ones made.

        Args:
            block: events that are staged.
            kind: of each.
        """
        place = self.places(block)
        wanted = (int(place.max(initial=0)) + 1) * _ROWS
        if wanted > len(self._timeline):
            fresh = np.full(2 * wanted - len(self._timeline), -1, np.int32)
            self._timeline = np.concatenate([self._timeline, fresh])
        index = place * _ROWS + _ROW_OF_KIND[np.minimum(kind, LAST_EVENT)]
        if (self._timeline[index] < 0).any():
            new, first = np.unique(index, return_index=True)
            is_new = self._timeline[new] < 0
            for at, event in zip(new[is_new].tolist(), first[is_new].tolist(), strict=True):
                process, thread = (_text(part) for part in self._known[at // _ROWS])
                self._timeline[at] = self._add(
                    at // _ROWS, Row(at % _ROWS), process, thread, block.take([event])
                )
        found: NDArray[np.int32] = self._timeline[index]
        return found

    def read_names(self, block: EventBlock) -> None:
        """Remember what metadata events say of processes and threads, of the first MOST_NAMES distinct ones."""
        if self._names_read >= MOST_NAMES:
            self._names_left_out += block.rows
            return
        _, known = block.keys("name", "pid", "tid", "args.name", "args.labels")
        for kind, process, thread, name, label in known[self._names_read :]:
            value = label if kind == "process_labels" else name
            if kind in _NAMED and value:
                at = thread if kind == "thread_name" else None
                self.names.setdefault((kind, _text(process), _text(at)), " ".join(value.split()))
        self._names_read = len(known)

    def of_row(self, *rows: Row) -> list[Track]:
        """The tracks that are such rows."""
        return [track for track in self.tracks.values() if track.row in rows]

    def process_of(self) -> NDArray[np.int64]:
        """Number of the process of each timeline; of a chip that of its device."""
        numbers = {process: i for i, process in enumerate(dict.fromkeys(self.processes))}
        owner = np.full(len(self.stage.timelines), -1, np.int64)
        for number, track in self.tracks.items():
            owner[number] = numbers[track.process]
        for process, number in self.chips.items():
            owner[number] = numbers[process]
        return owner

    def device_like(self) -> list[Track]:
        """Rows of threads in processes that are devices by name."""
        return [track for track in self.of_row(Row.THREAD) if self._device_label(track.process)]

    def move_to_device(self, track: Track) -> None:
        """Make a row one of a device's streams."""
        self.tracks[track.timeline] = replace(track, row=Row.STREAM)
        self._chip(track.process)

    def finish(self, properties: Mapping[int, Mapping[str, Any]]) -> dict[int, Gpu]:
        """Give all timelines their final names, order and peaks.

        Args:
            properties: number of a device → what the profile says of it.

        Returns:
            Number of each chip's timeline → its peaks.
        """
        self.stage.audit.add(
            "too_many_metadata",
            "note",
            self.stage.label,
            f"metadata events beyond the first {MOST_NAMES:,} different ones were left out",
            count=self._names_left_out,
        )
        several = len({track.process for track in self.of_row(Row.THREAD)}) > 1
        for number, track in self.tracks.items():
            if track.row in _ON_DEVICE:
                self.stage.timelines[number] = self._device_row(track)
            else:
                self.stage.timelines[number] = self._host_row(track, several)
        gpus = {}
        for process, number in self.chips.items():
            gpus[number] = self._finish_chip(process, number, properties)
        named = {self.stage.timelines[number].name: gpu for number, gpu in gpus.items()}
        if named:
            self.stage.facts.peaks = peak_rows(named)
        return gpus

    def device_of(self, process: str) -> int | None:
        """The number of the device that a process stands for."""
        numbers = [
            t.device for t in self.tracks.values() if t.process == process and t.row in _ON_DEVICE
        ]
        known = [n for n in numbers if n is not None and 0 <= n < _MOST]
        own = _number(process)
        return known[0] if known else own

    def _add(self, place: int, row: Row, process: str, thread: str, first: EventBlock) -> int:
        kind = "stream" if row == Row.STREAM else "module" if row == Row.GPU_RANGE else "thread"
        parent = self._chip(process) if row in _ON_DEVICE else None
        number = self.stage.timeline((int(row), place), Timeline(kind, thread, parent))
        device, stream = (_argument(first, name) for name in ("args.device", "args.stream"))
        self.tracks[number] = Track(number, row, process, thread, place, device, stream)
        return number

    def _chip(self, process: str) -> int:
        if process not in self.chips:
            self.chips[process] = self.stage.timeline(("chip", process), Timeline("chip", process))
        return self.chips[process]

    def _process_name(self, process: str, kind: str) -> str:
        return self.names.get((kind, process, ""), "")

    def _device_label(self, process: str) -> str:
        """What a process is called, if that is a device; else empty."""
        named = (self._process_name(process, kind) for kind in ("process_labels", "process_name"))
        return next((label for label in (*named, process) if is_device(label)), "")

    def _host_row(self, track: Track, several: bool) -> Timeline:
        name = self.names.get(("thread_name", track.process, track.thread), "")
        if not name:
            numbered = f"thread {track.thread}" if track.thread else "thread without number"
            name = track.thread if track.row == Row.SPAN and track.thread else numbered
        if several and track.row in (Row.THREAD, Row.PYTHON):
            process = self._process_name(track.process, "process_name")
            name = ": ".join(part for part in (f"{process} {track.process}".strip(), name) if part)
        ending = _ENDINGS.get(track.row, "")
        order = track.place * _ROWS + track.row
        if track.row == Row.SPAN:
            order += 2 * _CHIPS_AFTER
        return Timeline("thread", name + ending, sort_order=min(order, _MOST))

    def _device_row(self, track: Track) -> Timeline:
        stream = track.stream if track.stream is not None else _number(track.thread)
        name = f"stream {track.thread}" if track.thread.lstrip("-").isdigit() else track.thread
        given = self.names.get(("thread_name", track.process, track.thread), "")
        if given and (not given.lower().startswith("stream") or not track.thread.isdigit()):
            name = given
        ending = _ENDINGS.get(track.row, "")
        kind = {Row.STREAM: "stream", Row.SYNC: "thread", Row.GPU_RANGE: "module"}[track.row]
        label = self._process_name(track.process, "process_labels")
        return Timeline(
            kind,
            name + ending,
            self._chip(track.process),
            min(_ROWS * max(stream or 0, 0) + track.row, _MOST),
            exclusive=track.row == Row.STREAM and not label.startswith("MTIA"),
            chip=self.device_of(track.process),
        )

    def _finish_chip(
        self, process: str, number: int, properties: Mapping[int, Mapping[str, Any]]
    ) -> Gpu:
        device = self.device_of(process)
        label = self._device_label(process)
        if not label:
            label = f"GPU {process if device is None else device}"
        known = properties.get(-1 if device is None else device, {})
        model = str(known.get("name") or "").strip()
        gpu = find_gpu(
            model,
            memory_bytes=_integer(known.get("totalGlobalMem")),
            units=_integer(known.get("numSms")),
        )
        self.stage.timelines[number] = Timeline(
            "chip",
            f"{label} ({model})" if model else label,
            sort_order=_CHIPS_AFTER + min(device or 0, _CHIPS_AFTER),
            chip=device,
            peak_flops=gpu.matmul_flops_per_s,
            peak_bytes_per_s=gpu.bytes_per_s,
        )
        return gpu


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _argument(event: EventBlock, name: str) -> int | None:
    values, valid = event.integers(name)
    return int(values[0]) if valid[0] and abs(int(values[0])) < _MOST else None
