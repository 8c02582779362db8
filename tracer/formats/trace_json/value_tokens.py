"""How do typed values of a binary profile become one JSON object an event?

A decoder writes the values of all events as one stream of tokens (``Tokens``); single values are lifted out into columns
(``Tokens.lift``), and what is left becomes text (``Tokens.render``). Numbers keep their digits and whether they are integers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.protobuf_wire import Bytes, Ints, texts, valid_utf8

NONE: Final = 0
KEY: Final = 1
KEY_TEXT: Final = 2
INT: Final = 3
UINT: Final = 4
DOUBLE: Final = 5
BOOL: Final = 6
TEXT: Final = 7
WORD: Final = 8
BINARY: Final = 9
HEX: Final = 10
OPEN_OBJECT: Final = 11
CLOSE_OBJECT: Final = 12
OPEN_ARRAY: Final = 13
CLOSE_ARRAY: Final = 14
NULL: Final = 15
"""Kinds of token. KEY and WORD: ``a`` is the number of a string in the vocabulary; KEY_TEXT, TEXT, BINARY: the bytes
``a`` to ``b`` of the data; INT, UINT, DOUBLE, BOOL, HEX: ``a`` has the 64 bits. A key comes before the one value, object or array that
it names. NONE is passed over."""

MAX_DEPTH: Final = 60
"""Deepest nesting of objects and arrays that a decoder may write."""

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_MAX_WORD_BYTES: Final = 256 << 20
_CUT_CHARACTERS: Final = 200
"""If one block of events repeats more text than that, its long words are cut to this length."""
_UNKNOWN: Final = b'"?"'


@dataclass(frozen=True)
class Vocabulary:
    """Strings that tokens refer to by number, as JSON; those of string i are ``data[starts[i]:starts[i + 1]]``."""

    data: Bytes
    starts: Ints

    @classmethod
    def of(cls, words: Sequence[str]) -> Vocabulary:
        """The vocabulary of some strings; one more, the last, stands for what is not known."""
        encoded = [json.dumps(w, ensure_ascii=False).encode("utf-8", "replace") for w in words]
        encoded.append(_UNKNOWN)
        starts = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(e) for e in encoded], out=starts[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), starts)


@dataclass(frozen=True)
class Lifted:
    """The values of one key, of the rows that have it: ``rows`` ascending, kinds and bits as in the tokens."""

    rows: Ints
    kind: NDArray[np.int8]
    a: Ints
    b: Ints

    def integers(self) -> tuple[Ints, Ints]:
        """Rows and values of those that are integers of 63 bits, or truth values."""
        fits = (self.kind == INT) | (self.kind == BOOL) | ((self.kind == UINT) & (self.a >= 0))
        return self.rows[fits], self.a[fits]

    def unsigned(self) -> tuple[Ints, NDArray[np.uint64]]:
        """Rows and bits of those that are integers."""
        fits = (self.kind == INT) | (self.kind == UINT)
        return self.rows[fits], self.a[fits].view(np.uint64)

    def floats(self) -> tuple[Ints, NDArray[np.float64]]:
        """Rows and values of those that are numbers."""
        fits = (self.kind == INT) | (self.kind == UINT) | (self.kind == DOUBLE)
        bits, kind = self.a[fits], self.kind[fits]
        values = np.where(kind == UINT, bits.view(np.uint64).astype(np.float64), bits)
        return self.rows[fits], np.where(kind == DOUBLE, bits.view(np.float64), values)


@dataclass(frozen=True)
class Tokens:
    """Values of n rows: those of row i are the tokens from ``starts[i]`` to ``starts[i + 1]``.

    ``data`` holds the bytes that TEXT and BINARY tokens refer to.
    """

    data: Bytes
    starts: Ints
    kind: NDArray[np.int8]
    a: Ints
    b: Ints

    def lift(self, key: int, *, keep: bool = False) -> Lifted:
        """The values of a key, taken out of what is rendered unless they are to be kept. Objects and arrays stay.

        Of a key that a row has twice, the last value counts.
        """
        at = np.flatnonzero((self.kind == KEY) & (self.a == key))
        at = at[at + 1 < len(self.kind)]
        is_plain = np.isin(self.kind[at + 1], (INT, UINT, DOUBLE, BOOL, TEXT, WORD, BINARY))
        at = at[is_plain]
        rows = np.searchsorted(self.starts, at, side="right") - 1
        last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, np.bool_)
        found = Lifted(
            rows[last],
            self.kind[at + 1][last],
            self.a[at + 1][last],
            self.b[at + 1][last],
        )
        if not keep:
            self.kind[at] = self.kind[at + 1] = NONE
        return found

    def strings(self, lifted: Lifted, words: Sequence[str]) -> tuple[Ints, pa.StringArray]:
        """Rows and texts of those lifted values that are strings."""
        is_word, is_text = lifted.kind == WORD, lifted.kind == TEXT
        rows = np.concatenate([lifted.rows[is_word], lifted.rows[is_text]])
        known = pa.array(words, pa.string()).take(pa.array(lifted.a[is_word]))
        written = texts(self.data, lifted.a[is_text], lifted.b[is_text])
        order = np.argsort(rows, kind="stable")
        return rows[order], pa.concat_arrays([known, written]).take(pa.array(order))

    def render(self, vocabulary: Vocabulary) -> pa.StringArray:
        """One JSON object a row with what was not lifted out; null where nothing is left."""
        doubles = np.flatnonzero(self.kind == DOUBLE)
        a = self.a.copy()
        values = a[doubles].view(np.float64)
        a[doubles] = np.arange(len(doubles))
        number = _numbers(values)
        vocabulary = _bounded(vocabulary, self)
        rows = len(self.starts) - 1
        offsets = np.zeros(rows + 1, np.int32)
        has = np.zeros(rows, np.bool_)
        out = np.empty(max(4096, 24 * len(self.kind)), np.uint8)
        row, at = 0, 0
        while True:
            row, at = _render(
                self.data, self.starts, self.kind, a, self.b, vocabulary.data, vocabulary.starts,
                number.data, number.starts, row, at, out, offsets, has,
            )  # fmt: skip
            if row == rows:
                break
            out = np.concatenate(
                [out, np.empty(len(out) + _bound(self, vocabulary, row), np.uint8)]
            )
        validity = pa.array(has).buffers()[1]
        text = pa.py_buffer(out[:at].tobytes())
        return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), text, validity)


def _bounded(vocabulary: Vocabulary, tokens: Tokens) -> Vocabulary:
    """The vocabulary with long words cut, where all their uses together would be too much text."""
    used = tokens.a[np.isin(tokens.kind, (KEY, WORD))]
    sizes = np.diff(vocabulary.starts)
    if int(sizes[used].sum()) <= _MAX_WORD_BYTES:
        return vocabulary
    pieces = [
        json.loads(vocabulary.data[low:high].tobytes())
        for low, high in zip(vocabulary.starts[:-2], vocabulary.starts[1:-1], strict=True)
    ]
    return Vocabulary.of(
        [w if len(w) <= _CUT_CHARACTERS else w[:_CUT_CHARACTERS] + "…" for w in pieces]
    )


def _numbers(values: NDArray[np.float64]) -> Vocabulary:
    """JSON of doubles: the shortest digits that give the same double, never taken for an integer; the rest as strings."""
    written = pa.array(values).cast(pa.string())
    data = np.frombuffer(written.buffers()[2] or b"", np.uint8)
    starts = np.frombuffer(written.buffers()[1] or bytes(4), np.int32)[: len(values) + 1]
    out = np.empty(len(data) + 8 * len(values) + 1, np.uint8)
    ends = np.zeros(len(values) + 1, np.int64)
    size = _json_numbers(data, starts.astype(np.int64), np.isfinite(values), out, ends)
    return Vocabulary(out[:size], ends)


@compiled
def _json_numbers(
    data: Bytes, starts: Ints, is_finite: NDArray[np.bool_], out: Bytes, ends: Ints
) -> int:
    at = 0
    for i in range(is_finite.size):
        low, high = starts[i], starts[i + 1]
        has_mark = False
        if not is_finite[i]:
            out[at] = 34
            at += 1
        for k in range(low, high):
            out[at] = data[k]
            at += 1
            has_mark |= data[k] == 46 or data[k] == 101
        if not is_finite[i]:
            out[at] = 34
            at += 1
        elif not has_mark:
            out[at], out[at + 1] = 46, 48
            at += 2
        ends[i + 1] = at
    return at


def _bound(tokens: Tokens, vocabulary: Vocabulary, row: int) -> int:
    """Bytes that the JSON of a row has at most."""
    low, high = int(tokens.starts[row]), int(tokens.starts[row + 1])
    kind, a, b = tokens.kind[low:high], tokens.a[low:high], tokens.b[low:high]
    spans = np.isin(kind, (KEY_TEXT, TEXT, BINARY))
    words = np.isin(kind, (KEY, WORD))
    text = 6 * int((b - a)[spans].sum())
    known = int((vocabulary.starts[a[words] + 1] - vocabulary.starts[a[words]]).sum())
    return text + known + 40 * (high - low) + 64


@compiled
def _put_escaped(out: Bytes, at: int, data: Bytes, low: int, high: int) -> int:
    """A JSON string of some bytes, quotes included."""
    out[at] = 34
    at += 1
    here = low
    while here < high:
        byte = data[here]
        if byte >= 0x80:
            size = valid_utf8(data, here, high)
            if size == 0:
                out[at], out[at + 1], out[at + 2] = 0xEF, 0xBF, 0xBD
                at, here = at + 3, here + 1
                continue
            for k in range(size):
                out[at + k] = data[here + k]
            at, here = at + size, here + size
            continue
        here += 1
        if byte == 34 or byte == 92:
            out[at], out[at + 1] = 92, byte
            at += 2
        elif byte >= 32:
            out[at] = byte
            at += 1
        else:
            out[at], out[at + 1], out[at + 2], out[at + 3] = 92, 117, 48, 48
            out[at + 4], out[at + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            at += 6
    out[at] = 34
    return at + 1


@compiled
def _put_unsigned(out: Bytes, at: int, value: np.uint64) -> int:
    size = 1
    rest = value
    while rest >= np.uint64(10):
        rest //= np.uint64(10)
        size += 1
    for k in range(size):
        out[at + size - 1 - k] = np.uint8(48 + value % np.uint64(10))
        value //= np.uint64(10)
    return at + size


@compiled
def _put_base64(out: Bytes, at: int, data: Bytes, low: int, high: int) -> int:
    out[at] = 34
    at += 1
    while low < high:
        first = np.int64(data[low])
        second = np.int64(data[low + 1]) if low + 1 < high else 0
        third = np.int64(data[low + 2]) if low + 2 < high else 0
        out[at] = _BASE64[first >> 2]
        out[at + 1] = _BASE64[(first & 3) << 4 | second >> 4]
        out[at + 2] = _BASE64[(second & 15) << 2 | third >> 6] if low + 1 < high else 61
        out[at + 3] = _BASE64[third & 63] if low + 2 < high else 61
        at, low = at + 4, low + 3
    out[at] = 34
    return at + 1


@compiled
def _put_scalar(out: Bytes, at: int, kind: int, bits: int) -> int:
    if kind == INT:
        if bits < 0:
            out[at] = 45
            return _put_unsigned(out, at + 1, np.uint64(0) - np.uint64(bits))
        return _put_unsigned(out, at, np.uint64(bits))
    if kind == UINT:
        return _put_unsigned(out, at, np.uint64(bits))
    if kind == HEX:
        out[at], out[at + 1], out[at + 2] = 34, 48, 120
        at += 3
        value, size = np.uint64(bits), 1
        while size < 16 and value >> np.uint64(4 * size) != np.uint64(0):
            size += 1
        for k in range(size):
            digit = value >> np.uint64(4 * (size - 1 - k)) & np.uint64(15)
            out[at] = _HEX[np.int64(digit)]
            at += 1
        out[at] = 34
        return at + 1
    word = "true" if kind == BOOL and bits != 0 else "false" if kind == BOOL else "null"
    for k in range(len(word)):
        out[at] = np.uint8(ord(word[k]))
        at += 1
    return at


@compiled
def _put_copy(out: Bytes, at: int, data: Bytes, low: int, high: int) -> int:
    for k in range(low, high):
        out[at] = data[k]
        at += 1
    return at


@compiled
def _token_bound(kind: int, a: int, b: int, word_starts: Ints) -> Any:
    if kind in (KEY, WORD):
        return 8 + word_starts[a + 1] - word_starts[a]
    if kind in (KEY_TEXT, TEXT, BINARY):
        return 16 + 6 * (b - a)
    return 48


@compiled
def _render(
    data: Bytes,
    starts: Ints,
    kinds: NDArray[np.int8],
    a: Ints,
    b: Ints,
    words: Bytes,
    word_starts: Ints,
    numbers: Bytes,
    number_starts: Ints,
    row: int,
    at: int,
    out: Bytes,
    offsets: NDArray[np.int32],
    has: NDArray[np.bool_],
) -> tuple[int, int]:
    """Write rows from ``row`` on while they fit; the first row that did not, and the bytes written."""
    while row < starts.size - 1:
        begin, is_first, depth, after_key = at, True, 0, False
        for i in range(starts[row], starts[row + 1]):
            kind = kinds[i]
            if kind == NONE:
                continue
            if at + _token_bound(kind, a[i], b[i], word_starts) + 2 * depth > out.size:
                return row, begin
            if at == begin:
                out[at] = 123
                at += 1
            if kind in (CLOSE_OBJECT, CLOSE_ARRAY):
                out[at] = 125 if kind == CLOSE_OBJECT else 93
                at, depth, is_first, after_key = at + 1, depth - 1, False, False
                continue
            if not is_first and not after_key:
                out[at] = 44
                at += 1
            is_first, after_key = False, kind in (KEY, KEY_TEXT)
            if kind in (OPEN_OBJECT, OPEN_ARRAY):
                out[at] = 123 if kind == OPEN_OBJECT else 91
                at, depth, is_first = at + 1, depth + 1, True
            elif kind in (KEY, WORD):
                at = _put_copy(out, at, words, word_starts[a[i]], word_starts[a[i] + 1])
            elif kind in (KEY_TEXT, TEXT):
                at = _put_escaped(out, at, data, a[i], b[i])
            elif kind == DOUBLE:
                at = _put_copy(out, at, numbers, number_starts[a[i]], number_starts[a[i] + 1])
            elif kind == BINARY:
                at = _put_base64(out, at, data, a[i], b[i])
            else:
                at = _put_scalar(out, at, kind, a[i])
            if after_key:
                out[at] = 58
                at += 1
        has[row] = at > begin
        if has[row]:
            out[at] = 125
            at += 1
        row += 1
        offsets[row] = at
    return row, at
