"""Why did an engine stand idle? Its idle time by wait reason.

A gap on a lane is charged to the ``wait_reason`` of the event that ends it, also where a window cuts the gap. What is
idle without any later event on the lane has the reason ``none_after``, and a gap whose event gives no reason has
``unknown``, so that in every window

    active time (union) + idle time by reason, none_after and unknown included = window.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.scope import Scope

NONE_AFTER: Final = "none_after"
UNKNOWN: Final = "unknown"
_EARLIEST: Final = -(2**61)
_LATEST: Final = 2**61


def idle_gaps(scope: Scope) -> pl.LazyFrame:
    """Every gap on every lane, from the beginning of time to its end.

    Returns:
        Columns track_id, unit_id, resource, start_ns, end_ns, reason.
    """
    lane = ["track_id", "unit_id", "resource"]
    busy = scope.events.select(*lane, "start_ns", "end_ns", "wait_reason").sort(
        "track_id", "start_ns"
    )
    before = pl.col("end_ns").cum_max().shift(1).over("track_id").fill_null(_EARLIEST)
    between = busy.with_columns(before=before).select(
        *lane,
        start_ns="before",
        end_ns="start_ns",
        reason=pl.col("wait_reason").cast(pl.String).fill_null(UNKNOWN),
    )
    last = busy.group_by("track_id").agg(start_ns=pl.col("end_ns").max())
    after = (
        scope.lanes.lazy()
        .join(last, on="track_id", how="left")
        .select(
            *lane,
            pl.col("start_ns").fill_null(_EARLIEST),
            end_ns=pl.lit(_LATEST, pl.Int64),
            reason=pl.lit(NONE_AFTER),
        )
    )
    return pl.concat([between, after]).filter(pl.col("end_ns") > pl.col("start_ns"))


def idle_by_reason(scope: Scope) -> pl.DataFrame:
    """Idle time of each resource in each window.

    Returns:
        One row a window, unit, resource and reason: window, unit_id, resource, reason, idle_ns (summed over the resource's
        lanes), tracks (how many lanes: divide by it for the mean lane).
    """
    keys = ["window", "unit_id", "resource", "reason"]
    length = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("idle_ns")
    idle = scope.in_windows(idle_gaps(scope)).group_by(keys).agg(length).collect()
    tracks = scope.lanes.group_by("unit_id", "resource").agg(pl.len().alias("tracks"))
    return idle.filter(pl.col("idle_ns") > 0).join(tracks, on=["unit_id", "resource"]).sort(keys)
