"""Chart ``step-breakdown``: of what each step's time is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.breakdown import PART_LABELS, PARTS, mean_breakdown
from trnprof.analysis.charts.chart import Chart, with_rows
from trnprof.analysis.focus import steps_only
from trnprof.analysis.sections.section import Column, Subject

MAX_STEPS: Final = 40
CHART: Final = Chart(
    "step-breakdown",
    "Where each step goes",
    "bars",
    x=Column("duration_ns", "time", "ns"),
    y=Column("step", "step"),
    color=Column("part", "part"),
    more=(Column("share", "of the step", "percent"),),
)


def build(subject: Subject) -> Chart:
    """A bar a step, means over cores or devices; at most MAX_STEPS, spread evenly, the longest and the shortest among them."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    scope = steps_only(subject.scope, subject.step, subject.rank)
    steps = mean_breakdown(scope).filter(pl.col("total_ns") > 0)
    shown = _spread(steps)
    parts = (
        shown.with_columns(step=pl.coalesce(pl.col("step").cast(pl.String), "label"))
        .unpivot(on=PARTS, index=["window", "step", "total_ns"], variable_name="part", value_name="duration_ns")
        .with_columns(
            order=pl.col("part").replace_strict({p: i for i, p in enumerate(PARTS)}, return_dtype=pl.Int64),
            part=pl.col("part").replace_strict(PART_LABELS),
            share=pl.col("duration_ns") / pl.col("total_ns"),
        )
        .sort("window", "order")
    )  # fmt: skip
    used = parts.filter((pl.col("duration_ns") > 0).any().over("part"))
    units = int(scope.units["replica_count"].sum())
    notes = [f"mean of {units:,} cores or devices"] if units > 1 else []
    if shown.height < steps.height:
        notes.append(
            f"{shown.height} of {steps.height:,} steps, spread evenly; the longest and the shortest are among them"
        )
    empty = replace(CHART, nothing_to_say="because no step takes time")
    return with_rows(empty, used, notes)


def _spread(steps: pl.DataFrame) -> pl.DataFrame:
    if steps.height <= MAX_STEPS:
        return steps
    room = MAX_STEPS - 2
    even = {i * (steps.height - 1) // (room - 1) for i in range(room)}
    ends = {int(steps["total_ns"].arg_max() or 0), int(steps["total_ns"].arg_min() or 0)}
    return steps[sorted(even | ends)]
