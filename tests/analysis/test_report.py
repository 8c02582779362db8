"""The report: verdicts on traces made for them, degenerate input, and text that fits 80 columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.traces import (
    BANDWIDTH,
    DMA0,
    PEAK_FLOPS,
    SYNC,
    TENSOR,
    VECTOR,
    Row,
    build,
    core_tracks,
    event,
    step,
)
from tests.tracer.two_clocks import DEVICE_STEPS, record_two_clocks

from trnprof.analysis.operators import operator_labels
from trnprof.analysis.render_text import bar, render_text
from trnprof.analysis.report import build_report
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace, open_trace

THREADS: list[Row] = [
    {"track_id": 50, "kind": "thread", "name": "main", "clock_id": 1},
    {"track_id": 51, "kind": "thread", "name": "main", "clock_id": 1, "lane": 1},
]
LATE = 10**15


def load(start_ns: int, duration_ns: int, fraction: float, **columns: Any) -> Row:
    """A DMA from HBM at a fraction of the core's bandwidth."""
    moved = round(fraction * BANDWIDTH * duration_ns / 1e9)
    memories = {"source_memory": "hbm", "target_memory": "sbuf"}
    return event(DMA0, start_ns, duration_ns, bytes=moved, **memories, **columns)


def matmul(start_ns: int, duration_ns: int, fraction: float = 1.0, **columns: Any) -> Row:
    return event(
        TENSOR,
        start_ns,
        duration_ns,
        flops=fraction * PEAK_FLOPS * duration_ns / 1e9,
        dtype="bfloat16",
        **columns,
    )


STEP = [step(0, 0, 1_000_000)]
FAULTS: dict[str, tuple[list[Row], int | None]] = {
    # one DMA after the other at 95 % of bandwidth; Tensor waits for it
    "DMA-bandwidth-bound": (
        [load(0, 900_000, 0.95), matmul(900_000, 100_000, wait_reason="data")],
        900_000,
    ),
    # active all the time, a tenth of the bandwidth
    "DMA-issue-bound": (
        [load(100 * i, 100, 0.1) for i in range(9_000)] + [matmul(900_000, 100_000)],
        810_000,
    ),
    # every third FLOP is fp32's fourfold cost: 1/3 of the work at BF16 rate
    "tensor-bound": (
        [
            event(TENSOR, 0, 900_000, flops=PEAK_FLOPS / 4 * 900e-6, dtype="float32"),
            load(0, 100_000, 0.9),
        ],
        675_000,
    ),
    "vector-bound": ([event(VECTOR, 0, 800_000), matmul(100_000, 300_000)], 500_000),
    "latency-bound": (
        [event(VECTOR, 0, 200_000), matmul(600_000, 200_000, wait_reason="data")],
        600_000,
    ),
    "collective-bound": (
        [
            matmul(0, 600_000),
            event(VECTOR, 600_000, 400_000, category="collective", name="all_reduce"),
        ],
        400_000,
    ),
}


@pytest.mark.parametrize("bound", FAULTS)
def test_planted_fault_is_the_verdict_with_its_gain(bound: str) -> None:
    events, gain_ns = FAULTS[bound]
    report = build_report(build(events, steps=STEP), step=0)
    verdict = report["steps"][0]["verdict"]
    first_finding = report["findings"][0]
    assert first_finding["gain_ns"] == pytest.approx(gain_ns, rel=1e-3)
    assert first_finding["is_upper_bound"]
    assert verdict["bound_by"] == bound
    assert verdict["gain_upper_bound_ns"] == pytest.approx(gain_ns, rel=1e-3)
    first, second = verdict["sentences"]
    assert "bound" in first
    assert "roofline" in second
    assert verdict["advice"]["gain_ns"] == verdict["gain_upper_bound_ns"]


def test_healthy_step_proposes_nothing() -> None:
    events = [matmul(0, 1_000_000), load(0, 995_000, 0.9)]
    verdict = build_report(build(events, steps=STEP))["overall"]["verdict"]
    assert verdict["bound_by"] == "tensor-bound"
    assert verdict["gain_upper_bound_ns"] is None
    assert verdict["roofline_gap"] == pytest.approx(1.0)
    assert verdict["advice"] is None


