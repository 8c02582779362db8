"""What do the Parquet tables of one Neuron Explorer profile hold? Read in blocks, whatever is missing, split or of another type.

Blocks are cut by the row sizes that the files' footers state, so that about BLOCK_BYTES are in memory; nothing else is held.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.coerce import coerced
from trnprof.tracer.formats.neuron.schema import (
    KNOWN_MAJOR,
    Field,
    joined_schema,
    own_schema,
    packaged_schema,
)
from trnprof.tracer.ingest.audit import Audit

BLOCK_BYTES: Final = 32 << 20
BLOCK_ROWS: Final = 131_072
MAX_SMALL_ROWS: Final = 2_000_000
"""Rows of a table that is held whole; what lies beyond is left out, with a finding."""
_FILE: Final = re.compile(
    r"(?P<table>[A-Za-z][A-Za-z0-9]*)(?:_(?P<part>\d{1,6}))?\.parquet", re.IGNORECASE
)


def table_of(file_name: str) -> tuple[str, int] | None:
    """Table and part (-1 for a table in one file) that a file holds, by its name; None for other files."""
    matched = _FILE.fullmatch(file_name)
    if matched is None:
        return None
    known = {name.lower(): name for name in packaged_schema()}
    name = matched["table"]
    return known.get(name.lower(), name), -1 if matched["part"] is None else int(matched["part"])


class ProfileTables:
    """The tables of one profile: the Parquet files of a directory."""

    def __init__(self, folder: Path, label: str, audit: Audit) -> None:
        """Look which tables there are, and which schema the profile states.

        Args:
            folder: the directory.
            label: of the source, for findings.
            audit: where doubts go.

        Raises:
            ProfileError: there is no table that can be read.
        """
        self.label, self.audit = label, audit
        self._files: dict[str, list[Path]] = {}
        self._told: set[tuple[str, str]] = set()
        self._schema = packaged_schema()
        for path in sorted(folder.iterdir()):
            found = table_of(path.name) if path.is_file() else None
            if found is not None:
                self._files.setdefault(found[0], []).append(path)
        for table, paths in self._files.items():
            self._check_parts(table, paths)
        self._metadata = {
            table: self._readable(table, paths) for table, paths in self._files.items()
        }
        if not any(self._metadata.values()):
            raise ProfileError(f"{label}: none of its Parquet tables can be read; export it again")
        self.has_own_schema = self.has("SchemaFields")
        if self.has_own_schema:
            self._schema = joined_schema(
                own_schema(self.frame("SchemaFields").iter_rows(named=True))
            )
        self._tell_unknown()

    def names(self) -> list[str]:
        """The tables that have rows."""
        return sorted(table for table in self._metadata if self.rows(table))

    def has(self, table: str) -> bool:
        """Whether a table is there and has rows."""
        return self.rows(table) > 0

    def rows(self, table: str) -> int:
        """Rows of a table, 0 if there is none."""
        return sum(each.num_rows for _, each in self._metadata.get(table, []))

    def fields(self, table: str) -> dict[str, Field]:
        """What is known of the fields of a table: by the profile's own words, else by schema 7.4.0."""
        return dict(self._schema.get(table, {}))

    def stored(self, table: str) -> list[str]:
        """The columns that the files of a table have."""
        names: dict[str, None] = {}
        for _, metadata in self._metadata.get(table, []):
            names.update(dict.fromkeys(metadata.schema.to_arrow_schema().names))
        return list(names)

    def batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Blocks of rows in stored order.

        Args:
            table: its name; nothing is yielded if it is not there.
            columns: those wanted; None for all that its schema or its files have.

        Yields:
            Frames with every wanted column, of the type that the schema says; null where a file has no such column. Columns
            that no schema knows come as they are stored.

        Raises:
            ProfileError: a column of times holds no times.
        """
        fields = self.fields(table)
        wanted = (
            list(columns)
            if columns is not None
            else [*dict.fromkeys([*fields, *self.stored(table)])]
        )
        self._tell_missing(table, wanted)
        for path, metadata in self._metadata.get(table, []):
            yield from self._file_batches(table, path, metadata, wanted)

    def frame(self, table: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """A whole small table, at most MAX_SMALL_ROWS rows; without rows if it is not there."""
        parts: list[pl.DataFrame] = []
        count = 0
        for part in self.batches(table, columns):
            if count + part.height > MAX_SMALL_ROWS:
                self.audit.add(
                    "too_many_rows",
                    "warning",
                    f"{self.label}: {table}",
                    f"more than {MAX_SMALL_ROWS:,} rows; those beyond were left out",
                    unreliable="names and places in the program",
                )
                break
            parts.append(part)
            count += part.height
        if parts:
            return pl.concat(parts, how="diagonal_relaxed")
        fields = self.fields(table)
        names = columns if columns is not None else list(fields)
        return pl.DataFrame(
            schema={n: fields[n].dtype if n in fields else pl.String() for n in names}
        )

    def _file_batches(
        self, table: str, path: Path, metadata: pq.FileMetaData, wanted: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        stored = metadata.schema.to_arrow_schema().names
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES * metadata.num_rows // max(size, 1)))
        done = 0
        try:
            with pq.ParquetFile(path, memory_map=True) as file:
                chosen = [name for name in stored if name in set(wanted)]
                for batch in file.iter_batches(rows, columns=chosen, use_threads=False):
                    done += batch.num_rows
                    yield self._typed(table, batch, wanted)
        except (pa.ArrowException, OSError) as error:
            self.audit.add(
                "unreadable_table",
                "error",
                f"{self.label}: {path.name}",
                f"damaged after row {done}: {_reason(error)}; the rows before it were kept",
                unreliable=f"everything that rests on table {table}",
                count=max(1, metadata.num_rows - done),
            )

    def _typed(self, table: str, batch: pa.RecordBatch, wanted: Sequence[str]) -> pl.DataFrame:
        raw = _to_polars(batch)
        fields = self.fields(table)
        columns: list[pl.Series] = []
        for name in wanted:
            field = fields.get(name)
            if name not in raw.columns:
                dtype = field.dtype if field is not None else pl.String()
                columns.append(pl.Series(name, [None], dtype).new_from_index(0, raw.height))
            elif field is None:
                columns.append(raw[name])
            else:
                where = f"{self.label}: table {table}, column {name}"
                columns.append(coerced(raw[name], field, where, self.audit).alias(name))
        return pl.DataFrame(columns)

    def _readable(self, table: str, paths: Sequence[Path]) -> list[tuple[Path, pq.FileMetaData]]:
        found = []
        for path in paths:
            try:
                with pq.ParquetFile(path, memory_map=True) as file:
                    found.append((path, file.metadata))
            except (pa.ArrowException, OSError) as error:
                self.audit.add(
                    "unreadable_table",
                    "error",
                    f"{self.label}: {path.name}",
                    f"no readable Parquet file ({_reason(error)}); it was left out",
                    unreliable=f"everything that rests on table {table}",
                )
        return found

    def _check_parts(self, table: str, paths: list[Path]) -> None:
        part = {path: table_of(path.name) for path in paths}
        paths.sort(key=lambda path: (part[path] or ("", 0))[1])
        numbers = [n for n in ((part[path] or ("", 0))[1] for path in paths) if n >= 0]
        missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
        self.audit.add(
            "missing_part",
            "error",
            f"{self.label}: {table}",
            "parts of a split table are missing; the others were read",
            unreliable=f"everything that rests on table {table}",
            count=len(missing),
            example=f"{table}_{missing[0]}.parquet" if missing else "",
        )

    def _tell_missing(self, table: str, wanted: Sequence[str]) -> None:
        """Once a table: required fields that its files do not have."""
        stored, fields = set(self.stored(table)), self.fields(table)
        if not stored:
            return
        for name in wanted:
            is_missing = name in fields and fields[name].is_required and name not in stored
            if is_missing and (table, name) not in self._told:
                self._told.add((table, name))
                self.audit.add(
                    "missing_field",
                    "note",
                    f"{self.label}: {table}",
                    "fields that the schema requires are not there; they are null",
                    example=name,
                )

    def _tell_unknown(self) -> None:
        unknown = [t for t in self.names() if t not in self._schema]
        self.audit.add(
            "unknown_table",
            "note",
            self.label,
            "tables that neither the profile's own schema nor 7.4.0 knows were not read",
            count=len(unknown),
            example=unknown[0] if unknown else "",
        )
        for table in self.names():
            new = [n for n in self.stored(table) if n not in self.fields(table)]
            if table in self._schema and new:
                message = f"fields that no schema from {KNOWN_MAJOR}.x knows are kept in attributes where their row becomes an event"
                self.audit.add(
                    "unknown_field",
                    "note",
                    f"{self.label}: {table}",
                    message,
                    count=len(new),
                    example=new[0],
                )


def _to_polars(batch: pa.RecordBatch) -> pl.DataFrame:
    """As polars has it; a column that polars has no type for becomes text, or null if it cannot."""
    try:
        frame = pl.from_arrow(batch)
        if isinstance(frame, pl.DataFrame):
            return frame
    except (pl.exceptions.PolarsError, pa.ArrowException, ValueError, TypeError):
        pass
    return pl.DataFrame([_column(name, batch[name]) for name in batch.schema.names])


def _column(name: str, values: pa.Array) -> pl.Series:
    try:
        return pl.Series(name, values)
    except (pl.exceptions.PolarsError, pa.ArrowException, ValueError, TypeError):
        try:
            return pl.Series(name, values.cast(pa.string()))
        except pa.ArrowException:
            return pl.Series(name, [None] * len(values), pl.String)


def _reason(error: Any) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
