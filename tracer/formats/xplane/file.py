"""Where in an XSpace file do its planes, lines and events lie, and what are they called?

Names stand behind the events that use them, so a file is gone through twice: first all that is not an event (this module), then the events,
line by line (xplane_decode.py). Hostile or damaged lengths end a message where its bytes end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.protobuf_wire import (
    LENGTH,
    Bytes,
    Field,
    Ints,
    WireFile,
    read_field,
)
from trnprof.tracer.formats.xplane.proto import (
    EVENT_METADATA,
    STAT_METADATA,
    XLINE,
    XPLANE,
    XSPACE,
    XSTAT,
    number,
)
from trnprof.tracer.ingest.audit import Audit

CHUNK_BYTES: Final = 4 << 20
_MAX_ENTRY_BYTES: Final = 64 << 20
"""A metadata entry beyond this (a serialised program) is passed over."""
_MAX_HEADER_BYTES: Final = 1 << 16
_MAX_HEADER_FIELDS: Final = 64
_EVENTS: Final = number(XLINE, "events")

Value = int | float | str | bytes


@dataclass
class Line:
    """A timeline of a plane: its events are fields of the bytes ``start`` to ``end`` of the file."""

    start: int
    end: int
    id: int = 0
    name: str = ""
    display_name: str = ""
    timestamp_ns: int = 0
    events: int = 0


@dataclass(frozen=True)
class EventMetadata:
    """What all events of one metadata id share."""

    name: str
    display_name: str
    stats: dict[str, Value]


@dataclass
class Plane:
    """A plane: a device, the threads of a host, or facts only.

    Attributes:
        name: such as ``/device:TPU:0``.
        stats: of the plane itself.
        lines: in file order.
        words: names of statistics, which also hold the strings that events refer to, by id.
        metadata: of events, by id.
        metadata_entries: how many there were, those of planes without events included, which are not kept.
    """

    name: str = ""
    stats: dict[str, Value] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    words: dict[int, str] = field(default_factory=dict)
    metadata: dict[int, EventMetadata] = field(default_factory=dict)
    metadata_entries: int = 0


@dataclass
class Space:
    """All planes of a file, and what it says of itself."""

    planes: list[Plane] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hostnames: list[str] = field(default_factory=list)


def read_space(file: WireFile, audit: Audit, label: str) -> Space:
    """All of a file but its events; damage is a finding, and what lies whole before it is kept."""
    space = Space()
    texts = {number(XSPACE, name): name for name in ("errors", "warnings", "hostnames")}
    for found in _walk(file, 0, file.size, audit, label):
        if found.wire != LENGTH:
            continue
        if found.number == number(XSPACE, "planes"):
            space.planes.append(_plane(file, found, audit, label))
        elif found.number in texts and found.end - found.start <= _MAX_HEADER_BYTES:
            text = file.read(found.start, found.end).decode("utf-8", "replace")
            getattr(space, texts[found.number]).append(text)
    return space


def stat_value(stat: Any, words: dict[int, str]) -> Value | None:
    """The value of an XStat message."""
    for name in ("double_value", "uint64_value", "int64_value", "bytes_value"):
        if stat.HasField(name):
            value: Value = getattr(stat, name)
            return value
    if stat.HasField("str_value"):
        return str(stat.str_value.decode("utf-8", "replace"))
    if stat.HasField("ref_value"):
        return words.get(stat.ref_value, f"string {stat.ref_value}")
    return stat.compressed_str_value if stat.HasField("compressed_str_value") else None


def _walk(file: WireFile, start: int, end: int, audit: Audit, label: str) -> Iterator[Field]:
    """The fields of a message; where its bytes are damaged or end early, that is a finding."""
    for found in file.fields(start, end):
        stopped = file.stopped_at
        if found.is_cut:
            _cut(file, found, audit, label)
        yield found
        file.stopped_at = stopped
    if file.stopped_at is not None:
        at, file.stopped_at = file.stopped_at, None
        kind = "truncated" if end >= file.size and file.size - at < 20 else "malformed_protobuf"
        audit.add(
            kind,
            "error",
            label,
            f"the bytes from {at:,} to {end:,} are not a protobuf message; what lies before and after was read",
            unreliable="everything that stood there",
            example=f"byte {at:,}",
        )


def _cut(file: WireFile, found: Field, audit: Audit, label: str) -> None:
    if found.end >= file.size:
        audit.add(
            "truncated",
            "error",
            label,
            f"the file ends at byte {file.size:,}, inside a message that begins at byte {found.start:,}; what lies whole before it was read",
            unreliable="the end of the profile, and names, which stand behind the events of a plane",
            example=f"byte {found.start:,}",
        )
    else:
        audit.add(
            "malformed_protobuf",
            "error",
            label,
            "a message claims more bytes than the one it lies in; it was read as far as that one goes",
            unreliable="everything that stood there",
            example=f"byte {found.start:,}",
        )


def _plane(file: WireFile, place: Field, audit: Audit, label: str) -> Plane:
    plane = Plane()
    entries: list[Any] = []
    stats: list[Any] = []
    for found in _walk(file, place.start, place.end, audit, label):
        size = found.end - found.start
        if found.wire != LENGTH:
            continue
        if found.number == number(XPLANE, "lines"):
            plane.lines.append(_line(file, found, audit, label))
        elif found.number == number(XPLANE, "name") and size <= _MAX_HEADER_BYTES:
            plane.name = file.read(found.start, found.end).decode("utf-8", "replace")
        elif size > _MAX_ENTRY_BYTES or found.is_cut:
            continue
        elif found.number == number(XPLANE, "stat_metadata"):
            entry = _parsed(STAT_METADATA, file, found, audit, label)
            if entry is not None:
                plane.words[entry.key or entry.value.id] = entry.value.name.decode(
                    "utf-8", "replace"
                )
        elif found.number == number(XPLANE, "stats"):
            stats.append(_parsed(XSTAT, file, found, audit, label))
        elif found.number == number(XPLANE, "event_metadata"):
            plane.metadata_entries += 1
            if any(line.events for line in plane.lines):
                entries.append(_parsed(EVENT_METADATA, file, found, audit, label))
    plane.stats = _stats([s for s in stats if s is not None], plane.words)
    for entry in entries:
        if entry is not None:
            plane.metadata[entry.key or entry.value.id] = _metadata(entry.value, plane.words)
    return plane


def _parsed(message: Any, file: WireFile, found: Field, audit: Audit, label: str) -> Any:
    try:
        return message.FromString(file.read(found.start, found.end))
    except DecodeError:
        audit.add(
            "malformed_protobuf",
            "error",
            label,
            "messages that hold names or statistics are damaged; they were left out",
            unreliable="names and statistics of some events",
            example=f"byte {found.start:,}",
        )
        return None


def _stats(stats: list[Any], words: dict[int, str]) -> dict[str, Value]:
    named = (
        (words.get(s.metadata_id, f"stat {s.metadata_id}"), stat_value(s, words)) for s in stats
    )
    return {name: value for name, value in named if value is not None}


def _metadata(message: Any, words: dict[int, str]) -> EventMetadata:
    return EventMetadata(
        message.name.decode("utf-8", "replace"),
        message.display_name.decode("utf-8", "replace"),
        _stats(message.stats, words),
    )


def _line(file: WireFile, place: Field, audit: Audit, label: str) -> Line:
    """Everything of a line but its events, which are only counted."""
    line = Line(place.start, place.end)
    at = place.start
    others = np.zeros(_MAX_HEADER_FIELDS, np.int64)
    while at < place.end:
        chunk = file.array(at, min(at + CHUNK_BYTES, place.end))
        passed, events, headers = _pass_fields(chunk, _EVENTS, others)
        line.events += events
        for position in others[:headers].tolist():
            _header(file, line, next(file.fields(at + position, at + passed)))
        at += passed
        if not passed:
            found = next(_walk(file, at, place.end, audit, label), None)
            if found is None or found.is_cut:
                line.end = at
                break
            at = found.end
    return line


def _header(file: WireFile, line: Line, found: Field) -> None:
    text = b"" if found.end - found.start > _MAX_HEADER_BYTES else file.read(found.start, found.end)
    if found.number == number(XLINE, "id"):
        line.id = found.value
    elif found.number == number(XLINE, "timestamp_ns"):
        line.timestamp_ns = found.value - (1 << 64 if found.value >> 63 else 0)
    elif found.number == number(XLINE, "name"):
        line.name = text.decode("utf-8", "replace")
    elif found.number == number(XLINE, "display_name"):
        line.display_name = text.decode("utf-8", "replace")


@compiled
def _pass_fields(data: Bytes, events: int, others: Ints) -> tuple[int, int, int]:
    """Position of the first field that is not whole, events before it, and how many other fields; these go to ``others``."""
    at, count, found = 0, 0, 0
    while at < data.size:
        field_number, wire, _value, after = read_field(data, at, data.size)
        if after < 0:
            break
        if field_number == events and wire == LENGTH:
            count += 1
        elif found < others.size:
            others[found] = at
            found += 1
        at = after
    return at, count, found
