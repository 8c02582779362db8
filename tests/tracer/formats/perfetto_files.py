"""Perfetto files as other writers make them, in random mixtures.

Interned and written strings, defaults, incremental clocks, compressed stretches, several sequences, legacy events, flows of both forms.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

BOOTTIME, MONOTONIC, REALTIME = 6, 3, 1
INCREMENTAL = 64
CLEARED, NEEDS = 1, 2
TYPES = {"B": 1, "E": 2, "I": 3, "C": 4}


def packet(sequence: int = 1, **fields: Any) -> Any:
    return pb.TracePacket(trusted_packet_sequence_id=sequence, **fields)


def event(kind: str, uuid: int, at: int, *, sequence: int = 1, **fields: Any) -> Any:
    """A packet with an event at a time in ns."""
    message = pb.TrackEvent(type=TYPES[kind], track_uuid=uuid, **fields)
    return packet(sequence, timestamp=at, track_event=message)


def legacy(phase: str, at: int, *, sequence: int = 1, uuid: int = 0, **fields: Any) -> Any:
    """A packet with an event of the older form."""
    own = {k: fields.pop(k) for k in ("name", "categories") if k in fields}
    inner = pb.TrackEvent.LegacyEvent(phase=ord(phase), **fields)
    message = pb.TrackEvent(legacy_event=inner, **own)
    if uuid:
        message.track_uuid = uuid
    return packet(sequence, timestamp=at, track_event=message)


def track(uuid: int, name: str = "", parent: int = 0, **fields: Any) -> Any:
    descriptor = pb.TrackDescriptor(uuid=uuid, **fields)
    if name:
        descriptor.name = name
    if parent:
        descriptor.parent_uuid = parent
    return packet(track_descriptor=descriptor)


def thread(uuid: int, pid: int, tid: int, name: str, **fields: Any) -> Any:
    return track(uuid, thread=pb.ThreadDescriptor(pid=pid, tid=tid, thread_name=name), **fields)


def snapshot(sequence: int, **clocks: int) -> Any:
    """A packet that says what clocks show, by name."""
    message = pb.ClockSnapshot()
    numbers = {"boottime": BOOTTIME, "realtime": REALTIME, "monotonic": MONOTONIC}
    for name, value in clocks.items():
        message.clocks.add(clock_id=numbers[name], timestamp=value)
    return packet(sequence, clock_snapshot=message)


def compressed(packets: Sequence[Any]) -> Any:
    return pb.TracePacket(compressed_packets=zlib.compress(file_of(packets)))


def file_of(packets: Sequence[Any]) -> bytes:
    builder = TraceProtoBuilder()
    for each in packets:
        builder.add_packet().CopyFrom(each)
    return bytes(builder.serialize())


def written(path: Path, packets: Sequence[Any]) -> Path:
    path.write_bytes(file_of(packets))
    return path


class Writer:
    """A packet sequence of the SDK's kind: interned names, an incremental clock in units of 10 ns, a default track.

    Its tracks: ``base``, the default one, a counter ``base + 1``, a thread ``base + 2`` for legacy events, and two that all writers share.
    """

    def __init__(self, base: int, seed: int, shared: Sequence[int]) -> None:
        self.sequence = base + 1
        self.base = base
        self.random = random.Random(seed)
        self.tracks = [base, *shared]
        self.packets = [
            track(base, f"own {base}"),
            track(base + 1, f"deltas {base}", counter=pb.CounterDescriptor(is_incremental=True)),
            thread(base + 2, 5, base + 2, "worker"),
        ]
        self.now = 1_000_000
        self.lasting = 0
        self.open: dict[int, list[tuple[str, str]]] = {uuid: [] for uuid in self.tracks}
        self.begin()

    def begin(self) -> None:
        """The incremental state begins anew."""
        self.iids: dict[tuple[str, str], int] = {}
        first = packet(self.sequence, sequence_flags=CLEARED)
        clocks = first.clock_snapshot.clocks
        clocks.add(clock_id=BOOTTIME, timestamp=self.now)
        clocks.add(
            clock_id=INCREMENTAL,
            timestamp=self.now // 10,
            is_incremental=True,
            unit_multiplier_ns=10,
        )
        first.trace_packet_defaults.timestamp_clock_id = INCREMENTAL
        defaults = first.trace_packet_defaults.track_event_defaults
        defaults.track_uuid = self.tracks[0]
        defaults.extra_counter_track_uuids.append(self.base + 1)
        self.packets.append(first)

    def write(self) -> None:
        """One more event."""
        step = self.random.choice([0, 1, 1, 7, 1000]) + self.lasting
        self.lasting = 0
        self.now += 10 * step
        out = packet(self.sequence, timestamp=step, sequence_flags=NEEDS)
        choice = self.random.random()
        if choice < 0.1:
            self.counter(out)
        elif choice < 0.2:
            self.complete(out)
        elif choice < 0.3:
            self.asynchronous(out)
        else:
            self.slice(out, choice)
        self.packets.append(out)
        if self.random.random() < 0.02:
            self.begin()

    def counter(self, out: Any) -> None:
        event = out.track_event
        event.type = pb.TrackEvent.TYPE_COUNTER
        event.track_uuid = self.random.choice([COUNTER, SCALED, self.base + 1])
        if self.random.random() < 0.5:
            event.counter_value = self.random.randrange(-1000, 2**40)
        else:
            event.double_counter_value = self.random.uniform(-1, 1)

    def complete(self, out: Any) -> None:
        """A legacy event with a duration, over before the next begins."""
        out.track_event.track_uuid = self.base + 2
        out.track_event.legacy_event.phase = ord("X")
        length_us = self.random.choice([0, 1, 3])
        out.track_event.legacy_event.duration_us = length_us
        self.fill(out)
        self.lasting = 100 * length_us

    def asynchronous(self, out: Any) -> None:
        """Begins and ends of one id in two categories are different slices."""
        event = out.track_event
        number = self.random.randrange(1, 4)
        category = self.random.choice(["x", "y"]) if number < 3 else "x"
        event.track_uuid = self.base + 2
        event.legacy_event.unscoped_id = number
        event.category_iids.append(self.iid(out, "event_categories", category))
        event.name_iid = self.iid(out, "event_names", f"async {number}")
        phases = "bbeen" if number < 3 else "SSFFT"
        event.legacy_event.phase = ord(self.random.choice(phases))

    def slice(self, out: Any, choice: float) -> None:
        event, uuid = out.track_event, self.random.choice(self.tracks)
        if uuid != self.tracks[0] or choice < 0.5:
            event.track_uuid = uuid
        if choice < 0.4:
            event.type = pb.TrackEvent.TYPE_INSTANT
            self.fill(out)
        elif self.open[uuid] and choice < 0.7:
            event.type = pb.TrackEvent.TYPE_SLICE_END
            name, category = self.open[uuid].pop()
            if uuid == self.base and self.random.random() < 0.2:
                event.name_iid = self.iid(out, "event_names", name)
            if uuid == self.base and category and self.random.random() < 0.2:
                event.category_iids.append(self.iid(out, "event_categories", category))
            if self.random.random() < 0.2:
                event.terminating_flow_ids.append(self.random.randrange(1, 40))
            if self.random.random() < 0.1:
                event.debug_annotations.add(name="at the end", int_value=self.random.randrange(9))
        else:
            event.type = pb.TrackEvent.TYPE_SLICE_BEGIN
            self.open[uuid].append(self.fill(out))

    def fill(self, out: Any) -> tuple[str, str]:
        """Name, categories, flows, counters and annotations; its name and its category if it has just one."""
        event, pick = out.track_event, self.random
        name = pick.choice(["alpha", "beta", "γ", "d\n"])
        if pick.random() < 0.8:
            event.name_iid = self.iid(out, "event_names", name)
        else:
            event.name = name
        categories = pick.sample(["x", "y", "compute"], pick.choice([0, 1, 1, 2]))
        for category in categories:
            event.category_iids.append(self.iid(out, "event_categories", category))
        if pick.random() < 0.3:
            event.flow_ids.append(pick.randrange(1, 40))
        elif pick.random() < 0.3:
            event.legacy_event.bind_id = pick.randrange(50, 60)
            event.legacy_event.flow_direction = pick.choice([1, 2, 3])
        if pick.random() < 0.3:
            event.extra_counter_values.append(pick.randrange(1000))
        for key in pick.sample(range(100), pick.choice([0, 0, 1, 3])):
            self.annotate(out, event.debug_annotations.add(), f"k{key}")
        return name, categories[0] if len(categories) == 1 else ""

    def annotate(self, out: Any, note: Any, key: str) -> None:
        pick = self.random
        if pick.random() < 0.5:
            note.name_iid = self.iid(out, "debug_annotation_names", key)
        else:
            note.name = key
        kind = pick.randrange(8)
        if kind == 0:
            note.int_value = -pick.randrange(2**62)
        elif kind == 1:
            note.uint_value = 2**64 - 1 - pick.randrange(10)
        elif kind == 2:
            note.double_value = pick.choice([0.1, 1e300, -2.0, 5e-324])
        elif kind == 3:
            note.bool_value = pick.random() < 0.5
        elif kind == 4:
            note.string_value = pick.choice(['quote " and \\', "ümlaut", "tab\t", "x"])
        elif kind == 5:
            note.string_value_iid = self.iid(out, "debug_annotation_string_values", "interned")
        elif kind == 6:
            note.dict_entries.add(name="inner", int_value=5)
            note.dict_entries.add(name="list").array_values.add(bool_value=True)
        else:
            note.array_values.add(double_value=0.5)
            note.array_values.add(string_value="two")

    def iid(self, message: Any, table: str, text: str) -> int:
        key = (table, text)
        if key not in self.iids:
            self.iids[key] = len(self.iids) + self.random.choice([1, 1, 5_000, 2**40])
            entry = getattr(message.interned_data, table).add(iid=self.iids[key])
            if table.endswith("string_values"):
                entry.str = text.encode()
            else:
                entry.name = text
        return self.iids[key]


COUNTER, SCALED, CHILD, NAMED = 20, 21, 11, 12


def mixture(seed: int, events: int) -> list[Any]:
    """A trace of three sequences whose packets are interleaved at random, a stretch of them compressed."""
    pick = random.Random(seed)
    size = pb.CounterDescriptor.UNIT_SIZE_BYTES
    packets = [
        snapshot(1, boottime=1_000_000, realtime=1_700_000_000_000_000_000, monotonic=400_000),
        track(10, "job"),
        track(CHILD, "child", 10),
        thread(NAMED, 5, 77, "main"),
        track(COUNTER, "power", 10, counter=pb.CounterDescriptor(unit_name="W")),
        track(SCALED, "pages", counter=pb.CounterDescriptor(unit=size, unit_multiplier=4096)),
    ]
    writers = [Writer(1000 * n, 10 * seed + n, [CHILD, NAMED]) for n in (1, 2, 3)]
    for _ in range(events):
        pick.choice(writers).write()
    queues = [list(w.packets) for w in writers]
    stream = []
    while any(queues):
        stream.append(pick.choice([q for q in queues if q]).pop(0))
    half = len(stream) // 2
    return [*packets, *stream[:half], compressed(stream[half:])]
