"""Unions, overlaps and gaps against sets of integers: an interval covers the nanoseconds in it."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.analysis.intervals import covered_ns, gaps, overlap, segments, union

Interval = tuple[int, int, int]

intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-20, 40), st.integers(0, 12)).map(
        lambda t: (t[0], t[1], t[1] + t[2])
    ),
    max_size=25,
)


def lazy(rows: list[Interval]) -> pl.LazyFrame:
    schema = {"group": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").lazy()


def cells(rows: list[Interval]) -> set[tuple[int, int]]:
    return {(g, t) for g, start, end in rows for t in range(start, end)}


def rows_of(frame: pl.LazyFrame) -> list[Interval]:
    return [(g, s, e) for g, s, e in frame.select("group", "start_ns", "end_ns").collect().rows()]


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_union_is_the_set_of_covered_instants_in_maximal_pieces(rows: list[Interval]) -> None:
    merged = rows_of(union(lazy(rows), ["group"]))
    assert cells(merged) == cells(rows)
    assert merged == sorted(merged)
    for (g, _, end), (h, start, _) in pairwise(merged):
        assert g != h or end < start


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_covered_counts_every_instant_once(rows: list[Interval]) -> None:
    found = dict(covered_ns(lazy(rows), ["group"]).collect().rows())
    for group in range(3):
        assert found.get(group, 0) == sum(1 for g, _ in cells(rows) if g == group)


@settings(max_examples=60, deadline=None)
@given(intervals, intervals)
def test_overlap_and_gaps_are_intersection_and_difference(
    left: list[Interval], right: list[Interval]
) -> None:
    both = rows_of(overlap(lazy(left), lazy(right), ["group"]))
    free = rows_of(gaps(lazy(left), lazy(right), ["group"]))
    assert cells(both) == cells(left) & cells(right)
    assert cells(free) == cells(right) - cells(left)


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_segments_say_what_covers_each_instant(rows: list[Interval]) -> None:
    labelled = lazy(rows).select(
        "start_ns", "end_ns", label=pl.col("group").cast(pl.String), all=pl.lit(1)
    )
    pieces = segments(labelled, ["all"], "label", ("0", "1", "2")).collect()
    covering = {
        (int(name), t)
        for row in pieces.iter_rows(named=True)
        for name in ("0", "1", "2")
        if row[name]
        for t in range(row["start_ns"], row["end_ns"])
    }
    assert covering == cells(rows)
    ends = pieces["end_ns"].to_list()
    assert pieces["start_ns"].to_list()[1:] == ends[:-1]
