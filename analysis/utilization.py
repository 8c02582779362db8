"""How busy was each engine of each core, per step and over all? Active (union) and summed time."""

from __future__ import annotations

import polars as pl

from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.scope import Scope


def engine_utilization(scope: Scope) -> pl.DataFrame:
    """Activity of every resource in every window.

    Returns:
        One row a window, unit and resource, idle ones included: window, unit_id, resource, tracks (how many lanes),
        instruction_count (events that start inside), instruction_ns (summed, overlaps counted twice), active_ns (union),
        total_ns (the window), active_percent (fraction 0–1 of the window, null for a window of no length).
    """
    keys = ["window", "unit_id", "resource"]
    inside = scope.inside()
    summed = inside.group_by(keys).agg(
        pl.col("starts_inside").sum().cast(pl.Int64).alias("instruction_count"),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("instruction_ns"),
    )
    active = covered_ns(inside, keys, "active_ns")
    sums, actives = pl.collect_all([summed, active])
    return of_resources(sums.join(actives, on=keys, how="left"), scope)


def of_resources(sums: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """What ``engine_utilization`` returns.

    Args:
        sums: of those that had events: window, unit_id, resource, instruction_count, instruction_ns, active_ns.
        scope: whose windows they are.
    """
    frame = (
        _every_resource(scope)
        .join(sums, on=["window", "unit_id", "resource"], how="left")
        .with_columns(pl.col("instruction_count", "instruction_ns", "active_ns").fill_null(0))
        .join(scope.window_lengths(), on=["window", "unit_id"])
    )
    ratio = pl.when(pl.col("total_ns") > 0).then(pl.col("active_ns") / pl.col("total_ns"))
    return frame.with_columns(active_percent=ratio).sort(
        "window", "unit_id", "sort_order", "resource"
    )


def unit_activity(scope: Scope) -> pl.DataFrame:
    """Time in which anything of a unit is active: window, unit_id, total_ns, active_ns (union over all its lanes)."""
    keys = ["window", "unit_id"]
    active = covered_ns(scope.inside(), keys, "active_ns").collect()
    joined = scope.window_lengths().join(active, on=keys, how="left")
    return joined.with_columns(pl.col("active_ns").fill_null(0)).sort(keys)


def _every_resource(scope: Scope) -> pl.DataFrame:
    resources = scope.lanes.group_by("unit_id", "resource").agg(
        pl.len().alias("tracks"), pl.col("sort_order").min()
    )
    return scope.windows.select("window", "unit_id").join(resources, on="unit_id")
