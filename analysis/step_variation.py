"""How even are the steps? Their time on each rank, which of them warm up, which are out of line and by what, and where they drift.

A rank's step takes from its own start to its own end, so that clocks that differ do not matter; a step takes as long as on its longest rank.

    warm-up       the first steps that are each longer than the second half of all steps is, by ``robust.tolerance``
    out of line   a step of a rank that differs so much from its other steps after the warm-up
    trend         the median slope between all pairs of steps after the warm-up (Theil and Sen), if Mann and Kendall's test finds that
                  chance would hardly ever order steps like this (TREND_Z standard deviations)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis.breakdown import PARTS, step_breakdown
from trnprof.analysis.focus import of_units
from trnprof.analysis.intervals import union
from trnprof.analysis.robust import MIN_SIBLINGS, median_and_mad, tolerance
from trnprof.analysis.scope import Scope

MIN_STEPS: Final = 3
"""Ours: two steps do not show which one is the usual one."""
TREND_Z: Final = 3.0
MIN_TREND_STEPS: Final = 8
MAX_TREND_STEPS: Final = 1_000
"""Ours, all three; of more steps as many, evenly spaced, are compared pair by pair."""
MAX_EXPLAINED: Final = 20
MAX_USUAL: Final = 20
"""Ours, both: the events of more steps are not read."""


@dataclass(frozen=True)
class Trend:
    """A drift of the steps.

    Attributes:
        ns_per_step: median slope between pairs of steps.
        total_share: what that makes from the first to the last step, of the median step.
        z: by how many standard deviations of chance steps are in order.
    """

    ns_per_step: float
    total_share: float | None
    z: float


def rank_steps(scope: Scope) -> pl.DataFrame:
    """How long each step took on each unit.

    Returns:
        One row a step and unit: step, label, unit_id, rank, name, replica_count, duration_ns; by step and unit.
    """
    places = scope.units.select("unit_id", "rank", "name", "replica_count")
    return (
        scope.step_windows()
        .join(places, on="unit_id")
        .with_columns(duration_ns=pl.col("window_end_ns") - pl.col("window_start_ns"))
        .select("step", "label", "unit_id", "rank", "name", "replica_count", "duration_ns")
        .sort("step", "unit_id")
    )


def by_step(rows: pl.DataFrame) -> pl.DataFrame:
    """How long each step took, on the longest and on the shortest unit.

    Args:
        rows: of ``rank_steps``.

    Returns:
        One row a step: step, label, duration_ns (longest unit's), shortest_ns, longest_unit_id, longest_rank, ranks (replicas included).
    """
    longest = rows.sort("step", "duration_ns", "unit_id", descending=[False, True, False])
    return longest.group_by("step", maintain_order=True).agg(
        pl.col("label").first(),
        pl.col("duration_ns").first(),
        shortest_ns=pl.col("duration_ns").last(),
        longest_unit_id=pl.col("unit_id").first(),
        longest_rank=pl.col("rank").first(),
        ranks=pl.col("replica_count").sum(),
    )


def by_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """How each unit's steps vary.

    Args:
        rows: of ``rank_steps``.

    Returns:
        One row a unit, the one with the longest median first: unit_id, rank, name, replica_count, times_longest (steps that no other unit is as
        long in), and the figures of ``variation``.
    """
    longest = pl.col("duration_ns") == pl.col("duration_ns").max().over("step")
    alone = longest & (longest.sum().over("step") == 1) & (pl.len().over("step") > 1)
    figures = rows.with_columns(alone=alone).group_by("unit_id", "rank", "name", "replica_count")
    found = figures.agg(*variation(), times_longest=pl.col("alone").sum())
    return found.sort("median_ns", "unit_id", descending=[True, False])


def variation() -> list[pl.Expr]:
    """Aggregates of a column duration_ns: steps, min_ns, median_ns, max_ns, mean_ns, cv (standard deviation over the mean; null of one step, or of no time)."""
    time = pl.col("duration_ns")
    return [
        pl.len().alias("steps"),
        time.min().alias("min_ns"),
        time.median().alias("median_ns"),
        time.max().alias("max_ns"),
        time.mean().alias("mean_ns"),
        pl.when((time.mean() > 0) & (pl.len() > 1))
        .then(time.std(ddof=0) / time.mean())
        .alias("cv"),
    ]


def warm_up_steps(duration_ns: NDArray[np.int64]) -> int:
    """How many of the first steps warm up.

    Args:
        duration_ns: int64[n], of the steps in order.
    """
    if len(duration_ns) < MIN_STEPS:
        return 0
    times = pl.DataFrame({"t": duration_ns})
    limit = (
        times.tail((times.height + 1) // 2)
        .select(median_and_mad(pl.col("t")))
        .select(pl.col("median") + tolerance(pl.col("median"), pl.col("mad")))
        .item()
    )
    in_line = np.flatnonzero(duration_ns <= limit)
    return int(in_line[0])  # the second half's shortest is in line


def out_of_line(rows: pl.DataFrame, warm_up: int) -> pl.DataFrame:
    """Which steps differ from the others of their unit.

    Args:
        rows: of ``rank_steps``.
        warm_up: how many of the first steps warm up: nothing is compared with them.

    Returns:
        The rows with is_warm_up and is_out (differs from the unit's steps after the warm-up; of fewer than MIN_SIBLINGS none does).
    """
    steady = pl.col("step").rank("dense") > warm_up
    marked = rows.with_columns(is_warm_up=~steady)
    of_unit = (
        marked.filter(~pl.col("is_warm_up"))
        .group_by("unit_id")
        .agg(*median_and_mad(pl.col("duration_ns")), siblings=pl.len())
    )
    far = (pl.col("duration_ns") - pl.col("median")).abs() > tolerance(
        pl.col("median"), pl.col("mad")
    )
    is_out = far & (pl.col("siblings") >= MIN_SIBLINGS) & ~pl.col("is_warm_up")
    return (
        marked.join(of_unit, on="unit_id", how="left", maintain_order="left")
        .with_columns(is_out=is_out.fill_null(False))
        .drop("median", "mad", "siblings")
    )


def explained(scope: Scope, marked: pl.DataFrame) -> pl.DataFrame:
    """What made the steps that warm up or are out of line longer or shorter, on the unit that differs most.

    Args:
        scope: its events and steps.
        marked: of ``out_of_line``.

    Returns:
        One row such a step in order, the MAX_EXPLAINED that differ most: step, label, unit_id, rank, is_warm_up, ranks (of which this is said, replicas included), duration_ns,
        differs_ns (from the mean of the unit's steps in line, at most MAX_USUAL of them, evenly spaced), its parts, ``{part}_differs_ns`` of PARTS, which sum to it, and mostly (the part that
        differs most in its direction).
    """
    in_line = _compared_with(marked)
    usual = in_line.group_by("unit_id").agg(usual_ns=pl.col("duration_ns").mean())
    odd = (
        marked.filter(pl.col("is_warm_up") | pl.col("is_out"))
        .join(usual, on="unit_id")
        .with_columns(differs_ns=pl.col("duration_ns") - pl.col("usual_ns"))
    )
    worst = (
        odd.with_columns(
            far=pl.col("differs_ns").abs(), ranks=pl.col("replica_count").sum().over("step")
        )
        .sort("step", "far", "unit_id", descending=[False, True, False])
        .group_by("step", maintain_order=True)
        .first()
        .sort("far", "step", descending=[True, False])
        .head(MAX_EXPLAINED)
    )
    their_usual = in_line.join(worst.select("unit_id").unique(), on="unit_id")
    wanted = pl.concat([f.select("step", "unit_id") for f in (worst, their_usual)])
    parts = _parts_of(scope, wanted)
    means = (
        their_usual.join(parts, on=["step", "unit_id"])
        .group_by("unit_id")
        .agg(pl.col(p).mean().alias(f"usual_{p}") for p in PARTS)
    )
    change = [(pl.col(p) - pl.col(f"usual_{p}")).alias(f"{p}_differs_ns") for p in PARTS]
    found = worst.join(parts, on=["step", "unit_id"]).join(means, on="unit_id").with_columns(change)
    towards = [pl.col(f"{p}_differs_ns") * pl.col("differs_ns").sign() for p in PARTS]
    most = pl.concat_list(towards).list.arg_max().replace_strict(dict(enumerate(PARTS)))
    return (
        found.with_columns(mostly=most)
        .select("step", "label", "unit_id", "rank", "is_warm_up", "ranks", "duration_ns", "differs_ns",
                *(f"{p}_differs_ns" for p in PARTS), "mostly")
        .sort("step")
    )  # fmt: skip


def trend(duration_ns: NDArray[np.int64]) -> Trend | None:
    """Whether steps become longer or shorter.

    Args:
        duration_ns: int64[n], of the steps in order, without those that warm up.

    Returns:
        None if chance would do it, or of fewer than MIN_TREND_STEPS.
    """
    count = len(duration_ns)
    if count < MIN_TREND_STEPS:
        return None
    chosen = np.unique(np.linspace(0, count - 1, min(count, MAX_TREND_STEPS)).round().astype(int))
    times = duration_ns[chosen].astype(np.float64)
    first, second = np.triu_indices(len(chosen), 1)
    differs = times[second] - times[first]
    score = np.sign(differs).sum()
    n = len(chosen)
    ties = np.unique(times, return_counts=True)[1]
    variance = (
        n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()
    ) / 18  # Kendall's, with ties
    z = float((score - np.sign(score)) / np.sqrt(variance)) if variance > 0 else 0.0
    if abs(z) < TREND_Z:
        return None
    slope = float(np.median(differs / (chosen[second] - chosen[first])))
    middle = float(np.median(times))
    return Trend(slope, slope * (count - 1) / middle if middle > 0 else None, z)


def _compared_with(marked: pl.DataFrame) -> pl.DataFrame:
    """Of each unit's steps in line at most MAX_USUAL, evenly spaced."""
    in_line = marked.filter(~pl.col("is_warm_up") & ~pl.col("is_out")).sort("unit_id", "step")
    number, count = pl.int_range(pl.len()).over("unit_id"), pl.len().over("unit_id").cast(pl.Int64)
    stride = (count + MAX_USUAL - 1) // MAX_USUAL
    return in_line.filter(number % stride == 0)


def _parts_of(scope: Scope, wanted: pl.DataFrame) -> pl.DataFrame:
    """The partition of some steps of some units (step, unit_id), of all that is read only what meets them: step, unit_id and PARTS."""
    own = of_units(scope, wanted["unit_id"].unique())
    steps = own.step_windows()
    windows = steps.join(wanted, on=["step", "unit_id"], how="semi")
    bounds = windows.select(
        pl.lit(0).alias("_"), start_ns="window_start_ns", end_ns="window_end_ns"
    )
    spans = union(bounds.lazy(), ["_"]).select("start_ns", "end_ns").collect()
    meets = [
        (pl.col("start_ns") <= last) & (pl.col("end_ns") >= first)
        for first, last in spans.iter_rows()
    ]
    events = own.events.filter(pl.any_horizontal(pl.lit(False), *meets))
    few = replace(own, events=events, windows=windows, steps=steps)
    labels = windows.select("window", "unit_id", "step")
    return step_breakdown(few).join(labels, on=["window", "unit_id"]).drop("window", "total_ns")
