"""Steps: variation, warm-up, steps out of line, drift; every figure against plain loops, and planted oddities found."""

from __future__ import annotations

from itertools import combinations
from statistics import mean, median, pstdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.traces import DMA0, TENSOR, Row, build, core_tracks, event, step

from trnprof.analysis import step_variation
from trnprof.analysis.breakdown import PARTS, step_breakdown
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.section import Section, Subject, as_json
from trnprof.analysis.sections.steps import build as build_section
from trnprof.analysis.sections.text import section_lines
from trnprof.analysis.step_variation import (
    MIN_TREND_STEPS,
    TREND_Z,
    by_rank,
    by_step,
    explained,
    out_of_line,
    rank_steps,
    trend,
    warm_up_steps,
)
from trnprof.tracer.reader import Trace

LENGTHS = st.lists(st.integers(90, 112) | st.integers(0, 400), min_size=1, max_size=14)


def limit(values: list[int]) -> tuple[float, float]:
    """Median, and how far a value may be from it."""
    middle = float(median(values))
    mad = float(median(abs(v - middle) for v in values))
    return middle, max(3.5 * 1.4826 * mad, 0.05 * abs(middle))


def steps_trace(by_rank: dict[int, list[int]], events: list[Row] | None = None) -> Trace:
    """Ranks whose steps follow each other, each of its own lengths; those of odd ranks begin a day later."""
    rows = []
    for rank, lengths in by_rank.items():
        at = 86_400_000_000_000 * (rank % 2)
        for number, length in enumerate(lengths):
            rows.append(step(number, at, at + length, rank=rank))
            at += length
    tracks = core_tracks(len(by_rank))
    return build([event(TENSOR, 0, 1)] if events is None else events, tracks=tracks, steps=rows)


def frames(trace: Trace) -> tuple[Any, Any]:
    scope = device_scope(trace)
    assert scope is not None
    return scope, rank_steps(scope)


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=2, max_size=3))
def test_against_plain_loops(lengths: list[list[int]]) -> None:
    times = dict(enumerate(lengths))
    scope, rows = frames(steps_trace(times))
    count = max(map(len, lengths))
    here = [{r: t[s] for r, t in times.items() if s < len(t)} for s in range(count)]
    steps = by_step(rows).to_dicts()
    for number, found in enumerate(steps):
        assert found["duration_ns"] == max(here[number].values())
        assert found["shortest_ns"] == min(here[number].values())
        assert here[number][found["longest_rank"]] == found["duration_ns"]
    for found in by_rank(rows).to_dicts():
        own = times[found["rank"]]
        assert (found["steps"], found["min_ns"], found["max_ns"]) == (len(own), min(own), max(own))
        assert found["median_ns"] == median(own)
        if sum(own) and len(own) > 1:
            assert found["cv"] == pytest.approx(pstdev(own) / mean(own))
        others = [
            max((t for r, t in ts.items() if r != found["rank"]), default=None) for ts in here
        ]
        alone = [s for s, other in enumerate(others) if other is not None and s < len(own) and own[s] > other]  # fmt: skip
        assert found["times_longest"] == len(alone)

    longest = [max(ts.values()) for ts in here]
    warm_up = 0
    if count >= 3:
        middle, room = limit(longest[count // 2 :])
        while longest[warm_up] > middle + room:
            warm_up += 1
    assert warm_up_steps(np.array(longest)) == warm_up

    marked = out_of_line(rows, warm_up)
    for found in marked.to_dicts():
        own = times[found["rank"]][warm_up:]
        is_out = False
        if found["step"] >= warm_up and len(own) >= 4:
            middle, room = limit(own)
            is_out = abs(found["duration_ns"] - middle) > room
        assert (found["is_warm_up"], found["is_out"]) == (found["step"] < warm_up, is_out)
    parts = step_breakdown(scope).to_dicts()
    for found in explained(scope, marked).to_dicts():
        normal = [
            m["step"]
            for m in marked.to_dicts()
            if m["unit_id"] == found["unit_id"] and not m["is_warm_up"] and not m["is_out"]
        ]
        own = [p for p in parts if p["unit_id"] == found["unit_id"]]
        for part in PARTS:
            usual = mean(own[n][part] for n in normal)
            assert found[f"{part}_differs_ns"] == pytest.approx(own[found["step"]][part] - usual)
        assert sum(found[f"{p}_differs_ns"] for p in PARTS) == pytest.approx(found["differs_ns"])
        towards = {p: found[f"{p}_differs_ns"] * (1 if found["differs_ns"] > 0 else -1) for p in PARTS}  # fmt: skip
        if found["differs_ns"]:
            assert towards[found["mostly"]] == max(towards.values())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=25))
