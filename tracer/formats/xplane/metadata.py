"""What do the metadata of a plane say of its events: names, categories, operations, figures?

Everything here is looked at once a metadata entry, not once an event.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.formats.trace_json.value_tokens import Vocabulary
from trnprof.tracer.formats.xplane.file import EventMetadata, Plane, Value
from trnprof.tracer.formats.xplane.names import (
    device_category,
    is_control_flow,
    memories,
    number_of,
    operands,
    source_line,
)
from trnprof.tracer.schema import CATEGORIES, MEMORIES

FLOPS: Final = ("flops", "hlo_flops")
BYTES: Final = ("bytes_accessed", "bytes_transferred", "allocation_bytes")
_IN_OPS: Final = ("tf_op", "source", "model_flops", "shape_with_layout")
_OP_COLUMNS: Final = (
    "op_id",
    "kind",
    "name",
    "module_path",
    "source_file",
    "source_line",
    "input_shapes",
    "dtypes",
    "model_flops",
    "logical_bytes",
    "out_bytes",
)
MEGASCALE: Final = "CUSTOM:Megascale"
"""Part of the name of the plane of collectives between slices, over the data-centre network."""
_MAX_TEXT: Final = 500
"""Longer texts of a metadata entry are not repeated on each of its events."""


@dataclass
class Operations:
    """Rows of ``ops``: each operation of a program once, on however many devices it ran."""

    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(default_factory=lambda: {c: [] for c in _OP_COLUMNS})

    def number(self, key: tuple[Any, ...], row: dict[str, Any]) -> int:
        """The ``op_id`` of an operation; its row is taken when the key is new."""
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.rows["op_id"].append(self.numbers[key])
            for column in _OP_COLUMNS[1:]:
                self.rows[column].append(row.get(column))
        return self.numbers[key]


class Words:
    """Strings of a plane by their id, as dense numbers."""

    def __init__(self, by_id: dict[int, str]) -> None:
        self._by_id = dict(by_id)
        self._sort()

    def _sort(self) -> None:
        self._ids = np.array(sorted(self._by_id), np.int64)
        self.words = [self._by_id[i] for i in self._ids.tolist()]
        self._numbers = {word: i for i, word in enumerate(self.words)}
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The strings as JSON; made once for all blocks of a plane."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary.of(self.words)
        return self._vocabulary

    def dense(self, ids: Ints, what: str) -> Ints:
        """The number of each id; one that nothing describes becomes a word of its own, such as ``stat 17``."""
        found = np.searchsorted(self._ids, ids)
        inside = np.minimum(found, max(len(self._ids) - 1, 0))
        known = self._ids[inside] == ids if len(self._ids) else np.zeros(len(ids), np.bool_)
        if not known.all():
            for each in np.unique(ids[~known]).tolist():
                self._by_id[each] = f"{what} {each}"
            self._sort()
            found = np.searchsorted(self._ids, ids)
        return found

    def number(self, word: str) -> int:
        """The number of a word, -1 if there is none."""
        return self._numbers.get(word, -1)


@dataclass(frozen=True)
class EventTable:
    """Columns over the metadata entries of a plane, sorted by id; one more row, the last, for ids that nothing describes.

    Attributes:
        ids: of the entries.
        names: of the events.
        category: index into CATEGORIES.
        op: ``op_id``, -1 for none.
        flops, bytes: NaN or -1 where unknown.
        dtype: name or None.
        source_memory, target_memory: index into MEMORIES, -1 for none.
        encloses: whether it is control flow around the operations that do the work.
        fragment: members of JSON objects, without braces; None for none.
    """

    ids: Ints
    names: list[str]
    category: NDArray[np.int8]
    op: Ints
    flops: NDArray[np.float64]
    bytes: Ints
    dtype: list[str | None]
    source_memory: NDArray[np.int8]
    target_memory: NDArray[np.int8]
    encloses: NDArray[np.bool_]
    fragment: list[str | None]

    @cached_property
    def fragments(self) -> pl.Series | None:
        """``fragment`` as a column; None if nothing has one."""
        return pl.Series(self.fragment, dtype=pl.String) if any(self.fragment) else None

    def rows(self, ids: Ints) -> Ints:
        """The row of each id."""
        found = np.searchsorted(self.ids, ids)
        inside = np.minimum(found, max(len(self.ids) - 1, 0))
        known = self.ids[inside] == ids if len(self.ids) else np.zeros(len(ids), np.bool_)
        return np.where(known, inside, len(self.ids))


def event_table(plane: Plane, operations: Operations, *, is_device: bool) -> EventTable:
    """The table of a plane; operations of devices are added to ``operations``."""
    ids = sorted(plane.metadata)
    entries = [plane.metadata[i] for i in ids]
    entries.append(EventMetadata("", "", {}))
    names = [e.display_name or e.name for e in entries]
    columns = [_device(e, operations) if is_device else _host(e, plane) for e in entries]
    return EventTable(
        ids=np.array(ids, np.int64),
        names=names,
        category=np.array([CATEGORIES.index(c.category) for c in columns], np.int8),
        op=np.array([c.op for c in columns], np.int64),
        flops=np.array([c.flops for c in columns], np.float64),
        bytes=np.array([c.bytes for c in columns], np.int64),
        dtype=[c.dtype for c in columns],
        source_memory=np.array([c.source_memory for c in columns], np.int8),
        target_memory=np.array([c.target_memory for c in columns], np.int8),
        encloses=np.array([c.encloses for c in columns], np.bool_),
        fragment=[_fragment(e, is_device) for e in entries],
    )


@dataclass(frozen=True)
class _Columns:
    category: str
    op: int = -1
    flops: float = float("nan")
    bytes: int = -1
    dtype: str | None = None
    source_memory: int = -1
    target_memory: int = -1
    encloses: bool = False


def _host(entry: EventMetadata, plane: Plane) -> _Columns:
    if MEGASCALE in plane.name:
        return _Columns("collective")
    is_memory = entry.name in ("MemoryAllocation", "MemoryDeallocation")
    return _Columns("memory" if is_memory else "host")


def _device(entry: EventMetadata, operations: Operations) -> _Columns:
    stats, name = entry.stats, entry.display_name or entry.name
    hlo_category = str(stats.get("hlo_category", ""))
    category = device_category(name, hlo_category)
    control = is_control_flow(name, hlo_category)
    flops, size = number_of(stats, *FLOPS), number_of(stats, *BYTES)
    places = memories(name)
    shapes = operands(entry.name, hlo_category)
    row = {
        "kind": "collective" if category == "collective" else "kernel",
        "name": name,
        "module_path": stats.get("tf_op"),
        "input_shapes": shapes.shapes,
        "dtypes": shapes.dtypes,
        "model_flops": number_of(stats, "model_flops"),
        "logical_bytes": _whole(size),
        "out_bytes": _whole(size) if category == "collective" else None,
    }
    row["source_file"], row["source_line"] = source_line(stats.get("source"))
    is_operation = "program_id" in stats or "hlo_category" in stats or "tf_op" in stats
    op = operations.number((stats.get("program_id"), entry.name), row) if is_operation else -1
    return _Columns(
        category,
        op,
        float("nan") if flops is None or control else float(flops),
        -1 if size is None or control else _whole(size) or 0,
        shapes.dtype,
        -1 if places[0] is None else MEMORIES.index(places[0]),
        -1 if places[1] is None else MEMORIES.index(places[1]),
        control,
    )


def _whole(value: float | int | None) -> int | None:
    return None if value is None or not 0 <= value < 2**63 else int(value)


def _fragment(entry: EventMetadata, is_device: bool) -> str | None:
    kept: dict[str, Value] = {
        key: value
        for key, value in entry.stats.items()
        if not isinstance(value, bytes)
        and not (isinstance(value, str) and len(value) > _MAX_TEXT)
        and not (is_device and key in _IN_OPS)
    }
    finite = {k: str(v) if isinstance(v, float) and v - v != 0 else v for k, v in kept.items()}
    return json.dumps(finite, ensure_ascii=False)[1:-1] if finite else None


def from_table(values: Sequence[str | None], rows: Ints) -> pa.DictionaryArray:
    """Strings of a table by row, null where it has none."""
    array = pa.array(values, pa.string())
    missing = np.array([v is None for v in values], np.bool_)[rows]
    indices = pa.array(rows.astype(np.int32), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(
        indices, array.fill_null("") if array.null_count else array
    )
