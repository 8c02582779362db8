"""Every figure of a random trace against plain loops over its nanoseconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.analysis.traces import (
    BANDWIDTH,
    DMA0,
    DMA1,
    ENGINE_NAMES,
    PEAK_FLOPS,
    TENSOR,
    Row,
    build,
    core_tracks,
    event,
    frame,
    step,
)

from trnprof.analysis.breakdown import PARTS, step_breakdown
from trnprof.analysis.operators import top_operators
from trnprof.analysis.phases import PHASES
from trnprof.analysis.scope import Scope, device_scope
from trnprof.analysis.screen import Screen, screen_of
from trnprof.analysis.utilization import engine_utilization, unit_activity
from trnprof.analysis.waits import NONE_AFTER, UNKNOWN
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES

CORES = 2
LANES = [TENSOR + 10 * c + i for c in range(CORES) for i in range(7)]
DMA_RATE = 0.6 * BANDWIDTH
STEPS = ((0, 10, 60), (1, 60, 95))
WINDOWS = (*((a, b) for _, a, b in STEPS), (10, 95))
FACTORS = {"bfloat16": 1.0, "float32": 4.0, None: 1.0}
OPS = [
    {"op_id": 0, "name": "mm", "module_path": "layers.0.mlp", "phase": "forward"},
    {"op_id": 1, "name": "mm", "module_path": "layers.1.mlp", "phase": "forward"},
    {"op_id": 2, "name": "add", "module_path": "norm.3", "phase": "forward"},
]
OPERATOR = {0: ("layers.*.mlp", "mm"), 1: ("layers.*.mlp", "mm"), 2: ("norm.3", "add")}


@st.composite
def lane_events(draw: st.DrawFn, track: int) -> list[Row]:
    """Events of one lane: nothing overlaps, some have no duration, the last may be open."""
    rows: list[Row] = []
    at = draw(st.integers(0, 40))
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(0, 25))
        columns: dict[str, Any] = {
            "op_id": draw(st.sampled_from((None, 0, 1, 2))),
            "wait_reason": draw(st.sampled_from((None, "data", "buffer", "host"))),
            "name": draw(st.sampled_from(("a", "b"))),
        }
        if track % 10 in (DMA0 % 10, DMA1 % 10):
            columns["bytes"] = draw(st.integers(0, 100))
            columns["source_memory"] = draw(st.sampled_from(("hbm", "sbuf")))
            columns["target_memory"] = draw(st.sampled_from(("hbm", "sbuf")))
        else:
            columns["category"] = draw(st.sampled_from(("compute", "sync", "collective", "marker")))
            columns["flops"] = draw(st.sampled_from((None, 8.0, 64.0)))
            columns["dtype"] = draw(st.sampled_from(tuple(FACTORS)))
            columns["is_transpose"] = draw(st.sampled_from((None, True)))
        rows.append(event(track, at, length, **columns))
        at += length + draw(st.integers(0, 12))
    if draw(st.booleans()):
        rows.append(event(track, at, None))  # still open when the recording ended
    return rows


@st.composite
def traces(draw: st.DrawFn) -> tuple[Trace, list[Row]]:
    rows = [row for track in LANES for row in draw(lane_events(track))]
    rows = draw(st.permutations(rows)) if len(rows) < 8 else rows
    steps = [step(*s, rank=r) for s in STEPS for r in range(CORES)]
    tracks = core_tracks(CORES, dma_bytes_per_s=DMA_RATE)
    trace = build(rows, tracks=tracks, ops=OPS, steps=steps)
    return trace, rows


def core_of(row: Row) -> int:
    return int(row["track_id"] - TENSOR) // 10


def resource_of(row: Row) -> str:
    index = (row["track_id"] - TENSOR) % 10
    return ENGINE_NAMES[index] if index < len(ENGINE_NAMES) else "DMA"


def operator_of(row: Row) -> tuple[str | None, str]:
    op_id = row.get("op_id")
    return (None, row.get("name", "op")) if op_id is None else OPERATOR[op_id]


def counted(rows: list[Row]) -> list[Row]:
    return [r for r in rows if r["duration_ns"] is not None and r.get("category") != "marker"]


def inside(row: Row, window: tuple[int, int]) -> set[int]:
    """The nanoseconds of a window that an event covers."""
    start, end = row["start_ns"], row["start_ns"] + row["duration_ns"]
    return set(range(max(start, window[0]), min(end, window[1])))


def starts_in(row: Row, window: tuple[int, int]) -> bool:
    return bool(window[0] <= row["start_ns"] < window[1])


def share(row: Row, window: tuple[int, int]) -> float:
    if not row["duration_ns"]:
        return float(starts_in(row, window))
    return len(inside(row, window)) / int(row["duration_ns"])


def opened(trace: Trace) -> Scope:
    scope = device_scope(trace)
    assert scope is not None
    return scope


def swept(trace: Trace) -> Screen:
    """The first screen, from as many pieces as there can be."""
    return screen_of(trace, opened(trace), piece_events=1)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_utilization(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    scope = opened(trace)
    found = engine_utilization(scope)
    assert_frame_equal(swept(trace).engines(), found, check_dtypes=False)
    assert found.height == len(WINDOWS) * CORES * (len(ENGINE_NAMES) + 1)
    for row in found.iter_rows(named=True):
        window, core = WINDOWS[row["window"]], row["unit_id"] - 2
        own = [r for r in counted(rows) if core_of(r) == core and resource_of(r) == row["resource"]]
        covered = set().union(*(inside(r, window) for r in own))
        assert row["active_ns"] == len(covered)
        assert row["instruction_ns"] == sum(len(inside(r, window)) for r in own)
        assert row["instruction_count"] == sum(starts_in(r, window) for r in own)
        assert row["active_percent"] == pytest.approx(len(covered) / (window[1] - window[0]))
    for row in unit_activity(scope).iter_rows(named=True):
        own = [r for r in counted(rows) if core_of(r) == row["unit_id"] - 2]
        covered = set().union(*(inside(r, WINDOWS[row["window"]]) for r in own))
        assert row["active_ns"] == len(covered)


def is_dma(row: Row) -> bool:
    return resource_of(row) == "DMA"


def is_collective(row: Row) -> bool:
    return row.get("category") == "collective"


@settings(max_examples=25, deadline=None)
@given(traces())
def test_counters(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    for found in swept(trace).counters().iter_rows(named=True):
        window = WINDOWS[found["window"]]
        own = [r for r in counted(rows) if core_of(r) == found["unit_id"] - 2]
        matmuls = [
            (
                (r.get("flops") or 0.0) * share(r, window),
                FACTORS[r.get("dtype")],
                r.get("is_transpose"),
            )
            for r in own
            if resource_of(r) == "Tensor"
        ]
        assert found["hardware_flops"] == pytest.approx(sum(f for f, _, _ in matmuls))
        assert found["transpose_flops"] == pytest.approx(sum(f for f, _, t in matmuls if t))
        assert found["adjusted_hardware_flops"] == pytest.approx(sum(f * x for f, x, _ in matmuls))
        assert found["adjusted_transpose_flops"] == pytest.approx(
            sum(f * x for f, x, t in matmuls if t)
        )
        dmas = [r for r in own if is_dma(r)]
        for side, name in (
            ("source_memory", "hbm_read_bytes"),
            ("target_memory", "hbm_write_bytes"),
        ):
            moved = sum(r["bytes"] * share(r, window) for r in dmas if r[side] == "hbm")
            assert found[name] == pytest.approx(moved)
        assert found["dma_transfer_count"] == sum(starts_in(r, window) for r in dmas)
        dma_ns = len(set().union(*(inside(r, window) for r in dmas)))
        assert found["dma_active_time"] == pytest.approx(dma_ns / 1e9)
        collective_ns = len(set().union(*(inside(r, window) for r in own if is_collective(r))))
        assert found["cc_op_active_time"] == pytest.approx(collective_ns / 1e9)


def brute_force_waits(rows: list[Row], track: int, window: tuple[int, int]) -> Counter[str]:
    """Each idle nanosecond of a lane charged to the next event on it in its step."""
    own = sorted(
        (r for r in counted(rows) if r["track_id"] == track),
        key=lambda r: (r["start_ns"], r["duration_ns"]),
    )
    busy = set().union(*(inside(r, window) for r in own))
    found: Counter[str] = Counter()
    for instant in range(*window):
        if instant in busy:
            continue
        step_end = next(end for _, start, end in STEPS if start <= instant < end)
        after = next((r for r in own if instant < r["start_ns"] < step_end), None)
        found[NONE_AFTER if after is None else after.get("wait_reason") or UNKNOWN] += 1
    return found


@settings(max_examples=25, deadline=None)
@given(traces())
def test_idle_by_reason_closes_on_the_window(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    scope = opened(trace)
    found: dict[tuple[int, int, str], Counter[str]] = {}
    for row in swept(trace).waits().iter_rows(named=True):
        key = (row["window"], row["unit_id"] - 2, row["resource"])
        found.setdefault(key, Counter())[row["reason"]] = row["idle_ns"]
    for number, window in enumerate(WINDOWS):
        for core in range(CORES):
            for index, name in enumerate((*ENGINE_NAMES, "DMA")):
                first = TENSOR + 10 * core + index
                lanes = [first, first + 1] if name == "DMA" else [first]
                waits = sum((brute_force_waits(rows, t, window) for t in lanes), Counter())
                assert found.get((number, core, name), Counter()) == waits
    summed = {
        (r["window"], r["unit_id"], r["resource"]): r for r in engine_utilization(scope).to_dicts()
    }
    for (number, core, name), waits in found.items():
        row = summed[number, core + 2, name]
        assert row["instruction_ns"] + sum(waits.values()) == row["total_ns"] * row["tracks"]


def part_of(instant: int, own: list[Row], host: set[int], window: tuple[int, int]) -> str:
    active = [r for r in own if instant in inside(r, window)]
    if any(not is_dma(r) and r.get("category") not in ("sync", "collective") for r in active):
        return "compute"
    if any(is_collective(r) for r in active):
        return "exposed_collective"
    if active:
        return "exposed_dma"
    return "host" if instant in host else "idle"


@settings(max_examples=15, deadline=None)
@given(traces())
def test_breakdown_is_a_partition_of_the_step(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    partition = step_breakdown(opened(trace))
    assert_frame_equal(swept(trace).breakdown().select(partition.columns), partition)
    for found in partition.iter_rows(named=True):
        window, core = WINDOWS[found["window"]], found["unit_id"] - 2
        assert sum(found[p] for p in PARTS) == found["total_ns"] == window[1] - window[0]
        own = [r for r in counted(rows) if core_of(r) == core]
        host = {
            t
            for lane in range(TENSOR + 10 * core, TENSOR + 10 * core + 7)
            for t in range(*window)
            if brute_force_waits(rows, lane, (t, t + 1))["host"]
        }
        expected = Counter(part_of(t, own, host, window) for t in range(*window))
        assert {p: found[p] for p in PARTS} == {p: expected[p] for p in PARTS}


PHASED_OPS: list[Row] = [
    {"op_id": 0, "name": "mm", "phase": "forward"},
    {"op_id": 1, "name": "mm", "phase": "backward"},
    {"op_id": 2, "name": "add_", "phase": "optimizer"},
]
PHASE_SETS = (("forward", "backward", "optimizer"), ("warm-up", "optimizer", None))


def charged_phase(instant: int, own: list[Row], phases: tuple[str | None, ...]) -> str:
    """The earliest phase that computes, else the earliest that moves data."""
    working = PHASES[:-1]
    computing: set[str] = set()
    moving: set[str] = set()
    for row in own:
        if instant not in inside(row, (instant, instant + 1)):
            continue
        op_id = row.get("op_id")
        named = None if op_id is None else phases[op_id]
        phase = named if named in working else "other"
        moves = is_dma(row) or row.get("category") in ("sync", "collective")
        (moving if moves else computing).add(phase)
    ranked = [p for found in (computing, moving) for p in working if p in found]
    return ranked[0] if ranked else "idle"


@pytest.mark.parametrize("phases", PHASE_SETS)
@settings(max_examples=10, deadline=None)
@given(given_trace=traces())
def test_phases_are_a_partition_of_the_step(
    phases: tuple[str | None, ...], given_trace: tuple[Trace, list[Row]]
) -> None:
    trace, rows = given_trace
    ops = frame(TABLES["ops"], [{**o, "phase": p} for o, p in zip(PHASED_OPS, phases, strict=True)])
    screen = swept(replace(trace, ops=ops.lazy()))
    parts = {(r["window"], r["unit_id"]): r for r in screen.breakdown().to_dicts()}
    for found in screen.phases().iter_rows(named=True):
        window, core = WINDOWS[found["window"]], found["unit_id"] - 2
        assert sum(found[p] for p in PHASES) == found["total_ns"] == window[1] - window[0]
        own = [r for r in counted(rows) if core_of(r) == core]
        expected = Counter(charged_phase(t, own, phases) for t in range(*window))
        assert {p: found[p] for p in PHASES} == {p: expected[p] for p in PHASES}
        part = parts[found["window"], found["unit_id"]]
        assert found["idle"] == part["idle"] + part["host"]


def roofline_ns(own: list[Row], window: tuple[int, int]) -> float:
    """What the events need at least: FLOPs at peak, payload through the DMA engines, HBM traffic from the stack."""
    flops = sum(
        (e.get("flops") or 0.0) * FACTORS[e.get("dtype")] * share(e, window)
        for e in own
        if resource_of(e) == "Tensor"
    )
    dmas = [e for e in own if is_dma(e)]
    payload = sum(e["bytes"] * share(e, window) for e in dmas)
    sides = ("source_memory", "target_memory")
    hbm = sum(e["bytes"] * share(e, window) for e in dmas for side in sides if e[side] == "hbm")
    return float(1e9 * max(flops / PEAK_FLOPS, min(hbm, payload) / DMA_RATE, hbm / BANDWIDTH))


@settings(max_examples=25, deadline=None)
@given(traces())
def test_operators(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    operators = top_operators(opened(trace), trace)
    numbers = ("operator", "event_name")
    alike = swept(trace).operators().select(operators.columns).drop(numbers)
    assert_frame_equal(alike, operators.drop(numbers), check_dtypes=False)
    found = {(r["window"], r["module"], r["name"]): r for r in operators.to_dicts()}
    for number, window in enumerate(WINDOWS):
        groups: dict[tuple[str | None, str], list[Row]] = {}
        for row in counted(rows):
            meets = inside(row, window) or (not row["duration_ns"] and starts_in(row, window))
            if meets:
                groups.setdefault(operator_of(row), []).append(row)
        assert {k[1:] for k in found if k[0] == number} == set(groups)
        for (module, name), events in groups.items():
            row = found[number, module, name]
            cores = [[e for e in events if core_of(e) == c] for c in range(CORES)]
            times = [len(set().union(*(inside(e, window) for e in own))) for own in cores]
            assert row["time_ns"] == pytest.approx(sum(times) / CORES)
            assert row["event_count"] == sum(starts_in(e, window) for e in events)
            moved = sum(e["bytes"] * share(e, window) for e in events if is_dma(e))
            assert row["dma_bytes"] == pytest.approx(moved / CORES)
            rooflines = [roofline_ns(own, window) for own in cores]
            assert row["roofline_ns"] == pytest.approx(sum(rooflines) / CORES)
