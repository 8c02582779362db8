"""Audit checks of a stage: each fault is found, counted and exemplified, and a clean profile has none of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.ingest.check_lanes import find_overlaps
from trnprof.tracer.ingest.checks import audit_sources, audit_stage
from trnprof.tracer.ingest.names import natural_key
from trnprof.tracer.ingest.stage import UNFINISHED, Stage, Timeline

US = 1000
STEPS, KERNELS = 4, 8
_serial = itertools.count()

Row = tuple[int, int]


class Profile:
    """A thread and two streams of one GPU; steps of 1 ms with eight kernels of 80 µs each."""

    def __init__(self, directory: Path) -> None:
        self.stage = Stage(directory / f"stage{next(_serial)}", "rank0.json")
        self.thread = self.stage.timeline("t", Timeline("thread", "python"))
        self.chip = self.stage.timeline("c", Timeline("chip", "GPU 0", chip=0))
        self.streams = [
            self.stage.timeline(n, Timeline("stream", f"stream {n}", self.chip, exclusive=True))
            for n in (7, 20)
        ]

    def add(
        self,
        where: int,
        rows: list[Row],
        name: str = "gemm",
        category: str = "compute",
        step: list[int] | None = None,
    ) -> None:
        starts, ends = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        columns: dict[str, Any] = {} if step is None else {"step": step}
        self.stage.add_events(
            timeline=where, start_ns=starts, end_ns=ends, name=name, category=category, **columns
        )

    def steps(self, numbers: list[int]) -> None:
        self.stage.add_steps(
            {
                "step": list(range(len(numbers))),
                "start_ns": [1000 * US * i for i in range(len(numbers))],
                "end_ns": [1000 * US * (i + 1) for i in range(len(numbers))],
                "label": [f"ProfilerStep#{n}" for n in numbers],
                "source": ["profiler"] * len(numbers),
            }
        )

    def good(self, with_step: bool = True) -> Profile:
        self.steps([10, 11, 12, 13])
        for step in range(STEPS):
            starts = [1000 * US * step + 100 * US * i for i in range(KERNELS)]
            self.add(self.thread, [(t, t + 20 * US) for t in starts], "aten::mm", "host")
            kernels = [(t + 30 * US, t + 110 * US) for t in starts]
            self.add(self.streams[0], kernels, step=[step] * KERNELS if with_step else None)
        return self

    def audit(self) -> dict[str, Finding]:
        self.stage.close()
        audit_stage(self.stage)
        found = self.stage.audit.findings
        assert len({f.kind for f in found}) == len(found)
        return {f.kind: f for f in found}


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return Profile(tmp_path)


@pytest.mark.parametrize("with_step", [True, False])
def test_a_clean_profile_has_no_findings(profile: Profile, with_step: bool) -> None:
    assert profile.good(with_step).audit() == {}


def test_an_empty_stage_and_one_without_device_events(tmp_path: Path) -> None:
    assert Profile(tmp_path).audit() == {}
    host = Profile(tmp_path)
    host.add(host.thread, [(0, 10)], "f", "host")
    assert list(host.audit()) == ["no_device_events"]


def test_a_kernel_that_runs_over_its_successors_is_named(profile: Profile) -> None:
    profile.good()
    profile.add(profile.streams[0], [(30 * US + 1, 460 * US)], "runaway", step=[0])
    found = profile.audit()
    covering = found["covering_events"]
    assert covering.count == 1
    assert covering.example.startswith("runaway")
    assert "3 whole successors" in covering.message
    assert found["overlapping_exclusive"].count == 5


def test_overlap_states_sum_and_union(profile: Profile) -> None:
    profile.add(profile.streams[1], [(0, 100), (60, 160), (160, 200)])
    found = profile.audit()["overlapping_exclusive"]
    assert found.count == 1
    assert "sum to 240 ns, but cover 200 ns" in found.message
    assert "40 ns before" in found.example


def test_an_event_without_length_overlaps_nothing(profile: Profile) -> None:
    profile.add(profile.streams[1], [(0, 900 * US), (300 * US, 300 * US), (900 * US, 990 * US)])
    assert not {"overlapping_exclusive", "covering_events"} & profile.audit().keys()


def test_one_event_of_a_wrong_length_and_steps_without_events(profile: Profile) -> None:
    """Fault 33: the aggregate looks healthy."""
    profile.steps([10, 11, 12, 13])
    for i in range(6):
        t = 100 * US * i
        profile.add(profile.streams[0], [(t, t + 50 * US)], step=[0])
        profile.add(profile.thread, [(t, t + 5)], "f", "host")
    profile.add(profile.streams[0], [(1000 * US, 3900 * US)], "monster", step=[1])
    found = profile.audit()
    assert found["dominant_event"].count == 1
    assert found["dominant_event"].example.startswith("monster: 2.9 ms, 74.4 %")
    silent = found["steps_without_device_events"]
    assert (silent.count, silent.of) == (2, 4)
    assert silent.example == "ProfilerStep#12"


def test_a_collective_that_takes_most_of_its_step_is_only_noted(profile: Profile) -> None:
    profile.good()
    profile.add(profile.streams[1], [(30 * US, 790 * US)], "ncclAllReduce", "collective", [0])
    found = profile.audit()
    assert found["dominant_collective"].severity == "note"
    assert found["dominant_collective"].example.startswith("ncclAllReduce")
    assert "dominant_event" not in found


def test_steps_by_time_where_events_name_none(profile: Profile) -> None:
    profile.steps([1, 2])
    profile.add(profile.streams[0], [(100, 200), (300, 400)])
    assert profile.audit()["steps_without_device_events"].example == "ProfilerStep#2"


def test_gaps_in_step_numbers(profile: Profile) -> None:
    profile.steps([10, 11, 14, 15])
    found = profile.audit()["missing_steps"]
    assert found.count == 2
    assert found.example == "step 11 is followed by step 14"


def test_counters_out_of_range(profile: Profile) -> None:
    profile.good()
    stage = profile.stage
    throttle = stage.timeline("x", Timeline("counter", "throttle", unit="fraction"))
    memory = stage.timeline("m", Timeline("counter", "memory", unit="B"))
    delta = stage.timeline("d", Timeline("counter", "delta", unit="1"))
    stage.add_counters(timeline=throttle, timestamp_ns=[1, 2, 3], value=[1.0, 253.0, 0.0])
    stage.add_counters(timeline=memory, timestamp_ns=[4, 5], value=[-8.0, 16.0])
    stage.add_counters(timeline=delta, timestamp_ns=[4], value=[-8.0])
    found = profile.audit()["counter_out_of_range"]
    assert found.count == 2
    assert found.example == "throttle = 253 (fraction) at 2 ns"


def test_a_million_events_is_no_accident(tmp_path: Path) -> None:
    """Fault 31: the exporter stopped, and every lane with it."""
    profile = Profile(tmp_path)
    count = 500_000
    starts = np.arange(count, dtype=np.int64) * 10
    for where in profile.streams:
        profile.stage.add_events(
            timeline=where, start_ns=starts, end_ns=starts + 5, name="k", category="compute"
        )
    assert profile.audit()["event_limit"].example == "1,000,000"
    other = Profile(tmp_path).good()
    assert "event_limit" not in other.audit()


def test_lanes_that_stop_long_before_the_profile_ends(profile: Profile) -> None:
    ends = [(10 * US * i, 10 * US * i + 8 * US) for i in range(200)]
    profile.add(profile.streams[0], ends[:120])
    profile.add(profile.streams[1], ends[:120], "copy", "dma")
    profile.add(profile.thread, ends, "f", "host")
    found = profile.audit()["lanes_stop_early"]
    assert found.example == f"GPU 0 at {1198 * US} ns"


def test_a_pause_as_long_as_the_last_one_is_no_fault(profile: Profile) -> None:
    ends = [(10 * US * i, 10 * US * i + 8 * US) for i in range(200)]
    profile.add(profile.streams[0], [*ends[:60], *ends[100:160]])
    profile.add(profile.thread, ends, "f", "host")
    assert profile.audit() == {}


def test_instants_of_the_device_are_noted_and_markers_are_not(profile: Profile) -> None:
    profile.good()
    profile.add(profile.streams[1], [(5, 5), (6, 6)], "empty")
    profile.add(profile.streams[1], [(7, 7)], "mark", "marker")
    found = profile.audit()
    assert list(found) == ["zero_duration"]
    assert found["zero_duration"].count == 2


def test_nanoseconds_written_as_microseconds_are_suspected(profile: Profile) -> None:
    for i in range(30):
        t = 100_000_000 * i
        profile.add(profile.thread, [(t, t + 20_000_000)], "aten::mm", "host")
        profile.add(profile.streams[0], [(t + 30_000_000, t + 90_000_000)])
    assert list(profile.audit()) == ["suspicious_time_unit"]


def test_impossible_times_are_left_to_quarantine(profile: Profile) -> None:
    profile.good()
    century = 236 * 365 * 86_400 * 10**9
    profile.add(
        profile.streams[0], [(31 * US, century), (131 * US, UNFINISHED), (231 * US, 230 * US)]
    )
    assert profile.audit() == {}


def test_late_steps_replace_those_given_with_the_rows(profile: Profile) -> None:
    profile.good(with_step=False)
    rows = profile.stage.rows
    profile.stage.set_late("step", np.zeros(rows, np.int32))
    assert profile.audit()["steps_without_device_events"].count == 3


def test_ranks_missing_twice_and_beyond() -> None:
    found = {f.kind: f for f in audit_sources({"a": 0, "b": 2, "c": 2, "d": 9}, 8)}
    assert found["missing_ranks"].count == 6
    assert "1, 3..7" in found["missing_ranks"].message
    assert found["duplicate_rank"].example == "rank 2: b, c"
    assert found["rank_beyond_world"].where == "d"
    assert audit_sources({"a": 0, "b": 1}, 2) == []
    assert audit_sources({"a": 0, "b": 1}, None) == []
    assert [f.kind for f in audit_sources({"a": 0, "b": 3}, None)] == ["missing_ranks"]
    assert audit_sources({}, None) == []


intervals = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 12)), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(intervals)
def test_overlaps_against_sets_of_integers(rows: list[tuple[int, int, int]]) -> None:
    """Timelines 0..2 are exclusive; fingerprints all differ."""
    timeline = np.array([r[0] for r in rows], np.int32)
    start = np.array([r[1] for r in rows], np.int64)
    end = start + np.array([r[2] for r in rows], np.int64)
    found = find_overlaps(
        timeline, start, end, np.arange(1, len(rows) + 1, dtype=np.uint64), timeline < 3
    )
    order = sorted(range(len(rows)), key=lambda i: (timeline[i], start[i], -end[i], i))
    late, covering, covered, total, union = [], set(), 0, 0, 0
    for lane in range(3):
        own = [i for i in order if timeline[i] == lane]
        hit = False
        for n, i in enumerate(own):
            earlier = [j for j in own[:n] if end[j] > start[i]]
            if earlier and end[i] > start[i]:
                late.append(i)
                hit = True
                longest = max(end[j] for j in earlier)
                if end[i] <= longest:
                    covered += 1
                    covering.add(next(j for j in earlier if end[j] == longest))
        if hit:
            total += int(sum(end[i] - start[i] for i in own))
            union += len({t for i in own for t in range(start[i], end[i])})
    assert found.late.tolist() == late
    assert found.covered == covered
    assert set(found.covering.tolist()) == covering
    assert (found.sum_ns, found.union_ns) == (total, union)


def test_missing_ranks_of_a_job_of_any_size_are_counted_not_listed() -> None:
    (found,) = audit_sources({"a": 1, "b": 5}, 2_000_000_000)
    assert found.count == 2_000_000_000 - 2
    assert found.message.endswith(": 0, 2..4, 6..1999999999")


def test_numbers_that_no_machine_has_are_not_believed(tmp_path: Path) -> None:
    with Stage(tmp_path / "stage", "x") as stage:
        stage.timeline(0, Timeline("chip", "GPU", rank=5_000_000_000, chip=-1, core=3))
    assert [(t.rank, t.chip, t.core) for t in stage.timelines] == [(None, None, 3)]


@given(st.lists(st.text("0129aB_.", max_size=6)))
def test_names_sort_whatever_they_begin_with(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key)) == sorted(names)
