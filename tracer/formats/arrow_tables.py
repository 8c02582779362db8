"""Which tables does a directory of Parquet or Arrow files have, and what are their rows?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from trnprof.tracer.formats.sqlite.tables import as_text
from trnprof.tracer.formats.tables import Bools, Rows
from trnprof.tracer.ingest.audit import Audit

ENDINGS: Final = (".parquet", ".arrow", ".arrows", ".feather")
_BLOCK_ROWS: Final = 1 << 17
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError)


class ArrowTables:
    """The tables of a directory, one file each, called by the file's name."""

    def __init__(self, directory: Path, label: str, audit: Audit) -> None:
        """List the directory; a file that cannot be opened is left out, with a finding.

        Args:
            directory: the directory.
            label: what people know it by.
            audit: where doubts go.
        """
        self.label = label
        self.audit = audit
        self._files: dict[str, Path] = {}
        self._columns: dict[str, tuple[str, ...]] = {}
        for path in sorted(directory.iterdir()):
            if path.suffix not in ENDINGS or not path.is_file():
                continue
            try:
                schema = _schema(path)
            except _DAMAGE as error:
                self._tell_damaged(path.stem, error)
                continue
            self._files.setdefault(path.stem, path)
            self._columns.setdefault(path.stem, tuple(schema.names))

    def names(self) -> Sequence[str]:
        """The tables there are."""
        return tuple(self._files)

    def columns(self, table: str) -> Sequence[str]:
        """The columns of a table, empty if there is no such table."""
        return self._columns.get(table, ())

    def rows(self, table: str) -> int:
        """Rows of a table."""
        if table not in self._files:
            return 0
        path = self._files[table]
        try:
            if path.suffix == ".parquet":
                return int(pq.ParquetFile(path).metadata.num_rows)
            return sum(batch.num_rows for batch in _batches(path, []))
        except _DAMAGE:
            return 0

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
        if table not in self._files:
            return
        known = self._columns[table]
        wanted = [c for c in dict.fromkeys((*ints, *reals, *texts, *blobs)) if c in known]
        where = f"{self.label}: {table}"
        try:
            for batch in _batches(self._files[table], wanted):
                numbers: dict[str, tuple[np.ndarray[Any, Any], Bools]] = {}
                words: dict[str, pa.Array] = {}
                for column in wanted:
                    array = _plain(batch[column])
                    if column in ints or column in reals:
                        numbers[column] = self._number(array, column in ints, f"{where}.{column}")
                    elif column in blobs:
                        words[column] = _binary(array)
                    else:
                        words[column] = as_text(_binary(array), self.audit, f"{where}.{column}")
                if batch.num_rows:
                    yield Rows(batch.num_rows, numbers, words)
        except _DAMAGE as error:
            self._tell_damaged(table, error)

    def _number(
        self, array: pa.Array, is_int: bool, where: str
    ) -> tuple[np.ndarray[Any, Any], Bools]:
        series = pl.Series(array)
        if series.dtype == pl.UInt64 and is_int:
            series = series.reinterpret(signed=True)
        if series.dtype in (pl.Datetime, pl.Duration):
            series = series.dt.cast_time_unit("ns").cast(pl.Int64)
        type_ = pl.Int64 if is_int else pl.Float64
        try:
            typed = series.cast(type_, strict=False)
        except pl.exceptions.PolarsError:  # lists, structs, …
            typed = pl.Series([None], dtype=type_).new_from_index(0, len(series))
        has = typed.is_not_null().to_numpy()
        self.audit.add(
            "unreadable_values",
            "warning",
            where,
            "values of another type than the column should have were taken as missing",
            unreliable=f"column {where.rpartition('.')[2]}",
            count=typed.null_count() - series.null_count(),
        )
        return typed.fill_null(0).to_numpy(), has

    def _tell_damaged(self, table: str, error: Exception) -> None:
        self.audit.add(
            "damaged_table",
            "error",
            f"{self.label}: {table}",
            f"cannot be read to its end ({str(error).splitlines()[0][:160]}); what lies before is imported",
            unreliable=f"everything that comes from {table}",
        )


def _schema(path: Path) -> pa.Schema:
    if path.suffix == ".parquet":
        return pq.read_schema(path)
    with _opened(path) as reader:
        return reader.schema


def _batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(_BLOCK_ROWS, columns=list(columns))
        return
    with _opened(path) as reader:
        is_file = isinstance(reader, ipc.RecordBatchFileReader)
        count = reader.num_record_batches if is_file else 0
        batches = (reader.get_batch(i) for i in range(count)) if is_file else reader
        for batch in batches:
            chosen = batch.select(list(columns)) if columns else batch
            for first in range(0, max(batch.num_rows, 1), _BLOCK_ROWS):
                yield chosen.slice(first, _BLOCK_ROWS)


def _opened(path: Path) -> Any:
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    open_: Callable[[Any], Any] = ipc.open_file if is_file else ipc.open_stream
    return open_(pa.memory_map(str(path)))


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _binary(array: pa.Array) -> pa.Array:
    """Text or bytes as bytes; numbers as their text."""
    if pa.types.is_string(array.type):
        return array.view(pa.binary())
    if pa.types.is_binary(array.type):
        return array
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.large_binary()).cast(pa.binary())
    return array.cast(pa.string()).view(pa.binary())
