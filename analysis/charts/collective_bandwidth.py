"""Chart ``collective-bandwidth``: what bus bandwidth (as nccl-tests count it) do collectives of each size reach?"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.charts.chart import Chart, with_rows
from trnprof.analysis.collective_calls import collective_calls, collective_parts
from trnprof.analysis.focus import focus, focus_note
from trnprof.analysis.sections.collectives import chosen_parts
from trnprof.analysis.sections.section import Column, Subject

MAX_POINTS: Final = 1_000
CHART: Final = Chart(
    "collective-bandwidth",
    "Collectives: bytes against bus bandwidth",
    "scatter",
    x=Column("size_bytes", "bytes", "bytes"),
    y=Column("bus_bytes_per_s", "bus bandwidth", "bytes_per_s"),
    color=Column("collective", "collective"),
    size=Column("count", "calls", "count"),
    more=(
        Column("group", "group"),
        Column("group_ranks", "ranks", "count"),
        Column("time_ns", "median time", "ns"),
        Column("link_share", "of the busiest link", "percent"),
    ),
    is_logarithmic=True,
)
_KEYS: Final = ("collective", "group", "group_ranks", "size_bytes")


def build(subject: Subject) -> Chart:
    """A point a collective, group and size: the medians of its calls."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    parts = chosen_parts(collective_parts(subject.trace, subject.scope), subject)
    empty = replace(
        CHART, nothing_to_say="because the trace has no collective whose bytes are known"
    )
    if not parts.height:
        return replace(CHART, nothing_to_say="because no collective runs in this window")
    medians = [pl.col(n).median() for n in ("bus_bytes_per_s", "time_ns", "link_share")]
    points = (
        collective_calls(subject.trace, parts)
        .group_by(_KEYS)
        .agg(*medians, count=pl.len(), is_inferred=pl.col("is_inferred").any())
        .filter((pl.col("bus_bytes_per_s") > 0) & (pl.col("size_bytes") > 0))
        .with_columns(pl.col("group").fill_null("unknown"))
        .sort(pl.col("time_ns") * pl.col("count"), *_KEYS, descending=[True, *(False for _ in _KEYS)])
    )  # fmt: skip
    scope = focus(subject.scope, subject.step, subject.rank)
    notes = [
        f"{focus_note(scope)}; medians of all calls of one size, timed from the last rank's start to the last end"
    ]
    if points["is_inferred"].any():
        notes.append("~ which parts make a call is inferred by counting")
    if points.height > MAX_POINTS:
        notes.append(f"the {MAX_POINTS:,} of {points.height:,} sizes that take most time")
    return with_rows(empty, points.head(MAX_POINTS), notes)
