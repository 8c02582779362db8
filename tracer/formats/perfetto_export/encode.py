"""What are the bytes of a Perfetto packet?

Slices, counter samples and debug annotations are encoded by compiled loops over columns, into minimal varints. Field
numbers and wire types come from perfetto's own message descriptors, never from constants here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled, inlined

Bytes = NDArray[np.uint8]

SEQUENCE_ID: Final = 1
"""All packets stand on one packet sequence."""

_WIRE_TYPES: Final = {
    FieldDescriptor.TYPE_FIXED64: 1,
    FieldDescriptor.TYPE_DOUBLE: 1,
    FieldDescriptor.TYPE_STRING: 2,
    FieldDescriptor.TYPE_BYTES: 2,
    FieldDescriptor.TYPE_MESSAGE: 2,
}
"""Protobuf's wire types of the kinds of field used here; the others are varints, wire type 0."""
_MAX_PACKET_BYTES: Final = 96
"""Upper bound of a packet's bytes without pieces: eight tags and lengths, four varints of ten bytes, constants."""


def varint(value: int) -> bytes:
    """Protobuf's variable-length form of a non-negative integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(message: Any, field: str) -> bytes:
    """The key that precedes a field's value: number and wire type, from the message's descriptor."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    return varint(descriptor.number << 3 | _WIRE_TYPES.get(descriptor.type, 0))


def _array(*parts: bytes) -> Bytes:
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _typed(kind: int) -> bytes:
    return tag(pb.TrackEvent, "type") + varint(kind)


class Layout(NamedTuple):
    """The constant bytes of the packets, in the order in which they are written."""

    packet: Bytes
    sequence: Bytes
    timestamp: Bytes
    track_event: Bytes
    begin: Bytes
    end: Bytes
    counter: Bytes
    uuid: Bytes
    category: Bytes
    name: Bytes
    value: Bytes
    annotation: Bytes


LAYOUT: Final = Layout(
    packet=_array(tag(pb.Trace, "packet")),
    sequence=_array(
        tag(pb.TracePacket, "trusted_packet_sequence_id"),
        varint(SEQUENCE_ID),
        tag(pb.TracePacket, "sequence_flags"),
        varint(pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE),
    ),
    timestamp=_array(tag(pb.TracePacket, "timestamp")),
    track_event=_array(tag(pb.TracePacket, "track_event")),
    begin=_array(_typed(pb.TrackEvent.TYPE_SLICE_BEGIN)),
    end=_array(_typed(pb.TrackEvent.TYPE_SLICE_END)),
    counter=_array(_typed(pb.TrackEvent.TYPE_COUNTER)),
    uuid=_array(tag(pb.TrackEvent, "track_uuid")),
    category=_array(tag(pb.TrackEvent, "category_iids")),
    name=_array(tag(pb.TrackEvent, "name_iid")),
    value=_array(tag(pb.TrackEvent, "double_counter_value")),
    annotation=_array(tag(pb.TrackEvent, "debug_annotations")),
)


class Pieces(NamedTuple):
    """Ready-encoded bytes to append to each row's TrackEvent: ``data[low[i]:high[i]]``."""

    data: Bytes
    low: NDArray[np.int64]
    high: NDArray[np.int64]


class Arguments(NamedTuple):
    """Debug annotations of n rows in k columns.

    ``values`` (k, n) are the 64 bits of each value: of an int64, a double or an interned string's iid; ``present``
    (k, n) says which exist; ``prefix_data[prefix_starts[j]:prefix_starts[j + 1]]`` precedes the values of column j.
    """

    prefix_data: Bytes
    prefix_starts: NDArray[np.int64]
    is_fixed: NDArray[np.bool_]
    values: NDArray[np.uint64]
    present: NDArray[np.bool_]


class Texts(NamedTuple):
    """One debug annotation of n rows that holds text: ``data[starts[i]:starts[i + 1]]``, none where that is empty."""

    prefix: Bytes
    data: Bytes
    starts: NDArray[np.int64]


class Slices(NamedTuple):
    """Slices of n rows: times in ns (``end`` is not read where ``is_open``), track uuid and iids."""

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    is_open: NDArray[np.bool_]
    uuid: NDArray[np.uint64]
    name: NDArray[np.uint64]
    category: NDArray[np.uint64]


def no_pieces(rows: int) -> Pieces:
    """Nothing to append to any of ``rows`` rows."""
    zeros = np.zeros(rows, dtype=np.int64)
    return Pieces(np.zeros(0, dtype=np.uint8), zeros, zeros)


