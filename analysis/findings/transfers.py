"""Are DMAs large enough, and does compute hide them? Small ones, and exposed ones."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.dma import dma_transfers
from trnprof.analysis.dma_machine import engines_bytes_per_s, queue_slot_ns
from trnprof.analysis.findings.case import Case
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.findings.work import union_ns
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.units import format_bytes, format_ns, format_percent

SMALL: Final = "small-dmas"
EXPOSED: Final = "exposed-dma"


def small(case: Case) -> list[Finding]:
    """Small transfers that hold their queue mostly for anything but their bytes, as if put together to the target size."""
    graph = case.graph
    if graph is None:
        return []
    target = limit("small_dma_bytes")
    figures = dma_transfers(case.trace, case.times.own).select(
        held=pl.col("held_ns").sum(),
        small=pl.col("held_ns").filter((pl.col("size_bytes") < target) & (pl.col("issue_bound_ns") > 0)).sum(),
    )  # fmt: skip
    held, of_small = figures.collect(engine="streaming").row(0)
    if not held or of_small < limit("small_dma_share") * held:
        return []
    rows = _transfers(case, graph)
    meant = rows.filter("is_small")
    if not meant.height:
        return []
    gain = case.saved_ns(changes := _put_together(graph, rows))
    count, nbytes = meant.height, float(meant["bytes"].sum())
    place = _most(case, meant)
    average = format_bytes(nbytes / count, 3)
    return [
        Finding(
            key=SMALL,
            title=f"small DMAs: {count:,} transfers of {average} on average, most in {place}",
            evidence=f"they hold their queues {format_percent(of_small / held, 0)} of the time that DMAs do, for issue and start-up more than for bytes; put together to {format_bytes(target, 3)} each (larger tiles, contiguous rows, lists of tensors)",
            where=place,
            query=f"SELECT operator, module, count(*) AS transfers, avg(bytes) AS mean_bytes, sum(duration_ns) AS time_ns FROM named_events WHERE category = 'dma' AND bytes < {target:.0f} AND {case.at_step()} GROUP BY operator, module ORDER BY time_ns DESC LIMIT 10",
            command=case.report("dma"),
            touched_ns=float(union_ns(meant)),
            gain_ns=gain,
            step_ns=case.step_ns,
            changes=changes,
        )
    ]


def _most(case: Case, events: pl.DataFrame) -> str:
    """The layer and operator with most time in these events."""
    row = (
        with_attribution(events, case.trace.ops)
        .group_by("operator", "layer")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("ns", "operator", descending=[True, False])
        .row(0, named=True)
    )
    return " ".join(str(p) for p in (row["layer"], row["operator"]) if p)


def _transfers(case: Case, graph: StepGraph) -> pl.DataFrame:
    """The events of the graph with ``at`` (index), held_ns, needed_ns and is_small; null and false of what is no transfer."""
    rate = engines_bytes_per_s(case.trace)
    length = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    moves = (pl.col("kind") == "dma_queue") & (pl.col("bytes") > 0)
    rows = graph.events.with_row_index("at").with_columns(
        held_ns=pl.when(moves).then(pl.max_horizontal(length, queue_slot_ns(case.trace))),
        needed_ns=pl.when(moves).then(
            pl.col("bytes") / (pl.lit(None, pl.Float64) if rate is None else rate) * 1e9
        ),
    )
    is_bound = pl.col("needed_ns") < pl.col("held_ns") / 2
    is_small = (pl.col("bytes") < limit("small_dma_bytes")) & is_bound
    return rows.with_columns(is_small=is_small.fill_null(False))


def _put_together(graph: StepGraph, rows: pl.DataFrame) -> Changes:
    """As many bytes in transfers of the target size: fixed costs of each are shared by as many as it is put together of, its issue too."""
    together = limit("small_dma_bytes") / pl.col("bytes")
    fixed = pl.col("held_ns") - pl.col("needed_ns")
    factor = (pl.col("needed_ns") + fixed / together) / pl.col("held_ns")
    factors = rows.select(pl.when("is_small").then(factor).otherwise(1.0).fill_null(1.0)).to_series().to_numpy().copy()  # fmt: skip
    shared = rows.select(pl.when("is_small").then(1 / together).otherwise(1.0).fill_null(1.0)).to_series().to_numpy()  # fmt: skip
    is_issue = (graph.events["category"].cast(pl.String) == "sync").to_numpy()
    is_issued = is_issue[graph.edges.sources] & rows["is_small"].to_numpy()[graph.edges.targets]
    factors[graph.edges.sources[is_issued]] = shared[graph.edges.targets[is_issued]]
    return Changes(factors, np.zeros(len(graph)))


def exposed(case: Case) -> list[Finding]:
    """DMAs and their issue hidden: the step takes no less than DMA is active. Where it cannot be timed again, the partition's advice says it."""
    graph = case.graph
    if graph is None:
        return []
    alone = case.parts["exposed_dma_ns"] / case.steps
    if alone < limit("exposed_dma_share") * case.step_ns or not case.parts["compute_ns"]:
        return []
    category = pl.col("category").cast(pl.String)
    is_dma = graph.events.select((pl.col("kind") == "dma_queue") | category.is_in(["dma", "sync"]))
    meant = is_dma.to_series().fill_null(False)
    floor = union_ns(graph.events.filter(meant))
    changes = Changes(np.where(meant.to_numpy(), 0.0, 1.0), np.zeros(len(graph)))
    gain = case.saved_ns(changes, floor)
    name = _most(case, graph.events.filter(meant))
    return [
        Finding(
            key=EXPOSED,
            title=f"DMA is exposed: {format_ns(alone, 3)} of a step, most in {name}",
            evidence=f"DMA is active {format_ns(floor, 3)} and nothing computes for {format_percent(alone / case.step_ns)} of the step; loaded ahead, it would run beside compute",
            where=name,
            query=f"SELECT operator, module, count(*) AS transfers, sum(duration_ns) AS time_ns, sum(bytes) AS bytes FROM named_events WHERE category = 'dma' AND {case.at_step()} GROUP BY operator, module ORDER BY time_ns DESC LIMIT 10",
            command=case.report("breakdown"),
            touched_ns=floor,
            gain_ns=gain,
            step_ns=case.step_ns,
            changes=changes,
        )
    ]
