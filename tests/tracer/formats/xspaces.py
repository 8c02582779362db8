"""XSpaces made and decoded with protobuf's own library, from the field numbers of XProf's public xplane.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"int64": 3, "uint64": 4, "double": 1, "string": 9, "bytes": 12, "bool": 8, "uint32": 13}
_SCHEMA = """
XStat: int64 metadata_id=1, double double_value=2, uint64 uint64_value=3, int64 int64_value=4, string str_value=5, bytes bytes_value=6, uint64 ref_value=7
XEvent: int64 metadata_id=1, int64 offset_ps=2, int64 duration_ps=3, repeated XStat stats=4, int64 num_occurrences=5
XLine: int64 id=1, string name=2, int64 timestamp_ns=3, repeated XEvent events=4, int64 duration_ps=9, int64 display_id=10, string display_name=11
XEventMetadata: int64 id=1, string name=2, bytes metadata=3, string display_name=4, repeated XStat stats=5
XStatMetadata: int64 id=1, string name=2, string description=3
EventEntry: int64 key=1, XEventMetadata value=2
StatEntry: int64 key=1, XStatMetadata value=2
XPlane: int64 id=1, string name=2, repeated XLine lines=3, repeated EventEntry event_metadata=4, repeated StatEntry stat_metadata=5, repeated XStat stats=6
XSpace: repeated XPlane planes=1, repeated string errors=2, repeated string warnings=3, repeated string hostnames=4
CoreDetails: string hostname=1, uint32 device_ordinal=2, uint32 core_num=3, uint32 local_chip_id=4, uint32 global_chip_id=5, uint32 global_core_id=6
"""


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="xspaces_test.proto", package="xspaces_test")
    file.syntax = "proto2"
    for line in _SCHEMA.strip().splitlines():
        name, fields = line.split(": ")
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            *label, kind, place = text.split()
            field_name, number = place.split("=")
            added: Any = message.field.add(
                name=field_name, number=int(number), label=3 if label else 1
            )
            added.type = _TYPES.get(kind, 11)
            if kind not in _TYPES:
                added.type_name = f".xspaces_test.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        each.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"xspaces_test.{each.name}")
        )
        for each in file.message_type
    }


MESSAGES = _messages()


@dataclass(frozen=True)
class Ref:
    """A string kept among the plane's statistics metadata."""

    text: str


@dataclass
class PlaneMaker:
    """Fills a plane; metadata get the next free id."""

    plane: Any
    ids: dict[tuple[str, str], int] = field(default_factory=dict)

    def stat_id(self, name: str) -> int:
        key = ("stat", name)
        if key not in self.ids:
            self.ids[key] = len(self.ids) + 1
            entry = self.plane.stat_metadata.add(key=self.ids[key])
            entry.value.id, entry.value.name = self.ids[key], name
        return self.ids[key]

    def put_stats(self, message: Any, stats: Mapping[str, Any]) -> None:
        for name, value in stats.items():
            stat = message.stats.add(metadata_id=self.stat_id(name))
            if isinstance(value, Ref):
                stat.ref_value = self.stat_id(value.text)
            elif isinstance(value, float):
                stat.double_value = value
            elif isinstance(value, int):
                if value >= 1 << 63:
                    stat.uint64_value = value
                else:
                    stat.int64_value = value
            elif isinstance(value, bytes):
                stat.bytes_value = value
            else:
                stat.str_value = value

    def kind(self, name: str, display_name: str = "", **stats: Any) -> int:
        """The id of event metadata."""
        key = ("event", f"{name}|{display_name}")
        if key not in self.ids:
            self.ids[key] = len(self.ids) + 1
            entry = self.plane.event_metadata.add(key=self.ids[key])
            entry.value.id, entry.value.name = self.ids[key], name
            if display_name:
                entry.value.display_name = display_name
            self.put_stats(entry.value, stats)
        return self.ids[key]

    def line(self, name: str, at_ns: int = 0, **fields: Any) -> Any:
        fields.setdefault("id", len(self.plane.lines) + 1)
        return self.plane.lines.add(name=name, timestamp_ns=at_ns, **fields)

    def event(self, line: Any, kind: int | str, at_ps: int, length_ps: int, **stats: Any) -> Any:
        number = self.kind(kind) if isinstance(kind, str) else kind
        event = line.events.add(metadata_id=number, offset_ps=at_ps, duration_ps=length_ps)
        self.put_stats(event, stats)
        return event


@dataclass
class Space:
    """A whole file."""

    message: Any = field(default_factory=MESSAGES["XSpace"])

    def plane(self, name: str, **stats: Any) -> PlaneMaker:
        maker = PlaneMaker(self.message.planes.add(name=name, id=len(self.message.planes)))
        maker.put_stats(maker.plane, stats)
        return maker

    def bytes(self) -> bytes:
        return bytes(self.message.SerializeToString())

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


Row = tuple[str, str, int, int, tuple[tuple[str, str], ...]]


def decoded(data: bytes) -> list[Row]:
    """Every event: line, name, start and end in ns, sorted statistics as (name, repr); by protobuf's library, one at a time."""
    rows: list[Row] = []
    for plane in MESSAGES["XSpace"].FromString(data).planes:
        kinds = {entry.key: entry.value for entry in plane.event_metadata}
        words = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for line in plane.lines:
            for event in line.events:
                kind = kinds[event.metadata_id]
                stats = {words[s.metadata_id]: _value(s, words) for s in event.stats}
                start = Fraction(event.offset_ps, 1000)
                end = Fraction(event.offset_ps + event.duration_ps, 1000)
                rows.append(
                    (
                        line.display_name or line.name,
                        kind.display_name or kind.name,
                        line.timestamp_ns + _nearest(start),
                        line.timestamp_ns + _nearest(end),
                        tuple(sorted((k, repr(v)) for k, v in stats.items())),
                    )
                )
    return rows


def _value(stat: Any, words: Mapping[int, str]) -> Any:
    found = [name.name for name, _ in stat.ListFields() if name.name != "metadata_id"]
    if not found:
        return None
    value = getattr(stat, found[0])
    return words[value] if found[0] == "ref_value" else value


def _nearest(number: Fraction) -> int:
    """Halves up."""
    return int((number + Fraction(1, 2)).__floor__())
