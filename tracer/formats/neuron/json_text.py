"""What stands in the arrays of one large JSON object? Its elements in blocks, read by polars' JSON-lines reader.

Neuron's JSON exports are one object with a few arrays of flat objects, some of them gigabytes long. A compiled scanner of our own finds
where each element begins and ends, in pieces of the file, and puts right what JSON does not allow (NaN, stray commas, raw control characters);
the elements go to polars as JSON lines, every member read as text, so that no number is rounded and no type is guessed. No library
does both: streaming readers build Python objects (13 MB/s), columnar ones want lines.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from trnprof.tracer.formats.neuron.json_scan import (
    END,
    ERROR,
    INCOMPLETE,
    MAX_DEPTH,
    elements,
    key_places,
    lines,
    nested_end,
    skip,
    value_end,
)
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import ByteStream
from trnprof.tracer.units import counted

BLOCK_BYTES: Final = 8 << 20
MAX_ELEMENT_BYTES: Final = 64 << 20
MAX_VALUE_BYTES: Final = 16 << 20
MAX_ROWS: Final = 65_536
MAX_KEYS: Final = 512
_MAX_BAD_LINES: Final = 10_000


@dataclass(frozen=True)
class Block:
    """Some elements of an array.

    Attributes:
        key: the member of the top-level object whose array it is; empty for a top-level array.
        rows: their members, each as text (nested ones as JSON), null where absent.
        position: byte in the decompressed file of the first.
    """

    key: str
    rows: pl.DataFrame
    position: int


@dataclass(frozen=True)
class Value:
    """A member of the top-level object that is no array of objects."""

    key: str
    value: Any
    position: int


class TopLevel:
    """The members of a top-level JSON object, in file order."""

    def __init__(
        self,
        stream: ByteStream,
        label: str,
        audit: Audit,
        *,
        only: bytes = b"",
        passed_over: Collection[str] = (),
    ) -> None:
        """Read nothing yet.

        Args:
            stream: of the file.
            label: of the source, for findings.
            audit: where they go.
            only: parse just the blocks in which this text occurs; empty for all.
            passed_over: keys of arrays that are not parsed; may change while items are taken.
        """
        self._stream, self._label, self._audit, self._only = stream, label, audit, only
        self._passed_over = passed_over
        self._buffer = bytearray()
        self._base = 0
        self._ended = False
        self.elements = 0

    def __iter__(self) -> Iterator[Block | Value]:
        """Blocks of arrays of objects, and other members."""
        if self._look(3) == b"\xef\xbb\xbf":
            self._drop(3)
        first = self._next_mark()
        if first == ord("["):
            yield from self._array("")
            return
        if first != ord("{"):
            return
        self._drop(1)
        while (mark := self._next_mark()) is not None and mark != ord("}"):
            if mark == ord(","):
                self._drop(1)
                continue
            key = self._key()
            if key is None:
                return
            if self._next_mark() == ord("["):
                yield from self._array(key)
            else:
                at = self._base
                value = self._value(key)
                if value is not None:
                    yield Value(key, value[0], at)

    def _array(self, key: str) -> Iterator[Block | Value]:
        """The elements of an array; one of scalars is a value."""
        at = self._base
        self._drop(1)
        if self._next_mark() not in (ord("{"), ord(","), None):
            found = self._value(key, opened=b"[")
            if found is not None and found[0] != []:
                yield Value(key, found[0], at)
            return
        starts, ends = np.empty(MAX_ROWS, np.int64), np.empty(MAX_ROWS, np.int64)
        seen = np.zeros(8, np.int64)
        while True:
            self._fill(BLOCK_BYTES)
            at = self._base
            data = np.frombuffer(self._buffer, np.uint8).copy()
            count, consumed, how = elements(data, starts, ends, seen)
            if count:
                block = self._block(key, data, starts[:count], ends[:count], at)
                if block is not None:
                    yield block
            self._drop(consumed)
            if how == END or (how == INCOMPLETE and self._ended and not count):
                break
            if how == ERROR or (how == INCOMPLETE and not count and not self._grow()):
                break
        self._tell(key, seen, how)

    def _block(self, key: str, data: Any, starts: Any, ends: Any, position: int) -> Block | None:
        self.elements += len(starts)
        if key in self._passed_over:
            return None
        text = lines(data, starts, ends).tobytes()
        if self._only and self._only not in text:
            return None
        rows = self._parsed(key, text, _keys(text))
        return None if rows is None else Block(key, rows, position + int(starts[0]))

    def _parsed(self, key: str, text: bytes, keys: list[str]) -> pl.DataFrame | None:
        schema = dict.fromkeys(keys, pl.String())
        try:
            return pl.read_ndjson(io.BytesIO(text), schema=schema, ignore_errors=True)
        except (pl.exceptions.PolarsError, UnicodeError):
            pass
        clean = text.decode("utf-8", "replace")
        changed = clean.encode()
        if changed != text:
            self._say(
                key, "invalid_utf8", "bytes that are no UTF-8 were replaced", clean.count("\ufffd")
            )
            try:
                return pl.read_ndjson(io.BytesIO(changed), schema=schema, ignore_errors=True)
            except pl.exceptions.PolarsError:
                pass
        return self._line_by_line(key, clean, schema)

    def _line_by_line(
        self, key: str, text: str, schema: dict[str, pl.String]
    ) -> pl.DataFrame | None:
        """The lines that can be read: halves of what cannot are tried again."""
        good: list[pl.DataFrame] = []
        bad = 0
        pending = [text.splitlines()]
        while pending and bad < _MAX_BAD_LINES:
            lines = pending.pop()
            try:
                joined = "\n".join(lines).encode()
                good.append(pl.read_ndjson(io.BytesIO(joined), schema=schema, ignore_errors=True))
            except pl.exceptions.PolarsError:
                if len(lines) == 1:
                    bad += 1
                    continue
                half = len(lines) // 2
                pending += [lines[half:], lines[:half]]
        bad += sum(len(lines) for lines in pending)
        self._say(key, "unreadable_events", "elements that are no JSON were left out", bad, "error")
        return pl.concat(good) if good else None

    def _tell(self, key: str, seen: Any, how: int) -> None:
        self._say(
            key,
            "bare_words",
            "NaN, Infinity and other bare words were read as missing",
            int(seen[0]),
            "warning",
        )
        self._say(
            key,
            "control_characters",
            "raw control characters in texts became spaces",
            int(seen[1]),
        )
        self._say(key, "stray_commas", "commas too many were passed over", int(seen[2]))
        message = "elements that are no objects were left out"
        self._say(key, "not_events", message, int(seen[3]), "warning")
        self._say(
            key,
            "deep_nesting",
            f"elements nested deeper than {MAX_DEPTH} were left out",
            int(seen[4]),
            "warning",
        )
        lost = len(self._buffer) if how in (INCOMPLETE, ERROR) else 0
        if how == ERROR:
            self._say(
                key,
                "malformed_json",
                f"the array breaks off at byte {self._base}; the rest was left out",
                1,
                "error",
            )
        elif how == INCOMPLETE:
            message = f"the file ends within this array; its end, a part of an element ({counted(lost, 'byte')}), was left out"
            self._say(key, "truncated", message, 1, "error")

    def _say(self, key: str, kind: str, message: str, count: int, severity: str = "note") -> None:
        self._audit.add(
            kind,
            severity,
            f"{self._label}: {key or 'array'}",
            message,
            unreliable="totals" if severity != "note" else "",
            count=count,
            example=f"in the array that ends near byte {self._base}",
        )

    def _key(self) -> str | None:
        """The key in front of the next value, with its colon."""
        if self._look(1) != b'"':
            return None
        while (end := int(nested_end(np.frombuffer(self._buffer, np.uint8).copy(), 0))) < 0:
            if len(self._buffer) > MAX_VALUE_BYTES or not self._grow():
                return None
        text = bytes(self._buffer[:end]).decode("utf-8", "replace")
        try:
            key = str(json.loads(text, strict=False))[:200]
        except ValueError:
            key = text[1:-1][:200]
        self._drop(end)
        if self._next_mark() != ord(":"):
            return None
        self._drop(1)
        return key

    def _value(self, key: str, opened: bytes = b"") -> tuple[Any] | None:
        """A scalar or object as Python has it (in a tuple), None if it is too large or cannot be read."""
        size = 0
        while True:
            data = np.frombuffer(self._buffer, np.uint8).copy()
            end = int(value_end(data, len(opened)))
            if end >= 0:
                break
            size = len(self._buffer)
            if size > MAX_VALUE_BYTES:
                self._skip_value(len(opened))
                self._say(
                    key,
                    "large_header",
                    f"a member of more than {MAX_VALUE_BYTES >> 20} MiB was left out",
                    1,
                )
                return None
            if not self._grow():
                end = size
                break
        text = opened + bytes(self._buffer[:end])
        self._drop(end)
        try:
            return (json.loads(text.decode("utf-8", "replace"), strict=False),)
        except (ValueError, RecursionError):
            self._say(key, "damaged_header", "a member that is no JSON was left out", 1, "warning")
            return None

    def _skip_value(self, opened: int) -> None:
        state = np.array([opened, 0, 0], np.int64)
        while True:
            data = np.frombuffer(self._buffer, np.uint8).copy()
            end = int(skip(data, state))
            if end >= 0:
                self._drop(end)
                return
            self._drop(len(self._buffer))
            if not self._grow():
                return

    def _next_mark(self) -> int | None:
        """The next byte that is no white space, at the front of the buffer; None at the end."""
        while True:
            stripped = self._buffer.lstrip(b" \t\r\n")
            self._drop(len(self._buffer) - len(stripped))
            if self._buffer:
                return self._buffer[0]
            if not self._grow():
                return None

    def _look(self, size: int) -> bytes:
        self._fill(size)
        return bytes(self._buffer[:size])

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size and self._grow():
            pass

    def _grow(self) -> bool:
        if self._ended or len(self._buffer) > MAX_ELEMENT_BYTES + BLOCK_BYTES:
            return False
        data = self._stream.read(1 << 20)
        self._ended = not data
        self._buffer += data
        return bool(data)

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._base += size


def _keys(text: bytes) -> list[str]:
    """The distinct keys of the objects in JSON lines, in order."""
    hashes = np.zeros(4 * MAX_KEYS, np.uint64)
    places = np.empty((MAX_KEYS, 2), np.int64)
    count = int(key_places(np.frombuffer(text, np.uint8), hashes, places))
    found: dict[str, None] = {}
    for begin, end in places[:count].tolist():
        try:
            found[json.loads(b'"' + text[begin:end] + b'"')] = None
        except ValueError:
            continue
    return list(found)
