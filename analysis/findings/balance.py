"""Do ranks have equal work, and do the stages of a pipeline? Load imbalance, and bubbles."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.findings.case import Case, quoted
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.findings.work import by_operator
from trnprof.analysis.operators import operator_labels
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.whatif.retime import Changes, retime, unchanged
from trnprof.tracer.units import format_ns, format_percent

IMBALANCE: Final = "load-imbalance"
BUBBLE: Final = "pipeline-bubble"


def find(case: Case) -> list[Finding]:
    """At most one of each."""
    return [*_imbalance(case), *_bubble(case)]


def _imbalance(case: Case) -> list[Finding]:
    """Operators that all ranks have, with more work on some: what a rank's slowness explains is not work."""
    if case.times.scope.units["rank"].n_unique() < 2:
        return []
    rows = _shares(case)
    uneven = rows.filter(pl.col("ratio") >= limit("imbalance_ratio"))
    excess = uneven.group_by("rank").agg(pl.col("excess_ns").sum()).sort("excess_ns", "rank", descending=[True, False])  # fmt: skip
    if not excess.height or excess["excess_ns"][0] < limit("worthwhile_share") * case.step_ns:
        return []
    rank, over_ns = excess.row(0)
    worst = uneven.filter(pl.col("rank") == rank).sort("excess_ns", "operator", descending=[True, False]).row(0, named=True)  # fmt: skip
    gain = case.gain(float(over_ns), lambda graph: _evened(case, graph, uneven))
    name = " ".join(p for p in (worst["module"], worst["name"]) if p)
    touched = uneven.filter(pl.col("rank") == rank)["work_ns"].sum()
    return [
        Finding(
            key=IMBALANCE,
            title=f"rank {rank} has {worst['work_ns'] / worst['mean_ns']:.2f}x the mean work in {name}",
            evidence=f"{format_ns(worst['work_ns'], 3)} a step, the mean rank {format_ns(worst['mean_ns'], 3)}, the least {format_ns(worst['least_ns'], 3)}; equal shares of it (experts, samples, tokens) on all ranks",
            where=f"rank {rank}",
            query=f"SELECT rank, operator, module, count(*) AS events, sum(duration_ns) AS busy_ns FROM named_events WHERE category = 'compute' AND operator = '{quoted(worst['name'])}' AND {case.at_step()} GROUP BY rank, operator, module ORDER BY busy_ns DESC",
            command=case.report("utilization"),
            touched_ns=float(touched),
            gain_ns=gain.ns,
            step_ns=case.step_ns,
            is_upper_bound=gain.is_upper_bound,
            changes=gain.changes,
        )
    ]


def _shares(case: Case) -> pl.DataFrame:
    """``by_operator`` of those that all ranks have, with mean_ns, least_ns, excess_ns (over the mean) and ratio (the most over the mean)."""
    speeds = case.times.slowness.group_by("rank").agg(pl.col("slowness").max())
    work, weight = pl.col("work_ns"), pl.col("weight")
    rows = (
        by_operator(case.times)
        .join(speeds, on="rank", how="left")
        .with_columns(work_ns=work / pl.col("slowness").fill_null(1.0))
    )
    everywhere = pl.col("rank").n_unique().over("operator") == rows["rank"].n_unique()
    return (
        rows.filter(everywhere)
        .with_columns(
            mean_ns=((work * weight).sum() / weight.sum()).over("operator"),
            least_ns=work.min().over("operator"),
        )
        .filter(pl.col("mean_ns") > 0)
        .with_columns(
            excess_ns=work - pl.col("mean_ns"),
            ratio=(work.max() / pl.col("mean_ns").first()).over("operator"),
        )
    )


def _evened(case: Case, graph: StepGraph, uneven: pl.DataFrame) -> Changes:
    """Each rank's part of uneven operators as long as the mean rank's; collectives as they are."""
    _, numbers = operator_labels(case.trace.ops)
    parts = uneven.filter(pl.col("work_ns") > 0).select("rank", "operator", factor=pl.col("mean_ns") / pl.col("work_ns"))  # fmt: skip
    rows = (
        graph.events.select("op_id", "rank", "category")
        .join(numbers.collect(), on="op_id", how="left", maintain_order="left")
        .join(parts, on=["rank", "operator"], how="left", maintain_order="left")
    )
    own = pl.when(pl.col("category").cast(pl.String) != "collective").then("factor")
    return Changes(rows.select(own.fill_null(1.0)).to_series().to_numpy(), np.zeros(len(graph)))


def _bubble(case: Case) -> list[Finding]:
    """Half of what stages would save if none waited for another: that is what twice as many microbatches give."""
    idle_ns = case.parts["idle_ns"] / case.steps
    if idle_ns < limit("bubble_share") * case.step_ns or not case.times.is_pipeline:
        return []
    whole, bound = idle_ns, True
    if case.graph is not None:
        whole, bound = max(0.0, case.base_ns - _apart_ns(case, case.graph)), False
    stages = case.times.scope.units["rank"].n_unique()
    share = format_percent(idle_ns / case.step_ns)
    return [
        Finding(
            key=BUBBLE,
            title=f"pipeline bubble: stages idle {share} of the step",
            evidence=f"{stages} stages; without waiting for each other they would take {format_ns(case.step_ns - whole, 3)}; twice as many microbatches of half the size, or interleaved stages, halve the difference",
            where="pipeline",
            query=f"SELECT rank, total_ns, compute_ns, idle_ns FROM step_breakdown WHERE {case.at_step()} ORDER BY idle_ns DESC",
            command=case.report("idle"),
            touched_ns=idle_ns,
            gain_ns=whole / 2,
            step_ns=case.step_ns,
            is_upper_bound=bound,
        )
    ]


def _apart_ns(case: Case, graph: StepGraph) -> int:
    """The step if no rank waited for another: that of the rank with most to do."""
    ranks = graph.events["rank"].fill_null(-1).to_numpy()
    edges = graph.edges
    own = ranks[edges.targets] == ranks[edges.sources]
    kept = replace(edges, targets=edges.targets[own], sources=edges.sources[own], lags_ns=edges.lags_ns[own], kinds=edges.kinds[own])  # fmt: skip
    return retime(case.trace, replace(graph, edges=kept), case.given or unchanged(graph)).step_ns
