"""Which steps are there, and which one stands for them?"""

from __future__ import annotations

import polars as pl

from trnprof.analysis.scope import Scope


def step_times(scope: Scope) -> pl.DataFrame:
    """How long each step took, over all ranks that are in it.

    Returns:
        One row a step in order: step, label, start_ns (first rank), end_ns (last rank), duration_ns.
    """
    steps = scope.windows.filter(pl.col("step").is_not_null())
    start, end = pl.col("window_start_ns").min(), pl.col("window_end_ns").max()
    return (
        steps.group_by("step")
        .agg(pl.col("label").first(), start_ns=start, end_ns=end, duration_ns=end - start)
        .sort("step")
    )


def median_step(scope: Scope) -> int | None:
    """The step of median length (the shorter of two, the first of equals); None without steps."""
    times = step_times(scope).sort("duration_ns", "step")
    return int(times["step"][(times.height - 1) // 2]) if times.height else None


def stands_for(scope: Scope, asked: int | None) -> tuple[int, int]:
    """How many steps a step that was looked at stands for, and how long they took together (ns): all, if none was asked for.

    Args:
        scope: with all windows.
        asked: the step asked for; None: the median one was taken.
    """
    times = step_times(scope)
    if asked is not None:
        times = times.filter(pl.col("step") == asked)
    return times.height, int(times["duration_ns"].sum())
