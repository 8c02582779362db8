"""Self and inclusive time of nested host spans: every instant of a thread belongs to the span that began last."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.traces import Row, build, event, step

from trnprof.analysis.host_spans import host_scope, host_spans

TRACKS: list[Row] = [
    {"track_id": 0, "kind": "host", "name": "h", "exclusive": False},
    *(
        {"track_id": 1 + lane, "parent_id": 0, "kind": "thread", "name": name, "lane": lane, "rank": rank}
        for name, lanes, rank in (("main", range(6), 0), ("loader", range(6, 9), 1))
        for lane in lanes
    ),
]  # fmt: skip
THREAD = {1 + lane: "main" if lane < 6 else "loader" for lane in range(9)}
WINDOW = range(10, 60)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.integers(0, 60), st.integers(0, 30), st.sampled_from("abc")
        ),
        max_size=9,
        unique_by=lambda span: span[0],
    ),
    st.booleans(),
)
def test_against_instants(spans: list[tuple[int, int, int, str]], has_steps: bool) -> None:
    rows = [event(t, a, n, name=name, category="host") for t, a, n, name in spans]
    steps = [step(0, WINDOW.start, WINDOW.stop)] if has_steps else []
    trace = build(rows, tracks=TRACKS, steps=steps)
    scope = host_scope(trace, None, None, None)
    assert scope is not None
    found = {r["name"]: r for r in host_spans(scope, trace).to_dicts()}
    whole = range(min((a for _, a, _, _ in spans), default=0), max((a + n for _, a, n, _ in spans), default=0))  # fmt: skip
    window = WINDOW if has_steps else whole
    own: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    for thread in ("main", "loader"):
        clipped = [
            (max(a, window.start), min(a + n, window.stop), track, name)
            for track, a, n, name in spans
            if THREAD[track] == thread and a < window.stop and (a + n > window.start or a in window)
        ]
        for instant in window:
            open_ones = [(a, -b, track, name) for a, b, track, name in clipped if a <= instant < b]
            inclusive.update({name for *_, name in open_ones})
            if open_ones:
                own[max(open_ones)[3]] += 1
    assert {n: r["self_ns"] for n, r in found.items() if r["self_ns"]} == own
    assert {n: r["inclusive_ns"] for n, r in found.items() if r["inclusive_ns"]} == inclusive
    counts = Counter(name for _, a, _, name in spans if a in window)
    assert {n: r["count"] for n, r in found.items() if r["count"]} == counts
    if own:
        assert sum(r["share"] for r in found.values()) == pytest.approx(1)


def names(scope: Any, trace: Any) -> set[str]:
    return set(host_spans(scope, trace)["name"])


def test_which_spans_are_looked_at() -> None:
    rows = [
        event(1, 0, 5, name="first", category="host"),
        event(1, 12, 5, name="second", category="host"),
        event(7, 12, 5, name="other rank", category="host"),
        event(1, 20, 5, name="synchronisation", category="sync"),
        event(1, 30, None, name="open", category="host"),
    ]
    trace = build(rows, tracks=TRACKS, steps=[step(0, 0, 10), step(1, 10, 20)])
    assert names(host_scope(trace, 0, None, None), trace) == {"first", "second", "other rank"}
    assert names(host_scope(trace, 0, 1, 0), trace) == {"second"}
    assert names(host_scope(trace, 7, 99, 0), trace) == {"first", "second"}
    assert host_scope(build(), 0, None, None) is None
