"""What valid JSON says the same as this text of a profile? Compiled, without recursion, for values that JSON does not allow.

NaN and its kin become null, raw control characters and stray backslashes are escaped, bytes that are not UTF-8 become U+FFFD,
commas are put where they belong, numbers that JSON does not know become strings, what is not closed is closed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.json_parse import (
    ARGS_DIRTY,
    HAS_UNKNOWN,
    KeyTable,
    Keys,
    find_key,
)
from trnprof.tracer.formats.json_simd import byte_at, compiled, copy_bytes, inlined, set_byte
from trnprof.tracer.formats.json_tokens import (
    ABSENT,
    BAD_ESCAPE,
    BARE,
    ESCAPED,
    FALSE,
    FAULTS,
    INVALID_UTF8,
    NULL,
    OBJECT,
    QUOTE_ESCAPED,
    STRING,
    TRUE,
    number_end,
    skip_space,
    string_end,
    token_end,
)
from trnprof.tracer.formats.json_values import utf8_length

MAX_DEPTH: Final = 200
"""Containers nested deeper become null, so that whoever reads the text needs no deep stack."""

_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_NULL_TEXT = np.frombuffer(b"null", np.uint8)
_EVENT_KEY = np.frombuffer(b'"event":{', np.uint8)
_ARGS_KEY = np.frombuffer(b'"args":', np.uint8)
_REPLACEMENT = np.frombuffer(b"\xef\xbf\xbd", np.uint8)
_IS_ESCAPE = np.zeros(256, np.bool_)
_IS_ESCAPE[[ord(c) for c in '"\\/bfnrtu']] = True


@compiled
def _put(out: Any, o: Any, c: Any) -> Any:
    """Append a byte if there is room: with an empty ``out`` only the length is counted."""
    if o < len(out):
        out[o] = c
    return o + 1


@compiled
def _put_text(out: Any, o: Any, text: Any) -> Any:
    for k in range(len(text)):
        o = _put(out, o, text[k])
    return o


@compiled
def _copy(base: Any, start: Any, end: Any, out: Any, o: Any) -> Any:
    if len(out):
        out[o : o + end - start] = byte_at(base, start:end)
    return o + end - start


@compiled
def is_unescaped(base: Any, start: Any, end: Any, faults: Any) -> Any:
    """Whether a string comes from a writer that does not escape backslashes: it holds an escape that JSON does not know, or
    begins like a Windows path.
    """
    if faults & (BAD_ESCAPE | QUOTE_ESCAPED):
        return True
    if end - start < 4 or byte_at(base, start + 1) != 58 or byte_at(base, start + 2) != 92 or byte_at(base, start + 3) == 92:
        return False
    return 97 <= (byte_at(base, start) | 32) <= 122


@compiled
def put_string(base: Any, start: Any, end: Any, faults: Any, out: Any, o: Any) -> Any:
    """Append a string that lies between ``start`` and ``end``, with quotes and as JSON allows it."""
    literal = is_unescaped(base, start, end, faults)
    o = _put(out, o, 34)
    i = start
    while i < end:
        c = byte_at(base, i)
        if c == 92:
            following = byte_at(base, i + 1) if i + 1 < end else np.uint8(0)
            if literal and not following == 34:
                o = _put2(out, o)
                i += 1
            elif i + 1 >= end:
                o = _put2(out, o)
                i += 1
            elif _IS_ESCAPE[following]:
                o = _put(out, o, 92)
                o = _put(out, o, following)
                i += 2
            else:
                o = _put2(out, o)
                i += 1
        elif c < 32:
            o = _put(out, o, 92)
            o = _put(out, o, 117)
            o = _put(out, o, 48)
            o = _put(out, o, 48)
            o = _put(out, o, _HEX_DIGITS[c >> 4])
            o = _put(out, o, _HEX_DIGITS[c & 15])
            i += 1
        elif c == 34:
            o = _put(out, o, 92)
            o = _put(out, o, 34)
            i += 1
        elif c < 128:
            o = _put(out, o, c)
            i += 1
        else:
            length = utf8_length(base, i, end)
            if length == 0:
                o = _put_text(out, o, _REPLACEMENT)
                i += 1
            for _ in range(length):
                o = _put(out, o, byte_at(base, i))
                i += 1
    return _put(out, o, 34)


@compiled
def _put2(out: Any, o: Any) -> Any:
    """Append an escaped backslash."""
    o = _put(out, o, 92)
    return _put(out, o, 92)


@compiled
def put_token(base: Any, start: Any, end: Any, out: Any, o: Any) -> Any:
    """Append a number or word: as it is if JSON knows it, else as null or, for odd numbers and words, as a string."""
    stop, valid = number_end(base, start, end)
    if valid and stop == end:
        return _copy(base, start, end, out, o)
    _, kind, _ = token_end(base, start, end)
    if kind == TRUE or kind == FALSE or kind == NULL:
        return _copy(base, start, end, out, o)
    if kind == BARE:
        first = start
        if first < end and (byte_at(base, first) == 45 or byte_at(base, first) == 43):
            first += 1
        c = byte_at(base, first) | 32 if first < end else 110
        if c == 105 or c == 110 or 48 <= c <= 57:  # inf…, nan…, None, 1.#INF
            return _put_text(out, o, _NULL_TEXT)
    return put_string(base, start, end, 0, out, o)


@compiled
def put_value(base: Any, i: Any, end: Any, lenient: Any, out: Any, o: Any) -> Any:
    """Append the value in ``byte_at(base, i:end)`` as valid JSON; the new length."""
    objects = np.zeros(MAX_DEPTH + 1, np.bool_)
    # of each level: 0 nothing yet, 1 after a value, 2 after a key, 3 after its colon
    state = np.zeros(MAX_DEPTH + 1, np.uint8)
    depth, skipped = 0, 0
    started = False
    while True:
        i = skip_space(base, i, end)
        if i >= end:
            break
        c = byte_at(base, i)
        if c == 44 or c == 58:
            if depth and objects[depth] and not skipped:
                if c == 58 and state[depth] == 2:
                    state[depth] = 3
                elif c == 44 and state[depth] >= 2:
                    o = _finish_pair(out, o, state[depth])
                    state[depth] = 1
            i += 1
            continue
        if c == 125 or c == 93:
            i += 1
            if skipped:
                skipped -= 1
            elif depth:
                if objects[depth] and state[depth] >= 2:
                    o = _finish_pair(out, o, state[depth])
                o = _put(out, o, 125 if objects[depth] else 93)
                depth -= 1
            if depth == 0 and started and not skipped:
                break
            continue
        opens = c == 123 or c == 91
        if skipped:
            if opens:
                skipped += 1
                i += 1
            elif c == 34:
                j, _, _ = string_end(base, i + 1, end, lenient)
                i = end if j < 0 else j + 1
            else:
                i = max(i + 1, token_end(base, i, end)[0])
            continue
        if depth == 0 and started:
            break
        is_key = depth > 0 and objects[depth] and (state[depth] < 2)
        if depth and objects[depth]:
            if state[depth] == 2:  # two strings without a colon
                o = _put(out, o, 58)
                state[depth] = 3
            elif state[depth] == 1:
                o = _put(out, o, 44)
            elif state[depth] == 3:
                o = _put(out, o, 58)
        elif depth and state[depth] == 1:
            o = _put(out, o, 44)
        started = True
        if opens:
            if is_key:
                o = _put(out, o, 34)
                o = _put(out, o, 34)
                o = _put(out, o, 58)
            if depth:
                state[depth] = 1
            i += 1
            if depth == MAX_DEPTH:
                o = _put_text(out, o, _NULL_TEXT)
                skipped = 1
                continue
            o = _put(out, o, c)
            depth += 1
            objects[depth] = c == 123
            state[depth] = 0
            continue
        if c == 34:
            j, faults, _ = string_end(base, i + 1, end, lenient)
            stop = end if j < 0 else j
            o = put_string(base, i + 1, stop, faults, out, o)
            i = stop + 1
        else:
            stop = max(i + 1, token_end(base, i, end)[0])
            if is_key:
                o = put_string(base, i, stop, 0, out, o)
            else:
                o = put_token(base, i, stop, out, o)
            i = stop
        if depth:
            state[depth] = 2 if is_key else 1
        elif depth == 0:
            break
    while depth:
        if objects[depth] and state[depth] >= 2:
            o = _finish_pair(out, o, state[depth])
        o = _put(out, o, 125 if objects[depth] else 93)
        depth -= 1
    if not started:
        o = _put_text(out, o, _NULL_TEXT)
    return o


@compiled
def _finish_pair(out: Any, o: Any, state: Any) -> Any:
    """A key without a value gets null."""
    o = _put(out, o, 58)
    return _put_text(out, o, _NULL_TEXT)


@compiled
def _value_stop(base: Any, i: Any, end: Any, lenient: Any) -> Any:
    """Past the value at ``i`` of a container whose brackets are known to match."""
    depth = 0
    while i < end:
        c = byte_at(base, i)
        if c == 34:
            j, _, _ = string_end(base, i + 1, end, lenient)
            i = end if j < 0 else j + 1
        elif c == 123 or c == 91:
            depth += 1
            i += 1
            continue
        elif c == 125 or c == 93:
            if depth == 0:
                return i
            depth -= 1
            i += 1
        elif depth == 0 and (c == 44 or c == 58):
            return i
        elif c == 44 or c == 58:
            i += 1
            continue
        else:
            i = max(i + 1, token_end(base, i, end)[0])
        if depth == 0:
            return i
        i = skip_space(base, i, end)
    return end


@compiled
def _put_members(
    base: Any, i: Any, end: Any, lenient: Any, is_dirty: Any, table: Any, level: Any, out: Any, o: Any
) -> Any:
    """Append the members of the object at ``i`` whose names are not in ``table``: (new length, how many)."""
    count = 0
    i += 1
    while True:
        i = skip_space(base, i, end)
        while i < end and byte_at(base, i) == 44:
            i = skip_space(base, i + 1, end)
        if i >= end or byte_at(base, i) != 34:
            return o, count
        key = i + 1
        key_end, faults, _ = string_end(base, key, end, lenient)
        if key_end < 0:
            return o, count
        i = skip_space(base, key_end + 1, end)
        if i >= end or byte_at(base, i) != 58:
            return o, count
        i = skip_space(base, i + 1, end)
        stop = _value_stop(base, i, end, lenient)
        if find_key(table, base, level, key, key_end) < 0:
            if count:
                o = _put(out, o, 44)
            if is_dirty:
                o = put_string(base, key, key_end, faults, out, o)
                o = _put(out, o, 58)
                o = put_value(base, i, stop, lenient, out, o)
            else:
                o = _copy(base, key - 1, key_end + 1, out, o)
                o = _put(out, o, 58)
                o = _copy(base, i, stop, out, o)
            count += 1
        i = stop


@compiled
def _put_attributes(
    base: Any, first: Any, last: Any, args: Any, args_length: Any, args_kind: Any, marks: Any, table: Any,
    has_excluded: Any, out: Any, o: Any
) -> Any:
    """Append the attributes of one event; nothing if it has none."""
    lenient = (marks & QUOTE_ESCAPED) != 0
    begin = o
    faults = marks & FAULTS
    args_dirty = (marks & (ARGS_DIRTY | INVALID_UTF8)) != 0
    unknown = (marks & HAS_UNKNOWN) != 0
    if args_kind == OBJECT and not args_dirty and not unknown and not has_excluded:
        if skip_space(base, args + 1, args + args_length) == args + args_length - 1:
            return o
        return _copy(base, args, args + args_length, out, o)
    o = _put(out, o, 123)
    count = 0
    if args_kind == OBJECT:
        o, count = _put_members(
            base, args, args + args_length, lenient, args_dirty, table, 1, out, o
        )
    elif args_kind > BARE:
        o = _put_text(out, o, _ARGS_KEY)
        low, high = args, args + args_length
        if args_kind == STRING or args_kind == ESCAPED:
            low, high = low - 1, high + 1
        o = put_value(base, low, high, lenient, out, o)
        count = 1
    if unknown:
        before = o
        if count:
            o = _put(out, o, 44)
        o = _put_text(out, o, _EVENT_KEY)
        o, more = _put_members(
            base, first, last, lenient, faults != 0, table, 0, out, o
        )
        o = _put(out, o, 125)
        count += more
        if not more:
            o = before
    if not count:
        return begin
    return _put(out, o, 125)


@compiled
def attributes(
    data: Any, first: Any, last: Any, args: Any, args_length: Any, args_kind: Any, marks: Any, table: Any,
    has_excluded: Any, offsets: Any, out: Any
) -> None:
    """Attributes of all rows, one behind the other; with an empty ``out`` only ``offsets`` (int64[n + 1]) are filled."""
    base = np.int64(data.ctypes.data)
    for r in range(len(first)):
        o = _put_attributes(
            base, np.int64(first[r]), np.int64(last[r]), np.int64(args[r]), np.int64(args_length[r]),
            args_kind[r], marks[r], table, has_excluded, out, offsets[r],
        )
        if not len(out):
            offsets[r + 1] = o


@compiled
def repaired(base: Any, start: Any, length: Any, kind: Any, marks: Any, offsets: Any, out: Any) -> None:
    """JSON text of one field in all rows; with an empty ``out`` only ``offsets`` (int64[n + 1]) are filled."""
    base = np.int64(data.ctypes.data)
    for r in range(len(start)):
        o = offsets[r]
        if kind[r] != ABSENT:
            low, high = np.int64(start[r]), np.int64(start[r]) + length[r]
            if kind[r] == STRING or kind[r] == ESCAPED:
                low, high = low - 1, high + 1
            if marks[r] & FAULTS:
                o = put_value(base, low, high, (marks[r] & QUOTE_ESCAPED) != 0, out, o)
            else:
                o = _copy(base, low, high, out, o)
        if not len(out):
            offsets[r + 1] = o


def repair_text(text: bytes) -> bytes:
    """The JSON value in ``text`` as valid JSON, whatever is wrong with it."""
    data = np.zeros(len(text) + 64, np.uint8)
    byte_at(base, : len(text)) = np.frombuffer(text, np.uint8)
    base = np.int64(data.ctypes.data)
    size = put_value(base, 0, len(text), False, np.empty(0, np.uint8), 0)
    out: NDArray[np.uint8] = np.empty(size, np.uint8)
    put_value(base, 0, len(text), False, out, 0)
    return out.tobytes()
