"""Which events does a Perfetto file hold, when and on which track?

The first of two passes over the file: nothing but what places each event is kept, 45 bytes an event.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.perfetto_import.blocks import PlacedBlock, counted, placed_blocks
from trnprof.tracer.formats.perfetto_import.clocks import Clocks, trace_times
from trnprof.tracer.formats.perfetto_import.heads import (
    BY_ID,
    BY_SEQUENCE,
    COMPLETE,
    END,
    NONE,
    Heads,
)
from trnprof.tracer.formats.perfetto_import.state import STATELESS, Sequences
from trnprof.tracer.formats.perfetto_import.timing import Timing
from trnprof.tracer.formats.perfetto_import.tracks import Track, Tracks
from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import ByteStream

_PACKET_FIELDS: Final = {f.number: f.name for f in pb.TracePacket.DESCRIPTOR.fields}
_NOT_DATA: Final = (
    "trace_config",
    "trace_uuid",
    "synchronization_marker",
    "service_event",
    "system_info",
    "extension_descriptor",
    "ui_state",
    "chrome_metadata",
    "clone_snapshot_trigger",
    "trigger",
    "protolog_viewer_config",
)
"""Packets that say something of the recording, not of what was recorded."""
_LOSSES: Final = (
    ("chunks_overwritten", "chunks that the ring buffer overwrote"),
    ("chunks_discarded", "chunks that were discarded"),
    ("trace_writer_packet_loss", "packets that a writer lost"),
    ("patches_failed", "patches of packets that failed"),
    ("abi_violations", "malformed chunks"),
)


@dataclass
class _Gathered:
    """What the first pass gathers, a part a block."""

    kind: list[NDArray[np.int8]] = field(default_factory=list)
    clock: list[NDArray[np.int32]] = field(default_factory=list)
    value: list[Ints] = field(default_factory=list)
    track: list[NDArray[np.int32]] = field(default_factory=list)
    has_time: list[NDArray[np.bool_]] = field(default_factory=list)
    complete: list[Ints] = field(default_factory=list)
    duration: list[Ints] = field(default_factory=list)
    events: int = 0


class Survey:
    """The first pass.

    Attributes:
        packets: how many there are.
        tracks: what is known of them.
        needs_labels: names and categories decide which BEGIN an END ends, or which track an event is on.
    """

    def __init__(self, audit: Audit, label: str) -> None:
        self._audit = audit
        self._label = label
        self._gathered = _Gathered()
        self._codes: dict[Track, int] = {}
        self._fates: Counter[int] = Counter()
        self._others: Counter[int] = Counter()
        self._phases: Counter[int] = Counter()
        self._clocks_used: Counter[int] = Counter()
        self._damaged = 0
        self._telling_ends = False
        self.needs_labels = False
        self.tracks = Tracks()
        self.clocks = Clocks()
        self.sequences = Sequences(label)
        self.packets = 0

    def run(self, stream: ByteStream) -> Timing:
        """Read the file once; its slices are still to be paired."""
        for each in placed_blocks(stream, self._audit, self._label, self.sequences, self.clocks):
            self._messages(each)
            self._events(each)
            envelopes = each.block.envelopes
            self.packets += len(envelopes.data)
            self._fates.update(_counts(each.placed.fate))
            self._others.update(_counts(envelopes.data))
        return self._timing()

    def _messages(self, each: PlacedBlock) -> None:
        for packet, message in each.messages:
            if message.HasField("track_descriptor"):
                self.tracks.describe(message.track_descriptor)
            elif message.HasField("thread_descriptor"):
                sequence = int(each.placed.sequence[packet])
                self.tracks.describe_sequence(sequence, message.thread_descriptor)
            elif message.HasField("trace_stats"):
                self._losses(message.trace_stats)

    def _losses(self, stats: Any) -> None:
        for name, what in _LOSSES:
            count = sum(int(getattr(buffer, name)) for buffer in stats.buffer_stats)
            self._audit.add(
                "lost_packets",
                "error",
                f"{self._label}, {name}",
                f"the tracing service counted {what}: events are missing",
                unreliable="totals, and slices that never end or never begin",
                count=count,
            )
        for name in ("chunks_discarded", "invalid_packets", "patches_discarded"):
            self._audit.add(
                "lost_packets",
                "error",
                f"{self._label}, service {name}",
                f"the tracing service counted {name.replace('_', ' ')}: events are missing",
                unreliable="totals",
                count=int(getattr(stats, name)),
            )

    def _events(self, each: PlacedBlock) -> None:
        heads, placed, chosen = each.heads, each.placed, each.chosen
        self._damaged += int(heads.is_damaged.sum())
        other = (heads.kind == NONE) & ~heads.is_damaged
        self._phases.update(_counts(heads.phase[other]))
        self._telling_ends |= bool((heads.says_more & (heads.kind == END)).any())
        self.needs_labels |= bool((heads.has_label & (heads.kind == END)).any())
        self.needs_labels |= bool((heads.track_kind >= BY_ID).any())
        kept = counted(heads)
        gathered, packets = self._gathered, chosen[kept]
        gathered.kind.append(heads.kind[kept])
        gathered.clock.append(placed.clock[packets].astype(np.int32))
        self._clocks_used.update(_counts(gathered.clock[-1]))
        gathered.value.append(placed.value_ns[packets])
        gathered.has_time.append(each.block.envelopes.has_timestamp[packets])
        complete = np.flatnonzero(heads.kind[kept] == COMPLETE)
        gathered.complete.append(gathered.events + complete)
        gathered.events += len(packets)
        lasted = np.clip(heads.duration_us[kept][complete], -(2**52), 2**52) * 1000
        gathered.duration.append(lasted)
        gathered.track.append(self._track_codes(heads, placed.sequence[packets], kept))

    def _track_codes(
        self, heads: Heads, sequence: Ints, kept: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        kind, key = heads.track_kind[kept], heads.track[kept].copy()
        by_sequence = kind == BY_SEQUENCE
        key[by_sequence] = sequence[by_sequence].astype(np.uint64)
        codes = np.zeros(len(key), np.int32)
        for each in np.unique(kind).tolist():
            mine = kind == each
            distinct, index = np.unique(key[mine], return_inverse=True)
            known = [self._codes.setdefault((each, k), len(self._codes)) for k in distinct.tolist()]
            codes[mine] = np.array(known, np.int32)[index]
        return codes

    def _timing(self) -> Timing:
        gathered = self._gathered
        kind = _joined(gathered.kind, np.int8)
        clock, times = _joined(gathered.clock, np.int32), _joined(gathered.value, np.int64)
        has_time, track = _joined(gathered.has_time, np.bool_), _joined(gathered.track, np.int32)
        complete, lasted = (_joined(g, np.int64) for g in (gathered.complete, gathered.duration))
        known, target = trace_times(self.clocks, clock, times, self._clocks_used)
        del clock
        self._audit.add(
            "unknown_clock",
            "error",
            self._label,
            "events are on clocks that no snapshot relates to the clock of the trace; they were left out",
            unreliable="totals",
            count=int((has_time & ~known).sum()),
        )
        return Timing(
            kind,
            times,
            has_time & known,
            complete,
            lasted,
            track,
            list(self._codes),
            np.zeros(0, np.int64),
            self._telling_ends,
            self.clocks.unix_offset_ns(target),
        )

    def tell(self, timing: Timing) -> None:
        """Put into the audit what is doubtful, once slices are paired."""
        add, label = self._audit.add, self._label
        loss = "totals, and slices that never end or never begin"
        add(
            "lost_packets", "error", f"{label}, previous_packet_dropped",
            "packets say that packets before them were lost", unreliable=loss, count=self.sequences.lost,
        )  # fmt: skip
        add(
            "stateless_packets", "error", label,
            "packets need names and defaults that were lost before them; they were left out, as the trace processor does",
            unreliable="totals", count=self._fates[STATELESS],
        )  # fmt: skip
        damaged = self._damaged
        add(
            "malformed_packets", "error", f"{label}, track events",
            "track events whose bytes are damaged were left out", unreliable="totals", count=damaged,
        )  # fmt: skip
        add(
            "missing_time", "error", label,
            "track events without a timestamp (the form of traces before 2021) were left out",
            unreliable="totals", count=int((~timing.is_timed).sum()),
        )  # fmt: skip
        orphans = timing.is_timed & (timing.kind == END) & (timing.partner < 0)
        add(
            "unmatched_ends", "warning", label,
            "ends of slices that never began were left out", unreliable="the start of the trace",
            count=int(orphans.sum()),
        )  # fmt: skip
        self._not_imported()

    def _not_imported(self) -> None:
        for phase, count in sorted(self._phases.items()):
            self._audit.add(
                "unknown_phase", "warning", f"{self._label}, {_phase_name(phase)}",
                "track events of a kind that is not imported were left out",
                unreliable="totals", count=count,
            )  # fmt: skip
        for number, count in sorted(self._others.items()):
            name = _PACKET_FIELDS.get(number, f"field {number}")
            if number and name not in _NOT_DATA:
                self._audit.add(
                    "not_imported", "note", f"{self._label}, {name}",
                    f"packets of kind {name} are not imported: only track events and their counters are",
                    count=count,
                )  # fmt: skip


def _phase_name(phase: int) -> str:
    if phase > 0:
        return f"legacy phase {chr(phase)!r}" if 32 < phase < 127 else f"legacy phase {phase}"
    types = {-number: str(name) for name, number in pb.TrackEvent.Type.items()}
    return types.get(phase, f"type {-phase}")


def _counts(values: NDArray[Any]) -> dict[int, int]:
    distinct, counts = np.unique(values, return_counts=True)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def _joined(parts: list[Any], type_: Any) -> Any:
    """All parts as one array; each is released once it is copied."""
    out, at = np.empty(sum(map(len, parts)), type_), 0
    for index, part in enumerate(parts):
        out[at : at + len(part)] = part
        at += len(part)
        parts[index] = None
    return out
