"""How long did each rank compute, communicate, copy and idle, and how much of its communication did compute hide?

Of all device events of a rank together, on whatever GPUs, engines and streams they lie, by unions of intervals, exact in ns:

    span                   first start to last end (of a step: the step)
    busy                   any device event runs;  idle = span - busy
    compute                a kernel (an engine's instruction) runs that neither communicates nor copies
    non_compute            busy - compute
    communication          a collective runs;  overlap = compute and communication at once
    overlap_share          overlap / communication; null, not a number out of nothing, where there is none
    exposed_communication  communication - overlap
    copy_only              only copies run (DMA, memcpy, memset, their issue): neither compute nor communication
    empty                  nothing runs: idle under another name, so that compute + exposed_communication + copy_only + empty = span

A *unit* is a rank; events of no rank go by chip. Waits for synchronisation and ranges drawn on a device are not device events (their
tracks say so), kernels without a known launch are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trnprof.analysis.intervals import segments
from trnprof.analysis.metrics import IS_COLLECTIVE, IS_DMA, ratio
from trnprof.analysis.scope import ancestors
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import DEVICE_KINDS

TIMES: Final = (
    "span_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "non_compute_ns",
    "communication_ns",
    "overlap_ns",
    "exposed_communication_ns",
    "copy_only_ns",
)
_LABELS: Final = ("compute", "communication", "copy")
_COVERED: Final = {
    "busy_ns": pl.col("compute") | pl.col("communication") | pl.col("copy"),
    "compute_ns": pl.col("compute"),
    "communication_ns": pl.col("communication"),
    "overlap_ns": pl.col("compute") & pl.col("communication"),
    "copy_only_ns": pl.col("copy") & ~pl.col("compute") & ~pl.col("communication"),
}


@dataclass(frozen=True)
class RankBreakdown:
    """Where the device time of each unit goes.

    Attributes:
        units: unit, name, rank (null: goes by chip), host, clock_id, chips (how many), replica_count.
        whole: unit, start_ns (first device event), the columns of TIMES, overlap_share, device_events, compute_events,
            communication_events, copy_events; units without finished device events are left out.
        steps: unit, step, label and the columns of ``whole``; start_ns is the step's. Event counts are of what the step issued, or
            of what started in it where events do not name their step.
    """

    units: pl.DataFrame
    whole: pl.DataFrame
    steps: pl.DataFrame


def rank_breakdown(trace: Trace) -> RankBreakdown:
    """Break down the device time of every rank, on its own clock, over the whole trace and by step.

    Args:
        trace: an opened trace.
    """
    lanes, units = rank_lanes(trace.tracks)
    events = _events(trace, lanes).collect(engine="streaming").lazy()
    pieces = segments(events, ["unit"], "label", _LABELS).collect()
    length = pl.col("end_ns") - pl.col("start_ns")
    covered = pieces.group_by("unit").agg(
        *(length.filter(e).sum().alias(n) for n, e in _COVERED.items())
    )
    counts = events.group_by("unit").agg(
        start_ns=pl.col("start_ns").min(),
        span_ns=pl.col("end_ns").max() - pl.col("start_ns").min(),
        **_counts(),
    )
    whole = counts.collect().join(covered, on="unit", how="left")
    whole = _completed(whole.with_columns(pl.col(*_COVERED).fill_null(0)))
    steps = _by_step(trace, units, pieces, events)
    return RankBreakdown(units, whole.sort("unit"), steps)


def rank_lanes(tracks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The device lanes (track_id, kind, unit), and the units."""
    placed = (
        tracks.drop("unit")
        .with_columns(
            root=ancestors(tracks, ("host",)),
            chip_id=ancestors(tracks, ("chip",)),
            kind=pl.col("kind").cast(pl.String),
        )
        .unique("track_id", keep="first", maintain_order=True)
        .filter(pl.col("kind").is_in(DEVICE_KINDS) & pl.col("replica_of").is_null())
        .with_columns(
            by_chip=pl.when(pl.col("rank").is_null()).then(pl.coalesce("chip_id", "track_id"))
        )
    )
    keys = ["root", "rank", "by_chip", "clock_id"]
    units = (
        placed.group_by(keys, maintain_order=True)
        .agg(
            pl.col("host").first(),
            pl.col("chip_id").drop_nulls().n_unique().alias("chips"),
            pl.col("replica_count").max(),
            pl.col("track_id").min().alias("first"),
        )
        .join(
            tracks.select(by_chip="track_id", chip_name="name").unique("by_chip"),
            on="by_chip",
            how="left",
        )
        .join(_cores_of_ranks(tracks), on="rank", how="left")
        .sort(pl.col("rank").is_null(), "rank", "first")
        .with_row_index("unit")
        .with_columns(
            replica_count=pl.max_horizontal(
                1, pl.col("replica_count") // pl.col("cores").fill_null(1)
            ),
            name=pl.when(pl.col("rank").is_null())
            .then("chip_name")
            .otherwise(pl.concat_str(pl.lit("rank "), "rank")),
        )
    )
    lanes = placed.join(units.select(*keys, "unit"), on=keys, nulls_equal=True)
    columns = ["unit", "name", "rank", "host", "clock_id", "chips", "replica_count"]
    return lanes.select("track_id", "kind", "unit"), units.select(columns)


