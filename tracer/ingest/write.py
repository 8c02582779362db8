"""How does what one source brought become one writer's part of a trace?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnprof.tracer.ingest.lanes import Ints, first_fit
from trnprof.tracer.ingest.quarantine import Verdicts, judge
from trnprof.tracer.ingest.stage import Stage, Timeline
from trnprof.tracer.writer import Clock, TraceWriter

SHARD_ROWS: Final = 500_000
SHARD_BYTES: Final = 40 << 20
"""Most rows, and about the most bytes, of an events shard of an import: sealing holds one in memory, and imported events carry text."""
SET_ASIDE: Final = "set aside"
"""Name of the track of events that have no believable start."""


@dataclass(frozen=True)
class Shift:
    """What is added to the times of a source: ``offset_ns``, and ``drift * (t - origin_ns)`` where its clock runs differently."""

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0

    def of(self, times_ns: Ints) -> Ints:
        """The times on the clock of the trace."""
        if not self.drift:
            return times_ns + self.offset_ns
        bent = np.rint((times_ns - self.origin_ns) * self.drift).astype(np.int64)
        moved: Ints = times_ns + self.offset_ns + bent
        return moved


@dataclass(frozen=True)
class WriterPlan:
    """Where and when a source stands in the trace.

    Attributes:
        writer: name of its writer.
        number: of its writer.
        clock: of its tracks.
        shift: of its times.
        rank: of tracks that do not say one; None if nobody knows.
        host: name of its host.
    """

    writer: str
    number: int
    clock: Clock
    shift: Shift
    rank: int | None
    host: str


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        events: rows of ``events``.
        first_ns, last_ns: first start and last end on the trace's clock; 0 without events.
    """

    events: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class _Tracks:
    """``first`` track of each timeline's lanes, ``set_aside`` the track of that name, -1 for none; ``rows`` of ``tracks``."""

    first: Ints
    set_aside: int
    rows: dict[str, list[Any]]


def write_stage(stage: Stage, root: Path, plan: WriterPlan) -> Written:
    """Write one source into a trace directory.

    Args:
        stage: closed; its audit gets what is found, and goes into the fragment.
        root: the trace directory.
        plan: where it stands.

    Raises:
        WriteError: it could not be written.
        ColumnError: the format gave rows that do not fit the schema.
    """
    with TraceWriter(
        root,
        writer=plan.writer,
        number=plan.number,
        clocks=[plan.clock],
        shard_rows=SHARD_ROWS,
    ) as writer:
        writer.write_ops(list(stage.batches("ops")))
        _release_memory()
        for rows in stage.groups:
            writer.add_groups(rows)
        for rows in stage.steps:
            writer.add_steps(_step_rows(rows, plan))
        written = _write_timed(stage, writer, plan)
        writer.set_audit([finding.to_json() for finding in stage.audit.findings])
    return written


def _release_memory() -> None:
    """Give back what Arrow keeps of a large table for the next one, which would be as much again."""
    pa.default_memory_pool().release_unused()


def _write_timed(stage: Stage, writer: TraceWriter, plan: WriterPlan) -> Written:
    """Tracks, and what lies on them."""
    judged = judge(stage)
    tracks, track = _place(stage, judged, plan)
    writer.add_tracks(tracks.rows)
    ids, extent = _write_events(stage, writer, judged, track, plan)
    _write_counters(stage, writer, tracks, plan)
    _write_flows(stage, writer, judged, ids)
    return Written(int((judged.twin < 0).sum()), *extent)


def _place(stage: Stage, judged: Verdicts, plan: WriterPlan) -> tuple[_Tracks, NDArray[np.uint32]]:
    """The tracks, and that of each event."""
    is_off_lane = (judged.twin >= 0) | judged.has_no_end | judged.has_no_start
    lane, lanes = first_fit(judged.order, judged.start_ns, judged.end_ns, is_off_lane)
    timeline = stage.times("timeline")
    tracks = _tracks(stage, judged, timeline, lanes, plan)
    lane = np.where(judged.has_no_end, lanes[timeline], lane)
    track = (tracks.first[timeline] + lane).astype(np.uint32)
    if tracks.set_aside >= 0:
        track[judged.has_no_start] = tracks.set_aside
    return tracks, track


