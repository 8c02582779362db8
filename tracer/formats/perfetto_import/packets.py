"""Where do the packets of a Perfetto file lie, and what does the envelope of each say?

The file is read once from the front in blocks; packets that are compressed in it are handed out in their place. Field numbers
come from perfetto's own message descriptors.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.protobuf_wire import (
    CUT,
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    frame,
    read_field,
    read_varint,
)
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import ByteStream
from trnprof.tracer.units import counted

BLOCK_BYTES: Final = 4 << 20
MAX_PACKET_BYTES: Final = 256 << 20
MAX_EXPANDED_BYTES: Final = 64 << 20
"""What one compressed packet may hold."""
_MAX_NESTING: Final = 2

_FIELDS: Final = pb.TracePacket.DESCRIPTOR.fields_by_name


def text(value: str | bytes) -> str:
    """A string of a parsed message, which protobuf hands out as bytes where it is not UTF-8; those bytes become U+FFFD."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def field_number(name: str) -> int:
    """Number of a field of TracePacket."""
    return int(_FIELDS[name].number)


_TIMESTAMP: Final = field_number("timestamp")
_CLOCK: Final = field_number("timestamp_clock_id")
_SEQUENCE: Final = field_number("trusted_packet_sequence_id")
_FLAGS: Final = field_number("sequence_flags")
_CLEARED: Final = field_number("incremental_state_cleared")
_DROPPED: Final = field_number("previous_packet_dropped")
TRACK_EVENT: Final = field_number("track_event")
COMPRESSED: Final = field_number("compressed_packets")
CONTROLS: Final = (
    "interned_data",
    "track_descriptor",
    "trace_packet_defaults",
    "clock_snapshot",
    "thread_descriptor",
    "process_descriptor",
    "trace_stats",
)
_MAX_FIELD: Final = 1 << 12
_PACKET: Final = int(pb.Trace.DESCRIPTOR.fields_by_name["packet"].number)


def _kinds() -> NDArray[np.int8]:
    """By field number: 1 for what has a say in how others are read, 2 for other data of a packet."""
    kinds = np.zeros(_MAX_FIELD, np.int8)
    for field in pb.TracePacket.DESCRIPTOR.oneofs_by_name["data"].fields:
        if field.number < _MAX_FIELD:
            kinds[field.number] = 2
    for name in CONTROLS:
        kinds[field_number(name)] = 1
    kinds[[TRACK_EVENT, COMPRESSED]] = 0
    return kinds


_KINDS: Final = _kinds()


@dataclass(frozen=True)
class Envelopes:
    """What n packets say beside their data.

    Attributes:
        timestamp: 64 bits; see ``has_timestamp``.
        clock: id of the timestamp's clock, 0 for none given.
        sequence: id of the packet sequence, 0 for none.
        flags: sequence flags.
        is_cleared, is_dropped: incremental state begins anew; packets before it were lost.
        event_low, event_high: where its TrackEvent lies; -1 for none.
        packed_low, packed_high: where its compressed packets lie; -1 for none.
        is_control: whether it has a say in how others are read.
        data: number of another field of data, 0 for none.
        is_damaged: its bytes are no TracePacket.
    """

    timestamp: Ints
    has_timestamp: NDArray[np.bool_]
    clock: Ints
    sequence: Ints
    flags: Ints
    is_cleared: NDArray[np.bool_]
    is_dropped: NDArray[np.bool_]
    event_low: Ints
    event_high: Ints
    packed_low: Ints
    packed_high: Ints
    is_control: NDArray[np.bool_]
    data: Ints
    is_damaged: NDArray[np.bool_]

    def part(self, low: int, high: int) -> Envelopes:
        """Those of the packets from ``low`` to ``high``."""
        return Envelopes(**{name: getattr(self, name)[low:high] for name in self.__annotations__})


