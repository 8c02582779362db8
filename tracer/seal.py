"""How do the streams of a recording become sorted files that readers can map into memory?

A sealed events shard is sorted by (track_id, start_ns, longest first, event_id) and comes with an index from track to row range
and, unless row = sequence, one from sequence to row. Flows are sorted by (target, source), counters by (track, time).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from numpy.typing import NDArray
from zlib_ng import zlib_ng as zlib

from trnprof.tracer.batches import normalized, one_table
from trnprof.tracer.files import writing, written_beside
from trnprof.tracer.schema import SEQUENCE_BITS, TABLES, Table
from trnprof.tracer.streams import batch_metadata

BATCH_ROWS: Final = 1 << 17
"""Rows a batch of a sealed file (the last one may have fewer): row r lies in batch r >> 17."""
NO_ROW: Final = 0xFFFFFFFF
"""In a rows index: a sequence that was reserved and never written."""
OPEN_NS: Final = np.iinfo(np.int64).max
"""Stands for the duration of an event without one when sorting: longest of all."""

_ROWS_SCHEMA: Final = pa.schema([pa.field("row", pa.uint32(), False)])
_TRACKS_SCHEMA: Final = pa.schema(
    [
        pa.field("track_id", pa.uint32(), False),
        pa.field("first_row", pa.uint32(), False),
        pa.field("end_row", pa.uint32(), False),
        pa.field("max_duration_ns", pa.int64(), False),
    ]
)


@dataclass(frozen=True)
class SealedShard:
    """What sealing one file gave.

    Attributes:
        entry: its line in the fragment.
        track_ids: tracks with events in it (events only).
        max_duration_ns: longest event of each of them.
    """

    entry: dict[str, Any]
    track_ids: NDArray[np.uint32]
    max_duration_ns: NDArray[np.int64]


def seal_shard(
    root: Path,
    file: str,
    table: Table,
    batches: Sequence[pa.RecordBatch],
    compression: str | None = None,
) -> SealedShard:
    """Write the rows of some batches as one sealed file, sorted, with its indexes.

    Args:
        root: the trace directory.
        file: path under it, ending in ``.arrow``.
        table: the table the rows belong to.
        batches: the rows, in any order.
        compression: None, or ``zstd``.

    Returns:
        The fragment's entry, and for events the longest duration by track.

    Raises:
        WriteError: it could not be written; nothing is left then.
        ColumnError: more distinct values than a dictionary column of one file can have.
    """
    rows = one_table(table, batches)
    order = _ORDERS[table.name](rows) if table.name in _ORDERS else None
    entry: dict[str, Any] = {"table": table.name, "file": file, "rows": rows.num_rows}
    entry |= _time_range(table, rows)
    entry |= write_sealed(root / file, rows.schema, _in_order(rows, order), compression)
    track_ids, longest = np.empty(0, np.uint32), np.empty(0, np.int64)
    if table.name == "events":
        keys = rows.select(["event_id", "track_id", "duration_ns"])
        keys = keys if order is None else keys.take(pa.array(order))
        entry |= _write_rows_index(root, file, keys, compression)
        index = _track_index(keys)
        entry |= _write_index(root, file, "tracks", index, compression)
        track_ids = index["track_id"].to_numpy()
        longest = index["max_duration_ns"].to_numpy()
    return SealedShard(entry, track_ids, longest)


def _in_order(rows: pa.Table, order: NDArray[np.int64] | None) -> Iterator[pa.RecordBatch]:
    """The rows in batches of BATCH_ROWS, so that only one batch of gathered rows is in memory."""
    if order is None:
        for first in range(0, rows.num_rows, BATCH_ROWS):
            yield pa.RecordBatch.from_arrays(
                [_combined(column.slice(first, BATCH_ROWS)) for column in rows.columns],
                schema=rows.schema,
            )
        return
    sources = [_gatherable(column) for column in rows.columns]
    for first in range(0, rows.num_rows, BATCH_ROWS):
        indices = order[first : first + BATCH_ROWS]
        yield pa.RecordBatch.from_arrays(
            [_gathered(source, indices) for source in sources], schema=rows.schema
        )


def _gatherable(column: pa.ChunkedArray) -> pa.Array | pl.Series:
    """Texts go to Polars: it gathers references to them, in a quarter of the time in which Arrow copies them one by one."""
    is_text = pa.types.is_string(column.type) and column.null_count < len(column)
    return pl.Series(column) if is_text else _combined(column)


def _gathered(source: pa.Array | pl.Series, indices: NDArray[np.int64]) -> pa.Array:
    if isinstance(source, pl.Series):
        texts = source.gather(indices).to_arrow(compat_level=pl.CompatLevel.oldest())
        return texts.cast(pa.string())
    if source.null_count == len(source):
        return source.slice(0, len(indices))
    return pc.take(source, pa.array(indices), boundscheck=False)


def _combined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def write_sealed(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str | None
) -> dict[str, int]:
    """Write an IPC file beside, make it durable and rename it into place.

    Returns:
        Its size and CRC-32 under ``bytes`` and ``crc32``.

    Raises:
        WriteError: it could not be written.
    """
    options = ipc.IpcWriteOptions(compression=compression, unify_dictionaries=False)
    with writing(path):
        path.parent.mkdir(exist_ok=True)
    with written_beside(path) as beside:
        with beside.open("wb") as file:
            summed = _Summed(file)
            with ipc.new_file(pa.PythonFile(summed, "w"), schema, options=options) as writer:
                for batch in batches:
                    whole = normalized(batch)
                    writer.write_batch(whole, custom_metadata=batch_metadata(whole))
                    del batch, whole  # or they are in memory while the next one is gathered
        return {"bytes": summed.bytes, "crc32": summed.crc32}


class _Summed:
    """A file being written, with the size and CRC-32 of what it has."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = self.crc32 = 0

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += view.nbytes
        return self._file.write(view)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