def no_texts(rows: int) -> Texts:
    """No text on any of ``rows`` rows."""
    empty = np.zeros(0, dtype=np.uint8)
    return Texts(empty, empty, np.zeros(rows + 1, dtype=np.int64))


def annotation_prefix(name_iid: int, value_field: str) -> bytes:
    """What precedes the value in a DebugAnnotation: its interned name, and the tag of ``value_field``."""
    return (
        tag(pb.DebugAnnotation, "name_iid")
        + varint(name_iid)
        + tag(pb.DebugAnnotation, value_field)
    )


def packet(message: Any) -> bytes:
    """A protobuf TracePacket as the trace file holds it."""
    body = message.SerializeToString()
    return tag(pb.Trace, "packet") + varint(len(body)) + bytes(body)


def encode_annotations(arguments: Arguments, texts: Texts) -> Pieces:
    """The debug annotations of each row, encoded.

    Args:
        arguments: k columns of n rows.
        texts: one more column of n rows.
    """
    sizes = _annotation_sizes(arguments, texts, LAYOUT.annotation.size)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    data = np.empty(starts[-1], dtype=np.uint8)
    _put_annotations(arguments, texts, LAYOUT.annotation, starts, data)
    return Pieces(data, starts[:-1], starts[1:])


def encode_slices(
    slices: Slices, arguments: Pieces, operations: Pieces, begin_flows: Pieces, end_flows: Pieces
) -> Bytes:
    """BEGIN and END packets of each slice, adjacent, in the order of the rows; no END for an open one.

    Args:
        slices: n rows.
        arguments: appended to the BEGINs.
        operations: appended to the BEGINs.
        begin_flows: appended to the BEGINs.
        end_flows: appended to the ENDs.
    """
    pieces = (arguments, operations, begin_flows, end_flows)
    extra = sum(int((p.high - p.low).sum()) for p in pieces)
    out = np.empty(slices.start.size * 2 * _MAX_PACKET_BYTES + extra, dtype=np.uint8)
    return out[: _put_slices(LAYOUT, slices, arguments, operations, begin_flows, end_flows, out)]


def encode_counters(
    timestamp: NDArray[np.uint64], uuid: NDArray[np.uint64], value: NDArray[np.float64]
) -> Bytes:
    """COUNTER packets of n samples; ``timestamp`` in ns."""
    out = np.empty(timestamp.size * _MAX_PACKET_BYTES, dtype=np.uint8)
    return out[: _put_counters(LAYOUT, timestamp, uuid, value.view(np.uint64), out)]


@inlined
def _varint_size(value: np.uint64) -> int:
    size = 1
    while value >= np.uint64(128):
        value >>= np.uint64(7)
        size += 1
    return size


@inlined
def _put_varint(out: Bytes, at: int, value: np.uint64) -> int:
    while value >= np.uint64(128):
        out[at] = np.uint8(value & np.uint64(127) | np.uint64(128))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@inlined
def _put_fixed64(out: Bytes, at: int, value: np.uint64) -> int:
    for _ in range(8):
        out[at] = np.uint8(value & np.uint64(255))
        value >>= np.uint64(8)
        at += 1
    return at


@inlined
def _put_bytes(out: Bytes, at: int, data: Bytes, low: int, high: int) -> int:
    for i in range(low, high):
        out[at] = data[i]
        at += 1
    return at


@compiled
def _value_size(arguments: Arguments, column: int, row: int) -> int:
    size: int = arguments.prefix_starts[column + 1] - arguments.prefix_starts[column]
    if arguments.is_fixed[column]:
        return size + 8
    return size + _varint_size(arguments.values[column, row])


@compiled
def _annotation_sizes(arguments: Arguments, texts: Texts, tag_size: int) -> NDArray[np.int64]:
    columns, rows = arguments.values.shape
    sizes = np.zeros(rows, dtype=np.int64)
    for column in range(columns):
        for row in range(rows):
            if arguments.present[column, row]:
                size = _value_size(arguments, column, row)
                sizes[row] += tag_size + _varint_size(np.uint64(size)) + size
    for row in range(rows):
        text = texts.starts[row + 1] - texts.starts[row]
        if text > 0:
            size = texts.prefix.size + _varint_size(np.uint64(text)) + text
            sizes[row] += tag_size + _varint_size(np.uint64(size)) + size
    return sizes


