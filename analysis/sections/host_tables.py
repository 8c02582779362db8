"""What the host adds to ``operators``: launches, queues, time in which the device waits for it, and spans of threads."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.host_spans import host_scope, host_spans
from trnprof.analysis.launches import BINS, host_bound, launch_figures, launches, queue_depth
from trnprof.analysis.metrics import ratio
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Subject, Table, table
from trnprof.tracer.reader import Trace

TOP: Final = 20


def host_tables(subject: Subject, scope: Scope) -> list[Table]:
    """Launches of the host, if it drives the device, and its threads' spans.

    Args:
        subject: of the step and rank to look at.
        scope: of that window, on the device.
    """
    host = host_scope(subject.trace, scope.clock_id, subject.step, subject.rank)
    if host is None:
        return []
    found = launches(scope, subject.trace)
    driven = _launch_tables(found, scope, subject.trace) if found.height else []
    return [*driven, _spans(host_spans(host, subject.trace))]


def _launch_tables(found: pl.DataFrame, scope: Scope, trace: Trace) -> list[Table]:
    places = scope.units.select("unit_id", "rank", unit="name")
    streams = scope.lanes.select("track_id", "unit_id", stream="resource").join(places, on="unit_id")  # fmt: skip
    figures = launch_figures(found, ["track_id"]).join(streams, on="track_id")
    by_stream = (
        figures.join(queue_depth(found, scope, "track_id").drop("bin", "start_ns"), on="track_id")
        .join(scope.window_lengths().select("unit_id", "total_ns"), on="unit_id")
        .with_columns(waiting_share=ratio(pl.col("waiting_ns"), pl.col("total_ns")))
        .sort("rank", "launches", "track_id", descending=[False, True, False])
        .drop("track_id", "unit_id", "total_ns")
    )
    partition = host_bound(found, scope).join(places, on="unit_id")
    shares = [
        ratio(pl.col(f"{n}_ns"), pl.col("total_ns")).alias(f"{n}_share")
        for n in ("busy", "queued", "host_bound")
    ]
    return [
        _host_bound(partition.with_columns(shares).sort("rank", "unit_id").drop("unit_id")),
        _launches(by_stream),
        _queues(by_stream),
        _over_time(queue_depth(found, scope, "unit_id", BINS).join(places, on="unit_id"), scope),
    ]


def _host_bound(rows: pl.DataFrame) -> Table:
    columns = (
        Column("unit", "device"),
        Column("rank", "rank", "number"),
        Column("busy_share", "busy", "percent"),
        Column("queued_share", "idle, queued", "percent"),
        Column("host_bound_share", "waits for host", "percent"),
        Column("host_bound_ns", "that is", "ns"),
    )
    return table("host_bound", "what the device waits for: launches in its queues, or the host", columns, rows, TOP)  # fmt: skip


def _launches(rows: pl.DataFrame) -> Table:
    columns = (
        Column("stream", "launches on"),
        Column("rank", "rank", "number"),
        Column("launches", "count", "count"),
        Column("call_ns", "call", "ns"),
        Column("delay_ns", "delay", "ns"),
        Column("longest_delay_ns", "longest delay", "ns"),
        Column("shorter", "shorter than call", "count"),
    )
    return table("launches", "launches: median of the call, and from its end to the start on the device", columns, rows, TOP)  # fmt: skip


def _queues(rows: pl.DataFrame) -> Table:
    columns = (
        Column("stream", "queue of"),
        Column("rank", "rank", "number"),
        Column("mean_depth", "mean depth", "number"),
        Column("max_depth", "deepest", "count"),
        Column("waiting_share", "not empty", "percent"),
    )
    rounded = rows.with_columns(pl.col("mean_depth").round(3))
    return table("queues", "launches that wait", columns, rounded, TOP)


def _over_time(rows: pl.DataFrame, scope: Scope) -> Table:
    """Queue depths over the window, means over the units that the host drives."""
    start = int(scope.windows["window_start_ns"].min() or 0)  # type: ignore[arg-type]
    means = (
        rows.group_by("bin")
        .agg(
            from_ns=pl.col("start_ns").min() - start,
            mean_depth=pl.col("mean_depth").mean().round(3),
            max_depth=pl.col("max_depth").max(),
        )
        .sort("bin")
    )
    columns = (
        Column("from_ns", "from", "ns"),
        Column("mean_depth", "mean depth", "number"),
        Column("max_depth", "deepest", "count"),
    )
    return table("queue_depth_over_time", "launches that wait, over time", columns, means)


def _spans(rows: pl.DataFrame) -> Table:
    columns = (
        Column("name", "host span"),
        Column("count", "count", "count"),
        Column("inclusive_ns", "inclusive", "ns"),
        Column("self_ns", "self", "ns"),
        Column("share", "of all self", "percent"),
    )
    return table("host_spans", "host spans, nested ones taken out of self", columns, rows, TOP)
