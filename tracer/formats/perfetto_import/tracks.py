"""On which timeline of the trace does each track of a Perfetto file belong?

Tracks that Perfetto would merge into one group of rows (siblings of one name or merge key) become one timeline: its lanes are found anew.
Tracks named like the hardware that trnprof knows (``chip 0 ▸ core 1 ▸ Tensor``, as its own export names them) are that hardware.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.perfetto_export.tracks import EMULATED
from trnprof.tracer.formats.perfetto_import.heads import BY_SEQUENCE, BY_UUID
from trnprof.tracer.formats.perfetto_import.packets import text
from trnprof.tracer.ingest.stage import Stage, Timeline

_MERGE: Final = pb.TrackDescriptor.SiblingMergeBehavior
_UNITS: Final = {
    pb.CounterDescriptor.UNIT_SIZE_BYTES: "B",
    pb.CounterDescriptor.UNIT_TIME_NS: "ns",
    pb.CounterDescriptor.UNIT_COUNT: "1",
}
_CHIP: Final = re.compile(
    r"(?:chip|GPU|TPU|NPU|Neuron device|MTIA) (\d{1,6})(?: \(.{1,100}\))?(?: ×\d+)?"
)
_CORE: Final = re.compile(r"(?:core|NeuronCore) (\d{1,6})(?: ×\d+)?")
_DMA: Final = re.compile(r"DMA\b|\bcopies\b|\bq\d+$", re.IGNORECASE)
_STREAM: Final = re.compile(r"stream\b", re.IGNORECASE)
_MODULE: Final = re.compile(r"module|scope|source|steps?\b|HBM$|\(annotations\)$", re.IGNORECASE)
_BESIDE: Final = re.compile(
    r"\((?:synchronization|barriers|waits|profiler overhead|without a time)\)$"
)
"""What importers call the rows of a device on which it does not work."""
_MAX_DEPTH: Final = 64

Track = tuple[int, ...]
"""What a track is known by: BY_UUID, BY_SEQUENCE or BY_ID (…), and uuid, dense number of the sequence, or id with the hash of a name."""


@dataclass
class Described:
    """What descriptors say of a track; later ones add to earlier ones."""

    name: str = ""
    parent: int = 0
    process: tuple[int, str] | None = None
    thread: tuple[int, int, str] | None = None
    is_counter: bool = False
    unit: str = ""
    multiplier: int = 1
    is_incremental: bool = False
    order: int | None = None
    merge: int = 0
    merge_key: str = ""
    place: int = 0


@dataclass(frozen=True)
class _Placed:
    """A timeline (None: the host itself) and what it stands in."""

    number: int | None
    kind: str
    chip: int | None
    core: int | None
    rank: int | None


class Tracks:
    """All tracks of a file, and the timelines they become.

    Attributes:
        is_emulated: trnprof's export says that no such hardware ran.
    """

    def __init__(self) -> None:
        self.is_emulated = False
        self._by_uuid: dict[int, Described] = {}
        self._of_sequence: dict[int, Described] = {}
        self._process_names: dict[int, str] = {}
        self._placed: dict[int, _Placed] = {}
        self._cores: set[tuple[int, int]] = set()
        self._hosts: set[int] = set()

    def describe(self, message: Any) -> None:
        """Take a TrackDescriptor."""
        track = self._by_uuid.setdefault(int(message.uuid), Described(place=len(self._by_uuid)))
        name = text(message.name or message.static_name or message.atrace_name)
        track.name = name or track.name
        self.is_emulated |= text(message.description).endswith(EMULATED)
        if message.HasField("parent_uuid"):
            track.parent = int(message.parent_uuid)
        if message.HasField("process"):
            process = message.process
            name = text(process.process_name) or " ".join(map(text, process.cmdline))
            track.process = (int(process.pid), name or (track.process or (0, ""))[1])
            self._process_names.setdefault(int(process.pid), "")
            self._process_names[int(process.pid)] = name or self._process_names[int(process.pid)]
        if message.HasField("thread"):
            thread = message.thread
            name = text(thread.thread_name) or (track.thread or (0, 0, ""))[2]
            track.thread = (int(thread.pid), int(thread.tid), name)
        if message.HasField("counter"):
            _describe_counter(track, message.counter)
        if message.HasField("sibling_order_rank"):
            track.order = int(message.sibling_order_rank)
        if message.HasField("sibling_merge_behavior"):
            track.merge = int(message.sibling_merge_behavior)
        if message.HasField("sibling_merge_key"):
            track.merge_key = text(message.sibling_merge_key)
        elif message.HasField("sibling_merge_key_int"):
            track.merge_key = str(message.sibling_merge_key_int)

    def describe_sequence(self, sequence: int, message: Any) -> None:
        """Take the older ThreadDescriptor, which is of the sequence that it stands on."""
        name = text(message.thread_name)
        self._of_sequence[sequence] = Described(thread=(int(message.pid), int(message.tid), name))

    def described(self, track: Track) -> Described:
        """What is known of a track."""
        kind, key = track[:2]
        known = (
            self._by_uuid if kind == BY_UUID else self._of_sequence if kind == BY_SEQUENCE else {}
        )
        return known.get(key, Described())

    def is_steps(self, track: Track) -> bool:
        """Whether trnprof's own export wrote steps on it."""
        return track[0] == BY_UUID and self.described(track).name.startswith("steps")

    def survey(self, used: Iterable[Track]) -> str:
        """Look at all tracks before the first is placed: those that chips stand under are hosts, several cores are ranks.

        Args:
            used: tracks that have events.

        Returns:
            The host's name, empty if there is none or more than one.
        """
        self._hosts = {t.parent for t in self._by_uuid.values() if _CHIP.fullmatch(t.name)} - {0}
        for kind, uuid in (t[:2] for t in used):
            if kind == BY_UUID:
                self._hosts.discard(uuid)
            for each in self._chain(uuid) if kind == BY_UUID else ():
                if _CORE.fullmatch(self._by_uuid[each].name):
                    chips = [_CHIP.fullmatch(self._by_uuid[u].name) for u in self._chain(each)]
                    self._cores.add((next((int(m[1]) for m in chips if m), 0), each))
        names = {self._by_uuid[u].name for u in self._hosts if u in self._by_uuid}
        return names.pop() if len(names) == 1 else ""

    def timeline(self, stage: Stage, track: Track, first_name: str = "") -> int:
        """The timeline of a track that has events.

        Args:
            stage: gets the timeline, and those it stands under.
            track: the track.
            first_name: name of its first event, for tracks that have none.
        """
        kind, key = track[:2]
        if kind == BY_UUID and key in self._by_uuid:
            number = self._place(stage, key).number
            if number is not None:
                return number
        known = self.described(track)
        if known.thread is not None:
            return self._thread(stage, known, None)
        if kind == BY_SEQUENCE or (kind == BY_UUID and key == 0):
            name = f"sequence {key}" if kind == BY_SEQUENCE else "default track"
        else:
            name = first_name or f"track {key}"
        where: Hashable = (kind, name) if first_name and kind != BY_SEQUENCE else track
        return stage.timeline(("undescribed", where), Timeline("thread", name))

    def counter_timeline(self, stage: Stage, track: Track) -> int:
        """The timeline of a counter track."""
        known = self.described(track)
        parent = None
        if track[0] == BY_UUID and track[1] in self._by_uuid:
            parent = self._place(stage, track[1]).number
            if known.is_counter and parent is not None:
                return parent
        name = known.name or f"counter {track[1]}"
        return stage.timeline(("counter", track), Timeline("counter", name, parent, unit="1"))

    def _chain(self, uuid: int) -> list[int]:
        """A track and those it stands under; a circle is cut."""
        chain: list[int] = []
        while uuid in self._by_uuid and uuid not in chain and len(chain) < _MAX_DEPTH:
            chain.append(uuid)
            uuid = self._by_uuid[uuid].parent
            if uuid == 0:
                break
        return chain

    def _place(self, stage: Stage, uuid: int) -> _Placed:
        above: _Placed | None = None
        for each in reversed(self._chain(uuid)):
            if each not in self._placed:
                self._placed[each] = self._placed_under(stage, each, above)
            above = self._placed[each]
        assert above is not None
        return above

    def _placed_under(self, stage: Stage, uuid: int, above: _Placed | None) -> _Placed:
        track = self._by_uuid[uuid]
        if track.thread is not None and not track.is_counter:
            number = self._thread(stage, track, None if above is None else above.number)
            return _Placed(number, "thread", None, None, None)
        if track.process is not None and not track.is_counter:
            number = self._process(stage, track.process[0], track.order)
            return _Placed(number, "thread", None, None, None)
        if uuid in self._hosts and (above is None or above.kind in ("thread", "module")):
            return _Placed(None, "host", None, None, None)
        kind, chip, core = self._hardware(track, above)
        rank = above.rank if above is not None else None
        if kind == "core" and len(self._cores) > 1:
            rank = (
                sorted(self._cores).index((chip or 0, uuid))
                if (chip or 0, uuid) in self._cores
                else rank
            )
        parent = None if above is None else above.number
        name = re.sub(r" ×\d+$", "", track.name) if kind in ("chip", "core") else track.name
        number = stage.timeline(
            self._key(uuid, track, parent, kind),
            Timeline(
                kind,
                name or f"track {uuid}",
                parent,
                _order(track),
                kind in ("engine", "stream"),
                rank=rank,
                chip=chip,
                core=core,
                unit=(track.unit or "1") if track.is_counter else None,
            ),
        )
        return _Placed(number, kind, chip, core, rank)

    def _hardware(
        self, track: Described, above: _Placed | None
    ) -> tuple[str, int | None, int | None]:
        """Kind, chip and core of a track that is neither a process nor a thread."""
        inside = above.kind if above is not None else ""
        chip = above.chip if above is not None else None
        core = above.core if above is not None else None
        if track.is_counter:
            return "counter", chip, core
        match = _CHIP.fullmatch(track.name)
        if match and inside in ("", "host", "module", "thread"):
            return "chip", int(match[1]), None
        match = _CORE.fullmatch(track.name)
        if match and inside == "chip":
            return "core", chip, int(match[1])
        if inside not in ("chip", "core"):
            return "thread", None, None
        if _BESIDE.search(track.name):
            kind = "thread"
        elif _MODULE.search(track.name):
            kind = "hbm" if track.name == "HBM" else "module"
        elif _DMA.search(track.name):
            kind = "dma_queue"
        elif "ollective" in track.name:
            kind = "collective_stream"
        elif _STREAM.search(track.name):
            kind = "stream"
        else:
            kind = "engine" if inside == "core" else "module"
        return kind, chip, core

    def _key(self, uuid: int, track: Described, parent: int | None, kind: str) -> Hashable:
        """Equal for tracks that are drawn as one."""
        if track.merge == _MERGE.SIBLING_MERGE_BEHAVIOR_NONE or track.is_counter or not track.name:
            return ("track", uuid)
        if track.merge == _MERGE.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY:
            return ("merged", parent, kind, track.merge_key)
        return ("named", parent, kind, track.name)

    def _process(self, stage: Stage, pid: int, order: int | None) -> int:
        name = self._process_names.get(pid, "")
        return stage.timeline(
            ("process", pid), Timeline("thread", f"{name} {pid}".strip(), None, order or 0)
        )

    def _thread(self, stage: Stage, track: Described, above: int | None) -> int:
        assert track.thread is not None
        pid, tid, name = track.thread
        parent = above
        if parent is None and pid in self._process_names:
            parent = self._process(stage, pid, None)
        label = f"{name or track.name} {tid}".strip()
        return stage.timeline(
            ("thread", pid, tid), Timeline("thread", label, parent, _order(track))
        )


def _order(track: Described) -> int:
    return max(min(track.order if track.order is not None else track.place, 2**31 - 1), -(2**31))


def _describe_counter(track: Described, message: Any) -> None:
    track.is_counter = True
    if message.unit_name:
        track.unit = text(message.unit_name)
    elif message.HasField("unit"):
        track.unit = _UNITS.get(message.unit, "1")
    elif message.type == pb.CounterDescriptor.COUNTER_THREAD_TIME_NS:
        track.unit = "ns"
    if message.HasField("unit_multiplier"):
        track.multiplier = int(message.unit_multiplier)
    if message.HasField("is_incremental"):
        track.is_incremental = bool(message.is_incremental)
