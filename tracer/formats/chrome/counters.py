"""Which counters does a trace have? Each number among the arguments of a counter event is a series of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.stage import Stage, Timeline

Ints = NDArray[np.int64]

_MOST_SERIES: Final = 10_000
"""Series of one file; what lies beyond is left out, with a finding."""
_QUOTE, _BACKSLASH, _COMMA, _COLON = (ord(c) for c in '"\\,:')
_OPEN, _CLOSE = ord("{"), ord("}")
_OPEN_ARRAY, _CLOSE_ARRAY = ord("["), ord("]")


@dataclass
class Counters:
    """Counters met so far.

    Attributes:
        stage: takes the samples.
        args_member: member of an event that holds its arguments.
        owners: number of a counter's timeline → (process, name of counter and series).
        samples: values so far.
    """

    stage: Stage
    args_member: str = "args"
    owners: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    samples: int = 0
    _series: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(self, block: EventBlock) -> None:
        """Stage the samples of counter events."""
        start, _, has_ts, _ = block.times_ns()
        code, known = block.keys("pid", "name", "id")
        event, keys, values = numbers_of(block.raw(self.args_member))
        lost = np.isnan(values) | ~has_ts[event]
        is_empty = np.ones(block.rows, np.bool_)
        is_empty[event] = False
        self._tell_lost(block, np.concatenate([event[lost], np.flatnonzero(is_empty)]))
        event, keys, values = event[~lost], keys.filter(pa.array(~lost)), values[~lost]
        if not len(event):
            return
        words = [_unescaped(word) for word in keys.dictionary.to_pylist()]
        pairs = code[event] * (len(words) + 1) + keys.indices.to_numpy(zero_copy_only=False)
        distinct, which = np.unique(pairs, return_inverse=True)
        timelines = np.array(
            [
                self._timeline(
                    int(pair) // (len(words) + 1), known, words[int(pair) % (len(words) + 1)]
                )
                for pair in distinct
            ],
            np.int32,
        )[which]
        is_kept = timelines >= 0
        self.samples += int(is_kept.sum())
        self.stage.add_counters(
            timeline=timelines[is_kept],
            timestamp_ns=start[event[is_kept]],
            value=values[is_kept],
        )

    def finish(self, parents: dict[str | None, int], processes: dict[str | None, str]) -> None:
        """Name all counters.

        Args:
            parents: process → number of its device's timeline, for those that are devices.
            processes: process → what it is called, where that has to be said.
        """
        for place, (number, (process, title)) in enumerate(self.owners.items()):
            prefix = processes.get(process, "")
            name = f"{prefix}: {title}" if prefix else title
            self.stage.timelines[number] = Timeline(
                "counter", name, parents.get(process), sort_order=(1 << 20) + place, unit="1"
            )

    def _timeline(self, code: int, known: list[tuple[Any, ...]], series: str) -> int:
        if (code, series) not in self._series:
            if len(self._series) >= _MOST_SERIES:
                self.stage.audit.add(
                    "too_many_counters",
                    "warning",
                    self.stage.label,
                    f"counters beyond the first {_MOST_SERIES:,} series were left out",
                    unreliable="these counters",
                    example=series,
                )
                return -1
            process, name, identity = known[code]
            title = f"{name or 'counter'}{f'[{identity}]' if identity is not None else ''}"
            title = f"{title} {series}" if series not in ("", "value", name) else title
            number = self.stage.timeline(
                ("counter", process, name, identity, series), Timeline("counter", title, unit="1")
            )
            self._series[code, series] = number
            self.owners[number] = (process, title)
        return self._series[code, series]

    def _tell_lost(self, block: EventBlock, events: Ints) -> None:
        if len(events):
            self.stage.audit.add(
                "unreadable_values",
                "note",
                self.stage.label,
                "counter events without numbers or a time, and those of their arguments that are no numbers, were left out",
                unreliable="these counters",
                count=len(events),
                example=str(block.texts("name")[int(events[0])].as_py()),
            )


def numbers_of(objects: pa.StringArray) -> tuple[NDArray[np.int64], pa.DictionaryArray, Any]:
    """The members of JSON objects whose values are numbers, or might be.

    Args:
        objects: texts that are valid JSON; null or no objects have no members.

    Returns:
        (row of the object, name of the member as it is written, value: NaN where it is no number). A number in quotes is one.
    """
    _, offsets_buffer, data_buffer = objects.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(objects) + 1, objects.offset * 4)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    found = _members(offsets, data, np.empty((0, 5), np.int64))
    places = np.empty((found, 5), np.int64)
    _members(offsets, data, places)
    names = _slices(data, places[:, 1], places[:, 2]).dictionary_encode()
    texts = pl.Series(_slices(data, places[:, 3], places[:, 4]))
    values = texts.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    values = np.where(np.isfinite(values), values, np.nan)
    return places[:, 0], names, values


def _slices(data: NDArray[np.uint8], begin: Ints, end: Ints) -> pa.StringArray:
    offsets = np.concatenate([[0], np.cumsum(end - begin)])
    out = _gather(data, begin, offsets)
    return pa.StringArray.from_buffers(
        len(begin), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)
    )


def _unescaped(name: str) -> str:
    return str(json.loads(f'"{name}"')) if "\\" in name else name


@compiled
def _gather(data: Any, begin: Any, offsets: Any) -> Any:
    out = np.empty(offsets[-1], np.uint8)
    for i in range(len(begin)):
        for k in range(offsets[i + 1] - offsets[i]):
            out[offsets[i] + k] = data[begin[i] + k]
    return out


@compiled
def _members(offsets: Any, data: Any, places: Any) -> Any:
    """How many members all objects have; row, begin and end of name and value of each go to ``places`` if it has room."""
    count = 0
    for row in range(len(offsets) - 1):
        i, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        depth, name, name_end, value = 0, np.int64(-1), np.int64(-1), np.int64(-1)
        while i < stop:
            c = data[i]
            begin = i
            if c == _QUOTE:
                i += 1
                while i < stop and data[i] != _QUOTE:
                    i += 2 if data[i] == _BACKSLASH else 1
                if depth == 1 and value < 0:
                    name, name_end = begin + 1, i
            elif c in (_OPEN, _OPEN_ARRAY):
                depth += 1
            elif c == _COLON and depth == 1 and value < 0:
                value = i + 1
            if c in (_COMMA, _CLOSE) and depth == 1:
                if value >= 0 and name >= 0:
                    if len(places):
                        _put_member(places, count, row, name, name_end, data, value, i)
                    count += 1
                name, value = np.int64(-1), np.int64(-1)
            if c in (_CLOSE, _CLOSE_ARRAY):
                depth -= 1
            i += 1
    return count


@compiled
def _put_member(
    places: Any, at: Any, row: Any, name: Any, name_end: Any, data: Any, begin: Any, end: Any
) -> None:
    """Write a member; spaces and quotes around its value are left out."""
    while begin < end and (data[begin] <= 32 or data[begin] == _QUOTE):
        begin += 1
    while end > begin and (data[end - 1] <= 32 or data[end - 1] == _QUOTE):
        end -= 1
    places[at, 0], places[at, 1], places[at, 2] = row, name, name_end
    places[at, 3], places[at, 4] = begin, end