def test_trend_against_all_pairs(times: list[int]) -> None:
    found = trend(np.array(times))
    pairs = list(combinations(range(len(times)), 2))
    score = sum((times[b] > times[a]) - (times[b] < times[a]) for a, b in pairs)
    n = len(times)
    ties = [times.count(t) for t in set(times)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    z = (score - (score > 0) + (score < 0)) / variance**0.5 if variance else 0.0
    if n < MIN_TREND_STEPS or abs(z) < TREND_Z:
        assert found is None
        return
    assert found is not None
    slope = median((times[b] - times[a]) / (b - a) for a, b in pairs)
    assert found.z == pytest.approx(z)
    assert found.ns_per_step == pytest.approx(slope)
    if median(times):
        assert found.total_share == pytest.approx(slope * (n - 1) / median(times))


def test_many_steps_are_thinned_and_keep_their_slope() -> None:
    found = trend(np.arange(5_000, 25_000, 2))
    assert found is not None
    assert found.ns_per_step == pytest.approx(2, rel=0.01)


def section_of(trace: Trace, **chosen: int) -> tuple[Section, dict[str, Any]]:
    section = build_section(Subject(trace, device_scope(trace), **chosen))
    assert all(len(line) <= 80 for line in section_lines(section))
    return section, as_json(section)


def planted() -> Trace:
    """Ten steps of 100 ns with 60 of compute; the first takes 300, the seventh 150 of rank 1, where a DMA runs 50 ns longer."""
    lengths = {0: [300] + [100] * 9, 1: [300] + [100] * 5 + [150] + [100] * 3}
    rows = []
    for rank, own in lengths.items():
        at = 86_400_000_000_000 * (rank % 2)
        for length in own:
            rows.append(event(TENSOR + 10 * rank, at, 60))
            extra = 50 if length == 150 else 0
            rows.append(event(DMA0 + 10 * rank, at + 60, 10 + extra, bytes=64))
            at += length
    return steps_trace(lengths, rows)


def test_planted_warm_up_and_step_out_of_line() -> None:
    section, found = section_of(planted())
    warm, odd = found["out_of_line"]
    assert (warm["step"], warm["is"], warm["ranks"], warm["differs_ns"]) == (0, "warm-up", 2, 200)
    assert (warm["mostly"], warm["mostly_ns"]) == ("idle", 200)
    assert (odd["step"], odd["is"], odd["rank"], odd["ranks"]) == (6, "longer", 1, 1)
    assert (odd["mostly"], odd["mostly_ns"], odd["differs_ns"]) == ("exposed_dma", 50, 50)
    assert [s["is"] for s in found["steps"]] == ["warm-up", *[None] * 5, "out of line", *[None] * 3]
    assert any("the first step warms up" in n for n in section.notes)
    assert any("no trend" in n for n in section.notes)


def test_of_many_steps_some_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = section_of(planted())
    monkeypatch.setattr(step_variation, "MAX_USUAL", 2)
    monkeypatch.setattr(step_variation, "MAX_EXPLAINED", 1)
    section, few = section_of(planted())
    assert few["out_of_line"] == whole["out_of_line"][:1]  # the steps in line are alike
    assert section.tables[-1].total_rows == 2


def test_one_step_or_rank_is_shown_and_compared_with_all() -> None:
    _, found = section_of(planted(), step=6)
    assert [s["step"] for s in found["steps"]] == [6]
    assert [s["step"] for s in found["out_of_line"]] == [6]
    _, found = section_of(planted(), rank=0)
    assert [s["step"] for s in found["out_of_line"]] == [0]


def test_a_drift_is_told() -> None:
    section, _ = section_of(steps_trace({0: [1000 + 10 * n for n in range(12)]}))
    [told] = [n for n in section.notes if "a step, " in n]
    assert told == "steps grow longer: 10 ns a step, 10.4 % of the median from first to last"


def test_without_steps_it_says_why() -> None:
    for trace in (build(), build([event(TENSOR, 0, 5)]), build(steps=[step(0, 0, 9, clock_id=7)])):
        section = build_section(Subject(trace, device_scope(trace)))
        assert section.nothing_to_say is not None
    assert build_section(Subject(build(), None)).nothing_to_say
    _, found = section_of(build(steps=[step(0, 5, 5), step(1, 5, 5)]))
    assert found["variation"][0]["cv"] is None
