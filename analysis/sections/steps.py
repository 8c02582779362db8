"""Section ``steps``: how long steps take on each rank, which warm up, which are out of line and by what, and where they drift."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.breakdown import PART_LABELS, PARTS
from trnprof.analysis.focus import of_rank
from trnprof.analysis.metrics import ratio
from trnprof.analysis.robust import MIN_SIBLINGS
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.analysis.step_variation import (
    MIN_STEPS,
    MIN_TREND_STEPS,
    by_rank,
    by_step,
    explained,
    out_of_line,
    rank_steps,
    trend,
    variation,
    warm_up_steps,
)
from trnprof.tracer.units import counted, format_ns, format_percent

KEY: Final = "steps"
TITLE: Final = "Steps"
TOP: Final = 20
LONGEST: Final = "the longest rank"


def build(subject: Subject) -> Section:
    """Of all steps, on the rank asked for; tables of steps show only the one asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = subject.scope if subject.rank is None else of_rank(subject.scope, subject.rank)
    rows = rank_steps(scope)
    if not rows.height:
        return silent(KEY, TITLE, "because no steps were marked on the clock of the device")
    steps = by_step(rows)
    times = steps["duration_ns"].to_numpy()
    warm_up = warm_up_steps(times)
    marked = out_of_line(rows, warm_up)
    odd = explained(scope, marked)
    chosen = pl.lit(True) if subject.step is None else pl.col("step") == subject.step
    tables = (
        _variation(rows, steps),
        _steps(steps, marked, scope).pipe(_shown, chosen),
        _odd(odd.filter(chosen), marked.filter(chosen)),
    )
    return Section(
        KEY, TITLE, tuple(t for t in tables if t.rows), tuple(_notes(scope, times, warm_up, odd))
    )


def _variation(rows: pl.DataFrame, steps: pl.DataFrame) -> Table:
    """All ranks together, and each, the one with the longest median first."""
    columns = (
        Column("unit", "steps of"),
        Column("steps", "steps", "count"),
        Column("min_ns", "shortest", "ns"),
        Column("median_ns", "median", "ns"),
        Column("max_ns", "longest", "ns"),
        Column("cv", "varies", "percent"),
        Column("times_longest", "slowest in", "count"),
    )
    named = pl.format("rank {}", "rank") if rows["rank"].n_unique() == rows["unit_id"].n_unique() else pl.lit(None, pl.String)  # fmt: skip
    ranks = by_rank(rows).with_columns(unit=pl.coalesce(named, "name")).drop("unit_id", "name")
    if ranks.height == 1:
        return table("variation", "", columns[:-1], ranks)
    together = steps.select(*variation()).with_columns(unit=pl.lit(LONGEST))
    both = pl.concat([together, ranks], how="diagonal_relaxed")
    return table("variation", "", columns, both, TOP + 1)


def _steps(steps: pl.DataFrame, marked: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """Every step, against the median of all."""
    state = marked.group_by("step").agg(pl.col("is_warm_up", "is_out").any())
    said = pl.when("is_warm_up").then(pl.lit("warm-up")).when("is_out").then(pl.lit("out of line"))
    middle = pl.col("duration_ns").median()
    return (
        steps.join(state, on="step")
        .with_columns(is_=said, from_median=ratio(pl.col("duration_ns") - middle, middle))
        .rename({"is_": "is"})
        .drop("is_warm_up", "is_out", "longest_unit_id")
        .sort("step")
    )


def _shown(rows: pl.DataFrame, chosen: pl.Expr) -> Table:
    across = (
        Column("shortest_ns", "shortest rank", "ns"),
        Column("longest_rank", "longest is", "number"),
    )
    differ = (rows["shortest_ns"] != rows["duration_ns"]).any()
    columns = (
        Column("label", "step"),
        Column("duration_ns", "takes", "ns"),
        Column("from_median", "from median", "percent"),
        *(across if differ else ()),
        Column("is", "is"),
    )
    return table("steps", "by step", columns, rows.filter(chosen), TOP)


def _odd(odd: pl.DataFrame, marked: pl.DataFrame) -> Table:
    """Those that differ most, and how many there are."""
    columns = (
        Column("label", "step"),
        Column("is", "is"),
        Column("rank", "on rank", "number"),
        Column("ranks", "of", "count"),
        Column("duration_ns", "takes", "ns"),
        Column("differs_ns", "more than usual", "ns"),
        Column("mostly_label", "mostly"),
        Column("mostly_ns", "by", "ns"),
    )
    said = (
        pl.when("is_warm_up")
        .then(pl.lit("warm-up"))
        .when(pl.col("differs_ns") > 0)
        .then(pl.lit("longer"))
        .otherwise(pl.lit("shorter"))
    )
    by = pl.coalesce(pl.when(pl.col("mostly") == p).then(f"{p}_differs_ns") for p in PARTS)
    rows = odd.with_columns(
        said.alias("is"), mostly_label=pl.col("mostly").replace_strict(PART_LABELS), mostly_ns=by
    ).drop("unit_id")
    shown = table(
        "out_of_line", "steps out of line, and what of them grew or shrank", columns, rows
    )
    there_are = marked.filter(pl.col("is_warm_up") | pl.col("is_out"))["step"].n_unique()
    return replace(shown, total_rows=max(there_are, rows.height))


def _notes(
    scope: Scope, times: np.ndarray[tuple[int], np.dtype[np.int64]], warm_up: int, odd: pl.DataFrame
) -> list[str]:
    steady = len(times) - warm_up
    whole = " as long as on its longest rank" if scope.units["replica_count"].sum() > 1 else " from its start to its end"  # fmt: skip
    notes = [f"{counted(len(times), 'step')}; a step takes{whole}; varies is the standard deviation over the mean"]  # fmt: skip
    if len(times) < MIN_STEPS:
        notes.append(f"warm-up is not looked for in fewer than {MIN_STEPS} steps")
    elif warm_up:
        is_ = "first step warms" if warm_up == 1 else f"first {warm_up} steps warm"
        notes.append(f"the {is_} up: longer than the second half of the steps, out of line with it")
    else:
        notes.append("no warm-up: the first step is in line with the second half")
    if steady < MIN_SIBLINGS:
        notes.append(f"steps out of line are not looked for in fewer than {MIN_SIBLINGS} after the warm-up")  # fmt: skip
    elif not odd.filter(~pl.col("is_warm_up")).height:
        notes.append("no step after the warm-up is out of line")
    found = trend(times[warm_up:])
    if found is not None:
        change = format_percent(abs(found.total_share)) if found.total_share else "some"
        notes.append(
            f"steps grow {'longer' if found.ns_per_step > 0 else 'shorter'}: {format_ns(abs(found.ns_per_step))} a step, {change} of the median from first to last"
        )
    elif steady >= MIN_TREND_STEPS:
        notes.append("no trend: steps grow neither longer nor shorter")
    notes.append("out of line: farther from the median than 3.5 robust standard deviations (median distance from it) and than 5 %")  # fmt: skip
    return [*notes, *scope.notes]
