"""What part of a trace does a person look at? A scope cut to one step, or to all of them, and to one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.scope import Scope
from trnprof.analysis.unknowns import unit_noun
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.units import counted

ALL: Final = "all steps"


def focus(scope: Scope, step: int | None = None, rank: int | None = None) -> Scope:
    """Keep one window of every unit: a step, or all of it.

    Args:
        scope: with all windows.
        step: which; None keeps the window that holds all steps (the whole trace, if it has none).
        rank: whose units and lanes; None keeps all.

    Raises:
        TrnprofError: there is no such step, or no such rank.
    """
    windows = windows_of(scope, step)
    if step is not None and not windows.height:
        known = scope.windows["step"].drop_nulls().unique().sort().to_list()
        raise TrnprofError(f"no step {step}; there are {_range(known)}")
    chosen = replace(
        scope,
        windows=windows,
        events=scope.events if step is None else near(scope.events, windows),
        steps=scope.step_windows(),
    )
    return chosen if rank is None else of_rank(chosen, rank)


def steps_only(scope: Scope, step: int | None = None, rank: int | None = None) -> Scope:
    """Keep the windows that are steps, or the one asked for; the one that holds everything where there are none."""
    if step is not None or not scope.windows["step"].is_not_null().any():
        return focus(scope, step, rank)
    chosen = replace(scope, windows=scope.step_windows())
    return chosen if rank is None else of_rank(chosen, rank)


def windows_of(scope: Scope, step: int | None) -> pl.DataFrame:
    """The windows of a step; None: those that hold all steps (the whole trace, if it has none)."""
    of_step = pl.col("step").is_null() if step is None else pl.col("step") == step
    return scope.windows.filter(of_step)


def near(events: pl.LazyFrame, windows: pl.DataFrame) -> pl.LazyFrame:
    """Events that meet the span of some windows: what lies elsewhere need not be read."""
    first, last = windows["window_start_ns"].min(), windows["window_end_ns"].max()
    return events.filter((pl.col("end_ns") >= first) & (pl.col("start_ns") <= last))


def of_rank(scope: Scope, rank: int) -> Scope:
    """Keep the units of a rank, and what lies on them.

    Raises:
        TrnprofError: no unit of the scope has that rank, or it repeats another one.
    """
    units = scope.units.filter(pl.col("rank") == rank)
    if not units.height:
        known = scope.units["rank"].drop_nulls().unique().sort().to_list()
        raise TrnprofError(f"no rank {rank} has events here; there are {_range(known)}")
    return of_units(scope, units["unit_id"])


def of_units(scope: Scope, unit_ids: pl.Series) -> Scope:
    """Keep some units, and what lies on them."""
    own = pl.col("unit_id").is_in(unit_ids.implode())
    return replace(
        scope,
        units=scope.units.filter(own),
        lanes=scope.lanes.filter(own),
        windows=scope.windows.filter(own),
        events=scope.events.filter(own),
        steps=None if scope.steps is None else scope.steps.filter(own),
    )


def focus_note(scope: Scope) -> str:
    """Which windows the figures are of, for people: ``step 3`` or ``all 5 steps together``; the whole trace without steps."""
    steps = scope.windows["step"].unique().to_list()
    if len(steps) == 1 and steps[0] is not None:
        return f"of step {steps[0]}"
    label = scope.windows["label"].to_list()
    return "of all steps together" if ALL in label or len(steps) > 1 else "of the whole trace"


def mean_note(scope: Scope) -> str:
    """``of step 3, mean of 64 cores``: how figures of a focussed scope are to be read."""
    count = int(scope.units["replica_count"].sum())
    mean = f", mean of {counted(count, unit_noun(scope))}" if count > 1 else ""
    return f"{focus_note(scope)}{mean}"


def _range(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) or "none"
    return shown if len(numbers) <= 8 else f"{shown}, … {numbers[-1]}"
