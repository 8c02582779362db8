"""Causes of idle time, beside every idle nanosecond followed back along its chain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_brute_force import (
    OPS,
    STEPS,
    WINDOWS,
    core_of,
    counted,
    inside,
    opened,
    resource_of,
    traces,
)
from tests.analysis.traces import DMA0, TENSOR, VECTOR, Row, build, core_tracks, event, step

from trnprof.analysis.focus import focus
from trnprof.analysis.idle_causes import (
    AFTER,
    BUSY,
    COLLECTIVE,
    DMA,
    ENGINE_DATA,
    HOST,
    LAUNCH_NS,
    PEER,
    QUEUE,
    SEMAPHORE,
    idle_by_cause,
)
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.idle import build as build_section
from trnprof.analysis.sections.section import Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.analysis.waits import UNKNOWN
from trnprof.tracer.reader import Trace

NAMES = {"dma": DMA, "collective": COLLECTIVE, "engine": ENGINE_DATA}


@st.composite
def chained(draw: st.DrawFn) -> tuple[Trace, list[Row]]:
    """Traces in which events name what blocked them, on this rank or the other one, or give no blocker."""
    _, rows = draw(traces())
    named: list[Row] = []
    for index, row in enumerate(rows):
        earlier = [i for i, r in enumerate(rows) if (r["start_ns"], i) < (row["start_ns"], index)]
        blocker = draw(st.sampled_from([None, *earlier]))
        reason = draw(
            st.sampled_from((None, "data", "buffer", "queue", "engine", "peer", "collective"))
        )
        named.append(
            {**row, "name": f"e{index}", "blocked_by": blocker, "wait_reason": reason, "event_id": index}
        )  # fmt: skip
    steps = [step(*s, rank=r) for s in STEPS for r in (0, 1)]
    return build(named, tracks=core_tracks(2), ops=OPS, steps=steps), named


def does(row: Row) -> str:
    if row.get("category") == "collective":
        return "collective"
    return "dma" if resource_of(row) == "DMA" else "engine"


def cause_of(reason: str, row: Row | None) -> str:
    if reason == "data":
        return ENGINE_DATA if row is None else NAMES[does(row)]
    return {"engine": BUSY}.get(reason, reason)


def at_instant(instant: int, ender: Row, rows: list[Row]) -> tuple[str, str | None]:
    """What one idle nanosecond was for: the cause and the name of what was waited for."""
    waiter = ender
    while True:
        source = None if waiter["blocked_by"] is None else rows[waiter["blocked_by"]]
        reason = waiter["wait_reason"]
        if source is None:
            return cause_of(reason or "data", None), None
        if core_of(source) != core_of(ender):
            return PEER, source["name"]
        end = source["start_ns"] + (source["duration_ns"] or 0)
        if reason is None and source["track_id"] == waiter["track_id"]:
            reason = {"dma": QUEUE, "collective": COLLECTIVE, "engine": "engine"}[does(source)]
        reason = reason or "data"
        if instant >= end:
            is_latency = reason in ("data", "collective")
            return SEMAPHORE if is_latency else cause_of(reason, source), source["name"]
        if instant >= source["start_ns"]:
            return cause_of(reason, source), source["name"]
        waiter = source


@settings(max_examples=15, deadline=None)
@given(chained())
def test_chains_are_followed(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    found: Counter[tuple[Any, ...]] = Counter()
    for row in idle_by_cause(trace, opened(trace)).to_dicts():
        if not row["is_inferred"]:
            key = (row["window"], row["unit_id"] - 2, row["resource"])
            found[(*key, row["cause"], row["blocker_name"])] += row["idle_ns"]
    expected: Counter[tuple[Any, ...]] = Counter()
    for number, window in enumerate(WINDOWS):
        for track in {r["track_id"] for r in core_tracks(2) if r["kind"] == "engine"}:
            own = [r for r in counted(rows) if r["track_id"] == track]
            own.sort(key=lambda r: (r["start_ns"], r["duration_ns"]))
            busy = set().union(*(inside(r, window) for r in own))
            place = {"track_id": track}
            for instant in set(range(*window)) - busy:
                step_end = next(end for _, start, end in STEPS if start <= instant < end)
                ender = next((r for r in own if instant < r["start_ns"] < step_end), None)
                if ender is None:
                    said: tuple[str, str | None] = (AFTER, None)
                elif ender["blocked_by"] is None and ender["wait_reason"] is None:
                    continue  # inferred
                else:
                    said = at_instant(instant, ender, rows)
                expected[(number, core_of(place), resource_of(place), *said)] += 1
    assert found == expected


def idle(trace: Trace, window: int = 0) -> dict[tuple[str, str | None, bool], int]:
    found = idle_by_cause(trace, opened(trace)).filter(
        (pl.col("window") == window) & (pl.col("resource") == "Tensor")
    )
    return {(r["cause"], r["blocker_name"], r["is_inferred"]): r["idle_ns"] for r in found.to_dicts()}  # fmt: skip


def test_a_circle_ends_and_still_closes() -> None:
    rows = [
        event(TENSOR, 50, 10, event_id=0, blocked_by=1, wait_reason="data", name="a"),
        event(VECTOR, 60, 10, event_id=1, blocked_by=2, wait_reason="data", name="b"),
        event(VECTOR, 70, 10, event_id=2, blocked_by=1, wait_reason="data", name="c"),
    ]
    assert sum(idle(build(rows, steps=[step(0, 0, 100)])).values()) == 90


def test_what_ended_last_is_inferred() -> None:
    rows = [
        event(TENSOR, 0, 10, name="first"),
        event(VECTOR, 0, 15, name="too early"),
        event(DMA0, 10, 60, name="load w"),
        event(TENSOR, 80, 10, name="second"),
        event(VECTOR, 95, 50, name="runs on"),
        event(TENSOR, 120, 10, name="third"),
    ]
    found = idle(build(rows, steps=[step(0, 0, 140)]))
    assert found == {
        (DMA, "load w", True): 70,
        (UNKNOWN, None, True): 30,
        (AFTER, None, False): 10,
    }


HOST_TRACK = {"track_id": 90, "kind": "thread", "name": "main"}


@pytest.mark.parametrize(
    ("call_ns", "vector_end_ns", "expected"),
    [
        (60_000, 64_000, (HOST, "launch")),  # the kernel starts soon after its launch
        (40_000, 64_000, (ENGINE_DATA, "v")),  # launched long before: something else was missing
        (40_000, 5_000, (HOST, "launch")),  # nothing else ended since
        (2_000, 64_000, (ENGINE_DATA, "v")),  # launched before the gap
        (2_000, 5_000, (UNKNOWN, None)),
    ],
)
def test_launches(call_ns: int, vector_end_ns: int, expected: tuple[str, str | None]) -> None:
    assert LAUNCH_NS == 10_000
    rows = [
        event(TENSOR, 0, 10_000, event_id=0),
        event(VECTOR, 0, vector_end_ns, event_id=1, name="v"),
        event(90, call_ns, 3_000, event_id=2, name="launch", category="host"),
        event(TENSOR, 70_000, 10_000, event_id=3, name="k"),
    ]
    flows = [{"source_event": 2, "target_event": 3, "kind": "launch"}]
    trace = build(rows, tracks=[*core_tracks(), HOST_TRACK], flows=flows, steps=[step(0, 0, 80_000)])  # fmt: skip
    assert idle(trace) == {(*expected, True): 60_000}


def test_section_sums_to_the_idle_time_and_marks_what_is_inferred() -> None:
    rows = [
        event(TENSOR, 0, 10),
        event(DMA0, 10, 60, name="load " + "é" * 10_000),
        event(TENSOR, 80, 10),
    ]
    trace = build(rows, steps=[step(0, 0, 100)])
    section = build_section(Subject(trace, device_scope(trace), step=0))
    assert all(len(line) <= 80 for line in section_lines(section))
    found = as_json(section)
    assert sum(r["idle_ns"] for r in found["causes"]) == 4 * 100 + 80
    assert found["waits"][0]["shown"] == "~ data from DMA"
    assert any(n.startswith("~ inferred") for n in found["notes"])
    with_rank = build_section(Subject(trace, device_scope(trace), rank=0))
    assert not with_rank.nothing_to_say


def test_sections_of_nothing() -> None:
    always_busy = build(
        [event(DMA0, 0, 10)], tracks=[t for t in core_tracks() if t["kind"] != "engine"]
    )
    for trace, scope in ((build(), None), (always_busy, device_scope(always_busy))):
        assert str(build_section(Subject(trace, scope)).nothing_to_say).startswith("because")
    empty = build_section(Subject(build(), device_scope(build())))
    assert "because no engine is ever idle" in str(empty.nothing_to_say)


def test_gaps_of_all_steps_are_cut_where_steps_begin() -> None:
    rows = [event(TENSOR, 0, 10), event(TENSOR, 60, 10, wait_reason="data", blocked_by=0)]
    trace = build(rows, steps=[step(0, 0, 50), step(1, 50, 100)])
    scope = focus(opened(trace))
    found = idle_by_cause(trace, scope).filter(pl.col("resource") == "Tensor")
    assert {r["cause"]: r["idle_ns"] for r in found.to_dicts()} == {AFTER: 70, SEMAPHORE: 10}
