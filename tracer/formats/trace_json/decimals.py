"""What numbers and times do the located fields hold? Compiled loops over rows.

Times come from the decimal text: microseconds with any number of decimals become nanoseconds and a fraction of 1e-15 ns, in
integers, and are rounded once, half up. No float is involved.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled, inlined
from trnprof.tracer.formats.trace_json.codes import (
    ESCAPED,
    LETTER_E,
    MINUS,
    NUMBER,
    PLUS,
    POINT,
    ZERO,
)
from trnprof.tracer.formats.trace_json.simd import (
    byte_at,
    not_digit_at,
    word_at,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Column = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]
"""Where the texts of a field are, how long, and of what kind."""

_FRACTION_DIGITS: Final = 15
FRACTION_UNITS: Final = 10**_FRACTION_DIGITS
"""Units of the fraction in a nanosecond."""
FAR_NS: Final = 1 << 62
"""Times beyond are cut to this: 146 years, which no profile has."""
_SHORT: Final = 18
"""Digits that surely fit into an int64."""
_MAX_EXPONENT: Final = np.int64(1_000_000)

# what a text is
_NOT_A_NUMBER: Final = np.int64(0)
_NUMBER: Final = np.int64(1)
_CUT: Final = np.int64(2)
_FLOOR: Final = np.int64(3)

_MICROSECONDS: Final = np.int64(3)
_UNITS: Final = np.int64(0)
_INTEGER_POWERS = np.array([10**k for k in range(_SHORT + 1)], np.int64)
_FLOAT_POWERS = np.array([10.0**k for k in range(23)])


@inlined
def _trim(base: Any, start: Any, end: Any) -> Any:
    while start < end and byte_at(base, start) <= 32:
        start += 1
    while end > start and byte_at(base, end - 1) <= 32:
        end -= 1
    return start, end


@inlined
def _sign(base: Any, i: Any, end: Any) -> Any:
    """(whether a number is negative, where its digits begin)."""
    if i < end:
        c = byte_at(base, i)
        if c in (MINUS, PLUS):
            return c == MINUS, i + 1
    return False, i


@inlined
def _run(base: Any, i: Any, end: Any) -> Any:
    """How many digits begin at ``i``; of many, at least 32 are seen."""
    return min(not_digit_at(base, i), end - i)


@inlined
def _short_integer(base: Any, i: Any, count: Any) -> Any:
    """The number that ``count`` digits say, at most 18; eight of them at a time (by three multiplications that add up pairs)."""
    value = np.int64(0)
    while count > 0:
        taken = min(count, 8)
        digits = word_at(base, i) << np.uint64(64 - 8 * taken) & np.uint64(0x0F0F0F0F0F0F0F0F)
        digits = (digits * np.uint64(2561)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
        digits = (digits * np.uint64(6553601)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
        digits = (digits * np.uint64(42949672960001)) >> np.uint64(32)
        value = value * _INTEGER_POWERS[taken] + np.int64(digits)
        i += taken
        count -= taken
    return value


@compiled
def decimal_parts(base: Any, start: Any, end: Any, shift: Any) -> Any:
    """A decimal number times ten to the ``shift``, 0 to 18.

    Returns:
        (state, whole, fraction): state 0 if the text is no number, 1 if it is one, 2 if it is cut to ±FAR_NS, 3 if it has more
        decimals and what is returned is a little less; value = whole + fraction / FRACTION_UNITS, 0 ≤ fraction < FRACTION_UNITS.
    """
    start, end = _trim(base, start, end)
    is_negative, i = _sign(base, start, end)
    whole_digits = _run(base, i, end)
    decimals = np.int64(0)
    point = i + whole_digits
    if point < end and byte_at(base, point) == POINT:
        decimals = _run(base, point + 1, end)
    stop = point + decimals + (decimals > 0)
    is_long = whole_digits > _SHORT or decimals > _FRACTION_DIGITS + shift or decimals > _SHORT
    if is_long or stop != end or whole_digits == 0:
        return _long_decimal(base, i, end, shift, is_negative)
    whole = _short_integer(base, i, whole_digits)
    if whole >= FAR_NS // _INTEGER_POWERS[shift]:
        return _long_decimal(base, i, end, shift, is_negative)
    whole, fraction = whole * _INTEGER_POWERS[shift], np.int64(0)
    if decimals:
        behind = _short_integer(base, point + 1, decimals)
        finer = decimals - shift
        if finer <= 0:
            whole += behind * _INTEGER_POWERS[-finer]
        else:
            more = behind // _INTEGER_POWERS[finer]
            whole += more
            fraction = (behind - more * _INTEGER_POWERS[finer]) * _INTEGER_POWERS[
                _FRACTION_DIGITS - finer
            ]
    return _signed(whole, fraction, is_negative, np.int64(0))


@inlined
def _signed(whole: Any, fraction: Any, is_negative: Any, has_rest: Any) -> Any:
    if is_negative:
        whole, fraction = -whole, -fraction - has_rest
        if fraction < 0:
            whole -= 1
            fraction += FRACTION_UNITS
    return _FLOOR if has_rest else _NUMBER, whole, fraction


@compiled
def _digits_end(base: Any, i: Any, end: Any) -> Any:
    while i < end and ZERO <= byte_at(base, i) <= ZERO + 9:
        i += 1
    return i


@compiled
def _exponent(base: Any, i: Any, end: Any) -> Any:
    """(whether ``[i, end)`` is empty or an exponent, its value)."""
    if i == end:
        return True, np.int64(0)
    if byte_at(base, i) | 32 != LETTER_E:
        return False, np.int64(0)
    is_negative, i = _sign(base, i + 1, end)
    if i >= end or _digits_end(base, i, end) != end:
        return False, np.int64(0)
    value = np.int64(0)
    for k in range(i, end):
        value = min(value * 10 + byte_at(base, k) - ZERO, _MAX_EXPONENT)
    return True, -value if is_negative else value


@compiled
def _long_decimal(base: Any, start: Any, end: Any, shift: Any, is_negative: Any) -> Any:
    """As ``decimal_parts``, digit by digit: any number of them, and exponents; the sign is passed."""
    point = _digits_end(base, start, end)
    stop = point
    if stop < end and byte_at(base, stop) == POINT:
        stop = _digits_end(base, point + 1, end)
    is_number, exponent = _exponent(base, stop, end)
    if not is_number or stop - start == (stop > point):
        return _NOT_A_NUMBER, np.int64(0), np.int64(0)
    whole, fraction, has_rest = np.int64(0), np.int64(0), np.int64(0)
    place = start - point - exponent - shift  # of the next digit: negative before the point
    place = min(place, _FRACTION_DIGITS)
    for k in range(start, stop):
        digit = byte_at(base, k) - ZERO
        if k == point:
            continue
        if place >= _FRACTION_DIGITS:
            has_rest |= np.int64(digit > 0)
            continue
        if place >= 0:
            fraction = fraction * 10 + digit
        elif whole > (FAR_NS - digit) // 10:
            return _CUT, np.int64(-FAR_NS if is_negative else FAR_NS), np.int64(0)
        else:
            whole = whole * 10 + digit
        place += 1
    while place < 0 and whole:
        if whole > FAR_NS // 10:
            return _CUT, np.int64(-FAR_NS if is_negative else FAR_NS), np.int64(0)
        whole *= 10
        place += 1
    place = max(place, 0)
    fraction *= _INTEGER_POWERS[_FRACTION_DIGITS - place]
    return _signed(whole, fraction, is_negative, has_rest)


@inlined
def _has_text(kind: Any) -> Any:
    return NUMBER <= kind <= ESCAPED


def times(
    base: int, ts: Column, dur: Column, origin_us: int = 0
) -> tuple[Ints, Ints, Bools, Bools, Bools]:
    """(start_ns, end_ns, has_ts, has_dur, has_cut) of every row, counted from an origin; end = start where there is no duration."""
    rows = len(ts[0])
    out = (np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    said = (np.zeros(rows, np.bool_), np.zeros(rows, np.bool_), np.zeros(rows, np.bool_))
    _times(base, *ts, *dur, np.int64(origin_us), *out, *said)
    return *out, *said


@compiled
def _since(base: Any, start: Any, end: Any, origin_us: Any) -> Any:
    """What ``decimal_parts`` gives of a time in microseconds, in nanoseconds from an origin."""
    if origin_us == 0:
        return decimal_parts(base, start, end, _MICROSECONDS)
    state, whole, fraction = decimal_parts(base, start, end, _UNITS)
    whole -= origin_us
    if state == _CUT or abs(whole) >= FAR_NS // 1000:
        return _CUT, FAR_NS if whole > 0 else -FAR_NS, np.int64(0)
    fraction *= 1000
    return state, whole * 1000 + fraction // FRACTION_UNITS, fraction % FRACTION_UNITS


@compiled
def _times(
    base: Any, ts_start: Any, ts_length: Any, ts_kind: Any, dur_start: Any, dur_length: Any, dur_kind: Any, origin_us: Any,
    start_ns: Any, end_ns: Any, has_ts: Any, has_dur: Any, has_cut: Any,
) -> None:  # fmt: skip
    half = FRACTION_UNITS // 2
    for r in range(len(ts_start)):
        whole, fraction = np.int64(0), np.int64(0)
        if _has_text(ts_kind[r]):
            low = np.int64(ts_start[r])
            state, whole, fraction = _since(base, low, low + ts_length[r], origin_us)
            has_ts[r] = state > 0
            has_cut[r] = state == _CUT
        start_ns[r] = whole + (fraction >= half)
        end_ns[r] = start_ns[r]
        if _has_text(dur_kind[r]):
            low = np.int64(dur_start[r])
            state, more, part = decimal_parts(base, low, low + dur_length[r], _MICROSECONDS)
            has_dur[r] = state > 0
            part += fraction
            if part >= FRACTION_UNITS:
                part -= FRACTION_UNITS
                more += 1
            more += part >= half
            is_far = whole > FAR_NS - more if more > 0 else whole < -FAR_NS - more
            is_far = is_far or state == _CUT
            has_cut[r] |= is_far
            end_ns[r] = (FAR_NS if more > 0 else -FAR_NS) if is_far else whole + more


@compiled
def _hexadecimal(base: Any, start: Any, end: Any) -> Any:
    if end - start > 18 or end - start < 3 or byte_at(base, start) != ZERO:
        return np.uint64(0), False
    if byte_at(base, start + 1) | 32 != 120:
        return np.uint64(0), False
    value = np.uint64(0)
    for k in range(start + 2, end):
        c = byte_at(base, k)
        digit = c - ZERO if c <= 57 else (c | 32) - 87
        if digit < 0 or digit > 15 or (57 < c < 65):
            return np.uint64(0), False
        value = (value << np.uint64(4)) | np.uint64(digit)
    return value, True


@compiled
def _plain_integer(base: Any, start: Any, end: Any) -> Any:
    """(value modulo 2^64, whether the text is an integer from -2^63 to 2^64 - 1)."""
    is_negative, start = _sign(base, start, end)
    while start < end - 1 and byte_at(base, start) == ZERO:
        start += 1
    digits = end - start
    if digits < 1 or digits > 20 or _run(base, start, end) != digits:
        return np.uint64(0), False
    if digits > 19:  # the twentieth digit may not fit
        value = np.uint64(_short_integer(base, start, np.int64(18)))
        last = np.uint64(_short_integer(base, start + 18, np.int64(2)))
        if value > np.uint64(184467440737095516) or (
            value == np.uint64(184467440737095516) and last > np.uint64(15)
        ):
            return np.uint64(0), False
        value = value * np.uint64(100) + last
    else:
        first = digits - min(digits, _SHORT)  # 0 or 1
        value = np.uint64(_short_integer(base, start + first, digits - first))
        if first:
            value += np.uint64(byte_at(base, start) - ZERO) * np.uint64(10**_SHORT)
    if is_negative:
        return ~value + np.uint64(1), value <= np.uint64(1 << 63)
    return value, True


def integers(base: int, column: Column) -> tuple[Ints, Bools]:
    """(values, whether each is an integer): numbers and numeric strings, ``0x`` too; above 2^63 as the bits of uint64."""
    rows = len(column[0])
    values, valid = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    _integers(base, *column, values, valid)
    return values, valid


@compiled
def _integers(base: Any, start: Any, length: Any, kind: Any, values: Any, valid: Any) -> None:
    for r in range(len(start)):
        if not _has_text(kind[r]):
            continue
        low, high = _trim(base, np.int64(start[r]), np.int64(start[r]) + length[r])
        value, is_integer = _plain_integer(base, low, high)
        if not is_integer:
            value, is_integer = _hexadecimal(base, low, high)
        if not is_integer:  # 5.0, 1e3
            state, whole, fraction = decimal_parts(base, low, high, _UNITS)
            is_integer = state == _NUMBER and fraction == 0
            value = np.uint64(whole)
        if is_integer:
            values[r] = np.int64(value)
            valid[r] = True


def floats(base: int, column: Column) -> tuple[NDArray[np.float64], Bools]:
    """(values, NaN where there is none; rows that need a slower, exactly rounding parser).

    Exact where mantissa and power of ten are both exact floats: at most 15 digits, power at most 22.
    """
    rows = len(column[0])
    values, slow = np.full(rows, np.nan), np.zeros(rows, np.bool_)
    _floats(base, *column, values, slow)
    return values, slow


@compiled
def _floats(base: Any, start: Any, length: Any, kind: Any, values: Any, slow: Any) -> None:
    for r in range(len(start)):
        if not _has_text(kind[r]):
            continue
        low, end = _trim(base, np.int64(start[r]), np.int64(start[r]) + length[r])
        if low >= end:
            continue
        is_negative, i = _sign(base, low, end)
        whole = _run(base, i, end)
        decimals = np.int64(0)
        stop = i + whole
        if stop < end and byte_at(base, stop) == POINT:
            decimals = _run(base, stop + 1, end)
            stop += 1 + decimals
        if stop != end or whole + decimals > 15 or whole + decimals == 0:
            slow[r] = True
            continue
        mantissa = _short_integer(base, i, whole) * _INTEGER_POWERS[decimals]
        mantissa += _short_integer(base, i + whole + 1, decimals)
        value = np.float64(mantissa) / _FLOAT_POWERS[decimals]
        values[r] = -value if is_negative else value
