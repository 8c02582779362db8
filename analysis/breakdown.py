"""Where does the step go? A partition of its time that sums to it exactly.

Each instant of a unit's window is one of, the first that holds:

    compute              an engine (or stream) computes
    exposed_collective   a collective runs and nothing computes
    exposed_dma          a DMA moves data, or an engine issues one (category sync), and neither of the above
    host                 nothing runs and an engine waits for the host (wait_reason host)
    idle                 nothing runs
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.intervals import segments
from trnprof.analysis.metrics import IS_COLLECTIVE, IS_DMA
from trnprof.analysis.scope import Scope
from trnprof.analysis.waits import idle_gaps

PARTS: Final = ("compute", "exposed_collective", "exposed_dma", "host", "idle")
PART_LABELS: Final = {
    "compute": "compute",
    "exposed_collective": "exposed communication",
    "exposed_dma": "exposed DMA",
    "host": "host",
    "idle": "idle",
}
"""PARTS as people read them."""
_LABELS: Final = ("inside", *PARTS[:-1])


def step_breakdown(scope: Scope) -> pl.DataFrame:
    """The partition of every window.

    Returns:
        One row a window and unit: window, unit_id, total_ns and one int64 column a part of PARTS, which sum to total_ns.
    """
    keys = ["window", "unit_id"]
    pieces = segments(_labelled(scope), keys, "part", _LABELS).filter("inside")
    decided = pl.lit(False)
    sums = []
    length = pl.col("end_ns") - pl.col("start_ns")
    for part in PARTS[:-1]:
        sums.append(length.filter(pl.col(part) & ~decided).sum().alias(part))
        decided = decided | pl.col(part)
    sums.append(length.filter(~decided).sum().alias("idle"))
    partition = pieces.group_by(keys).agg(sums).collect()
    joined = scope.window_lengths().join(partition, on=keys, how="left")
    return joined.with_columns(pl.col(*PARTS).fill_null(0)).sort(keys)


def mean_breakdown(scope: Scope) -> pl.DataFrame:
    """The partition of every window, as means over its units, replicas weighing.

    Returns:
        One row a window: window, total_ns and the PARTS (float64, ns), step, label; sorted by window.
    """
    weight = pl.col("replica_count")
    means = [((pl.col(n) * weight).sum() / weight.sum()).alias(n) for n in ("total_ns", *PARTS)]
    labels = scope.windows.select("window", "step", "label").unique("window")
    found = step_breakdown(scope).join(scope.units.select("unit_id", "replica_count"), on="unit_id")
    return found.group_by("window").agg(means).join(labels, on="window").sort("window")


def _labelled(scope: Scope) -> pl.LazyFrame:
    """Everything that covers time, named by the part it makes, and the windows themselves."""
    category = pl.col("category").cast(pl.String)
    part = (
        pl.when(IS_COLLECTIVE)
        .then(pl.lit("exposed_collective"))
        .when(IS_DMA | (category == "sync"))
        .then(pl.lit("exposed_dma"))
        .otherwise(pl.lit("compute"))
    )
    columns = ["window", "unit_id", "start_ns", "end_ns", "part"]
    inside = scope.inside().with_columns(part=part).select(columns)
    waiting = scope.in_windows(idle_gaps(scope).filter(pl.col("reason") == "host"))
    host = waiting.with_columns(part=pl.lit("host")).select(columns)
    windows = scope.windows.lazy().select(
        "window",
        "unit_id",
        start_ns="window_start_ns",
        end_ns="window_end_ns",
        part=pl.lit("inside"),
    )
    labels = pl.col("part").cast(pl.Enum(_LABELS))
    frames = [frame.with_columns(labels) for frame in (inside, host, windows)]
    return pl.concat(frames, how="vertical_relaxed")
