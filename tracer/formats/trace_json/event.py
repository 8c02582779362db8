"""Where are the members of one event? Compiled; nothing is decoded and nothing copied.

An event that is not strictly JSON carries bits that say why, so that it can be counted and its text be put right when somebody
wants it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled, inlined
from trnprof.tracer.formats.trace_json.codes import (
    ABSENT,
    CLOSE_OBJECT,
    COLON_SIGN,
    COMMA,
    COMMA_SIGN,
    ERROR,
    FIRST_KEY,
    INCOMPLETE,
    KEY,
    MISSING_COMMA,
    OBJECT,
    OK,
    OPEN_OBJECT,
    QUOTE,
    STRAY_COMMA,
)
from trnprof.tracer.formats.trace_json.member_names import (
    ARGS_LEVEL,
    EVENT_LEVEL,
    find_escaped_name,
    find_name,
)
from trnprof.tracer.formats.trace_json.simd import (
    byte_at,
    int32_at,
    set_byte,
    set_int32,
)
from trnprof.tracer.formats.trace_json.tokens import (
    is_string,
    skip_space,
    string_end,
    value_end,
)

# further bits beside the faults of an event
HAS_UNKNOWN: Final = np.int64(1024)  # it has members that nobody asked for
ARGS_DIRTY: Final = np.int64(2048)  # its faults touch its arguments

_COLUMN_SKEW: Final = 64
"""Columns lie this much apart from a round number of bytes, or all fields of one event compete for the same cache lines."""


class Rows(NamedTuple):
    """Where the fields of each event are; second axis: the event.

    Attributes:
        start, length: int32[fields, n], where its text is in the buffer, quotes of strings left out.
        kind: uint8[fields, n], of value; zeros at first.
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
    """Addresses of the arrays of Rows, for compiled code; ``fields`` rows of ``capacity`` events."""

    start: int
    length: int
    kind: int
    first: int
    last: int
    marks: int
    fields: int
    capacity: int


def room(fields: int, events: int) -> Rows:
    """Room for at least so many events."""
    capacity = -(-events // 4096) * 4096 + _COLUMN_SKEW
    return Rows(
        np.empty((fields, capacity), np.int32),
        np.empty((fields, capacity), np.int32),
        np.zeros((fields, capacity), np.uint8),
        *(np.empty(capacity, np.int32) for _ in range(3)),
    )


def cells_of(rows: Rows) -> Cells:
    """Where the rows are, for compiled code, as long as they live."""
    start, length, kind, first, last, marks = (array.ctypes.data for array in rows)
    return Cells(start, length, kind, first, last, marks, *rows.kind.shape)


@compiled
def clear_fields(cells: Any, row: Any, first: Any, end: Any) -> None:
    """Forget the fields from ``first`` to ``end`` of an event."""
    for field in range(first, end):
        set_byte(cells.kind, field * cells.capacity + row, ABSENT)


@inlined
def key_at(base: Any, i: Any, end: Any, lenient: Any, names: Any, level: Any) -> Any:
    """The member whose opening quote is at ``i``.

    Returns:
        (status, where its value begins, number of its field, past the text of its name, faults).
    """
    key_end, faults, is_escaped = string_end(base, i + 1, end, lenient)
    if key_end < 0:
        return INCOMPLETE, end, np.int64(-1), end, faults
    j = skip_space(base, key_end + 1, end)
    if j < end and byte_at(base, j) != COLON_SIGN:
        return ERROR, j, np.int64(-1), key_end, faults
    j = skip_space(base, j + 1, end)
    if j >= end:
        return INCOMPLETE, end, np.int64(-1), key_end, faults
    if is_escaped:
        return OK, j, find_escaped_name(names, base, level, i + 1, key_end), key_end, faults
    return OK, j, find_name(names, base, level, i + 1, key_end), key_end, faults


@inlined
def _pass_commas(base: Any, i: Any, end: Any, state: Any) -> Any:
    """(position of what comes next, state, faults) behind commas and white space."""
    faults = np.int64(0)
    while True:
        i = skip_space(base, i, end)
        if i >= end or byte_at(base, i) != COMMA_SIGN:
            return i, state, faults
        if state != COMMA:
            faults |= STRAY_COMMA
        state = KEY
        i += 1


@inlined
def _set_value(cells: Any, field: Any, row: Any, start: Any, end: Any, kind: Any) -> None:
    cell = field * cells.capacity + row
    quote = np.int64(is_string(kind))
    set_int32(cells.start, cell, start + quote)
    set_int32(cells.length, cell, end - start - 2 * quote)
    set_byte(cells.kind, cell, kind)


@compiled
def parse_event(base: Any, i: Any, end: Any, lenient: Any, names: Any, cells: Any, row: Any) -> Any:
    """Locate the fields of the event at ``i``, an opening brace.

    Args:
        base: address of the bytes.
        i: where it begins.
        end: past the last byte.
        lenient: 1 for a writer that does not escape backslashes, else 0.
        names: what is asked for.
        cells: where to put it.
        row: number of the event, whose fields are absent so far.

    Returns:
        (status, position past it, marks, number of members).
    """
    level, state, marks, members = EVENT_LEVEL, FIRST_KEY, np.int64(0), np.int64(0)
    i += 1
    while True:
        i, state, faults = _pass_commas(base, i, end, state)
        if i >= end:
            return INCOMPLETE, i, marks, members
        c = byte_at(base, i)
        if c == CLOSE_OBJECT:
            i += 1
            faults |= STRAY_COMMA if state == KEY else np.int64(0)
            if faults:
                marks |= faults | (ARGS_DIRTY if level else np.int64(0))
            if level == EVENT_LEVEL:
                return OK, i, marks, members
            level, state = EVENT_LEVEL, COMMA
            cell = names.args * cells.capacity + row
            set_int32(cells.length, cell, i - int32_at(cells.start, cell))
            continue
        if c != QUOTE:
            return ERROR, i, marks, members
        faults |= MISSING_COMMA if state == COMMA else np.int64(0)
        status, i, field, _, found = key_at(base, i, end, lenient, names, level)
        if status != OK:
            return status, i, marks, members
        faults |= found
        state = COMMA
        members += 1
        is_args = level == EVENT_LEVEL and field == names.args
        if is_args:  # the last of several counts
            clear_fields(cells, row, names.args + 1, names.args_end)
            marks &= ~ARGS_DIRTY
            if byte_at(base, i) == OPEN_OBJECT:
                marks |= faults
                _set_value(cells, field, row, i, i, OBJECT)
                level, state = ARGS_LEVEL, FIRST_KEY
                i += 1
                continue
        status, j, kind, found = value_end(base, i, end, lenient)
        faults |= found
        if faults:
            marks |= faults | (ARGS_DIRTY if level or is_args else np.int64(0))
        if status != OK:
            return status, j, marks, members
        if field >= 0:
            _set_value(cells, field, row, i, j, kind)
        elif level == EVENT_LEVEL:
            marks |= HAS_UNKNOWN
        i = j
