"""Section ``dma``: sizes against the rules, queues, routes, and the operators whose DMAs cost most beyond their bytes."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.dma import (
    SIZES,
    dma_by,
    dma_transfers,
    queue_balance,
    routes,
    trigger_ns,
)
from trnprof.analysis.focus import focus, mean_note
from trnprof.analysis.metrics import ratio
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.tracer.units import format_bytes, format_ns, format_percent

KEY: Final = "dma"
TITLE: Final = "DMA"
TOP: Final = 20
_ADVICE: Final = {0: "too small", 1: "too small", 2: "small", 3: "good", 4: "good"}
"""By class of SIZES: what Neuron's rules say of a transfer of that size."""
_COUNTS: Final = (
    Column("transfers", "transfers", "count"),
    Column("bytes", "bytes", "bytes"),
    Column("bytes_share", "of bytes", "percent"),
    Column("held_ns", "holds", "ns"),
    Column("held_share", "of time", "percent"),
)


def build(subject: Subject) -> Section:
    """Of the step and rank asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    transfers = dma_transfers(subject.trace, scope)
    whole = dma_by(transfers, scope, [])
    if not whole.height or not whole["transfers"].sum():
        return silent(KEY, TITLE, "because no DMA with bytes begins in this window")
    total = whole.row(0, named=True)
    tables = (
        _summary(total, transfers, scope),
        _sizes(transfers, scope, "size_class", "transfer_sizes", "by size of transfer"),
        _sizes(transfers, scope, "descriptor_class", "descriptor_sizes", "by size of descriptor"),
        _queues(transfers, scope),
        _routes(transfers, scope),
        _operators(transfers, scope, subject),
    )
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), tuple(_notes(total, scope)))


def _summary(total: dict[str, Any], transfers: pl.LazyFrame, scope: Scope) -> Table:
    """Figures of all DMAs beside what they should be."""
    uneven = queue_balance(transfers, scope).select(pl.col("held_max_over_mean").max()).item()
    issued = trigger_ns(scope).join(scope.units.select("unit_id", "replica_count"), on="unit_id")
    summed = issued.select((pl.col("trigger_ns") * pl.col("replica_count")).sum()).item()
    triggers = summed / int(scope.units["replica_count"].sum())
    small = total["small"] / total["transfers"]
    rows = [
        ("average transfer", format_bytes(total["average_bytes"] or 0, 3), "32 KiB or more", total["average_bytes"]),
        ("transfers under 4 KiB", format_percent(small), "few", small),
        ("time beyond the bytes' own", format_percent(total["issue_share"]), "little", total["issue_share"]),
        ("time of issue-bound transfers", format_percent(total["issue_bound_share"]), "little", total["issue_bound_share"]),
        ("busiest queue over mean", "–" if uneven is None else f"{uneven:.2f}", "1", uneven),
        ("engines' time to issue", format_ns(triggers, 3), "", triggers),
    ]  # fmt: skip
    frame = pl.DataFrame(
        rows, schema=["figure", "shown", "should_be", "value"], orient="row", strict=False
    )
    columns = (
        Column("figure", "figure"),
        Column("shown", "is"),
        Column("should_be", "should be"),
    )
    return table("summary", "", columns, frame)


def _sizes(transfers: pl.LazyFrame, scope: Scope, column: str, key: str, title: str) -> Table:
    known = transfers.filter(pl.col(column).is_not_null())
    order = {label: place for place, label in enumerate(SIZES.labels)}
    rows = dma_by(known, scope, [column]).with_columns(
        order=pl.col(column).replace_strict(order, return_dtype=pl.Int64)
    )
    advice = pl.col("order").replace_strict(_ADVICE, return_dtype=pl.String)
    told = rows.with_columns(advice=advice).sort("order").drop("order")
    is_transfer = column == "size_class"
    columns = (Column(column, "size"), *_COUNTS, *([Column("advice", "")] if is_transfer else []))
    return table(key, title, columns, told if is_transfer else told.drop("advice"))


def _queues(transfers: pl.LazyFrame, scope: Scope) -> Table:
    rows = dma_by(transfers, scope, ["queue"])
    columns = (
        Column("queue", "queue"),
        *_COUNTS,
        Column("average_bytes", "average", "bytes"),
    )
    return table("queues", "by queue", columns, rows, TOP)


def _routes(transfers: pl.LazyFrame, scope: Scope) -> Table:
    # the peak of a GPU is that of its memory, which copies from and to the host never see
    peak = pl.col("dma_peak_bytes_per_s").filter(~pl.col("has_streams").any()).max()
    limit = scope.units.select(pl.lit(None, pl.Float64).fill_null(peak)).head(1)
    rows = (
        routes(transfers, scope)
        .join(limit.rename({"literal": "limit"}), how="cross")
        .with_columns(of_peak=ratio(pl.col("bytes_per_s"), pl.col("limit")))
        .drop("limit")
    )
    columns = (
        Column("source_memory", "from"),
        Column("target_memory", "to"),
        Column("transfers", "transfers", "count"),
        Column("bytes", "bytes", "bytes"),
        Column("active_ns", "active", "ns"),
        Column("bytes_per_s", "while active", "bytes_per_s"),
        Column("of_peak", "of peak", "percent"),
    )
    return table("routes", "by route", columns, rows, TOP)


def _operators(transfers: pl.LazyFrame, scope: Scope, subject: Subject) -> Table:
    """Those whose DMAs hold queues longest beyond what their bytes need; or hold them longest, where nobody knows the rate."""
    by_op = dma_by(transfers, scope, ["op_id", "name"])
    named = with_attribution(by_op, subject.trace.ops)
    figures = ("transfers", "bytes", "held_ns", "needed_ns", "overhead_ns")
    known = pl.col("needed_ns").is_not_null().any()
    sums = [pl.when(known).then(pl.col(n).sum()).alias(n) for n in figures[3:]]
    rows = (
        named.group_by("operator", "layer")
        .agg(pl.col(figures[:3]).sum(), *sums)
        .with_columns(
            average_bytes=ratio(pl.col("bytes"), pl.col("transfers")),
            issue_share=ratio(pl.col("overhead_ns"), pl.col("held_ns")),
        )
        .sort(
            pl.coalesce("overhead_ns", "held_ns"), "operator", "layer", descending=[True, False, False]
        )
    )  # fmt: skip
    columns = (
        Column("operator", "operator"),
        Column("layer", "layer"),
        Column("transfers", "transfers", "count"),
        Column("average_bytes", "average", "bytes"),
        Column("held_ns", "holds", "ns"),
        Column("issue_share", "not bytes", "percent"),
    )
    return table("operators", "worst by operator", columns, rows, TOP)


def _notes(total: dict[str, Any], scope: Scope) -> list[str]:
    notes = [
        f"{mean_note(scope)}; holds is how long queues are taken: a transfer's time, and no less than a slot an instruction where the machine is known",
        "rules of Neuron Explorer: 4 KiB or more a transfer, better 32 KiB; a transfer is issue-bound if its bytes need less than half of what it holds",
    ]  # fmt: skip
    if total["needed_ns"] is None:
        notes.append("what the bytes need is unknown: nobody knows the rate of these DMA engines")
    return [*notes, *scope.notes]
