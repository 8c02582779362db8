"""Chart ``utilization-over-time``: how busy each engine was, over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.charts.chart import MAX_ROWS, Chart, with_rows
from trnprof.analysis.focus import focus, focus_note
from trnprof.analysis.heat_map import heat_map
from trnprof.analysis.sections.section import Column, Subject

BINS: Final = 120
CHART: Final = Chart(
    "utilization-over-time",
    "How busy each engine is over time",
    "heat_map",
    x=Column("start_ns", "time", "ns"),
    x_end=Column("end_ns", "until", "ns"),
    y=Column("resource", "engine"),
    color=Column("active_share", "active", "percent"),
)


def build(subject: Subject) -> Chart:
    """A row an engine (a stream, all DMA queues, …), the mean of all cores; exact shares of equal bins of time."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    count = max(1, scope.lanes["resource"].n_unique())
    bins = heat_map(scope, "engine", max(1, min(BINS, MAX_ROWS // count)))
    weight = pl.col("replica_count")
    rows = (
        bins.group_by("resource", "start_ns", "end_ns")
        .agg(
            pl.col("row").min(),
            active_share=(pl.col("active_share") * weight).sum() / weight.sum(),
        )
        .sort("row", "resource", "start_ns")
    )
    if count > MAX_ROWS:
        busiest = rows.group_by("resource").agg(pl.col("active_share").sum()).sort("active_share", "resource", descending=[True, False])  # fmt: skip
        rows = rows.join(busiest.head(MAX_ROWS).select("resource"), on="resource", how="semi")
    units = int(scope.units["replica_count"].sum())
    mean = f"; the mean of {units:,} cores or devices" if units > 1 else ""
    notes = [f"{focus_note(scope)}{mean}"]
    empty = replace(CHART, nothing_to_say="because no event of the device takes time")
    return with_rows(empty, rows if rows["active_share"].sum() else rows.head(0), notes)
