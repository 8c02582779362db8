"""Which part of a file is in memory while it is scanned from the front?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.trace_json.codes import BACKSLASH, QUOTE
from trnprof.tracer.formats.trace_json.findings import excerpt
from trnprof.tracer.formats.trace_json.simd import PADDING, byte_at, special_at
from trnprof.tracer.formats.trace_json.tokens import DELIMITER, is_close, is_open
from trnprof.tracer.ingest.source import ByteStream


class Window:
    """``data[begin:end]`` is what is still to be looked at; PADDING bytes behind ``end`` may be read.

    Attributes:
        data: bytes of the file; a new array with each ``more``, so that those handed out stay as they are.
        origin: position in the file of ``data[0]``.
        begin: what lies before is done.
        end: past the last byte of the file that is in memory.
        is_final: nothing follows ``end``.
    """

    def __init__(self, stream: ByteStream, block_bytes: int) -> None:
        self._stream = stream
        self._block_bytes = max(1, block_bytes)
        self.data: NDArray[np.uint8] = np.zeros(PADDING, np.uint8)
        self.origin = self.begin = self.end = 0
        self.is_final = False

    @property
    def base(self) -> int:
        """Address of ``data[0]``, for compiled code."""
        address: int = self.data.ctypes.data
        return address

    @property
    def position(self) -> int:
        """Where ``begin`` is in the file."""
        return self.origin + self.begin

    def more(self, keep: int | None = None) -> bool:
        """Read on; False at the end of the file.

        At least as much is read as is kept, so that an event of any length is looked at only a few times.

        Args:
            keep: position in the file from which bytes stay in memory though they are done.
        """
        low = self.begin if keep is None else min(self.begin, max(0, keep - self.origin))
        kept = self.end - low
        wanted = max(self._block_bytes, self.end - self.begin)
        data = np.empty(kept + wanted + PADDING, np.uint8)
        data[:kept] = self.data[low : self.end]
        filled = kept
        while filled < kept + wanted:
            piece = self._stream.read(kept + wanted - filled)
            if not piece:
                self.is_final = True
                break
            data[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        data[filled : filled + PADDING] = 0
        self.data, self.origin = data, self.origin + low
        self.begin, self.end = self.begin - low, filled
        return filled > kept

    def starts_with(self, text: bytes) -> bool:
        """Whether this text comes next."""
        while self.end - self.begin < len(text) and self.more():
            pass
        return self.data[self.begin : min(self.end, self.begin + len(text))].tobytes() == text

    def skip_space(self) -> int:
        """Pass white space and zero bytes; the byte that follows, -1 at the end of the file."""
        while True:
            self.begin += _first_other(self.data[self.begin : self.end])
            if self.begin < self.end:
                return int(self.data[self.begin])
            if not self.more():
                return -1

    def take_value(self, max_bytes: int) -> tuple[bytes, int]:
        """Pass the JSON value that comes next, of any size; a number or word ends at its delimiter.

        Returns:
            (its text, or the beginning of one longer than ``max_bytes``; its length).
        """
        state = np.zeros(3, np.int64)
        pieces: list[bytes] = []
        size = 0
        while True:
            at, is_done = _value_part(self.base, self.begin, self.end, state)
            size += at - self.begin
            if size <= max_bytes:
                pieces.append(self.data[self.begin : at].tobytes())
            self.begin = at
            if is_done or not self.more():
                return b"".join(pieces), size

    def excerpt(self) -> str:
        """What comes next, for a person."""
        return excerpt(self.data[self.begin : min(self.end, self.begin + 200)].tobytes())


def _first_other(view: NDArray[np.uint8]) -> int:
    """Index of the first byte that is neither white space nor zero."""
    for low in range(0, len(view), 4096):
        part = view[low : low + 4096]
        is_other = ~np.isin(part, np.array([0, 9, 10, 13, 32], np.uint8))
        if is_other.any():
            return low + int(is_other.argmax())
    return len(view)


@compiled
def _value_part(base: Any, begin: Any, end: Any, state: Any) -> Any:
    """Pass over a value of any size, piece by piece.

    Args:
        base: address of the bytes, with padding behind ``end``.
        begin: where to go on.
        end: past the last byte of this piece.
        state: int64[3], zero at the start: depth, 1 in a string, 1 behind a backslash; carried from piece to piece.

    Returns:
        (position, whether the value ended there). A number or word ends at its delimiter.
    """
    depth, in_string, escaped = state[0], state[1], state[2]
    i = begin
    done = False
    while i < end and not done:
        if in_string and not escaped:
            i += special_at(base, i)
            if i >= end:
                break
        c = byte_at(base, i)
        i += 1
        if in_string:
            if escaped:
                escaped = 0
            elif c == BACKSLASH:
                escaped = 1
            elif c == QUOTE:
                in_string = 0
                done = depth == 0
        elif c == QUOTE:
            in_string = 1
        elif is_open(c):
            depth += 1
        elif depth == 0 and DELIMITER[c]:
            i -= 1
            done = True
        elif is_close(c):
            depth -= 1
            done = depth == 0
    state[0], state[1], state[2] = depth, in_string, escaped
    return min(i, end), done
