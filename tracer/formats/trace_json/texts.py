"""Which texts do the located fields hold, and are they text at all? Compiled loops over rows: hashes, distinct values, UTF-8."""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled, inlined
from trnprof.tracer.formats.trace_json.codes import (
    BARE,
    ESCAPED,
    INVALID_UTF8,
)
from trnprof.tracer.formats.trace_json.simd import (
    WIDTH,
    byte_at,
    copy_bytes,
    high_at,
    word_at,
)

_MIX: Final = np.uint64(0xD6E8FEB86659FD93)


@inlined
def hash_bytes(base: Any, start: Any, length: Any, seed: Any) -> Any:
    """64-bit hash of bytes; good mixing, not against an adversary who wants collisions."""
    h = seed ^ (np.uint64(length) * _MIX)
    i = start
    end = start + length
    while i + 8 <= end:
        h = (h ^ word_at(base, i)) * _MIX
        h ^= h >> np.uint64(32)
        i += 8
    if i < end:
        h = (h ^ (word_at(base, i) & _low_bytes(end - i))) * _MIX
        h ^= h >> np.uint64(32)
    h *= _MIX
    return h ^ (h >> np.uint64(29))


@inlined
def _low_bytes(count: Any) -> Any:
    """Mask of the first ``count`` bytes of a word, 1 to 7."""
    return (np.uint64(1) << np.uint64(8 * count)) - np.uint64(1)


@compiled
def hash_rows(base: Any, first: Any, last: Any, seed: Any, out: Any) -> None:
    """Put the hash of bytes ``first`` to ``last`` of every row to ``out`` (uint64)."""
    for r in range(len(first)):
        low = np.int64(first[r])
        out[r] = hash_bytes(base, low, np.int64(last[r]) - low, seed)


@inlined
def _same(base: Any, a: Any, b: Any, length: Any) -> Any:
    k = 0
    while k + 8 <= length:
        if word_at(base, a + k) != word_at(base, b + k):
            return False
        k += 8
    if k == length:
        return True
    return (word_at(base, a + k) ^ word_at(base, b + k)) & _low_bytes(length - k) == np.uint64(0)


def distinct_texts(
    base: int,
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    kind: NDArray[np.uint8],
    seed: np.uint64,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Number the distinct texts of a field in order of first appearance.

    Strings with and without backslashes are kept apart from one another (their text differs by how it is read), numbers and other
    values are told by their text.

    Returns:
        (code a row, -1 where there is nothing; row of the first appearance of each code).
    """
    codes, firsts, slots = _tables(len(start))
    hashes = np.empty(len(start), np.uint64)
    count = _number_texts(base, start, length, kind, seed, slots, hashes, codes, firsts)
    return codes, firsts[:count].copy()


def distinct_pairs(
    left: NDArray[np.int32], right: NDArray[np.int32], seed: np.uint64
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Number the distinct pairs of two columns of codes in order of first appearance: (codes, first rows)."""
    codes, firsts, slots = _tables(len(left))
    count = _number_pairs(left, right, seed, slots, codes, firsts)
    return codes, firsts[:count].copy()


def _tables(rows: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Codes of the rows, first row of each code, and a hash table of twice as many slots, a power of two."""
    slots = np.full(1 << (2 * rows).bit_length(), -1, np.int32)
    return np.full(rows, -1, np.int32), np.empty(rows, np.int64), slots


@compiled
def _number_texts(
    base: Any,
    start: Any,
    length: Any,
    kind: Any,
    seed: Any,
    slots: Any,
    hashes: Any,
    codes: Any,
    firsts: Any,
) -> Any:
    """Fill ``codes`` and ``firsts``; the number of distinct texts."""
    count, mask = np.int32(0), len(slots) - 1
    for r in range(len(start)):
        if kind[r] <= BARE:
            continue
        low, long = np.int64(start[r]), np.int64(length[r])
        h = hash_bytes(base, low, long, seed)
        is_escaped = kind[r] == ESCAPED
        slot = np.int64(h & np.uint64(mask))
        code = slots[slot]
        while code >= 0:
            f = firsts[code]
            is_alike = (
                hashes[code] == h and length[f] == long and (kind[f] == ESCAPED) == is_escaped
            )
            if is_alike and _same(base, np.int64(start[f]), low, long):
                break
            slot = (slot + 1) & mask
            code = slots[slot]
        if code < 0:
            code = count
            slots[slot], firsts[code], hashes[code] = code, r, h
            count += np.int32(1)
        codes[r] = code
    return count


@compiled
def _number_pairs(left: Any, right: Any, seed: Any, slots: Any, codes: Any, firsts: Any) -> Any:
    """Fill ``codes`` and ``firsts``; the number of distinct pairs."""
    count, mask = np.int32(0), len(slots) - 1
    for r in range(len(left)):
        high = np.uint64(np.int64(left[r]) + 1) << np.uint64(32)
        h = ((high | np.uint64(np.int64(right[r]) + 1)) ^ seed) * _MIX
        h ^= h >> np.uint64(32)
        slot = np.int64(h & np.uint64(mask))
        code = slots[slot]
        while code >= 0:
            f = firsts[code]
            if left[f] == left[r] and right[f] == right[r]:
                break
            slot = (slot + 1) & mask
            code = slots[slot]
        if code < 0:
            code = count
            slots[slot], firsts[code] = code, r
            count += np.int32(1)
        codes[r] = code
    return count


@compiled
def utf8_length(base: Any, i: Any, end: Any) -> Any:
    """Bytes of the well-formed UTF-8 character at ``i``; 0 if there is none."""
    c = byte_at(base, i)
    if c < 0x80:
        return np.int64(1)
    if c < 0xC2 or c > 0xF4:
        return np.int64(0)
    count = 2 if c < 0xE0 else (3 if c < 0xF0 else 4)
    if i + count > end:
        return np.int64(0)
    second = byte_at(base, i + 1)
    low, high = 0x80, 0xBF
    if c == 0xE0:
        low = 0xA0
    elif c == 0xED:
        high = 0x9F
    elif c == 0xF0:
        low = 0x90
    elif c == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return np.int64(0)
    for k in range(2, count):
        if byte_at(base, i + k) & 0xC0 != 0x80:
            return np.int64(0)
    return count


@compiled
def mark_invalid_utf8(base: Any, first: Any, last: Any, marks: Any) -> None:
    """Set INVALID_UTF8 in the marks of rows whose text is not UTF-8."""
    for r in range(len(first)):
        i, end = np.int64(first[r]), np.int64(last[r])
        while i < end:
            step = high_at(base, i)
            i += step
            if step == WIDTH:
                continue
            if i >= end:
                break
            length = utf8_length(base, i, end)
            if length == 0:
                marks[r] |= INVALID_UTF8
                break
            i += length


@compiled
def gather(base: Any, start: Any, offsets: Any, out: Any) -> None:
    """Put the text of every row to ``out`` (uint8), from its offset to the next one."""
    target = np.int64(out.ctypes.data)
    for r in range(len(start)):
        copy_bytes(target + offsets[r], base + start[r], offsets[r + 1] - offsets[r])


def random_seed() -> np.uint64:
    """Of the hash tables of one process, so that a file cannot be made to collide."""
    return np.uint64(secrets.randbits(64))
