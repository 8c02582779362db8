"""What else does a TrackEvent say: its name, categories, flows, counter values and annotations?

The compiled decoder of the second pass over a file.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.perfetto_import.annotations import Sink, put_annotation, put_token
from trnprof.tracer.formats.perfetto_import.heads import number
from trnprof.tracer.formats.protobuf_wire import (
    FIXED64,
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    read_field,
    read_fixed64,
    read_varint,
    signed,
)
from trnprof.tracer.formats.trace_json.value_tokens import (
    BINARY,
    BOOL,
    HEX,
    INT,
    KEY,
    MAX_DEPTH,
    NONE,
    NULL,
    TEXT,
    UINT,
    Tokens,
)

_E: Final = pb.TrackEvent
_NAME: Final = number(_E, "name")
_NAME_IID: Final = number(_E, "name_iid")
_CATEGORY: Final = number(_E, "categories")
_CATEGORY_IID: Final = number(_E, "category_iids")
_ANNOTATION: Final = number(_E, "debug_annotations")
_COUNTER: Final = number(_E, "counter_value")
_DOUBLE_COUNTER: Final = number(_E, "double_counter_value")
_EXTRA: Final = number(_E, "extra_counter_values")
_EXTRA_UUID: Final = number(_E, "extra_counter_track_uuids")
_EXTRA_DOUBLE: Final = number(_E, "extra_double_counter_values")
_EXTRA_DOUBLE_UUID: Final = number(_E, "extra_double_counter_track_uuids")
_FLOW: Final = number(_E, "flow_ids")
_FLOW_OLD: Final = number(_E, "flow_ids_old")
_END_FLOW: Final = number(_E, "terminating_flow_ids")
_END_FLOW_OLD: Final = number(_E, "terminating_flow_ids_old")
_LEGACY: Final = number(_E, "legacy_event")
_LEGACY_NAME: Final = number(pb.TrackEvent.LegacyEvent, "name_iid")
_BIND_ID: Final = number(pb.TrackEvent.LegacyEvent, "bind_id")
_DIRECTION: Final = number(pb.TrackEvent.LegacyEvent, "flow_direction")
_IN: Final = int(pb.TrackEvent.LegacyEvent.FLOW_IN)
_OUT: Final = int(pb.TrackEvent.LegacyEvent.FLOW_OUT)
_IN_OUT: Final = int(pb.TrackEvent.LegacyEvent.FLOW_INOUT)

SENDS, FORWARDS, RECEIVES, PASSES, ENDS = range(5)
"""What an event does with a flow: the first three in the older form, which begins only by sending."""

_MAX_FIELD: Final = 1 << 14
FIELD: Final = 1
"""``b`` of a KEY token that is the number of a field of TrackEvent."""


_READ: Final = (
    "category_iids", "categories", "name_iid", "name", "type", "track_uuid", "counter_value", "double_counter_value",
    "extra_counter_track_uuids", "extra_counter_values", "extra_double_counter_track_uuids", "extra_double_counter_values",
    "flow_ids_old", "flow_ids", "terminating_flow_ids_old", "terminating_flow_ids", "debug_annotations", "legacy_event",
)  # fmt: skip


def _others() -> NDArray[np.int8]:
    """By number, the token of a TrackEvent's field that is only kept; NULL for what its wire type says, NONE for those that are read."""
    tokens = np.full(_MAX_FIELD, NULL, np.int8)
    for field in pb.TrackEvent.DESCRIPTOR.fields:
        kind = field.cpp_type
        is_text = field.type == field.TYPE_STRING
        if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
            tokens[field.number] = INT
        elif kind == field.CPPTYPE_BOOL:
            tokens[field.number] = BOOL
        elif field.type != field.TYPE_FIXED64 and kind != field.CPPTYPE_DOUBLE:
            tokens[field.number] = TEXT if is_text else NULL
        if field.name in _READ:
            tokens[field.number] = NONE
    return tokens


_OTHERS: Final = _others()

OWN_TRACK: Final = -1
"""``order`` of a counter sample that is on the event's own track."""


class Lists(NamedTuple):
    """What events list, flat, in their order: ``event`` is the index of the event.

    Of categories: ``bits`` is an iid, or 0 where ``low`` and ``high`` are a text. Of flows: ``bits`` is the id, ``mark`` what the event does with it.
    Of counter samples: ``bits`` of the value, ``mark`` 1 for a double, ``low`` its order among the event's extra values of its kind or OWN_TRACK,
    ``high`` 1 where the track is that of the defaults, else ``uuid`` has it.
    """

    event: Ints
    bits: NDArray[np.uint64]
    low: Ints
    high: Ints
    mark: Ints
    uuid: NDArray[np.uint64]


class Bodies(NamedTuple):
    """The rest of n events.

    Attributes:
        name_iid: 0 for none.
        name_at: (2, n): text of a name that is not interned, -1 for none.
        categories, flows, samples: see ``Lists``.
        tokens: annotations; KEY and WORD tokens have iids.
    """

    name_iid: NDArray[np.uint64]
    name_at: NDArray[np.int64]
    categories: Lists
    flows: Lists
    samples: Lists
    tokens: Tokens


