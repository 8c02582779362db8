"""How much work has each rank in a step, how fast is it at equal work, and when does it begin?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from trnprof.analysis.collective_calls import POINT_TO_POINT
from trnprof.analysis.collective_names import with_collective
from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.metrics import IS_COLLECTIVE, IS_DMA
from trnprof.analysis.operators import operator_labels

if TYPE_CHECKING:
    from trnprof.analysis.findings.case import StepTimes

_IS_COMPUTE = ~IS_COLLECTIVE & ~IS_DMA & (pl.col("category").cast(pl.String) != "sync")


def slowness(times: StepTimes) -> pl.DataFrame:
    """How long a rank takes for what its peers do too.

    Instructions are equal if engine, name, FLOPs and bytes are; their time on the median rank (replicas weighing) is what others take. Where some
    state FLOPs or bytes, only they count: of the others nobody knows whether they are equal.

    Returns:
        One row a rank and chip: rank, chip, weight, busy_ns (union of its compute, of its busiest core), slowness (own time over the peers' for
        equal instructions, or the median ratio of one kind of them, whichever is less: a slow chip is slow in all of them; 1 without any).
    """
    compute = times.inside.filter(_IS_COMPUTE & pl.col("rank").is_not_null())
    keys = ["resource", "name", "flops", "bytes"]
    length = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    rows = (
        compute.group_by("rank", "chip", *keys)
        .agg(mean_ns=length.mean(), count=pl.len(), weight=pl.col("replica_count").max())
        .collect(engine="streaming")
    )
    peers = rows.group_by(keys).agg(
        median_ns=weighted_median(pl.col("mean_ns"), pl.col("weight")), ranks=pl.len()
    )
    busy = (
        covered_ns(compute, ["unit_id", "rank", "chip"], "busy_ns")
        .group_by("rank", "chip")
        .agg(pl.col("busy_ns").max())
        .collect(engine="streaming")
    )
    shared = rows.join(peers, on=keys, nulls_equal=True).filter(pl.col("ranks") > 1)
    has_work = (pl.col("flops").fill_null(0) > 0) | (pl.col("bytes").fill_null(0) > 0)
    if rows.select(has_work.any()).item():
        shared = shared.filter(has_work)
    own, other = (
        (pl.col("count") * pl.col("mean_ns")).sum(),
        (pl.col("count") * pl.col("median_ns")).sum(),
    )
    typical = (pl.col("mean_ns") / pl.col("median_ns")).filter(pl.col("median_ns") > 0).median()
    speeds = shared.group_by("rank").agg(slowness=pl.min_horizontal(own / other, typical))
    weights = rows.group_by("rank").agg(pl.col("weight").max())
    return (
        busy.join(speeds, on="rank", how="left")
        .join(weights, on="rank")
        .with_columns(pl.col("slowness").fill_nan(1.0).fill_null(1.0))
        .sort("rank", "chip")
    )


def weighted_median(value: pl.Expr, weight: pl.Expr) -> pl.Expr:
    """The lower median of a group, each value counting ``weight`` times."""
    ordered, weights = value.sort_by(value), weight.sort_by(value)
    return ordered.filter(weights.cum_sum() * 2 >= weights.sum()).first()


def by_operator(times: StepTimes) -> pl.DataFrame:
    """Compute time of each rank in each operator.

    Returns:
        One row an operator and rank: operator, name, module, phase, rank, weight (replicas), work_ns (union on its busiest core).
    """
    labels, numbers = operator_labels(times.trace.ops)
    compute = times.inside.filter(_IS_COMPUTE & pl.col("rank").is_not_null())
    placed = compute.join(numbers, on="op_id")
    weights = times.scope.units.group_by("rank").agg(weight=pl.col("replica_count").max())
    return (
        covered_ns(placed, ["unit_id", "rank", "operator"], "work_ns")
        .group_by("rank", "operator")
        .agg(pl.col("work_ns").max())
        .collect(engine="streaming")
        .join(weights, on="rank")
        .join(labels, on="operator", how="left")
        .sort("operator", "rank")
    )


def begins(times: StepTimes) -> pl.DataFrame:
    """When ranks begin a step.

    Returns:
        One row a rank: rank, late_ns (its first event after that of the median rank, replicas weighing); none where ranks send to each other, as
        the stages of a pipeline do: who gets its input from another begins after it.
    """
    first = (
        times.inside.filter(pl.col("rank").is_not_null())
        .group_by("rank")
        .agg(first_ns=pl.col("start_ns").min(), weight=pl.col("replica_count").max())
        .collect(engine="streaming")
    )
    if first.height < 2 or times.is_pipeline:
        return pl.DataFrame(schema={"rank": pl.Int32, "late_ns": pl.Int64})
    middle = first.select(weighted_median(pl.col("first_ns"), pl.col("weight"))).item()
    return first.select("rank", late_ns=pl.col("first_ns") - middle).sort("rank")


def is_pipeline(times: StepTimes) -> bool:
    """Whether ranks send to each other in the step."""
    calls = with_collective(times.inside.filter(IS_COLLECTIVE), times.trace)
    sends = calls.filter(pl.col("collective").is_in(POINT_TO_POINT)).select(pl.len())
    return bool(sends.collect(engine="streaming").item())


def union_ns(events: pl.DataFrame) -> float:
    """Time in which any event runs (unit_id, start_ns, end_ns), of the unit where it is most; 0 without any."""
    times = events.lazy().select("unit_id", "start_ns", "end_ns")
    covered = covered_ns(times, ["unit_id"], "ns").collect()
    return float(covered["ns"].max() or 0.0)  # type: ignore[arg-type]
