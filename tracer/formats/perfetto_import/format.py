"""How is a Perfetto trace (``.pftrace``) read?

See docs/formats/perfetto-import.md. Track events and their counters are read, in two passes (perfetto_import_events.py,
perfetto_import_rows.py); packets of other data sources are counted.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.perfetto_import.events import Survey
from trnprof.tracer.formats.perfetto_import.labels import read_labels
from trnprof.tracer.formats.perfetto_import.rows import Rows
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

_WIRES: Final = {
    f.number: 0
    if f.type in (3, 4, 5, 8, 13, 14, 17, 18)
    else 1
    if f.type in (1, 6, 16)
    else 5
    if f.type in (2, 7, 15)
    else 2
    for f in pb.TracePacket.DESCRIPTOR.fields
}
_ENVELOPE: Final = tuple(
    pb.TracePacket.DESCRIPTOR.fields_by_name[name].number
    for name in ("timestamp", "trusted_packet_sequence_id", "timestamp_clock_id", "trusted_uid")
)
_MOST_PACKETS: Final = 16
_NAMES: Final = (".pftrace", ".perfetto-trace", ".perfetto", ".perfetto_trace")


def recognise(head: Head) -> int:
    """Whether a source begins with packets of a trace."""
    data, at, packets, known = head.data, 0, 0, 0
    if data[:1] != b"\x0a":
        return 0
    while at < len(data) and packets < _MOST_PACKETS:
        size, content = _varint(data, at + 1)
        if data[at] != 0x0A or content < 0:
            return 0
        seen = _known_fields(
            data, content, min(content + size, len(data)), content + size > len(data)
        )
        if seen < 0:
            return 0
        packets, known, at = packets + 1, known + seen, content + size
    if not known:
        return 0
    return 92 if head.name.endswith(_NAMES) else 90


def _known_fields(data: bytes, at: int, end: int, is_cut: bool) -> int:
    """How many fields of an envelope or of data of TracePacket a message has; -1 if it is none."""
    found = 0
    while at < end:
        key, at = _varint(data, at)
        if at < 0:
            return found if is_cut else -1
        wire, number = key & 7, key >> 3
        if not 0 < number < 1 << 29 or wire not in (0, 1, 2, 5):
            return -1
        if number in _WIRES and _WIRES[number] != wire:
            return -1
        found += number in _WIRES and (number in _ENVELOPE or number > 3 or wire == 2)
        value, after = _varint(data, at) if wire in (0, 2) else (0, at + (8 if wire == 1 else 4))
        if after < 0:
            return found if is_cut else -1
        at = after + (value if wire == 2 else 0)
    return found if at == end or is_cut else -1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    return value, -1


def read(source: Source, stage: Stage) -> None:
    """Read a Perfetto trace into a stage.

    Raises:
        ProfileError: it holds no packets.
    """
    survey = Survey(stage.audit, source.label)
    with closing(source.open()) as stream:
        timing = survey.run(stream)
    if not survey.packets:
        raise ProfileError(
            f"{source.label}: no packet of a Perfetto trace at byte 0; is it the protobuf form (.pftrace)?"
        )
    labels = None
    if survey.needs_labels:
        with closing(source.open()) as stream:
            labels = read_labels(stream, source.label)
    timing.pair(labels)
    survey.tell(timing)
    stage.facts.base_unix_ns = timing.base_unix_ns
    stage.facts.host = survey.tracks.survey(timing.tracks)
    stage.facts.is_simulation = survey.tracks.is_emulated
    rows = Rows(stage, timing, survey.tracks)
    if timing.ends_say_more:
        with closing(source.open()) as stream:
            rows.gather_ends(stream, source.label)
    with closing(source.open()) as stream:
        rows.run(stream, source.label)


FORMAT: Final = Format("perfetto-trace", "Perfetto trace (.pftrace)", recognise, read)