def read_bodies(data: Bytes, low: Ints, high: Ints, wants_tokens: NDArray[np.bool_]) -> Bodies:
    """The rest of the events ``data[low[i]:high[i]]``, which ``read_heads`` found undamaged.

    Args:
        data: bytes of a block.
        low: where each event begins.
        high: where each ends.
        wants_tokens: whose annotations are wanted.
    """
    rows = len(low)
    sizes = np.zeros(4, np.int64)
    _sizes(data, low, high, sizes)
    name, name_at = np.zeros(rows, np.uint64), np.full((2, rows), -1, np.int64)
    categories, flows, samples = (_empty(int(size)) for size in sizes[:3])
    room = 2 * int(sizes[3]) + 16
    sink = Sink(np.empty(room, np.int8), np.empty(room, np.int64), np.empty(room, np.int64))
    starts = np.zeros(rows + 1, np.int64)
    ends = _bodies(
        data, low, high, wants_tokens, name, name_at, categories, flows, samples, starts, sink
    )
    used = int(starts[-1])
    kind, a, b = sink.kind[:used].copy(), sink.a[:used].copy(), sink.b[:used].copy()
    return Bodies(
        name,
        name_at,
        _cut(categories, ends[0]),
        _cut(flows, ends[1]),
        _cut(samples, ends[2]),
        Tokens(data, starts, kind, a, b),
    )


def _empty(count: int) -> Lists:
    event, low, high, mark = (np.zeros(count, np.int64) for _ in range(4))
    return Lists(event, np.zeros(count, np.uint64), low, high, mark, np.zeros(count, np.uint64))


def _cut(lists: Lists, count: int) -> Lists:
    event, bits, low, high, mark, uuid = lists
    return Lists(event[:count], bits[:count], low[:count], high[:count], mark[:count], uuid[:count])


@compiled
def _sizes(data: Bytes, low: Ints, high: Ints, sizes: Ints) -> None:
    """Upper bounds: categories, flows, samples, bytes of annotations."""
    for i in range(low.size):
        at, end = low[i], high[i]
        while at < end:
            field, _wire, _value, after = read_field(data, at, end)
            if field in (_CATEGORY, _CATEGORY_IID):
                sizes[0] += after - at
            elif field in (_FLOW, _FLOW_OLD, _END_FLOW, _END_FLOW_OLD, _LEGACY):
                sizes[1] += after - at
            elif field in (_COUNTER, _DOUBLE_COUNTER, _EXTRA, _EXTRA_DOUBLE):
                sizes[2] += after - at
            elif field == _ANNOTATION or (field < _OTHERS.size and _OTHERS[field] != NONE):
                sizes[3] += after - at
            at = after


@compiled
def _bodies(
    data: Bytes,
    low: Ints,
    high: Ints,
    wants_tokens: NDArray[np.bool_],
    name: NDArray[np.uint64],
    name_at: NDArray[np.int64],
    categories: Lists,
    flows: Lists,
    samples: Lists,
    starts: Ints,
    sink: Sink,
) -> tuple[int, int, int]:
    category, flow, sample, token = 0, 0, 0, 0
    stack, legacy = np.zeros((MAX_DEPTH + 2, 5), np.int64), np.zeros(3, np.uint64)
    for i in range(low.size):
        at, end = low[i], high[i]
        first_sample = sample
        while at < end:
            field, wire, value, after = read_field(data, at, end)
            content = read_varint(data, value, end)[1] if wire == LENGTH else value
            if field == _NAME_IID and wire == VARINT:
                name[i] = read_varint(data, value, end)[0]
            elif field == _NAME and wire == LENGTH:
                name_at[0, i], name_at[1, i] = content, after
            elif field == _ANNOTATION and wire == LENGTH:
                if wants_tokens[i]:
                    token = put_annotation(data, content, after, sink, token, stack)
            elif field in (_CATEGORY, _CATEGORY_IID):
                category = _category(data, content, after, field, i, categories, category)
            elif field in (_FLOW, _FLOW_OLD, _END_FLOW, _END_FLOW_OLD):
                flow = _flow(data, content, after, field, i, flows, flow)
            elif field in (_COUNTER, _DOUBLE_COUNTER, _EXTRA, _EXTRA_DOUBLE):
                sample = _sample(data, content, after, field, i, samples, first_sample, sample)
            elif field < _OTHERS.size and _OTHERS[field] != NONE:
                if wants_tokens[i]:
                    token = _other(data, value, end, field, wire, sink, token)
            elif field == _LEGACY and wire == LENGTH:
                legacy[:] = np.uint64(0)
                _read_legacy(data, content, after, legacy)
                if name[i] == np.uint64(0):
                    name[i] = legacy[0]
                flow = _legacy_flow(legacy, i, flows, flow)
            at = after
        if sample > first_sample:
            _own_tracks(data, low[i], end, samples, first_sample, sample)
        starts[i + 1] = token
    return category, flow, sample


