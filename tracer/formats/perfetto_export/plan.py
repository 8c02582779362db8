"""What will be exported, before anything is written: time ranges, time axes, tracks, steps; and is it sound?"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.errors import TraceError
from trnprof.tracer.formats.perfetto_export.clocks import (
    MAX_NS,
    Axes,
    Placement,
    shifts_ns,
    time_axes,
)
from trnprof.tracer.formats.perfetto_export.tracks import Tree, build_tree
from trnprof.tracer.reader import Trace

_STEP_KEYS: Final = ["clock_id", "rank", "lane"]
"""What tells the tracks of steps apart."""


@dataclass(frozen=True)
class Plan:
    """What is known before the first event is written.

    Attributes:
        tree: all tracks.
        placement: of the tracks with events or counter samples.
        steps: rows of the steps table in order, with ``uuid`` and ``offset_ns``.
        axes: the time axes.
        shifts_ns: added to all times of each axis.
    """

    tree: Tree
    placement: Placement
    steps: pl.DataFrame
    axes: Axes
    shifts_ns: tuple[int, ...]


def make_plan(trace: Trace) -> Plan:
    """Read the time range of each track and place everything.

    Raises:
        TraceError: events or samples on a track that is not there or of the wrong kind, negative durations, times that do
            not fit, a track tree that is broken.
    """
    ranges = pl.concat([_event_ranges(trace), _sample_ranges(trace)])
    used = frozenset(ranges["track_id"].to_list())
    clock_of = dict(trace.tracks.select("track_id", "clock_id").iter_rows())
    steps = _steps(trace)
    on_clocks = {clock_of[i] for i in used} | set(steps["clock_id"].to_list())
    axes = time_axes(trace, on_clocks or set(clock_of.values()))
    lanes = steps.select(_STEP_KEYS).unique().sort(_STEP_KEYS).rows()
    tree = build_tree(trace, axes, used, lanes)
    spans = [(clock_of[i], first, last) for i, first, last in ranges.iter_rows()]
    spans += _step_ranges(steps)
    shifts = shifts_ns(spans, axes)
    return Plan(
        tree,
        _placement(tree, clock_of, axes, shifts, used),
        _placed_steps(steps, tree, axes, shifts),
        axes,
        tuple(shifts),
    )


def offset_ns(axes: Axes, shifts: list[int], clock_id: int) -> int:
    """What is added to times on a clock."""
    return axes.epoch_ns_of_clock[clock_id] + shifts[axes.axis_of_clock[clock_id]]


def _event_ranges(trace: Trace) -> pl.DataFrame:
    """First start and last end on each track."""
    duration = pl.col("duration_ns")
    found = (
        trace.events.group_by("track_id")
        .agg(
            pl.col("start_ns").min().alias("first"),
            pl.col("start_ns").max().alias("last_start"),
            (pl.col("start_ns") + duration.fill_null(0)).max().alias("last"),
            duration.min().alias("shortest"),
            duration.max().fill_null(0).alias("longest"),
        )
        .sort("track_id")
        .collect()
    )
    _check_tracks(trace, found, "events", is_counter=False)
    negative = found.filter(pl.col("shortest") < 0)
    if negative.height:
        raise _unsound(trace, "events", f"negative durations on track {negative['track_id'][0]}")
    for track, start, longest in found.select("track_id", "last_start", "longest").iter_rows():
        if start + longest > MAX_NS:
            raise _unsound(trace, "events", f"times beyond 2^63 ns on track {track}")
    return found.select("track_id", "first", "last")


def _sample_ranges(trace: Trace) -> pl.DataFrame:
    """First and last sample of each counter track."""
    time = pl.col("timestamp_ns")
    found = (
        trace.counters.group_by("track_id")
        .agg(time.min().alias("first"), time.max().alias("last"))
        .sort("track_id")
        .collect()
    )
    _check_tracks(trace, found, "counters", is_counter=True)
    return found


def _check_tracks(trace: Trace, found: pl.DataFrame, table: str, *, is_counter: bool) -> None:
    missing = found.join(trace.tracks, on="track_id", how="anti")
    if missing.height:
        raise _unsound(trace, table, f"track {missing['track_id'][0]} is not in the tracks table")
    kinds = found.join(trace.tracks, on="track_id").filter(
        (pl.col("kind") == "counter") != is_counter
    )
    if kinds.height:
        kind = "events on the counter track" if not is_counter else "samples on a track of events:"
        raise _unsound(trace, table, f"{kind} {kinds['track_id'][0]}")


def _unsound(trace: Trace, table: str, what: str) -> TraceError:
    return TraceError(f"{trace.path}: {table}: {what}; run trnprof validate {trace.path}")


def _steps(trace: Trace) -> pl.DataFrame:
    """Steps in order of clock, rank and time, each with a lane: those of one rank should follow each other, but need not."""
    steps = trace.steps.sort("clock_id", "rank", "start_ns", "end_ns", "step")
    if not steps.filter(pl.col("end_ns") < pl.col("start_ns")).is_empty():
        raise _unsound(trace, "steps", "a step ends before it begins")
    if steps["clock_id"].null_count() or steps["rank"].null_count():
        raise _unsound(trace, "steps", "a step has no clock or no rank")
    group = steps.select(pl.struct("clock_id", "rank").rle_id().cast(pl.Int64)).to_series()
    columns = [column.to_numpy() for column in (group, steps["start_ns"], steps["end_ns"])]
    return steps.with_columns(lane=pl.Series(_first_free_lane(*columns), dtype=pl.Int64))


@compiled
def _first_free_lane(
    group: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Lowest lane that is free when each step begins, group by group."""
    lane = np.zeros(group.size, np.int64)
    free_from = np.zeros(group.size, np.int64)
    lanes = 0
    for i in range(group.size):
        if i > 0 and group[i] != group[i - 1]:
            lanes = 0
        at = 0
        while at < lanes and free_from[at] > start[i]:
            at += 1
        lanes = max(lanes, at + 1)
        lane[i] = at
        free_from[at] = end[i]
    return lane


def _step_ranges(steps: pl.DataFrame) -> Iterator[tuple[int, int, int]]:
    """Clock, first start and last end of the steps on each clock."""
    return (
        steps.group_by("clock_id", maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .iter_rows()
    )


def _placed_steps(steps: pl.DataFrame, tree: Tree, axes: Axes, shifts: list[int]) -> pl.DataFrame:
    rows = [
        (clock, rank, lane, uuid, offset_ns(axes, shifts, clock))
        for (clock, rank, lane), uuid in tree.steps.items()
    ]
    schema = {name: steps.schema[name] for name in _STEP_KEYS}
    where = pl.DataFrame(
        rows, schema=schema | {"uuid": pl.UInt64(), "offset_ns": pl.Int64()}, orient="row"
    )
    return steps.join(where, on=_STEP_KEYS, maintain_order="left")


def _placement(
    tree: Tree, clock_of: dict[int, int], axes: Axes, shifts: list[int], used: Collection[int]
) -> Placement:
    ids = sorted(used)
    return Placement(
        np.array(ids, np.uint32),
        np.array([tree.uuid_of_track[i] for i in ids], np.uint64),
        np.array([axes.axis_of_clock[clock_of[i]] for i in ids], np.int64),
        np.array([offset_ns(axes, shifts, clock_of[i]) for i in ids], np.int64),
    )
