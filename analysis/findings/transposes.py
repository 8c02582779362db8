"""Does the Tensor engine transpose more than it should? Neuron Explorer's rule, timed again without."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.findings.case import Case
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.units import format_ns, format_percent

KEY: Final = "transposes"


def find(case: Case) -> list[Finding]:
    """Transposes beyond the threshold; where the step cannot be timed again, the partition's advice says it."""
    metrics, graph = case.window["metrics"], case.graph
    flops, transposed = metrics["hardware_flops"], metrics["transpose_flops"]
    if graph is None or not flops or transposed <= limit("transpose_share") * flops:
        return []
    marked = case.trace.events.filter(pl.col("is_transpose")).select("event_id")
    ids = marked.collect(engine="streaming")["event_id"]
    meant = graph.events["event_id"].is_in(ids.implode()).to_numpy()
    ns = float((graph.column("end_ns") - graph.column("start_ns"))[meant].sum())
    changes = Changes(np.where(meant, 0.0, 1.0), np.zeros(len(graph)))
    share = format_percent(transposed / flops)
    return [
        Finding(
            key=KEY,
            title=f"transposes are {share} of the Tensor engine's FLOPs",
            evidence=f"{int(meant.sum()):,} of them in {format_ns(ns, 3)} of all ranks; operands that lie as matmuls read them need none, and the DMA engines can transpose",
            where="Tensor",
            query=f"SELECT name, count(*) AS transposes, sum(duration_ns) AS time_ns FROM events WHERE is_transpose AND {case.at_step()} GROUP BY name ORDER BY time_ns DESC",
            command=case.report("critical-path"),
            touched_ns=min(ns, case.step_ns),
            gain_ns=case.saved_ns(changes),
            step_ns=case.step_ns,
            changes=changes,
        )
    ]
