"""What numbers, times and distinct texts do the located fields hold? Compiled loops over rows.

Times come from the decimal text: microseconds with any number of decimals become nanoseconds and a fraction of 1e-15 ns, in
integers, and are rounded once, half up. No float is involved.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np

from trnprof.tracer.formats.json_simd import (
    WIDTH,
    byte_at,
    compiled,
    copy_bytes,
    high_at,
    inlined,
    word_at,
)
from trnprof.tracer.formats.json_tokens import BARE, ESCAPED, NUMBER, STRING

_FRACTION_DIGITS: Final = 15
FRACTION_UNITS: Final = 10**_FRACTION_DIGITS
"""Units of the fraction in a nanosecond."""
_MIX: Final = np.uint64(0xD6E8FEB86659FD93)
FAR_NS: Final = 1 << 62
"""Times beyond are cut to this: 146 years, which no profile has."""


@inlined
def _trim(base: Any, start: Any, end: Any) -> Any:
    while start < end and byte_at(base, start) <= 32:
        start += 1
    while end > start and byte_at(base, end - 1) <= 32:
        end -= 1
    return start, end


@inlined
def _is_digit(c: Any) -> Any:
    return 48 <= c <= 57


@compiled
def decimal_parts(base: Any, start: Any, end: Any, shift: Any) -> Any:
    """A decimal number times ten to the ``shift``.

    Returns:
        (state, whole, fraction): state 0 if the text is no number, 1 if it is one, 2 if it is cut to ±FAR_NS; value = whole +
        fraction / FRACTION_UNITS, 0 ≤ fraction < FRACTION_UNITS.
    """
    start, end = _trim(base, start, end)
    negative = False
    if start < end and (byte_at(base, start) == 45 or byte_at(base, start) == 43):
        negative = byte_at(base, start) == 45
        start += 1
    i = start
    whole_digits = 0
    while i < end and _is_digit(byte_at(base, i)):
        i += 1
    whole_digits = i - start
    digits = whole_digits
    if i < end and byte_at(base, i) == 46:
        i += 1
        first = i
        while i < end and _is_digit(byte_at(base, i)):
            i += 1
        digits += i - first
    if digits == 0:
        return 0, np.int64(0), np.int64(0)
    mantissa_end = i
    exponent = 0
    if i < end and (byte_at(base, i) | 32) == 101:
        i += 1
        minus = False
        if i < end and (byte_at(base, i) == 45 or byte_at(base, i) == 43):
            minus = byte_at(base, i) == 45
            i += 1
        if i >= end:
            return 0, np.int64(0), np.int64(0)
        while i < end and _is_digit(byte_at(base, i)):
            exponent = min(exponent * 10 + np.int64(byte_at(base, i)) - 48, 1_000_000)
            i += 1
        if minus:
            exponent = -exponent
    if i != end:
        return 0, np.int64(0), np.int64(0)
    point = whole_digits + exponent + shift  # digits before the point
    whole, fraction, place = np.int64(0), np.int64(0), -point
    if place > 0:  # zeros behind the point
        place = min(place, _FRACTION_DIGITS)
    for k in range(start, mantissa_end):
        if byte_at(base, k) == 46:
            continue
        digit = np.int64(byte_at(base, k)) - 48
        if place < 0:
            if whole > FAR_NS // 10 - 1:
                return 2, -FAR_NS if negative else FAR_NS, np.int64(0)
            whole = whole * 10 + digit
        elif place < _FRACTION_DIGITS:
            fraction = fraction * 10 + digit
        else:
            break
        place += 1
    while place < 0 and whole:
        if whole > FAR_NS // 10 - 1:
            return 2, -FAR_NS if negative else FAR_NS, np.int64(0)
        whole *= 10
        place += 1
    place = max(place, 0)
    while place < _FRACTION_DIGITS:
        fraction *= 10
        place += 1
    if negative:
        whole = -whole
        if fraction:
            whole -= 1
            fraction = FRACTION_UNITS - fraction
    return 1, whole, fraction


@inlined
def _has_text(kind: Any) -> Any:
    return kind == NUMBER or kind == STRING or kind == ESCAPED


@compiled
def times(
    data: Any, ts_start: Any, ts_length: Any, ts_kind: Any, dur_start: Any, dur_length: Any, dur_kind: Any
) -> Any:
    """(start_ns, end_ns, has_ts, has_dur, has_cut) of every row; end = start where there is no duration."""
    base = np.int64(data.ctypes.data)
    rows = len(ts_start)
    start_ns, end_ns = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    has_ts, has_dur = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    has_cut = np.zeros(rows, np.bool_)
    half = FRACTION_UNITS // 2
    for r in range(rows):
        whole, fraction = np.int64(0), np.int64(0)
        if _has_text(ts_kind[r]):
            low = np.int64(ts_start[r])
            state, whole, fraction = decimal_parts(base, low, low + ts_length[r], 3)
            has_ts[r] = state > 0
            has_cut[r] = state == 2
        start_ns[r] = whole + (1 if fraction >= half else 0)
        end_ns[r] = start_ns[r]
        if _has_text(dur_kind[r]):
            low = np.int64(dur_start[r])
            state, more, part = decimal_parts(base, low, low + dur_length[r], 3)
            has_dur[r] = state > 0
            has_cut[r] |= state == 2
            part += fraction
            if part >= FRACTION_UNITS:
                part -= FRACTION_UNITS
                more += 1
            if part >= half:
                more += 1
            if (more > 0 and whole > FAR_NS - more) or (more < 0 and whole < -FAR_NS - more):
                has_cut[r] = True
                end_ns[r] = FAR_NS if more > 0 else -FAR_NS
            else:
                end_ns[r] = whole + more
    return start_ns, end_ns, has_ts, has_dur, has_cut


@compiled
def _hexadecimal(base: Any, start: Any, end: Any) -> Any:
    if end - start > 18 or end - start < 3:
        return np.uint64(0), False
    value = np.uint64(0)
    for k in range(start + 2, end):
        c = np.int64(byte_at(base, k))
        digit = c - 48 if c <= 57 else (c | 32) - 87
        if digit < 0 or digit > 15 or (57 < c < 65):
            return np.uint64(0), False
        value = (value << np.uint64(4)) | np.uint64(digit)
    return value, True


@compiled
def _plain_integer(base: Any, start: Any, end: Any) -> Any:
    """(value modulo 2^64, whether the text is an integer from -2^63 to 2^64 - 1)."""
    negative = False
    if start < end and (byte_at(base, start) == 45 or byte_at(base, start) == 43):
        negative = byte_at(base, start) == 45
        start += 1
    while start < end - 1 and byte_at(base, start) == 48:
        start += 1
    digits = end - start
    if digits < 1 or digits > 20:
        return np.uint64(0), False
    value = np.uint64(0)
    for k in range(start, end):
        if not _is_digit(byte_at(base, k)):
            return np.uint64(0), False
        digit = np.uint64(byte_at(base, k)) - np.uint64(48)
        if k == start + 19:  # the twentieth digit is the first that may not fit
            if value > np.uint64(1844674407370955161):
                return np.uint64(0), False
            if value == np.uint64(1844674407370955161) and digit > np.uint64(5):
                return np.uint64(0), False
        value = value * np.uint64(10) + digit
    if negative:
        return ~value + np.uint64(1), value <= np.uint64(1 << 63)
    return value, True


@compiled
def integers(data: Any, start: Any, length: Any, kind: Any) -> Any:
    """(int64 values, whether each is an integer): numbers and numeric strings, ``0x`` too; above 2^63 as the bits of uint64."""
    base = np.int64(data.ctypes.data)
    rows = len(start)
    values, valid = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    for r in range(rows):
        if not _has_text(kind[r]):
            continue
        low, high = _trim(base, np.int64(start[r]), np.int64(start[r]) + length[r])
        value, good = _plain_integer(base, low, high)
        if not good and high - low > 2 and byte_at(base, low) == 48 and (byte_at(base, low + 1) | 32) == 120:
            value, good = _hexadecimal(base, low, high)
        if not good:  # 5.0, 1e3
            state, whole, fraction = decimal_parts(base, low, high, 0)
            good = state == 1 and fraction == 0
            value = np.uint64(whole)
        if good:
            values[r] = np.int64(value)
            valid[r] = True
    return values, valid


_POWERS = np.array([10.0**k for k in range(23)])


@compiled
def floats(data: Any, start: Any, length: Any, kind: Any) -> Any:
    """(float64 values, NaN where there is none; rows that need a slower, exactly rounding parser).

    Exact where mantissa and power of ten are both exact floats: at most 15 digits, power at most 22.
    """
    base = np.int64(data.ctypes.data)
    rows = len(start)
    values = np.full(rows, np.nan)
    slow = np.zeros(rows, np.bool_)
    for r in range(rows):
        if not _has_text(kind[r]):
            continue
        i, end = _trim(base, np.int64(start[r]), np.int64(start[r]) + length[r])
        if i >= end:
            continue
        negative = byte_at(base, i) == 45
        if negative:
            i += 1
        mantissa, digits, decimals = np.int64(0), 0, 0
        while i < end and _is_digit(byte_at(base, i)) and digits < 16:
            mantissa = mantissa * 10 + np.int64(byte_at(base, i)) - 48
            digits += 1
            i += 1
        if i < end and byte_at(base, i) == 46:
            i += 1
            while i < end and _is_digit(byte_at(base, i)) and digits < 16:
                mantissa = mantissa * 10 + np.int64(byte_at(base, i)) - 48
                digits += 1
                decimals += 1
                i += 1
        if i != end or digits > 15 or digits == 0:
            slow[r] = True
            continue
        value = np.float64(mantissa) / _POWERS[decimals]
        values[r] = -value if negative else value
    return values, slow


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
def hash_rows(data: Any, first: Any, last: Any, seed: Any) -> Any:
    """uint64 hash of ``data[first:last]`` of every row."""
    base = np.int64(data.ctypes.data)
    out = np.empty(len(first), np.uint64)
    for r in range(len(first)):
        low = np.int64(first[r])
        out[r] = hash_bytes(base, low, np.int64(last[r]) - low, seed)
    return out


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


@compiled
def distinct_texts(data: Any, start: Any, length: Any, kind: Any, seed: Any) -> Any:
    """Number the distinct texts of a field in order of first appearance.

    Strings with and without backslashes are kept apart from one another (their text differs by how it is read), numbers and other
    values are told by their text.

    Returns:
        (int32 code a row, -1 where there is nothing; int64 row of the first appearance of each code).
    """
    base = np.int64(data.ctypes.data)
    rows = len(start)
    codes = np.full(rows, -1, np.int32)
    firsts = np.empty(rows, np.int64)
    hashes = np.empty(rows, np.uint64)
    size = 256
    slots = np.full(size, -1, np.int32)
    count = 0
    for r in range(rows):
        k = kind[r]
        if k <= BARE:
            continue
        low, long = np.int64(start[r]), np.int64(length[r])
        h = hash_bytes(base, low, long, seed)
        slot = np.int64(h & np.uint64(size - 1))
        escaped = k == ESCAPED
        while True:
            code = slots[slot]
            if code < 0:
                break
            f = firsts[code]
            if (
                hashes[code] == h
                and length[f] == long
                and (kind[f] == ESCAPED) == escaped
                and _same(base, np.int64(start[f]), low, long)
            ):
                break
            slot = (slot + 1) & (size - 1)
        if code < 0:
            code = np.int32(count)
            slots[slot] = code
            firsts[count] = r
            hashes[count] = h
            count += 1
            if 2 * count > size:
                size *= 4
                slots = np.full(size, -1, np.int32)
                for c in range(count):
                    slot = np.int64(hashes[c] & np.uint64(size - 1))
                    while slots[slot] >= 0:
                        slot = (slot + 1) & (size - 1)
                    slots[slot] = c
        codes[r] = code
    return codes, firsts[:count].copy()


@compiled
def distinct_pairs(left: Any, right: Any, seed: Any) -> Any:
    """Number the distinct pairs of two columns of codes in order of first appearance: (int32 codes, first rows)."""
    rows = len(left)
    codes = np.empty(rows, np.int32)
    firsts = np.empty(rows, np.int64)
    size = 256
    slots = np.full(size, -1, np.int32)
    count = 0
    for r in range(rows):
        pair = (np.uint64(np.int64(left[r]) + 1) << np.uint64(32)) | np.uint64(np.int64(right[r]) + 1)
        h = (pair ^ seed) * _MIX
        slot = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(size - 1))
        while True:
            code = slots[slot]
            if code < 0 or (left[firsts[code]] == left[r] and right[firsts[code]] == right[r]):
                break
            slot = (slot + 1) & (size - 1)
        if code < 0:
            code = np.int32(count)
            slots[slot] = code
            firsts[count] = r
            count += 1
            if 2 * count > size:
                size *= 4
                slots = np.full(size, -1, np.int32)
                for c in range(count):
                    f = firsts[c]
                    p = (np.uint64(np.int64(left[f]) + 1) << np.uint64(32)) | np.uint64(np.int64(right[f]) + 1)
                    g = (p ^ seed) * _MIX
                    s = np.int64((g ^ (g >> np.uint64(32))) & np.uint64(size - 1))
                    while slots[s] >= 0:
                        s = (s + 1) & (size - 1)
                    slots[s] = c
        codes[r] = code
    return codes, firsts[:count].copy()


@compiled
def utf8_length(base: Any, i: Any, end: Any) -> Any:
    """Bytes of the well-formed UTF-8 character at ``i``; 0 if there is none."""
    c = byte_at(base, i)
    if c < 0x80:
        return 1
    if c < 0xC2 or c > 0xF4:
        return 0
    count = 2 if c < 0xE0 else (3 if c < 0xF0 else 4)
    if i + count > end:
        return 0
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
        return 0
    for k in range(2, count):
        if byte_at(base, i + k) & 0xC0 != 0x80:
            return 0
    return count


@compiled
def mark_invalid_utf8(data: Any, first: Any, last: Any, marks: Any, bit: Any) -> Any:
    """Set ``bit`` in the marks of rows whose text is not UTF-8; (rows, position of the first fault in the buffer)."""
    base = np.int64(data.ctypes.data)
    count, where = 0, np.int64(-1)
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
                marks[r] |= bit
                count += 1
                if where < 0:
                    where = i
                break
            i += length
    return count, where


@compiled
def gather_lengths(length: Any, kind: Any) -> Any:
    """int64[n + 1] offsets of the texts of a field, empty where there is none."""
    offsets = np.zeros(len(length) + 1, np.int64)
    for r in range(len(length)):
        offsets[r + 1] = offsets[r] + (np.int64(length[r]) if kind[r] > 0 else 0)
    return offsets


@compiled
def gather(data: Any, start: Any, offsets: Any) -> Any:
    """The texts one behind the other."""
    out = np.empty(offsets[-1], np.uint8)
    target, source = np.int64(out.ctypes.data), np.int64(data.ctypes.data)
    for r in range(len(start)):
        low, high = offsets[r], offsets[r + 1]
        if high > low:
            copy_bytes(target + low, source + start[r], high - low)
    return out


def random_seed() -> np.uint64:
    """Of the hash tables of one process, so that a file cannot be made to collide."""
    return np.uint64(secrets.randbits(64))

