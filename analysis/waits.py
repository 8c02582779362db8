"""Why did an engine stand idle? Its idle time by wait reason.

A gap on a lane is charged to the ``wait_reason`` of the event that ends it, back to the start of that event's step. What
is idle without a later event of its step on the lane has the reason ``none_after``, and a gap whose event gives no reason
has ``unknown``, so that in every window, and for all steps as for their sum,

    active time (union) + idle time by reason, none_after and unknown included = window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from trnprof.analysis.scope import Scope

NONE_AFTER: Final = "none_after"
UNKNOWN: Final = "unknown"
_EARLIEST: Final = -(2**61)
_LATEST: Final = 2**61
_LANE: Final = ("track_id", "unit_id", "resource")


def idle_gaps(scope: Scope, carry: Sequence[str] = ()) -> pl.LazyFrame:
    """Every gap on every lane, from the beginning of time to its end.

    Args:
        scope: events and windows.
        carry: columns of the event that ends a gap to give along; null where none of its step does.

    Returns:
        Columns track_id, unit_id, resource, start_ns, end_ns, reason and those of ``carry``.
    """
    before = pl.col("end_ns").cum_max().shift(1).over("track_id").fill_null(_EARLIEST)
    busy = _with_boundary(scope, carry).with_columns(before=before)
    boundary = pl.col("boundary").clip("before", pl.max_horizontal("before", "start_ns"))
    reason = pl.col("wait_reason").cast(pl.String).fill_null(UNKNOWN)
    none_after = pl.lit(NONE_AFTER)
    waits = busy.select(*_LANE, *carry, start_ns=boundary, end_ns="start_ns", reason=reason)
    tails = busy.select(*_LANE, start_ns="before", end_ns=boundary, reason=none_after)
    last = busy.group_by("track_id").agg(start_ns=pl.col("end_ns").max())
    ends = scope.lanes.lazy().join(last, on="track_id", how="left")
    after = ends.select(
        *_LANE,
        pl.col("start_ns").fill_null(_EARLIEST),
        end_ns=pl.lit(_LATEST, pl.Int64),
        reason=none_after,
    )
    gaps = pl.concat([waits, tails, after], how="diagonal" if carry else "vertical")
    return gaps.filter(pl.col("end_ns") > pl.col("start_ns"))


def _with_boundary(scope: Scope, carry: Sequence[str]) -> pl.LazyFrame:
    """Events in order of time, each with the latest step boundary at or before its start (null: none)."""
    bounds = ("window_start_ns", "window_end_ns")
    steps = scope.step_windows().lazy()
    start, end = pl.col("start_ns"), pl.col("window_end_ns")
    boundary = pl.when(start < end).then("window_start_ns").otherwise(end)
    return (
        scope.events.select(*_LANE, *carry, "start_ns", "end_ns", "wait_reason")
        .sort("start_ns", "end_ns", maintain_order=True)
        .join_asof(
            steps.select("unit_id", *bounds).sort(bounds),
            left_on="start_ns",
            right_on="window_start_ns",
            by="unit_id",
            coalesce=False,
            check_sortedness=False,
        )
        .select(
            *_LANE,
            *carry,
            "start_ns",
            "end_ns",
            "wait_reason",
            boundary=boundary.fill_null(_EARLIEST),
        )
    )


def of_reasons(idle: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """Idle time of each resource in each window.

    Args:
        idle: window, unit_id, resource, reason, idle_ns (summed over the resource's lanes).
        scope: whose lanes they are.

    Returns:
        The same rows but those of no time, with tracks (how many lanes: divide by it for the mean lane).
    """
    keys = ["window", "unit_id", "resource", "reason"]
    tracks = scope.lanes.group_by("unit_id", "resource").agg(pl.len().alias("tracks"))
    return idle.filter(pl.col("idle_ns") > 0).join(tracks, on=["unit_id", "resource"]).sort(keys)
