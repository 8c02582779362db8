"""Steps for tests of paths and what-ifs: random task graphs, scheduled by the emulator's reference, as traces in memory."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from tests.analysis.traces import TENSOR, build, event, step

from trnprof.analysis.scope import device_scope
from trnprof.analysis.step_graph import StepGraph, step_graph
from trnprof.emulator.graph_builder import GraphBuilder
from trnprof.emulator.reference import schedule
from trnprof.tracer.reader import Trace

LANES = 4
START_NS = 500
PS = 1000


@dataclass(frozen=True)
class Drawn:
    """Tasks in order: duration (ns), lane, and (task, lag) of each earlier one that it waits for."""

    tasks: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]


@st.composite
def drawn(draw: st.DrawFn, most: int = 25) -> Drawn:
    """A random step: up to ``most`` tasks on LANES engines, with lags of which some let a task begin before the other has ended."""
    tasks: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
    for number in range(draw(st.integers(1, most))):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        lags = tuple(
            (before, draw(st.integers(-min(5, tasks[before][0]), 20))) for before in sorted(after)
        )
        tasks.append((draw(st.integers(0, 50)), draw(st.integers(0, LANES - 1)), lags))
    return Drawn(tuple(tasks))


def times_ns(what: Drawn) -> tuple[list[int], list[int], list[int]]:
    """Starts, ends and blockers (-1: none) by the reference scheduler, from 0."""
    builder = GraphBuilder()
    lanes = [builder.server(str(lane), in_order=True) for lane in range(LANES)]
    for duration, lane, after in what.tasks:
        edges = [(before, lag * PS) for before, lag in after]
        builder.add_task(duration * PS, [(lanes[lane], duration * PS)], edges)
    outcome = schedule(builder.build())
    starts, ends = (outcome.start_ps // PS).tolist(), (outcome.end_ps // PS).tolist()
    return starts, ends, [max(-1, b) for b in outcome.blocker.tolist()]


def trace_of(what: Drawn, tail_ns: int = 0) -> Trace:
    """The step as the emulator would write it, with all dependencies; it ends so long after its last event."""
    starts, ends, blockers = times_ns(what)
    events = [
        event(
            TENSOR + lane,
            START_NS + starts[i],
            duration,
            name=f"task {i}",
            step=0,
            blocked_by=None if blockers[i] < 0 else blockers[i],
            wait_reason="data",
        )
        for i, (duration, lane, _) in enumerate(what.tasks)
    ]
    flows = [
        {"source_event": before, "target_event": i, "lag_ns": lag}
        for i, (_, _, after) in enumerate(what.tasks)
        for before, lag in after
    ]
    whole = step(0, START_NS, START_NS + max(ends) + tail_ns)
    return build(events, flows=flows, steps=[whole], manifest={"is_simulation": True})


def graph_of(trace: Trace, number: int | None = 0) -> StepGraph:
    """A step of a trace."""
    scope = device_scope(trace)
    assert scope is not None
    return step_graph(trace, scope, number)
