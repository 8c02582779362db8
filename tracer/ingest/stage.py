"""Where do the events of one source lie between reading and writing, and what does a format say of them?

A stage is a directory of plain columns. A format appends blocks of events in any order, on *timelines*: rows as the profile knows
them (a thread, a stream, an engine), before they are cut into lanes on which nothing overlaps. Times are nanoseconds on the
profile's own clock; what is added to them is decided when all sources are read. Only one block is in memory at a time.

Rows are numbered from 0 in the order in which they were appended; flows and late columns refer to these numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import ArrayLike, NDArray

from trnprof.tracer.batches import to_batch
from trnprof.tracer.files import writing
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.schema import COUNTERS, EVENTS, FLOW_KINDS, KEY, OPS, Column, Table

MOST_RANKS: Final = 1 << 24
"""Numbers of ranks, chips and cores from here on are not believed."""
UNFINISHED: Final = np.iinfo(np.int64).min
"""End of an event that was still open when the recording ended, or whose end nobody knows."""

_WRITTEN_LATER = ("event_id", "track_id", "start_ns", "duration_ns", "blocked_by")
STAGED_EVENTS: Final = Table(
    "staged events", tuple(c for c in EVENTS.columns if c.name not in _WRITTEN_LATER)
)
"""Columns of ``events`` that a format gives; times, timeline and fingerprint lie in arrays of their own."""
STAGED_COUNTERS: Final = Table(
    "staged counters",
    (
        Column("timeline", pa.int32(), False, "number of its timeline, of kind counter"),
        *(c for c in COUNTERS.columns if c.name != "track_id"),
    ),
)
STAGED_FLOWS: Final = Table(
    "staged flows",
    (
        Column("source_row", pa.int64(), False, "row of the event that must end first"),
        Column("target_row", pa.int64(), False, "row of the event that waits"),
        Column("kind", KEY, False, "what the edge stands for", FLOW_KINDS),
        Column("lag_ns", pa.int64(), False, "as in flows"),
    ),
)
TIMES: Final = {
    "timeline": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "fingerprint": np.uint64,
}


@dataclass(frozen=True)
class Timeline:
    """A row of the profile, before it is cut into lanes.

    Attributes:
        kind: a kind of track (``schema.TRACK_KINDS``).
        name: for people.
        parent: number of the timeline it stands under; None: under the host.
        sort_order: position among its siblings.
        exclusive: whether its resource runs one thing at a time, so that overlaps are worth a finding.
        rank, chip, core: where it is, if anybody knows; rank None means the rank of the source.
        peak_flops, peak_bytes_per_s: of its resource.
        unit: of a counter.
        is_unranked: it belongs to no rank (a counter of the whole host).
    """

    kind: str
    name: str
    parent: int | None = None
    sort_order: int = 0
    exclusive: bool = False
    rank: int | None = None
    chip: int | None = None
    core: int | None = None
    peak_flops: float | None = None
    peak_bytes_per_s: float | None = None
    unit: str | None = None
    is_unranked: bool = False


@dataclass
class Facts:
    """What a format learns of a source beside its events. All optional.

    Attributes:
        base_unix_ns: Unix time of zero on the profile's clock; None if nobody knows it.
        rank: the rank that the profile says it is of.
        world_size: ranks of the job.
        host: host name.
        clock_kind: ``host`` or ``device``.
        is_simulation: whether the profile itself says it was not measured.
        system: description of the machine, as far as the profile has it, for the manifest.
        metrics: the tool's own summary figures by their own names, for the manifest.
        metadata: further facts for the manifest, JSON-ready.
        peaks: rows of the table ``peaks``.
        collectives: one row a collective that the ranks can be aligned by: ``group`` (str, the same on all members),
            ``sequence`` (int, ordinal in the group), ``name``, ``start_ns``, ``end_ns``, ``bytes`` (nullable). None: none known.
    """

    base_unix_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    clock_kind: str = "host"
    is_simulation: bool = False
    system: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    peaks: dict[str, list[Any]] = field(default_factory=dict)
    collectives: pl.DataFrame | None = None


class Stage:
    """What one source brought, on disk. One thread appends; ``close`` before it is read back."""

    def __init__(self, directory: Path, label: str) -> None:
        """Create the directory.

        Args:
            directory: where; must not exist.
            label: of the source, for findings.

        Raises:
            WriteError: it cannot be created.
        """
        self.directory = directory
        self.label = label
        self.audit = Audit()
        self.facts = Facts()
        self.timelines: list[Timeline] = []
        self.groups: list[Mapping[str, Any]] = []
        self.steps: list[Mapping[str, Any]] = []
        self.late: list[str] = []
        self.rows = 0
        self.first_counter_ns: int | None = None
        self._keys: dict[Hashable, int] = {}
        with writing(directory):
            directory.mkdir(parents=True)
            self._times = {name: (directory / name).open("wb") for name in TIMES}
        self._streams: dict[str, tuple[pa.NativeFile, ipc.RecordBatchStreamWriter]] = {}

    def timeline(self, key: Hashable, timeline: Timeline) -> int:
        """The number of the timeline with this key; made when the key is new, else the first definition stands."""
        if key not in self._keys:
            self._keys[key] = len(self.timelines)
            self.timelines.append(_believed(timeline))
        return self._keys[key]

    def add_events(
        self,
        *,
        timeline: ArrayLike | int,
        start_ns: NDArray[np.int64],
        end_ns: NDArray[np.int64],
        name: Any,
        category: Any,
        fingerprint: NDArray[np.uint64] | None = None,
        **columns: Any,
    ) -> int:
        """Append events.

        Args:
            timeline: its number, one for all or one a row.
            start_ns: start on the profile's clock.
            end_ns: end, not before the start unless the profile says so (the impossible is told and set aside later);
                ``UNFINISHED`` where there is none.
            name: a str for all, or one a row: sequence, Arrow (dictionary) array, polars Series.
            category: likewise; one of ``schema.CATEGORIES``.
            fingerprint: hash of everything the profile says of the event: rows of one timeline, start and end with the same
                fingerprint are taken for repeats of one event. None or 0: never a repeat.
            columns: further columns of ``STAGED_EVENTS``, in the forms that ``TraceWriter`` takes.

        Returns:
            The row number of the first.

        Raises:
            ColumnError: columns that do not fit.
            WriteError: they could not be written.
        """
        rows = len(start_ns)
        first = self.rows
        if not rows:
            return first
        given = {"name": name, "category": category, **columns}
        spread = {k: _spread(v, rows) if isinstance(v, str) else v for k, v in given.items()}
        batch = to_batch(STAGED_EVENTS, spread)
        times: dict[str, Any] = {
            "timeline": np.broadcast_to(np.asarray(timeline, np.int32), (rows,)),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "fingerprint": np.zeros(rows, np.uint64) if fingerprint is None else fingerprint,
        }
        with writing(self.directory):
            for column, type_ in TIMES.items():
                self._times[column].write(np.ascontiguousarray(times[column], type_).data)
            self._write("events", batch)
        self.rows += rows
        return first

    def add_counters(
        self, *, timeline: ArrayLike | int, timestamp_ns: ArrayLike, value: ArrayLike
    ) -> None:
        """Append counter samples on timelines of kind ``counter``; null and NaN values are left out by the caller.

        Raises:
            ColumnError: columns that do not fit.
            WriteError: they could not be written.
        """
        at = np.asarray(timestamp_ns, np.int64)
        if not len(at):
            return
        first = int(at.min())
        known = self.first_counter_ns
        self.first_counter_ns = first if known is None else min(first, known)
        timelines = np.broadcast_to(np.asarray(timeline, np.int32), at.shape)
        columns = {"timeline": timelines, "timestamp_ns": at, "value": np.asarray(value, float)}
        with writing(self.directory):
            self._write("counters", to_batch(STAGED_COUNTERS, columns))

    def add_flows(
        self, source_row: ArrayLike, target_row: ArrayLike, kind: str, lag_ns: ArrayLike = 0
    ) -> None:
        """Append edges between events, by row number.

        Raises:
            ColumnError: columns that do not fit.
            WriteError: they could not be written.
        """
        source = np.asarray(source_row, np.int64)
        columns = {
            "source_row": source,
            "target_row": np.asarray(target_row, np.int64),
            "kind": _spread(kind, len(source)),
            "lag_ns": np.broadcast_to(np.asarray(lag_ns, np.int64), source.shape),
        }
        with writing(self.directory):
            self._write("flows", to_batch(STAGED_FLOWS, columns))

    def add_ops(self, rows: Mapping[str, Any]) -> None:
        """Append rows of ``ops`` (column → values), ``op_id`` numbered by the format from 0.

        Raises:
            ColumnError: columns that do not fit.
            WriteError: they could not be written.
        """
        with writing(self.directory):
            self._write("ops", to_batch(OPS, rows))

    def add_groups(self, rows: Mapping[str, Any]) -> None:
        """Append rows of ``groups``, ``group_id`` numbered by the format from 0."""
        self.groups.append(rows)

    def add_steps(self, rows: Mapping[str, Any]) -> None:
        """Append steps: step, start_ns, end_ns (profile's clock), label, source; rank and clock are filled in later."""
        self.steps.append(rows)

    def set_late(self, column: str, values: Any) -> None:
        """Give a column of all rows at once, when the last row is appended (``step``, ``op_id``, …).

        Args:
            column: of ``STAGED_EVENTS``; what was given with the rows is replaced.
            values: one a row, an Arrow array where some are null.
        """
        array = values if isinstance(values, pa.Array) else pa.array(values)
        batch = pa.RecordBatch.from_arrays([array], [column])
        with (
            writing(self.directory),
            pa.OSFile(str(self._late_path(column)), "wb") as sink,
            ipc.new_stream(sink, batch.schema) as stream,
        ):
            stream.write_batch(batch)
        self.late = [*(name for name in self.late if name != column), column]

    def set_ends(self, rows: ArrayLike, end_ns: ArrayLike) -> None:
        """Give events that were appended unfinished their ends."""
        self._times["end_ns"].flush()
        ends = np.memmap(self.directory / "end_ns", TIMES["end_ns"], "r+")
        ends[np.asarray(rows)] = end_ns
        ends.flush()

    def late_column(self, column: str) -> pa.Array:
        """What ``set_late`` was given."""
        with pa.OSFile(str(self._late_path(column))) as file:
            return ipc.open_stream(file).read_all()[column].combine_chunks()

    def times(self, name: str) -> NDArray[Any]:
        """One of TIMES of all rows so far, in row order."""
        if name in self._times and not self._times[name].closed:
            self._times[name].flush()
        return np.fromfile(self.directory / name, TIMES[name])

    def batches(self, table: str) -> Iterator[pa.RecordBatch]:
        """The rows of ``events``, ``counters``, ``flows`` or ``ops`` as they were appended, one batch in memory; after ``close``."""
        path = self.directory / f"{table}.arrows"
        if path.exists():
            with pa.OSFile(str(path)) as file:
                yield from ipc.open_stream(file)

    def close(self) -> None:
        """Flush everything; nothing can be appended afterwards."""
        with writing(self.directory):
            for file in self._times.values():
                file.close()
            for sink, stream in self._streams.values():
                stream.close()
                sink.close()
        self._streams = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        self.close()

    def _write(self, table: str, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if table not in self._streams:
            sink = pa.OSFile(str(self.directory / f"{table}.arrows"), "wb")
            self._streams[table] = (sink, ipc.new_stream(sink, batch.schema))
        self._streams[table][1].write_batch(batch)

    def _late_path(self, column: str) -> Path:
        return self.directory / f"late-{column}.arrows"

    def __getstate__(self) -> dict[str, Any]:
        """Between processes only what is closed travels: its files stay where they are."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_streams", "_times")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reopen for reading."""
        self.__dict__.update(state, _streams={}, _times={})


def _spread(word: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([word]))


def _believed(timeline: Timeline) -> Timeline:
    """Without numbers of ranks, chips and cores that no machine has: damaged profiles say them."""
    rank, chip, core = (
        n if n is not None and 0 <= n < MOST_RANKS else None
        for n in (timeline.rank, timeline.chip, timeline.core)
    )
    return replace(timeline, rank=rank, chip=chip, core=core)