def test_verdict_sentences_tell_numbers() -> None:
    events = [
        load(0, 1_000_000, 0.92),
        *(matmul(i * 100_000 + 59_000, 41_000, wait_reason="data") for i in range(10)),
    ]
    first, second = build_report(build(events, steps=STEP))["overall"]["verdict"]["sentences"]
    assert first == (
        "Tensor is active 41.0 % and waits 59.0 % for data: DMA bandwidth bounds this step "
        "(HBM at 92.0 % of 362 GB/s, DMA active 100.0 %)."
    )
    assert (
        second
        == "The step takes 1 ms; its roofline is 920 µs (1.1x), set by HBM bytes; FLOPs alone need 410 µs."
    )


def test_dma_is_judged_by_what_its_engines_reach() -> None:
    """A load at the engines' full rate, which is half of the stack's, cannot be faster."""
    tracks = core_tracks(dma_bytes_per_s=BANDWIDTH / 2)
    events = [
        load(0, 900_000, 0.5, op_id=0),
        matmul(900_000, 100_000, op_id=1, wait_reason="data"),
    ]
    ops: list[Row] = [{"op_id": 0, "name": "load"}, {"op_id": 1, "name": "mm"}]
    report = build_report(build(events, tracks=tracks, ops=ops, steps=STEP))
    overall = report["overall"]
    loads = overall["operators"][0]
    assert (loads["name"], loads["bound_by"]) == ("load", "DMA-bandwidth-bound")
    assert loads["roofline_share"] == pytest.approx(1.0)
    metrics = overall["metrics"]
    assert metrics["mbu_estimated_percent"] == pytest.approx(0.45)
    assert metrics["dma_bandwidth_share"] == pytest.approx(0.9)
    assert metrics["roofline_s"] == pytest.approx(900e-6)
    assert metrics["peak_flops_bandwidth_ratio"] == pytest.approx(PEAK_FLOPS / BANDWIDTH)
    verdict = overall["verdict"]
    assert verdict["bound_by"] == "DMA-bandwidth-bound"
    reached = "DMA at 90.0 % of the 181 GB/s its engines reach, HBM at 45.0 % of 362 GB/s"
    assert reached in verdict["sentences"][0]
    assert reached in " ".join(render_text(report).split())


def test_hiding_dma_is_proposed_when_it_saves_more_than_the_busiest_engine() -> None:
    events = [load(0, 300_000, 0.9, op_id=0), matmul(300_000, 700_000, 0.9, op_id=1)]
    ops: list[Row] = [{"op_id": 0, "name": "lerp"}, {"op_id": 1, "name": "mm"}]
    verdict = build_report(build(events, ops=ops, steps=STEP))["overall"]["verdict"]
    assert verdict["bound_by"] == "tensor-bound"
    assert verdict["gain_upper_bound_ns"] == 300_000
    assert verdict["advice"]["text"] == "hiding DMA behind compute, first in lerp"


def test_exposed_dma_of_the_longest_operator_is_named_when_nothing_is_busy() -> None:
    issue = [event(SYNC, 2_000 * i, 600, category="sync", op_id=0) for i in range(300)]
    loads = [load(2_000 * i + 600, 100, 0.1, op_id=0) for i in range(300)]
    events = [*issue, *loads, event(VECTOR, 600_000, 400_000, op_id=1)]
    extra = [event(SYNC, 2_000 * i + 700, 1_300, category="sync", op_id=0) for i in range(300)]
    ops: list[Row] = [{"op_id": 0, "name": "adamw"}, {"op_id": 1, "name": "relu"}]
    verdict = build_report(build([*events, *extra], ops=ops, steps=STEP))["overall"]["verdict"]
    assert verdict["bound_by"] == "latency-bound"
    assert verdict["gain_upper_bound_ns"] == 600_000
    assert "fewer, larger DMAs" in verdict["advice"]["text"]
    assert "first in adamw" in verdict["advice"]["text"]


