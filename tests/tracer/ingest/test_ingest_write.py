"""What is staged is what is read back, and what cannot be is set aside and told."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.ingest.quarantine import DAY_NS
from trnprof.tracer.ingest.stage import UNFINISHED, Stage, Timeline
from trnprof.tracer.ingest.write import Shift, WriterPlan, write_stage
from trnprof.tracer.manifest import Clock, write_manifest
from trnprof.tracer.reader import Trace, open_trace

PLAN = WriterPlan("rank0", 0, Clock(0, "host", 1_000), Shift(), 3, "box")


def _staged(directory: Path, rows: list[tuple[int, int, int]], **columns: Any) -> Stage:
    """A closed stage with one stream and the events (start, end, fingerprint)."""
    with Stage(directory / "stage", "profile.json") as stage:
        chip = stage.timeline("gpu", Timeline("chip", "GPU 0", chip=0))
        stream = stage.timeline("s", Timeline("stream", "stream 7", parent=chip, exclusive=True))
        table = np.array(rows, np.int64).reshape(-1, 3)
        stage.add_events(
            timeline=stream,
            start_ns=table[:, 0],
            end_ns=table[:, 1],
            name=[f"kernel{i}" for i in range(len(rows))],
            category="compute",
            fingerprint=table[:, 2].astype(np.uint64),
            **columns,
        )
    return stage


def _written(stage: Stage, directory: Path, plan: WriterPlan = PLAN) -> Trace:
    root = directory / "run.trnprof"
    write_stage(stage, root, plan)
    write_manifest(root)
    return open_trace(root)


def _kinds(stage: Stage) -> dict[str, int]:
    return {f.kind: f.count for f in stage.audit.findings}


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(-50, 50), st.one_of(st.none(), st.integers(0, 30)), st.integers(0, 2)
        ),
        max_size=40,
    ),
    st.integers(1, 7),
    st.integers(-5, 5),
)
def test_what_is_staged_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[int, int | None, int]],
    block: int,
    offset_ns: int,
) -> None:
    directory = tmp_path_factory.mktemp("stage")
    with Stage(directory / "stage", "p") as stage:
        threads = [stage.timeline(i, Timeline("thread", f"thread {i}")) for i in range(3)]
        for first in range(0, len(events), block):
            part = events[first : first + block]
            start = np.array([e[0] for e in part], np.int64)
            stage.add_events(
                timeline=[threads[e[2]] for e in part],
                start_ns=start,
                end_ns=np.array([UNFINISHED if e[1] is None else e[0] + e[1] for e in part]),
                name=[str(first + i) for i in range(len(part))],
                category=["host"] * len(part),
            )
        stage.set_late("step", np.arange(len(events), dtype=np.int32))
        if len(events) > 1:
            rows = np.arange(len(events) - 1)
            stage.add_flows(rows, rows + 1, "launch", 4)
    plan = WriterPlan("w", 5, Clock(2, "host"), Shift(offset_ns), None, "h")
    trace = _written(stage, directory, plan)
    found = trace.events.collect().with_columns(pl.col("name").cast(pl.String))
    names = trace.tracks.select("track_id", track="name")
    rows_found = found.join(names, on="track_id").sort("step")
    assert rows_found.select("name", "start_ns", "duration_ns", "step", "track").rows() == [
        (str(i), start + offset_ns, length, i, f"thread {thread}")
        for i, (start, length, thread) in enumerate(events)
    ]
    ids = rows_found["event_id"].to_list()
    edges = trace.flows.collect().sort("source_event")
    assert sorted(zip(edges["source_event"], edges["target_event"], strict=True)) == sorted(
        itertools.pairwise(ids)
    )
    assert {p.kind for p in trace.validate()} <= {"unfinished"}


def test_the_tree_has_lanes_under_one_parent_and_no_idle_rows(tmp_path: Path) -> None:
    with Stage(tmp_path / "stage", "p") as stage:
        stage.timeline("unused", Timeline("thread", "idle thread"))
        chip = stage.timeline("gpu", Timeline("chip", "GPU 0", chip=0, peak_flops=1e12))
        stream = stage.timeline("s", Timeline("stream", "stream 7", parent=chip))
        stage.add_events(
            timeline=stream,
            start_ns=np.array([0, 5]),
            end_ns=np.array([10, 20]),
            name="k",
            category="compute",
        )
    tracks = _written(stage, tmp_path).tracks
    shown = tracks.select("kind", "name", "lane", "rank", "host").rows()
    assert shown == [
        ("host", "box", 0, None, "box"),
        ("chip", "GPU 0", 0, 3, "box"),
        ("stream", "stream 7", 0, 3, "box"),
        ("stream", "stream 7", 1, 3, "box"),
    ]
    assert tracks["parent_id"].to_list() == [None, 0, 1, 1]


def test_an_end_before_the_start_is_unfinished_and_leaves_the_lane_free(tmp_path: Path) -> None:
    stage = _staged(tmp_path, [(10, 5, 0), (20, 30, 0), (40, 50, 0)])
    trace = _written(stage, tmp_path)
    events = trace.events.sort("start_ns").collect()
    assert events["duration_ns"].to_list() == [None, 10, 10]
    lanes = events.join(trace.tracks, on="track_id", maintain_order="left")["lane"].to_list()
    assert lanes == [1, 0, 0]
    said = json.loads(events["attributes"][0])
    assert said == {"set_aside": {"start_ns": 10, "end_ns": 5}}
    assert _kinds(stage) == {"negative_duration": 1}


def test_centuries_are_no_duration(tmp_path: Path) -> None:
    century = 100 * 365 * DAY_NS
    stage = _staged(
        tmp_path, [(0, 10, 0), (20, 20 + 2 * century, 0), (50, 60, 0)], attributes=['{"a": 1}'] * 3
    )
    events = _written(stage, tmp_path).events.sort("start_ns").collect()
    assert events["duration_ns"].to_list() == [10, None, 10]
    assert json.loads(events["attributes"][1])["a"] == 1
    assert _kinds(stage) == {"impossible_duration": 1}


def test_a_long_event_that_could_be_is_kept(tmp_path: Path) -> None:
    # fault 14: a kernel over its successors: never altered, told elsewhere
    stage = _staged(tmp_path, [(0, 10, 0), (20, 1_600_000_000, 0), (50, 60, 0)])
    events = _written(stage, tmp_path).events.sort("start_ns").collect()
    assert events["duration_ns"].to_list() == [10, 1_600_000_000 - 20, 10]
    assert _kinds(stage) == {}


def test_a_missing_start_is_an_instant_set_aside(tmp_path: Path) -> None:
    # fault 05: ts 0 while all else begins at one second
    rows = [(1_000_000_000 + 100 * i, 1_000_000_050 + 100 * i, 0) for i in range(20)]
    stage = _staged(tmp_path, [*rows, (0, 0, 0)])
    trace = _written(stage, tmp_path)
    aside = trace.tracks.filter(pl.col("name") == "set aside")["track_id"].item()
    events = trace.events.filter(pl.col("track_id") == aside).collect()
    assert events.select("start_ns", "duration_ns").rows() == [(1_000_000_000, 0)]
    assert trace.events.select(pl.col("start_ns").min()).collect().item() == 1_000_000_000
    assert _kinds(stage) == {"impossible_timestamp": 1}


def test_a_trace_that_begins_at_zero_is_left_alone(tmp_path: Path) -> None:
    stage = _staged(tmp_path, [(100 * i, 100 * i + 50, 0) for i in range(30)])
    events = _written(stage, tmp_path).events.sort("start_ns").collect()
    assert events["start_ns"][0] == 0
    assert _kinds(stage) == {}


def test_repeats_are_kept_once_and_flows_follow(tmp_path: Path) -> None:
    rows = [(0, 10, 7), (0, 10, 7), (20, 30, 8), (20, 30, 9)]
    with_flow = _staged(tmp_path, rows)
    trace = _written(with_flow, tmp_path)
    assert trace.events.select(pl.len()).collect().item() == 3
    assert _kinds(with_flow) == {"duplicate_events": 1}
    assert [f["kind"] for f in trace.fragments[0]["audit"]] == ["duplicate_events"]