def file_crc32(path: Path) -> int:
    """CRC-32 of a whole file, read 4 MiB at a time."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def with_max_durations(
    tracks: Sequence[pa.RecordBatch], longest_ns: dict[int, int]
) -> list[pa.RecordBatch]:
    """The tracks with ``max_duration_ns`` of those that have events filled in."""
    table = TABLES["tracks"]
    place = table.names.index("max_duration_ns")
    filled = []
    for batch in tracks:
        values = [
            longest_ns.get(track, known)
            for track, known in zip(
                batch["track_id"].to_pylist(), batch["max_duration_ns"].to_pylist(), strict=True
            )
        ]
        columns = [*batch.columns]
        columns[place] = pa.array(values, pa.int64())
        filled.append(pa.RecordBatch.from_arrays(columns, schema=table.arrow))
    return filled


def event_order(
    track_id: NDArray[np.uint32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    event_id: NDArray[np.uint64],
) -> NDArray[np.int64] | None:
    """The order by (track, start, longest first, event_id); None if the rows have it already.

    Track and start are packed into one integer key where they fit (nearly always), because one stable sort of integers is
    several times as fast as a lexicographic one; only rows that tie are looked at again.
    """
    if len(track_id) < 2:
        return None
    order = _packed_order(track_id, start_ns)
    if order is None:
        order = np.lexsort((event_id, -duration_ns, start_ns, track_id))
    else:
        _order_ties(track_id, start_ns, duration_ns, event_id, order)
    return None if np.array_equal(order, np.arange(len(order))) else order


def _packed_order(
    track_id: NDArray[np.uint32], start_ns: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    first, last = int(start_ns.min()), int(start_ns.max())
    bits = (last - first).bit_length()
    if bits + int(track_id.max()).bit_length() > 63:
        return None
    key = (track_id.astype(np.int64) << bits) | (start_ns - first)
    return np.argsort(key, kind="stable")


def _order_ties(
    track_id: NDArray[np.uint32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    event_id: NDArray[np.uint64],
    order: NDArray[np.int64],
) -> None:
    """Put rows of one track and start into order, in place: only they are sorted, and they stay in their places as a set."""
    track, start = track_id[order], start_ns[order]
    same = (start[1:] == start[:-1]) & (track[1:] == track[:-1])
    places = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
    rows = order[places]
    keys = (event_id[rows], -duration_ns[rows], start_ns[rows], track_id[rows])
    order[places] = rows[np.lexsort(keys)]


def _order_events(rows: pa.Table) -> NDArray[np.int64] | None:
    duration = pc.fill_null(rows["duration_ns"], pa.scalar(OPEN_NS, pa.int64()))
    return event_order(
        rows["track_id"].to_numpy(),
        rows["start_ns"].to_numpy(),
        duration.to_numpy(),
        rows["event_id"].to_numpy(),
    )


def _order_flows(rows: pa.Table) -> NDArray[np.int64]:
    return np.lexsort((rows["source_event"].to_numpy(), rows["target_event"].to_numpy()))


def _order_counters(rows: pa.Table) -> NDArray[np.int64]:
    return np.lexsort((rows["timestamp_ns"].to_numpy(), rows["track_id"].to_numpy()))


_ORDERS: Final = {"events": _order_events, "flows": _order_flows, "counters": _order_counters}


def _time_range(table: Table, rows: pa.Table) -> dict[str, int | None]:
    if table.name == "counters" and rows.num_rows:
        times = pc.min_max(rows["timestamp_ns"]).as_py()
        return {"start_ns": times["min"], "end_ns": times["max"]}
    if table.name == "events" and rows.num_rows:
        start = rows["start_ns"].to_numpy()
        end = start + pc.fill_null(rows["duration_ns"], 0).to_numpy()
        return {"start_ns": int(start.min()), "end_ns": int(end.max())}
    return {"start_ns": None, "end_ns": None}


def _write_rows_index(
    root: Path, file: str, rows: pa.Table, compression: str | None
) -> dict[str, Any]:
    sequence = (rows["event_id"].to_numpy() & np.uint64((1 << SEQUENCE_BITS) - 1)).astype(np.int64)
    if np.array_equal(sequence, np.arange(len(sequence))):
        return {"rows_index": None}
    row_of = np.full(int(sequence.max()) + 1, NO_ROW, np.uint32)
    row_of[sequence] = np.arange(len(sequence), dtype=np.uint32)
    index = pa.Table.from_arrays([pa.array(row_of)], schema=_ROWS_SCHEMA)
    return _write_index(root, file, "rows", index, compression)


def _write_index(
    root: Path, file: str, kind: str, index: pa.Table, compression: str | None
) -> dict[str, Any]:
    name = f"{file.removesuffix('.arrow')}.{kind}.arrow"
    batches = index.to_batches(max_chunksize=BATCH_ROWS)
    written = write_sealed(root / name, index.schema, batches, compression)
    return {f"{kind}_index": name, f"{kind}_index_crc32": written["crc32"]}


def _track_index(rows: pa.Table) -> pa.Table:
    track = rows["track_id"].to_numpy()
    duration = pc.fill_null(rows["duration_ns"], 0).to_numpy()
    first = np.flatnonzero(np.r_[True, track[1:] != track[:-1]]) if len(track) else np.empty(0, int)
    end = np.r_[first[1:], len(track)] if len(track) else first
    longest = np.maximum.reduceat(duration, first) if len(track) else np.empty(0, np.int64)
    arrays = [track[first], first.astype(np.uint32), end.astype(np.uint32), longest]
    return pa.Table.from_arrays([pa.array(a) for a in arrays], schema=_TRACKS_SCHEMA)
