"""Perfetto files as other writers make them: interning, defaults, incremental clocks, several sequences, in random mixtures."""

from __future__ import annotations

import random
import zlib
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

BOOTTIME, MONOTONIC, REALTIME = 6, 3, 1
INCREMENTAL = 64
CLEARED, NEEDS = 1, 2


def packet(**fields: Any) -> Any:
    return pb.TracePacket(**fields)


def file_of(packets: list[Any]) -> bytes:
    return bytes(pb.Trace(packet=packets).SerializeToString())


def compressed(packets: list[Any]) -> Any:
    return pb.TracePacket(compressed_packets=zlib.compress(file_of(packets)))


def event(kind: str, uuid: int, **fields: Any) -> Any:
    types = {"B": 1, "E": 2, "I": 3, "C": 4}
    return pb.TrackEvent(type=types[kind], track_uuid=uuid, **fields)


def track(uuid: int, name: str, parent: int = 0, **fields: Any) -> Any:
    descriptor = pb.TrackDescriptor(uuid=uuid, name=name, **fields)
    if parent:
        descriptor.parent_uuid = parent
    return packet(track_descriptor=descriptor, trusted_packet_sequence_id=1)


def snapshot(sequence: int, boottime: int, **clocks: int) -> Any:
    message = pb.ClockSnapshot()
    message.clocks.add(clock_id=BOOTTIME, timestamp=boottime)
    for name, value in clocks.items():
        number = {"realtime": REALTIME, "monotonic": MONOTONIC}[name]
        message.clocks.add(clock_id=number, timestamp=value)
    return packet(clock_snapshot=message, trusted_packet_sequence_id=sequence)


class Writer:
    """A packet sequence of the SDK's kind: interned names, an incremental clock in units of 10 ns, a default track."""

    def __init__(self, sequence: int, seed: int, tracks: list[int], counters: list[int]) -> None:
        self.sequence = sequence
        self.random = random.Random(seed)
        self.tracks = tracks
        self.counters = counters
        self.packets: list[Any] = []
        self.now = 1_000_000
        self.open: dict[int, int] = {}
        self.begin()

    def begin(self) -> None:
        """The incremental state begins anew."""
        self.iids: dict[tuple[str, str], int] = {}
        first = packet(trusted_packet_sequence_id=self.sequence, sequence_flags=CLEARED)
        clocks = first.clock_snapshot.clocks
        clocks.add(clock_id=BOOTTIME, timestamp=self.now)
        clocks.add(
            clock_id=INCREMENTAL, timestamp=self.now // 10, is_incremental=True, unit_multiplier_ns=10
        )
        first.trace_packet_defaults.timestamp_clock_id = INCREMENTAL
        first.trace_packet_defaults.track_event_defaults.track_uuid = self.tracks[0]
        first.trace_packet_defaults.track_event_defaults.extra_counter_track_uuids.append(
            self.counters[0]
        )
        self.packets.append(first)

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

    def write(self) -> None:
        """One more event."""
        roll = self.random.random()
        if roll < 0.02:
            self.begin()
        step = self.random.choice([0, 0, 1, 7, 1000])
        self.now += 10 * step
        out = packet(timestamp=step, trusted_packet_sequence_id=self.sequence, sequence_flags=NEEDS)
        event = out.track_event
        uuid = self.random.choice(self.tracks)
        if uuid != self.tracks[0] or roll < 0.5:
            event.track_uuid = uuid
        if roll < 0.1:
            event.type = pb.TrackEvent.TYPE_COUNTER
            event.track_uuid = self.random.choice(self.counters)
            if roll < 0.05:
                event.counter_value = self.random.randrange(-1000, 2**40)
            else:
                event.double_counter_value = self.random.uniform(-1, 1)
        elif roll < 0.2:
            event.type = pb.TrackEvent.TYPE_INSTANT
            self.fill(out)
        elif self.open.get(uuid, 0) and roll < 0.6:
            event.type = pb.TrackEvent.TYPE_SLICE_END
            self.open[uuid] -= 1
            if roll < 0.3:
                event.terminating_flow_ids.append(self.random.randrange(1, 40))
        else:
            event.type = pb.TrackEvent.TYPE_SLICE_BEGIN
            self.open[uuid] = self.open.get(uuid, 0) + 1
            self.fill(out)
        self.packets.append(out)

    def fill(self, out: Any) -> None:
        event, pick = out.track_event, self.random
        if pick.random() < 0.8:
            event.name_iid = self.iid(out, "event_names", pick.choice(["alpha", "beta", "γ", "d\n"]))
        else:
            event.name = f"own {pick.randrange(5)}"
        for _ in range(pick.choice([0, 1, 1, 2])):
            event.category_iids.append(self.iid(out, "event_categories", pick.choice(["x", "y", "z"])))
        if pick.random() < 0.3:
            event.flow_ids.append(pick.randrange(1, 40))
        if pick.random() < 0.3:
            event.extra_counter_values.append(pick.randrange(1000))
        for _ in range(pick.choice([0, 0, 1, 3])):
            self.annotate(out, event.debug_annotations.add())

    def annotate(self, out: Any, note: Any) -> None:
        pick = self.random
        key = f"k{pick.randrange(100)}"
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
            note.string_value = pick.choice(['quote " and \\', "ümlaut", "tab\t", ""])
        elif kind == 5:
            note.string_value_iid = self.iid(out, "debug_annotation_string_values", "interned")
        elif kind == 6:
            note.dict_entries.add(name="inner", int_value=5)
            note.dict_entries.add(name="list").array_values.add(bool_value=True)
        else:
            note.array_values.add(double_value=0.5)
            note.array_values.add(string_value="two")


def mixture(seed: int, events: int) -> list[Any]:
    """A trace of three sequences whose packets are interleaved at random, a stretch of them compressed."""
    pick = random.Random(seed)
    packets = [
        snapshot(1, 1_000_000, realtime=1_700_000_000_000_000_000, monotonic=400_000),
        track(10, "plain"),
        track(11, "child", 10),
        packet(
            trusted_packet_sequence_id=1,
            track_descriptor=pb.TrackDescriptor(
                uuid=12, thread=pb.ThreadDescriptor(pid=5, tid=77, thread_name="worker")
            ),
        ),
        packet(
            trusted_packet_sequence_id=1,
            track_descriptor=pb.TrackDescriptor(
                uuid=13, process=pb.ProcessDescriptor(pid=5, process_name="job")
            ),
        ),
        track(20, "plain counter", 10, counter=pb.CounterDescriptor(unit_name="W")),
        track(
            21,
            "scaled",
            counter=pb.CounterDescriptor(unit=pb.CounterDescriptor.UNIT_SIZE_BYTES, unit_multiplier=1024),
        ),
        track(22, "more", counter=pb.CounterDescriptor()),
    ]
    writers = [
        Writer(100 + n, seed * 10 + n, [10 + n, 30 + n], [20 + n]) for n in range(3)
    ]
    for _ in range(events):
        pick.choice(writers).write()
    queues = [list(w.packets) for w in writers]
    stream = []
    while any(queues):
        queue = pick.choice([q for q in queues if q])
        stream.append(queue.pop(0))
    half = len(stream) // 2
    return [*packets, *stream[:half], compressed(stream[half:])]
