"""Which events does a question look at? The tracks of one clock, by core and resource, and the windows they are cut to.

Vocabulary: a *unit* is the core (else chip, else host) that tracks stand under; a *resource* is what a person calls a
track: Tensor, Vector, …, ``DMA`` for every DMA queue of a unit, ``Collective``, the name of a stream or thread.
A *window* is a step of one unit, or all of it (``step`` null): from the first step's start to the last one's end, or the
span of the events where there are no steps. Clocks are never mixed: a scope has one, and only its steps are windows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import DEVICE_KINDS

UNIT_KINDS = ("core", "chip", "host")

_EVENT_COLUMNS = (
    "event_id",
    "blocked_by",
    "descriptor_bytes",
    "track_id",
    "start_ns",
    "name",
    "category",
    "op_id",
    "step",
    "dtype",
    "is_transpose",
    "flops",
    "bytes",
    "source_memory",
    "target_memory",
    "wait_reason",
)


@dataclass(frozen=True)
class Scope:
    """Events of one clock and the windows they are looked at in.

    Attributes:
        clock_id: the clock.
        units: unit_id, unit_kind (of UNIT_KINDS, or of the lone track that is one), name, rank, chip, core, host, replica_count,
            has_streams (kernels run on streams of it, as on a GPU, not on engines that are named by what they do), peak_flops,
            peak_bytes_per_s (its HBM stack's), dma_peak_bytes_per_s (what its DMA engines reach of that).
        lanes: track_id, unit_id, kind, resource: the tracks that events lie on; replicas are left out.
        windows: window, step (null: everything), label, unit_id, window_start_ns, window_end_ns.
        events: finished events of the lanes without markers: the columns of the schema that analyzers use, with
            unit_id, kind, resource and end_ns.
        unfinished: events without duration, which count nowhere.
        notes: what a person should know about the choice.
        steps: all windows that are steps, where ``windows`` has others only: gaps are cut where steps begin.
    """

    clock_id: int
    units: pl.DataFrame
    lanes: pl.DataFrame
    windows: pl.DataFrame
    events: pl.LazyFrame
    unfinished: int
    notes: tuple[str, ...] = ()
    steps: pl.DataFrame | None = None

    def inside(self) -> pl.LazyFrame:
        """The events, clipped to the windows they meet: see ``in_windows``."""
        return self.in_windows(self.events)

    def in_windows(self, intervals: pl.LazyFrame) -> pl.LazyFrame:
        """Clip intervals to the windows they meet, one row a window.

        Args:
            intervals: columns unit_id, start_ns, end_ns and any others.

        Returns:
            The same columns, start_ns and end_ns clipped, with ``window``, ``share`` (part of the interval inside, 1 for
            an instant) and ``starts_inside``. An instant belongs to the window [start, end) that holds it.
        """
        is_step = pl.col("step").is_not_null()
        layers = [self.windows.filter(layer) for layer in (is_step, ~is_step)]
        used = [layer for layer in layers if layer.height] or layers[:1]
        return pl.concat([_clipped(intervals, layer) for layer in used])

    def step_windows(self) -> pl.DataFrame:
        """The windows that are steps, those that a chosen part of the scope leaves out too."""
        windows = self.windows if self.steps is None else self.steps
        return windows.filter(pl.col("step").is_not_null())

    def window_lengths(self) -> pl.DataFrame:
        """One row a window and unit: window, unit_id, total_ns."""
        total = (pl.col("window_end_ns") - pl.col("window_start_ns")).alias("total_ns")
        return self.windows.select("window", "unit_id", total)


_BOUNDS = ("window_start_ns", "window_end_ns")


def _clipped(intervals: pl.LazyFrame, windows: pl.DataFrame) -> pl.LazyFrame:
    """``Scope.in_windows`` for windows of one layer: steps, or what holds them all."""
    start, end, reach = pl.col("start_ns"), pl.col("end_ns"), pl.col("_reach")
    first, last = (pl.col(n) for n in _BOUNDS)
    inside = pl.min_horizontal(end, last) - pl.max_horizontal(start, first)
    pairs = _pairs(intervals.with_columns(_reach=pl.max_horizontal(end, start + 1)), windows)
    return (
        pairs.filter((start < last) & (reach > first))
        .with_columns(
            share=pl.when(end > start).then(inside / (end - start)).otherwise(1.0),
            starts_inside=start >= first,
            start_ns=pl.max_horizontal(start, first),
            end_ns=pl.min_horizontal(end, last),
        )
        .drop("_reach", *_BOUNDS)
    )


def _pairs(intervals: pl.LazyFrame, windows: pl.DataFrame) -> pl.LazyFrame:
    """Every interval beside every window of its unit that it may meet: in time that grows with their sum where windows do not overlap."""
    ordered = windows.sort("unit_id", *_BOUNDS).select("unit_id", "window", *_BOUNDS)
    before = pl.col("window_end_ns").shift(1).over("unit_id")
    is_disjoint = ordered.select((pl.col("window_start_ns") >= before).all()).item()
    if not is_disjoint or ordered["unit_id"].is_unique().all():
        return intervals.join(ordered.lazy(), on="unit_id")
    numbered = ordered.with_columns(_at=pl.int_range(pl.len(), dtype=pl.Int64).over("unit_id"))
    starts = numbered.lazy().select("unit_id", "_at", _start="window_start_ns").sort("_start")
    # the windows from that of the start to that of the last instant
    found = intervals
    for at, name in ((pl.col("start_ns"), "_from"), (pl.col("_reach") - 1, "_to")):
        found = (
            found.with_columns(_when=at)
            .sort("_when")
            .join_asof(
                starts.rename({"_at": name}),
                left_on="_when",
                right_on="_start",
                by="unit_id",
                coalesce=False,
                check_sortedness=False,
            )
            .drop("_when", "_start")
        )
    return (
        found.filter(pl.col("_to").is_not_null())
        .with_columns(_at=pl.int_ranges(pl.col("_from").fill_null(0), pl.col("_to") + 1))
        .drop("_from", "_to")
        .explode("_at", empty_as_null=False)
        .join(numbered.lazy(), on=["unit_id", "_at"])
        .drop("_at")
    )


def device_scope(trace: Trace) -> Scope | None:
    """What happened on the device, on the clock that most engine tracks have; None without device tracks."""
    clock_id = _main_clock(trace.tracks)
    if clock_id is None:
        return None
    scope = scope_of(trace, clock_id, DEVICE_KINDS)
    others = trace.tracks.filter(
        pl.col("kind").is_in(DEVICE_KINDS) & (pl.col("clock_id") != clock_id)
    )
    if others.height:
        text = (
            f"device figures are those of clock {clock_id}; {others.height} tracks of other clocks share no axis with it "
            "and are only listed under clocks"
        )
        return replace(scope, notes=(*scope.notes, text))
    return scope


def scope_of(trace: Trace, clock_id: int, kinds: Collection[str]) -> Scope:
    """The tracks of some kinds on one clock.

    Args:
        trace: the trace.
        clock_id: the clock.
        kinds: track kinds, such as DEVICE_KINDS.
    """
    lanes = _lanes(trace.tracks, clock_id, kinds)
    units = _units(trace, lanes)
    all_events = _events(trace, lanes)
    first, last, unfinished, negative = (
        trace.survey.filter(pl.col("track_id").is_in(lanes["track_id"].implode()))
        .select(
            pl.col("work_first_ns").min(),
            pl.col("work_last_ns").max(),
            pl.col("unfinished", "negative").sum(),
        )
        .row(0)
    )
    span = None if first is None else (int(first), int(last))
    windows, notes = _windows(trace.steps, clock_id, units, span)
    if unfinished:
        still_open = "1 event was" if unfinished == 1 else f"{unfinished} events were"
        notes.append(f"{still_open} still open when the recording ended: no time is counted for it")
    if negative:
        notes.append(f"events of negative duration are left out ({negative}): see trnprof validate")
    usable = all_events.filter(pl.col("end_ns") >= pl.col("start_ns"))
    return Scope(clock_id, units, lanes, windows, usable, int(unfinished), tuple(notes))


def _main_clock(tracks: pl.DataFrame) -> int | None:
    for kinds in (("engine",), DEVICE_KINDS):
        found = (
            tracks.filter(pl.col("kind").is_in(kinds))
            .group_by("clock_id")
            .len()
            .sort(pl.col("len"), pl.col("clock_id"), descending=[True, False])
        )
        if found.height:
            return int(found["clock_id"][0])
    return None


def _lanes(tracks: pl.DataFrame, clock_id: int, kinds: Collection[str]) -> pl.DataFrame:
    kind = pl.col("kind").cast(pl.String)
    resource = (
        pl.when(kind == "dma_queue")
        .then(pl.lit("DMA"))
        .when(kind == "collective_stream")
        .then(pl.lit("Collective"))
        .otherwise(pl.col("name"))
    )
    placed = tracks.with_columns(unit_id=ancestors(tracks, UNIT_KINDS))
    chosen = (
        (pl.col("clock_id") == clock_id) & kind.is_in(list(kinds)) & pl.col("replica_of").is_null()
    )
    return (
        placed.filter(chosen)
        .unique("track_id", keep="first", maintain_order=True)
        .select(
            "track_id",
            unit_id=pl.coalesce("unit_id", "track_id"),
            kind=kind,
            resource=resource,
            sort_order="sort_order",
        )
    )


def ancestors(tracks: pl.DataFrame, kinds: Sequence[str]) -> pl.Series:
    """The nearest track above each track (or itself) of the first kind in ``kinds`` that there is one of.

    Args:
        tracks: columns track_id, parent_id, kind.
        kinds: in order of preference.

    Returns:
        uint32, one a row; null where there is none. Parents that do not exist end the climb, circles too.
    """
    ids = tracks["track_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    parents = tracks["parent_id"].to_numpy(allow_copy=True)
    wanted = np.nan_to_num(parents.astype(np.float64), nan=-1.0)
    place = np.minimum(np.searchsorted(ids[order], wanted), max(len(ids) - 1, 0))
    up = np.where(ids[order][place] == wanted, order[place], -1) if len(ids) else np.empty(0, int)
    kind = tracks["kind"].cast(pl.String).to_numpy()
    found = np.full((len(kinds), len(ids)), -1)
    at = np.arange(len(ids))
    for _ in range(64):
        if not (at >= 0).any():
            break
        for row, name in enumerate(kinds):
            hit = (found[row] < 0) & (at >= 0) & (kind[at] == name)
            found[row][hit] = at[hit]
        at = np.where(at >= 0, up[at], -1)
    best = np.full(len(ids), -1)
    for places in found:
        best = np.where(best < 0, places, best)
    values = [None if b < 0 else int(ids[b]) for b in best]
    return pl.Series("ancestor", values, dtype=pl.UInt32)


def _units(trace: Trace, lanes: pl.DataFrame) -> pl.DataFrame:
    """A queue's peak is the rate of all DMA engines of its unit: the largest counts, never their sum."""
    tracks = trace.tracks.unique("track_id", keep="first", maintain_order=True)
    own = tracks.rename({"track_id": "unit_id", "peak_flops": "own"}).select(
        "unit_id",
        pl.col("kind").cast(pl.String).alias("unit_kind"),
        "name",
        "rank",
        "chip",
        "core",
        "host",
        "replica_count",
        "own",
        "peak_bytes_per_s",
    )
    peaks = (
        lanes.join(
            tracks.select("track_id", "peak_flops", queue_peak="peak_bytes_per_s"), on="track_id"
        )
        .group_by("unit_id")
        .agg(
            pl.col("peak_flops").filter(pl.col("resource") == "Tensor").max().alias("tensor"),
            pl.col("peak_flops").max().alias("any"),
            pl.col("queue_peak").filter(pl.col("kind") == "dma_queue").max(),
            (pl.col("kind") == "stream").any().alias("has_streams"),
        )
    )
    return (
        lanes.select("unit_id")
        .unique()
        .join(own, on="unit_id")
        .join(peaks, on="unit_id")
        .with_columns(
            peak_flops=pl.coalesce("tensor", "any", "own"),
            dma_peak_bytes_per_s=pl.min_horizontal("peak_bytes_per_s", "queue_peak"),
        )
        .drop("queue_peak", "tensor", "any", "own")
        .sort("unit_id")
    )


def _events(trace: Trace, lanes: pl.DataFrame) -> pl.LazyFrame:
    where = lanes.lazy().select("track_id", "unit_id", "kind", "resource")
    return (
        trace.events.filter(
            pl.col("track_id").is_in(lanes["track_id"].implode()) & (pl.col("category") != "marker")
        )
        .select(*_EVENT_COLUMNS, end_ns=pl.col("start_ns") + pl.col("duration_ns"))
        .join(where, on="track_id", maintain_order="left")
    )


def _windows(
    steps: pl.DataFrame, clock_id: int, units: pl.DataFrame, span: tuple[int, int] | None
) -> tuple[pl.DataFrame, list[str]]:
    """Windows 0… are the clock's steps in order, the last one is everything."""
    notes: list[str] = []
    known = steps.filter(pl.col("end_ns") >= pl.col("start_ns"))
    rows = _step_windows(known.filter(pl.col("clock_id") == clock_id), units)
    if not rows.height:
        where = f" on clock {clock_id}, only on others" if known.height else ""
        notes.append(f"no steps were marked{where}: figures are for the whole trace")
        start, end = span or (0, 0)
        whole = units.select("unit_id", window_start_ns=pl.lit(start), window_end_ns=pl.lit(end))
    else:
        whole = rows.group_by("unit_id").agg(
            pl.col("window_start_ns").min(), pl.col("window_end_ns").max()
        )
    steps_in_order = rows.select("step").unique().sort("step").with_row_index("window")
    rows = rows.join(steps_in_order, on="step")
    overall = whole.with_columns(
        window=pl.lit(steps_in_order.height, pl.UInt32),
        step=pl.lit(None, pl.Int32),
        label=pl.lit("all steps" if rows.height else "whole trace"),
    )
    columns = ["window", "step", "label", "unit_id", "window_start_ns", "window_end_ns"]
    both = pl.concat([rows.select(columns), overall.select(columns)], how="vertical_relaxed")
    return both.sort("window", "unit_id"), notes


def _step_windows(steps: pl.DataFrame, units: pl.DataFrame) -> pl.DataFrame:
    """A unit takes its own rank's steps, and all ranks' together where its rank has none."""
    bounds = [
        pl.col("start_ns").min().alias("window_start_ns"),
        pl.col("end_ns").max().alias("window_end_ns"),
        pl.col("label").first(),
    ]
    by_rank = steps.group_by("step", "rank").agg(bounds)
    together = steps.group_by("step").agg(bounds)
    has_own = units.select("unit_id", "rank").join(by_rank.select("rank").unique(), on="rank")
    own = has_own.join(by_rank, on="rank").drop("rank")
    rest = (
        units.select("unit_id").join(has_own, on="unit_id", how="anti").join(together, how="cross")
    )
    columns = ["unit_id", "step", "label", "window_start_ns", "window_end_ns"]
    return pl.concat([own.select(columns), rest.select(columns)], how="vertical_relaxed")
