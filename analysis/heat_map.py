"""How busy was each engine, core, chip and rank over time? The rows of a heat map: equal bins of time, active and summed time apart.

A row of a level above the engines is active while any of its lanes is: the union, never a sum.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.intervals import union
from trnprof.analysis.metrics import ratio
from trnprof.analysis.scope import Scope

LEVELS: Final = ("engine", "core", "chip", "rank")
BINS: Final = 48
_KEYS: Final = {
    "engine": ("unit_id", "resource"),
    "core": ("unit_id",),
    "chip": ("host", "chip"),
    "rank": ("rank",),
}


def heat_map(scope: Scope, level: str, bins: int = BINS) -> pl.DataFrame:
    """Activity over time, from the first start of the scope's windows to their last end.

    Args:
        scope: with one window a unit (``focus``).
        level: of LEVELS: an engine of a core (or a stream, all DMA queues, all collective streams), a core (or what else is a unit),
            a chip, a rank. Units of no chip or no rank have the row null.
        bins: how many equal bins, fewer where the time has not as many ns.

    Returns:
        One row a row of the map and bin: the keys (unit_id and resource; unit_id; host and chip; rank), row (ordinal), replica_count
        (units that it stands for), bin, start_ns, end_ns, active_ns (union), summed_ns (overlaps counted twice), active_share (fraction
        0–1 of the bin).
    """
    keys = list(_KEYS[level])
    rows = _rows(scope, keys)
    axis = _axis(scope, bins)
    if not axis.height:
        schema = {"active_ns": pl.Int64, "summed_ns": pl.Int64, "active_share": pl.Float64}
        empty = rows.head(0).join(axis, how="cross")
        return empty.with_columns(pl.lit(None, t).alias(n) for n, t in schema.items())
    inside = _numbered(scope, rows, keys)
    first, span = int(axis["start_ns"][0]), int(axis["end_ns"][-1] - axis["start_ns"][0])
    frames = [
        _spread(intervals, first, span, axis.height, name).collect(engine="streaming")
        for intervals, name in ((union(inside, ["row"]), "active_ns"), (inside, "summed_ns"))
    ]
    full = rows.join(axis, how="cross")
    for frame in frames:
        full = full.join(frame, on=["row", "bin"], how="left")
    return full.with_columns(pl.col("active_ns", "summed_ns").fill_null(0)).with_columns(
        active_share=ratio(pl.col("active_ns"), pl.col("end_ns") - pl.col("start_ns"))
    ).sort("row", "bin")  # fmt: skip


def _rows(scope: Scope, keys: list[str]) -> pl.DataFrame:
    """Rows of the map, in order: the keys, row, replica_count."""
    lanes = scope.lanes.join(scope.units, on="unit_id")
    order = pl.col("sort_order").min() if "resource" in keys else pl.lit(0).alias("sort_order")
    units = pl.struct("unit_id", "replica_count").unique().struct.field("replica_count").sum()
    found = lanes.group_by(keys).agg(order, replica_count=units)
    ahead = [k for k in keys if k != "resource"]
    ordered = found.sort(*ahead, "sort_order", *keys, nulls_last=True).drop("sort_order")
    return ordered.with_row_index("row").select(
        *keys, pl.col("row").cast(pl.Int64), "replica_count"
    )


def _numbered(scope: Scope, rows: pl.DataFrame, keys: list[str]) -> pl.LazyFrame:
    """The events inside the windows with the row that they belong to: row, start_ns, end_ns."""
    places = ["unit_id", *(k for k in keys if k not in ("unit_id", "resource"))]
    where = scope.units.select(places).lazy() if len(places) > 1 else None
    inside = scope.inside()
    placed = inside if where is None else inside.join(where, on="unit_id")
    return placed.join(rows.lazy(), on=keys, nulls_equal=True).select("row", "start_ns", "end_ns")


def _axis(scope: Scope, bins: int) -> pl.DataFrame:
    """bin, start_ns, end_ns: bin i of n is [first + i span // n, first + (i + 1) span // n)."""
    ends = scope.windows.select(pl.col("window_start_ns").min(), pl.col("window_end_ns").max())
    first, last = ends.row(0) if scope.windows.height else (0, 0)
    span, count = last - first, min(bins, last - first)
    number = pl.int_range(count, dtype=pl.Int64)
    return pl.select(
        bin=number,
        start_ns=first + number * span // max(1, count),
        end_ns=first + (number + 1) * span // max(1, count),
    )


def _spread(intervals: pl.LazyFrame, first: int, span: int, bins: int, name: str) -> pl.LazyFrame:
    """Cut intervals at the edges of bins and sum what lies in each: row, bin and ``name`` (ns)."""
    start, end = pl.col("start_ns") - first, pl.col("end_ns") - first
    number = pl.col("bin")
    # the largest i with i span // bins <= t is ((t + 1) bins - 1) // span
    last_bin = ((end * bins - 1) // span).clip(0, bins - 1)
    length = pl.min_horizontal(end, (number + 1) * span // bins) - pl.max_horizontal(
        start, number * span // bins
    )
    return (
        intervals.filter(pl.col("end_ns") > pl.col("start_ns"))
        .with_columns(bin=pl.int_ranges(((start + 1) * bins - 1) // span, last_bin + 1))
        .explode("bin", empty_as_null=False)
        .group_by("row", "bin")
        .agg(length.sum().alias(name))
    )
