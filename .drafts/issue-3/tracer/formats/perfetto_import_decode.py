"""What does a TrackEvent say? A compiled decoder of TrackEvent and DebugAnnotation messages.

``read_heads`` gives what places an event: kind, track, duration. ``read_bodies`` gives the rest: names, categories, flows, counter values, and
annotations as tokens (json_render.py), nested ones included, without recursion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.json_render import (
    BINARY,
    BOOL,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    DOUBLE,
    HEX,
    INT,
    KEY,
    KEY_TEXT,
    MAX_DEPTH,
    NULL,
    OPEN_ARRAY,
    OPEN_OBJECT,
    TEXT,
    UINT,
    WORD,
    Tokens,
)
from trnprof.tracer.formats.protobuf_wire import (
    FIXED64,
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    compiled,
    read_fixed64,
    read_key,
    read_varint,
    skip_value,
)


def _number(message: Any, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_TYPE: Final = _number(pb.TrackEvent, "type")
_UUID: Final = _number(pb.TrackEvent, "track_uuid")
_LEGACY: Final = _number(pb.TrackEvent, "legacy_event")
_NAME: Final = _number(pb.TrackEvent, "name")
_NAME_IID: Final = _number(pb.TrackEvent, "name_iid")
_CATEGORY: Final = _number(pb.TrackEvent, "categories")
_CATEGORY_IID: Final = _number(pb.TrackEvent, "category_iids")
_ANNOTATION: Final = _number(pb.TrackEvent, "debug_annotations")
_COUNTER: Final = _number(pb.TrackEvent, "counter_value")
_DOUBLE_COUNTER: Final = _number(pb.TrackEvent, "double_counter_value")
_EXTRA: Final = _number(pb.TrackEvent, "extra_counter_values")
_EXTRA_UUID: Final = _number(pb.TrackEvent, "extra_counter_track_uuids")
_EXTRA_DOUBLE: Final = _number(pb.TrackEvent, "extra_double_counter_values")
_EXTRA_DOUBLE_UUID: Final = _number(pb.TrackEvent, "extra_double_counter_track_uuids")
_FLOW: Final = _number(pb.TrackEvent, "flow_ids")
_FLOW_OLD: Final = _number(pb.TrackEvent, "flow_ids_old")
_END_FLOW: Final = _number(pb.TrackEvent, "terminating_flow_ids")
_END_FLOW_OLD: Final = _number(pb.TrackEvent, "terminating_flow_ids_old")
_PHASE: Final = _number(pb.TrackEvent.LegacyEvent, "phase")
_DURATION: Final = _number(pb.TrackEvent.LegacyEvent, "duration_us")
_LEGACY_NAME: Final = _number(pb.TrackEvent.LegacyEvent, "name_iid")
_UNSCOPED: Final = _number(pb.TrackEvent.LegacyEvent, "unscoped_id")
_LOCAL: Final = _number(pb.TrackEvent.LegacyEvent, "local_id")
_GLOBAL: Final = _number(pb.TrackEvent.LegacyEvent, "global_id")
_A: Final = pb.DebugAnnotation
_A_NAME: Final = _number(_A, "name")
_A_NAME_IID: Final = _number(_A, "name_iid")
_A_BOOL: Final = _number(_A, "bool_value")
_A_UINT: Final = _number(_A, "uint_value")
_A_INT: Final = _number(_A, "int_value")
_A_DOUBLE: Final = _number(_A, "double_value")
_A_POINTER: Final = _number(_A, "pointer_value")
_A_NESTED: Final = _number(_A, "nested_value")
_A_JSON: Final = _number(_A, "legacy_json_value")
_A_STRING: Final = _number(_A, "string_value")
_A_STRING_IID: Final = _number(_A, "string_value_iid")
_A_PROTO: Final = _number(_A, "proto_value")
_A_DICT: Final = _number(_A, "dict_entries")
_A_ARRAY: Final = _number(_A, "array_values")
_N: Final = pb.DebugAnnotation.NestedValue
_N_TYPE: Final = _number(_N, "nested_type")
_N_KEYS: Final = _number(_N, "dict_keys")
_N_VALUES: Final = _number(_N, "dict_values")
_N_ARRAY: Final = _number(_N, "array_values")
_N_INT: Final = _number(_N, "int_value")
_N_DOUBLE: Final = _number(_N, "double_value")
_N_BOOL: Final = _number(_N, "bool_value")
_N_STRING: Final = _number(_N, "string_value")

NONE, BEGIN, END, INSTANT, SAMPLE, COMPLETE = range(6)
"""What an event is; NONE is a legacy phase that has no counterpart here."""

BY_UUID, BY_SEQUENCE, BY_ID = range(3)
"""What its track is known by: a uuid, its sequence, or the id of a legacy asynchronous event."""

_DOUBLE_VALUE, _DEFAULT_TRACK = 1, 2


@dataclass(frozen=True)
class Heads:
    """What places n events.

    Attributes:
        kind: BEGIN, END, INSTANT, SAMPLE, COMPLETE or NONE.
        track_kind: BY_UUID, BY_SEQUENCE or BY_ID.
        track: uuid or id; 0 by sequence.
        duration_us: of a COMPLETE one.
        phase: legacy phase, 0 for none.
        has_annotations: whether it has debug annotations.
        is_damaged: its bytes are no TrackEvent.
    """

    kind: NDArray[np.int8]
    track_kind: NDArray[np.int8]
    track: NDArray[np.uint64]
    duration_us: Ints
    phase: Ints
    has_annotations: NDArray[np.bool_]
    is_damaged: NDArray[np.bool_]


@dataclass(frozen=True)
class References:
    """What events list, flat: ``event`` is the index of the event, ``iid`` 0 where there is a text instead."""

    event: Ints
    value: NDArray[np.uint64]
    low: Ints
    high: Ints
    mark: Ints


@dataclass(frozen=True)
class Bodies:
    """The rest of n events.

    Attributes:
        name_iid: 0 for none.
        name_low, name_high: text of a name that is not interned; -1 for none.
        categories: by iid or text.
        flows: ids; ``mark`` is 1 for one that ends.
        samples: of counters: bits of the value; ``mark`` has bit 1 for a double; ``low`` is the index of the track among the event's extra
            ones, -1 for its own track, ``high`` is 1 if the track is that of the scope's defaults.
        sample_track: uuids of the samples' tracks that the events give themselves.
        tokens: annotations; KEY and WORD tokens have iids.
    """

    name_iid: NDArray[np.uint64]
    name_low: Ints
    name_high: Ints
    categories: References
    flows: References
    samples: References
    sample_track: NDArray[np.uint64]
    tokens: Tokens


def read_heads(
    data: Bytes, low: Ints, high: Ints, defaults: Ints, default_track: Ints, has_default: NDArray[np.bool_]
) -> Heads:
    """What places the events ``data[low[i]:high[i]]``.

    Args:
        data: bytes of a block.
        low, high: of each event.
        defaults: row of its defaults, -1 for none.
        default_track: by row: bits of the uuid.
        has_default: by row: whether there is one.
    """
    rows = len(low)
    kind, track_kind = np.zeros(rows, np.int8), np.zeros(rows, np.int8)
    track, duration = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    phase, marks = np.zeros(rows, np.int64), np.zeros((2, rows), np.bool_)
    _heads(
        data, low, high, defaults, default_track.view(np.uint64), has_default,
        kind, track_kind, track, duration, phase, marks,
    )  # fmt: skip
    return Heads(kind, track_kind, track, duration, phase, marks[0], marks[1])


@compiled
def _heads(
    data: Bytes,
    low: Ints,
    high: Ints,
    defaults: Ints,
    default_track: NDArray[np.uint64],
    has_default: NDArray[np.bool_],
    kinds: NDArray[np.int8],
    track_kinds: NDArray[np.int8],
    tracks: NDArray[np.uint64],
    durations: Ints,
    phases: Ints,
    marks: NDArray[np.bool_],
) -> None:
    legacy = np.zeros(3, np.uint64)
    for i in range(low.size):
        at, end = low[i], high[i]
        typed, has_uuid, uuid = 0, False, np.uint64(0)
        legacy[:] = np.uint64(0)
        while at < end:
            field, wire, value = read_key(data, at, end)
            after = skip_value(data, value, end, wire) if value >= 0 else value
            if after < 0:
                marks[1, i] = True
                break
            if wire == VARINT:
                if field == _TYPE:
                    typed = np.int64(read_varint(data, value, end)[0])
                elif field == _UUID:
                    uuid, has_uuid = read_varint(data, value, end)[0], True
            elif wire == LENGTH:
                if field == _ANNOTATION:
                    marks[0, i] = True
                elif field == _LEGACY:
                    content = read_varint(data, value, end)[1]
                    if not _legacy(data, content, after, legacy):
                        marks[1, i] = True
            at = after
        if marks[1, i]:
            continue
        phases[i], durations[i] = np.int64(legacy[0]), np.int64(legacy[1])
        kind, by_id = _kind(typed, phases[i])
        kinds[i] = kind
        if has_uuid:
            tracks[i] = uuid
        elif by_id:
            track_kinds[i], tracks[i] = BY_ID, legacy[2]
        elif defaults[i] >= 0 and has_default[defaults[i]]:
            tracks[i] = default_track[defaults[i]]
        else:
            track_kinds[i] = BY_SEQUENCE


@compiled
def _legacy(data: Bytes, at: int, end: int, out: NDArray[np.uint64]) -> bool:
    """Phase, duration and id of a LegacyEvent."""
    while at < end:
        field, wire, value = read_key(data, at, end)
        after = skip_value(data, value, end, wire) if value >= 0 else value
        if after < 0:
            return False
        if wire == VARINT:
            bits = read_varint(data, value, end)[0]
            if field == _PHASE:
                out[0] = bits
            elif field == _DURATION:
                out[1] = bits
            elif field == _UNSCOPED or field == _LOCAL or field == _GLOBAL:
                out[2] = bits
        at = after
    return True


@compiled
def _kind(typed: int, phase: int) -> tuple[int, bool]:
    """What an event is, by its type or else its legacy phase, and whether its track is known by its id."""
    if typed >= 1 and typed <= 4:
        return typed, False
    if phase == 66:  # B
        return BEGIN, False
    if phase == 69:  # E
        return END, False
    if phase == 88:  # X
        return COMPLETE, False
    if phase == 105 or phase == 73 or phase == 82:  # i, I, R
        return INSTANT, False
    if phase == 98:  # b
        return BEGIN, True
    if phase == 101:  # e
        return END, True
    if phase == 110:  # n
        return INSTANT, True
    return NONE, False


def read_bodies(data: Bytes, low: Ints, high: Ints, wants_tokens: NDArray[np.bool_]) -> Bodies:
    """The rest of the events ``data[low[i]:high[i]]``, which ``read_heads`` found undamaged.

    Args:
        data: bytes of a block.
        low, high: of each event.
        wants_tokens: whose annotations are wanted.
    """
    rows = len(low)
    sizes = np.zeros(5, np.int64)
    _sizes(data, low, high, sizes)
    name = np.zeros(rows, np.uint64)
    name_at = np.full((2, rows), -1, np.int64)
    categories, flows, samples = (_empty(int(n)) for n in sizes[:3])
    uuids = np.zeros(int(sizes[2]), np.uint64)
    capacity = 2 * int(sizes[3]) + 16
    kind, a, b = (np.empty(capacity, t) for t in (np.int8, np.int64, np.int64))
    starts = np.zeros(rows + 1, np.int64)
    counts = _bodies(
        data, low, high, wants_tokens, name, name_at,
        categories.event, categories.value, categories.low, categories.high,
        flows.event, flows.value, flows.mark,
        samples.event, samples.value, samples.low, samples.high, samples.mark, uuids,
        starts, kind, a, b,
    )  # fmt: skip
    used = int(starts[-1])
    return Bodies(
        name, name_at[0], name_at[1],
        _cut(categories, counts[0]), _cut(flows, counts[1]), _cut(samples, counts[2]), uuids[: counts[2]],
        Tokens(data, starts, kind[:used].copy(), a[:used].copy(), b[:used].copy()),
    )  # fmt: skip


def _empty(count: int) -> References:
    return References(
        np.zeros(count, np.int64),
        np.zeros(count, np.uint64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )


def _cut(rows: References, count: int) -> References:
    return References(
        rows.event[:count], rows.value[:count], rows.low[:count], rows.high[:count], rows.mark[:count]
    )


@compiled
def _sizes(data: Bytes, low: Ints, high: Ints, sizes: Ints) -> None:
    """Upper bounds: categories, flows, samples, bytes of annotations."""
    for i in range(low.size):
        at, end = low[i], high[i]
        while at < end:
            field, wire, value = read_key(data, at, end)
            after = skip_value(data, value, end, wire)
            if field == _CATEGORY or field == _CATEGORY_IID:
                sizes[0] += after - at
            elif field == _FLOW or field == _FLOW_OLD or field == _END_FLOW or field == _END_FLOW_OLD:
                sizes[1] += after - at
            elif field == _COUNTER or field == _DOUBLE_COUNTER:
                sizes[2] += 1
            elif field == _EXTRA or field == _EXTRA_DOUBLE:
                sizes[2] += after - at
            elif field == _ANNOTATION:
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
    category_event: Ints,
    category_iid: NDArray[np.uint64],
    category_low: Ints,
    category_high: Ints,
    flow_event: Ints,
    flow_id: NDArray[np.uint64],
    flow_ends: Ints,
    sample_event: Ints,
    sample_bits: NDArray[np.uint64],
    sample_low: Ints,
    sample_high: Ints,
    sample_mark: Ints,
    sample_uuid: NDArray[np.uint64],
    starts: Ints,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
) -> tuple[int, int, int]:
    categories, flows, samples, token = 0, 0, 0, 0
    stack = np.zeros((MAX_DEPTH + 2, 5), np.int64)
    for i in range(low.size):
        at, end = low[i], high[i]
        first_sample = samples
        while at < end:
            field, wire, value = read_key(data, at, end)
            after = skip_value(data, value, end, wire)
            content = read_varint(data, value, end)[1] if wire == LENGTH else value
            if field == _NAME_IID and wire == VARINT:
                name[i] = read_varint(data, value, end)[0]
            elif field == _NAME and wire == LENGTH:
                name_at[0, i], name_at[1, i] = content, after
            elif field == _CATEGORY and wire == LENGTH:
                category_event[categories] = i
                category_low[categories], category_high[categories] = content, after
                categories += 1
            elif field == _CATEGORY_IID and (wire == VARINT or wire == LENGTH):
                inner, size = content, after
                while inner >= 0 and inner < size:
                    bits, inner = read_varint(data, inner, size)
                    category_event[categories], category_iid[categories] = i, bits
                    categories += 1
            elif field == _FLOW or field == _FLOW_OLD or field == _END_FLOW or field == _END_FLOW_OLD:
                is_end = field == _END_FLOW or field == _END_FLOW_OLD
                is_old = field == _FLOW_OLD or field == _END_FLOW_OLD
                inner = content
                while inner >= 0 and inner < after:
                    bits, inner = _element(data, inner, after, not is_old)
                    if inner < 0:
                        break
                    flow_event[flows], flow_id[flows], flow_ends[flows] = i, bits, is_end
                    flows += 1
            elif field == _COUNTER or field == _DOUBLE_COUNTER:
                is_double = field == _DOUBLE_COUNTER
                bits, _ = _element(data, value, after, is_double)
                sample_event[samples], sample_bits[samples] = i, bits
                sample_low[samples], sample_mark[samples] = -1, is_double
                samples += 1
            elif field == _EXTRA or field == _EXTRA_DOUBLE:
                is_double = field == _EXTRA_DOUBLE
                order = 0
                for k in range(first_sample, samples):
                    order += sample_low[k] >= 0 and sample_mark[k] == is_double
                inner = content
                while inner >= 0 and inner < after:
                    bits, inner = _element(data, inner, after, is_double)
                    if inner < 0:
                        break
                    sample_event[samples], sample_bits[samples] = i, bits
                    sample_low[samples], sample_high[samples] = order, 1
                    sample_mark[samples] = is_double
                    order += 1
                    samples += 1
            elif field == _LEGACY and wire == LENGTH and name[i] == np.uint64(0):
                name[i] = _legacy_name(data, content, after)
            elif field == _ANNOTATION and wire == LENGTH and wants_tokens[i]:
                token = _annotation(data, content, after, True, kind, a, b, token, stack)
            at = after
        if samples > first_sample:
            _own_tracks(
                data, low[i], end, first_sample, samples, sample_low, sample_high, sample_mark, sample_uuid
            )
        starts[i + 1] = token
    return categories, flows, samples


@compiled
def _element(data: Bytes, at: int, end: int, is_fixed: bool) -> tuple[np.uint64, int]:
    """One number of a repeated field, packed or not."""
    if is_fixed:
        if at + 8 > end:
            return np.uint64(0), -1
        return read_fixed64(data, at), at + 8
    return read_varint(data, at, end)


@compiled
def _legacy_name(data: Bytes, at: int, end: int) -> np.uint64:
    while at < end:
        field, wire, value = read_key(data, at, end)
        after = skip_value(data, value, end, wire)
        if field == _LEGACY_NAME and wire == VARINT:
            return read_varint(data, value, end)[0]
        at = after
    return np.uint64(0)


@compiled
def _own_tracks(
    data: Bytes,
    at: int,
    end: int,
    first: int,
    last: int,
    order: Ints,
    is_default: Ints,
    is_double: Ints,
    uuid: NDArray[np.uint64],
) -> None:
    """Tracks of extra counter samples that the event gives itself: the n-th of either kind to the n-th value."""
    seen_whole, seen_double = 0, 0
    while at < end:
        field, wire, value = read_key(data, at, end)
        after = skip_value(data, value, end, wire)
        if field == _EXTRA_UUID or field == _EXTRA_DOUBLE_UUID:
            double = 1 if field == _EXTRA_DOUBLE_UUID else 0
            inner = read_varint(data, value, end)[1] if wire == LENGTH else value
            while inner >= 0 and inner < after:
                bits, inner = read_varint(data, inner, after)
                seen = seen_double if double else seen_whole
                for k in range(first, last):
                    if order[k] == seen and is_double[k] == double:
                        uuid[k], is_default[k] = bits, 0
                if double:
                    seen_double += 1
                else:
                    seen_whole += 1
        at = after


@compiled
def _put(kind: NDArray[np.int8], a: Ints, b: Ints, token: int, what: int, first: int, second: int) -> int:
    if token < kind.size:
        kind[token], a[token], b[token] = what, first, second
        return token + 1
    return token


@compiled
def _annotation(
    data: Bytes,
    low: int,
    high: int,
    has_key: bool,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
    token: int,
    stack: NDArray[np.int64],
) -> int:
    """Tokens of a DebugAnnotation and what is nested in it.

    A frame of ``stack`` is a container: position and end of its message, field of its members, what closes it, and the position of the keys of a
    nested dictionary (-1 for none).
    """
    token, depth = _value(data, low, high, has_key, kind, a, b, token, stack, 0)
    while depth > 0:
        at, end = stack[depth - 1, 0], stack[depth - 1, 1]
        wanted, close = stack[depth - 1, 2], stack[depth - 1, 3]
        found = False
        while at < end:
            field, wire, value = read_key(data, at, end)
            after = skip_value(data, value, end, wire) if value >= 0 else value
            if after < 0:
                at = end
                break
            at = after
            if field == wanted and wire == LENGTH:
                content = read_varint(data, value, end)[1]
                stack[depth - 1, 0] = at
                found = True
                is_nested = wanted == _N_VALUES or (wanted == _N_ARRAY and stack[depth - 1, 4] != -2)
                if stack[depth - 1, 4] >= 0:
                    token = _nested_key(data, end, kind, a, b, token, stack, depth - 1)
                if is_nested:
                    token, depth = _nested(data, content, after, kind, a, b, token, stack, depth)
                else:
                    token, depth = _value(
                        data, content, after, close == CLOSE_OBJECT, kind, a, b, token, stack, depth
                    )
                break
        if not found:
            token = _put(kind, a, b, token, close, 0, 0)
            depth -= 1
    return token


@compiled
def _value(
    data: Bytes,
    low: int,
    high: int,
    has_key: bool,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
    token: int,
    stack: NDArray[np.int64],
    depth: int,
) -> tuple[int, int]:
    """Key and value of a DebugAnnotation; a container is opened and put on the stack."""
    what, first, second = NULL, 0, 0
    key, key_low, key_high, members = np.int64(0), -1, -1, 0
    at = low
    while at < high:
        field, wire, value = read_key(data, at, high)
        after = skip_value(data, value, high, wire) if value >= 0 else value
        if after < 0:
            break
        if wire == VARINT:
            bits = np.int64(read_varint(data, value, high)[0])
            if field == _A_NAME_IID:
                key = bits
            elif field == _A_BOOL:
                what, first = BOOL, np.int64(bits != 0)
            elif field == _A_UINT:
                what, first = UINT, bits
            elif field == _A_INT:
                what, first = INT, bits
            elif field == _A_POINTER:
                what, first = HEX, bits
            elif field == _A_STRING_IID:
                what, first = WORD, bits
        elif wire == FIXED64 and field == _A_DOUBLE:
            what, first = DOUBLE, np.int64(read_fixed64(data, value))
        elif wire == LENGTH:
            content = read_varint(data, value, high)[1]
            if field == _A_NAME:
                key_low, key_high = content, after
            elif field == _A_STRING or field == _A_JSON:
                what, first, second = TEXT, content, after
            elif field == _A_PROTO:
                what, first, second = BINARY, content, after
            elif field == _A_DICT or field == _A_ARRAY or field == _A_NESTED:
                members, first, second = field, content, after
        at = after
    if has_key and key_low >= 0:
        token = _put(kind, a, b, token, KEY_TEXT, key_low, key_high)
    elif has_key:
        token = _put(kind, a, b, token, KEY, key, 0)
    if members == _A_NESTED:
        return _nested(data, first, second, kind, a, b, token, stack, depth)
    if members == 0 or depth >= MAX_DEPTH:
        return _put(kind, a, b, token, NULL if members else what, first, second), depth
    is_dict = members == _A_DICT
    token = _put(kind, a, b, token, OPEN_OBJECT if is_dict else OPEN_ARRAY, 0, 0)
    stack[depth, 0], stack[depth, 1], stack[depth, 2] = low, high, members
    stack[depth, 3], stack[depth, 4] = CLOSE_OBJECT if is_dict else CLOSE_ARRAY, -2
    return token, depth + 1


@compiled
def _nested(
    data: Bytes,
    low: int,
    high: int,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
    token: int,
    stack: NDArray[np.int64],
    depth: int,
) -> tuple[int, int]:
    """A NestedValue, the older form of nesting."""
    what, first, second, members, typed = NULL, 0, 0, 0, 0
    at = low
    while at < high:
        field, wire, value = read_key(data, at, high)
        after = skip_value(data, value, high, wire) if value >= 0 else value
        if after < 0:
            break
        if wire == VARINT:
            bits = np.int64(read_varint(data, value, high)[0])
            if field == _N_TYPE:
                typed = bits
            elif field == _N_INT:
                what, first = INT, bits
            elif field == _N_BOOL:
                what, first = BOOL, np.int64(bits != 0)
        elif wire == FIXED64 and field == _N_DOUBLE:
            what, first = DOUBLE, np.int64(read_fixed64(data, value))
        elif wire == LENGTH and field == _N_STRING:
            what, first, second = TEXT, read_varint(data, value, high)[1], after
        elif wire == LENGTH and (field == _N_VALUES or field == _N_ARRAY):
            members = field
        at = after
    if typed == 1:
        members = _N_VALUES
    elif typed == 2:
        members = _N_ARRAY
    if members == 0 or depth >= MAX_DEPTH:
        return _put(kind, a, b, token, NULL if members else what, first, second), depth
    is_dict = members == _N_VALUES
    token = _put(kind, a, b, token, OPEN_OBJECT if is_dict else OPEN_ARRAY, 0, 0)
    stack[depth, 0], stack[depth, 1], stack[depth, 2] = low, high, members
    stack[depth, 3] = CLOSE_OBJECT if is_dict else CLOSE_ARRAY
    stack[depth, 4] = low if is_dict else -1
    return token, depth + 1


@compiled
def _nested_key(
    data: Bytes,
    end: int,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
    token: int,
    stack: NDArray[np.int64],
    frame: int,
) -> int:
    """The next key of a nested dictionary; an empty one where there are fewer keys than values."""
    at = stack[frame, 4]
    while at < end:
        field, wire, value = read_key(data, at, end)
        after = skip_value(data, value, end, wire) if value >= 0 else value
        if after < 0:
            break
        at = after
        if field == _N_KEYS and wire == LENGTH:
            stack[frame, 4] = at
            return _put(kind, a, b, token, KEY_TEXT, read_varint(data, value, end)[1], after)
    stack[frame, 4] = end
    return _put(kind, a, b, token, KEY_TEXT, 0, 0)