@pytest.mark.parametrize(
    ("events", "bound"),
    [
        ([matmul(0, 80, op_id=0), load(0, 70, 0.9, op_id=0)], "tensor-bound"),
        ([event(VECTOR, 0, 80, op_id=0), load(0, 70, 0.9, op_id=0)], "vector-bound"),
        ([load(0, 80, 0.9, op_id=0)], "DMA-bandwidth-bound"),
        ([load(0, 80, 0.2, op_id=0)], "DMA-issue-bound"),
        (
            [event(SYNC, 0, 80, category="sync", op_id=0), load(40, 60, 0.9, op_id=0)],
            "DMA-issue-bound",
        ),
        ([event(VECTOR, 0, 0, op_id=0)], "latency-bound"),
    ],
)
def test_what_bounds_an_operator(events: list[Row], bound: str) -> None:
    report = build_report(build(events, ops=[{"op_id": 0, "name": "mm"}], steps=STEP))
    assert [(o["name"], o["bound_by"]) for o in report["overall"]["operators"]] == [("mm", bound)]


def test_operators_of_repeated_layers_are_one() -> None:
    paths = ["layers.0.mlp", "layers.11.mlp", "layer1.0.conv2d", None]
    ops: list[Row] = [{"op_id": i, "name": "mm", "module_path": p} for i, p in enumerate(paths)]
    ops[3] = {**ops[3], "parent_id": 4}
    ops.append({"op_id": 4, "kind": "module", "name": "Head", "module_path": "head"})
    labels, numbers = operator_labels(build(ops=ops).ops)
    modules = dict(labels.select("operator", "module").rows())
    found = [modules[n] for n in numbers.sort("op_id").collect()["operator"]]
    assert found == ["layers.*.mlp", "layers.*.mlp", "layer1.0.conv2d", "head", "head"]


