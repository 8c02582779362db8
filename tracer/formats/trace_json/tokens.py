"""Where does a JSON value end, and what is wrong with it? Compiled, tolerant and without recursion.

Positions are indices into a buffer whose address is ``base`` and behind whose end PADDING bytes may be read. What is not strictly
JSON is accepted where its meaning is plain, and told as bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trnprof.tracer.compiled import compiled, inlined
from trnprof.tracer.formats.trace_json.codes import (
    ABSENT,
    ARRAY,
    BACKSLASH,
    BAD_ESCAPE,
    BAD_NUMBER,
    BARE,
    BARE_WORD,
    CLOSE_OBJECT,
    COLON,
    COLON_SIGN,
    COMMA,
    COMMA_SIGN,
    CONTROL,
    DEEP,
    ERROR,
    ESCAPED,
    FALSE,
    FIRST_KEY,
    FIRST_VALUE,
    GRAMMAR,
    HASH,
    INCOMPLETE,
    KEY,
    LETTER_E,
    LETTER_U,
    MINUS,
    MISSING_COMMA,
    NINE,
    NULL,
    NUMBER,
    OBJECT,
    OK,
    OPEN_OBJECT,
    PLUS,
    POINT,
    QUOTE,
    QUOTE_ESCAPED,
    STRAY_COMMA,
    STRING,
    TRUE,
    VALUE,
    ZERO,
)
from trnprof.tracer.formats.trace_json.simd import (
    WIDTH,
    byte_at,
    not_digit_at,
    not_space_at,
    special_at,
)

_MAX_TRACKED_DEPTH: Final = 64

DELIMITER = np.zeros(256, np.bool_)
DELIMITER[list(b' \t\r\n,:"[]{}')] = True
ESCAPABLE = np.zeros(256, np.bool_)
ESCAPABLE[list(b'"\\/bfnrtu')] = True
_HEX = np.zeros(256, np.bool_)
_HEX[list(b"0123456789abcdefABCDEF")] = True


@inlined
def is_open(c: Any) -> Any:
    """Whether a byte is ``{`` or ``[``, which differ by one bit."""
    return c | 32 == OPEN_OBJECT


@inlined
def is_close(c: Any) -> Any:
    """Whether a byte is ``}`` or ``]``."""
    return c | 32 == CLOSE_OBJECT


@compiled
def is_string(kind: Any) -> Any:
    """Whether a kind of value is STRING or ESCAPED."""
    return kind | 1 == ESCAPED


@inlined
def skip_space(base: Any, i: Any, end: Any) -> Any:
    """The next position from ``i`` that is not white space, at most ``end``."""
    c = byte_at(base, i)
    if c > 32:
        return i
    if c == 32 and i + 1 < end and byte_at(base, i + 1) > 32:  # as most writers put it
        return i + 1
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
        return i >= end or c == QUOTE or is_close(c)
    return is_close(c) or c == COLON_SIGN


@compiled
def _is_drive(base: Any, start: Any, i: Any) -> Any:
    """Whether the backslash at ``i`` is the first of a Windows path, though JSON would read it as an escape, such as a tab.

    The string begins at ``start`` with a letter and a colon.
    """
    if i != start + 2 or byte_at(base, start + 1) != COLON_SIGN:
        return False
    following = byte_at(base, i + 1)
    is_letter = 97 <= following <= 122 and following != LETTER_U
    return is_letter and 97 <= (byte_at(base, start) | 32) <= 122


@compiled
def _string_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    start, faults, escaped = i, np.int64(0), False
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
        if _is_drive(base, start, i):
            faults |= BAD_ESCAPE
        if following == LETTER_U:
            if i + 5 >= end:
                faults |= BAD_ESCAPE
                break
            for k in range(2, 6):
                if not _HEX[byte_at(base, i + k)]:
                    faults |= BAD_ESCAPE
        i += 2
    return np.int64(-1), faults, escaped


@inlined
def string_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """(position of the closing quote of a string whose text begins at ``i``, faults, whether it has backslashes); -1: not closed.

    ``lenient``: a backslash does not escape a quote behind which the string evidently ends.
    """
    step = special_at(base, i)
    if byte_at(base, i + step) == QUOTE and i + step < end and step < WIDTH:
        return i + step, np.int64(0), False
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
        return TRUE, np.int64(0)
    if letters == 0x66616C7365:
        return FALSE, np.int64(0)
    if letters == 0x6E756C6C:
        return NULL, np.int64(0)
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
    while i < end and not DELIMITER[byte_at(base, i)]:
        i += 1
    kind, faults = word_kind(base, start, i)
    return i, kind, faults


@inlined
def token_end(base: Any, i: Any, end: Any) -> Any:
    """(end, kind, faults) of a number or word at ``i``."""
    c = byte_at(base, i)
    if c == MINUS or ZERO <= c <= NINE:
        j, valid = number_end(base, i, end)
        if valid and (j >= end or DELIMITER[byte_at(base, j)]):
            return j, NUMBER, np.int64(0)
    return _word_end(base, i, end)


@compiled
def skip_container(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """Past the object or array at ``i``, whose brackets are only counted; -1 if it goes on past ``end``."""
    depth = 0
    while i < end:
        c = byte_at(base, i)
        if c == QUOTE:
            i, _, _ = string_end(base, i + 1, end, lenient)
            if i < 0:
                break
        i += 1
        if is_open(c):
            depth += 1
        elif is_close(c):
            depth -= 1
            if depth == 0:
                return i
    return np.int64(-1)


@compiled
def _after_separator(c: Any, state: Any, is_object: Any) -> Any:
    """(state, faults) behind a comma or colon; state -1 if it cannot be there."""
    if c == COLON_SIGN:
        return (VALUE if state == COLON else np.int64(-1)), np.int64(0)
    faults = np.int64(0)
    if state != COMMA:
        faults = GRAMMAR if state == COLON else STRAY_COMMA
    return (KEY if is_object else VALUE), faults


@compiled
def _closing_faults(state: Any) -> Any:
    """What is wrong with a bracket that closes in this state."""
    if state == COLON:
        return GRAMMAR
    return STRAY_COMMA if state >= VALUE else np.int64(0)


@compiled
def container_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """(status, position past it, faults) of the object or array at ``i``; a loop with one bit a level."""
    one = np.uint64(1)
    objects = np.uint64(0)  # from the lowest bit: whether each open container is an object
    depth, state, faults = np.int64(0), FIRST_VALUE, np.int64(0)
    while True:
        i = skip_space(base, i, end)
        if i >= end:
            return INCOMPLETE, i, faults
        c = byte_at(base, i)
        is_object = objects & one == one
        found = np.int64(0)
        if c in (COMMA_SIGN, COLON_SIGN):
            state, found = _after_separator(c, state, is_object)
            faults |= found
            if state < 0:
                return ERROR, i, faults
            i += 1
            continue
        if is_close(c):
            faults |= _closing_faults(state)
            if is_object != (c == CLOSE_OBJECT):
                return ERROR, i, faults
            objects = objects >> one
            depth -= 1
            i += 1
            if depth == 0:
                return OK, i, faults
            state = COMMA
            continue
        if state == COLON:
            return ERROR, i, faults
        if state == COMMA:
            faults |= MISSING_COMMA
            state = KEY if is_object else VALUE
        is_key = is_object and state != VALUE
        if c == QUOTE:
            i, found, _ = string_end(base, i + 1, end, lenient)
            i += 1
        elif is_key:
            return ERROR, i, faults
        elif not is_open(c):
            i, _, found = token_end(base, i, end)
        elif depth < _MAX_TRACKED_DEPTH:
            depth += 1
            objects = objects << one | np.uint64(c == OPEN_OBJECT)
            state = FIRST_KEY if c == OPEN_OBJECT else FIRST_VALUE
            i += 1
            continue
        else:
            i, found = skip_container(base, i, end, lenient), DEEP
        faults |= found
        if i <= 0:
            return INCOMPLETE, end, faults
        state = COLON if is_key else COMMA


@inlined
def value_end(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """(status, position past it, kind, faults) of the value at ``i``, which is no white space."""
    c = byte_at(base, i)
    if c == QUOTE:
        j, faults, escaped = string_end(base, i + 1, end, lenient)
        if j < 0:
            return INCOMPLETE, end, ABSENT, faults
        return OK, j + 1, ESCAPED if escaped else STRING, faults
    if is_open(c):
        status, j, faults = container_end(base, i, end, lenient)
        return status, j, OBJECT if c == OPEN_OBJECT else ARRAY, faults
    if c == COMMA_SIGN or is_close(c):
        return OK, i, BARE, GRAMMAR
    if c == COLON_SIGN:
        return ERROR, i, ABSENT, GRAMMAR
    j, kind, faults = token_end(base, i, end)
    return OK if j < end else INCOMPLETE, j, kind, faults
