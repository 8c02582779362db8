"""Where are the members of each event of a Chrome-style JSON array? The compiled loop over a block of bytes.

One pass finds, for every event, where the asked-for members lie. Nothing is decoded and nothing copied. An event that is not
strictly JSON carries bits that say why, so that it can be counted and its text be put right when somebody wants it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.json_simd import (
    byte_at,
    compiled,
    inlined,
    int32_at,
    set_byte,
    set_int32,
    word_at,
)
from trnprof.tracer.formats.json_tokens import (
    BACKSLASH,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON_SIGN,
    COMMA_SIGN,
    LETTER_U,
    OPEN_ARRAY,
    OPEN_OBJECT,
    QUOTE,
    SLASH,
    ABSENT,
    COMMA,
    ERROR,
    ESCAPED,
    FIRST_KEY,
    INCOMPLETE,
    KEY,
    MISSING_COMMA,
    OBJECT,
    OK,
    QUOTE_ESCAPED,
    STRAY_COMMA,
    STRING,
    is_space,
    skip_space,
    string_end,
    value_end,
)

# further bits beside the faults of an event
HAS_UNKNOWN: Final = 1024  # it has members that nobody asked for
ARGS_DIRTY: Final = 2048  # its faults touch its arguments

# how a run over events ended
MORE: Final = 0  # the event at the position goes on past the bytes there are
FULL: Final = 1  # no room for more rows
END: Final = 2  # past the closing bracket
CLOSED: Final = 3  # past a closing brace: the array was not closed
MEMBER: Final = 4  # at a member of the object around: the array was not closed

_SLOTS: Final = 512
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


class KeyTable(NamedTuple):
    """Hash table of member names: level 0 the members of events, level 1 those of their arguments.

    Attributes:
        first: uint64[2 * slots], the first eight bytes of the name, zeros behind a short one.
        entry: int32[2 * slots, 2], bytes of the name (-1: empty slot) and number of the field.
        names: uint8[fields * width], the names.
        width: bytes of a name's room.
    """

    first: NDArray[np.uint64]
    entry: NDArray[np.int32]
    names: NDArray[np.uint8]
    width: int


class Keys(NamedTuple):
    """Addresses of a KeyTable, for compiled code, and where the arguments are.

    Attributes:
        args: number of the field that holds the arguments.
        args_first, args_end: numbers of the fields inside them.
        fields: number of fields.
    """

    first: int
    entry: int
    names: int
    width: int
    args: int
    args_first: int
    args_end: int
    fields: int


class Rows(NamedTuple):
    """Where the fields of each event are; second axis: the event.

    Attributes:
        start, length: int32[fields, n], where its text is in the buffer, quotes of strings left out.
        kind: uint8[fields, n].
        first, last: int32[n], where the event begins and ends.
        marks: int32[n], faults and further bits.
    """

    start: NDArray[np.int32]
    length: NDArray[np.int32]
    kind: NDArray[np.uint8]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    marks: NDArray[np.int32]


class Cells(NamedTuple):
    """Addresses of the arrays of Rows, for compiled code."""

    start: int
    length: int
    kind: int
    capacity: int


class Counts(NamedTuple):
    """What happened besides whole events; int64 arrays of one element, so that compiled code can change them.

    Attributes:
        expect: state between events: 0 at the start of the array, 1 after an event, 2 after a comma.
        previous: the last byte passed in search of where events begin again.
        lost_from: position in the file from which bytes are skipped until an event begins again, -1: none are.
        is_cut: whether the file ended inside what could not be read.
        budget: bytes that may still be tried in search of where events begin again.
        empty: events without members, which are left out.
        not_events: elements of the array that are no objects.
        commas: commas missing or too many between events.
        first_comma, first_not_event: position in the file of the first of those.
        lost: stretches that could not be read.
        lost_bytes: bytes of them.
        first_lost: position in the file of the first.
    """

    expect: NDArray[np.int64]
    previous: NDArray[np.int64]
    lost_from: NDArray[np.int64]
    is_cut: NDArray[np.int64]
    budget: NDArray[np.int64]
    empty: NDArray[np.int64]
    not_events: NDArray[np.int64]
    commas: NDArray[np.int64]
    first_comma: NDArray[np.int64]
    first_not_event: NDArray[np.int64]
    lost: NDArray[np.int64]
    lost_bytes: NDArray[np.int64]
    first_lost: NDArray[np.int64]


def new_counts() -> Counts:
    """Counts of nothing."""
    counts = Counts(*(np.zeros(1, np.int64) for _ in Counts._fields))
    counts.lost_from[0] = -1
    return counts


@inlined
def _slot(first: Any, length: Any) -> Any:
    mixed = (first ^ np.uint64(length)) * _MULTIPLIER
    return np.int64(mixed >> np.uint64(55))


@compiled
def _fill(first: Any, entry: Any, names: Any, lengths: Any, levels: Any) -> None:
    for field in range(len(lengths)):
        length = np.int64(lengths[field])
        head = np.uint64(0)
        for k in range(min(8, length)):
            head |= np.uint64(names[field, k]) << np.uint64(8 * k)
        slot, offset = _slot(head, length), levels[field] * _SLOTS
        while entry[offset + slot, 0] >= 0:
            slot = (slot + 1) & (_SLOTS - 1)
        first[offset + slot] = head
        entry[offset + slot, 0] = length
        entry[offset + slot, 1] = field


def make_table(members: tuple[str, ...], args: tuple[str, ...]) -> KeyTable:
    """The table of these names; fields are numbered members first. At most 400 of each."""
    names = [name.encode() for name in (*members, *args)]
    width = max((len(name) for name in names), default=0) + 8
    matrix = np.zeros((max(1, len(names)), width), np.uint8)
    for row, name in enumerate(names):
        matrix[row, : len(name)] = np.frombuffer(name, np.uint8)
    first, entry = np.zeros(2 * _SLOTS, np.uint64), np.full((2 * _SLOTS, 2), -1, np.int32)
    lengths = np.array([len(name) for name in names], np.int64)
    levels = np.array([0] * len(members) + [1] * len(args), np.int64)
    _fill(first, entry, matrix, lengths, levels)
    return KeyTable(first, entry, matrix, width)


@inlined
def find_key(keys: Any, base: Any, level: Any, start: Any, end: Any) -> Any:
    """Number of the field with the name at ``start``, -1 if it is none of them."""
    length = end - start
    head = word_at(base, start)
    if length < 8:
        head &= (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
    slot = _slot(head, length)
    while True:
        at = level * _SLOTS + slot
        size = int32_at(keys.entry, 2 * at)
        if size < 0:
            return -1
        if size == length and word_at(keys.first, 8 * at) == head:
            field = int32_at(keys.entry, 2 * at + 1)
            k = 8
            while k < length and byte_at(base, start + k) == byte_at(
                keys.names, field * keys.width + k
            ):
                k += 1
            if k >= length:
                return field
        slot = (slot + 1) & (_SLOTS - 1)


@compiled
def _unescaped_key(base: Any, start: Any, end: Any, scratch: Any) -> Any:
    """Length of the key without its escapes, put to the address ``scratch``; -1 if it cannot be one that is looked for."""
    count = 0
    i = start
    while i < end:
        if count >= 128:
            return -1
        c = byte_at(base, i)
        i += 1
        if c == BACKSLASH and i < end:
            c = byte_at(base, i)
            i += 1
            if c == LETTER_U:
                code = 0
                for _ in range(4):
                    h = byte_at(base, i) if i < end else 0
                    digit = h - 48 if h <= 57 else (h | 32) - 87
                    if digit < 0 or digit > 15:
                        return -1
                    code = code * 16 + digit
                    i += 1
                if code > 127:
                    return -1
                c = code
            elif not (c == QUOTE or c == BACKSLASH or c == SLASH):
                return -1
        set_byte(scratch, count, c)
        count += 1
    return count


@compiled
def find_escaped_key(keys: Any, base: Any, level: Any, start: Any, end: Any, scratch: Any) -> Any:
    """As ``find_key``, for a name with backslashes; ``scratch`` is the address of 256 bytes."""
    length = _unescaped_key(base, start, end, scratch)
    return -1 if length < 0 else find_key(keys, scratch, level, 0, length)


@compiled
def parse_event(
    base: Any, i: Any, end: Any, lenient: Any, keys: Any, cells: Any, row: Any, scratch: Any
) -> Any:
    """(status, position past it, marks, members) of the event at ``i``, an opening brace; its fields go to ``row``."""
    for field in range(keys.fields):
        set_byte(cells.kind, field * cells.capacity + row, ABSENT)
    args_cell = keys.args * cells.capacity + row
    level, state, marks, members = 0, FIRST_KEY, 0, 0
    i += 1
    while True:
        i = skip_space(base, i, end)
        if i >= end:
            return INCOMPLETE, i, marks, members
        c = byte_at(base, i)
        if c == COMMA_SIGN:
            if state != COMMA:
                marks |= STRAY_COMMA | (ARGS_DIRTY if level else 0)
            state = KEY
            i = skip_space(base, i + 1, end)
            if i >= end:
                return INCOMPLETE, i, marks, members
            c = byte_at(base, i)
        if c == CLOSE_OBJECT:
            i += 1
            if state == KEY:
                marks |= STRAY_COMMA | (ARGS_DIRTY if level else 0)
            if level == 0:
                return OK, i, marks, members
            level, state = 0, COMMA
            set_int32(cells.length, args_cell, i - int32_at(cells.start, args_cell))
            continue
        if c != QUOTE:
            if c == COMMA_SIGN:
                continue
            return ERROR, i, marks, members
        if state == COMMA:
            marks |= MISSING_COMMA | (ARGS_DIRTY if level else 0)
        key = i + 1
        key_end, found, escaped = string_end(base, key, end, lenient)
        if key_end < 0:
            return INCOMPLETE, end, marks, members
        i = skip_space(base, key_end + 1, end)
        if i < end and byte_at(base, i) != COLON_SIGN:
            return ERROR, i, marks, members
        i = skip_space(base, i + 1, end)
        if i >= end:
            return INCOMPLETE, end, marks, members
        if escaped:
            field = find_escaped_key(keys, base, level, key, key_end, scratch)
        else:
            field = find_key(keys, base, level, key, key_end)
        state = COMMA
        members += 1
        cell = field * cells.capacity + row
        if level == 0 and field == keys.args:
            for inner in range(keys.args_first, keys.args_end):
                set_byte(cells.kind, inner * cells.capacity + row, ABSENT)
            marks &= ~ARGS_DIRTY
            if byte_at(base, i) == OPEN_OBJECT:
                marks |= found
                set_int32(cells.start, cell, i)
                set_byte(cells.kind, cell, OBJECT)
                level, state = 1, FIRST_KEY
                i += 1
                continue
        status, j, kind, more = value_end(base, i, end, lenient)
        found |= more
        if status != OK:
            return status, j, marks | found, members
        if found:
            marks |= found | (ARGS_DIRTY if level or field == keys.args else 0)
        if field >= 0:
            quote = 1 if kind == STRING or kind == ESCAPED else 0
            set_int32(cells.start, cell, i + quote)
            set_int32(cells.length, cell, j - i - 2 * quote)
            set_byte(cells.kind, cell, kind)
        elif level == 0:
            marks |= HAS_UNKNOWN
        i = j


@inlined
def _lose(counts: Any, position: Any) -> None:
    """Begin a stretch that cannot be read."""
    _note(counts.lost, counts.first_lost, position)
    counts.lost_from[0] = position
    counts.previous[0] = 0


@inlined
def _note(count: Any, first: Any, position: Any) -> None:
    if count[0] == 0:
        first[0] = position
    count[0] += 1


_TRIED_BYTES: Final = 1 << 16
"""An event that follows something unreadable must end within so many bytes to be recognised."""
_BUDGET_FACTOR: Final = 8
"""Bytes that may be tried a byte passed."""


@compiled
def _resume(
    base: Any, i: Any, end: Any, is_final: Any, keys: Any, cells: Any, row: Any, counts: Any, scratch: Any
) -> Any:
    """Where events begin again at or after ``i`` after something unreadable: (position, whether it was found).

    A brace after a brace, bracket or comma at which an event with a phase (field 0) can be read. Not found: the position up to
    which there surely is none.
    """
    budget, previous = counts.budget, counts.previous[0]
    while i < end:
        c = byte_at(base, i)
        if (
            c == OPEN_OBJECT
            and (previous == COMMA_SIGN or previous == CLOSE_OBJECT or previous == OPEN_ARRAY)
            and budget[0] > 0
        ):
            reach = min(end, i + _TRIED_BYTES)
            status, j, _, _ = parse_event(base, i, reach, False, keys, cells, row, scratch)
            if status == OK and byte_at(cells.kind, row) != ABSENT:
                return i, True
            if status == INCOMPLETE and reach == end and not is_final:
                counts.previous[0] = previous
                return i, False
            budget[0] -= min(j, end) - i
        budget[0] = min(budget[0] + _BUDGET_FACTOR, 8 * _TRIED_BYTES)
        if not is_space(c):
            previous = c
        i += 1
    counts.previous[0] = previous
    return i, False


@inlined
def _read_event(
    base: Any, i: Any, end: Any, is_final: Any, keys: Any, cells: Any, row: Any, counts: Any, scratch: Any
) -> Any:
    """As ``parse_event``, once more if need be for a writer that does not escape backslashes."""
    status, j, marks, members = parse_event(base, i, end, False, keys, cells, row, scratch)
    if status == ERROR or (status == INCOMPLETE and is_final):
        counts.is_cut[0] = 1 if status == INCOMPLETE else 0
        status, j, marks, members = parse_event(base, i, end, True, keys, cells, row, scratch)
        if status == OK and not marks & QUOTE_ESCAPED:
            status = ERROR
        if status == INCOMPLETE and is_final:
            status = ERROR
    return status, j, marks, members


@compiled
def _pass_element(base: Any, i: Any, end: Any, is_final: Any, origin: Any, counts: Any) -> Any:
    """Pass an element of the array that is no event: (MORE, MEMBER or OK as -1, position)."""
    status, j, kind, _ = value_end(base, i, end, False)
    if status == INCOMPLETE and not is_final:
        return MORE, i
    if kind == STRING and status == OK:
        k = skip_space(base, j, end)
        if k >= end and not is_final:
            return MORE, i
        if k < end and byte_at(base, k) == COLON_SIGN:
            return MEMBER, i
    if status != OK or j == i:
        counts.is_cut[0] = 1 if status == INCOMPLETE else 0
        _lose(counts, origin + i)
        return -1, i + 1
    _note(counts.not_events, counts.first_not_event, origin + i)
    counts.expect[0] = 1
    return -1, j


@compiled
def scan_events(
    data: Any, begin: Any, end: Any, origin: Any, is_final: Any, keys: Any, rows: Any, counts: Any, scratch: Any
) -> Any:
    """Locate the events from ``begin``, inside the array.

    Args:
        data: uint8, with padding behind ``end``.
        begin: first byte.
        end: past the last byte.
        origin: position in the file of ``data[0]``.
        is_final: no more bytes will follow.
        keys: names of the fields.
        rows: filled from row 0.
        counts: what happened, carried from call to call.
        scratch: uint8[256].

    Returns:
        (rows, position up to which everything is done, one of MORE, FULL, END, CLOSED, MEMBER).
    """
    base, scratch_base = np.int64(data.ctypes.data), np.int64(scratch.ctypes.data)
    capacity = rows.kind.shape[1]
    cells = Cells(
        np.int64(rows.start.ctypes.data),
        np.int64(rows.length.ctypes.data),
        np.int64(rows.kind.ctypes.data),
        capacity,
    )
    row = 0
    i = np.int64(begin)
    while True:
        if counts.lost_from[0] >= 0:
            if row >= capacity:
                return row, i, FULL
            i, is_found = _resume(
                base, i, end, is_final, keys, cells, row, counts, scratch_base
            )
            if not is_found:
                return row, i, MORE
            counts.lost_bytes[0] += origin + i - counts.lost_from[0]
            counts.lost_from[0] = -1
            counts.expect[0] = 2
        i = skip_space(base, i, end)
        if i >= end:
            return row, i, MORE
        c = byte_at(base, i)
        if c == OPEN_OBJECT:
            if row >= capacity:
                return row, i, FULL
            status, j, marks, members = _read_event(
                base, i, end, is_final, keys, cells, row, counts, scratch_base
            )
            if status == INCOMPLETE:
                return row, i, MORE
            if status == ERROR:
                _lose(counts, origin + i)
                i += 1
                continue
            if counts.expect[0] == 1:
                _note(counts.commas, counts.first_comma, origin + i)
            counts.expect[0] = 1
            if members == 0:
                counts.empty[0] += 1
            else:
                rows.first[row] = i
                rows.last[row] = j
                rows.marks[row] = marks
                row += 1
            i = j
        elif c == COMMA_SIGN or c == 0:
            if c == COMMA_SIGN:
                if counts.expect[0] != 1:
                    _note(counts.commas, counts.first_comma, origin + i)
                counts.expect[0] = 2
            i += 1
        elif c == CLOSE_ARRAY or c == CLOSE_OBJECT:
            if counts.expect[0] == 2:
                _note(counts.commas, counts.first_comma, origin + i)
            return row, i + 1, END if c == CLOSE_ARRAY else CLOSED
        else:
            status, i = _pass_element(base, i, end, is_final, origin, counts)
            if status >= 0:
                return row, i, status