def _cores_of_ranks(tracks: pl.DataFrame) -> pl.DataFrame:
    """Columns rank, cores: a core's track stands for cores, a unit for ranks."""
    of_kind = tracks.filter(pl.col("kind").cast(pl.String) == "core")
    return of_kind.group_by("rank").agg(cores=pl.len().cast(pl.Int32))


def _events(trace: Trace, lanes: pl.DataFrame) -> pl.LazyFrame:
    """Finished device events: unit, step, start_ns, end_ns, label."""
    label = (
        pl.when(IS_COLLECTIVE)
        .then(pl.lit("communication"))
        .when(IS_DMA | (pl.col("category") == "sync"))
        .then(pl.lit("copy"))
        .otherwise(pl.lit("compute"))
    )
    return (
        trace.events.select("track_id", "start_ns", "duration_ns", "category", "step")
        .filter(pl.col("track_id").is_in(lanes["track_id"].implode()))
        .filter((pl.col("category") != "marker") & (pl.col("duration_ns") >= 0))
        .join(lanes.lazy(), on="track_id")
        .select(
            "unit",
            "step",
            "start_ns",
            end_ns=pl.col("start_ns") + pl.col("duration_ns"),
            label=label,
        )
    )


def _counts() -> dict[str, pl.Expr]:
    label = pl.col("label")
    parts = {f"{n}_events": (label == n).sum().cast(pl.Int64) for n in _LABELS}
    return {"device_events": pl.len().cast(pl.Int64), **parts}


def _completed(frame: pl.DataFrame) -> pl.DataFrame:
    """Add what follows from the unions, in the order of TIMES."""
    added = frame.with_columns(
        idle_ns=pl.col("span_ns") - pl.col("busy_ns"),
        non_compute_ns=pl.col("busy_ns") - pl.col("compute_ns"),
        exposed_communication_ns=pl.col("communication_ns") - pl.col("overlap_ns"),
        overlap_share=ratio(pl.col("overlap_ns"), pl.col("communication_ns")),
    )
    first = [n for n in ("unit", "step", "label") if n in frame.columns]
    return added.select(*first, "start_ns", *TIMES, "overlap_share", *_counts())


def _by_step(
    trace: Trace, units: pl.DataFrame, pieces: pl.DataFrame, events: pl.LazyFrame
) -> pl.DataFrame:
    windows = rank_windows(trace.steps, units)
    running = _running(pieces)
    start, end = (_until(windows, running, column) for column in ("start_ns", "end_ns"))
    covered = [(end[n] - start[n]).alias(n) for n in _COVERED]
    keys = ["unit", "step"]
    frame = windows.with_columns(*covered, span_ns=pl.col("end_ns") - pl.col("start_ns"))
    counted = events.filter(pl.col("step").is_not_null()).group_by(keys).agg(**_counts()).collect()
    silent = windows.join(counted.select("unit").unique(), on="unit", how="anti")
    if silent.height:
        starts = events.select("unit", "label", at="start_ns")
        in_time = (
            starts.join_where(
                silent.lazy().select("step", "start_ns", "end_ns", own="unit"),
                pl.col("unit") == pl.col("own"),
                pl.col("at") >= pl.col("start_ns"),
                pl.col("at") < pl.col("end_ns"),
            )
            .group_by(keys)
            .agg(**_counts())
        )
        counted = pl.concat([counted, in_time.collect().select(counted.columns)])
    joined = frame.join(counted, on=keys, how="left").with_columns(pl.col(*_counts()).fill_null(0))
    return _completed(joined).sort("unit", "start_ns", "step")


