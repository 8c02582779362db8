"""Which part of a trace stands for it, where all of it is too much? The median step, then fewer units, then the beginning of a window."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trnprof.analysis.focus import focus, of_units
from trnprof.analysis.scope import Scope
from trnprof.analysis.steps import median_step
from trnprof.tracer.units import format_percent

_LENGTH = pl.col("window_end_ns") - pl.col("window_start_ns")


def excerpt(scope: Scope, step: int | None, rank: int | None, max_events: int) -> tuple[Scope, int | None, str | None]:  # fmt: skip
    """Focus a scope so that about so many events are in it at most.

    Args:
        scope: with all windows.
        step: the one asked for; None: all of them, or the median one where they have more events.
        rank: the one asked for; None: all, or the first ones where they have more events.
        max_events: of what is kept; where even one unit has more, as much of its window from the start as would hold them if they were spread evenly.

    Returns:
        The scope with one window, its step, and what was left out, for people; None if nothing was.
    """
    whole = focus(scope, step, rank)
    if _counts(whole)["len"].sum() <= max_events:
        return whole, step, None
    kept = [f"~ more than {max_events:,} events"]
    if step is None:
        step = median_step(scope)
        if step is not None:
            kept.append(f"of step {step}, the median one")
    chosen = focus(scope, step, rank)
    counts = _counts(chosen)
    fitting = counts.filter(pl.col("len").cum_sum() <= max_events)
    few = fitting if fitting.height else counts.head(1)
    if few.height < counts.height:
        chosen = of_units(chosen, few["unit_id"])
        kept.append(f"of {few.height:,} of {counts.height:,} units with events")
    count = int(few["len"].sum())
    if count > max_events:
        share = max_events / count
        cut = pl.col("window_start_ns") + (_LENGTH * share).cast(pl.Int64)
        chosen = replace(chosen, windows=chosen.windows.with_columns(window_end_ns=cut))
        kept.append(f"of the first {format_percent(share)} of the time")
    return chosen, step, f"{kept[0]}: the figures are {', '.join(kept[1:])}"


def _counts(scope: Scope) -> pl.DataFrame:
    """Events of each unit that has any: unit_id, len; by unit_id."""
    return scope.events.group_by("unit_id").len().collect(engine="streaming").sort("unit_id")
