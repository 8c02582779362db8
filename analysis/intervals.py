"""How much time do intervals cover, share or leave free? Unions, overlaps and gaps of half-open intervals, per group.

Everything here takes and gives lazy frames with the columns ``start_ns`` and ``end_ns`` (int64, ``[start, end)``) and the
columns named in ``by``, which must be at least one. Intervals of no length cover nothing and vanish.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

START, END = "start_ns", "end_ns"


def union(intervals: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """Merge overlapping and touching intervals of a group.

    Args:
        intervals: columns ``by``, start_ns, end_ns; any order.
        by: at least one column.

    Returns:
        Disjoint intervals that do not touch, sorted by group and start: columns ``by``, start_ns, end_ns.
    """
    keys = list(by)
    is_first = pl.col(START) > pl.col("_reach").fill_null(pl.col(START) - 1)
    return (
        intervals.select(*keys, START, END)
        .filter(pl.col(END) > pl.col(START))
        .sort(START)
        .with_columns(_reach=pl.col(END).cum_max().shift(1).over(keys))
        .with_columns(_run=is_first.cum_sum().over(keys))
        .group_by(*keys, "_run")
        .agg(pl.col(START).min(), pl.col(END).max())
        .sort(*keys, START)
        .select(*keys, START, END)
    )


def covered_ns(
    intervals: pl.LazyFrame, by: Sequence[str], name: str = "covered_ns"
) -> pl.LazyFrame:
    """Length of the union of each group's intervals: columns ``by`` and ``name`` (int64, ns)."""
    merged = union(intervals, by)
    return merged.group_by(*by).agg((pl.col(END) - pl.col(START)).sum().alias(name))


def segments(
    intervals: pl.LazyFrame, by: Sequence[str], label: str, labels: Sequence[str]
) -> pl.LazyFrame:
    """Cut each group's time at every start and end, and say what covers each piece.

    Args:
        intervals: columns ``by``, ``label``, start_ns, end_ns.
        by: at least one column.
        label: the column that says what an interval is.
        labels: its values to look at; others are ignored.

    Returns:
        Columns ``by``, start_ns, end_ns and one boolean column a label: whether an interval of it covers the piece.
        Pieces run from the group's first start to its last end without holes.
    """
    keys, wanted = list(by), list(labels)
    chosen = intervals.filter(pl.col(label).is_in(wanted))
    merged = union(chosen, [*keys, label])
    edges = pl.concat(
        [
            merged.select(*keys, label, at=pl.col(START), change=pl.lit(1, pl.Int32)),
            merged.select(*keys, label, at=pl.col(END), change=pl.lit(-1, pl.Int32)),
        ]
    )
    depths = [
        pl.when(pl.col(label) == name).then("change").otherwise(0).cum_sum().over(keys).alias(name)
        for name in wanted
    ]
    # of several edges at one time only the last leaves a piece: those before it have no length
    return (
        edges.sort("at")
        .with_columns(*depths, pl.col("at").shift(-1).over(keys).alias(END))
        .filter(pl.col(END) > pl.col("at"))
        .select(*keys, pl.col("at").alias(START), END, *(pl.col(name) > 0 for name in wanted))
        .sort(*keys, START)
    )


def overlap(left: pl.LazyFrame, right: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """Where both cover: the intersection of two unions, as disjoint intervals."""
    pieces = _pieces_of_two(left, right, by).filter(pl.col("left") & pl.col("right"))
    return union(pieces, by)


def gaps(intervals: pl.LazyFrame, windows: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """The parts of ``windows`` that no interval covers, as disjoint intervals; groups without intervals are all gap."""
    pieces = _pieces_of_two(intervals, windows, by).filter(~pl.col("left") & pl.col("right"))
    return union(pieces, by)


def _pieces_of_two(left: pl.LazyFrame, right: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    both = pl.concat(
        [
            frame.select(*by, START, END, _side=pl.lit(side))
            for frame, side in ((left, "left"), (right, "right"))
        ]
    )
    return segments(both, by, "_side", ("left", "right"))


def alone(intervals: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    """Cut intervals so that no two of a group overlap: an instant that several cover stays with the one that began first.

    Args:
        intervals: columns ``by``, start_ns, end_ns and any others.
        by: at least one column.

    Returns:
        The same columns, what is left of each interval; those with nothing left are gone. They cover what the intervals cover.
    """
    reach = pl.col(END).cum_max().shift(1).over(list(by))
    return (
        intervals.sort(START, END, maintain_order=True)
        .with_columns(pl.max_horizontal(START, reach))
        .filter(pl.col(END) > pl.col(START))
    )


def with_covered_ns(
    intervals: pl.LazyFrame, cover: pl.LazyFrame, by: Sequence[str], name: str = "covered_ns"
) -> pl.LazyFrame:
    """Say how much of each interval others cover.

    Args:
        intervals: columns ``by``, start_ns, end_ns and any others; any order, overlaps allowed.
        cover: columns ``by``, start_ns, end_ns; their union counts.
        by: at least one column.
        name: of the new column (int64, ns).
    """
    keys = list(by)
    length = pl.col(END) - pl.col(START)
    sums = (
        union(cover, keys)
        .with_columns(_before=length.cum_sum().over(keys) - length)
        .select(*keys, "_before", _from=START, _length=length)
        .sort("_from")
    )
    until = intervals.with_row_index("_row")
    for at, found in ((START, "_first"), (END, "_last")):
        part = pl.min_horizontal(pl.col(at) - pl.col("_from"), pl.col("_length"))
        until = (
            until.sort(at)
            .join_asof(
                sums, left_on=at, right_on="_from", by=keys, coalesce=False, check_sortedness=False
            )
            .with_columns((pl.col("_before") + part).fill_null(0).alias(found))
            .drop("_before", "_from", "_length")
        )
    return (
        until.sort("_row")
        .with_columns((pl.col("_last") - pl.col("_first")).alias(name))
        .drop("_row", "_first", "_last")
    )
