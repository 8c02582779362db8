"""What runs at once and what nothing hides, beside every nanosecond looked at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_brute_force import (
    ENGINE_NAMES,
    WINDOWS,
    core_of,
    counted,
    inside,
    is_collective,
    is_dma,
    opened,
    starts_in,
    traces,
)
from tests.analysis.traces import DMA0, TENSOR, VECTOR, Row, build, event, step

from trnprof.analysis.breakdown import step_breakdown
from trnprof.analysis.collective_names import canonical
from trnprof.analysis.exposed import exposed_collectives, exposed_dmas
from trnprof.analysis.intervals import alone, with_covered_ns
from trnprof.analysis.overlap import KINDS, overlap_matrix
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.breakdown import build as breakdown_section
from trnprof.analysis.sections.overlap import build as overlap_section
from trnprof.analysis.sections.section import Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.tracer.reader import Trace

intervals = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-20, 40), st.integers(0, 15)), max_size=12
)


def frame(rows: list[tuple[str, int, int]]) -> pl.LazyFrame:
    data = [(group, start, start + length) for group, start, length in rows]
    schema = {"group": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.LazyFrame(data, schema=schema, orient="row").with_row_index("id")


@settings(max_examples=40, deadline=None)
@given(intervals)
def test_alone_leaves_each_instant_to_the_first(rows: list[tuple[str, int, int]]) -> None:
    found = alone(frame(rows), ["group"]).collect().to_dicts()
    owner: dict[tuple[str, int], int] = {}
    order = sorted(range(len(rows)), key=lambda i: (rows[i][1], rows[i][1] + rows[i][2]))
    for index in order:
        group, start, length = rows[index]
        for instant in range(start, start + length):
            owner.setdefault((group, instant), index)
    kept = {(r["group"], t): r["id"] for r in found for t in range(r["start_ns"], r["end_ns"])}
    assert kept == owner
    assert len(kept) == sum(r["end_ns"] - r["start_ns"] for r in found)


@settings(max_examples=40, deadline=None)
@given(intervals, intervals)
def test_covered_part(rows: list[tuple[str, int, int]], cover: list[tuple[str, int, int]]) -> None:
    found = with_covered_ns(frame(rows), frame(cover), ["group"]).collect()
    assert found.height == len(rows)
    covered = {(g, t) for g, start, length in cover for t in range(start, start + length)}
    for row in found.to_dicts():
        instants = range(row["start_ns"], row["end_ns"])
        assert row["covered_ns"] == sum((row["group"], t) in covered for t in instants)


def kind_of(row: Row) -> str:
    if is_collective(row):
        return "collective"
    return "dma" if is_dma(row) or row.get("category") == "sync" else "compute"


def running(own: list[Row], window: tuple[int, int]) -> dict[int, frozenset[str]]:
    kinds: dict[int, set[str]] = {t: set() for t in range(*window)}
    for row in own:
        for instant in inside(row, window):
            kinds[instant].add(kind_of(row))
    return {t: frozenset(k) for t, k in kinds.items()}


@settings(max_examples=15, deadline=None)
@given(traces())
def test_overlap_matrix(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    found = overlap_matrix(opened(trace)).to_dicts()
    for number, window in enumerate(WINDOWS):
        for core in (0, 1):
            own = [r for r in counted(rows) if core_of(r) == core]
            expected = Counter(running(own, window).values())
            here = [r for r in found if (r["window"], r["unit_id"]) == (number, core + 2)]
            assert {frozenset(k for k in KINDS if r[k]): r["time_ns"] for r in here} == expected
            assert sum(r["time_ns"] for r in here) == window[1] - window[0]


def queue_of(row: Row) -> str:
    return (*ENGINE_NAMES, "DMA q0", "DMA q1")[(row["track_id"] - TENSOR) % 10]


@settings(max_examples=15, deadline=None)
@given(traces())
def test_exposed_parts_sum_to_the_breakdown(given_trace: tuple[Trace, list[Row]]) -> None:
    trace, rows = given_trace
    scope = opened(trace)
    parts = {(r["window"], r["unit_id"]): r for r in step_breakdown(scope).to_dicts()}
    found = {
        "collective": exposed_collectives(scope, trace).to_dicts(),
        "dma": exposed_dmas(scope, trace).to_dicts(),
    }
    for (number, unit), part in parts.items():
        window = WINDOWS[number]
        own = [r for r in counted(rows) if core_of(r) == unit - 2]
        kinds = running(own, window)
        hides = {"collective": {"compute"}, "dma": {"compute", "collective"}}
        for kind, frames in found.items():
            here = [r for r in frames if (r["window"], r["unit_id"]) == (number, unit)]
            assert sum(r["exposed_ns"] for r in here) == part[f"exposed_{kind}"]
            instants = [t for t, k in kinds.items() if kind in k]
            assert sum(r["running_ns"] for r in here) == len(instants)
            bare = [t for t in instants if not kinds[t] & hides[kind]]
            assert len(bare) == part[f"exposed_{kind}"]
            counts = Counter(
                (queue_of(r), r["name"]) if kind == "dma" else r["name"]
                for r in own
                if kind_of(r) == kind and starts_in(r, window)
            )
            names = {
                (r["queue"], r["name"]) if kind == "dma" else r["collective"]: r["calls"]
                for r in here
            }
            assert {n: c for n, c in names.items() if c} == counts


def test_exposed_time_goes_to_the_first_of_a_group() -> None:
    rows = [
        event(TENSOR, 0, 10),
        event(VECTOR, 5, 20, category="collective", name="a"),  # 15 exposed
        event(TENSOR + 9, 20, 20, category="collective", name="b"),  # 15 more, the first 5 are a's
    ]
    tracks = [*_tracks(), {**_tracks()[-1], "track_id": TENSOR + 9, "name": "CC"}]
    trace = build(rows, tracks=tracks, steps=[step(0, 0, 50)])
    scope = device_scope(trace)
    assert scope is not None
    found = exposed_collectives(scope, trace).filter(pl.col("window") == 0).to_dicts()
    assert {r["collective"]: r["exposed_ns"] for r in found} == {"a": 15, "b": 15}


def _tracks() -> list[dict[str, Any]]:
    from tests.analysis.traces import core_tracks

    return [dict(t) for t in core_tracks()]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("c10d::_allgather_base_", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("nccl:send 0->1", "send"),
        ("collective-permute.3", "permute"),
        ("AllToAll", "all_to_all"),
        ("gemm", None),
    ],
)
def test_names_of_collectives(name: str, collective: str | None) -> None:
    assert pl.select(canonical(pl.lit(name))).item() == collective


def test_sections_close_and_fit() -> None:
    rows = [event(TENSOR, 0, 40), event(DMA0, 30, 40, name="load " + "x" * 10_000 + " é\n")]
    subject = Subject(*(lambda t: (t, device_scope(t)))(build(rows, steps=[step(0, 0, 100)])))
    for make in (breakdown_section, overlap_section):
        section = make(subject)
        assert all(len(line) <= 80 for line in section_lines(section))
    parts = as_json(breakdown_section(subject))
    assert {r["part"]: r["time_ns"] for r in parts["parts"]} == {
        "compute": 40,
        "exposed_collective": 0,
        "exposed_dma": 30,
        "host": 0,
        "idle": 30,
    }
    assert parts["exposed_dma"][0]["exposed_ns"] == 30
    matrix = as_json(overlap_section(subject))
    assert sum(r["time_ns"] for r in matrix["combinations"]) == 100
    assert matrix["hidden"][0]["dma_hidden_share"] == pytest.approx(10 / 40)


def test_sections_of_nothing() -> None:
    empty = build()
    for trace, scope in ((empty, None), (empty, device_scope(empty))):
        for make in (breakdown_section, overlap_section):
            assert str(make(Subject(trace, scope)).nothing_to_say).startswith("because")
