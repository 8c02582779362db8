"""Which layers move more bytes than they must? Operators whose results go through HBM, and the form of the optimizer."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.findings.case import Case, quoted
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.findings.work import union_ns
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.units import format_bytes, format_ns, format_percent

FUSABLE: Final = "low-intensity"
OPTIMIZER: Final = "optimizer"
MOST: Final = 3


def find(case: Case) -> list[Finding]:
    """All are timed again; where the step cannot be, the partition's advice stands for them."""
    if case.graph is None:
        return []
    placed = with_attribution(case.graph.events, case.trace.ops).with_row_index("at")
    return [
        *_fusable(case, case.graph, placed),
        *_optimizer(case, case.graph, placed),
    ]


def _fusable(case: Case, graph: StepGraph, placed: pl.DataFrame) -> list[Finding]:
    """Operators of a layer without matrix products, whose DMA takes longer than their compute: fused, they move no less than the heaviest of them."""
    category = pl.col("category").cast(pl.String)
    is_dma = pl.col("kind") == "dma_queue"
    is_hbm = is_dma & (pl.col("bytes") > 0)
    ns = pl.col("end_ns") - pl.col("start_ns")
    keys = ["rank", "module_path", "layer", "phase", "op_id"]
    by_op = (
        placed.filter((pl.col("module_path") != "") & (pl.col("phase").fill_null("") != OPTIMIZER))
        .group_by(keys)
        .agg(
            moved=pl.col("bytes").filter(is_hbm).sum().cast(pl.Float64),
            dma_ns=ns.filter(is_dma).sum(),
            compute_ns=ns.filter(category == "compute").sum(),
            has_products=((pl.col("resource") == "Tensor") & (category == "compute")).any(),
        )
        .filter(~pl.col("has_products") & (pl.col("moved") > 0))
    )
    layers = (
        by_op.group_by("rank", "module_path", "layer", "phase")
        .agg(
            pl.col("moved", "dma_ns", "compute_ns").sum(),
            operations=pl.len(),
            most=pl.col("moved").max(),
        )
        .filter((pl.col("operations") > 1) & (pl.col("dma_ns") > pl.col("compute_ns")))
        .with_columns(factor=pl.col("most") / pl.col("moved"))
    )
    found = []
    for (layer, phase), rows in layers.group_by("layer", "phase"):
        inside = placed.join(rows.select("rank", "module_path", "phase", "factor"), on=["rank", "module_path", "phase"])  # fmt: skip
        chosen = inside.join(by_op.select("rank", "op_id"), on=["rank", "op_id"], how="semi")
        touched = union_ns(chosen)
        if touched < limit("fusable_share") * case.step_ns:
            continue
        moves = chosen.filter(is_dma | (category == "sync"))
        factors = np.ones(len(graph))
        factors[moves["at"].to_numpy()] = moves["factor"].to_numpy()
        gain = case.saved_ns(changes := Changes(factors, np.zeros(len(graph))))
        first = rows.filter(pl.col("rank").eq_missing(rows["rank"][0]))
        moved, least = float(first["moved"].sum()), float(first["most"].sum())
        name = f"{layer} {phase or ''}".strip()
        found.append(
            Finding(
                key=FUSABLE,
                title=f"{name} is bound by memory: {first['operations'].sum()} operators pass {format_bytes(moved, 3)} through HBM",
                evidence=f"they take {format_ns(touched, 3)} of a step without a matrix product; fused into one kernel they would move {format_bytes(least, 3)} ({format_percent(least / moved, 0)})",
                where=name,
                query=f"SELECT operator, count(*) AS events, sum(bytes) AS bytes, sum(duration_ns) AS time_ns FROM named_events WHERE module = '{quoted(rows['module_path'][0])}' AND category = 'dma' AND {case.at_step()} GROUP BY operator ORDER BY bytes DESC",
                command=case.report("critical-path"),
                touched_ns=touched,
                gain_ns=gain,
                step_ns=case.step_ns,
                changes=changes,
            )
        )
    return sorted(found, key=lambda f: (-f.gain_ns, f.where))[:MOST]


def _optimizer(case: Case, graph: StepGraph, placed: pl.DataFrame) -> list[Finding]:
    """The form that the partition's advice proposes, timed again."""
    advice, phases = case.window["verdict"].get("advice"), case.window.get("phases")
    if advice is None or advice["key"] != OPTIMIZER or not phases:
        return []
    least = 1 - advice["gain_ns"] / max(1.0, phases["optimizer_ns"])
    meant = (placed["phase"] == OPTIMIZER).fill_null(False).to_numpy()
    changes = Changes(np.where(meant, max(0.0, least), 1.0), np.zeros(len(graph)))
    text = str(advice["text"])
    return [
        Finding(
            key=OPTIMIZER,
            title=text[0].upper() + text[1:],
            evidence=f"{format_ns(phases['optimizer_ns'] / case.steps, 3)} of a step; passing over the parameters once needs {format_percent(least, 0)} of it",
            where=OPTIMIZER,
            query=f"SELECT name, count, time_ns, hbm_bytes, bound_by FROM operators WHERE phase = 'optimizer' AND {case.at_step()} ORDER BY time_ns DESC LIMIT 10",
            command=case.report("critical-path"),
            touched_ns=phases["optimizer_ns"] / case.steps,
            gain_ns=case.saved_ns(changes),
            step_ns=case.step_ns,
            changes=changes,
        )
    ]
