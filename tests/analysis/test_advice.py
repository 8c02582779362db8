"""Phases and advice in the report: what it says of the optimizer, of idle engines and of rooflines that mean nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.traces import (
    BANDWIDTH,
    DMA0,
    PEAK_FLOPS,
    SCALAR,
    TENSOR,
    VECTOR,
    Row,
    build,
    event,
    step,
)

from trnprof.analysis.phases import PHASES
from trnprof.analysis.render_text import _closing, render_text
from trnprof.analysis.report import build_report

STEP = [step(0, 0, 1_000_000)]
FUSED = {"emulation": {"execution": "fused"}}
EAGER = {"emulation": {"execution": "eager"}}


def matmul(start_ns: int, duration_ns: int, **columns: Any) -> Row:
    flops = PEAK_FLOPS * duration_ns / 1e9
    return event(TENSOR, start_ns, duration_ns, flops=flops, dtype="bfloat16", **columns)


def load(start_ns: int, duration_ns: int, **columns: Any) -> Row:
    moved = round(0.9 * BANDWIDTH * duration_ns / 1e9)
    memories = {"source_memory": "hbm", "target_memory": "sbuf"}
    return event(DMA0, start_ns, duration_ns, bytes=moved, **memories, **columns)


def training(names: list[str], manifest: dict[str, Any]) -> dict[str, Any]:
    """Forward 0.2 ms, backward 0.4 ms, and an optimizer of kernels with these names in 0.3 ms; 0.1 ms idle."""
    ops: list[Row] = [
        {"op_id": 0, "name": "mm", "phase": "forward"},
        {"op_id": 1, "name": "mm", "phase": "backward"},
    ]
    events = [matmul(0, 200_000, op_id=0), matmul(200_000, 400_000, op_id=1)]
    length = 300_000 // len(names)
    for i, name in enumerate(names):
        ops.append({"op_id": 2 + i, "name": name, "phase": "optimizer"})
        at = 600_000 + i * length
        events.append(load(at, length // 2, op_id=2 + i))
        events.append(event(VECTOR, at + length // 2, length - length // 2, op_id=2 + i))
    return build_report(build(events, ops=ops, steps=STEP, manifest=manifest))


def test_phases_stand_beside_where_the_step_goes_and_close() -> None:
    report = training(["lerp_", "addcmul_"] * 15, FUSED)
    phases = report["overall"]["phases"]
    assert phases == {
        "total_ns": 1_000_000,
        "forward_ns": 200_000,
        "backward_ns": 400_000,
        "optimizer_ns": 300_000,
        "other_ns": 0,
        "idle_ns": 100_000,
    }
    assert sum(phases[f"{p}_ns"] for p in PHASES) == phases["total_ns"]
    (line,) = [x for x in render_text(report).splitlines() if "Where the step goes" in x]
    assert line.split()[4:] == [
        *("forward", "200.00", "backward", "400.00", "optimizer", "300.00", "µs"),
    ]


def test_many_phases_take_a_second_line_and_none_take_nothing() -> None:
    others = [event(VECTOR, 950_000, 50_000)]
    ops: list[Row] = [
        {"op_id": i, "name": "mm", "phase": p}
        for i, p in enumerate(("forward", "backward", "optimizer"))
    ]
    events = [matmul(300_000 * i, 300_000, op_id=i) for i in range(3)]
    text = render_text(build_report(build([*events, *others], ops=ops, steps=STEP)))
    assert "optimizer 300.00  other 50.00 µs" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    silent = render_text(build_report(build(others, steps=STEP)))
    assert " Where the step goes\n" in silent


@pytest.mark.parametrize(
    ("names", "manifest", "said"),
    [
        (["lerp_", "addcmul_"] * 15, EAGER, "foreach=True or fused=True in the optimizer"),
        (["lerp_", "addcmul_"] * 15, FUSED, None),
        (["_foreach_lerp_", "_foreach_addcmul_"], EAGER, "fused=True in the optimizer"),
        (["_foreach_lerp_", "_foreach_addcmul_"], FUSED, None),
        (["_fused_adamw_"], EAGER, None),
        (["lerp_"] * 5, EAGER, None),
    ],
)
def test_the_form_of_a_slow_optimizer_is_proposed(
    names: list[str], manifest: dict[str, Any], said: str | None
) -> None:
    verdict = training(names, manifest)["overall"]["verdict"]
    text = (verdict["advice"] or {"text": ""})["text"]
    assert not any(name in text for name in names)
    if said is None:
        assert "=True" not in text
        return
    assert text.startswith(f"{said} (it takes 30.0 % of the step in {len(names)} kernels")
    # half of the optimizer's time is DMA at 90 % of bandwidth; two operators share it
    floor_ns = 0.9 * 150_000 / 2
    assert verdict["gain_upper_bound_ns"] == pytest.approx(300_000 - floor_ns, rel=1e-3)


def test_creating_the_state_counts_as_no_kernel() -> None:
    report = training(["zeros_like"] * 30 + ["lerp_"] * 5, EAGER)
    assert report["overall"]["optimizer"] == {
        "form": "single",
        "kernel_count": 5,
        "is_merged": False,
    }
    assert "=True" not in report["overall"]["verdict"]["advice"]["text"]


def test_an_engine_with_little_work_is_not_said_to_wait() -> None:
    events = [
        *(matmul(i * 100_000, 30_000, wait_reason="data" if i else None) for i in range(10)),
        event(SCALAR, 500_000, 10_000, wait_reason="data"),
        event(SCALAR, 990_000, 5_000, wait_reason="data"),
    ]
    verdict = build_report(build(events, steps=STEP))["overall"]["verdict"]
    first, advice = verdict["sentences"][0], verdict["advice"]["text"]
    assert advice.startswith("more independent work")
    assert "the longest wait is Tensor's for data" in advice
    assert "Scalar" not in first + advice


def test_no_wait_is_told_when_no_engine_has_work() -> None:
    events = [event(SCALAR, 500_000 * i, 10_000, wait_reason="data") for i in range(2)]
    verdict = build_report(build(events, steps=STEP))["overall"]["verdict"]
    assert "wait" not in verdict["sentences"][0] + verdict["advice"]["text"]


def test_the_busiest_engine_is_told_once() -> None:
    events = [matmul(0, 400_000), event(VECTOR, 400_000, 100_000)]
    first = build_report(build(events, steps=STEP))["overall"]["verdict"]["sentences"][0]
    assert first.count("active 40.0 %") == 1
    assert "(Tensor is the busiest, nothing runs 50.0 %)" in first


def test_a_gap_to_the_roofline_names_the_operator_that_makes_it() -> None:
    """Tensor and Vector run all the time, so that neither can be relieved; the matmuls reach half of their peak."""
    ops: list[Row] = [{"op_id": 0, "name": "mm", "phase": "forward"}]
    half = {"flops": PEAK_FLOPS / 2 * 1e-3, "dtype": "bfloat16"}
    events = [event(TENSOR, 0, 1_000_000, op_id=0, **half), event(VECTOR, 0, 1_000_000)]
    verdict = build_report(build(events, ops=ops, steps=STEP))["overall"]["verdict"]
    assert verdict["roofline_gap"] == pytest.approx(2.0)
    assert "mm closer to its roofline (50.0 % of it now, tensor-bound)" in verdict["advice"]["text"]
    assert verdict["gain_upper_bound_ns"] == pytest.approx(500_000)


def test_a_negligible_roofline_is_no_ratio() -> None:
    memories = {"source_memory": "hbm", "target_memory": "sbuf"}
    report = build_report(
        build([event(DMA0, 0, 900_000, bytes=4, **memories), matmul(900_000, 1)], steps=STEP)
    )
    text = " ".join(render_text(report).split())
    assert "launch and latency only: the roofline is negligible" in text
    assert "roofline negligible" in text
    assert not re.search(r"\d+(\.\d+)?x\)", text)


@pytest.mark.parametrize(("model_share", "is_noted"), [(1.5, True), (0.9, False)])
def test_mfu_above_hfu_is_explained(model_share: float, is_noted: bool) -> None:
    flops = model_share * PEAK_FLOPS * 500e-6
    ops: list[Row] = [{"op_id": 0, "name": "attention", "model_flops": flops}]
    report = build_report(build([matmul(0, 500_000, op_id=0)], ops=ops, steps=STEP))
    assert any("causal attention" in note for note in report["notes"]) is is_noted


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 5_000), min_size=1, max_size=6))
def test_rounded_figures_sum_to_the_rounded_sum(values: list[float]) -> None:
    total = round(sum(values))
    found = _closing(values, total)
    assert sum(found) == total
    assert all(abs(f - v) <= 1 for f, v in zip(found, values, strict=True))


def test_shown_parts_of_the_step_sum_to_the_step_shown() -> None:
    events = [matmul(0, 333_333), load(333_333, 333_333)]
    lines = render_text(build_report(build(events, steps=STEP))).splitlines()
    shown = {
        line.split()[0]: [float(x) for x in re.findall(r"(\d+\.\d+) (?:µs|ms|%)", line)]
        for line in lines
        if re.match(r" (compute|exposed DMA|idle|sum) ", line)
    }
    total = shown.pop("sum")
    for column in range(2):
        assert sum(v[column] for v in shown.values()) == pytest.approx(total[column], abs=1e-9)
