"""What valid JSON says the same as this text of a profile? Compiled, without recursion, for values that JSON does not allow.

NaN and its kin become null, raw control characters and stray backslashes are escaped, bytes that are not UTF-8 become U+FFFD,
commas are put where they belong, numbers that JSON does not know become strings, what is not closed is closed.

Every ``put`` function appends to the bytes at the address ``out`` from ``o`` and returns the new length; with address 0 it only
counts, so that a first run tells how much room a second one needs.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.trace_json.codes import (
    BACKSLASH,
    BAD_ESCAPE,
    BARE,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON_SIGN,
    COMMA_SIGN,
    FALSE,
    LETTER_U,
    MINUS,
    NINE,
    NULL,
    OPEN_OBJECT,
    PLUS,
    QUOTE,
    QUOTE_ESCAPED,
    TRUE,
    ZERO,
)
from trnprof.tracer.formats.trace_json.simd import (
    PADDING,
    byte_at,
    copy_bytes,
    set_byte,
)
from trnprof.tracer.formats.trace_json.texts import (
    utf8_length,
)
from trnprof.tracer.formats.trace_json.tokens import (
    ESCAPABLE,
    is_close,
    is_open,
    number_end,
    skip_container,
    skip_space,
    string_end,
    token_end,
)

MAX_DEPTH: Final = 200
"""Containers nested deeper become null, so that whoever reads the text needs no deep stack."""

_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_FFFD = np.array([0xEF, 0xBF, 0xBD])

# what a level of an object that is being written has
_EMPTY: Final = np.int64(0)
_PAIR: Final = np.int64(1)  # or, in an array, a value
_KEY: Final = np.int64(2)
_COLON: Final = np.int64(3)


@compiled
def put(out: Any, o: Any, c: Any) -> Any:
    """Append a byte."""
    if out:
        set_byte(out, o, c)
    return o + 1


@compiled
def put_copy(base: Any, start: Any, end: Any, out: Any, o: Any) -> Any:
    """Append bytes as they are."""
    if out:
        copy_bytes(out + o, base + start, end - start)
    return o + end - start


@compiled
def put_null(out: Any, o: Any) -> Any:
    """Append ``null``."""
    if out:
        set_byte(out, o, 110)
        set_byte(out, o + 1, 117)
        set_byte(out, o + 2, 108)
        set_byte(out, o + 3, 108)
    return o + 4


@compiled
def _put_two(out: Any, o: Any, a: Any, b: Any) -> Any:
    return put(out, put(out, o, a), b)


@compiled
def put_string(base: Any, start: Any, end: Any, faults: Any, out: Any, o: Any) -> Any:
    """Append the string whose text lies between ``start`` and ``end``, with quotes and as JSON allows it.

    Of a writer that does not escape backslashes (as the faults tell) all are kept.
    """
    is_literal = faults & (BAD_ESCAPE | QUOTE_ESCAPED) != 0
    o = put(out, o, QUOTE)
    i = start
    while i < end:
        c = byte_at(base, i)
        if c == BACKSLASH:
            following = byte_at(base, i + 1) if i + 1 < end else np.int64(0)
            if following == QUOTE or (ESCAPABLE[following] and not is_literal):
                o = _put_two(out, o, BACKSLASH, following)
                i += 2
            else:
                o = _put_two(out, o, BACKSLASH, BACKSLASH)
                i += 1
        elif c < 32:
            o = _put_two(out, _put_two(out, o, BACKSLASH, LETTER_U), ZERO, ZERO)
            o = _put_two(out, o, ZERO + (c >> 4), np.int64(_HEX_DIGITS[c & 15]))
            i += 1
        elif c == QUOTE:
            o = _put_two(out, o, BACKSLASH, QUOTE)
            i += 1
        else:
            length = utf8_length(base, i, end)
            if length:
                o = put_copy(base, i, i + length, out, o)
                i += length
            else:
                o = put(out, _put_two(out, o, _FFFD[0], _FFFD[1]), _FFFD[2])
                i += 1
    return put(out, o, QUOTE)


@compiled
def _put_token(base: Any, start: Any, end: Any, out: Any, o: Any) -> Any:
    """Append a number or word: as it is if JSON knows it, else as null or, for odd numbers and words, as a string."""
    stop, is_valid = number_end(base, start, end)
    if is_valid and stop == end:
        return put_copy(base, start, end, out, o)
    _, kind, _ = token_end(base, start, end)
    if kind in (TRUE, FALSE, NULL):
        return put_copy(base, start, end, out, o)
    if kind == BARE:
        first = byte_at(base, start)
        if (first in (MINUS, PLUS)) and start + 1 < end:
            first = byte_at(base, start + 1)
        if (
            first | 32 == 105 or first | 32 == 110 or ZERO <= first <= NINE
        ):  # inf, nan, None, 1.#INF
            return put_null(out, o)
    return put_string(base, start, end, BAD_ESCAPE, out, o)


@compiled
def _put_separator(is_object: Any, state: Any, out: Any, o: Any) -> Any:
    """Append what stands between what a level has and what comes next."""
    if state == _PAIR:
        return put(out, o, COMMA_SIGN)
    if is_object and state != _EMPTY:
        return put(out, o, COLON_SIGN)
    return o


@compiled
def _put_close(is_object: Any, state: Any, out: Any, o: Any) -> Any:
    """End a level; a key without a value gets null."""
    if is_object and state >= _KEY:
        o = put_null(out, put(out, o, COLON_SIGN))
    return put(out, o, CLOSE_OBJECT if is_object else CLOSE_ARRAY)


@compiled
def put_value(base: Any, i: Any, end: Any, lenient: Any, out: Any, o: Any) -> Any:
    """Append the value in ``[i, end)`` as valid JSON."""
    objects = np.zeros(MAX_DEPTH + 1, np.bool_)
    states = np.zeros(MAX_DEPTH + 1, np.uint8)
    depth = 0
    begin = o
    while depth or o == begin:
        i = skip_space(base, i, end)
        if i >= end:
            break
        c = byte_at(base, i)
        in_object = objects[depth]
        state = states[depth]
        if c in (COMMA_SIGN, COLON_SIGN):
            if in_object and state == _KEY and c == COLON_SIGN:
                states[depth] = _COLON
            elif in_object and state >= _KEY and c == COMMA_SIGN:
                o = put_null(out, put(out, o, COLON_SIGN))
                states[depth] = _PAIR
            i += 1
            continue
        if is_close(c):
            i += 1
            if depth:
                o = _put_close(in_object, state, out, o)
                depth -= 1
            continue
        if depth:
            o = _put_separator(in_object, state, out, o)
        is_key = in_object and state < _KEY
        states[depth] = _KEY if is_key else _PAIR
        if c == QUOTE:
            j, faults, _ = string_end(base, i + 1, end, lenient)
            stop = end if j < 0 else j
            o = put_string(base, i + 1, stop, faults, out, o)
            i = stop + 1
        elif is_open(c):
            if is_key:  # a value without a key
                o = put(out, _put_two(out, o, QUOTE, QUOTE), COLON_SIGN)
                states[depth] = _PAIR
            if depth == MAX_DEPTH:
                o = put_null(out, o)
                i = skip_container(base, i, end, lenient)
                i = end if i < 0 else i
                continue
            o = put(out, o, c)
            depth += 1
            objects[depth] = c == OPEN_OBJECT
            states[depth] = _EMPTY
            i += 1
        else:
            stop = max(i + 1, token_end(base, i, end)[0])
            if is_key:
                o = put_string(base, i, stop, BAD_ESCAPE, out, o)
            else:
                o = _put_token(base, i, stop, out, o)
            i = stop
    while depth:
        o = _put_close(objects[depth], states[depth], out, o)
        depth -= 1
    return o if o > begin else put_null(out, o)


def repair_text(text: bytes) -> bytes:
    """The JSON value in ``text`` as valid JSON, whatever is wrong with it."""
    data: NDArray[np.uint8] = np.zeros(len(text) + PADDING, np.uint8)
    data[: len(text)] = np.frombuffer(text, np.uint8)
    base = data.ctypes.data
    size = put_value(base, 0, len(text), 0, 0, 0)
    out: NDArray[np.uint8] = np.empty(size, np.uint8)
    put_value(base, 0, len(text), 0, out.ctypes.data, 0)
    return out.tobytes()