@dataclass(frozen=True)
class Block:
    """Some packets in order: packet i is ``data[starts[i]:ends[i]]``; ``position`` is where the block lies in the file."""

    data: Bytes
    starts: Ints
    ends: Ints
    envelopes: Envelopes
    position: int

    def message(self, packet: int) -> Any:
        """A packet as a message.

        Raises:
            DecodeError: it is damaged.
        """
        return pb.TracePacket.FromString(
            self.data[self.starts[packet] : self.ends[packet]].tobytes()
        )


class Packets:
    """The packets of a file, block by block.

    Attributes:
        packets: handed out so far, those in compressed ones included.
    """

    def __init__(self, stream: ByteStream, audit: Audit, label: str) -> None:
        self._stream = stream
        self._audit = audit
        self._label = label
        self.packets = 0

    def __iter__(self) -> Iterator[Block]:
        """All blocks; damage is a finding."""
        kept = b""
        position = 0
        while True:
            wanted = max(BLOCK_BYTES, len(kept))
            pieces, size = [kept], 0
            while size < wanted and (piece := self._stream.read(wanted - size)):
                pieces.append(piece)
                size += len(piece)
            data = np.frombuffer(b"".join(pieces), np.uint8)
            starts, ends, passed, why = _framed(data)
            if len(starts):
                yield from self._opened(data, starts, ends, position, 0)
            is_last = size < wanted
            if why and (is_last or why != CUT or len(data) - passed > MAX_PACKET_BYTES):
                self._stopped(position + passed, len(data) - passed, is_cut=why == CUT and is_last)
                return
            if is_last:
                return
            kept = data[passed:].tobytes()
            position += passed

    def _opened(
        self, data: Bytes, starts: Ints, ends: Ints, position: int, depth: int
    ) -> Iterator[Block]:
        """The packets of a stretch, with those that lie compressed in it."""
        envelopes = _envelopes(data, starts, ends)
        packed = np.flatnonzero(envelopes.packed_low >= 0)
        expanded: list[bytes] = []
        done, size = 0, 0
        for at in packed.tolist():
            if at > done or size > BLOCK_BYTES:
                yield from self._expanded(expanded, position, depth)
                expanded, size = [], 0
            if at > done:
                yield self._block(data, starts, ends, envelopes, done, at, position)
            low, high = int(envelopes.packed_low[at]), int(envelopes.packed_high[at])
            content = self._inflated(data[low:high].tobytes(), position + low)
            expanded.append(content)
            size += len(content)
            done = at + 1
        yield from self._expanded(expanded, position, depth)
        if done < len(starts):
            yield self._block(data, starts, ends, envelopes, done, len(starts), position)

    def _block(
        self,
        data: Bytes,
        starts: Ints,
        ends: Ints,
        envelopes: Envelopes,
        low: int,
        high: int,
        position: int,
    ) -> Block:
        self.packets += high - low
        part = envelopes.part(low, high)
        damaged = np.flatnonzero(part.is_damaged)
        if len(damaged):
            first = position + int(starts[low + damaged[0]])
            self._audit.add(
                "malformed_packets",
                "error",
                self._label,
                "packets whose bytes are damaged were left out",
                unreliable="totals",
                count=len(damaged),
                example=f"byte {first:,}",
            )
        return Block(data, starts[low:high], ends[low:high], part, position)

    def _expanded(self, contents: list[bytes], position: int, depth: int) -> Iterator[Block]:
        if not contents:
            return
        if depth >= _MAX_NESTING:
            self._bad_compression(position, "compressed packets lie in each other too deep")
            return
        data = np.frombuffer(b"".join(contents), np.uint8)
        at = 0
        while at < len(data):
            starts, ends, passed, why = _framed(data[at:])
            if len(starts):
                yield from self._opened(data[at:], starts, ends, position, depth + 1)
            if why or not passed:
                self._bad_compression(position, "the packets in compressed ones are cut or damaged")
                return
            at += passed

    def _inflated(self, content: bytes, position: int) -> bytes:
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(content, MAX_EXPANDED_BYTES)
        except zlib.error:
            self._bad_compression(position, "compressed packets cannot be decompressed")
            return b""
        if inflater.unconsumed_tail:
            self._bad_compression(position, "compressed packets hold more than 64 MiB each")
        return data

    def _bad_compression(self, position: int, what: str) -> None:
        self._audit.add(
            "malformed_packets",
            "error",
            self._label,
            f"{what}; they were left out",
            unreliable="totals",
            example=f"byte {position:,}",
        )

    def _stopped(self, position: int, lost: int, *, is_cut: bool) -> None:
        if is_cut:
            kind, what = (
                "truncated",
                f"the file ends inside a packet ({counted(lost, 'byte')} of it are left out)",
            )
        else:
            kind, what = (
                "malformed_protobuf",
                "the bytes are no packet; nothing behind them could be read",
            )
        self._audit.add(
            kind,
            "error",
            self._label,
            f"{what}, all packets before were read",
            unreliable="totals, and everything after that",
            example=f"byte {position:,}",
        )


