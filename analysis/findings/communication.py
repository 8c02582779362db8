"""Which collectives does nothing hide, and what would hiding them save?"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.collective_names import with_collective
from trnprof.analysis.exposed import exposed_collectives
from trnprof.analysis.findings.case import Case, quoted
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.units import format_ns, format_percent

KEY: Final = "exposed-communication"
MOST: Final = 3


def find(case: Case) -> list[Finding]:
    """Collectives of one name over one group, the most exposed first."""
    if not case.parts["compute_ns"]:
        return []  # of a trace of collectives alone there is nothing to hide them behind
    if case.parts["exposed_collective_ns"] < limit("exposed_communication_share") * case.parts["total_ns"]:  # fmt: skip
        return []
    units = case.times.scope.units.lazy().select("unit_id", "replica_count")
    weight = pl.col("replica_count")
    total = int(case.times.scope.units["replica_count"].sum())
    rows = (
        exposed_collectives(case.times.own, case.trace)
        .lazy()
        .join(units, on="unit_id")
        .group_by("collective", "group")
        .agg(
            *((pl.col(n) * weight).sum() / total for n in ("exposed_ns", "running_ns", "calls")),
            ranks=pl.col("group_ranks").max(),
        )
        .filter(pl.col("exposed_ns") >= limit("exposed_communication_share") * case.step_ns)
        .sort("exposed_ns", "collective", descending=[True, False])
        .head(MOST)
        .collect()
    )
    return [_finding(case, row) for row in rows.to_dicts()]


def _finding(case: Case, row: dict[str, Any]) -> Finding:
    name, group = row["collective"], row["group"]
    over = f" over {group}" if group else ""
    exposed = row["exposed_ns"]
    gain, changes, bound = exposed, None, True
    first = ""
    if case.graph is not None:
        is_meant = _is_meant(case, case.graph, name, group)
        changes, bound = Changes(np.where(is_meant, 0.0, 1.0), np.zeros(len(case.graph))), False
        gain = case.saved_ns(changes, _busiest_stream_ns(case, case.graph))
        first = _where(case, case.graph, is_meant)
    share = format_percent(exposed / row["running_ns"], 0) if row["running_ns"] else "all"
    ranks = f" of {row['ranks']} ranks" if row["ranks"] else ""
    at = "" if group is None else f" AND \"group\" = '{quoted(group)}'"
    text = quoted(name).replace("_", "%")
    return Finding(
        key=KEY,
        title=f"{name}{over} is exposed: {format_ns(exposed, 3)} of a step",
        evidence=f"nothing computes for {share} of its {format_ns(row['running_ns'], 3)} in {row['calls']:,.0f} calls{ranks}{first}; started earlier, it would run beside compute",
        where=f"collective {name}",
        query=f"SELECT name, \"group\", count(*) AS calls, sum(duration_ns) AS time_ns, sum(bytes) AS bytes FROM collectives WHERE (name LIKE '%{text}%' OR operator LIKE '%{text}%'){at} AND {case.at_step()} GROUP BY name, \"group\" ORDER BY time_ns DESC",
        command=case.report("breakdown"),
        touched_ns=row["running_ns"],
        gain_ns=gain,
        step_ns=case.step_ns,
        is_upper_bound=bound,
        changes=changes,
    )


def _is_meant(case: Case, graph: StepGraph, name: str, group: str | None) -> np.ndarray[Any, Any]:
    named = with_collective(
        graph.events.lazy().select("op_id", "name", "category").with_row_index("at"), case.trace
    )
    is_meant = (pl.col("category").cast(pl.String) == "collective") & (pl.col("collective") == name) & pl.col("group").eq_missing(pl.lit(group, pl.String))  # fmt: skip
    return named.sort("at").select(is_meant.fill_null(False)).collect().to_series().to_numpy()


def _busiest_stream_ns(case: Case, graph: StepGraph) -> float:
    """What collectives take one after the other on the stream with most of them: hidden, they take that still."""
    factors = np.ones(len(graph)) if case.given is None else case.given.factors
    added = np.zeros(len(graph)) if case.given is None else case.given.added_ns
    lengths = ((graph.column("end_ns") - graph.column("start_ns")) + added) * factors
    on_stream = graph.events.select("track", "kind").with_columns(ns=pl.Series(lengths))
    sums = on_stream.filter(pl.col("kind") == "collective_stream").group_by("track").agg(pl.col("ns").sum())  # fmt: skip
    return float(sums["ns"].max() or 0.0)  # type: ignore[arg-type]


def _where(case: Case, graph: StepGraph, is_meant: np.ndarray[Any, Any]) -> str:
    """The layer, else the source line, of the longest of them."""
    meant = graph.events.filter(pl.Series(is_meant)).with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))  # fmt: skip
    named = with_attribution(meant, case.trace.ops).with_columns(at=pl.coalesce("layer", "source"))
    rows = named.filter(pl.col("at").is_not_null() & (pl.col("at") != "")).group_by("at").agg(pl.col("ns").sum())  # fmt: skip
    if not rows.height:
        return ""
    return f", most in {rows.sort('ns', 'at', descending=[True, False])['at'][0]}"
