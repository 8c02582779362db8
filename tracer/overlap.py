"""Which events begin before an earlier one of their lane has ended?"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def overlapping(intervals: pl.DataFrame) -> pl.DataFrame:
    """The rows that begin before the end of an earlier row of their track.

    Args:
        intervals: ``track_id``, ``start_ns``, ``end_ns`` and whatever else; end ≥ start. Rows of no length overlap nothing.

    Returns:
        Those rows, sorted by track and start, with ``busy_until_ns``: the latest end before them.
    """
    return (
        intervals.filter(pl.col("end_ns") > pl.col("start_ns"))
        .sort("track_id", "start_ns", maintain_order=True)
        .with_columns(pl.col("end_ns").cum_max().shift(1).over("track_id").alias("busy_until_ns"))
        .filter(pl.col("start_ns") < pl.col("busy_until_ns"))
    )


def overlapping_events(parts: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """The overlapping events of all shards together, without holding all shards in memory.

    Shard by shard, except for the tracks whose time ranges in two shards overlap: of those all intervals are collected.

    Args:
        parts: frames of events.

    Returns:
        ``event_id``, ``track_id``, ``start_ns``, ``end_ns``, ``busy_until_ns``.
    """
    spans = [_intervals(part) for part in parts]
    mixed = _tracks_across(spans) if len(spans) > 1 else pl.Series("track_id", [], pl.UInt32)
    crosses = pl.col("track_id").is_in(mixed.implode())
    found = [overlapping(span.filter(~crosses).collect()) for span in spans]
    if len(mixed):
        found.append(overlapping(pl.concat(spans).filter(crosses).collect()))
    return pl.concat(found)


def _intervals(events: pl.LazyFrame) -> pl.LazyFrame:
    end = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
    finished = events.filter(pl.col("duration_ns") > 0)
    return finished.select("event_id", "track_id", "start_ns", end)


def _tracks_across(spans: Sequence[pl.LazyFrame]) -> pl.Series:
    ranges = [
        span.group_by("track_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        for span in spans
    ]
    return overlapping(pl.concat(pl.collect_all(ranges)))["track_id"].unique()
