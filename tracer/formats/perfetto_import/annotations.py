"""Which values do the debug annotations of an event hold, nested ones included?

A compiled decoder of DebugAnnotation messages into tokens (value_tokens.py), with a stack of its own in place of recursion.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled
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
)

_A: Final = pb.DebugAnnotation
_NAME: Final = number(_A, "name")
_NAME_IID: Final = number(_A, "name_iid")
_BOOL: Final = number(_A, "bool_value")
_UINT: Final = number(_A, "uint_value")
_INT: Final = number(_A, "int_value")
_DOUBLE: Final = number(_A, "double_value")
_POINTER: Final = number(_A, "pointer_value")
_NESTED: Final = number(_A, "nested_value")
_JSON: Final = number(_A, "legacy_json_value")
_STRING: Final = number(_A, "string_value")
_STRING_IID: Final = number(_A, "string_value_iid")
_PROTO: Final = number(_A, "proto_value")
_DICT: Final = number(_A, "dict_entries")
_ARRAY: Final = number(_A, "array_values")
_N: Final = pb.DebugAnnotation.NestedValue
_N_TYPE: Final = number(_N, "nested_type")
_N_KEYS: Final = number(_N, "dict_keys")
_N_VALUES: Final = number(_N, "dict_values")
_N_ARRAY: Final = number(_N, "array_values")
_N_INT: Final = number(_N, "int_value")
_N_DOUBLE: Final = number(_N, "double_value")
_N_BOOL: Final = number(_N, "bool_value")
_N_STRING: Final = number(_N, "string_value")
_N_DICT_TYPE: Final = int(_N.DICT)
_N_ARRAY_TYPE: Final = int(_N.ARRAY)

AT, END, MEMBERS, CLOSE, KEYS = range(5)
"""Columns of the stack: position in the container's message and its end, field of its members, what closes it, and the position of the keys of an
older dictionary, or one of these:"""
_OLDER_ARRAY: Final = -1
_NEWER: Final = -2


class Sink(NamedTuple):
    """Where tokens go; enough room for two a byte of annotations."""

    kind: NDArray[np.int8]
    a: Ints
    b: Ints


@compiled
def put_token(sink: Sink, token: int, what: int, first: int, second: int) -> int:
    """Write one token; the position after it."""
    if token >= sink.kind.size:
        return token
    sink.kind[token], sink.a[token], sink.b[token] = what, first, second
    return token + 1


@compiled
def put_annotation(
    data: Bytes, low: int, high: int, sink: Sink, token: int, stack: NDArray[np.int64]
) -> int:
    """Write the tokens of the annotation ``data[low:high]``; the position after them.

    Args:
        data: bytes of a block.
        low: where it begins.
        high: where it ends.
        sink: takes the tokens.
        token: position of the first.
        stack: MAX_DEPTH + 2 rows of scratch.
    """
    token, depth = _value(data, low, high, True, sink, token, stack, 0)
    while depth > 0:
        frame = stack[depth - 1]
        content, after = _next_member(data, frame)
        if content < 0:
            token = put_token(sink, token, frame[CLOSE], 0, 0)
            depth -= 1
        elif frame[KEYS] == _NEWER:
            is_dict = frame[CLOSE] == CLOSE_OBJECT
            token, depth = _value(data, content, after, is_dict, sink, token, stack, depth)
        else:
            if frame[KEYS] >= 0:
                token = _older_key(data, frame, sink, token)
            token, depth = _older_value(data, content, after, sink, token, stack, depth)
    return token


@compiled
def _next_member(data: Bytes, frame: Ints) -> tuple[Any, Any]:
    """Content of the next member of a container; -1 if there is no more."""
    at, end = frame[AT], frame[END]
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if after < 0:
            break
        at = after
        if field == frame[MEMBERS] and wire == LENGTH:
            frame[AT] = at
            return read_varint(data, value, end)[1], after
    frame[AT] = end
    return -1, -1


@compiled
def _open(
    is_dict: bool,
    low: int,
    high: int,
    members: int,
    keys: int,
    sink: Sink,
    token: int,
    stack: NDArray[np.int64],
    depth: int,
) -> tuple[Any, Any]:
    token = put_token(sink, token, OPEN_OBJECT if is_dict else OPEN_ARRAY, 0, 0)
    frame = stack[depth]
    frame[AT], frame[END], frame[MEMBERS], frame[KEYS] = low, high, members, keys
    frame[CLOSE] = CLOSE_OBJECT if is_dict else CLOSE_ARRAY
    return token, depth + 1


@compiled
def _value(
    data: Bytes,
    low: int,
    high: int,
    has_key: bool,
    sink: Sink,
    token: int,
    stack: NDArray[np.int64],
    depth: int,
) -> tuple[Any, Any]:
    """Key and value of a DebugAnnotation; a container is opened and put on the stack."""
    what, first, second = NULL, signed(0), signed(0)
    key, key_low, key_high, members = signed(0), signed(-1), signed(-1), 0
    at = low
    while at < high:
        field, wire, value, after = read_field(data, at, high)
        if after < 0:
            break
        at = after
        if wire == LENGTH:
            content = read_varint(data, value, high)[1]
            if field == _NAME:
                key_low, key_high = content, after
            elif field in (_DICT, _ARRAY, _NESTED):
                members, first, second = field, content, after
            elif field in (_STRING, _JSON, _PROTO):
                what, first, second = BINARY if field == _PROTO else TEXT, content, after
        elif wire == FIXED64 and field == _DOUBLE:
            what, first = DOUBLE, signed(read_fixed64(data, value))
        elif wire == VARINT:
            bits = signed(read_varint(data, value, high)[0])
            kind = _scalar_kind(field)
            if field == _NAME_IID:
                key = bits
            elif kind != NULL:
                what, first = kind, signed(bits != 0) if kind == BOOL else bits
    if has_key and key_low >= 0:
        token = put_token(sink, token, KEY_TEXT, key_low, key_high)
    elif has_key:
        token = put_token(sink, token, KEY, key, 0)
    if members == _NESTED:
        return _older_value(data, first, second, sink, token, stack, depth)
    if members == 0:
        return put_token(sink, token, what, first, second), depth
    if depth >= MAX_DEPTH:
        return put_token(sink, token, NULL, 0, 0), depth
    return _open(members == _DICT, low, high, members, _NEWER, sink, token, stack, depth)


@compiled
def _scalar_kind(field: int) -> int:
    """Token of a value that is a varint, NULL if it is none."""
    if field == _INT:
        return INT
    if field == _UINT:
        return UINT
    if field == _BOOL:
        return BOOL
    if field == _POINTER:
        return HEX
    return WORD if field == _STRING_IID else NULL


@compiled
def _older_value(
    data: Bytes,
    low: int,
    high: int,
    sink: Sink,
    token: int,
    stack: NDArray[np.int64],
    depth: int,
) -> tuple[Any, Any]:
    """A NestedValue, the older form of nesting."""
    what, first, second = NULL, signed(0), signed(0)
    members, typed = 0, signed(0)
    at = low
    while at < high:
        field, wire, value, after = read_field(data, at, high)
        if after < 0:
            break
        at = after
        if wire == VARINT:
            bits = signed(read_varint(data, value, high)[0])
            if field == _N_TYPE:
                typed = bits
            elif field == _N_INT:
                what, first = INT, bits
            elif field == _N_BOOL:
                what, first = BOOL, signed(bits != 0)
        elif wire == FIXED64 and field == _N_DOUBLE:
            what, first = DOUBLE, signed(read_fixed64(data, value))
        elif wire == LENGTH and field == _N_STRING:
            what, first, second = TEXT, read_varint(data, value, high)[1], after
        elif wire == LENGTH and field in (_N_VALUES, _N_ARRAY):
            members = field
    if typed == _N_DICT_TYPE:
        members = _N_VALUES
    elif typed == _N_ARRAY_TYPE:
        members = _N_ARRAY
    if members == 0:
        return put_token(sink, token, what, first, second), depth
    if depth >= MAX_DEPTH:
        return put_token(sink, token, NULL, 0, 0), depth
    is_dict = members == _N_VALUES
    keys = low if is_dict else _OLDER_ARRAY
    return _open(is_dict, low, high, members, keys, sink, token, stack, depth)


@compiled
def _older_key(data: Bytes, frame: Ints, sink: Sink, token: int) -> int:
    """The next key of an older dictionary; an empty one where there are fewer keys than values."""
    at, end = frame[KEYS], frame[END]
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if after < 0:
            break
        at = after
        if field == _N_KEYS and wire == LENGTH:
            frame[KEYS] = at
            return put_token(sink, token, KEY_TEXT, read_varint(data, value, end)[1], after)
    frame[KEYS] = end
    return put_token(sink, token, KEY_TEXT, 0, 0)
