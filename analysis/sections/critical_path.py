"""Section ``critical-path``: what a step's time is made of along its longest chain of dependencies."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.critical_path import by_doing, critical_path, rank_changes
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.analysis.step_graph import StepGraph, step_or_median_graph
from trnprof.analysis.steps import stands_for
from trnprof.tracer.units import format_ns

KEY: Final = "critical-path"
TITLE: Final = "Critical path"
TOP: Final = 20
_FIGURES: Final = (
    Column("duration_ns", "time", "ns"),
    Column("share", "of step", "percent"),
    Column("pieces", "pieces", "count"),
)
_CHANGES: Final = (
    Column("at_ns", "at", "ns"),
    Column("from_rank", "from rank", "number"),
    Column("to_rank", "to rank", "number"),
    Column("name", "goes on with"),
)


def build(subject: Subject) -> Section:
    """The path of the step asked for, or of the median one."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    graph = step_or_median_graph(subject.trace, subject.scope, subject.step)
    if not len(graph):
        return silent(KEY, TITLE, "because no event of the device lies in the step")
    path = with_attribution(critical_path(graph), subject.trace.ops)
    if not path.height:
        return silent(KEY, TITLE, "because neither the step nor any event in it takes time")
    doing = (Column("doing", "doing"), *_FIGURES)
    tables = [
        table("by_kind", "by kind", doing, by_doing(path)),
        _by(path, graph, "by_operator", {"operator": "operator", "layer": "layer"}),
        _by(path, graph, "by_source_line", {"source": "source line"}),
        table("rank_changes", "where it changes rank", _CHANGES, rank_changes(path), TOP),
    ]
    return Section(
        KEY,
        TITLE,
        tuple(t for t in tables if t.rows),
        (*_notes(graph), *_extrapolated(subject, graph)),
    )


def _by(path: pl.DataFrame, graph: StepGraph, key: str, labels: dict[str, str]) -> Table:
    total_ns = max(1, graph.end_ns - graph.start_ns)
    rows = (
        path.group_by(*labels)
        .agg(pl.col("duration_ns").sum(), pieces=pl.len())
        .filter(pl.any_horizontal(pl.col(*labels).is_not_null()))
        .with_columns(share=pl.col("duration_ns") / total_ns)
        .sort("duration_ns", *labels, descending=[True, *(False for _ in labels)])
    )
    columns = (*(Column(k, v) for k, v in labels.items()), *_FIGURES)
    return table(key, key.replace("_", " "), columns, rows, TOP)


def _extrapolated(subject: Subject, graph: StepGraph) -> tuple[str, ...]:
    """What the median step says of all of them."""
    assert subject.scope is not None
    count, took_ns = stands_for(subject.scope, subject.step)
    if graph.step is None or count < 2:
        return ()
    length = graph.end_ns - graph.start_ns
    return (
        f"~ it is the median one: {count} like it are {format_ns(count * length)}, the {count} of the trace {format_ns(took_ns)}",
    )


def _notes(graph: StepGraph) -> tuple[str, ...]:
    which = "the whole trace" if graph.step is None else f"step {graph.step}"
    if graph.is_inferred:
        return (
            f"~ path of {which}; what each event waited for is inferred from times and launches",
        )
    return (f"path of {which}; its pieces sum to the step",)