def _tracks(
    stage: Stage,
    judged: Verdicts,
    timeline: NDArray[np.int32],
    lanes: Ints,
    plan: WriterPlan,
) -> _Tracks:
    beyond = np.zeros(len(lanes), np.int64)
    beyond[timeline[judged.has_no_end]] = 1
    wanted = np.maximum(lanes + beyond, 1)
    wanted[_unused(stage, lanes + beyond)] = 0
    first = np.concatenate([[1], 1 + np.cumsum(wanted)])
    rows = [_row(0, None, Timeline("host", plan.host, is_unranked=True), 0, plan)]
    for number, each in enumerate(stage.timelines):
        parent = 0 if each.parent is None else int(first[each.parent])
        rows += [
            _row(int(first[number]) + lane, parent, each, lane, plan)
            for lane in range(int(wanted[number]))
        ]
    set_aside = int(first[-1]) if judged.has_no_start.any() else -1
    if set_aside >= 0:
        rows.append(_row(set_aside, 0, Timeline("thread", SET_ASIDE, sort_order=1 << 30), 0, plan))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return _Tracks(first[:-1], set_aside, columns)


def _unused(stage: Stage, lanes: Ints) -> Ints:
    """Timelines without events, counter samples and children: a profile names many threads that did nothing."""
    is_used = lanes > 0
    is_used |= np.array([each.kind == "counter" for each in stage.timelines], np.bool_)
    for number in range(len(stage.timelines) - 1, -1, -1):
        parent = stage.timelines[number].parent
        if is_used[number]:
            while parent is not None and not is_used[parent]:
                is_used[parent] = True
                parent = stage.timelines[parent].parent
    return np.flatnonzero(~is_used)


def _row(
    track_id: int, parent: int | None, timeline: Timeline, lane: int, plan: WriterPlan
) -> dict[str, Any]:
    rank = timeline.rank if timeline.rank is not None else plan.rank
    return {
        "track_id": track_id,
        "parent_id": parent,
        "kind": timeline.kind,
        "name": timeline.name,
        "sort_order": int(np.clip(timeline.sort_order, -(1 << 31), (1 << 31) - 1)),
        "lane": lane,
        "exclusive": timeline.exclusive,
        "clock_id": plan.clock.clock_id,
        "host": plan.host,
        "rank": None if timeline.is_unranked else rank,
        "chip": timeline.chip,
        "core": timeline.core,
        "replica_count": 1,
        "peak_flops": timeline.peak_flops,
        "peak_bytes_per_s": timeline.peak_bytes_per_s,
        "unit": timeline.unit,
    }


def _step_rows(rows: Mapping[str, Any], plan: WriterPlan) -> dict[str, Any]:
    count = len(rows["step"])
    shifted = {k: plan.shift.of(np.asarray(rows[k], np.int64)) for k in ("start_ns", "end_ns")}
    own = {"rank": [plan.rank or 0] * count, "clock_id": [plan.clock.clock_id] * count}
    return {**own, **rows, **shifted}


class _Shard:
    """Blocks of events that become one shard; ``ids`` gets the event id of each row."""

    def __init__(self, writer: TraceWriter, ids: NDArray[np.uint64]) -> None:
        self._writer, self._ids = writer, ids
        self._parts: list[dict[str, Any]] = []
        self._rows: list[Ints] = []
        self._count = self._bytes = 0

    def add(self, columns: dict[str, Any], rows: Ints) -> None:
        """Add a block; ``rows`` are its row numbers in the stage."""
        if self._count + len(rows) > SHARD_ROWS or self._bytes > SHARD_BYTES:
            self.write()
        self._bytes += columns["attributes"].nbytes
        for first in range(0, len(rows), SHARD_ROWS):
            part = slice(first, first + SHARD_ROWS)
            if len(rows) > SHARD_ROWS:
                self.write()
            self._parts.append({name: values[part] for name, values in columns.items()})
            self._rows.append(rows[part])
            self._count += len(rows[part])

    def write(self) -> None:
        """Write what was added."""
        if self._parts:
            self._ids[np.concatenate(self._rows)] = self._writer.write_shard(self._parts)
        self._parts, self._rows, self._count, self._bytes = [], [], 0, 0
        _release_memory()


