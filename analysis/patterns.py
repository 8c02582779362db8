"""Which sequences of operators come again and again? What could be fused, captured or compiled as one.

A lane's *executions* follow each other: events of one operation in one step are one (an operation runs as many instructions). A *pattern* is
the operators' names of 2 to MAX_LENGTH executions in a row on one lane, within a window. It counts wherever it begins, so that patterns
overlap and contain each other, and their times do not sum. Issuing DMAs is no execution, and DMA queues are no lanes here.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.operators import operator_labels
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

MAX_LENGTH: Final = 10
CANDIDATES: Final = 500
"""Ours, both: more is neither read nor fused."""
SAYS_MORE: Final = 1.1
"""Ours: a part of a longer pattern is told apart if it comes this much more often."""
ARROW: Final = " → "
_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "events": pl.UInt32,
    "count": pl.Float64,
    "time_ns": pl.Float64,
    "names": pl.List(pl.String),
    "length": pl.Int32,
}


def frequent_patterns(scope: Scope, trace: Trace, max_length: int = MAX_LENGTH) -> pl.DataFrame:
    """All patterns that come more than once.

    Args:
        scope: of one window.
        trace: it is of.
        max_length: of patterns.

    Returns:
        One row a pattern, the one with the most time first: names (list of text), length, count and time_ns (of its executions; both are means over the
        units, replicas weighing), events (times that it was seen).
    """
    runs, names = _executions(scope, trace)
    if not runs.height:
        return pl.DataFrame(schema=_SCHEMA)
    units = scope.units.select("unit_id", "replica_count")
    total = int(units["replica_count"].sum())
    found = []
    for length in range(2, max_length + 1):
        codes = [f"c{i}" for i in range(length)]
        nexts = [pl.col("code").shift(-i).over("lane").alias(c) for i, c in enumerate(codes)]
        time = pl.sum_horizontal(pl.col("time_ns").shift(-i).over("lane") for i in range(length))
        grams = (
            runs.with_columns(*nexts, time=time)
            .filter(pl.col(codes[-1]).is_not_null())
            .group_by("unit_id", *codes)
            .agg(count=pl.len(), time_ns=pl.col("time").sum())
        )
        weight = pl.col("replica_count")
        over_units = (
            grams.join(units, on="unit_id")
            .group_by(codes)
            .agg(
                events=pl.col("count").sum(),
                count=(pl.col("count") * weight).sum() / total,
                time_ns=(pl.col("time_ns") * weight).sum() / total,
            )
            .filter(pl.col("events") > 1)
        )
        named = pl.concat_list(
            pl.col(c).replace_strict(names, return_dtype=pl.String) for c in codes
        )
        found.append(
            over_units.select("events", "count", "time_ns", names=named, length=pl.lit(length))
        )
    every = pl.concat(found)
    return every.sort(
        "time_ns", "length", pl.col("names").list.join(ARROW), descending=[True, False, False]
    )


def telling_patterns(patterns: pl.DataFrame, top: int) -> pl.DataFrame:
    """The first patterns, without those that say nothing new.

    These are a shorter one again and again, and a part of a chosen one, or of its repetition, that hardly comes more often.

    Args:
        patterns: of ``frequent_patterns``.
        top: how many.
    """
    chosen: list[tuple[list[str], float]] = []
    rows = []
    for number, (names, count) in enumerate(
        patterns.head(CANDIDATES).select("names", "count").iter_rows()
    ):
        if not _repeats(names) and not any(
            _is_part(names, of) and count <= SAYS_MORE * n for of, n in chosen
        ):
            chosen.append((names, count))
            rows.append(number)
        if len(rows) == top:
            break
    return patterns[rows]


def _repeats(names: list[str]) -> bool:
    """Whether names begin again before they end (``a b a``); not of two: one operator after itself is a pattern."""
    if len(names) == 2:
        return False
    return any(names[:-period] == names[period:] for period in range(1, len(names)))


def _is_part(names: list[str], of: list[str]) -> bool:
    """Whether names are in a row within a pattern, or within a repetition of it."""
    again = of * 2
    return len(names) <= len(of) and any(again[i : i + len(names)] == names for i in range(len(of)))


def _executions(scope: Scope, trace: Trace) -> tuple[pl.DataFrame, dict[int, str]]:
    """Executions in order: unit_id, lane, code, time_ns; and the name of each code."""
    labels, numbers = operator_labels(trace.ops)
    label = labels.lazy().select("operator", label="name")
    used = numbers.join(scope.events.select("op_id").unique(), on="op_id", how="semi")
    category = pl.col("category").cast(pl.String)
    works = pl.col("kind").is_in(["engine", "stream"]) & (category != "sync")
    of_op = used.join(label, on="operator").select("op_id", "label")
    events = (
        scope.inside()
        .filter(works & pl.col("starts_inside"))
        .select("unit_id", "track_id", "start_ns", "end_ns", "op_id", "step", "name")
        .join(of_op, on="op_id", how="left")
        .select(
            *("unit_id", "track_id", "start_ns", "op_id", "step"),
            time_ns=pl.col("end_ns") - pl.col("start_ns"),
            name=pl.coalesce("label", pl.col("name").cast(pl.String)).cast(pl.Categorical),
        )
        .collect(engine="streaming")
        .sort("track_id", "start_ns", maintain_order=True)
    )
    same = [pl.col(n).eq_missing(pl.col(n).shift(1)) for n in ("track_id", "op_id", "step")]
    goes_on = pl.all_horizontal(*same, pl.col("op_id").is_not_null())
    runs = (
        events.with_columns(
            code=pl.col("name").to_physical(), run=(~goes_on).fill_null(True).cum_sum()
        )
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("unit_id", "code").first(),
            lane=pl.col("track_id").first(),
            time_ns=pl.col("time_ns").sum(),
        )
    )
    known = events.select("name").unique()
    codes = known["name"].to_physical().to_list()
    return runs, dict(zip(codes, known["name"].cast(pl.String).to_list(), strict=True))
