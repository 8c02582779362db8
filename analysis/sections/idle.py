"""Section ``idle``: what the engines waited for when they did nothing."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.collective_names import canonical
from trnprof.analysis.focus import focus, mean_note
from trnprof.analysis.idle_causes import AFTER, COLLECTIVE, HOST, KINDS, PEER, idle_by_cause
from trnprof.analysis.metrics import ratio
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.analysis.steps import median_step
from trnprof.analysis.waits import UNKNOWN

KEY: Final = "idle"
TITLE: Final = "What idle engines waited for"
TOP: Final = 25
MANY_EVENTS: Final = 5_000_000
"""Beyond these, chains are followed in the median step alone: they need all its events in memory."""


def build(subject: Subject) -> Section:
    """Of the step and rank asked for; of the median step if all steps have too many events."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    if not subject.scope.lanes["kind"].is_in(KINDS).any():
        return silent(KEY, TITLE, "because the trace has no engines or streams")
    step, notes = subject.step, list(subject.scope.notes)
    if step is None and _event_count(subject) > MANY_EVENTS:
        step = median_step(subject.scope)
        notes.append("~ figures are of the median step: all of them have too many events")
    scope = focus(subject.scope, step, subject.rank)
    found = idle_by_cause(subject.trace, scope)
    if not found.height:
        return silent(KEY, TITLE, "because no engine is ever idle in this window")
    idle = _means(found, scope)
    tables = (_causes(idle), _waits(idle), _engines(idle, scope))
    notes.insert(0, f"{mean_note(scope)}; causes sum to the idle time of the engines")
    if found["is_inferred"].any():
        notes.insert(1, "~ inferred: the trace does not say what these waited for, the times suggest it")  # fmt: skip
    return Section(KEY, TITLE, tables, tuple(notes))


def _event_count(subject: Subject) -> int:
    return int(subject.trace.events.select(pl.len()).collect().item())


def _means(found: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """Means over units, replicas weighing: resource, cause, on (what it waited for, in words), is_inferred, idle_ns, gaps, longest_ns, …."""
    weight, cores = pl.col("replica_count"), int(scope.units["replica_count"].sum())
    labelled = found.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
    thread = pl.col("blocker_track").fill_null("")
    name = pl.col("blocker_name").fill_null("")
    is_collective = pl.col("cause") == COLLECTIVE
    event = pl.when(is_collective).then(pl.coalesce(canonical(name), name)).otherwise(name)
    words = (
        pl.when(pl.col("cause") == PEER)
        .then(pl.format("rank {}: {} {}", pl.col("peer_rank").fill_null(-1), thread, event))
        .when(pl.col("cause") == HOST)
        .then(event)
        .otherwise(pl.concat_str(thread, event, separator=" "))
    )
    keys = ["resource", "cause", "on", "peer_rank", "is_inferred"]
    return (
        labelled.with_columns(on=words.str.strip_chars())
        .group_by(keys)
        .agg(
            idle_ns=(pl.col("idle_ns") * weight).sum() / cores,
            gaps=(pl.col("gaps") * weight).sum() / cores,
            longest_ns=pl.col("longest_ns").max(),
        )
        .with_columns(
            shown=pl.when("is_inferred").then(pl.format("~ {}", "cause")).otherwise("cause"),
            share=ratio(pl.col("idle_ns"), pl.col("idle_ns").sum()),
        )
        .sort(
            pl.col("cause") == AFTER, "idle_ns", *keys, descending=[False, True, *(False for _ in keys)]
        )
    )  # fmt: skip


def _causes(idle: pl.DataFrame) -> Table:
    rows = (
        idle.group_by("cause", "shown", "is_inferred")
        .agg(pl.col("idle_ns", "share", "gaps").sum(), pl.col("longest_ns").max())
        .sort("idle_ns", "shown", descending=[True, False])
    )
    columns = (
        Column("shown", "cause"),
        Column("idle_ns", "idle", "ns"),
        Column("share", "of idle", "percent"),
        Column("longest_ns", "longest", "ns"),
    )
    return table("causes", "by cause, all engines together", columns, rows)


def _waits(idle: pl.DataFrame) -> Table:
    columns = (
        Column("resource", "engine"),
        Column("shown", "waits for"),
        Column("on", "which"),
        Column("idle_ns", "idle", "ns"),
        Column("share", "of idle", "percent"),
        Column("longest_ns", "longest", "ns"),
    )
    return table("waits", "ranked", columns, idle, TOP)


def _engines(idle: pl.DataFrame, scope: Scope) -> Table:
    """One row an engine: how long it is idle, and its longest cause."""
    lanes = scope.lanes.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
    weight, cores = pl.col("replica_count"), int(scope.units["replica_count"].sum())
    of_window = (
        lanes.join(scope.window_lengths(), on="unit_id")
        .group_by("resource")
        .agg(total_ns=(pl.col("total_ns") * weight).sum() / cores, order=pl.col("sort_order").min())
    )
    causes = (
        idle.group_by("resource", "cause", "shown").agg(pl.col("idle_ns").sum())
        .sort("idle_ns", "cause", descending=[True, False])
        .group_by("resource", maintain_order=True)
        .agg(
            pl.col("shown").filter(~pl.col("cause").is_in([AFTER, UNKNOWN])).first(),
            most_ns=pl.col("idle_ns").filter(~pl.col("cause").is_in([AFTER, UNKNOWN])).first(),
            idle_ns=pl.col("idle_ns").sum(),
        )
    )  # fmt: skip
    rows = (
        causes.join(of_window, on="resource")
        .with_columns(idle_share=ratio(pl.col("idle_ns"), pl.col("total_ns")))
        .sort("order", "resource")
        .drop("order", "total_ns")
    )
    columns = (
        Column("resource", "engine"),
        Column("idle_ns", "idle", "ns"),
        Column("idle_share", "of time", "percent"),
        Column("shown", "mostly for"),
        Column("most_ns", "that is", "ns"),
    )
    return table("engines", "by engine", columns, rows, TOP)