def _write_events(
    stage: Stage, writer: TraceWriter, judged: Verdicts, track: NDArray[np.uint32], plan: WriterPlan
) -> tuple[NDArray[np.uint64], tuple[int, int]]:
    """The event id of each row (of a repeat: that of the event it repeats), and the extent in time."""
    is_kept = judged.twin < 0
    ids = np.zeros(stage.rows, np.uint64)
    late = {name: stage.late_column(name) for name in stage.late}
    all_finish = not (judged.is_open.any() or judged.has_no_end.any())
    is_doubtful = judged.has_no_start | judged.has_no_end
    said_end_ns = stage.times("end_ns") if is_doubtful.any() else None
    aside_ns = _first_believed(judged)
    first_ns, last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    low = 0
    shard = _Shard(writer, ids)
    for batch in stage.batches("events"):
        rows = slice(low, low + batch.num_rows)
        low += batch.num_rows
        aside = judged.has_no_start[rows]
        start = plan.shift.of(np.where(aside, aside_ns, judged.start_ns[rows]))
        end = np.where(aside, aside_ns, judged.end_ns[rows])
        duration = plan.shift.of(end) - start
        unended = judged.is_open[rows] | judged.has_no_end[rows]
        columns = {name: batch[name] for name in batch.schema.names}
        columns |= {name: values.slice(rows.start, batch.num_rows) for name, values in late.items()}
        if said_end_ns is not None and is_doubtful[rows].any():
            columns["attributes"] = _with_times(
                columns["attributes"], is_doubtful[rows], judged.start_ns[rows], said_end_ns[rows]
            )
        columns["track_id"] = pa.array(track[rows])
        columns["start_ns"] = pa.array(start)
        columns["duration_ns"] = pa.array(duration, mask=None if all_finish else unended)
        columns["ready_ns"] = _shifted(columns["ready_ns"], plan.shift)
        kept = is_kept[rows]
        if not kept.all():
            columns = {name: values.filter(pa.array(kept)) for name, values in columns.items()}
        if not kept.any():
            continue
        shard.add(columns, low - batch.num_rows + np.flatnonzero(kept))
        first_ns = min(first_ns, int(start[kept].min()))
        last_ns = max(last_ns, int((start + np.where(unended, 0, duration))[kept].max()))
    shard.write()
    repeated = np.flatnonzero(~is_kept)
    ids[repeated] = ids[judged.twin[repeated]]
    if first_ns > last_ns:
        return ids, (0, 0)
    return ids, (first_ns, last_ns)


def _shifted(times: pa.Array, shift: Shift) -> pa.Array:
    """Times that may be null, on the clock of the trace."""
    if times.null_count == len(times):
        return times
    return pc.if_else(times.is_valid(), pa.array(shift.of(times.fill_null(0).to_numpy())), None)


def _first_believed(judged: Verdicts) -> int:
    believed = judged.start_ns[~judged.has_no_start]
    return int(believed.min()) if len(believed) else 0


def _with_times(
    attributes: pa.Array, is_doubtful: NDArray[np.bool_], start: Ints, end: Ints
) -> pa.Array:
    """Attributes of events whose times are not believed, with what the profile said of them."""
    texts = attributes.to_pylist()
    for at in np.flatnonzero(is_doubtful).tolist():
        said = json.dumps({"start_ns": int(start[at]), "end_ns": int(end[at])})
        body = (texts[at] or "{}").rstrip()[:-1]
        comma = ", " if body.strip() != "{" else ""
        texts[at] = f'{body}{comma}"set_aside": {said}}}'
    return pa.array(texts, pa.string())


def _write_counters(stage: Stage, writer: TraceWriter, tracks: _Tracks, plan: WriterPlan) -> None:
    for batch in stage.batches("counters"):
        timeline = batch["timeline"].to_numpy()
        writer.append_counters(
            {
                "track_id": tracks.first[timeline].astype(np.uint32),
                "timestamp_ns": plan.shift.of(batch["timestamp_ns"].to_numpy()),
                "value": batch["value"],
            }
        )


def _write_flows(
    stage: Stage, writer: TraceWriter, judged: Verdicts, ids: NDArray[np.uint64]
) -> None:
    for batch in stage.batches("flows"):
        source, target = batch["source_row"].to_numpy(), batch["target_row"].to_numpy()
        is_first = (judged.twin[source] < 0) & (judged.twin[target] < 0) & (source != target)
        chosen = pa.array(is_first)
        writer.append_flows(
            {
                "source_event": ids[source[is_first]],
                "target_event": ids[target[is_first]],
                "kind": pc.filter(batch["kind"], chosen),
                "lag_ns": pc.filter(batch["lag_ns"], chosen),
            }
        )
