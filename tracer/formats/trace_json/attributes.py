"""What does each event say that no column holds? Compiled: arguments and further members as JSON text, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.trace_json.codes import (
    ABSENT,
    BARE,
    CLOSE_OBJECT,
    COLON_SIGN,
    COMMA_SIGN,
    FAULTS,
    INVALID_UTF8,
    OBJECT,
    OK,
    OPEN_OBJECT,
    QUOTE,
    QUOTE_ESCAPED,
)
from trnprof.tracer.formats.trace_json.event import (
    ARGS_DIRTY,
    HAS_UNKNOWN,
    key_at,
)
from trnprof.tracer.formats.trace_json.member_names import (
    ARGS_LEVEL,
    EVENT_LEVEL,
)
from trnprof.tracer.formats.trace_json.repair import (
    put,
    put_copy,
    put_string,
    put_value,
)
from trnprof.tracer.formats.trace_json.simd import (
    byte_at,
)
from trnprof.tracer.formats.trace_json.tokens import (
    is_string,
    skip_space,
    value_end,
)

_EVENT_KEY = np.frombuffer(b'"event":', np.uint8)
_ARGS_KEY = np.frombuffer(b'"args":', np.uint8)


@compiled
def _put_members(
    base: Any,
    i: Any,
    end: Any,
    lenient: Any,
    is_dirty: Any,
    names: Any,
    level: Any,
    out: Any,
    o: Any,
) -> Any:
    """Append the members of the object at ``i`` that ``names`` does not have: (new length, how many)."""
    count = 0
    i += 1
    while True:
        i = skip_space(base, i, end)
        while i < end and byte_at(base, i) == COMMA_SIGN:
            i = skip_space(base, i + 1, end)
        if i >= end or byte_at(base, i) != QUOTE:
            return o, count
        key = i + 1
        status, i, field, key_end, faults = key_at(base, i, end, lenient, names, level)
        if status != OK:
            return o, count
        _, stop, _, _ = value_end(base, i, end, lenient)
        if field < 0:
            if count:
                o = put(out, o, COMMA_SIGN)
            if is_dirty:
                o = put(out, put_string(base, key, key_end, faults, out, o), COLON_SIGN)
                o = put_value(base, i, stop, lenient, out, o)
            else:
                o = put(out, put_copy(base, key - 1, key_end + 1, out, o), COLON_SIGN)
                o = put_copy(base, i, stop, out, o)
            count += 1
        i = stop


@compiled
def _put_word(word: Any, out: Any, o: Any) -> Any:
    for k in range(len(word)):
        o = put(out, o, np.int64(word[k]))
    return o


@compiled
def _put_attributes(
    base: Any, first: Any, last: Any, args: Any, args_end: Any, kind: Any, marks: Any, names: Any, has_excluded: Any,
    out: Any, o: Any
) -> Any:  # fmt: skip
    """Append the attributes of one event; nothing if it has none."""
    lenient = np.int64((marks & QUOTE_ESCAPED) != 0)
    is_dirty = (marks & (ARGS_DIRTY | INVALID_UTF8)) != 0
    has_unknown = (marks & HAS_UNKNOWN) != 0
    if kind == OBJECT and not is_dirty and not has_unknown and not has_excluded:
        if skip_space(base, args + 1, args_end) == args_end - 1:
            return o
        return put_copy(base, args, args_end, out, o)
    begin = o
    o = put(out, o, OPEN_OBJECT)
    count, more = 0, 0
    if kind == OBJECT:
        o, count = _put_members(base, args, args_end, lenient, is_dirty, names, ARGS_LEVEL, out, o)
    elif kind > BARE:
        quote = np.int64(is_string(kind))
        o = _put_word(_ARGS_KEY, out, o)
        o = put_value(base, args - quote, args_end + quote, lenient, out, o)
        count = 1
    if has_unknown:
        before = o
        if count:
            o = put(out, o, COMMA_SIGN)
        o = put(out, _put_word(_EVENT_KEY, out, o), OPEN_OBJECT)
        o, more = _put_members(
            base, first, last, lenient, (marks & FAULTS) != 0, names, EVENT_LEVEL, out, o
        )
        o = put(out, o, CLOSE_OBJECT) if more else before
    return put(out, o, CLOSE_OBJECT) if count + more else begin


@compiled
def attributes(
    base: Any, first: Any, last: Any, args: Any, length: Any, kind: Any, marks: Any, names: Any, has_excluded: Any,
    offsets: Any, out: Any
) -> None:  # fmt: skip
    """Attributes of all rows, one behind the other; ``offsets`` (int64[n + 1]) are filled, ``out`` only if it has room."""
    target = np.int64(out.ctypes.data) if len(out) else np.int64(0)
    for r in range(len(first)):
        low = np.int64(args[r])
        offsets[r + 1] = _put_attributes(
            base, np.int64(first[r]), np.int64(last[r]), low, low + length[r], np.int64(kind[r]), np.int64(marks[r]),
            names, has_excluded, target, offsets[r],
        )  # fmt: skip


@compiled
def texts(
    base: Any, start: Any, length: Any, kind: Any, marks: Any, offsets: Any, out: Any
) -> None:
    """JSON text of one field in all rows; ``offsets`` and ``out`` as for ``attributes``."""
    target = np.int64(out.ctypes.data) if len(out) else np.int64(0)
    for r in range(len(start)):
        o = offsets[r]
        if kind[r] != ABSENT:
            quote = np.int64(is_string(np.int64(kind[r])))
            low, high = np.int64(start[r]) - quote, np.int64(start[r]) + length[r] + quote
            if marks[r] & FAULTS:
                o = put_value(base, low, high, np.int64(marks[r] & QUOTE_ESCAPED), target, o)
            else:
                o = put_copy(base, low, high, target, o)
        offsets[r + 1] = o
