"""Where are the events of an array, and where do they begin again behind what cannot be read? The compiled loop over a block."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.trace_json.codes import (
    ABSENT,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON_SIGN,
    COMMA_SIGN,
    ERROR,
    INCOMPLETE,
    OK,
    OPEN_ARRAY,
    OPEN_OBJECT,
    QUOTE_ESCAPED,
    STRING,
)
from trnprof.tracer.formats.trace_json.event import clear_fields, parse_event
from trnprof.tracer.formats.trace_json.simd import byte_at, set_int32
from trnprof.tracer.formats.trace_json.tokens import is_close, skip_space, value_end

# how a run over events ended
MORE: Final = np.int64(0)  # the event at the position goes on past the bytes there are
FULL: Final = np.int64(1)  # no room for more rows
END: Final = np.int64(2)  # past the closing bracket
CLOSED: Final = np.int64(3)  # past a closing brace: the array was not closed
MEMBER: Final = np.int64(4)  # at a member of the object around: the array was not closed
_PASSED: Final = np.int64(5)
_AGAIN: Final = np.int64(3)

# what is carried from block to block and counted; the position in the file of the first one follows a count
EXPECT: Final = 0  # 0 at the start of the array, 1 after an event, 2 after a comma
PREVIOUS: Final = 1  # the last byte passed in search of where events begin again
LOST_FROM: Final = (
    2  # position in the file from which bytes are skipped until an event begins again, -1: none are
)
IS_CUT: Final = 3  # whether the file ended inside what could not be read
BUDGET: Final = 4  # bytes that may still be tried in search of where events begin again
LOST_BYTES: Final = 5  # bytes of stretches that could not be read
LOST: Final = np.int64(6)  # those stretches
NOT_EVENTS: Final = np.int64(8)  # elements of the array that are no objects
COMMAS: Final = np.int64(10)  # commas missing or too many between events
_STATES: Final = 12

_TRIED_BYTES: Final = np.int64(1 << 16)
"""An event that follows something unreadable must end within so many bytes to be recognised."""
_BUDGET_FACTOR: Final = 8
"""Bytes that may be tried a byte passed."""


def new_counts() -> NDArray[np.int64]:
    """Counts of nothing."""
    counts = np.zeros(_STATES, np.int64)
    counts[LOST_FROM] = -1
    return counts


@compiled
def count(counts: Any, what: Any, position: Any) -> None:
    """One more of something."""
    if counts[what] == 0:
        counts[what + 1] = position
    counts[what] += 1


@compiled
def lose(counts: Any, position: Any) -> None:
    """Begin a stretch that cannot be read."""
    count(counts, LOST, position)
    counts[LOST_FROM] = position
    counts[PREVIOUS] = 0


@compiled
def _next_brace(base: Any, i: Any, end: Any, counts: Any) -> Any:
    """The next brace behind a brace, bracket or comma: perhaps an event begins there."""
    previous, budget = counts[PREVIOUS], counts[BUDGET]
    while i < end:
        c = byte_at(base, i)
        if c == OPEN_OBJECT and budget > 0 and previous in (COMMA_SIGN, CLOSE_OBJECT, OPEN_ARRAY):
            break
        budget = min(budget + _BUDGET_FACTOR, 8 * _TRIED_BYTES)
        if c > 32:
            previous = c
        i += 1
    counts[PREVIOUS], counts[BUDGET] = previous, budget
    return i


@compiled
def _verdict(
    status: Any, marks: Any, lenient: Any, is_lost: Any, has_phase: Any, is_final: Any
) -> Any:
    """What to do after an event was tried.

    OK: take it; INCOMPLETE: read on; ERROR: give it up; _AGAIN: try it as that of a writer that does not escape backslashes.
    """
    if status == INCOMPLETE and not is_final:
        return INCOMPLETE
    if is_lost:  # what begins there need not be an event
        return OK if status == OK and has_phase else ERROR
    if lenient:
        return OK if status == OK and marks & QUOTE_ESCAPED else ERROR
    return OK if status == OK else _AGAIN


@compiled
def _take(
    cells: Any, row: Any, origin: Any, first: Any, last: Any, marks: Any, counts: Any
) -> None:
    """Note an event."""
    if counts[LOST_FROM] >= 0:
        counts[LOST_BYTES] += origin + first - counts[LOST_FROM]
        counts[LOST_FROM] = -1
        counts[EXPECT] = 2
    if counts[EXPECT] == 1:
        count(counts, COMMAS, origin + first)
    counts[EXPECT] = 1
    set_int32(cells.first, row, first)
    set_int32(cells.last, row, last)
    set_int32(cells.marks, row, marks)


@compiled
def _pass_failed(
    i: Any, reached: Any, origin: Any, verdict: Any, status: Any, is_lost: Any, counts: Any
) -> Any:
    """Where to go on after an event that could not be taken."""
    if verdict == _AGAIN:
        counts[IS_CUT] = status == INCOMPLETE
        return i
    if is_lost:
        counts[BUDGET] -= reached - i
        counts[PREVIOUS] = OPEN_OBJECT
    else:
        lose(counts, origin + i)
    return i + 1


@compiled
def _pass_element(base: Any, i: Any, end: Any, origin: Any, is_final: Any, counts: Any) -> Any:
    """Pass an element of the array that is no event: (position, how the array ended or _PASSED)."""
    status, j, kind, _ = value_end(base, i, end, np.int64(0))
    if status == INCOMPLETE and not is_final:
        return i, MORE
    if kind == STRING and status == OK:
        k = skip_space(base, j, end)
        if k >= end and not is_final:
            return i, MORE
        if k < end and byte_at(base, k) == COLON_SIGN:
            return i, MEMBER
    if status != OK or j == i:
        counts[IS_CUT] = status == INCOMPLETE
        lose(counts, origin + i)
        return i + 1, _PASSED
    count(counts, NOT_EVENTS, origin + i)
    counts[EXPECT] = 1
    return j, _PASSED


@compiled
def _pass_other(base: Any, i: Any, end: Any, origin: Any, is_final: Any, counts: Any) -> Any:
    """Pass what is no brace: (position, how the array ended or _PASSED)."""
    c = byte_at(base, i)
    if c == COMMA_SIGN:
        if counts[EXPECT] != 1:
            count(counts, COMMAS, origin + i)
        counts[EXPECT] = 2
        return i + 1, _PASSED
    if is_close(c):
        if counts[EXPECT] == 2:
            count(counts, COMMAS, origin + i)
        return i + 1, END if c == CLOSE_ARRAY else CLOSED
    if c == 0:
        return i + 1, _PASSED
    return _pass_element(base, i, end, origin, is_final, counts)


@compiled
def scan_events(
    base: Any, begin: Any, end: Any, origin: Any, is_final: Any, names: Any, cells: Any, counts: Any
) -> Any:
    """Locate the events from ``begin``, inside the array.

    Args:
        base: address of the bytes, with padding behind ``end``.
        begin: first byte.
        end: past the last byte.
        origin: position in the file of byte 0.
        is_final: whether no more bytes will follow.
        names: what is asked for.
        cells: filled from row 0; their kinds are zeros.
        counts: what happened, carried from call to call.

    Returns:
        (rows, position up to which everything is done, one of MORE, FULL, END, CLOSED, MEMBER).
    """
    row, i, lenient = np.int64(0), begin, np.int64(0)
    while row < cells.capacity:
        is_lost = counts[LOST_FROM] >= 0
        i = _next_brace(base, i, end, counts) if is_lost else skip_space(base, i, end)
        if i >= end:
            return row, i, MORE
        if byte_at(base, i) != OPEN_OBJECT:
            i, status = _pass_other(base, i, end, origin, is_final, counts)
            if status != _PASSED:
                return row, i, status
            continue
        reach = min(end, i + _TRIED_BYTES) if is_lost else end
        status, j, marks, members = parse_event(base, i, reach, lenient, names, cells, row)
        has_phase = byte_at(cells.kind, row) != ABSENT
        verdict = _verdict(status, marks, lenient, is_lost, has_phase, is_final or reach < end)
        if verdict == INCOMPLETE:
            return row, i, MORE
        lenient = np.int64(verdict == _AGAIN)
        if verdict == OK:
            _take(cells, row, origin, i, j, marks, counts)
            row += members > 0  # an event without members is none
            i = j
            continue
        clear_fields(cells, row, np.int64(0), cells.fields)
        i = _pass_failed(i, min(j, end), origin, verdict, status, is_lost, counts)
    return row, i, FULL
