"""Traces with one fault each: the finding that names it comes first. A healthy one yields none."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.traces import (
    PEAK_FLOPS,
    TENSOR,
    VECTOR,
    Row,
    build,
    core_tracks,
    event,
    frame,
    step,
)
from tests.emulator.programs import op, program, ref
from tests.emulator.ranks.pipelines import pipeline
from tests.emulator.ranks.worlds import collective, group, layers, mesh, run, world

from trnprof.analysis.findings.thresholds import thresholds
from trnprof.analysis.findings.work import weighted_median
from trnprof.analysis.query import run_query
from trnprof.analysis.render_text import render_text
from trnprof.analysis.report import build_report
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.registry import build_section
from trnprof.analysis.sections.section import Subject
from trnprof.emulator.ranks.faults import Faults
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, Workload, World
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES

TRN2, ULTRA = load_system("trn2"), load_system("trn2-ultra")
SPREAD: dict[str, Any] = {"placement": "spread"}


def fsdp() -> Workload:
    """Large products; the weights of the next layer are gathered meanwhile."""
    return world(layers(8, 4096, 8192, 8), [group("dp", mesh(8)[0])], 8)


def not_overlapped() -> Workload:
    """What each product makes is reduced before the next one begins."""
    operations: list[Operation] = []
    x = ref(1000, 4096, 4096, dtype="bfloat16")
    for layer in range(6):
        weight = ref(layer, 4096, 4096, dtype="bfloat16", role="parameter")
        made, whole = (ref(1001 + 2 * layer + i, 4096, 4096, dtype="bfloat16") for i in range(2))
        operations += [
            op("mm", [x, weight], [made]),
            collective("all_reduce", made.nbytes, [made], [whole]),
        ]
        x = whole
    return world(operations, [group("tp", mesh(8)[0])], 8)


def uneven() -> Workload:
    """Rank 3 multiplies three times as many rows as the others before all reduce."""

    def of(ranks: tuple[int, ...], rows: int) -> Workload:
        operations: list[Operation] = []
        gradient = ref(900, 1024, 1024, dtype="bfloat16")
        x = ref(1000, rows, 4096, dtype="bfloat16")
        for layer in range(4):
            weight = ref(layer, 4096, 4096, dtype="bfloat16", role="parameter")
            y = ref(1001 + layer, rows, 4096, dtype="bfloat16")
            operations.append(replace(op("mm", [x, weight], [y]), module_path="experts"))
            x = y
        reduced = ref(2000, 1024, 1024, dtype="bfloat16")
        operations.append(collective("all_reduce", gradient.nbytes, [gradient], [reduced]))
        one = world(operations, [group("dp", mesh(8)[0])], 8)
        return replace(one, world=World(8, ranks[0], ranks))

    rest = tuple(r for r in range(8) if r != 3)
    return replace(of(rest, 4096), others=(of((3,), 12288),))


def small_transfers() -> Workload:
    """Many small tensors, one after the other."""
    operations = []
    for number in range(300):
        one, other = ref(2 * number, 128, dtype="bfloat16", role="parameter"), ref(2 * number + 1, 128, dtype="bfloat16")  # fmt: skip
        operations.append(replace(op("mul", [one, one], [other]), module_path="scales"))
    return program(operations)


def low_intensity() -> Workload:
    """A product, then eight elementwise operators whose results go through HBM."""
    x, weight = ref(0, 4096, 4096, dtype="bfloat16"), ref(1, 4096, 4096, dtype="bfloat16", role="parameter")  # fmt: skip
    y = ref(2, 4096, 4096, dtype="bfloat16")
    operations = [replace(op("mm", [x, weight], [y]), module_path="proj")]
    for number in range(3, 11):
        z = ref(number, 4096, 4096, dtype="bfloat16")
        operations.append(replace(op("add", [y, y], [z]), module_path="gates"))
        y = z
    return program(operations)


PLANTED: dict[str, tuple[Callable[[], Workload], Any, dict[str, Any], str, str]] = {
    "slow chip": (fsdp, ULTRA, SPREAD | {"faults": Faults(slow_chips={3: 0.5})}, "slow-chip", "chip 3"),
    "slow rank": (fsdp, ULTRA, {"faults": Faults(slow_ranks={5: 0.7})}, "slow-chip", "rank 5"),
    "late rank": (fsdp, ULTRA, SPREAD | {"faults": Faults(late_ns={3: 2_000_000})}, "late-rank", "rank 3"),
    "degraded link": (fsdp, ULTRA, SPREAD | {"faults": Faults(degraded=(("1-2", 0.1),))}, "slow-link", "link 1-2"),
    "no overlap": (not_overlapped, ULTRA, SPREAD, "exposed-communication", "collective all_reduce"),
    "load imbalance": (uneven, ULTRA, SPREAD, "load-imbalance", "rank 3"),
    "pipeline bubble": (lambda: pipeline("gpipe", 4, 4), ULTRA, SPREAD | {"lnc": 1}, "pipeline-bubble", "pipeline"),
    "small DMAs": (small_transfers, TRN2, {"execution": "eager"}, "small-dmas", "scales mul"),
    "low intensity": (low_intensity, TRN2, {"execution": "eager"}, "low-intensity", "gates forward"),
}  # fmt: skip


def emulated(path: Path, name: str) -> Trace:
    make, system, options, _, _ = PLANTED[name]
    return run(path, make(), system, **options).trace


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_fault_comes_first_and_its_query_shows_it(tmp_path: Path, name: str) -> None:
    trace = emulated(tmp_path / "t", name)
    report = build_report(trace)
    *_, key, where = PLANTED[name]
    first = report["findings"][0]
    assert (first["key"], first["where"]) == (key, where)
    assert 0.01 <= first["gain_share"] < 1
    assert not first["is_upper_bound"]
    gains = [f["gain_ns"] for f in report["findings"]]
    assert gains == sorted(gains, reverse=True)
    for finding in report["findings"]:
        assert run_query(trace, finding["query"]).height > 0
        assert any(letter.isdigit() for letter in finding["title"] + finding["evidence"])
        assert finding["command"].startswith("trnprof report ")
    text = render_text(report)
    assert all(len(line) <= 80 or "trnprof report" in line for line in text.splitlines())
    assert "would save" in text
    assert " ".join(first["title"].split()[:3]) in text


@pytest.mark.parametrize("name", ["slow chip", "slow rank", "late rank", "degraded link"])
def test_the_gain_is_what_the_machine_without_the_fault_takes_less(
    tmp_path: Path, name: str
) -> None:
    """The emulator itself, without the fault, is the oracle."""
    make, system, options, _, _ = PLANTED[name]
    ill = build_report(emulated(tmp_path / "ill", name))
    sound = run(tmp_path / "sound", make(), system, **{k: v for k, v in options.items() if k != "faults"})  # fmt: skip
    less = ill["overall"]["breakdown"]["total_ns"] - build_report(sound.trace)["overall"]["breakdown"]["total_ns"]  # fmt: skip
    assert ill["findings"][0]["gain_ns"] == pytest.approx(less, rel=0.05)


def test_a_healthy_step_yields_none_and_says_how_far_it_is(tmp_path: Path) -> None:
    report = build_report(run(tmp_path / "t", fsdp(), ULTRA, **SPREAD).trace)
    assert report["findings"] == []
    text = " ".join(render_text(report).split())
    assert "Nothing that this report looks for would save 1 % of the step; it runs at 9" in text


THREAD, STREAM = 1, 2
HOST_TRACKS: list[Row] = [
    {"track_id": 0, "kind": "host", "name": "host0"},
    {"track_id": THREAD, "parent_id": 0, "kind": "thread", "name": "main", "rank": 0},
    {"track_id": 3, "parent_id": 0, "kind": "chip", "name": "GPU 0", "chip": 0, "rank": 0},
    {"track_id": STREAM, "parent_id": 3, "kind": "stream", "name": "stream 7", "chip": 0, "rank": 0},
]  # fmt: skip


def launched(count: int, call_ns: int, kernel_ns: int) -> Trace:
    """A host that launches kernels one after the other; each starts when launched, or when the one before has ended."""
    calls, kernels, free = [], [], 0
    for i in range(count):
        calls.append(event(THREAD, i * call_ns, call_ns, category="host", name="cudaLaunchKernel"))
        free = max(free, (i + 1) * call_ns)
        kernels.append(event(STREAM, free, kernel_ns, name="gemm"))
        free += kernel_ns
    flows = [{"source_event": i, "target_event": count + i, "kind": "launch"} for i in range(count)]
    return build([*calls, *kernels], tracks=HOST_TRACKS, flows=flows, steps=[step(0, 0, free)])


def test_a_loop_that_the_host_cannot_feed() -> None:
    trace = launched(100, 10_000, 2_000)
    first = build_report(trace)["findings"][0]
    assert (first["key"], first["is_upper_bound"]) == ("host-bound", True)
    # before the first kernel 10 µs, before each of the others 8
    assert first["gain_ns"] == pytest.approx(10_000 + 99 * 8_000, rel=0.02)
    assert run_query(trace, first["query"]).height > 0


def test_a_loop_that_the_host_feeds_has_no_such_finding() -> None:
    assert build_report(launched(100, 2_000, 10_000))["findings"] == []


def test_transposes_between_products_are_timed_again_without() -> None:
    """Product, transpose, product, one after the other, 400, 200 and 400 µs; the last waits for both, one of which binds."""
    full = {"dtype": "bfloat16", "step": 0, "wait_reason": "data"}
    times = ((0, 400_000, False), (400_000, 200_000, True), (600_000, 400_000, False))
    events = [
        event(TENSOR, start, ns, flops=PEAK_FLOPS * ns / 1e9, is_transpose=turns, blocked_by=i - 1 if i else None, **full)
        for i, (start, ns, turns) in enumerate(times)
    ]  # fmt: skip
    flows = [{"source_event": s, "target_event": t} for s, t in ((0, 1), (1, 2), (0, 2))]
    trace = build(events, flows=flows, steps=[step(0, 0, 1_000_000)], manifest={"is_simulation": True})  # fmt: skip
    first = build_report(trace)["findings"][0]
    assert (first["key"], first["gain_ns"], first["is_upper_bound"]) == ("transposes", 200_000, False)  # fmt: skip
    assert run_query(trace, first["query"])["time_ns"].to_list() == [200_000]


def test_throttling_costs_no_more_than_the_rate_that_it_takes() -> None:
    """Half of the rate for 400 µs of a step of 1 ms, until another sample sets the limit back."""
    tracks = [
        *core_tracks(),
        {"track_id": 40, "parent_id": 2, "kind": "counter", "name": "utilization limit, throttle HAM"},
    ]  # fmt: skip
    trace = build([event(TENSOR, 0, 1_000_000)], tracks=tracks, steps=[step(0, 0, 1_000_000)])
    samples = [
        {"track_id": 40, "timestamp_ns": at, "value": v} for at, v in ((-50, 1.0), (200_000, 0.5), (600_000, 1.0))
    ]  # fmt: skip
    trace = replace(trace, counters=frame(TABLES["counters"], samples).lazy())
    found = {f["key"]: f for f in build_report(trace)["findings"]}["throttling"]
    assert (found["gain_ns"], found["touched_ns"]) == (200_000, 400_000)
    assert run_query(trace, found["query"])["value"].to_list() == [0.5]


def test_measured_ranks_are_late_by_their_collectives_not_by_their_clocks() -> None:
    """Rank 1 comes 50 µs after the others to each of ten calls; its first event is no later."""
    tracks = core_tracks(3)
    events = [event(TENSOR + 10 * r, 0, 1_000, name="mm") for r in range(3)]
    for call in range(10):
        end = 100_000 * (call + 1)
        events += [
            event(VECTOR + 10 * r, end - (10_000 if r == 1 else 60_000), 10_000 if r == 1 else 60_000, category="collective", name="all_reduce")
            for r in range(3)
        ]  # fmt: skip
    steps = [step(0, 0, 1_000_000, rank=r) for r in range(3)]
    found = build_report(build(events, tracks=tracks, steps=steps))["findings"]
    late = [f for f in found if f["key"] == "late-rank"]
    assert [(f["where"], f["gain_ns"]) for f in late] == [("rank 1", 500_000)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=8))
def test_a_weighted_median_is_that_of_values_written_out(pairs: list[tuple[int, int]]) -> None:
    frame = pl.DataFrame(pairs, schema=["value", "weight"], orient="row")
    found = frame.select(weighted_median(pl.col("value"), pl.col("weight"))).item()
    plain = sorted(value for value, weight in pairs for _ in range(weight))
    assert found == plain[(len(plain) - 1) // 2]


def test_every_threshold_has_a_source_or_a_reason() -> None:
    for name, threshold in thresholds().items():
        assert threshold.unit, name
        assert bool(threshold.source) != bool(threshold.reason), name


def test_the_section_has_all_findings_with_queries_that_a_shell_passes_on(tmp_path: Path) -> None:
    trace = emulated(tmp_path / "t", "slow chip")
    section = build_section("findings", Subject(trace, device_scope(trace)))
    (shown,) = section.tables
    assert [row["key"] for row in shown.rows] == ["slow-chip", "exposed-communication"]
    queries = [shlex.split(n)[4] for n in section.notes if n.startswith("→ trnprof query")]
    assert queries == [row["query"] for row in shown.rows]
    assert any('"group"' in query for query in queries)
    healthy = run(tmp_path / "h", fsdp(), ULTRA, **SPREAD).trace
    said = build_section("findings", Subject(healthy, device_scope(healthy))).nothing_to_say
    assert said is not None
    assert said.startswith("because nothing that this report looks for would save 1 %")
