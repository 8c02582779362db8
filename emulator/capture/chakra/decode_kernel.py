"""Where are the messages of an execution trace, and what do its nodes say? Compiled, into columns: traces have millions of nodes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.fabric.fabric import I64
from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.protobuf_wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    MALFORMED,
    VARINT,
    Bytes,
    read_field,
    read_fixed64,
    read_varint,
    signed,
)

ABSENT: Final = -(1 << 63)
"""In place of an attribute that a node does not have."""

_ATTRIBUTE_BYTES: Final = np.frombuffer(b"".join(schema.ATTRIBUTES), np.uint8).copy()
_ATTRIBUTE_ENDS: Final = np.cumsum([len(name) for name in schema.ATTRIBUTES])


class NodeColumns(NamedTuple):
    """What n nodes say, filled in by ``read_nodes``.

    Attributes:
        id: uint64[n].
        type: int64[n].
        duration_us: int64[n].
        names: int64[n, 2], first byte and end of each name.
        inputs: int64[n, 2], of the values of its inputs.
        texts: int64[n, 2], of its pg_name; empty where that is a number.
        values: int64[n, attributes], ABSENT where there is none; of involved_dim 1 if it holds a false.
        dependency_offsets: int64[n + 1].
    """

    id: NDArray[np.uint64]
    type: I64
    duration_us: I64
    names: I64
    inputs: I64
    texts: I64
    values: I64
    dependency_offsets: I64


def empty_columns(count: int) -> NodeColumns:
    """Columns for so many nodes."""
    values = np.full((count, len(schema.ATTRIBUTES)), ABSENT, np.int64)
    return NodeColumns(
        id=np.zeros(count, np.uint64),
        type=np.zeros(count, np.int64),
        duration_us=np.zeros(count, np.int64),
        names=np.zeros((count, 2), np.int64),
        inputs=np.zeros((count, 2), np.int64),
        texts=np.zeros((count, 2), np.int64),
        values=values,
        dependency_offsets=np.zeros(count + 1, np.int64),
    )


@compiled
def find_messages(data: Bytes, spans: I64) -> tuple[int, int, int]:
    """Where the messages of a file lie.

    Args:
        data: the file.
        spans: int64[m, 2], filled with where each begins and ends; with m of 0 they are only counted.

    Returns:
        How many there are, the position where the last whole one ends, and 0, or MALFORMED or CUT for what follows it.
    """
    at, count = 0, 0
    while at < data.size:
        length, first = read_varint(data, at, data.size)
        if first < 0:
            return count, at, first
        if length > np.uint64(data.size - first):
            return count, at, -2
        if spans.shape[0]:
            spans[count, 0], spans[count, 1] = first, first + np.int64(length)
        at = first + np.int64(length)
        count += 1
    return count, at, 0


@compiled
def read_nodes(
    data: Bytes, spans: I64, columns: NodeColumns, dependencies: NDArray[np.uint64]
) -> tuple[int, int]:
    """Read all nodes.

    Args:
        data: the file.
        spans: int64[n, 2], of the nodes.
        columns: filled.
        dependencies: uint64[d], filled with ids; with d of 0 they are only counted.

    Returns:
        How many dependencies there are, and the index of the first node that is malformed, -1 if none is, or -2 less its index if it is of
        an older schema.
    """
    found = 0
    for node in range(spans.shape[0]):
        columns.dependency_offsets[node] = found
        at, end = spans[node]
        is_old = False
        while at < end:
            number, wire, value, after = read_field(data, at, end)
            if after < 0:
                return found, node
            if wire == VARINT:
                content, _ = read_varint(data, value, end)
                if number == schema.NODE_ID:
                    columns.id[node] = content
                elif number == schema.NODE_TYPE:
                    columns.type[node] = signed(content)
                elif number == schema.DURATION_MICROS:
                    columns.duration_us[node] = signed(content)
                elif number in (schema.CTRL_DEPS, schema.DATA_DEPS):
                    if dependencies.size:
                        dependencies[found] = content
                    found += 1
            elif wire == LENGTH:
                _, first = read_varint(data, value, end)
                if number in (schema.CTRL_DEPS, schema.DATA_DEPS):
                    found = _read_packed(data, first, after, dependencies, found)
                elif number == schema.NODE_NAME:
                    columns.names[node, 0], columns.names[node, 1] = first, after
                elif number == schema.INPUTS:
                    _read_values(data, first, after, columns.inputs[node])
                elif number == schema.ATTR and not _read_attribute(
                    data, first, after, columns.values[node], columns.texts[node]
                ):
                    return found, node
                is_old = is_old or number == schema.OLD_ATTRIBUTE
            if found < 0:
                return 0, node
            at = after
        if is_old and columns.type[node] <= schema.COMM_COLL:
            return found, -2 - node
    columns.dependency_offsets[spans.shape[0]] = found
    return found, -1


@compiled
def _read_packed(
    data: Bytes, at: int, end: int, dependencies: NDArray[np.uint64], found: int
) -> Any:
    """The number of dependencies after a packed list of them, MALFORMED if it is none."""
    while at < end:
        content, at = read_varint(data, at, end)
        if at < 0:
            return MALFORMED
        if dependencies.size:
            dependencies[found] = content
        found += 1
    return found


@compiled
def _read_values(data: Bytes, at: int, end: int, span: I64) -> None:
    """Where the values of an IOInfo lie."""
    while at < end:
        number, wire, value, after = read_field(data, at, end)
        if after < 0:
            return
        if number == schema.IO_VALUES and wire == LENGTH:
            _, span[0] = read_varint(data, value, end)
            span[1] = after
        at = after


@compiled
def _read_attribute(data: Bytes, at: int, end: int, values: I64, text: I64) -> bool:
    """Note the value of an attribute if it is one that is read; False if it is malformed."""
    attribute = -1
    while at < end:
        number, wire, value, after = read_field(data, at, end)
        if after < 0:
            return False
        if number == schema.ATTR_NAME and wire == LENGTH:
            _, first = read_varint(data, value, end)
            attribute = _known_name(data, first, after)
        elif attribute == schema.INVOLVED_DIM and number == schema.BOOL_LIST and wire == LENGTH:
            values[attribute] = _holds_false(data, value, after)
        elif attribute == schema.PG_NAME and number == schema.STRING and wire == LENGTH:
            _, text[0] = read_varint(data, value, end)
            text[1] = after
        elif attribute >= 0 and wire != LENGTH:
            values[attribute] = _number(data, number, wire, value, end)
        at = after
    return True


@compiled
def _holds_false(data: Bytes, value: int, end: int) -> Any:
    """Whether a BoolList has a false: 1 or 0; of one that is not packed as well."""
    _, at = read_varint(data, value, end)
    while at < end:
        _, wire, inner, after = read_field(data, at, end)
        if after < 0:
            return 1
        if wire == LENGTH:
            _, inner = read_varint(data, inner, end)
        for place in range(inner, after):
            if data[place] == 0:
                return 1
        at = after
    return 0


@compiled
def _known_name(data: Bytes, first: int, end: int) -> Any:
    """The number of an attribute's name, -1 for any other."""
    begin = 0
    for attribute in range(_ATTRIBUTE_ENDS.size):
        length = _ATTRIBUTE_ENDS[attribute] - begin
        if length == end - first:
            same = 0
            while same < length and data[first + same] == _ATTRIBUTE_BYTES[begin + same]:
                same += 1
            if same == length:
                return attribute
        begin = _ATTRIBUTE_ENDS[attribute]
    return -1


@compiled
def _number(data: Bytes, number: int, wire: int, value: int, end: int) -> Any:
    """A value of any numeric kind as an integer."""
    if wire == VARINT:
        content, _ = read_varint(data, value, end)
        if number in (schema.SINT32, schema.SINT64):
            return np.int64(content >> np.uint64(1)) ^ -np.int64(content & np.uint64(1))
        return np.int64(content)
    if wire == FIXED64:
        content = read_fixed64(data, value)
        if number == schema.DOUBLE:
            one = np.empty(1, np.uint64)
            one[0] = content
            return np.int64(round(one.view(np.float64)[0]))
        return np.int64(content)
    if wire == FIXED32:
        four = data[value : value + 4].copy()
        if number == schema.FLOAT:
            return np.int64(round(np.float64(four.view(np.float32)[0])))
        if number == schema.SFIXED32:
            return np.int64(four.view(np.int32)[0])
        return np.int64(four.view(np.uint32)[0])
    return ABSENT
