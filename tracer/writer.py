"""How does one process write its part of a trace?

Order and time: rows are kept until ``flush_rows`` rows or ``flush_seconds`` have gathered, then every table is written, those
that others refer to first, so that a killed recording has the tracks and operations of its events. A row lies in the shard that
its id names. A shard is left for the next one when the next batch (or reservation) does not fit, never within a batch: a
writer that appends in order of time, batch by batch (the emulator: step by step), gets shards that do not overlap in
time. Nothing enforces it, so readers go by the time range that the fragment gives for each shard.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.batches import ColumnError, to_batch
from trnprof.tracer.errors import TrnprofError, WriteError
from trnprof.tracer.files import writing
from trnprof.tracer.manifest import FRAGMENTS, Clock, claim, new_fragment, write_fragment
from trnprof.tracer.schema import (
    COUNTERS,
    EVENTS,
    FLOWS,
    MAX_SHARD_ROWS,
    OPS,
    PEAKS,
    SEQUENCE_BITS,
    TABLES,
    WRITER_SHARD_BITS,
    Table,
)
from trnprof.tracer.seal import seal_shard, with_max_durations, write_sealed
from trnprof.tracer.streams import BatchStream, read_stream

__all__ = ["Clock", "TraceWriter"]

_SMALL = ("tracks", "groups", "ops", "steps")
"""In the order in which they are flushed."""
_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class _Rolling:
    """The shards of one streamed table of one writer; the last one is current."""

    def __init__(self, root: Path, writer: str, table: Table, batch_rows: int) -> None:
        self.streams: list[BatchStream] = []
        self.reserved: list[int] = []
        self._stem = root / table.name / writer
        self._table = table
        self._batch_rows = batch_rows

    def reserve(self, count: int, shard_rows: int) -> tuple[int, int]:
        """Room for ``count`` rows: (shard, first row in it)."""
        if not self.streams or self.reserved[-1] + count > shard_rows:
            self.close_complete()
            self._add_shard(shard_rows)
        first = self.reserved[-1]
        self.reserved[-1] += count
        return len(self.streams) - 1, first

    def _add_shard(self, shard_rows: int) -> None:
        number = len(self.streams)
        if number == 1 << WRITER_SHARD_BITS:
            raise WriteError(
                f"{self._stem}: more than {number} shards; raise shard_rows (now {shard_rows})"
            )
        path = self._stem.with_name(f"{self._stem.name}-{number}.arrows")
        self.streams.append(BatchStream(path, self._table, self._batch_rows))
        self.reserved.append(0)

    def close_complete(self) -> None:
        """Close the files that get no more rows."""
        for stream, reserved in zip(self.streams, self.reserved, strict=True):
            if stream.rows == reserved:
                stream.close()


class TraceWriter:
    """One writer of one trace directory; not thread-safe (one thread appends)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        writer: str,
        number: int | None = None,
        clocks: Sequence[Clock] = (),
        command: Sequence[str] | None = None,
        flush_rows: int = 65_536,
        flush_seconds: float = 0.5,
        shard_rows: int = MAX_SHARD_ROWS,
        reproducible: bool = False,
    ) -> None:
        """Create the directory if need be, and claim a number and the fragment.

        Args:
            path: the trace directory, ``NAME.trnprof``.
            writer: name of this writer, unique in the directory (``emulator``, ``rank0``, …).
            number: its number where somebody hands them out; None: $RANK if that is free, else the lowest free one.
            clocks: the clocks its tracks refer to.
            command: what is recorded, for the fragment.
            flush_rows: rows after which everything kept is written; also the most rows a batch on disk has.
            flush_seconds: seconds after which it is written at the next append.
            shard_rows: most rows a shard, at most MAX_SHARD_ROWS.
            reproducible: keep clock epochs and the command out of the fragment.

        Raises:
            WriteError: the directory is not writable, or the name is taken.
            ValueError: a limit is out of range.
        """
        if not 0 < shard_rows <= MAX_SHARD_ROWS or flush_rows < 1:
            raise ValueError(f"shard_rows must be 1..{MAX_SHARD_ROWS} and flush_rows at least 1")
        self.path = Path(path)
        if reproducible:
            clocks = [Clock(c.clock_id, c.kind) for c in clocks]
            command = None
        self.number = claim(self.path, writer, number)
        self._fragment = new_fragment(writer, self.number, clocks, command)
        self._flush_rows, self._flush_seconds = flush_rows, flush_seconds
        self._shard_rows = shard_rows
        self._small = {
            name: BatchStream(self.path / name / f"{writer}.arrows", TABLES[name], flush_rows)
            for name in _SMALL
        }
        self._rolling = {
            table.name: _Rolling(self.path, writer, table, flush_rows)
            for table in (EVENTS, COUNTERS, FLOWS)
        }
        self._longest_ns: dict[int, int] = {}
        self._unflushed_rows = 0
        self._last_flush = time.monotonic()
        self._state = "open"
        write_fragment(self.path, self._fragment)

    def add_tracks(self, rows: Mapping[str, Any]) -> None:
        """Append rows to ``tracks``: column name → values.

        Raises:
            ColumnError: the columns do not fit the table.
            WriteError: they could not be written.
        """
        self._add("tracks", rows)

    def add_ops(self, rows: Mapping[str, Any]) -> None:
        """Append rows to ``ops``; see ``add_tracks``."""
        self._add("ops", rows)

    def add_groups(self, rows: Mapping[str, Any]) -> None:
        """Append rows to ``groups``; see ``add_tracks``."""
        self._add("groups", rows)

    def add_steps(self, rows: Mapping[str, Any]) -> None:
        """Append rows to ``steps``; see ``add_tracks``."""
        self._add("steps", rows)

    def set_peaks(self, rows: Mapping[str, Any]) -> None:
        """Write ``peaks``, the one table that all writers share: the last one to write it decides.

        Raises:
            ColumnError: the columns do not fit the table.
            WriteError: it could not be written.
        """
        self._check_open()
        batch = to_batch(PEAKS, rows)
        write_sealed(self.path / "peaks.arrow", batch.schema, [batch], None)

    def reserve(self, count: int) -> NDArray[np.uint64]:
        """Ids for ``count`` events that are appended later, contiguous in one shard.

        Raises:
            ValueError: more than ``shard_rows``, or negative.
            WriteError: this writer's shard numbers are used up.
        """
        self._check_open()
        if not 0 <= count <= self._shard_rows:
            raise ValueError(
                f"reserve: count {count} is not within 0..{self._shard_rows} (shard_rows)"
            )
        shard, first = self._reserve(EVENTS, count)
        base = ((self.number << WRITER_SHARD_BITS) + shard) << SEQUENCE_BITS
        ids: NDArray[np.uint64] = np.arange(base + first, base + first + count, dtype=np.uint64)
        return ids

    def append_events(self, columns: Mapping[str, Any] | pa.RecordBatch) -> NDArray[np.uint64]:
        """Append events.

        Args:
            columns: column name → values, or a record batch. With ``event_id`` the ids must come from ``reserve``; without
                it they are assigned now, in order of rows, and if the rows need more than one shard, in order of start.

        Returns:
            The event ids, by row.

        Raises:
            ColumnError: the columns do not fit the table, or an id was not reserved here.
            WriteError: they could not be written.
        """
        self._check_open()
        given = _as_mapping(columns)
        if "event_id" in given:
            batch = self._to_batch(EVENTS, given)
            ids: NDArray[np.uint64] = batch["event_id"].to_numpy()
            shards = self._check_ids(ids)
        else:
            rows = len(next(iter(given.values()), ()))
            placeholder = np.zeros(rows, np.uint64)
            batch = self._to_batch(EVENTS, {"event_id": placeholder, **given})
            ids = self._assign(batch)
            batch = batch.set_column(0, batch.schema.field(0), pa.array(ids))
            shards = _shards_of(ids)
        for shard in shards:
            mine = ids >> np.uint64(SEQUENCE_BITS) == shard if len(shards) > 1 else None
            self._keep_events(shard, batch if mine is None else batch.filter(pa.array(mine)))
        self._flush_uncopied(batch)
        return ids

    def write_shard(self, parts: Sequence[Mapping[str, Any]]) -> NDArray[np.uint64]:
        """Write events as one sealed shard of their own, at once: for a writer that has its rows already and fears no kill.

        Args:
            parts: column name → values each, without ``event_id``; at most ``shard_rows`` rows together.

        Returns:
            The event ids, by row.

        Raises:
            ColumnError: the columns do not fit the table.
            ValueError: more rows than a shard may have.
            WriteError: it could not be written.
        """
        self._check_open()
        counts = [len(next(iter(part.values()), ())) for part in parts]
        rows = sum(counts)
        if rows > self._shard_rows:
            raise ValueError(f"write_shard: {rows} rows, but shard_rows is {self._shard_rows}")
        ids = self.reserve(rows)
        rolling = self._rolling["events"]
        if rolling.reserved[-1] > rows or rolling.streams[-1].rows:
            raise ValueError("write_shard: this writer has appended or reserved events already")
        rolling.reserved[-1] = self._shard_rows + 1  # nothing more fits into it
        firsts = np.cumsum([0, *counts])
        batches = [
            to_batch(EVENTS, {"event_id": ids[first : first + count], **part})
            for part, first, count in zip(parts, firsts, counts, strict=False)
            if count
        ]
        if batches:
            self._seal_at_once(f"events/{rolling.streams[-1].path.stem}.arrow", EVENTS, batches)
        return ids

    def write_ops(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write all rows of ``ops`` as a sealed file at once; for a writer that has them already and adds none by ``add_ops``.

        Raises:
            WriteError: it could not be written.
        """
        self._check_open()
        if batches:
            self._seal_at_once(f"ops/{self._fragment['writer']}.arrow", OPS, batches)

    def append_flows(self, columns: Mapping[str, Any] | pa.RecordBatch) -> None:
        """Append flows; see ``append_events``."""
        self._append(FLOWS, columns)

    def append_counters(self, columns: Mapping[str, Any] | pa.RecordBatch) -> None:
        """Append counter samples; see ``append_events``."""
        self._append(COUNTERS, columns)

    def warn(self, text: str) -> None:
        """Put a warning into the fragment."""
        self._check_open()
        self._fragment["warnings"].append(text)
        write_fragment(self.path, self._fragment)

    def set_audit(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Put what is doubtful of an imported profile into the fragment."""
        self._check_open()
        self._fragment["audit"] = list(findings)
        write_fragment(self.path, self._fragment)

    def flush(self) -> None:
        """Write everything kept: from here it survives a kill of this process.

        Raises:
            WriteError: the disk is full, the directory gone, …; what was whole stays readable, the writer is broken.
        """
        self._check_open()
        self._last_flush = time.monotonic()
        self._unflushed_rows = 0
        try:
            with writing(self.path):
                (self.path / FRAGMENTS / f"{self._fragment['writer']}.json").stat()
            for stream in self._streams():
                stream.flush()
        except BaseException:
            self._break()
            raise

    def seal(self) -> None:
        """Rewrite the streams as sorted files with indexes, then declare the fragment sealed.

        A stream is removed only when its file and the fragment that lists it are durable; sealing that is interrupted leaves
        a trace that reads the same.

        Raises:
            WriteError: the disk is full, the directory gone, …
        """
        if self._state == "sealed":
            return
        self.flush()
        try:
            for stream in self._streams():
                stream.close()
            self._seal_streams()
        except BaseException:
            self._break()
            raise
        self._state = "sealed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Seal, whatever ended the block: what ran stays readable. Errors of the block are re-raised."""
        if self._state == "broken":
            return
        try:
            self.seal()
        except TrnprofError:
            if error is None:
                raise
            error.add_note("the trace could not be sealed either; what was flushed stays readable")

    def _seal_streams(self) -> None:
        for stream in (
            *self._streams("events"),
            *self._streams("counters", "flows"),
            *self._streams(*_SMALL),
        ):
            if not stream.path.exists():
                continue
            batches, problems = read_stream(stream.path, stream.table)
            if problems:
                raise WriteError(f"{self.path}: {problems[0].message}; the disk may be failing")
            if stream.table.name == "tracks":
                batches = with_max_durations(batches, self._longest_ns)
            self._seal_shard(f"{stream.table.name}/{stream.path.stem}.arrow", stream.table, batches)
            with writing(stream.path):
                stream.path.unlink()
        self._fragment["sealed"] = True
        write_fragment(self.path, self._fragment)

    def _seal_at_once(self, file: str, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
        try:
            self._seal_shard(file, table, batches)
        except BaseException:
            self._break()
            raise

    def _seal_shard(self, file: str, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
        sealed = seal_shard(self.path, file, table, batches)
        for track, duration in zip(
            sealed.track_ids.tolist(), sealed.max_duration_ns.tolist(), strict=True
        ):
            self._longest_ns[track] = max(self._longest_ns.get(track, 0), duration)
        self._fragment["shards"].append(sealed.entry)
        write_fragment(self.path, self._fragment)

    def _streams(self, *tables: str) -> list[BatchStream]:
        names = tables or (*_SMALL, "events", "counters", "flows")
        small = [self._small[n] for n in names if n in self._small]
        return small + [s for n in names if n in self._rolling for s in self._rolling[n].streams]

    def _check_open(self) -> None:
        if self._state != "open":
            raise WriteError(
                f"{self.path}: this writer is {self._state}; nothing more can be written"
            )

    def _break(self) -> None:
        self._state = "broken"
        for stream in self._streams():
            stream.abandon()

    def _add(self, name: str, rows: Mapping[str, Any]) -> None:
        self._check_open()
        self._keep(self._small[name], to_batch(TABLES[name], rows, copy=True))

    def _append(self, table: Table, columns: Mapping[str, Any] | pa.RecordBatch) -> None:
        self._check_open()
        batch = self._to_batch(table, _as_mapping(columns))
        for first in range(0, batch.num_rows, self._shard_rows):
            part = batch.slice(first, self._shard_rows)
            shard, _ = self._reserve(table, part.num_rows)
            self._keep(self._rolling[table.name].streams[shard], part)
        self._flush_uncopied(batch)

    def _to_batch(self, table: Table, columns: Mapping[str, Any]) -> pa.RecordBatch:
        """Arrays that are kept beyond this call are copied; as many rows as a flush takes are written within it."""
        rows = len(next(iter(columns.values()), ()))
        return to_batch(table, columns, copy=rows < self._flush_rows)

    def _flush_uncopied(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows >= self._flush_rows and self._unflushed_rows:
            self.flush()

    def _keep(self, stream: BatchStream, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        stream.append(batch)
        self._unflushed_rows += batch.num_rows
        late = time.monotonic() - self._last_flush >= self._flush_seconds
        if self._unflushed_rows >= self._flush_rows or late:
            self.flush()

    def _reserve(self, table: Table, count: int) -> tuple[int, int]:
        try:
            return self._rolling[table.name].reserve(count, self._shard_rows)
        except BaseException:
            self._break()
            raise

    def _assign(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        rows = batch.num_rows
        if rows <= self._shard_rows:
            return self.reserve(rows)
        ids = np.empty(rows, np.uint64)
        order = np.argsort(batch["start_ns"].to_numpy(), kind="stable")
        for first in range(0, rows, self._shard_rows):
            part = np.sort(order[first : first + self._shard_rows])
            ids[part] = self.reserve(len(part))
        return ids

    def _keep_events(self, shard: int, batch: pa.RecordBatch) -> None:
        events = self._rolling["events"]
        place = shard - (self.number << WRITER_SHARD_BITS)
        if events.streams[place].rows + batch.num_rows > events.reserved[place]:
            first = batch["event_id"][0].as_py()
            raise ColumnError(
                f"events.event_id: more rows than were reserved: {first} or a later id is used twice"
            )
        self._keep(events.streams[place], batch)

    def _check_ids(self, ids: NDArray[np.uint64]) -> list[int]:
        base = self.number << WRITER_SHARD_BITS
        reserved = self._rolling["events"].reserved
        shards = _shards_of(ids)
        for shard in shards:
            last = int(
                ids.max() if len(shards) == 1 else ids[ids < (shard + 1) << SEQUENCE_BITS].max()
            )
            if (
                not 0 <= shard - base < len(reserved)
                or last & _SEQUENCE_MASK >= reserved[shard - base]
            ):
                raise ColumnError(f"events.event_id: {last} was not reserved by this writer")
        return shards


def _shards_of(ids: NDArray[np.uint64]) -> list[int]:
    if not len(ids):
        return []
    first, last = int(ids.min()) >> SEQUENCE_BITS, int(ids.max()) >> SEQUENCE_BITS
    if first == last:
        return [first]
    return [int(shard) for shard in np.unique(ids >> np.uint64(SEQUENCE_BITS))]


def _as_mapping(columns: Mapping[str, Any] | pa.RecordBatch) -> Mapping[str, Any]:
    if isinstance(columns, pa.RecordBatch):
        return {name: columns[name] for name in columns.schema.names}
    return columns
