"""Is the name of a member one that was asked for, and which? A hash table for compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled, inlined
from trnprof.tracer.formats.trace_json.codes import (
    BACKSLASH,
    LETTER_U,
    QUOTE,
    SLASH,
)
from trnprof.tracer.formats.trace_json.simd import (
    byte_at,
    int32_at,
    set_byte,
    word_at,
)

EVENT_LEVEL: Final = np.int64(0)
ARGS_LEVEL: Final = np.int64(1)

_SLOTS: Final = 512
_SHIFT: Final = 55
"""Leaves the highest 9 bits of 64: a slot."""
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_ZERO: Final = np.int64(0)
_MAX_ESCAPED: Final = 128
"""Longer names with backslashes are nobody's."""


class Names(NamedTuple):
    """Addresses of the table, for compiled code, and where the arguments are; see ``NameTable``.

    Attributes:
        first: uint64[2 * slots], the first eight bytes of the name, zeros behind a short one.
        entry: int32[2 * slots, 2], bytes of the name (-1: empty slot) and number of the field.
        texts: uint8[fields * width], the names.
        width: bytes of a name's room.
        scratch: uint8[256], room for a name without its escapes.
        args: number of the field that holds the arguments.
        args_end: past the last field; the fields of the arguments follow ``args``.
    """

    first: int
    entry: int
    texts: int
    width: int
    scratch: int
    args: int
    args_end: int


@dataclass(frozen=True)
class NameTable:
    """Hash table of member names: level 0 the members of events, level 1 those of their arguments.

    Attributes:
        arrays: what the addresses of ``names`` point to.
        names: for compiled code, as long as this object lives.
    """

    arrays: tuple[NDArray[Any], ...]
    names: Names


@inlined
def _slot(first: Any, length: Any) -> Any:
    mixed = (first ^ np.uint64(length)) * _MULTIPLIER
    return np.int64(mixed >> np.uint64(_SHIFT))


def name_table(members: tuple[str, ...], args: tuple[str, ...]) -> NameTable:
    """The table of these names; fields are numbered members first, the last member holds the arguments. At most 400 of each."""
    names = [name.encode() for name in (*members, *args)]
    width = max(len(name) for name in names) + 8
    texts = np.zeros((len(names), width), np.uint8)
    first, entry = np.zeros(2 * _SLOTS, np.uint64), np.full((2 * _SLOTS, 2), -1, np.int32)
    for field, name in enumerate(names):
        texts[field, : len(name)] = np.frombuffer(name, np.uint8)
        head = int.from_bytes(name[:8], "little")
        slot = ((head ^ len(name)) * int(_MULTIPLIER) % 2**64) >> _SHIFT  # as _slot does
        level = EVENT_LEVEL if field < len(members) else ARGS_LEVEL
        while entry[level * _SLOTS + slot, 0] >= 0:
            slot = (slot + 1) % _SLOTS
        first[level * _SLOTS + slot] = head
        entry[level * _SLOTS + slot] = len(name), field
    arrays: tuple[NDArray[Any], ...] = (first, entry, texts, np.zeros(256, np.uint8))
    first_at, entry_at, texts_at, scratch_at = (array.ctypes.data for array in arrays)
    ends = (len(members) - 1, len(names))
    return NameTable(arrays, Names(first_at, entry_at, texts_at, width, scratch_at, *ends))


@inlined
def find_name(names: Any, base: Any, level: Any, start: Any, end: Any) -> Any:
    """Number of the field with the name in ``[start, end)``, -1 if it is none of them."""
    length = end - start
    head = word_at(base, start)
    if length < 8:
        head &= (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
    slot = _slot(head, length)
    while True:
        at = level * _SLOTS + slot
        size = int32_at(names.entry, 2 * at)
        if size < 0:
            return np.int64(-1)
        if size == length and word_at(names.first, 8 * at) == head:
            field = int32_at(names.entry, 2 * at + 1)
            k = 8
            while k < length and byte_at(base, start + k) == byte_at(
                names.texts, field * names.width + k
            ):
                k += 1
            if k >= length:
                return field
        slot = (slot + 1) & (_SLOTS - 1)


@compiled
def find_escaped_name(names: Any, base: Any, level: Any, start: Any, end: Any) -> Any:
    """As ``find_name``, for a name with backslashes."""
    count = np.int64(0)
    i = start
    while i < end:
        if count >= _MAX_ESCAPED:
            return np.int64(-1)
        c = byte_at(base, i)
        i += 1
        if c == BACKSLASH and i < end:
            c = byte_at(base, i)
            i += 1
            if c == LETTER_U:
                c = _code_point(base, i, end)
                i += 4
            elif c not in (QUOTE, BACKSLASH, SLASH):
                return np.int64(-1)
        if c < 0:
            return np.int64(-1)
        set_byte(names.scratch, count, c)
        count += 1
    return find_name(names, names.scratch, level, _ZERO, count)


@compiled
def _code_point(base: Any, i: Any, end: Any) -> Any:
    """What four hexadecimal digits say, if that is ASCII; else -1."""
    if i + 4 > end:
        return np.int64(-1)
    code = np.int64(0)
    for k in range(4):
        h = byte_at(base, i + k)
        digit = h - 48 if h <= 57 else (h | 32) - 87
        if digit < 0 or digit > 15 or 57 < h < 65:
            return np.int64(-1)
        code = code * 16 + digit
    return code if code < 128 else np.int64(-1)
