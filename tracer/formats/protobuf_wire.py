"""How are the fields of a protobuf message found, without trusting any length in it?

Compiled primitives for messages that come by the million, and a walk over the fields of large messages on disk. A length is
only believed as far as bytes are really there; nothing is allocated by it, and nothing recurses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled, inlined

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
MALFORMED: Final = -1
CUT: Final = -2
"""Positions that are none: the bytes are not protobuf; or it needs more bytes than there are."""

_WINDOW_BYTES: Final = 1 << 20
_FIELD_BYTES: Final = 20
"""A key and a varint at most."""


@compiled
def read_varint(data: Bytes, at: int, end: int) -> tuple[Any, Any]:
    """The varint at ``at`` and the position after it; MALFORMED or CUT in place of that."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return value, at
        shift += np.uint64(7)
        if shift > np.uint64(63):
            return value, MALFORMED
    return value, CUT


@compiled
def read_fixed64(data: Bytes, at: int) -> Any:
    """Eight bytes, little-endian; the caller has checked that they are there."""
    value = np.uint64(0)
    for i in range(8):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@compiled
def signed(value: Any) -> Any:
    """The 64 bits of a varint as a signed integer."""
    return np.int64(value)


@compiled
def read_key(data: Bytes, at: int, end: int) -> tuple[Any, Any, Any]:
    """Field number, wire type and the position after the key (MALFORMED or CUT)."""
    key, at = read_varint(data, at, end)
    number = np.int64(key >> np.uint64(3))
    if at >= 0 and (number < 1 or number >= 1 << 29):
        return number, 0, MALFORMED
    return number, np.int64(key & np.uint64(7)), at


@compiled
def skip_value(data: Bytes, at: int, end: int, wire: int) -> Any:
    """The position after a value; MALFORMED or CUT. Groups count as malformed: no format here has them."""
    if wire == VARINT:
        return read_varint(data, at, end)[1]
    if wire == LENGTH:
        size, at = read_varint(data, at, end)
        if at < 0:
            return at
        if size > np.uint64(end - at):
            return CUT
        return at + np.int64(size)
    if wire in (FIXED64, FIXED32):
        at += 8 if wire == FIXED64 else 4
        return at if at <= end else CUT
    return MALFORMED


@inlined
def read_field(data: Bytes, at: int, end: int) -> tuple[Any, Any, Any, Any]:
    """Field number, wire type, and the positions of its value and after it; the last is MALFORMED or CUT where there is no whole one."""
    number, wire, value = read_key(data, at, end)
    return number, wire, value, skip_value(data, value, end, wire) if value >= 0 else value


@compiled
def frame(data: Bytes, field: int, starts: Ints, ends: Ints) -> tuple[int, int, int]:
    """Where the messages of a repeated field lie in a stretch of a larger message; other fields are passed over.

    Args:
        data: n bytes that begin with a key.
        field: number of the repeated field.
        starts: filled with where each message's content begins.
        ends: with where it ends.

    Returns:
        How many were found (at most ``starts.size``), the position of the first key that was not passed, and 0, MALFORMED
        or CUT for why.
    """
    at, count = 0, 0
    while at < data.size and count < starts.size:
        number, wire, value, after = read_field(data, at, data.size)
        if after < 0:
            return count, at, after
        if number == field and wire == LENGTH:
            _, content = read_varint(data, value, data.size)
            starts[count], ends[count] = content, after
            count += 1
        at = after
    return count, at, 0


@compiled
def hash_bytes(data: Bytes, low: int, high: int) -> np.uint64:
    """A 64-bit hash of some bytes (FNV-1a with a final mix), never 0."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(low, high):
        value = (value ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    value ^= value >> np.uint64(29)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(32)
    return value if value != np.uint64(0) else np.uint64(1)


@compiled
def valid_utf8(data: Bytes, at: int, end: int) -> int:
    """Bytes of the character at ``at``; 0 if they are not UTF-8."""
    first = data[at]
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return 0
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > end:
        return 0
    second = data[at + 1]
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return 0
    for i in range(2, size):
        if data[at + i] & 0xC0 != 0x80:
            return 0
    return size


@compiled
def _clean_texts(data: Bytes, low: Ints, high: Ints, out: Bytes, offsets: NDArray[np.int32]) -> int:
    at = 0
    for i in range(low.size):
        here = low[i]
        while here < high[i]:
            size = valid_utf8(data, here, high[i])
            if size:
                for k in range(size):
                    out[at + k] = data[here + k]
                at, here = at + size, here + size
            else:
                out[at], out[at + 1], out[at + 2] = 0xEF, 0xBF, 0xBD
                at, here = at + 3, here + 1
        offsets[i + 1] = at
    return at


def texts(data: Bytes, low: Ints, high: Ints) -> pa.StringArray:
    """The strings ``data[low[i]:high[i]]``; bytes that are not UTF-8 become U+FFFD."""
    bound = int((high - low).sum()) * 3
    out, offsets = np.empty(bound, np.uint8), np.zeros(len(low) + 1, np.int32)
    size = _clean_texts(data, low, high, out, offsets)
    return pa.StringArray.from_buffers(
        len(low), pa.py_buffer(offsets), pa.py_buffer(out[:size].tobytes())
    )


@dataclass(frozen=True)
class Field:
    """A field of a message on disk: its value is a number, or the bytes from ``start`` to ``end``.

    Attributes:
        number: of the field.
        wire: VARINT, LENGTH, FIXED32 or FIXED64.
        value: of a varint.
        start, end: of the content, in the file.
        is_cut: the content should have gone on beyond ``end``.
    """

    number: int
    wire: int
    value: int
    start: int
    end: int
    is_cut: bool = False


class WireFile:
    """A protobuf file on disk, read in windows."""

    def __init__(self, descriptor: int) -> None:
        """Nothing is read yet.

        Args:
            descriptor: of a regular file, open for reading; it stays the caller's.
        """
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._window = b""
        self._window_at = 0
        self.stopped_at: int | None = None

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a stretch, fewer if the file ends before."""
        low = start - self._window_at
        if low < 0 or end > self._window_at + len(self._window):
            size = max(end - start, _WINDOW_BYTES)
            self._window = os.pread(self._descriptor, min(size, self.size - start), start)
            self._window_at, low = start, 0
        return self._window[low : low + end - start]

    def array(self, start: int, end: int) -> Bytes:
        """The bytes of a stretch past the window, for large ones."""
        return np.frombuffer(os.pread(self._descriptor, end - start, start), np.uint8)

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """The fields of a message, in order.

        A field that should go on beyond ``end`` is the last one and ``is_cut``. Where the bytes are no protobuf, the walk stops
        and ``stopped_at`` says where; it is None otherwise.
        """
        self.stopped_at = None
        at = start
        while at < end:
            head = self.read(at, min(at + _FIELD_BYTES, end))
            key, used = _varint(head, 0)
            number, wire = key >> 3, key & 7
            if used < 0 or not 0 < number < 1 << 29 or wire not in (0, 1, 2, 5):
                self.stopped_at = at
                return
            value, low, high = 0, at + used, at + used + (8 if wire == FIXED64 else 4)
            if wire in (VARINT, LENGTH):
                value, after = _varint(head, used)
                if after < 0:
                    self.stopped_at = at
                    return
                low = at + after
                high = low + (value if wire == LENGTH else 0)
            yield Field(number, wire, value, low, min(high, end), high > end)
            at = high


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at ``at`` and the position after it, -1 if there is none."""
    value, shift = 0, 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at
    return value, -1
