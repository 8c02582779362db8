"""How are times, bytes and rates written for people, and read from them? The only place that does either."""

from __future__ import annotations

import math
import re
from typing import Final

from trnprof.tracer.errors import TrnprofError

_TIME: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BYTES: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
_SECONDS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*")


def format_ns(ns: float, digits: int = 4) -> str:
    """A time with the unit that leaves 1 to 999 before the point.

    >>> format_ns(0), format_ns(950), format_ns(28_200_000), format_ns(61_234_567_890)
    ('0 ns', '950 ns', '28.2 ms', '61.23 s')
    """
    if ns == 0:
        return "0 ns"
    for scale, unit in _TIME:
        if abs(ns) >= scale:
            return f"{_significant(ns / scale, digits)} {unit}"
    return f"{_significant(ns, digits)} ns"


def format_bytes(count: float, digits: int = 4) -> str:
    """Bytes in powers of 1000.

    >>> format_bytes(512), format_bytes(31_000), format_bytes(96e9)
    ('512 B', '31 kB', '96 GB')
    """
    return _scaled(count, digits, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_rate(per_second: float, unit: str, digits: int = 4) -> str:
    """A rate with a metric prefix.

    >>> format_rate(368e9, "B/s"), format_rate(78.64e12, "FLOP/s")
    ('368 GB/s', '78.64 TFLOP/s')
    """
    return _scaled(per_second, digits, tuple(p + unit for p in ("", "k", "M", "G", "T", "P")))


def format_count(count: float, digits: int = 4) -> str:
    """A count with a metric prefix.

    >>> format_count(999), format_count(5_000_000)
    ('999', '5 M')
    """
    return _scaled(count, digits, ("", "k", "M", "G", "T", "P")).rstrip()


def counted(count: int, noun: str) -> str:
    """How many there are of what, for a noun whose plural ends in s.

    >>> counted(1, "event"), counted(12_000, "event")
    ('1 event', '12,000 events')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction 0–1 as people read it.

    >>> format_percent(0.312), format_percent(None)
    ('31.2 %', '–')
    """
    return "–" if fraction is None or math.isnan(fraction) else f"{fraction * 100:.{digits}f} %"


def parse_bytes(text: str) -> int:
    """Bytes from ``64``, ``4KiB``, ``1.5 GB``.

    Raises:
        TrnprofError: not a size; or a bare prefix such as ``4G``, which could mean two things.

    >>> parse_bytes("4KiB"), parse_bytes("1.5GB"), parse_bytes("64")
    (4096, 1500000000, 64)
    """
    number, unit = _split(text, "a size such as 64, 4KiB or 1.5GB")
    if unit in ("k", "K", "M", "G", "T", "P"):
        raise TrnprofError(
            f"size {text!r} is ambiguous: write {unit.upper()}iB (powers of 1024) or {unit}B (1000)"
        )
    if unit and unit not in _BYTES:
        raise TrnprofError(f"size {text!r}: unknown unit {unit!r}; known are {', '.join(_BYTES)}")
    return _whole(number * _BYTES.get(unit, 1), text)


def parse_duration_ns(text: str) -> int:
    """Nanoseconds from ``12ms``, ``3.5us``; a bare number is nanoseconds.

    Raises:
        TrnprofError: not a duration.

    >>> parse_duration_ns("12ms"), parse_duration_ns("3.5us"), parse_duration_ns("7")
    (12000000, 3500, 7)
    """
    return _whole(_nanoseconds(text), text)


def parse_duration_ps(text: str) -> int:
    """Picoseconds from ``500ns``, ``0.5us``; a bare number is nanoseconds.

    Raises:
        TrnprofError: not a duration.

    >>> parse_duration_ps("500ns"), parse_duration_ps("1.5us"), parse_duration_ps("0.25")
    (500000, 1500000, 250)
    """
    return _whole(_nanoseconds(text) * 1000, text)


def parse_bytes_per_s(text: str) -> int:
    """Bytes a second from ``50GiB/s``, ``1.5 GB/s``.

    Raises:
        TrnprofError: not a rate.

    >>> parse_bytes_per_s("50GB/s"), parse_bytes_per_s("1KiB/s")
    (50000000000, 1024)
    """
    size, slash, unit = text.strip().rpartition("/")
    if not slash or unit != "s":
        raise TrnprofError(f"{text!r}: expected a bandwidth such as 50GiB/s or 100GB/s")
    return parse_bytes(size)


def parse_fraction(text: str) -> float:
    """A fraction from ``0.8`` or ``80%``.

    Raises:
        TrnprofError: neither.

    >>> parse_fraction("0.5"), parse_fraction(".5"), parse_fraction("2%")
    (0.5, 0.5, 0.02)
    """
    body = text.strip()
    number, unit = _split(body.removesuffix("%"), "a fraction such as 0.8 or 80%")
    if unit:
        raise TrnprofError(f"{text!r}: expected a fraction such as 0.8 or 80%")
    return number / 100 if body.endswith("%") else number


def parse_range(text: str) -> tuple[int, int]:
    """An inclusive range of ordinals: ``A..B``, or ``A`` alone.

    Raises:
        TrnprofError: not a range, or its end lies before its start.

    >>> parse_range("2..5"), parse_range("3")
    ((2, 5), (3, 3))
    """
    match = re.fullmatch(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?", text)
    if match is None:
        raise TrnprofError(f"range {text!r}: expected A..B (inclusive) or A")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise TrnprofError(f"range {text!r}: its end lies before its start")
    return first, last


def printable(text: str) -> str:
    r"""Text without control characters (escape sequences must not reach a terminal).

    >>> printable("a\x1b[31mb")
    'a␛[31mb'
    """
    return "".join(
        c if c.isprintable() else chr(0x2400 + ord(c)) if ord(c) < 0x20 else "\ufffd" for c in text
    )


def _nanoseconds(text: str) -> float:
    number, unit = _split(text, "a time such as 12ms, 3.5us or 700ns")
    if unit and unit not in _SECONDS:
        raise TrnprofError(f"time {text!r}: unknown unit {unit!r}; known are {', '.join(_SECONDS)}")
    return number * _SECONDS.get(unit, 1)


def _whole(number: float, text: str) -> int:
    if number >= 2**63:
        raise TrnprofError(f"{text!r} is too large: 64 bits do not hold it")
    return round(number)


def _split(text: str, expected: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or not math.isfinite(float(match[1])):
        raise TrnprofError(f"{text!r}: expected {expected}")
    return float(match[1]), match[2]


def _scaled(value: float, digits: int, units: tuple[str, ...]) -> str:
    index = 0
    while abs(value) >= 1000 and index < len(units) - 1:
        value, index = value / 1000, index + 1
    return f"{_significant(value, digits)} {units[index]}"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
