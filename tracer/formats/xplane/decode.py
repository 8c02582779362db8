"""What do the events of one line of an XSpace say?

A compiled decoder of XEvent and XStat messages: columns and tokens (value_tokens.py), a chunk of the file at a time. Offsets and
durations are picoseconds from the line's timestamp; start and end are each rounded to ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.protobuf_wire import (
    LENGTH,
    VARINT,
    Bytes,
    Ints,
    WireFile,
    hash_bytes,
    read_field,
    read_fixed64,
    read_varint,
    signed,
)
from trnprof.tracer.formats.trace_json.value_tokens import (
    BINARY,
    DOUBLE,
    INT,
    KEY,
    NULL,
    TEXT,
    UINT,
    WORD,
    Tokens,
)
from trnprof.tracer.formats.xplane.file import CHUNK_BYTES, Line
from trnprof.tracer.formats.xplane.proto import XEVENT, XLINE, XSTAT, number

_LINE_EVENTS: Final = number(XLINE, "events")
_ID: Final = number(XEVENT, "metadata_id")
_OFFSET: Final = number(XEVENT, "offset_ps")
_DURATION: Final = number(XEVENT, "duration_ps")
_OCCURRENCES: Final = number(XEVENT, "num_occurrences")
_STATS: Final = number(XEVENT, "stats")
_STAT_ID: Final = number(XSTAT, "metadata_id")
_DOUBLE: Final = number(XSTAT, "double_value")
_UINT: Final = number(XSTAT, "uint64_value")
_INT: Final = number(XSTAT, "int64_value")
_STR: Final = number(XSTAT, "str_value")
_REF: Final = number(XSTAT, "ref_value")


@dataclass(frozen=True)
class Events:
    """Some events of a line, in file order; n rows.

    Attributes:
        metadata_id: what they are.
        start_ns, end_ns: on the clock of the line's timestamp; duration_ps as the file has it.
        duration_ps: exact.
        occurrences: how often it happened, for aggregated events, which have no start; 0 for others.
        fingerprint: hash of the whole event; 0 for one without a duration.
        tokens: its statistics; KEY and WORD tokens have ids of the plane's statistics metadata.
        damaged: events left out because their bytes are no XEvent, or too many.
    """

    metadata_id: Ints
    start_ns: Ints
    end_ns: Ints
    duration_ps: Ints
    occurrences: Ints
    fingerprint: NDArray[np.uint64]
    tokens: Tokens
    damaged: int


def line_events(file: WireFile, line: Line) -> Iterator[Events]:
    """The events of a line, a few MiB at a time; one that is larger than that is passed over and counts as damaged."""
    at = line.start
    while at < line.end:
        chunk = file.array(at, min(at + CHUNK_BYTES, line.end))
        events, stats, passed = _count(chunk, _LINE_EVENTS)
        if events:
            yield _decoded(chunk[:passed], events, stats, line.timestamp_ns)
        if not passed:
            found = next(file.fields(at, line.end), None)
            if found is None:
                break
            passed = found.end - at
            if found.number == _LINE_EVENTS:
                yield replace(_decoded(chunk[:0], 0, 0, line.timestamp_ns), damaged=1)
        at += passed


def _decoded(data: Bytes, events: int, stats: int, timestamp_ns: int) -> Events:
    columns = np.zeros((4, events), np.int64)
    prints, starts = np.zeros(events, np.uint64), np.zeros(events + 1, np.int64)
    kind, a, b = (
        np.zeros(2 * stats, np.int8),
        np.zeros(2 * stats, np.int64),
        np.zeros(2 * stats, np.int64),
    )
    rows, tokens = _decode(data, _LINE_EVENTS, columns, prints, starts, kind, a, b)
    identity, offset, duration, occurrences = columns[:, :rows]
    return Events(
        metadata_id=identity,
        start_ns=timestamp_ns + _rounded(offset),
        end_ns=timestamp_ns + _rounded(offset + duration),
        duration_ps=duration,
        occurrences=occurrences,
        fingerprint=np.where(duration > 0, prints[:rows], np.uint64(0)),
        tokens=Tokens(data, starts[: rows + 1], kind[:tokens], a[:tokens], b[:tokens]),
        damaged=events - rows,
    )


def _rounded(picoseconds: Ints) -> Ints:
    """To the nearest ns, halves up; without overflow."""
    whole = picoseconds // 1000
    nearest: Ints = whole + (picoseconds - whole * 1000 >= 500)
    return nearest


@compiled
def _count(data: Bytes, events: int) -> tuple[int, int, int]:
    """Whole events and their statistics, and where the first field lies that is not whole."""
    at, count, stats = 0, 0, 0
    while at < data.size:
        field, wire, value, after = read_field(data, at, data.size)
        if after < 0:
            break
        if field == events and wire == LENGTH:
            count += 1
            _, inner = read_varint(data, value, data.size)
            while inner < after:
                member, _kind, _content, inner = read_field(data, inner, after)
                if inner < 0:
                    break
                stats += member == _STATS
        at = after
    return count, stats, at


@compiled
def _decode(
    data: Bytes,
    events: int,
    columns: NDArray[np.int64],
    prints: NDArray[np.uint64],
    starts: Ints,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
) -> tuple[int, int]:
    """Fill the columns; rows and tokens written. A damaged event is overwritten by the next."""
    at, row, token = 0, 0, 0
    while at < data.size:
        field, wire, value, after = read_field(data, at, data.size)
        if field == events and wire == LENGTH:
            _, low = read_varint(data, value, data.size)
            columns[:, row] = 0
            last = _event(data, low, after, columns, row, kind, a, b, token)
            if last >= 0:
                prints[row] = hash_bytes(data, low, after)
                token = last
                row += 1
                starts[row] = token
        at = after
    return row, token


@compiled
def _event(
    data: Bytes,
    at: int,
    end: int,
    columns: NDArray[np.int64],
    row: int,
    kind: NDArray[np.int8],
    a: Ints,
    b: Ints,
    token: int,
) -> int:
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if after < 0:
            return -1
        if wire == VARINT:
            bits = signed(read_varint(data, value, end)[0])
            if field == _ID:
                columns[0, row] = bits
            elif field == _OFFSET:
                columns[1, row] = bits
            elif field == _DURATION:
                columns[2, row] = bits
            elif field == _OCCURRENCES:
                columns[3, row] = bits
        elif field == _STATS and wire == LENGTH:
            _, low = read_varint(data, value, end)
            if not _stat(data, low, after, kind, a, b, token):
                return -1
            token += 2
        at = after
    return token


@compiled
def _stat(
    data: Bytes, at: int, end: int, kind: NDArray[np.int8], a: Ints, b: Ints, token: int
) -> bool:
    kind[token], a[token], b[token] = KEY, 0, 0
    kind[token + 1], a[token + 1], b[token + 1] = NULL, 0, 0
    while at < end:
        field, wire, value, after = read_field(data, at, end)
        if after < 0:
            return False
        if field == _STAT_ID and wire == VARINT:
            a[token] = signed(read_varint(data, value, end)[0])
        elif wire == VARINT and field in (_UINT, _INT, _REF):
            a[token + 1] = signed(read_varint(data, value, end)[0])
            kind[token + 1] = UINT if field == _UINT else INT if field == _INT else WORD
        elif field == _DOUBLE and wire == 1:
            a[token + 1], kind[token + 1] = signed(read_fixed64(data, value)), DOUBLE
        elif wire == LENGTH:
            a[token + 1], b[token + 1] = read_varint(data, value, end)[1], after
            kind[token + 1] = TEXT if field == _STR else BINARY
        at = after
    return True
