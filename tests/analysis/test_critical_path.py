"""The critical path against walks by hand, slack against what timing again says, and paths of imports."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.graphs import START_NS, Drawn, drawn, graph_of, times_ns, trace_of
from tests.analysis.traces import SCALAR, TENSOR, VECTOR, build, core_tracks, event, step

from trnprof.analysis.critical_path import critical_path, event_slack_ns, rank_changes
from trnprof.analysis.whatif.retime import Changes, retime, unchanged


@settings(deadline=None)
@given(drawn(), st.integers(0, 30))
def test_the_pieces_of_a_path_sum_to_the_step_and_are_those_of_a_walk(
    what: Drawn, tail_ns: int
) -> None:
    graph = graph_of(trace_of(what, tail_ns))
    path = critical_path(graph)
    _, ends, blockers = times_ns(what)
    assert path["duration_ns"].sum() == max(ends) + tail_ns
    # the same walk in plain Python; of events that end last, the path may end with any
    last = max(ends)
    on_path = path.filter(pl.col("part") == "run")["event_id"].to_list()
    walks = []
    for end in [i for i, e in enumerate(ends) if e == last]:
        at, walk = end, []
        while at >= 0:
            walk.append(at)
            at = blockers[at]
        walks.append(walk[::-1])
    assert any(set(on_path) <= set(walk) for walk in walks)
    assert (path["start_ns"][1:] == path["end_ns"][:-1]).all()
    assert path.is_empty() or path["start_ns"][0] == START_NS


@settings(max_examples=40, deadline=None)
@given(drawn(15))
def test_slack_is_what_an_event_may_grow_by(what: Drawn) -> None:
    """Longer by its slack, the step stays; by a nanosecond more, it does not."""
    trace = trace_of(what)
    graph = graph_of(trace)
    slack = event_slack_ns(graph)
    length = graph.end_ns - graph.start_ns
    plain = unchanged(graph)
    for index in range(len(graph)):
        for more, longer in ((0, 0), (1, 1)):
            added = np.zeros(len(graph))
            added[index] = slack[index] + more
            timed = retime(trace, graph, Changes(plain.factors, added))
            assert timed.step_ns - length == longer


@settings(deadline=None)
@given(drawn())
def test_timing_a_step_again_unchanged_gives_the_step(what: Drawn) -> None:
    trace = trace_of(what, 7)
    graph = graph_of(trace)
    again = retime(trace, graph, unchanged(graph))
    assert again.step_ns == graph.end_ns - graph.start_ns
    assert again.starts_ns.tolist() == graph.column("start_ns").tolist()


def test_an_import_follows_launches_and_tracks() -> None:
    """Kernel 1 follows the one before on its stream, kernel 2 its launch; what nothing explains is waiting."""
    tracks = [
        {"track_id": 0, "kind": "host", "name": "host0"},
        {"track_id": 1, "parent_id": 0, "kind": "chip", "name": "GPU 0", "rank": 0},
        {"track_id": 2, "parent_id": 1, "kind": "stream", "name": "stream 7", "rank": 0},
        {"track_id": 3, "parent_id": 0, "kind": "thread", "name": "python", "rank": 0},
    ]
    events = [
        event(3, 0, 10, name="launch 0", category="host"),
        event(2, 5, 30, name="kernel 0"),
        event(3, 10, 10, name="launch 1", category="host"),
        event(2, 36, 20, name="kernel 1"),
        event(3, 70, 10, name="launch 2", category="host"),
        event(2, 78, 12, name="kernel 2"),
    ]
    flows = [{"source_event": 2 * i, "target_event": 2 * i + 1, "kind": "launch"} for i in range(3)]
    graph = graph_of(build(events, tracks=tracks, flows=flows, steps=[step(0, 0, 100)]))
    assert graph.is_inferred
    path = critical_path(graph)
    # kernel 2 follows its launch, the launch the call before it on the thread, and so back to launch 0
    assert path.select("part", "name", "start_ns", "end_ns").rows() == [
        ("run", "launch 0", 0, 10),
        ("run", "launch 1", 10, 20),
        ("wait", "launch 2", 20, 70),
        ("run", "launch 2", 70, 78),
        ("run", "kernel 2", 78, 90),
        ("after", None, 90, 100),
    ]


def test_a_path_says_where_it_changes_rank() -> None:
    events = [
        event(TENSOR, 0, 10, name="a", step=0),
        event(TENSOR + 10, 12, 10, name="b", step=0, blocked_by=0),
        event(VECTOR + 10, 22, 5, name="c", step=0, blocked_by=1),
        event(SCALAR, 27, 5, name="d", step=0, blocked_by=2),
    ]
    steps = [step(0, 0, 32, rank=0), step(0, 0, 32, rank=1)]
    manifest = {"is_simulation": True}
    graph = graph_of(build(events, tracks=core_tracks(2), steps=steps, manifest=manifest))
    changes = rank_changes(critical_path(graph))
    assert changes.select("at_ns", "from_rank", "to_rank", "name").rows() == [
        (12, 0, 1, "b"),
        (27, 1, 0, "d"),
    ]


@pytest.mark.parametrize("blocker", [0, 1])
def test_a_circle_of_blockers_ends_the_walk(blocker: int) -> None:
    """A damaged trace may say that events wait for each other."""
    events = [
        event(TENSOR, 0, 10, step=0, blocked_by=1),
        event(VECTOR, 0, 10, step=0, blocked_by=blocker),
    ]
    graph = graph_of(build(events, steps=[step(0, 0, 10)], manifest={"is_simulation": True}))
    assert critical_path(graph)["duration_ns"].sum() == 10