DEGENERATE: dict[str, Trace] = {
    "nothing": build(tracks=[]),
    "no events": build(),
    "no events but a step": build(steps=[step(0, 0, 10)]),
    "one event": build([event(TENSOR, 5, 10)]),
    "one instant": build([event(TENSOR, 5, 0)]),
    "only open events": build([event(TENSOR, 5, None), event(DMA0, 6, None)], steps=STEP),
    "a step of no length": build([event(TENSOR, 5, 10)], steps=[step(0, 5, 5)]),
    "host only": build(
        [event(50, LATE, 50, name="f\x1b[31m"), event(51, LATE, 20)], tracks=THREADS
    ),
    "host only, steps": build(
        [event(50, LATE, 50)], tracks=THREADS, steps=[step(0, LATE, LATE + 60, clock_id=1)]
    ),
    "device and host": build(
        [event(TENSOR, 5, 10), event(50, LATE, 10)], tracks=[*core_tracks(), *THREADS]
    ),
    "negative duration": build([event(TENSOR, 5, -10), event(TENSOR, 20, 10)]),
    "long names": build([event(TENSOR, 0, 10, name="ü" * 10_000)]),
    "unknown peaks": build(
        [matmul(0, 10), load(0, 10, 0.5)],
        tracks=[{**t, "peak_flops": None, "peak_bytes_per_s": None} for t in core_tracks()],
    ),
    "circular parents": build(
        [event(TENSOR, 0, 10)],
        tracks=[
            {"track_id": 9, "parent_id": TENSOR, "kind": "fabric", "name": "loop"},
            {"track_id": TENSOR, "parent_id": 9, "kind": "engine", "name": "Tensor"},
        ],
    ),
    "two device clocks": build(
        [event(TENSOR, 0, 10), event(TENSOR + 10, LATE, 10)],
        tracks=[{**t, "clock_id": int(t["track_id"] >= TENSOR + 10)} for t in core_tracks(2)],
    ),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_traces_are_told_in_json_and_text(name: str) -> None:
    report = build_report(DEGENERATE[name])
    json.dumps(report, allow_nan=False)
    text = render_text(report)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(c.isprintable() or c == "\n" for c in text)


def test_clocks_are_never_mixed() -> None:
    report = build_report(DEGENERATE["device and host"])
    assert report["overall"]["end_ns"] == 15
    assert [(c["clock_id"], c["events"], c["span_ns"]) for c in report["clocks"]] == [
        (0, 1, 10),
        (1, 1, 10),
    ]
    assert report["host"][0]["active_time"] == pytest.approx(10e-9)
    two = build_report(DEGENERATE["two device clocks"])
    assert two["overall"]["end_ns"] == 10
    assert any("clock" in note for note in two["notes"])


@pytest.mark.parametrize("host_first", [True, False])
def test_device_figures_use_steps_of_the_devices_clock(tmp_path: Path, host_first: bool) -> None:
    report = build_report(open_trace(record_two_clocks(tmp_path / "t.trnprof", host_first)))
    found = [(s["step"], s["label"], s["start_ns"], s["end_ns"]) for s in report["steps"]]
    assert found == [(n, f"device {n}", start, end) for n, (start, end) in enumerate(DEVICE_STEPS)]
    assert [s["metrics"]["tensor_engine_active_time_percent"] for s in report["steps"]] == [
        0.4,
        0.2,
    ]
    assert (report["overall"]["start_ns"], report["overall"]["end_ns"]) == (0, 300)
    assert report["notes"] == []


def test_steps_of_another_clock_are_no_windows_of_the_device() -> None:
    trace = build([event(TENSOR, 0, 10)], steps=[step(0, 0, 5, clock_id=1)])
    report = build_report(trace)
    assert report["steps"] == []
    assert report["overall"]["end_ns"] == 10
    (note,) = report["notes"]
    assert (
        note == "no steps were marked on clock 0, only on others: figures are for the whole trace"
    )


def test_host_steps_of_several_clocks_are_not_mixed() -> None:
    steps = [
        step(0, 0, 5),
        step(0, LATE, LATE + 60, clock_id=1),
        step(1, LATE + 60, LATE + 70, clock_id=1),
    ]
    report = build_report(build([event(50, LATE, 50)], tracks=THREADS, steps=steps))
    assert [(s["start_ns"], s["end_ns"]) for s in report["steps"]] == [
        (LATE, LATE + 60),
        (LATE + 60, LATE + 70),
    ]
    assert report["notes"] == [
        "steps are those of clock 1; 1 of other clocks share no axis with it"
    ]


def test_open_events_are_counted_and_take_no_time() -> None:
    report = build_report(DEGENERATE["only open events"])
    assert "2 events were still open" in " ".join(report["notes"])
    assert "nothing_to_say" in report["overall"]["verdict"]


def test_host_only_says_why_there_is_nothing() -> None:
    report = build_report(DEGENERATE["host only, steps"])
    assert report["steps"][0]["metrics"]["nothing_to_say"].startswith("because")
    assert "nothing to say, because" in render_text(report)


def test_unknown_step_is_refused_with_those_there_are() -> None:
    trace = build([matmul(0, 10)], steps=[step(0, 0, 10), step(1, 10, 20)])
    with pytest.raises(TrnprofError, match=r"no step 7; it has steps 0\.\.1"):
        build_report(trace, step=7)


def test_text_closes_and_aligns() -> None:
    events = [matmul(0, 500_000), load(400_000, 300_000, 0.5)]
    report = build_report(
        build(events, steps=STEP, manifest={"is_simulation": True, "system": {"name": "trn2"}})
    )
    lines = render_text(report).splitlines()
    parts = {
        line.split()[0]: line
        for line in lines
        if line.endswith("%") and ("µs" in line or "ms" in line)
    }
    assert parts["compute"].endswith("50.0 %")
    assert parts["idle"].endswith("30.0 %")
    assert parts["sum"].endswith("100.0 %")
    breakdown = report["overall"]["breakdown"]
    assert (
        breakdown["compute_ns"] + breakdown["exposed_dma_ns"] + breakdown["idle_ns"]
        == breakdown["total_ns"]
    )
    assert "emulated" in lines[0]


def test_a_number_stays_with_its_unit_at_the_end_of_a_line() -> None:
    events = [matmul(0, 500_000), load(400_000, 300_000, 0.5)]
    report = build_report(build(events, steps=STEP))
    for pad in range(60, 80):
        text = render_text({**report, "notes": ["x" * (pad - 10) + " 12 %, 3 µs"]})
        assert not any(re.match(r" *(%|µs)", line) for line in text.splitlines())
        assert "\0" not in text


@pytest.mark.parametrize(
    ("share", "width", "drawn"), [(0.5, 4, "██"), (0.28125, 4, "█▏"), (0.0, 4, ""), (2.0, 3, "███")]
)
def test_bars_are_drawn_in_eighths(share: float, width: int, drawn: str) -> None:
    assert bar(share, width) == drawn