def _framed(data: Bytes) -> tuple[Ints, Ints, int, int]:
    """Packets of a stretch, how far it was passed, and why no further (0: to its end)."""
    found: list[tuple[Ints, Ints]] = []
    at, why = 0, 0
    while at < len(data) and not why:
        starts, ends = np.empty(1 << 18, np.int64), np.empty(1 << 18, np.int64)
        count, passed, why = frame(data[at:], _PACKET, starts, ends)
        found.append((starts[:count] + at, ends[:count] + at))
        at += passed
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found]), at, why


def _envelopes(data: Bytes, starts: Ints, ends: Ints) -> Envelopes:
    rows = len(starts)
    numbers = np.zeros((5, rows), np.int64)
    places = np.full((4, rows), -1, np.int64)
    marks = np.zeros((5, rows), np.bool_)
    _read_envelopes(data, starts, ends, _KINDS, numbers, places, marks)
    return Envelopes(
        timestamp=numbers[0],
        has_timestamp=marks[0],
        clock=numbers[1],
        sequence=numbers[2],
        flags=numbers[3],
        is_cleared=marks[1],
        is_dropped=marks[2],
        event_low=places[0],
        event_high=places[1],
        packed_low=places[2],
        packed_high=places[3],
        is_control=marks[3],
        data=numbers[4],
        is_damaged=marks[4],
    )


@compiled
def _read_envelopes(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    kinds: NDArray[np.int8],
    numbers: NDArray[np.int64],
    places: NDArray[np.int64],
    marks: NDArray[np.bool_],
) -> None:
    for i in range(starts.size):
        at, end = starts[i], ends[i]
        while at < end:
            field, wire, value, after = read_field(data, at, end)
            if after < 0:
                marks[4, i] = True
                numbers[:, i] = 0
                marks[:4, i] = False
                places[:, i] = -1
                break
            if wire == VARINT:
                bits = np.int64(read_varint(data, value, end)[0])
                if field == _TIMESTAMP:
                    numbers[0, i], marks[0, i] = bits, True
                elif field == _CLOCK:
                    numbers[1, i] = bits
                elif field == _SEQUENCE:
                    numbers[2, i] = bits
                elif field == _FLAGS:
                    numbers[3, i] = bits
                elif field == _CLEARED:
                    marks[1, i] = bits != 0
                elif field == _DROPPED:
                    marks[2, i] = bits != 0
            elif wire == LENGTH:
                content = read_varint(data, value, end)[1]
                if field == TRACK_EVENT:
                    places[0, i], places[1, i] = content, after
                elif field == COMPRESSED:
                    places[2, i], places[3, i] = content, after
                elif field < kinds.size and kinds[field] == 1:
                    marks[3, i] = True
                elif field < kinds.size and kinds[field] == 2:
                    numbers[4, i] = field
            at = after
