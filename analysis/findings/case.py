"""What do rules look at? One step of a trace, its window in the report, and the step's graph to time changes with."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from trnprof.analysis.findings import work
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.focus import near, windows_of
from trnprof.analysis.scope import Scope
from trnprof.analysis.step_graph import StepGraph, step_graph
from trnprof.analysis.whatif.changes import combined
from trnprof.analysis.whatif.retime import Changes, retime, unchanged
from trnprof.tracer.reader import Trace


@dataclass(frozen=True)
class StepTimes:
    """A step and its graph, gathered when first asked for.

    Attributes:
        trace, scope: it is of.
        step: its number; None: the trace has no steps.
    """

    trace: Trace
    scope: Scope
    step: int | None

    @cached_property
    def graph(self) -> StepGraph | None:
        """None where it cannot be timed again: an import, without all dependencies, or too large for a first screen."""
        if not self.trace.is_simulation or self.is_large:
            return None
        found = step_graph(self.trace, self.scope, self.step)
        is_known = len(found) and found.has_all_edges and not found.is_inferred
        return found if is_known else None

    @cached_property
    def is_large(self) -> bool:
        """Whether there is no time to look at each event of the step."""
        count = self._events().select(pl.len()).collect(engine="streaming").item()
        return int(count) > limit("what_if_events")

    @cached_property
    def own(self) -> Scope:
        """The scope of this step alone, with its events in memory."""
        events = self._events().collect(engine="streaming").lazy()
        return replace(self.scope, windows=windows_of(self.scope, self.step), events=events)

    @property
    def inside(self) -> pl.LazyFrame:
        """The events inside, as ``Scope.inside`` has them, with rank, chip and replica_count of their unit."""
        units = self.scope.units.lazy().select("unit_id", "rank", "chip", "replica_count")
        return self.own.inside().join(units, on="unit_id")

    @cached_property
    def slowness(self) -> pl.DataFrame:
        """``work.slowness`` of the step."""
        return work.slowness(self)

    @cached_property
    def is_pipeline(self) -> bool:
        """``work.is_pipeline`` of the step."""
        return work.is_pipeline(self)

    def _events(self) -> pl.LazyFrame:
        """All that may meet the step's windows."""
        return near(self.scope.events, windows_of(self.scope, self.step))


class Gain(NamedTuple):
    """What undoing something saves: ns, whether that is only an upper bound, and the changes that undo it (None: not timed again)."""

    ns: float
    is_upper_bound: bool
    changes: Changes | None


@dataclass(frozen=True)
class Case:
    """What rules are asked about.

    Attributes:
        times: the step that is timed again: the one asked for, or the median one.
        window: of the report that is asked about (``report.build_report``): one step, or all.
        given: changes that are taken for granted: of faults of the machine, so that what they cause is not charged to the program.
    """

    times: StepTimes
    window: Mapping[str, Any]
    given: Changes | None = None

    @property
    def trace(self) -> Trace:
        """The trace."""
        return self.times.trace

    @property
    def graph(self) -> StepGraph | None:
        """Of the step; None where it cannot be timed again."""
        return self.times.graph

    @property
    def parts(self) -> Mapping[str, Any]:
        """The partition of the window (ns)."""
        parts: Mapping[str, Any] = self.window["breakdown"]
        return parts

    @property
    def steps(self) -> int:
        """How many steps the window has; 1 without any."""
        return max(1, int(self.window["steps"]))

    @property
    def scope_units(self) -> int:
        """Cores, chips or hosts, replicas counted."""
        return int(self.times.scope.units["replica_count"].sum())

    @cached_property
    def step_ns(self) -> float:
        """How long the step takes: the graph's, else the mean of the window's."""
        if self.graph is not None:
            return float(self.graph.end_ns - self.graph.start_ns)
        return float(self.parts["total_ns"]) / self.steps

    @cached_property
    def base_ns(self) -> int:
        """How long it takes, timed again with what is given."""
        assert self.graph is not None
        return retime(self.trace, self.graph, self.given or unchanged(self.graph)).step_ns

    def saved_ns(self, changes: Changes, floor_ns: float = 0.0) -> float:
        """What changes save beyond what is given.

        Args:
            changes: of the graph.
            floor_ns: the step cannot get shorter than that.
        """
        assert self.graph is not None
        whole = changes if self.given is None else combined(self.graph, [self.given, changes])
        timed = retime(self.trace, self.graph, whole).step_ns
        return max(0.0, self.base_ns - max(timed, floor_ns))

    def gain(self, upper_ns: float, undone: Callable[[StepGraph], Changes]) -> Gain:
        """What undoing something saves: the step timed again with it undone, else at most ``upper_ns``."""
        if self.graph is None:
            return Gain(upper_ns, True, None)
        changes = undone(self.graph)
        return Gain(self.saved_ns(changes), False, changes)

    def report(self, section: str) -> str:
        """The command that prints a section of the step."""
        step = "" if self.times.step is None else f" --step {self.times.step}"
        return f"trnprof report {shlex.quote(self.trace.name)} --section {section}{step}"

    def at_step(self) -> str:
        """The condition of a query for rows of the step."""
        return "step IS NULL" if self.times.step is None else f"step = {self.times.step}"


def quoted(text: object) -> str:
    """A text as SQL has it within single quotes."""
    return str(text).replace("'", "''")