@compiled
def _fixed32(data: Bytes, at: int) -> Any:
    value = np.uint64(0)
    for i in range(4):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@compiled
def _other(data: Bytes, at: int, end: int, field: int, wire: int, sink: Sink, token: int) -> int:
    """The tokens of a field that is only kept: messages as they are."""
    token = put_token(sink, token, KEY, field, FIELD)
    if wire == VARINT:
        bits = signed(read_varint(data, at, end)[0])
        kind = _OTHERS[field] if _OTHERS[field] in (INT, BOOL) else UINT
        return put_token(sink, token, kind, bits, 0)
    if wire == LENGTH:
        kind = TEXT if _OTHERS[field] == TEXT else BINARY
        size, content = read_varint(data, at, end)
        return put_token(sink, token, kind, content, content + np.int64(size))
    bits = signed(read_fixed64(data, at)) if wire == FIXED64 else signed(_fixed32(data, at))
    return put_token(sink, token, HEX, bits, 0)


@compiled
def _category(
    data: Bytes, at: int, end: int, field: int, event: int, lists: Lists, count: int
) -> int:
    if field == _CATEGORY:
        lists.event[count], lists.low[count], lists.high[count] = event, at, end
        return count + 1
    while at < end:
        bits, at = read_varint(data, at, end)
        if at < 0:
            break
        lists.event[count], lists.bits[count] = event, bits
        count += 1
    return count


@compiled
def _flow(data: Bytes, at: int, end: int, field: int, event: int, lists: Lists, count: int) -> int:
    is_fixed = field in (_FLOW, _END_FLOW)
    while at < end:
        bits, at = _element(data, at, end, is_fixed)
        if at < 0:
            break
        lists.event[count], lists.bits[count] = event, bits
        lists.mark[count] = ENDS if field in (_END_FLOW, _END_FLOW_OLD) else PASSES
        count += 1
    return count


@compiled
def _sample(
    data: Bytes, at: int, end: int, field: int, event: int, lists: Lists, first: int, count: int
) -> int:
    """Counter values; the order of extra ones goes on from the last of their kind."""
    is_double = field in (_DOUBLE_COUNTER, _EXTRA_DOUBLE)
    is_extra = field in (_EXTRA, _EXTRA_DOUBLE)
    order = 0
    if is_extra:
        last = count - 1
        while last >= first and (lists.low[last] < 0 or lists.mark[last] != is_double):
            last -= 1
        order = lists.low[last] + 1 if last >= first else 0
    while at < end:
        bits, at = _element(data, at, end, is_double)
        if at < 0:
            break
        lists.event[count], lists.bits[count], lists.mark[count] = event, bits, is_double
        lists.low[count] = order if is_extra else OWN_TRACK
        lists.high[count] = is_extra
        order += 1
        count += 1
    return count


@compiled
def _element(data: Bytes, at: int, end: int, is_fixed: bool) -> tuple[Any, Any]:
    """One number of a repeated field, packed or not."""
    if is_fixed:
        if at + 8 > end:
            return np.uint64(0), -1
        return read_fixed64(data, at), at + 8
    return read_varint(data, at, end)


@compiled
def _read_legacy(data: Bytes, at: int, end: int, out: NDArray[np.uint64]) -> None:
    """Interned name, id of a flow and its direction."""
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if wire == VARINT:
            bits = read_varint(data, value, end)[0]
            if field == _LEGACY_NAME:
                out[0] = bits
            elif field == _BIND_ID:
                out[1] = bits
            elif field == _DIRECTION:
                out[2] = bits
        at = after


@compiled
def _legacy_flow(legacy: NDArray[np.uint64], event: int, lists: Lists, count: int) -> int:
    if legacy[2] == _OUT:
        role = SENDS
    elif legacy[2] == _IN_OUT:
        role = FORWARDS
    elif legacy[2] == _IN:
        role = RECEIVES
    else:
        return count
    lists.event[count], lists.bits[count], lists.mark[count] = event, legacy[1], role
    return count + 1


@compiled
def _own_tracks(data: Bytes, at: int, end: int, lists: Lists, first: int, last: int) -> None:
    """Tracks of extra counter samples that the event gives itself: the n-th of either kind to the n-th value."""
    whole, double = first, first
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if field in (_EXTRA_UUID, _EXTRA_DOUBLE_UUID):
            wanted = 1 if field == _EXTRA_DOUBLE_UUID else 0
            inner = read_varint(data, value, end)[1] if wire == LENGTH else value
            while inner >= 0 and inner < after:
                bits, inner = read_varint(data, inner, after)
                k = double if wanted else whole
                while k < last and (lists.low[k] < 0 or lists.mark[k] != wanted):
                    k += 1
                if k < last:
                    lists.uuid[k], lists.high[k] = bits, 0
                if wanted:
                    double = k + 1
                else:
                    whole = k + 1
        at = after
