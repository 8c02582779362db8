"""Calls, bandwidths, skew and stragglers: a real trace of eight ranks with known figures, known shifts put on one of them, and plain recounts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_ranks import KINETO, SHARED, gpu_tracks, needs_traces
from tests.analysis.traces import DMA0, TENSOR, Row, build, core_tracks, event, step

from trnprof.analysis.collective_calls import CLOCK_NS, collective_calls, collective_parts
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.collectives import build as build_section
from trnprof.analysis.sections.section import Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.analysis.stragglers import MIN_CALLS, MOST, SIGMAS, stragglers, with_lateness
from trnprof.tracer.reader import Trace

US = 1000
AGREE_NS = 7 * US
"""Within that the ends of a call agree in the trace of eight ranks."""
Calls = dict[int, list[tuple[str, int, int]]]


def parts_of(trace: Trace) -> pl.DataFrame:
    scope = device_scope(trace)
    assert scope is not None
    return collective_parts(trace, scope)


@pytest.fixture(scope="module")
def dlrm() -> Calls:
    """By rank: name, start and end (ns) of its collectives."""
    if not KINETO.is_dir():
        pytest.skip("no ../shared/traces")
    calls: Calls = {}
    for rank in range(8):
        with gzip.open(KINETO / f"dlrm_8rank_worker{rank}.pt.trace.json.gz") as file:
            found = json.load(file)["traceEvents"]
        kernels = [e for e in found if e.get("cat") == "kernel" and "nccl" in e["name"]]
        calls[rank] = [
            (e["name"][:40], US * e["ts"], US * (e["ts"] + e["dur"]))
            for e in sorted(kernels, key=lambda e: int(e["ts"]))
        ]
    return calls


def all_to_alls(calls: Calls) -> Trace:
    """The calls as a trace; their SendRecv kernels are the model's all-to-alls, as the profile's operations say."""
    ops = [{"op_id": 0, "kind": "collective", "name": "all_to_all"}]
    rows = [
        event(100 * rank + 10, start, end - start, name=name, category="collective")
        | ({"op_id": 0} if "SendRecv" in name else {})
        for rank, own in calls.items()
        for name, start, end in own
    ]
    return build(rows, tracks=gpu_tracks(len(calls)), ops=ops)


def oracle() -> list[Mapping[str, Any]]:
    found = json.loads((SHARED / "oracles" / "kineto" / "dlrm_collectives.json").read_text())
    return list(found["rows"])


@needs_traces
def test_skew_of_a_real_job(dlrm: Calls) -> None:
    trace = all_to_alls(dlrm)
    found = collective_calls(trace, parts_of(trace)).to_dicts()
    assert len(found) == len(oracle())
    for ours, theirs in zip(found, oracle(), strict=True):
        assert (ours["parts"], ours["group_ranks"], ours["is_inferred"]) == (8, 8, True)
        assert ours["skew_ns"] == US * theirs["start_spread_us"]
        assert ours["last_rank"] == theirs["last_arriver"]
        assert abs(ours["time_ns"] - US * theirs["min_dur"]) <= AGREE_NS
    assert not stragglers(parts_of(trace))["is_chronic"].any()


@needs_traces
@pytest.mark.parametrize("shift_us", [-4000, 60, 250, 100_000])
def test_a_clock_that_is_off_is_found(dlrm: Calls, shift_us: int) -> None:
    shift_ns = shift_us * US
    moved = [(name, start + shift_ns, end + shift_ns) for name, start, end in dlrm[3]]
    trace = all_to_alls({**dlrm, 3: moved})
    parts = parts_of(trace)
    offsets = dict(parts.select("rank", "clock_offset_ns").unique().iter_rows())
    assert abs(offsets.pop(3) - shift_ns) <= AGREE_NS
    assert set(offsets.values()) == {0}
    for ours, theirs in zip(collective_calls(trace, parts).to_dicts(), oracle(), strict=True):
        assert abs(ours["skew_ns"] - US * theirs["start_spread_us"]) <= AGREE_NS


@needs_traces
@pytest.mark.parametrize("late_us", [20, 300])
def test_a_rank_that_is_late_is_found(dlrm: Calls, late_us: int) -> None:
    """Rank 2 comes so much after whoever came last, and all end so much later."""
    late_ns = late_us * US
    lasts = [max(dlrm[r][i][1] for r in dlrm) for i in range(8)]
    moved = {
        rank: [
            (name, lasts[i] + late_ns if rank == 2 else start, end + late_ns)
            for i, (name, start, end) in enumerate(own)
        ]
        for rank, own in dlrm.items()
    }
    trace = all_to_alls(moved)
    parts = parts_of(trace)
    first = stragglers(parts).row(0, named=True)
    assert (first["rank"], first["is_chronic"], first["since_call"]) == (2, True, 0)
    assert (first["times_last"], first["made_wait_ns"]) == (8, 8 * late_ns)
    waits = with_lateness(parts).filter(pl.col("rank") == 2)["made_wait_ns"]
    assert waits.to_list() == [late_ns] * 8


def jittering(late_from: int | None, ranks: int = 4, calls: int = 20) -> Trace:
    """Calls 200 µs apart; ranks vary by 0–4 µs in turn, rank 2 is 50 µs late from a call on."""
    rows = []
    for call in range(calls):
        starts = {r: call * 200 * US + US * ((3 * call + r) % (ranks + 1)) for r in range(ranks)}
        if late_from is not None and call >= late_from:
            starts[2] += 50 * US
        end = max(starts.values()) + 20 * US
        rows += [
            event(100 * r + 10, start, end - start, name="ncclKernel_AllReduce", category="collective")
            for r, start in starts.items()
        ]  # fmt: skip
    return build(rows, tracks=gpu_tracks(ranks))


def test_a_straggler_is_told_from_jitter() -> None:
    assert not stragglers(parts_of(jittering(None)))["is_chronic"].any()
    found = stragglers(parts_of(jittering(8)))
    assert found.filter("is_chronic")["rank"].to_list() == [2]
    first = found.row(0, named=True)
    assert 7 <= first["since_call"] <= 8
    assert first["since_ns"] // (200 * US) == first["since_call"]
    assert abs(first["late_ns"] - 50 * US) <= 4 * US
    one_time = stragglers(parts_of(jittering(19)))
    assert not one_time["is_chronic"].any()


parts_frames = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=4, unique_by=lambda p: p[0]),
    max_size=14,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(parts_frames)
def test_stragglers_recounted(calls: list[list[tuple[int, int, int]]]) -> None:
    rows = [
        {"call": i, "rank": rank, "arrival_ns": 10 * i + at, "replica_count": weight, "step": None,
         "is_matched": len(call) > 1}
        for i, call in enumerate(calls)
        for rank, at, weight in call
    ]  # fmt: skip
    schema = {
        "call": pl.Int64,
        "rank": pl.Int32,
        "arrival_ns": pl.Int64,
        "replica_count": pl.Int32,
        "step": pl.Int32,
        "is_matched": pl.Boolean,
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    expected: dict[int, list[tuple[float, int, float]]] = {}
    others_late: list[float] = []
    for i, call in enumerate(calls):
        if len(call) < 2:
            continue
        at = {rank: 10 * i + when for rank, when, _ in call}
        weights = {rank: weight for rank, _, weight in call}
        for rank, when in at.items():
            others = [w for r, w in at.items() if r != rank]
            wait = max(0, when - max(others))
            late = when - median(others)
            if not wait:
                others_late.append(abs(late))
            chance = weights[rank] / sum(weights.values())
            expected.setdefault(rank, []).append((late, wait, chance))
    found = {r["rank"]: r for r in stragglers(frame).to_dicts()}
    assert set(found) == set(expected)
    spread = median(others_late) if others_late else 0.0
    for rank, seen in expected.items():
        row = found[rank]
        hits = [wait > 0 for _, wait, _ in seen]
        scores = [sum(h - MOST for h in hits[k:]) for k in range(len(seen))]
        since = scores.index(max(scores))
        tail, hit = seen[since:], sum(hits[since:])
        chance = sum(c for _, _, c in tail)
        deviation = sum(c * (1 - c) for _, _, c in tail) ** 0.5
        chronic = (
            hit >= MOST * len(tail)
            and len(tail) >= MIN_CALLS
            and hit - chance >= SIGMAS * deviation > 0
            and median(late for late, _, _ in tail) > spread
        )
        assert row["is_chronic"] == chronic
        assert row["since_call"] == (since if chronic else None)
        assert (row["calls"], row["times_last"]) == (len(seen), sum(hits))
        assert row["made_wait_ns"] == sum(wait for _, wait, _ in seen)
        assert row["worst_ns"] == max(late for late, _, _ in seen)
        counted = tail if chronic else seen
        assert row["late_ns"] == median(late for late, _, _ in counted)


NCCL_TESTS = {
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "all_to_all": 0.75,
    "broadcast": 1.0,
    "reduce": 1.0,
}
"""Bus bandwidth over algorithm bandwidth of four ranks, by its doc/PERFORMANCE.md."""


def grouped(ops: list[Row], rows: list[Row], **columns: Any) -> Trace:
    """Four cores in one group; each names its operations."""
    tracks = [*core_tracks(4)] + [
        {"track_id": 80 + r, "parent_id": 2 + r, "kind": "collective_stream", "name": "CC", "rank": r}
        for r in range(4)
    ]  # fmt: skip
    groups = [{"group_id": 5, "ranks": [0, 1, 2, 3], "name": "dp"}]
    return build(rows, tracks=[*tracks, *columns.pop("tracks", ())], ops=ops, groups=groups, **columns)  # fmt: skip


@pytest.mark.parametrize("name", NCCL_TESTS)
def test_bandwidths_are_those_of_nccl_tests(name: str) -> None:
    """All hold 4,000 bytes in their larger buffer; the last comes at 30 ns, all end at 130 ns."""
    sizes = {"all_gather": (1000, 4000), "reduce_scatter": (4000, 1000)}.get(name, (4000, 4000))
    ops = [
        {"op_id": r, "kind": "collective", "name": f"c10d::{name}_", "group_id": 5, "group_seq": 7,
         "in_bytes": sizes[0], "out_bytes": sizes[1]}
        for r in range(4)
    ]  # fmt: skip
    rows = [event(80 + r, 10 * r, 130 - 10 * r, op_id=r, category="collective") for r in range(4)]
    trace = grouped(ops, rows)
    [call] = collective_calls(trace, parts_of(trace)).to_dicts()
    assert (call["collective"], call["group"], call["group_ranks"]) == (name, "dp", 4)
    assert (call["size_bytes"], call["skew_ns"], call["last_rank"], call["time_ns"]) == (4000, 30, 3, 100)  # fmt: skip
    assert call["algorithm_bytes_per_s"] == pytest.approx(40e9)
    assert call["bus_bytes_per_s"] == pytest.approx(40e9 * NCCL_TESTS[name])
    assert not call["is_inferred"]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sets(st.integers(0, 3), min_size=1)), max_size=6),
    st.randoms(),
)
def test_calls_of_a_group_recounted(sequence: list[tuple[int, set[int]]], random: Any) -> None:
    """Each call repeats one of two operations a rank, in steps, with several events a part; some ranks were not recorded."""
    ops = [
        {"op_id": 10 * r + o, "kind": "collective", "name": "all_gather", "group_id": 5, "group_seq": o}
        for r in range(4)
        for o in (0, 1)
    ]  # fmt: skip
    rows: list[Row] = []
    expected = []
    clock = dict.fromkeys(range(4), 0)
    times_run: dict[tuple[int, int], int] = {}
    for number, (op, ranks) in enumerate(sequence):
        spans = {}
        for r in sorted(ranks):
            start = clock[r] + random.randint(0, 20)
            middle, end = start + random.randint(0, 9), start + random.randint(9, 30)
            clock[r] = end
            spans[r] = (start, end)
            for first, last in ((start, middle), (middle, end)):
                rows.append(
                    event(80 + r, first, last - first, op_id=10 * r + op, step=number, category="collective")
                )  # fmt: skip
            times_run[r, op] = times_run.get((r, op), 0) + 1
        expected.append((op, spans, {r: times_run[r, op] for r in spans}))
    # the n-th time that a rank runs an ordinal of the group belongs to the n-th time of the others
    joined: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for op, spans, nth in expected:
        for r, span in spans.items():
            joined.setdefault((op, nth[r]), {})[r] = span
    trace = grouped(ops, rows)
    found = collective_calls(trace, parts_of(trace)).to_dicts()
    ours = sorted((c["parts"], c["first_ns"], c["last_ns"], c["end_ns"]) for c in found)
    assert ours == sorted(
        (
            len(s),
            min(a for a, _ in s.values()),
            max(a for a, _ in s.values()),
            max(e for _, e in s.values()),
        )
        for s in joined.values()
    )


def test_emulated_ranks_arrive_when_their_own_inputs_are_there() -> None:
    ops = [
        {"op_id": r, "kind": "collective", "name": "all_reduce", "group_id": 5, "group_seq": 0, "in_bytes": 800}
        for r in (0, 1)
    ]  # fmt: skip
    rows = [
        event(TENSOR, 0, 40, event_id=0),
        event(TENSOR + 10, 0, 90, event_id=1),
        event(80, 100, 50, event_id=2, op_id=0, category="collective", step=0),
        event(81, 100, 50, event_id=3, op_id=1, category="collective", step=0),
        event(70, 100, 20, event_id=4, op_id=0, category="collective", step=0, bytes=800),
        event(70, 130, 10, event_id=5, op_id=1, category="collective", step=0, bytes=400),
    ]
    flows = [
        {"source_event": s, "target_event": t, "lag_ns": 10, "kind": "data" if s == t - 2 else "collective"}
        for s in (0, 1)
        for t in (2, 3)
    ]  # fmt: skip
    link = {"track_id": 70, "kind": "link", "name": "0>1", "peak_bytes_per_s": 40e9}
    trace = grouped(ops, rows, flows=flows, tracks=[link], manifest={"is_simulation": True})
    parts = parts_of(trace)
    assert parts.select("rank", "arrival_ns").rows() == [(0, 50), (1, 100)]
    [call] = collective_calls(trace, parts).to_dicts()
    assert (call["skew_ns"], call["last_rank"], call["time_ns"]) == (50, 1, 50)
    assert (call["link"], call["link_share"]) == ("0>1", pytest.approx(1200 / 40 / 50))


def test_what_was_not_one_call_is_not_taken_for_one() -> None:
    name = "ncclKernel_AllReduce"
    apart = [event(10, 0, 50, name=name, category="collective"), event(110, 60, 50, name=name, category="collective")]  # fmt: skip
    ends = [event(10, 0, 50, name=name, category="collective"), event(110, 0, 500_000, name=name, category="collective")]  # fmt: skip
    sends = [event(t, 0, 50, name="ncclKernel_SendRecv", category="collective") for t in (10, 110)]
    for rows in (apart, ends, sends):
        trace = build(rows, tracks=gpu_tracks(2))
        found = collective_calls(trace, parts_of(trace))
        assert found["parts"].to_list() == [1, 1]
        assert found["skew_ns"].null_count() == found["bus_bytes_per_s"].null_count() == 2
        assert not stragglers(parts_of(trace)).height


def test_section() -> None:
    trace = jittering(8)
    section = build_section(Subject(trace, device_scope(trace)))
    assert all(len(line) <= 80 for line in section_lines(section))
    found = as_json(section)
    assert found["late_ranks"][0]["said"] == "chronic"
    assert found["kinds"][0]["calls"] == 20
    assert len(found["worst_calls"]) == 10
    assert any(n.startswith("~") for n in found["notes"])
    in_step = build([], tracks=gpu_tracks(1), steps=[step(0, 0, 10)])
    assert "no collective" in str(
        build_section(Subject(in_step, device_scope(in_step))).nothing_to_say
    )
    assert build_section(Subject(trace, None)).nothing_to_say


def test_the_step_and_the_rank_asked_for() -> None:
    ops = [
        {"op_id": r, "kind": "collective", "name": "all_reduce", "group_id": 5, "group_seq": 0, "in_bytes": 8}
        for r in range(4)
    ]  # fmt: skip
    rows = [
        event(80 + r, 100 * n + r, 50, op_id=r, step=n, category="collective", name="é" * 10_000)
        for n in (0, 1)
        for r in range(2 + 2 * n)
    ]
    steps = [step(n, 100 * n, 100 * n + 100, rank=r) for n in (0, 1) for r in range(4)]
    trace = grouped(ops, rows, steps=steps, manifest={"is_simulation": True})
    scope = device_scope(trace)
    for chosen, ranks in (({}, 2), ({"step": 1}, 1), ({"rank": 3}, 1)):
        found = as_json(build_section(Subject(trace, scope, **chosen)))  # type: ignore[arg-type]
        assert sum(k["calls"] for k in found["kinds"]) == ranks
    assert CLOCK_NS < AGREE_NS * 2


def test_zero_lengths_and_open_events() -> None:
    rows = [
        event(10, 5, 0, name="ncclKernel_AllReduce", category="collective"),
        event(110, 5, 0, name="ncclKernel_AllReduce", category="collective"),
        event(110, 9, None, name="ncclKernel_AllReduce", category="collective"),
        event(DMA0, 0, 5),
    ]
    trace = build(rows, tracks=gpu_tracks(2))
    [call] = collective_calls(trace, parts_of(trace)).to_dicts()
    assert (call["time_ns"], call["algorithm_bytes_per_s"]) == (0, None)
    assert not build_section(Subject(trace, device_scope(trace))).nothing_to_say
