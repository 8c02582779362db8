"""Charts: their figures against sums by hand, and what is left out against what is said to be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.analysis.traces import DMA0, TENSOR, build, core_tracks, event, frame, step

from trnprof.analysis.charts.chart import MAX_ROWS
from trnprof.analysis.charts.memory_over_time import build as memory
from trnprof.analysis.charts.registry import CHARTS, build_chart
from trnprof.analysis.charts.roofline import build as roofline
from trnprof.analysis.charts.step_breakdown import MAX_STEPS
from trnprof.analysis.charts.step_breakdown import build as breakdown
from trnprof.analysis.sections.section import Subject
from trnprof.analysis.sections.subject import subject_of
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES


def counted(samples: list[tuple[int, float]]) -> Subject:
    counter = {
        "track_id": 90,
        "parent_id": 2,
        "kind": "counter",
        "name": "HBM bytes",
        "rank": 0,
        "unit": "B",
    }
    rows = [{"track_id": 90, "timestamp_ns": at, "value": value} for at, value in samples]
    end = samples[-1][0] + 10
    trace = build(
        [event(TENSOR, 0, end)], tracks=[*core_tracks(), counter], steps=[step(0, 0, end)]
    )
    return subject_of(replace(trace, counters=frame(TABLES["counters"], rows).lazy()))


def test_no_peak_of_memory_is_lost_among_many_samples() -> None:
    values = [float(7 * i % 101) for i in range(50_000)]
    values[31_337] = 1e9
    values[4_242] = -5.0
    chart = memory(counted([(10 * i, v) for i, v in enumerate(values)]))
    shown = [(row["at_ns"], row["value"]) for row in chart.rows]
    assert (313_370, 1e9) in shown
    assert (42_420, -5.0) in shown
    assert set(shown) <= {(10 * i, v) for i, v in enumerate(values)} | {(500_000, values[-1])}
    assert len(shown) <= MAX_ROWS + 10
    assert any("50,000 samples" in note for note in chart.notes)


def test_few_samples_of_memory_are_all_shown() -> None:
    samples = [(0, 1.0), (5, 9.0), (7, 2.0)]
    chart = memory(counted(samples))
    assert [(r["at_ns"], r["value"]) for r in chart.rows] == [*samples, (17, 2.0)]
    assert chart.notes == ()


def many_steps(count: int) -> Trace:
    """Step i takes 100 + i ns, of which Tensor computes 40; step 17 takes 9,000."""
    events, steps, at = [], [], 0
    for number in range(count):
        length = 9_000 if number == 17 else 100 + number
        events.append(event(TENSOR, at, 40, step=number))
        steps.append(step(number, at, at + length))
        at += length
    return build(events, steps=steps)


@pytest.mark.parametrize("count", [3, 300])
def test_steps_add_up_and_the_longest_and_the_shortest_stay(count: int) -> None:
    chart = breakdown(subject_of(many_steps(count)))
    sums: dict[str, float] = {}
    for row in chart.rows:
        sums[row["step"]] = sums.get(row["step"], 0) + row["duration_ns"]
    assert sums == {n: 9_000 if n == "17" else 100 + int(n) for n in sums}
    assert len(sums) <= MAX_STEPS
    assert ("17" in sums, "0" in sums) == (count > 17, True)
    assert (count > MAX_STEPS) == any(f"of {count} steps" in note for note in chart.notes)


def test_a_roofline_point_is_flops_over_bytes_and_over_time() -> None:
    op = {"op_id": 0, "name": "mm", "module_path": "layers.0"}
    moved = {"category": "dma", "op_id": 0, "bytes": 4_000, "source_memory": "hbm", "target_memory": "sbuf"}  # fmt: skip
    trace = build(
        [
            event(TENSOR, 0, 100, op_id=0, flops=8e6, dtype="bfloat16"),
            event(DMA0, 50, 150, **moved),
        ],
        ops=[op],
        steps=[step(0, 0, 400)],
    )
    chart = roofline(subject_of(trace))
    (point,) = chart.rows
    assert point["intensity"] == 2_000
    assert point["achieved_flops_per_s"] == 8e6 / 200e-9
    peak = max(line["achieved_flops_per_s"] for line in chart.lines)
    assert point["achieved_flops_per_s"] <= peak


DEGENERATE = {
    "nothing on the device": build([], tracks=core_tracks()),
    "no device": build([], tracks=[{"track_id": 0, "kind": "host", "name": "host0"}]),
    "one instant": build([event(TENSOR, 5, 0)], tracks=core_tracks()),
    "unfinished": build([event(TENSOR, 5, None)], tracks=core_tracks()),
    "a step of no length": build([event(TENSOR, 5, 3)], steps=[step(0, 5, 5)]),
    "a long name": build([event(TENSOR, 0, 9, name="ü" * 10_000)]),
}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("trace", DEGENERATE.values(), ids=DEGENERATE)
def test_a_chart_without_data_says_why(name: str, trace: Trace) -> None:
    chart = build_chart(name, subject_of(trace))
    assert chart.key == name
    assert bool(chart.rows) != bool(chart.nothing_to_say)
    if chart.nothing_to_say:
        assert chart.nothing_to_say.startswith("because ")


def test_charts_have_at_most_so_many_rows() -> None:
    events = [event(TENSOR, 10 * i, 5, name=f"op{i}") for i in range(5_000)]
    subject = subject_of(build(events, steps=[step(0, 0, 50_000)]))
    for name in CHARTS:
        assert len(build_chart(name, subject).rows) <= MAX_ROWS + 10
