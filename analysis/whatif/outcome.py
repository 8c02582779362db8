"""What would changes be worth? A step timed again with each of them, and with all together.

The step is timed again unchanged first: how far that is from the trace says how far the answer may be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from trnprof.analysis.critical_path import by_doing, critical_path
from trnprof.analysis.scope import device_scope
from trnprof.analysis.step_graph import StepGraph, step_or_median_graph
from trnprof.analysis.steps import stands_for
from trnprof.analysis.whatif.changes import Change, changes_of, combined
from trnprof.analysis.whatif.retime import Retimed, retime, unchanged
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace


def what_if(trace: Trace, wanted: Sequence[Change], step: int | None = None) -> dict[str, Any]:
    """Time a step again.

    Args:
        trace: the trace.
        wanted: the changes, at least one.
        step: which step; None for the median one, or the whole trace where there are no steps.

    Returns:
        step, steps (that it stands for: all, if it is the median one), step_ns (in the trace), unchanged_ns (timed again as it is), error (of that, a fraction), is_inferred (edges were), changes
        (each alone: change, step_ns, saved_ns, all_steps_saved_ns (extrapolated: saved_ns times steps), saved_share), together (the same of all), critical_path (what the step is then made of:
        doing, duration_ns, share).

    Raises:
        TrnprofError: there is no such step, no event is meant, or the trace has not the dependencies it takes.
    """
    scope = device_scope(trace)
    if scope is None:
        raise TrnprofError(
            f"{trace.name}: only the host was recorded: no event of a device to time again"
        )
    graph = step_or_median_graph(trace, scope, step)
    check_edges(trace, graph)
    base = retime(trace, graph, unchanged(graph))
    parts = [changes_of(trace, graph, change) for change in wanted]
    timed = [retime(trace, graph, part) for part in parts]
    whole = timed[0] if len(parts) == 1 else retime(trace, graph, combined(graph, parts))
    length = graph.end_ns - graph.start_ns
    steps = max(1, stands_for(scope, step)[0])
    return {
        "step": graph.step,
        "steps": steps,
        "step_ns": length,
        "unchanged_ns": base.step_ns,
        "error": base.step_ns / length - 1 if length else 0.0,
        "is_inferred": graph.is_inferred,
        "changes": [
            _row(str(c), base, t, length, steps) for c, t in zip(wanted, timed, strict=True)
        ],
        "together": _row("all together", base, whole, length, steps),
        "critical_path": by_doing(critical_path(_after(graph, whole))).to_dicts(),
    }


def check_edges(trace: Trace, graph: StepGraph) -> None:
    """Whether a step can be timed again.

    Raises:
        TrnprofError: it has no events, or of its dependencies only those that bound.
    """
    if not len(graph):
        raise TrnprofError(f"{trace.name}: no event of the device lies in the step")
    if not graph.is_inferred and not graph.has_all_edges:
        raise TrnprofError(
            f"{trace.name}: has not all dependencies, which timing it again needs; emulate with --edges all"
        )


def _row(change: str, base: Retimed, timed: Retimed, length: int, steps: int) -> dict[str, Any]:
    """The trace's own step less what timing it again saves."""
    saved = base.step_ns - timed.step_ns
    return {
        "change": change,
        "step_ns": length - saved,
        "saved_ns": saved,
        "all_steps_saved_ns": steps * saved,
        "saved_share": saved / length if length else 0.0,
    }


def _after(graph: StepGraph, timed: Retimed) -> StepGraph:
    """The step as it would be, with what would bind then."""
    events = graph.events.with_columns(
        start_ns=pl.Series(timed.starts_ns),
        end_ns=pl.Series(timed.ends_ns),
        wait_reason=pl.lit(None, pl.String),
    )
    return replace(
        graph, events=events, blockers=timed.blockers, end_ns=graph.start_ns + timed.step_ns
    )
