"""Chart ``collective-bandwidth``: what bus bandwidth do collectives of each size reach?

The bus bandwidth is nccl-tests': size over time, times what the algorithm-free volume of that collective is of it, so that the same figure
means the same load of links whatever the number of ranks n: 2 (n - 1) / n of all_reduce, (n - 1) / n of all_gather, reduce_scatter and
all_to_all, 1 of the others. Sizes are those of the whole: what all_gather leaves, what the others are given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.charts.chart import Chart, with_rows
from trnprof.analysis.focus import focus, focus_note
from trnprof.analysis.metrics import IS_COLLECTIVE, ratio
from trnprof.analysis.sections.section import Column, Subject

MAX_POINTS: Final = 1_000
CHART: Final = Chart(
    "collective-bandwidth",
    "Collectives: bytes against bus bandwidth",
    "scatter",
    x=Column("bytes", "bytes", "bytes"),
    y=Column("bus_bytes_per_s", "bus bandwidth", "bytes_per_s"),
    color=Column("collective", "collective"),
    size=Column("count", "calls", "count"),
    more=(
        Column("group", "group"),
        Column("ranks", "ranks", "count"),
        Column("time_ns", "median time", "ns"),
    ),
    is_logarithmic=True,
)
_NAMES: Final = {
    "all_reduce": "allreduce",
    "reduce_scatter": "reducescatter",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "broadcast": "broadcast|bcast",
    "reduce": "reduce",
    "permute": "permute",
    "send": "send|isend",
    "receive": "recv",
}
"""By the name that is shown, what a name without its separators has in it; the first that holds."""
_TWICE, _ONCE = ("all_reduce",), ("all_gather", "reduce_scatter", "all_to_all")


def build(subject: Subject) -> Chart:
    """A point a collective, group and size: the median of its calls on every rank."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    points = (
        _calls(scope.inside(), subject.trace.ops)
        .join(_groups(subject.trace.groups).lazy(), on="group_id", how="left")
        .join(scope.units.lazy().select("unit_id", "replica_count"), on="unit_id")
        .group_by("collective", "group", "ranks", "bytes")
        .agg(time_ns=pl.col("time_ns").median(), count=pl.col("replica_count").sum())
        .collect(engine="streaming")
        .with_columns(
            bus_bytes_per_s=ratio(pl.col("bytes") * _bus_factor() * 1e9, pl.col("time_ns")),
            group=pl.col("group").fill_null("unknown"),
        )
        .filter((pl.col("bus_bytes_per_s") > 0) & (pl.col("bytes") > 0))
        .sort(
            pl.col("time_ns") * pl.col("count"),
            "collective",
            "bytes",
            "group",
            descending=[True, False, False, False],
        )
    )
    notes = [f"{focus_note(scope)}; the median of all calls of one size; time from the first start to the last end on a rank, waiting for others included"]  # fmt: skip
    if points["ranks"].null_count():
        notes.append("~ where the number of ranks is unknown the factor is 1")
    if points.height > MAX_POINTS:
        notes.append(f"the {MAX_POINTS:,} of {points.height:,} sizes that take most time")
    reason = "because the trace has no collective whose bytes are known"
    return with_rows(replace(CHART, nothing_to_say=reason), points.head(MAX_POINTS), notes)


def _calls(inside: pl.LazyFrame, ops: pl.LazyFrame) -> pl.LazyFrame:
    """One row a call and unit: collective, group_id, bytes, time_ns."""
    known = ops.select("op_id", "group_id", "in_bytes", "out_bytes", op_name="name")
    keys = ["unit_id", "op_id", "step"]
    # what implements no operation is a call of its own
    alone = pl.when(pl.col("op_id").is_null()).then(pl.int_range(pl.len()))
    calls = (
        inside.filter(IS_COLLECTIVE)
        .with_columns(alone=alone)
        .group_by(*keys, "alone")
        .agg(
            pl.col("name").first().cast(pl.String),
            pl.col("bytes").max(),
            time_ns=pl.col("end_ns").max() - pl.col("start_ns").min(),
        )
        .join(known, on="op_id", how="left")
    )
    named = calls.with_columns(collective=_collective(pl.coalesce("name", "op_name")))
    whole = pl.when(pl.col("collective") == "all_gather").then("out_bytes").otherwise("in_bytes")
    return named.select(
        "unit_id", "collective", "group_id", "time_ns", bytes=pl.coalesce(whole, "bytes")
    )


def _collective(name: pl.Expr) -> pl.Expr:
    plain = name.str.to_lowercase().str.replace_all("[^a-z]", "")
    found: pl.Expr = name
    for shown, pattern in reversed(_NAMES.items()):
        found = pl.when(plain.str.contains(pattern)).then(pl.lit(shown)).otherwise(found)
    return found


def _groups(groups: pl.DataFrame) -> pl.DataFrame:
    return groups.select("group_id", group="name", ranks=pl.col("ranks").list.len()).unique(
        "group_id"
    )


def _bus_factor() -> pl.Expr:
    ranks = pl.col("ranks").cast(pl.Float64)
    share = pl.when(ranks > 1).then((ranks - 1) / ranks).otherwise(1.0)
    return (
        pl.when(pl.col("collective").is_in(_TWICE))
        .then(2 * share)
        .when(pl.col("collective").is_in(_ONCE))
        .then(share)
        .otherwise(1.0)
        .fill_null(1.0)
    )
