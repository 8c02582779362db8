"""What do some events of a Chrome-style JSON file say? Columns, decoded only when asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from trnprof.tracer.formats.trace_json import attributes as rendered
from trnprof.tracer.formats.trace_json import codes as json_codes
from trnprof.tracer.formats.trace_json import decimals as json_decimals
from trnprof.tracer.formats.trace_json import texts as json_texts
from trnprof.tracer.formats.trace_json.event import HAS_UNKNOWN, Rows, room
from trnprof.tracer.formats.trace_json.findings import Faults
from trnprof.tracer.formats.trace_json.member_names import NameTable, name_table
from trnprof.tracer.formats.trace_json.simd import PADDING

_EMPTY: Final = np.empty(0, np.uint8)
_FINGERPRINT_SEED: Final = np.uint64(0x243F6A8885A308D3)
_FAR_US: Final = json_decimals.FAR_NS // 1000
_WINDOWS_PATH: Final = re.compile(rb"[A-Za-z]:\\[a-tv-z]")


@dataclass
class Shared:
    """What the blocks of one scan share.

    Attributes:
        members: names of the members of events, the one with the arguments last.
        args: names of the members of the arguments.
        faults: where to tell of faults.
        names: of all fields.
        keys: combinations of fields met so far: (value → code, values by code).
        excluding: names for ``attributes``.
        seed: of hash tables.
        origin_us: what times are counted from, a multiple of _FAR_US; None until the first times are met, which counts as 0.
    """

    members: tuple[str, ...]
    args: tuple[str, ...]
    faults: Faults
    names: NameTable
    keys: dict[tuple[str, ...], tuple[dict[tuple[str | None, ...], int], list[tuple[Any, ...]]]] = (
        field(default_factory=dict)
    )
    excluding: dict[tuple[tuple[str, ...], tuple[str, ...]], NameTable] = field(
        default_factory=dict
    )
    seed: np.uint64 = field(default_factory=json_texts.random_seed)
    origin_us: int | None = None

    def number(self, name: str) -> int:
        """Of a field, by name; fields of the arguments begin with ``args.``."""
        if name in self.members:
            return self.members.index(name)
        return len(self.members) + self.args.index(name.removeprefix("args."))

    def rows(self, events: int) -> Rows:
        """Room for so many events."""
        return room(len(self.members) + len(self.args), events)


def share(
    members: tuple[str, ...], args: tuple[str, ...], args_member: str, faults: Faults
) -> Shared:
    """For the blocks of a scan for these fields."""
    ordered = (*(m for m in dict.fromkeys(members) if m != args_member), args_member)
    inner = tuple(dict.fromkeys(args))
    return Shared(ordered, inner, faults, name_table(ordered, inner))


class EventBlock:
    """Some events in file order. Arrays have one entry an event; a field is a member's name, or ``args.`` and a name.

    Attributes:
        rows: number of events.
        position: byte in the decompressed file at which the first of them begins.
    """

    def __init__(
        self,
        shared: Shared,
        data: NDArray[np.uint8],
        origin: int,
        located: Rows,
        index: NDArray[np.int64] | None = None,
    ) -> None:
        """All located events, or those of an index; of the latter only the fields that are asked for are gathered."""
        self._shared = shared
        self._data = data
        self._base: int = data.ctypes.data
        self._origin = origin
        self._located = located
        self._index = index
        edges = (located.first, located.last, located.marks)
        self._first, self._last, self._marks = (
            edges if index is None else (edge[index] for edge in edges)
        )
        self._columns: dict[str, json_decimals.Column] = {}
        self._codes: dict[str, tuple[NDArray[np.int32], NDArray[np.int64]]] = {}
        self._texts: dict[str, pa.DictionaryArray] = {}
        self.rows = len(self._first)
        self.position = origin + int(self._first[0]) if self.rows else origin

    def positions(self) -> NDArray[np.int64]:
        """Byte in the decompressed file at which each event begins."""
        return self._first.astype(np.int64) + self._origin

    def has(self, field: str) -> NDArray[np.bool_]:
        """Whether the field is there and not null (NaN and its kin are null)."""
        found: NDArray[np.bool_] = self._column(field)[2] > json_codes.BARE
        return found

    def is_kind(self, field: str, *kinds: int) -> NDArray[np.bool_]:
        """Whether the value is of one of these kinds (``json_codes.NUMBER``, ``OBJECT``, …)."""
        return np.isin(self._column(field)[2], np.array(kinds, np.uint8))

    def integers(self, field: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Integers, from numbers or numeric strings (decimal or ``0x``), and whether each is one.

        Values from 2^63 are given as the bits of uint64; values beyond 64 bits and with decimals are none.
        """
        return json_decimals.integers(self._base, self._column(field))

    def floats(self, field: str) -> NDArray[np.float64]:
        """Numbers or numeric strings, correctly rounded; NaN where there is none."""
        column = self._column(field)
        found, slow = json_decimals.floats(self._base, column)
        if slow.any():
            texts = _gathered(self._base, column[0][slow], column[1][slow], column[2][slow])
            texts = pc.ascii_trim_whitespace(texts)
            numeric = pc.match_substring_regex(
                texts, r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
            )
            plain = pc.replace_substring_regex(texts, r"^\+", "")
            plain = pc.if_else(numeric, plain, pa.scalar(None, pa.string()))
            numbers = pc.cast(plain, pa.float64()).fill_null(np.nan)
            found[slow] = numbers.to_numpy(zero_copy_only=False)
        return found

    def times_ns(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Start and end in nanoseconds from ``ts`` and ``dur`` in decimal microseconds, each exact and rounded once, half up.

        Returns:
            (start_ns, end_ns, has_ts, has_dur). Without ``ts`` the start counts as 0, without ``dur`` the end is the start. Times
            more than 2^62 ns from zero are cut to that, with a finding.
        """
        start, end, has_ts, has_dur, has_cut = json_decimals.times(
            self._base, self._column("ts"), self._column("dur"), self._shared.origin_us or 0
        )
        if has_cut.any():
            row = int(has_cut.argmax())
            self._shared.faults.add(
                "times_out_of_range",
                "warning",
                "times are more than 146 years from zero and were cut to that: ts and dur must be microseconds, not nanoseconds",
                self._origin + int(self._first[row]),
                int(has_cut.sum()),
                unreliable="these events",
            )
        return start, end, has_ts, has_dur

    def settle_origin(self) -> None:
        """Count all times of the scan from near the first ones, if most of these are too far from zero to be nanoseconds in 64 bits.

        The origin is a round number, so that profiles of one job that are written alike get the same.
        """
        if self._shared.origin_us is not None:
            return
        stamps = self.floats("ts")
        stamps = stamps[np.isfinite(stamps)]
        if not len(stamps):
            return
        is_far = np.abs(stamps) >= _FAR_US
        middle = float(np.median(stamps[is_far])) if 2 * is_far.sum() > len(stamps) else 0.0
        is_readable = abs(middle) < json_decimals.FAR_NS
        self._shared.origin_us = _FAR_US * round(middle / _FAR_US) if is_readable else 0
        if self._shared.origin_us:
            self._shared.faults.add(
                "times_rebased",
                "warning",
                "most times are more than 146 years from zero and are counted from near them: ts and dur must be microseconds, not nanoseconds",
                self.position,
                unreliable="all lengths and rates",
            )

    def texts(self, field: str) -> pa.DictionaryArray:
        """Texts: strings without their escapes, other values as they are written, null where there is none.

        Bytes that are not UTF-8 become U+FFFD.
        """
        if field not in self._texts:
            codes, firsts = self._written(field)
            decoded = self._decoded(field, firsts)
            if isinstance(decoded, list):  # what is written differently may be the same text
                number = {text: i for i, text in enumerate(dict.fromkeys(decoded))}
                codes = np.array([*(number[text] for text in decoded), -1], np.int32)[codes]
                decoded = pa.array(list(number), pa.string())
            indices = pa.array(codes, mask=codes < 0) if (codes < 0).any() else pa.array(codes)
            self._texts[field] = pa.DictionaryArray.from_arrays(indices, decoded)
        return self._texts[field]

    def keys(self, *fields: str) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
        """Number the combinations of texts of some fields, the same in all blocks of a scan.

        Returns:
            (code of each event, from 0; the combinations by code, of all blocks so far, None where a field is missing).
        """
        by_value, known = self._shared.keys.setdefault(fields, ({}, []))
        combined, firsts = self._written(fields[0])
        for more in fields[1:]:
            codes, more_firsts = self._written(more)
            if len(more_firsts):
                combined, firsts = json_texts.distinct_pairs(combined, codes, self._shared.seed)
        if (combined < 0).any():
            combined, firsts = json_texts.distinct_pairs(combined, combined, self._shared.seed)
        mapping = np.empty(len(firsts), np.int64)
        for code, value in enumerate(zip(*(self._words(f, firsts) for f in fields), strict=True)):
            if value not in by_value:
                by_value[value] = len(known)
                known.append(value)
            mapping[code] = by_value[value]
        return mapping[combined], known

    def raw(self, field: str) -> pa.StringArray:
        """JSON text of a member as it is written, made valid where it is not; null where there is none."""
        start, length, kind = self._column(field)
        offsets = np.zeros(self.rows + 1, np.int64)
        arguments = (self._base, start, length, kind, self._marks, offsets)
        rendered.texts(*arguments, _EMPTY)
        out = _room(offsets)
        rendered.texts(*arguments, out)
        return _strings(out, offsets)

    def attributes(
        self, exclude_args: Sequence[str] = (), keep: Sequence[str] = ()
    ) -> pa.StringArray:
        """The arguments of each event as they are written, without those to be excluded.

        Members of the event that are no field of the scan, and fields to ``keep``, are added as a member ``event``; arguments that
        are no object become a member ``args``. What is not valid JSON is made so. Null where nothing remains.
        """
        excluded, kept = tuple(exclude_args), tuple(keep)
        if (excluded, kept) not in self._shared.excluding:
            members = tuple(m for m in self._shared.members if m not in kept)
            self._shared.excluding[excluded, kept] = name_table(members, excluded)
        args = self._column(self._shared.members[-1])
        offsets = np.zeros(self.rows + 1, np.int64)
        arguments = (
            self._base,
            self._first,
            self._last,
            *args,
            self._marks | np.int32(HAS_UNKNOWN) if kept else self._marks,
            self._shared.excluding[excluded, kept].names,
            bool(excluded),
            offsets,
        )
        rendered.attributes(*arguments, _EMPTY)
        out = _room(offsets)
        rendered.attributes(*arguments, out)
        return _strings(out, offsets)

    def fingerprints(self) -> NDArray[np.uint64]:
        """Hash of the text of each event."""
        out = np.empty(self.rows, np.uint64)
        json_texts.hash_rows(self._base, self._first, self._last, _FINGERPRINT_SEED, out)
        return out

    def take(self, chosen: ArrayLike) -> Self:
        """The events that a mask or an array of row numbers chooses."""
        index = np.asarray(chosen)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        if self._index is not None:
            index = self._index[index]
        return type(self)(self._shared, self._data, self._origin, self._located, index)

    def _column(self, field: str) -> json_decimals.Column:
        if field not in self._columns:
            number, all_rows = self._shared.number(field), self._located
            start, length, kind = (
                all_rows.start[number],
                all_rows.length[number],
                all_rows.kind[number],
            )
            if self._index is not None:
                start, length, kind = start[self._index], length[self._index], kind[self._index]
            self._columns[field] = start, length, kind
        return self._columns[field]

    def _written(self, field: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Codes of what is written in a field, -1 where there is nothing, and the row of the first appearance of each."""
        if field not in self._codes:
            self._codes[field] = json_texts.distinct_texts(
                self._base, *self._column(field), self._shared.seed
            )
        return self._codes[field]

    def _words(self, field: str, rows: NDArray[np.int64]) -> list[str | None]:
        """Texts of a field in some rows, None where there is none."""
        words: list[str | None] = [None] * len(rows)
        there = np.flatnonzero(self._column(field)[2][rows] > json_codes.BARE)
        if len(there):
            decoded = self._decoded(field, rows[there])
            texts = decoded if isinstance(decoded, list) else decoded.to_pylist()
            for at, text in zip(there.tolist(), texts, strict=True):
                words[at] = text
        return words

    def _decoded(self, field: str, firsts: NDArray[np.int64]) -> pa.StringArray | list[str]:
        """Texts of the rows; an Arrow array if they are texts as they are, else a list."""
        start, length, kind = self._column(field)
        start, length, kind = start[firsts], length[firsts], kind[firsts]
        hard = kind == json_codes.ESCAPED
        hard |= (self._marks[firsts] & json_codes.INVALID_UTF8) != 0
        plain = _gathered(self._base, start, length, kind)
        if not hard.any():
            return plain
        texts = [text.decode("utf-8", "replace") for text in plain.cast(pa.binary()).to_pylist()]
        for row in np.flatnonzero(hard & (kind == json_codes.ESCAPED)).tolist():
            low = int(start[row])
            texts[row] = unescaped(self._data[low : low + int(length[row])].tobytes())
        return texts


def unescaped(text: bytes) -> str:
    """The text of a JSON string. What is no character becomes U+FFFD.

    If it holds an escape that JSON does not know, or begins like a Windows path, its writer does not escape backslashes, and they
    are kept.
    """
    decoded = text.decode("utf-8", "replace")
    if not _WINDOWS_PATH.match(text):
        try:
            string = json.loads(f'"{decoded}"', strict=False)
        except ValueError:
            pass
        else:
            return str(string.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return decoded.replace('\\"', '"')


def _room(offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """For text that ends at the last offset, and what is written behind it and taken back."""
    return np.empty(int(offsets[-1]) + PADDING, np.uint8)


def _gathered(
    base: int,
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    kind: NDArray[np.uint8],
) -> pa.StringArray:
    """The texts of some rows, as they are written, not checked to be UTF-8."""
    offsets = np.zeros(len(length) + 1, np.int64)
    np.cumsum(np.where(kind > json_codes.ABSENT, length, 0), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    json_texts.gather(base, start, offsets, out)
    return _strings(out, offsets, has_null=False)


def _strings(
    out: NDArray[np.uint8], offsets: NDArray[np.int64], *, has_null: bool = True
) -> pa.StringArray:
    """An Arrow array of the texts; empty ones are null if ``has_null``."""
    rows = len(offsets) - 1
    mask = None
    if has_null:
        is_there = np.diff(offsets) > 0
        if not is_there.all():
            mask = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.StringArray.from_buffers(
        rows, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out), mask
    )
