"""Chart ``memory-over-time``: how full was each memory that the trace counts?"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.charts.chart import MAX_ROWS, Chart, with_rows
from trnprof.analysis.sections.section import Column, Subject
from trnprof.tracer.units import counted

SERIES: Final = 4
CHART: Final = Chart(
    "memory-over-time",
    "Memory in use",
    "area",
    x=Column("at_ns", "time", "ns"),
    y=Column("value", "in use", "bytes"),
    color=Column("name", "memory"),
)


def build(subject: Subject) -> Chart:
    """The counters in bytes on the device's clock; of many samples, in equal bins of time the lowest and the highest."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    start, end = subject.scope.windows.filter(
        pl.col("step").is_null() if subject.step is None else pl.col("step") == subject.step
    ).select(pl.col("window_start_ns").min(), pl.col("window_end_ns").max()).row(0)  # fmt: skip
    kept = pl.lit(True) if subject.rank is None else pl.col("rank") == subject.rank
    tracks = subject.trace.tracks.filter(
        (pl.col("kind").cast(pl.String) == "counter")
        & (pl.col("unit") == "B")
        & (pl.col("clock_id") == subject.scope.clock_id)
        & pl.col("replica_of").is_null()
        & kept
    ).unique("track_id")
    reason = "because the trace has no counter of bytes in a memory"
    if not tracks.height or start is None:
        return replace(CHART, nothing_to_say=reason)
    samples = subject.trace.counters.filter(
        pl.col("track_id").is_in(tracks["track_id"].implode()) & (pl.col("timestamp_ns") <= end)
    )
    peaks = samples.group_by("track_id").agg(pl.col("value").max()).collect(engine="streaming")
    largest = peaks.sort("value", "track_id", descending=[True, False]).head(SERIES)
    chosen = samples.filter(pl.col("track_id").is_in(largest["track_id"].implode()))
    drawn, total = _thinned(chosen, start, end, MAX_ROWS // (2 * max(1, largest.height)))
    named = drawn.join(_names(tracks), on="track_id").sort("track_id", "at_ns")
    notes = []
    if drawn.height < total:
        notes.append(
            f"of {counted(total, 'sample')} the lowest and the highest of equal bins of time: no peak is lost"
        )
    if peaks.height > SERIES:
        notes.append(f"the {SERIES} of {peaks.height:,} memories with the highest peak")
    return with_rows(replace(CHART, nothing_to_say=reason), named, notes)


def _names(tracks: pl.DataFrame) -> pl.DataFrame:
    rank = pl.when(pl.col("rank").is_not_null() & (pl.lit(tracks.height) > 1))
    return tracks.select(
        "track_id",
        name=pl.concat_str(
            pl.col("name"), rank.then(pl.format(" of rank {}", "rank")), ignore_nulls=True
        ),
    )


def _thinned(
    samples: pl.LazyFrame, start: int, end: int, bins: int
) -> tuple[pl.DataFrame, int]:  # fmt: skip
    """At most two samples a bin and track, and the last one again at the end: track_id, at_ns, value; and how many samples there are.

    A value holds until the next sample, so that the last one before the start counts at the start.
    """
    clipped = samples.select(
        "track_id", pl.col("timestamp_ns").clip(lower_bound=start).alias("at_ns"), "value"
    )
    width = max(1, (end - start) // max(1, bins))
    at_start = clipped.filter(pl.col("at_ns") == start).group_by("track_id").agg(pl.all().last())
    later = clipped.filter(pl.col("at_ns") > start)
    count = int(later.select(pl.len()).collect(engine="streaming").item())
    if count > 2 * bins:
        later = (
            later.with_columns(bin=(pl.col("at_ns") - start) // width)
            .group_by("track_id", "bin")
            .agg(
                at_ns=pl.concat_list(
                    pl.col("at_ns").get(pl.col("value").arg_min()),
                    pl.col("at_ns").get(pl.col("value").arg_max()),
                ),
                value=pl.concat_list(pl.col("value").min(), pl.col("value").max()),
            )
            .explode("at_ns", "value")
            .drop("bin")
            .unique()
        )
    columns = ["track_id", "at_ns", "value"]
    first = at_start.collect(engine="streaming").select(columns)
    rest = later.collect(engine="streaming").select(columns)
    both = pl.concat([first, rest], how="vertical_relaxed")
    # the last value holds to the end
    newest = pl.col("value").sort_by("at_ns").last()
    last = clipped.group_by("track_id").agg(newest, at_ns=pl.lit(end, pl.Int64)).select(columns)
    ended = pl.concat([both, last.collect(engine="streaming")], how="vertical_relaxed")
    return ended, count + first.height
