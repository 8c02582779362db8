"""Chart ``critical-path``: what the longest chain of a step does, one after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.charts.chart import Chart, with_rows
from trnprof.analysis.critical_path import critical_path, doing
from trnprof.analysis.sections.section import Column, Subject
from trnprof.analysis.step_graph import step_or_median_graph
from trnprof.tracer.units import format_percent

MAX_PIECES: Final = 1_000
CHART: Final = Chart(
    "critical-path",
    "The critical path over time",
    "timeline",
    x=Column("start_ns", "time", "ns"),
    x_end=Column("end_ns", "until", "ns"),
    y=Column("doing", "doing"),
    color=Column("part", "part"),
    more=(
        Column("name", "event"),
        Column("rank", "rank", "number"),
        Column("duration_ns", "takes", "ns"),
    ),
)
_PARTS: Final = {"run": "works", "wait": "waits", "before": "before", "after": "after"}


def build(subject: Subject) -> Chart:
    """The path of the step asked for, or of the median one; its longest MAX_PIECES pieces where it has more."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    graph = step_or_median_graph(subject.trace, subject.scope, subject.step)
    reason = "because no event of the device lies in the step"
    if not len(graph):
        return replace(CHART, nothing_to_say=reason)
    path = critical_path(graph).with_columns(
        doing=doing(),
        part=pl.col("part").replace_strict(_PARTS),
        start_ns=pl.col("start_ns") - graph.start_ns,
        end_ns=pl.col("end_ns") - graph.start_ns,
    )
    which = "the whole trace" if graph.step is None else f"step {graph.step}"
    notes = [f"{'~ ' if graph.is_inferred else ''}of {which}, from its start"]
    longest = path.sort("duration_ns", "start_ns", descending=[True, False]).head(MAX_PIECES)
    if longest.height < path.height:
        share = int(longest["duration_ns"].sum()) / max(1, int(path["duration_ns"].sum()))
        notes.append(
            f"the longest {longest.height:,} of {path.height:,} pieces, {format_percent(share)} of the step"
        )
    order = path.group_by("doing").agg(total=pl.col("duration_ns").sum())
    shown = longest.join(order, on="doing").sort("total", "doing", "start_ns", descending=[True, False, False])  # fmt: skip
    return with_rows(replace(CHART, nothing_to_say=reason), shown, notes)
