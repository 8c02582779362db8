"""Section ``breakdown``: where a step goes, which collectives are exposed, in which group, and which DMAs."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.breakdown import PART_LABELS, PARTS, mean_breakdown
from trnprof.analysis.exposed import exposed_collectives, exposed_dmas
from trnprof.analysis.focus import focus, mean_note, steps_only
from trnprof.analysis.metrics import ratio
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table

KEY: Final = "breakdown"
TITLE: Final = "Where the step goes"
TOP: Final = 20


def build(subject: Subject) -> Section:
    """Of the step and rank asked for, and of every step."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    whole = mean_breakdown(scope)
    if not whole.select(pl.col(*PARTS).sum()).select(pl.sum_horizontal(*PARTS)).item():
        return silent(KEY, TITLE, "because the window has no length")
    total_ns = float(whole["total_ns"][0])
    tables = [
        _parts(whole, total_ns),
        _steps(mean_breakdown(steps_only(subject.scope, subject.step, subject.rank))),
        _collectives(scope, subject, total_ns),
        _dmas(scope, subject, total_ns),
    ]
    note = (
        f"{mean_note(scope)}; the parts sum to the time; where several "
        "collectives or DMAs run at once, the one that began first is charged"
    )
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), (note, *scope.notes))


def _parts(whole: pl.DataFrame, total_ns: float) -> Table:
    rows = (
        whole.unpivot(list(PARTS), variable_name="part", value_name="time_ns")
        .with_columns(
            label=pl.col("part").replace_strict(PART_LABELS), share=pl.col("time_ns") / total_ns
        )
    )  # fmt: skip
    columns = (
        Column("label", "part"),
        Column("time_ns", "time", "ns"),
        Column("share", "of it", "percent"),
    )
    return table("parts", "", columns, rows)


def _steps(means: pl.DataFrame) -> Table:
    rows = means.select(
        "step", "label", "total_ns", *(pl.col(p).alias(f"{p}_ns") for p in PARTS)
    ).sort("step")
    columns = (
        Column("label", "step"),
        Column("total_ns", "takes", "ns"),
        Column("compute_ns", "compute", "ns"),
        Column("exposed_collective_ns", "comm", "ns"),
        Column("exposed_dma_ns", "DMA", "ns"),
        Column("host_ns", "host", "ns"),
        Column("idle_ns", "idle", "ns"),
    )
    return table("steps", "by step", columns, rows, TOP)


def _collectives(scope: Scope, subject: Subject, total_ns: float) -> Table:
    found = exposed_collectives(scope, subject.trace)
    columns = (
        Column("collective", "collective"),
        Column("group", "group"),
        Column("group_ranks", "ranks", "count"),
        Column("calls", "calls", "number"),
        Column("running_ns", "runs", "ns"),
        Column("exposed_ns", "exposed", "ns"),
        Column("share", "of it", "percent"),
    )
    rows = _ranked(found, scope, ["collective", "group", "group_ranks"], total_ns)
    return table("exposed_communication", "exposed communication", columns, rows, TOP)


def _dmas(scope: Scope, subject: Subject, total_ns: float) -> Table:
    found = exposed_dmas(scope, subject.trace)
    columns = (
        Column("queue", "queue"),
        Column("name", "DMA"),
        Column("calls", "calls", "number"),
        Column("running_ns", "runs", "ns"),
        Column("exposed_ns", "exposed", "ns"),
        Column("share", "of it", "percent"),
    )
    return table("exposed_dma", "exposed DMA", columns, _ranked(found, scope, ["queue", "name"], total_ns), TOP)  # fmt: skip


def _ranked(found: pl.DataFrame, scope: Scope, names: list[str], total_ns: float) -> pl.DataFrame:
    """Means over all units of the scope, replicas weighing; the most exposed first. Calls are those of a unit."""
    weight, cores = pl.col("replica_count"), int(scope.units["replica_count"].sum())
    figures = ("calls", "running_ns", "exposed_ns")
    mean = [((pl.col(n) * weight).sum() / cores).alias(n) for n in figures]
    return (
        found.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
        .group_by(names)
        .agg(mean)
        .with_columns(share=ratio(pl.col("exposed_ns"), pl.lit(total_ns)))
        .sort("exposed_ns", "running_ns", *names, descending=[True, True, *(False for _ in names)])
    )
