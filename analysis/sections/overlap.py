"""Section ``overlap``: the time of a step by what runs at once."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.focus import focus, mean_note, steps_only
from trnprof.analysis.metrics import ratio
from trnprof.analysis.overlap import KINDS, overlap_matrix
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Section, Subject, silent, table

KEY: Final = "overlap"
TITLE: Final = "Overlap of compute, DMA and collectives"
TOP: Final = 20
_NAMES: Final = {"compute": "compute", "dma": "DMA", "collective": "collective"}


def build(subject: Subject) -> Section:
    """Of the step and rank asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    means = _means(scope)
    if not means.filter(pl.any_horizontal(*KINDS)).height:
        return silent(KEY, TITLE, "because no event of the device takes time in this window")
    steps = _means(steps_only(subject.scope, subject.step, subject.rank))
    columns = (
        Column("running", "what runs"),
        Column("time_ns", "time", "ns"),
        Column("share", "of it", "percent"),
    )
    hidden = (
        Column("label", "step"),
        Column("collective_ns", "collective", "ns"),
        Column("collective_hidden_share", "hidden", "percent"),
        Column("dma_ns", "DMA", "ns"),
        Column("dma_hidden_share", "hidden", "percent"),
    )
    order = [pl.col(k) for k in KINDS]
    rows = means.sort(pl.sum_horizontal(order) == 0, "time_ns", *KINDS, descending=[False, True, True, True, True])  # fmt: skip
    tables = (
        table("combinations", "", columns, rows),
        table("hidden", "what compute hides", hidden, _hidden(steps), TOP),
    )
    note = (
        f"{mean_note(scope)}; combinations sum to the time; a DMA's issue "
        "counts as DMA; collectives are hidden by compute, DMA by compute or collectives"
    )
    return Section(KEY, TITLE, tables, (note, *scope.notes))


def _means(scope: Scope) -> pl.DataFrame:
    """Means over units, replicas weighing: window, step, label, the KINDS, running (in words), time_ns, share."""
    weights = scope.units.select("unit_id", "replica_count")
    weight = pl.col("replica_count")
    totals = (
        scope.window_lengths().join(weights, on="unit_id").group_by("window")
        .agg(total_ns=(pl.col("total_ns") * weight).sum() / weight.sum(), cores=weight.sum())
    )  # fmt: skip
    labels = scope.windows.select("window", "step", "label").unique("window")
    running = pl.concat_str(
        *(pl.when(k).then(pl.lit(n)) for k, n in _NAMES.items()), separator=" + ", ignore_nulls=True
    )
    return (
        overlap_matrix(scope)
        .join(weights, on="unit_id")
        .group_by("window", *KINDS)
        .agg(time_ns=(pl.col("time_ns") * weight).sum())
        .join(totals, on="window")
        .with_columns(pl.col("time_ns") / pl.col("cores"))
        .with_columns(
            share=ratio(pl.col("time_ns"), pl.col("total_ns")),
            running=pl.when(pl.any_horizontal(*KINDS)).then(running).otherwise(pl.lit("nothing")),
        )
        .join(labels, on="window")
        .drop("cores", "total_ns")
        .sort("window", *KINDS)
    )


def _hidden(means: pl.DataFrame) -> pl.DataFrame:
    """One row a window: step, label, times of collectives and DMA and what share of each something hides."""
    time = pl.col("time_ns")
    is_hidden = pl.col("compute") | pl.col("collective")
    return (
        means.group_by("window", "step", "label")
        .agg(
            collective_ns=time.filter("collective").sum(),
            collective_hidden_ns=time.filter(pl.col("collective") & pl.col("compute")).sum(),
            dma_ns=time.filter("dma").sum(),
            dma_hidden_ns=time.filter(pl.col("dma") & is_hidden).sum(),
        )
        .with_columns(
            collective_hidden_share=ratio(pl.col("collective_hidden_ns"), pl.col("collective_ns")),
            dma_hidden_share=ratio(pl.col("dma_hidden_ns"), pl.col("dma_ns")),
        )
        .sort("window")
        .drop("window")
    )
