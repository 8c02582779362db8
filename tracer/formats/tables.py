"""How do formats that are made of tables read them, whatever the container is?

A profile of tables (an SQLite file, a directory of Parquet or Arrow files) is read table by table, in blocks of rows, column by column.
A table or column that is not there reads as empty, because profilers make tables only for what they saw, and columns come and go with versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.ingest.audit import Audit

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MAX_SMALL_ROWS: Final = 4_000_000
"""Rows of a table that is held whole (names, processes, …); what lies beyond is left out, with a finding."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a table.

    Attributes:
        count: rows.
        numbers: column → (values, which are not null), of the columns read as integers (int64) or reals (float64).
        words: column → Arrow string array, of the columns read as text; binary array, of those read as bytes.
    """

    count: int
    numbers: Mapping[str, tuple[NDArray[Any], Bools]] = field(default_factory=dict)
    words: Mapping[str, pa.Array] = field(default_factory=dict)

    def ints(self, column: str, default: int = 0) -> Ints:
        """The integers of a column, ``default`` where it is null or absent."""
        if column not in self.numbers:
            return np.full(self.count, default, np.int64)
        values, valid = self.numbers[column]
        return values if valid.all() else np.where(valid, values, default)

    def reals(self, column: str) -> NDArray[np.float64]:
        """The reals of a column, NaN where it is null or absent."""
        if column not in self.numbers:
            return np.full(self.count, np.nan)
        values, valid = self.numbers[column]
        return np.where(valid, values.astype(np.float64, copy=False), np.nan)

    def has(self, column: str) -> Bools:
        """Where a column is not null."""
        if column in self.numbers:
            return self.numbers[column][1]
        if column in self.words:
            return np.asarray(self.words[column].is_valid())
        return np.zeros(self.count, np.bool_)

    def text(self, column: str) -> pa.Array:
        """The texts of a column, nulls where it is absent."""
        return self.words[column] if column in self.words else pa.nulls(self.count, pa.string())

    def list(self, column: str) -> list[Any]:
        """The values of a column as Python objects, None for nulls: for small tables."""
        if column in self.words:
            return list(self.words[column].to_pylist())
        if column not in self.numbers:
            return [None] * self.count
        values, valid = self.numbers[column]
        return [v if ok else None for v, ok in zip(values.tolist(), valid.tolist(), strict=True)]


class Tables(Protocol):
    """The tables of one profile.

    Attributes:
        label: of the source, for messages.
        audit: where doubts go.
    """

    label: str
    audit: Audit

    def names(self) -> Sequence[str]:
        """The tables there are."""
        ...

    def columns(self, table: str) -> Sequence[str]:
        """The columns of a table, empty if there is no such table."""
        ...

    def scan(
        self,
        table: str,
        *,
        ints: Sequence[str] = (),
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
    ) -> Iterator[Rows]:
        """Blocks of rows in stored order, with the columns of those named that exist; nothing if there is no such table."""
        ...

    def rows(self, table: str) -> int:
        """About how many rows a table has, without reading them all."""
        ...


def read_small(
    tables: Tables, table: str, *, ints: Sequence[str] = (), texts: Sequence[str] = ()
) -> Rows:
    """A whole table, at most MAX_SMALL_ROWS rows."""
    blocks: list[Rows] = []
    count = 0
    for block in tables.scan(table, ints=ints, texts=texts):
        if count + block.count > MAX_SMALL_ROWS:
            tables.audit.add(
                "too_many_rows",
                "warning",
                f"{tables.label}: {table}",
                f"more than {MAX_SMALL_ROWS:,} rows; those beyond were left out",
                unreliable="names",
            )
            break
        blocks.append(block)
        count += block.count
    return _joined(blocks, count)


def _joined(blocks: Sequence[Rows], count: int) -> Rows:
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:
        return Rows(0)
    numbers = {
        name: (
            np.concatenate([b.numbers[name][0] for b in blocks]),
            np.concatenate([b.numbers[name][1] for b in blocks]),
        )
        for name in blocks[0].numbers
    }
    words = {name: pa.concat_arrays([b.words[name] for b in blocks]) for name in blocks[0].words}
    return Rows(count, numbers, words)
