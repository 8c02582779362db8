"""Which operators are far from their roofline, and what would bringing them there save?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.findings.case import Case, quoted
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.operators import BANDWIDTH, ISSUE
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.units import format_ns, format_percent

KEY: Final = "roofline"
MOST: Final = 3


def find(case: Case) -> list[Finding]:
    """Operators of the window that an engine bounds, or latency, at less than half of their roofline: brought to it."""
    if case.graph is None:
        return []
    rows = case.window["operators"]
    wanted = [r for r in rows if _is_far(case, r)] if isinstance(rows, list) else []
    if not wanted:
        return []
    placed = with_attribution(case.graph.events, case.trace.ops)
    return [_at_roofline(case, case.graph, placed, row) for row in wanted[:MOST]]


def _is_far(case: Case, row: Mapping[str, Any]) -> bool:
    share = row["roofline_share"]
    is_known = share is not None and row["bound_by"] not in (BANDWIDTH, ISSUE, "collective-bound", None)  # fmt: skip
    is_long = row["time_ns"] / case.steps >= limit("fusable_share") * case.step_ns
    is_own = row["phase"] != "optimizer"
    return bool(is_known and is_long and is_own and share < limit("far_from_roofline"))


def _at_roofline(
    case: Case, graph: StepGraph, placed: pl.DataFrame, row: Mapping[str, Any]
) -> Finding:
    category = pl.col("category").cast(pl.String)
    is_meant = (
        (pl.col("operator") == row["name"])
        & pl.col("layer").fill_null("").eq(row["module"] or "")
        & pl.col("phase").eq_missing(pl.lit(row["phase"], pl.String))
        & (category != "collective")
    )
    meant = placed.select(is_meant.fill_null(False)).to_series().to_numpy()
    share = float(row["roofline_share"])
    changes = Changes(np.where(meant, share, 1.0), np.zeros(len(graph)))
    name = " ".join(p for p in (row["module"], row["name"]) if p)
    bound = row["bound_by"].removesuffix("-bound")
    return Finding(
        key=KEY,
        title=f"{name} reaches {format_percent(share)} of its roofline, bound by {bound}",
        evidence=f"{format_ns(row['time_ns'] / case.steps, 3)} of a step in {row['count'] / case.steps:,.0f} calls, {format_ns(row['roofline_ns'] / case.steps, 3)} at the roofline of its FLOPs and HBM bytes",
        where=name,
        query=f"SELECT name, module, phase, time_ns, roofline_ns, roofline_share, bound_by, bound_share FROM operators WHERE name = '{quoted(row['name'])}' AND {case.at_step()} ORDER BY time_ns DESC",
        command=case.report("critical-path"),
        touched_ns=row["time_ns"] / case.steps,
        gain_ns=case.saved_ns(changes),
        step_ns=case.step_ns,
        changes=changes,
    )