@compiled
def _put_annotations(
    arguments: Arguments, texts: Texts, key: Bytes, starts: NDArray[np.int64], out: Bytes
) -> None:
    columns, rows = arguments.values.shape
    for row in range(rows):
        at = starts[row]
        for column in range(columns):
            if not arguments.present[column, row]:
                continue
            at = _put_bytes(out, at, key, 0, key.size)
            at = _put_varint(out, at, np.uint64(_value_size(arguments, column, row)))
            low, high = arguments.prefix_starts[column], arguments.prefix_starts[column + 1]
            at = _put_bytes(out, at, arguments.prefix_data, low, high)
            if arguments.is_fixed[column]:
                at = _put_fixed64(out, at, arguments.values[column, row])
            else:
                at = _put_varint(out, at, arguments.values[column, row])
        low, high = texts.starts[row], texts.starts[row + 1]
        if high > low:
            size = texts.prefix.size + _varint_size(np.uint64(high - low)) + high - low
            at = _put_bytes(out, at, key, 0, key.size)
            at = _put_varint(out, at, np.uint64(size))
            at = _put_bytes(out, at, texts.prefix, 0, texts.prefix.size)
            at = _put_varint(out, at, np.uint64(high - low))
            at = _put_bytes(out, at, texts.data, low, high)


@inlined
def _put_head(layout: Layout, out: Bytes, at: int, timestamp: np.uint64, event_size: int) -> int:
    """All of a packet up to its TrackEvent of ``event_size`` bytes."""
    size = layout.timestamp.size + _varint_size(timestamp) + layout.sequence.size
    size += layout.track_event.size + _varint_size(np.uint64(event_size)) + event_size
    at = _put_bytes(out, at, layout.packet, 0, layout.packet.size)
    at = _put_varint(out, at, np.uint64(size))
    at = _put_bytes(out, at, layout.timestamp, 0, layout.timestamp.size)
    at = _put_varint(out, at, timestamp)
    at = _put_bytes(out, at, layout.sequence, 0, layout.sequence.size)
    at = _put_bytes(out, at, layout.track_event, 0, layout.track_event.size)
    return _put_varint(out, at, np.uint64(event_size))


@inlined
def _put_field(out: Bytes, at: int, key: Bytes, value: np.uint64) -> int:
    at = _put_bytes(out, at, key, 0, key.size)
    return _put_varint(out, at, value)


@inlined
def _put_piece(out: Bytes, at: int, pieces: Pieces, row: int) -> int:
    return _put_bytes(out, at, pieces.data, pieces.low[row], pieces.high[row])


@compiled
def _put_slices(
    layout: Layout,
    slices: Slices,
    arguments: Pieces,
    operations: Pieces,
    begin_flows: Pieces,
    end_flows: Pieces,
    out: Bytes,
) -> int:
    at = 0
    for i in range(slices.start.size):
        uuid = layout.uuid.size + _varint_size(slices.uuid[i])
        size = layout.begin.size + uuid
        size += layout.category.size + _varint_size(slices.category[i])
        size += layout.name.size + _varint_size(slices.name[i])
        size += arguments.high[i] - arguments.low[i] + operations.high[i] - operations.low[i]
        size += begin_flows.high[i] - begin_flows.low[i]
        at = _put_head(layout, out, at, slices.start[i], size)
        at = _put_bytes(out, at, layout.begin, 0, layout.begin.size)
        at = _put_field(out, at, layout.uuid, slices.uuid[i])
        at = _put_field(out, at, layout.category, slices.category[i])
        at = _put_field(out, at, layout.name, slices.name[i])
        at = _put_piece(out, at, operations, i)
        at = _put_piece(out, at, arguments, i)
        at = _put_piece(out, at, begin_flows, i)
        if not slices.is_open[i]:
            size = layout.end.size + uuid + end_flows.high[i] - end_flows.low[i]
            at = _put_head(layout, out, at, slices.end[i], size)
            at = _put_bytes(out, at, layout.end, 0, layout.end.size)
            at = _put_field(out, at, layout.uuid, slices.uuid[i])
            at = _put_piece(out, at, end_flows, i)
    return at


@compiled
def _put_counters(
    layout: Layout,
    timestamp: NDArray[np.uint64],
    uuid: NDArray[np.uint64],
    value: NDArray[np.uint64],
    out: Bytes,
) -> int:
    at = 0
    for i in range(timestamp.size):
        size = layout.counter.size + layout.uuid.size + _varint_size(uuid[i])
        size += layout.value.size + 8
        at = _put_head(layout, out, at, timestamp[i], size)
        at = _put_bytes(out, at, layout.counter, 0, layout.counter.size)
        at = _put_field(out, at, layout.uuid, uuid[i])
        at = _put_bytes(out, at, layout.value, 0, layout.value.size)
        at = _put_fixed64(out, at, value[i])
    return at
