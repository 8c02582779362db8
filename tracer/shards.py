"""Which files hold the rows of a writer, and how is each opened: mapped if sealed, batch by batch if not?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.tracer.problems import Problem, error
from trnprof.tracer.schema import STREAMED, TABLES, WRITER_SHARD_BITS, Table
from trnprof.tracer.streams import FILE_MAGIC_BYTES, read_stream

_MAPPED = (*STREAMED, "ops")
"""Tables that may have millions of rows."""


@dataclass(frozen=True)
class Bases:
    """What the reader adds to a writer's local ids."""

    track: int = 0
    op: int = 0
    group: int = 0


@dataclass(frozen=True)
class Shard:
    """One file of one table of one writer.

    Attributes:
        table: name of the table.
        path: the file.
        writer: name of its writer.
        number: for events the global shard number (``event_id >> 40``), else the ordinal of the file.
        entry: the fragment's line for it; None for a stream that was never sealed.
        bases: what is added to its local ids.
        frame: its rows, ids rebased.
        is_mapped: whether ``frame`` scans the file itself (False: the batches that could be read).
    """

    table: str
    path: Path
    writer: str
    number: int
    entry: Mapping[str, Any] | None
    bases: Bases
    frame: pl.LazyFrame
    is_mapped: bool


_BASE_OF = {
    "events": {"track_id": "track", "op_id": "op"},
    "counters": {"track_id": "track"},
    "tracks": {"track_id": "track", "parent_id": "track", "replica_of": "track"},
    "ops": {"op_id": "op", "parent_id": "op", "group_id": "group"},
    "groups": {"group_id": "group"},
}


def empty_frame(table: Table) -> pl.DataFrame:
    """No rows, with the columns and types that a reader of ``table`` gets."""
    frame = pl.from_arrow(table.arrow.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame


def rebased(table: str, frame: pl.LazyFrame, bases: Bases) -> pl.LazyFrame:
    """The rows with the writer's bases added to its local ids."""
    shifts = [
        (pl.col(column) + pl.lit(getattr(bases, base), pl.UInt32)).alias(column)
        for column, base in _BASE_OF.get(table, {}).items()
        if getattr(bases, base)
    ]
    return frame.with_columns(shifts) if shifts else frame


def writer_files(
    root: Path, fragment: Mapping[str, Any]
) -> list[tuple[str, Path, Mapping[str, Any] | None]]:
    """Every file of a writer: (table, path, entry). Sealed ones as the fragment lists them, then streams not sealed yet."""
    listed = [(e["table"], root / e["file"], e) for e in fragment["shards"] if e["table"] in TABLES]
    if fragment["sealed"]:
        return listed
    done = {path.with_suffix(".arrows") for _, path, _ in listed}
    pattern = re.compile(re.escape(fragment["writer"]) + r"(?:-(\d+))?\.arrows")
    streams = []
    for table in TABLES:
        found = []
        for path in (root / table).glob("*.arrows"):
            match = pattern.fullmatch(path.name)
            if match and (match[1] is not None) == (table in STREAMED) and path not in done:
                found.append((int(match[1] or 0), path))
        streams += [(table, path, None) for _, path in sorted(found)]
    return listed + streams


def open_file(
    table: Table, path: Path, entry: Mapping[str, Any] | None
) -> tuple[pl.LazyFrame, bool, list[Problem]]:
    """The rows of one file, whether they are mapped from it, and what is wrong with it.

    A sealed file of a table in _MAPPED that is whole by its size and its footer is scanned lazily. Of anything else the whole
    batches are read, each checked against its checksum.
    """
    is_sealed = entry is not None and path.exists()
    if table.name in _MAPPED and is_sealed and not _why_not_mappable(table, path, entry or {}):
        return pl.scan_ipc(path, glob=False), True, []
    batches, problems = read_batches(table, path, entry)
    return _frame(table, batches), False, problems


def read_batches(
    table: Table, path: Path, entry: Mapping[str, Any] | None
) -> tuple[list[pa.RecordBatch], list[Problem]]:
    """The whole batches of one file, sealed or not, each checked against its checksum, and what is wrong with it."""
    if not path.exists():
        lost = entry["rows"] if entry else 0
        message = f"{path.name} is missing, though the fragment lists it: its {lost} rows are lost; restore it from a copy"
        return [], [error("missing_file", str(path), message, max(1, lost))]
    if entry is None:
        return read_stream(path, table)
    batches, found = read_stream(path, table, FILE_MAGIC_BYTES)
    reason = _why_not_mappable(table, path, entry)
    corrupt = [p for p in found if p.kind == "corrupt_batch"]
    if reason is None and not corrupt:
        return batches, []
    rows = sum(batch.num_rows for batch in batches)
    reason = reason or "is damaged"
    message = f"{path.name} {reason}: {rows} of {entry['rows']} rows could be read; restore it from a copy"
    return batches, [error("damaged_file", str(path), message, max(1, entry["rows"] - rows))]


def reread(shard: Shard) -> pl.LazyFrame:
    """The rows of a shard in batches that match their checksum, ids rebased."""
    batches, _ = read_batches(TABLES[shard.table], shard.path, shard.entry)
    return rebased(shard.table, _frame(TABLES[shard.table], batches), shard.bases)


def shard_number(fragment: Mapping[str, Any], table: str, path: Path) -> int:
    """The number of a shard file: global for events, else the ordinal in its name (0 for small tables)."""
    if table not in STREAMED:
        return 0
    ordinal = int(path.stem.rpartition("-")[2])
    first = int(fragment["number"]) << WRITER_SHARD_BITS
    return first + ordinal if table == "events" else ordinal


def _frame(table: Table, batches: list[pa.RecordBatch]) -> pl.LazyFrame:
    if not batches:
        return empty_frame(table).lazy()
    rows = [pa.RecordBatch.from_arrays(b.columns, schema=table.arrow) for b in batches]
    frame = pl.from_arrow(pa.Table.from_batches(rows))
    assert isinstance(frame, pl.DataFrame)
    return frame.lazy()


def _why_not_mappable(table: Table, path: Path, entry: Mapping[str, Any]) -> str | None:
    size = path.stat().st_size
    if size != entry["bytes"]:
        verb = "is truncated" if size < entry["bytes"] else "has grown"
        return f"{verb} ({size} bytes, sealed with {entry['bytes']})"
    try:
        with pa.memory_map(str(path)) as source:
            schema = ipc.open_file(source).schema
        for field in (schema, *schema):
            for key, value in (field.metadata or {}).items():
                key.decode(), value.decode()  # polars panics where this raises
    except (pa.ArrowException, OSError, UnicodeDecodeError) as failure:
        return f"is damaged ({str(failure).splitlines()[0]})"
    if not schema.equals(table.arrow, check_metadata=False):
        return f"does not have the columns of table {table.name}"
    return None
