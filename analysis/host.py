"""What did the host do? Threads and their longest spans, on each host clock by itself."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from trnprof.analysis.intervals import covered_ns
from trnprof.tracer.reader import Trace

TOP_SPANS: Final = 10


def host_activity(trace: Trace) -> dict[str, Any] | list[dict[str, Any]]:
    """Threads with active time, and spans by the time they cover.

    Returns:
        One entry a thread, busiest first: clock_id, host, name, active_time (s, union over its lanes), span_count,
        unfinished, spans (name, count, time_s: union, nested ones included; at most TOP_SPANS).
    """
    threads = thread_lanes(trace.tracks)
    if not threads.height:
        return {"nothing_to_say": "because the trace has no host threads"}
    columns = ["track_id", "name", "start_ns", end_ns := "end_ns"]
    events = (
        trace.events.filter(pl.col("category") != "marker")
        .with_columns((pl.col("start_ns") + pl.col("duration_ns")).alias(end_ns))
        .select(columns)
        .join(threads.lazy().select("track_id", "thread"), on="track_id")
    )
    counts = events.group_by("thread").agg(
        pl.len().alias("span_count"), pl.col("end_ns").is_null().sum().alias("unfinished")
    )
    done = events.filter(pl.col("end_ns") >= pl.col("start_ns"))
    spans = done.group_by("thread", "name").agg(pl.len().alias("count"))
    wanted = (
        counts,
        covered_ns(done, ["thread"], "active_ns"),
        spans,
        covered_ns(done, ["thread", "name"], "time_ns"),
    )
    # one after the other, in pieces: at once takes more memory
    return _rows(threads, *(frame.collect(engine="streaming") for frame in wanted))


def thread_lanes(tracks: pl.DataFrame) -> pl.DataFrame:
    """Lanes of threads: track_id, and thread (ordinal: the lanes of one are siblings of one name), clock_id, host, parent_id, name."""
    lanes = tracks.filter(pl.col("kind") == "thread").with_columns(
        pl.col("parent_id").cast(pl.Int64).fill_null(-1)
    )
    families = (
        lanes.group_by("clock_id", "host", "parent_id", "name", maintain_order=True)
        .agg("track_id")
        .with_row_index("thread")
    )
    return families.explode("track_id", empty_as_null=False)


def _rows(
    threads: pl.DataFrame,
    counts: pl.DataFrame,
    active: pl.DataFrame,
    spans: pl.DataFrame,
    times: pl.DataFrame,
) -> list[dict[str, Any]]:
    top = (
        spans.join(times, on=["thread", "name"], how="left")
        .with_columns(pl.col("name").cast(pl.String), time_s=pl.col("time_ns").fill_null(0) / 1e9)
        .sort("thread", "time_s", "name", descending=[False, True, False])
        .group_by("thread", maintain_order=True)
        .head(TOP_SPANS)
        .group_by("thread", maintain_order=True)
        .agg(pl.struct("name", "count", "time_s").alias("spans"))
    )
    return (
        threads.unique("thread", maintain_order=True)
        .join(counts, on="thread", how="left")
        .join(active, on="thread", how="left")
        .join(top, on="thread", how="left")
        .with_columns(
            pl.col("span_count", "unfinished").fill_null(0),
            active_time=pl.col("active_ns").fill_null(0) / 1e9,
            spans=pl.col("spans").fill_null([]),
        )
        .sort("clock_id", "active_time", "name", descending=[False, True, False])
        .select("clock_id", "host", "name", "active_time", "span_count", "unfinished", "spans")
        .to_dicts()
    )
