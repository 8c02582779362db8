"""Section ``collectives``: what each kind of collective takes and reaches, who comes late to them, and the worst calls."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.collective_calls import collective_calls, collective_parts
from trnprof.analysis.focus import focus, focus_note
from trnprof.analysis.metrics import ratio
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.analysis.size_classes import SizeClasses
from trnprof.analysis.stragglers import stragglers

KEY: Final = "collectives"
TITLE: Final = "Collectives"
TOP: Final = 20
CALLS: Final = 10
SIZES: Final = SizeClasses(
    (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20),
    ("< 4 KiB", "4–64 KiB", "64–1024 KiB", "1–16 MiB", "16–256 MiB", ">= 256 MiB"),
)
_KIND: Final = ["collective", "group", "group_ranks", "size_class", "algorithm"]


def build(subject: Subject) -> Section:
    """Of the step asked for; of a rank, the calls that it takes part in."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    parts = chosen_parts(collective_parts(subject.trace, subject.scope), subject)
    if not parts.height:
        return silent(KEY, TITLE, "because no collective runs in this window")
    calls = collective_calls(subject.trace, parts)
    kinds = _kinds(calls)
    tables = (
        _times(kinds),
        _bandwidths(kinds),
        _late(parts),
        _worst(calls),
        _clocks(parts),
    )
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), tuple(_notes(subject, calls)))


def chosen_parts(parts: pl.DataFrame, subject: Subject) -> pl.DataFrame:
    """The parts of the calls that begin in the step on some rank, and that the rank takes part in."""
    assert subject.scope is not None
    scope = focus(subject.scope, subject.step, subject.rank)
    windows = scope.windows.select("unit_id", "window_start_ns", "window_end_ns")
    own = parts.join(windows, on="unit_id")
    begins = pl.col("start_ns") + pl.col("clock_offset_ns")
    inside = (begins >= pl.col("window_start_ns")) & (begins < pl.col("window_end_ns"))
    calls = own if subject.step is None else own.filter(inside)
    return parts.join(calls.select("call").unique(), on="call", how="semi")


def _kinds(calls: pl.DataFrame) -> pl.DataFrame:
    """One row a collective, group, size class and algorithm; the longest in all first."""
    timed = pl.col("time_ns").filter(pl.col("size_bytes").is_not_null())
    return (
        calls.with_columns(size_class=SIZES.label(pl.col("size_bytes")))
        .group_by(_KIND)
        .agg(
            calls=pl.len(),
            bytes_total=pl.col("size_bytes").sum(),
            total_ns=pl.col("time_ns").sum(),
            median_ns=pl.col("time_ns").median(),
            algorithm_bytes_per_s=ratio(pl.col("size_bytes").sum() * 1e9, timed.sum()),
            bus_factor=(pl.col("bus_bytes_per_s") / pl.col("algorithm_bytes_per_s")).drop_nans().mean(),
            best_bus_bytes_per_s=pl.col("bus_bytes_per_s").max(),
            link=pl.col("link").sort_by("link_share", nulls_last=False).last(),
            link_share=pl.col("link_share").median(),
            skew_ns=pl.col("skew_ns").median(),
            worst_skew_ns=pl.col("skew_ns").max(),
            waited_ns=pl.col("skew_ns").sum(),
        )
        .with_columns(bus_bytes_per_s=pl.col("algorithm_bytes_per_s") * pl.col("bus_factor"))
        .drop("bus_factor")
        .sort("total_ns", *_KIND, descending=[True, *(False for _ in _KIND)])
    )  # fmt: skip


def _times(kinds: pl.DataFrame) -> Table:
    columns = (
        Column("collective", "collective"),
        Column("group", "group"),
        Column("group_ranks", "ranks", "count"),
        Column("size_class", "size"),
        Column("calls", "calls", "count"),
        Column("total_ns", "time", "ns"),
        Column("skew_ns", "skew", "ns"),
    )
    return table("kinds", "time from the last arrival on, and skew at entry", columns, kinds, TOP)


def _bandwidths(kinds: pl.DataFrame) -> Table:
    columns = (
        Column("collective", "collective"),
        Column("group", "group"),
        Column("size_class", "size"),
        Column("algorithm", "algorithm"),
        Column("algorithm_bytes_per_s", "algbw", "bytes_per_s"),
        Column("bus_bytes_per_s", "busbw", "bytes_per_s"),
        Column("link_share", "of link", "percent"),
    )
    known = kinds.filter(pl.col("algorithm_bytes_per_s").is_not_null())
    return table("bandwidth", "bandwidth", columns, known, TOP)


def _late(parts: pl.DataFrame) -> Table:
    columns = (
        Column("rank", "rank", "number"),
        Column("said", "is"),
        Column("since_call", "since call", "number"),
        Column("times_last", "last in", "count"),
        Column("calls", "of", "count"),
        Column("late_ns", "late by", "ns"),
        Column("jitter_ns", "varies", "ns"),
        Column("made_wait_ns", "kept waiting", "ns"),
    )
    said = (
        pl.when("is_chronic")
        .then(pl.lit("chronic"))
        .when(pl.col("times_last") > 0)
        .then(pl.lit("jitter"))
        .otherwise(pl.lit("never last"))
    )
    rows = stragglers(parts).with_columns(said=said)
    return table("late_ranks", "who comes late", columns, rows, TOP)


def _worst(calls: pl.DataFrame) -> Table:
    columns = (
        Column("collective", "collective"),
        Column("group", "group"),
        Column("first_ns", "first arrival", "ns"),
        Column("skew_ns", "skew", "ns"),
        Column("last_rank", "last rank", "number"),
        Column("time_ns", "then takes", "ns"),
    )
    rows = calls.filter(pl.col("skew_ns") > 0).sort("skew_ns", "call", descending=[True, False])
    return table("worst_calls", "calls with the most skew", columns, rows, CALLS)


def _clocks(parts: pl.DataFrame) -> Table:
    columns = (Column("rank", "rank", "number"), Column("clock_offset_ns", "clock ahead by", "ns"))
    rows = parts.select("rank", "clock_offset_ns").unique()
    ahead = rows.filter(pl.col("clock_offset_ns") != 0).sort("rank")
    return table("clock_offsets", "clocks that differ, by the ends of calls", columns, ahead, TOP)


def _notes(subject: Subject, calls: pl.DataFrame) -> list[str]:
    assert subject.scope is not None
    which = focus_note(focus(subject.scope, subject.step, subject.rank))
    notes = [
        f"{which}; bandwidths as in nccl-tests, over the time from the last arrival on; late by is after the median of the others, "
        "of chronic ones since it began; kept waiting sums what the call would have begun earlier"
    ]
    lone = calls.filter(~pl.col("is_matched")).height
    if lone == calls.height:
        notes.append("no call has parts of several ranks here: skew and stragglers are unknown (ranks that repeat another have none)")  # fmt: skip
    elif lone:
        notes.append(
            f"{lone} of {calls.height} calls have no part on another rank here and no skew"
        )
    if calls.filter(pl.col("is_inferred") & pl.col("is_matched")).height:
        notes.append("~ which calls belong together is inferred: the n-th of a name on each rank, if they overlap and end together")  # fmt: skip
    if calls["link_share"].is_not_null().any():
        notes.append("of link is what the busiest link carries, of its peak in that time")
    return [*notes, *subject.scope.notes]
