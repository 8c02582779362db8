"""How long after the host's call does the device begin, how many calls wait in its queues, and when does it wait for the host?

For profiles of host-driven devices (GPUs): a launch is a flow of kind launch from a span of a thread to an event of a stream. Its *call* is that
span; its *delay* the time from the call's end to the event's start (0 if the event begins before the call returns); its *overhead* the
time from the call's start. It waits in its stream's queue from the call's start to the event's start: the *depth* counts those that do.

A unit's window is partitioned:

    busy        an event is active
    queued      nothing is active, but a launch waits in a queue: what the hardware needs to begin
    host-bound  nothing is active and nothing is queued: the host has not called yet
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

BINS: Final = 20
_UNIT: Final = ["unit_id"]


def launches(scope: Scope, trace: Trace) -> pl.DataFrame:
    """The events of a window that the host launched.

    Args:
        scope: of one window.
        trace: it is of.

    Returns:
        One row an event that begins in the window, in order of start: unit_id, track_id, name, start_ns, end_ns (clipped), call (name), call_start_ns,
        call_end_ns; of several launches of one event the last before it counts. Those whose call begins after the event are left out.
    """
    threads = trace.tracks.filter(
        (pl.col("kind").cast(pl.String) == "thread") & (pl.col("clock_id") == scope.clock_id)
    )
    calls = (
        trace.events.filter(
            pl.col("track_id").is_in(threads["track_id"].implode()) & (pl.col("duration_ns") >= 0)
        )
        .select(
            source_event="event_id",
            call=pl.col("name").cast(pl.String),
            call_start_ns="start_ns",
            call_end_ns=pl.col("start_ns") + pl.col("duration_ns"),
        )
        .unique("source_event", keep="first", maintain_order=True)
    )
    device = scope.inside().filter(pl.col("starts_inside") & (pl.col("kind") == "stream"))
    targets = device.select(
        "event_id", "unit_id", "track_id", "start_ns", "end_ns", name=pl.col("name").cast(pl.String)
    )
    return (
        trace.flows.filter(pl.col("kind").cast(pl.String) == "launch")
        .select("source_event", event_id="target_event")
        .join(targets, on="event_id")
        .join(calls, on="source_event")
        .filter(pl.col("call_start_ns") <= pl.col("start_ns"))
        .collect(engine="streaming")
        .sort("call_start_ns", "source_event")
        .unique("event_id", keep="last", maintain_order=True)
        .sort("start_ns", "event_id")
        .drop("event_id", "source_event")
    )


def launch_figures(found: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """What launching takes.

    Args:
        found: of ``launches``.
        by: its columns to group by, such as track_id; at least one.

    Returns:
        One row a group: launches, call_ns and delay_ns and overhead_ns (medians), longest_delay_ns, sums call_total_ns and delay_total_ns, shorter (events that
        take less time than the call that launched them).
    """
    call = pl.col("call_end_ns") - pl.col("call_start_ns")
    delay = (pl.col("start_ns") - pl.col("call_end_ns")).clip(0)
    overhead = pl.col("start_ns") - pl.col("call_start_ns")
    return found.group_by(by).agg(
        launches=pl.len(),
        call_ns=call.median(),
        delay_ns=delay.median(),
        overhead_ns=overhead.median(),
        longest_delay_ns=delay.max(),
        call_total_ns=call.sum(),
        delay_total_ns=delay.sum(),
        shorter=(pl.col("end_ns") - pl.col("start_ns") < call).sum(),
    )


def queue_depth(found: pl.DataFrame, scope: Scope, by: str, bins: int = 1) -> pl.DataFrame:
    """How many launches wait, over time.

    Args:
        found: of ``launches``.
        scope: of one window, which is cut to equal bins.
        by: ``track_id`` for each stream's queue, ``unit_id`` for all queues of a unit.
        bins: how many.

    Returns:
        One row a group and bin: by, bin, start_ns, mean_depth (over time), max_depth, waiting_ns (in which the depth is not 0).
    """
    bounds = scope.windows.select("unit_id", first="window_start_ns", last="window_end_ns")
    placed = found.select("unit_id", by if by != "unit_id" else pl.lit(0).alias("_"), "call_start_ns", "start_ns")  # fmt: skip
    placed = placed.join(bounds, on="unit_id")
    groups = placed.select(by, "first", "last").unique(by)
    edges = [
        placed.select(by, at=pl.col(n).clip("first", "last"), change=pl.lit(c, pl.Int64))
        for n, c in (("call_start_ns", 1), ("start_ns", -1))
    ]
    width = pl.col("last") - pl.col("first")
    cuts = groups.select(
        by,
        at=pl.int_ranges(0, bins + 1, dtype=pl.Int64),
        change=pl.lit(0, pl.Int64),
        first="first",
        width=width,
    ).explode("at")
    cuts = cuts.with_columns(at=_bin_start(pl.col("at"), bins)).select(by, "at", "change")
    steps = pl.concat([*edges, cuts]).sort(by, "at", "change")
    depth = pl.col("change").cum_sum().over(by)
    pieces = (
        steps.with_columns(depth=depth, until=pl.col("at").shift(-1).over(by))
        .filter(pl.col("until") > pl.col("at"))
        .join(groups.select(by, "first", width=width), on=by)
        .with_columns(length=pl.col("until") - pl.col("at"))
    )
    starts = groups.select(by, "first", width=width).join(
        pl.DataFrame({"bin": range(bins)}, schema={"bin": pl.Int64}), how="cross"
    )
    starts = starts.with_columns(start_ns=_bin_start(pl.col("bin"), bins)).drop("width", "first")
    placed_in = pieces.sort("at").join_asof(
        starts.sort("start_ns"), left_on="at", right_on="start_ns", by=by, coalesce=False, check_sortedness=False
    )  # fmt: skip
    length = pl.col("length")
    return (
        placed_in.group_by(by, "bin", "start_ns")
        .agg(
            mean_depth=(pl.col("depth") * length).sum() / length.sum(),
            max_depth=pl.col("depth").max(),
            waiting_ns=length.filter(pl.col("depth") > 0).sum(),
        )
        .sort(by, "bin")
    )


def host_bound(found: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """Where the time of each unit that the host drives goes.

    Args:
        found: of ``launches``.
        scope: of one window.

    Returns:
        One row a unit with launches: unit_id, total_ns, busy_ns, queued_ns and host_bound_ns, which sum to it.
    """
    events = scope.inside().select("unit_id", "start_ns", "end_ns")
    waits = scope.in_windows(
        found.lazy().select("unit_id", start_ns="call_start_ns", end_ns="start_ns")
    ).select("unit_id", "start_ns", "end_ns")
    busy = covered_ns(events, _UNIT, "busy_ns").collect(engine="streaming")
    either = covered_ns(pl.concat([events, waits]), _UNIT, "either_ns").collect(engine="streaming")
    lengths = scope.window_lengths().select("unit_id", "total_ns")
    return (
        lengths.join(found.select("unit_id").unique(), on="unit_id")
        .join(busy, on="unit_id", how="left")
        .join(either, on="unit_id", how="left")
        .with_columns(pl.col("busy_ns", "either_ns").fill_null(0))
        .with_columns(
            queued_ns=pl.col("either_ns") - pl.col("busy_ns"),
            host_bound_ns=pl.col("total_ns") - pl.col("either_ns"),
        )
        .drop("either_ns")
        .sort("unit_id")
    )


def _bin_start(number: pl.Expr, bins: int) -> pl.Expr:
    """Where a bin of a window begins: columns first and width."""
    return pl.col("first") + number * pl.col("width") // bins
