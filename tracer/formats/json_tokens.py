"""Where does a JSON value end, and what is wrong with it? Compiled, tolerant and without recursion.

Positions are indices into a buffer whose address is ``base`` and behind whose end PADDING bytes may be read. What is not strictly
JSON is accepted where its meaning is plain, and told as bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trnprof.tracer.formats.json_simd import (
    WIDTH,
    byte_at,
    compiled,
    inlined,
    not_digit_at,
    not_space_at,
    special_at,
)

# bytes
QUOTE: Final = 34
COMMA_SIGN: Final = 44
COLON_SIGN: Final = 58
OPEN_OBJECT: Final = 123
CLOSE_OBJECT: Final = 125
OPEN_ARRAY: Final = 91
CLOSE_ARRAY: Final = 93
BACKSLASH: Final = 92
MINUS: Final = 45
PLUS: Final = 43
ZERO: Final = 48
NINE: Final = 57
POINT: Final = 46
LETTER_U: Final = 117
LETTER_E: Final = 101
HASH: Final = 35
SLASH: Final = 47

# kinds of value; up to BARE there is nothing to use
ABSENT: Final = 0
NULL: Final = 1
BARE: Final = 2  # NaN, Infinity, inf, a missing value, an unknown word
TRUE: Final = 3
FALSE: Final = 4
NUMBER: Final = 5
STRING: Final = 6
ESCAPED: Final = 7  # a string with backslashes
OBJECT: Final = 8
ARRAY: Final = 9

# what an event has that JSON does not allow; one bit each
STRAY_COMMA: Final = 1
MISSING_COMMA: Final = 2
BARE_WORD: Final = 4
CONTROL: Final = 8
BAD_ESCAPE: Final = 16
QUOTE_ESCAPED: Final = 32  # a backslash before a closing quote
BAD_NUMBER: Final = 64
GRAMMAR: Final = 128
DEEP: Final = 256
INVALID_UTF8: Final = 512
FAULTS: Final = 1023

# how a step ended
OK: Final = 0
INCOMPLETE: Final = 1
ERROR: Final = 2

# what an object or array may hold next
FIRST_VALUE: Final = 0
FIRST_KEY: Final = 1
COMMA: Final = 2
VALUE: Final = 3
KEY: Final = 4
COLON: Final = 5

_MAX_TRACKED_DEPTH: Final = 64

_DELIMITER = np.zeros(256, np.bool_)
_DELIMITER[list(b' \t\r\n,:"[]{}')] = True
ESCAPABLE = np.zeros(256, np.bool_)
ESCAPABLE[list(b'"\\/bfnrtu')] = True
_HEX = np.zeros(256, np.bool_)
_HEX[list(b"0123456789abcdefABCDEF")] = True


@inlined
def is_space(c: Any) -> Any:
    """Whether a byte is JSON white space."""
    return c == 32 or c == 10 or c == 13 or c == 9


@inlined
def skip_space(base: Any, i: Any, end: Any) -> Any:
    """The next position from ``i`` that is not white space, at most ``end``."""
    if byte_at(base, i) > 32:
        return i
    while i < end:
        step = not_space_at(base, i)
        i += step
        if step < WIDTH:
            break
    return min(i, end)


@compiled
def _ends_string(base: Any, i: Any, end: Any) -> Any:
    """Whether what follows a quote says that it closed a string, for files that do not escape backslashes."""
    i = skip_space(base, i, end)
    if i >= end:
        return True
    c = byte_at(base, i)
    if c == COMMA_SIGN:
        i = skip_space(base, i + 1, end)
        c = byte_at(base, i)
        return i >= end or c == QUOTE or c == CLOSE_ARRAY or c == CLOSE_OBJECT
    return c == CLOSE_OBJECT or c == CLOSE_ARRAY or c == COLON_SIGN


@compiled
def _string_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    faults = 0
    escaped = False
    while i < end:
        step = special_at(base, i)
        i += step
        if step == WIDTH:
            continue
        if i >= end:
            break
        c = byte_at(base, i)
        if c == QUOTE:
            return i, faults, escaped
        if c != BACKSLASH:
            faults |= CONTROL
            i += 1
            continue
        if i + 1 >= end:
            break
        escaped = True
        following = byte_at(base, i + 1)
        if following == QUOTE and lenient and _ends_string(base, i + 2, end):
            return i + 1, faults | QUOTE_ESCAPED, escaped
        if not ESCAPABLE[following]:
            faults |= BAD_ESCAPE
            i += 1
            continue
        if following == LETTER_U:
            if i + 5 >= end:
                break
            for k in range(2, 6):
                if not _HEX[byte_at(base, i + k)]:
                    faults |= BAD_ESCAPE
        i += 2
    return -1, faults, escaped


@inlined
def string_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """(position of the closing quote of a string whose text begins at ``i``, faults, whether it has backslashes); -1: not closed.

    ``lenient``: a backslash does not escape a quote behind which the string evidently ends.
    """
    step = special_at(base, i)
    if byte_at(base, i + step) == QUOTE and i + step < end and step < WIDTH:
        return i + step, 0, False
    return _string_end(base, i, end, lenient)


@inlined
def _skip_digits(base: Any, i: Any, end: Any) -> Any:
    while True:
        step = not_digit_at(base, i)
        i += step
        if step < WIDTH or i >= end:
            return i


@inlined
def number_end(base: Any, i: Any, end: Any) -> Any:
    """(end of the number at ``i``, whether JSON allows it)."""
    if byte_at(base, i) == MINUS:
        i += 1
    first = i
    i = _skip_digits(base, i, end)
    valid = i > first and (i == first + 1 or byte_at(base, first) != ZERO)
    if byte_at(base, i) == POINT:
        first = i + 1
        i = _skip_digits(base, first, end)
        valid = valid and i > first
    if byte_at(base, i) | 32 == LETTER_E:
        i += 1
        if byte_at(base, i) == PLUS or byte_at(base, i) == MINUS:
            i += 1
        first = i
        i = _skip_digits(base, first, end)
        valid = valid and i > first
    return min(i, end), valid and i <= end


@compiled
def word_kind(base: Any, start: Any, end: Any) -> Any:
    """(kind, faults) of a token that is no JSON number."""
    size = end - start
    letters = 0
    for k in range(min(size, 6)):
        letters = letters << 8 | byte_at(base, start + k)
    if letters == 0x74727565:
        return TRUE, 0
    if letters == 0x66616C7365:
        return FALSE, 0
    if letters == 0x6E756C6C:
        return NULL, 0
    if start < end and (byte_at(base, start) == PLUS or byte_at(base, start) == MINUS):
        start += 1
    c = byte_at(base, start)
    if start < end and (ZERO <= c <= NINE or c == POINT):
        for k in range(start, end):
            if byte_at(base, k) == HASH:  # 1.#INF, 1.#QNAN
                return BARE, BARE_WORD
        return NUMBER, BAD_NUMBER
    return BARE, BARE_WORD


@compiled
def _word_end(base: Any, i: Any, end: Any) -> Any:
    start = i
    while i < end and not _DELIMITER[byte_at(base, i)]:
        i += 1
    kind, faults = word_kind(base, start, i)
    return i, kind, faults


@inlined
def token_end(base: Any, i: Any, end: Any) -> Any:
    """(end, kind, faults) of a number or word at ``i``."""
    c = byte_at(base, i)
    if c == MINUS or ZERO <= c <= NINE:
        j, valid = number_end(base, i, end)
        if valid and (j >= end or _DELIMITER[byte_at(base, j)]):
            return j, NUMBER, 0
    return _word_end(base, i, end)


@compiled
def container_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """(status, position past it, faults) of the object or array at ``i``; a loop with one bit a level."""
    depth = 0
    objects = np.uint64(0)  # from the lowest bit: whether each open container is an object
    one = np.uint64(1)
    state = 0
    faults = 0
    while True:
        i = skip_space(base, i, end)
        if i >= end:
            return INCOMPLETE, i, faults
        c = byte_at(base, i)
        after_comma = KEY if objects & one else VALUE
        if c == COMMA_SIGN:
            if state != COMMA:
                faults |= STRAY_COMMA if state != COLON else GRAMMAR
            state = after_comma
            i += 1
            continue
        if c == CLOSE_OBJECT or c == CLOSE_ARRAY:
            if state == KEY or state == VALUE:
                faults |= STRAY_COMMA
            if state == COLON:
                faults |= GRAMMAR
            if (objects & one == one) != (c == CLOSE_OBJECT) and not faults & DEEP:
                return ERROR, i, faults
            objects = objects >> one
            depth -= 1
            i += 1
            if depth == 0:
                return OK, i, faults
            state = COMMA
            continue
        if c == COLON_SIGN:
            if state != COLON:
                return ERROR, i, faults
            state = VALUE
            i += 1
            continue
        if state == COLON:
            return ERROR, i, faults
        if state == COMMA:
            faults |= MISSING_COMMA
            state = after_comma
        if c == QUOTE:
            j, found, _ = string_end(base, i + 1, end, lenient)
            faults |= found
            if j < 0:
                return INCOMPLETE, end, faults
            i = j + 1
            state = COLON if state == FIRST_KEY or state == KEY else COMMA
            continue
        if state == FIRST_KEY or state == KEY:
            return ERROR, i, faults
        if c == OPEN_OBJECT or c == OPEN_ARRAY:
            depth += 1
            objects = objects << one
            state = FIRST_VALUE
            if c == OPEN_OBJECT:
                objects |= one
                state = FIRST_KEY
            if depth > _MAX_TRACKED_DEPTH:
                faults |= DEEP
            i += 1
        else:
            i, _, found = token_end(base, i, end)
            faults |= found
            state = COMMA


@inlined
def value_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """(status, position past it, kind, faults) of the value at ``i``, which is no white space."""
    c = byte_at(base, i)
    if c == QUOTE:
        j, faults, escaped = string_end(base, i + 1, end, lenient)
        if j < 0:
            return INCOMPLETE, end, ABSENT, faults
        return OK, j + 1, ESCAPED if escaped else STRING, faults
    if c == OPEN_OBJECT or c == OPEN_ARRAY:
        status, j, faults = container_end(base, i, end, lenient)
        return status, j, OBJECT if c == OPEN_OBJECT else ARRAY, faults
    if c == COMMA_SIGN or c == CLOSE_OBJECT or c == CLOSE_ARRAY:
        return OK, i, BARE, GRAMMAR
    if c == COLON_SIGN:
        return ERROR, i, ABSENT, GRAMMAR
    j, kind, faults = token_end(base, i, end)
    return OK if j < end else INCOMPLETE, j, kind, faults


@compiled
def skip_value(data: Any, begin: Any, end: Any, state: Any) -> Any:
    """Pass over a value of any size, piece by piece.

    Args:
        data: uint8, with padding behind ``end``.
        begin: where to go on.
        end: past the last byte of this piece.
        state: int64[3], zero at the start: depth, 1 in a string, 1 behind a backslash; carried from piece to piece.

    Returns:
        (position, whether the value ended there). A number or word ends at its delimiter.
    """
    base = np.int64(data.ctypes.data)
    depth, in_string, escaped = state[0], state[1], state[2]
    i = np.int64(begin)
    done = False
    while i < end and not done:
        if in_string and not escaped:
            i += special_at(base, i)
            if i >= end:
                break
        c = byte_at(base, i)
        i += 1
        if in_string:
            if escaped:
                escaped = 0
            elif c == BACKSLASH:
                escaped = 1
            elif c == QUOTE:
                in_string = 0
                done = depth == 0
        elif c == QUOTE:
            in_string = 1
        elif c == OPEN_OBJECT or c == OPEN_ARRAY:
            depth += 1
        elif depth == 0 and _DELIMITER[c]:
            i -= 1
            done = True
        elif c == CLOSE_OBJECT or c == CLOSE_ARRAY:
            depth -= 1
            done = depth == 0
    state[0], state[1], state[2] = depth, in_string, escaped
    return min(i, end), done