def rank_windows(steps: pl.DataFrame, units: pl.DataFrame) -> pl.DataFrame:
    """Steps of the unit's rank on its clock; those of all ranks together where its rank has none: unit, step, label, times."""
    known = steps.filter(pl.col("end_ns") >= pl.col("start_ns")).select(
        "clock_id", "rank", "step", "label", "start_ns", "end_ns"
    )
    bounds = [pl.col("label").first(), pl.col("start_ns").min(), pl.col("end_ns").max()]
    places = units.select("unit", "clock_id", "rank")
    by_rank = known.group_by("clock_id", "rank", "step").agg(bounds)
    own = places.join(by_rank, on=["clock_id", "rank"])
    rest = places.join(own, on="unit", how="anti").drop("rank")
    together = known.group_by("clock_id", "step").agg(bounds)
    columns = ["unit", "step", "label", "start_ns", "end_ns"]
    other = rest.join(together, on="clock_id")
    return pl.concat([own.select(columns), other.select(columns)]).sort("unit", "start_ns", "step")


def _running(pieces: pl.DataFrame) -> pl.DataFrame:
    """Pieces with what every kind of time sums to before them."""
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = [
        (pl.when(e).then(length).otherwise(0))
        .cum_sum()
        .shift(1, fill_value=0)
        .over("unit")
        .alias(n)
        for n, e in _COVERED.items()
    ]
    flags = [e.alias(f"is_{n}") for n, e in _COVERED.items()]
    return pieces.with_columns(*sums, *flags).rename({"start_ns": "from_ns", "end_ns": "to_ns"})


def _until(windows: pl.DataFrame, running: pl.DataFrame, column: str) -> pl.DataFrame:
    """How much of each kind of time lies before the time in ``column`` of every window, in order of rows."""
    at = windows.select("unit", at=pl.col(column)).with_row_index("row").sort("at")
    found = at.join_asof(
        running.drop(_LABELS).sort("from_ns"),
        left_on="at",
        right_on="from_ns",
        by="unit",
        check_sortedness=False,
    )
    inside = pl.min_horizontal("at", "to_ns") - pl.col("from_ns")
    values = [
        (pl.col(n) + pl.when(f"is_{n}").then(inside).otherwise(0)).fill_null(0).alias(n)
        for n in _COVERED
    ]
    return found.sort("row").select(values)


def breakdown_of(
    units: pl.DataFrame, windows: pl.DataFrame, whole: pl.DataFrame, steps: pl.DataFrame, named: pl.DataFrame
) -> RankBreakdown:  # fmt: skip
    """The breakdown from sums, as ``rank_breakdown`` gives it.

    Args:
        units: as ``rank_lanes`` gives them.
        windows: as ``rank_windows`` gives them.
        whole: unit, start_ns, span_ns, compute_ns, with_collectives_ns, active_ns, communication_ns, and how many events of each kind started.
        steps: the same without times of its own, by unit and step, of units whose events do not name their steps with such counts.
        named: unit, step and the counts of events that name it.
    """
    has_named = named.select("unit").unique()
    counts = pl.concat(
        [
            named.select("unit", "step", *_counts()),
            steps.join(has_named, on="unit", how="anti").select("unit", "step", *_counts()),
        ],
        how="vertical_relaxed",
    )
    by_step = (
        windows.with_columns(span_ns=pl.col("end_ns") - pl.col("start_ns"))
        .join(steps.drop(*_counts()), on=["unit", "step"], how="left")
        .join(counts, on=["unit", "step"], how="left")
        .with_columns(pl.col(*_counts(), *_SUMS).fill_null(0))
    )
    frames = [_completed(f.with_columns(**_FROM_SUMS)) for f in (whole, by_step)]
    return RankBreakdown(units, frames[0].sort("unit"), frames[1].sort("unit", "start_ns", "step"))


_SUMS: Final = ("compute_ns", "with_collectives_ns", "active_ns", "communication_ns")
_FROM_SUMS: Final = {
    "busy_ns": pl.col("active_ns"),
    "overlap_ns": pl.col("compute_ns") + pl.col("communication_ns") - pl.col("with_collectives_ns"),
    "copy_only_ns": pl.col("active_ns") - pl.col("with_collectives_ns"),
}


def rank_rows(found: RankBreakdown) -> dict[str, Any]:
    """The breakdown as the report keeps it.

    Returns:
        ranks (one row a unit: its place and the columns of ``RankBreakdown.whole``) and steps (name, rank, step, label and the
        same figures); or nothing_to_say.
    """
    if not found.whole.height:
        return {"nothing_to_say": "because the trace has no finished events of a device"}
    place = found.units.select("unit", "name", "rank", "host", "chips", "clock_id", "replica_count")
    whole = place.join(found.whole, on="unit").sort("unit").drop("unit")
    steps = place.select("unit", "name", "rank").join(found.steps, on="unit")
    in_order = steps.sort("unit", "start_ns", "step").drop("unit")
    return {"ranks": whole.to_dicts(), "steps": in_order.to_dicts()}
