"""Annotations: nested ranges by domain, ranges of processes, marks, categories, payloads, registered names, steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.tracer.formats.nsys_files import NsysFile, global_tid
from tests.tracer.formats.staged import events, kinds, staged

from trnprof.tracer.formats.nsys.format import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import UNFINISHED
from trnprof.tracer.reader import open_trace

Range = tuple[int, int, int, int, int]
"""Start, end, depth, thread and domain."""


def nested(
    dice: random.Random, low: int, high: int, depth: int, thread: int, domain: int
) -> list[Range]:
    found: list[Range] = []
    at = low
    while at + 4 < high and depth < 5:
        start = dice.randrange(at, min(at + 20, high - 3))
        end = dice.randrange(start + 2, min(start + 90, high))
        found.append((start, end, depth, thread, domain))
        found += nested(dice, start + 1, end - 1, depth + 1, thread, domain)
        at = end + 1
    return found


def test_pushed_ranges_nest_by_thread_and_domain(tmp_path: Path) -> None:
    """The lane of each range is its depth among those of its thread and domain."""
    dice = random.Random(5)
    ranges = [
        r
        for thread in (10, 11)
        for domain in (0, 1, 2)
        for r in nested(dice, 0, 400, 0, thread, domain)
    ]
    dice.shuffle(ranges)
    file = NsysFile(tmp_path / "a.sqlite")
    file.range("pytorch", 0, None, 5, 10, eventType=75, domainId=1)
    for i, (start, end, _, thread, domain) in enumerate(ranges):
        file.range(f"r{i}", start, end, 5, thread, domainId=domain)
    import_profiles([file.done()], tmp_path / "t.trnprof")
    trace = open_trace(tmp_path / "t.trnprof")
    tracks = trace.tracks.select("track_id", "lane", "name", pl.col("parent_id"))
    parents = tracks.select(parent_id="track_id", thread="name")
    rows = (
        trace.events.collect()
        .with_columns(pl.col("name").cast(pl.String))
        .join(tracks.rename({"name": "track"}), on="track_id")
        .join(parents, on="parent_id")
    )
    found = {r["name"]: (r["lane"], r["track"], r["thread"]) for r in rows.iter_rows(named=True)}
    titles = {0: "NVTX", 1: "NVTX pytorch", 2: "NVTX domain 2"}
    assert found == {
        f"r{i}": (depth, titles[domain], f"process 5: thread {thread}")
        for i, (_, _, depth, thread, domain) in enumerate(ranges)
    }
    assert len(ranges) > 100


def test_ranges_of_a_process_marks_and_what_never_ended(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.range("request", 10, 90, 5, 10, eventType=60, rangeId=1, endGlobalTid=global_tid(5, 11))
    file.range("request", 20, 95, 5, 10, eventType=60, rangeId=2, endGlobalTid=global_tid(5, 10))
    file.range("here", 30, None, 5, 10, eventType=34)
    file.range("pushed", 40, None, 5, 10, eventType=70)
    file.range("started", 50, None, 5, 10, eventType=71, rangeId=3)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    rows = events(stage).sort("start_ns").select("name", "end_ns", "category", "track").rows()
    assert rows == [
        ("request", 90, "host", "process 5: NVTX ranges"),
        ("request", 95, "host", "process 5: NVTX ranges"),
        ("here", 30, "marker", "NVTX"),
        ("pushed", UNFINISHED, "host", "NVTX"),
        ("started", UNFINISHED, "host", "process 5: NVTX ranges"),
    ]
    attributes = events(stage).sort("start_ns")["attributes"].to_list()
    assert json.loads(attributes[0]) == {"rangeId": 1, "endGlobalTid": global_tid(5, 11)}
    assert json.loads(attributes[1]) == {"rangeId": 2}  # ended where it was started


def test_registered_names_categories_colours_and_payloads(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.range('I/O "fast"\n', 0, None, 5, 10, eventType=33, category=3)
    file.range(None, 1, 2, 5, 10, textId=file.string("registered"), category=3, color=0xFF00FF00)
    file.range(None, 3, 4, 5, 10, textId=99_999, category=4)
    file.range("u", 5, 6, 5, 10, uint64Value=-1)
    file.range("i", 7, 8, 5, 10, int64Value=-(1 << 63))
    file.range("d", 9, 10, 5, 10, doubleValue=0.1, floatValue=float("inf"))
    file.range("j", 11, 12, 5, 10, jsonText='{"a": "\\u00e9"}')
    rows = events(staged(FORMAT, file.done(), tmp_path / "stage")).sort("start_ns")
    assert rows["name"].to_list() == ["registered", "[unnamed]", "u", "i", "d", "j"]
    assert [json.loads(a) for a in rows["attributes"]] == [
        {"color": 0xFF00FF00, "category": 'I/O "fast"\n'},
        {"category": "4"},
        {"uint64Value": (1 << 64) - 1},
        {"int64Value": -(1 << 63)},
        {"doubleValue": 0.1},
        {"jsonText": '{"a": "\\u00e9"}'},
    ]


def test_what_pytorch_puts_behind_an_operator_is_no_part_of_its_name(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.range("aten::mm, op_id = 77, sizes = [[2, 3], [3, 4]]", 1, 2, 5, 10)
    file.range("AddBackward0, seq = 5", 3, 4, 5, 10)
    file.range("load, then store", 5, 6, 5, 10)
    rows = events(staged(FORMAT, file.done(), tmp_path / "stage"))
    assert rows["name"].to_list() == ["aten::mm", "AddBackward0", "load, then store"]
    told = [a and json.loads(a) for a in rows["attributes"]]
    assert told == [
        {"arguments": "op_id = 77, sizes = [[2, 3], [3, 4]]"},
        {"arguments": "seq = 5"},
        None,
    ]


@pytest.mark.parametrize(
    "label", ["step {}", "ProfilerStep#{}", "iteration_{}", "Train Step: {}", "batch={}"]
)
def test_steps_are_found_by_their_names_and_given_to_what_they_launched(
    tmp_path: Path, label: str
) -> None:
    """A kernel that runs after its step has ended belongs to the step that launched it."""
    file = NsysFile(tmp_path / "a.sqlite")
    for i in range(3):
        begin = 1000 * i
        file.range(label.format(10 + i), begin, begin + 900, 5, 10)
        file.range("forward", begin + 10, begin + 500, 5, 10)
        file.call("cudaLaunchKernel", begin + 20, begin + 30, 5, 10, correlationId=i + 1)
        file.kernel("k", begin + 950, begin + 1100, pid=5, correlationId=i + 1)
    file.call("cudaFree", 950, 960, 5, 10, correlationId=50)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    (steps,) = stage.steps
    assert np.asarray(steps["step"]).tolist() == [0, 1, 2]
    assert np.asarray(steps["start_ns"]).tolist() == [0, 1000, 2000]
    assert list(steps["label"]) == [label.format(10 + i) for i in range(3)]
    rows = events(stage)
    assert rows.filter(name="k").sort("start_ns")["step"].to_list() == [0, 1, 2]
    assert rows.filter(name="forward").sort("start_ns")["step"].to_list() == [0, 1, 2]
    assert rows.filter(name="cudaFree")["step"].to_list() == [None]


def test_only_the_outermost_of_steps_that_nest_count(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    for i in range(4):
        file.range(f"step {i}", 100 * i, 100 * i + 90, 5, 10)
        file.range(f"batch {7 * i}", 100 * i + 5, 100 * i + 50, 5, 10)
    (steps,) = staged(FORMAT, file.done(), tmp_path / "stage").steps
    assert list(steps["label"]) == [f"step {i}" for i in range(4)]


def test_events_of_other_kinds_are_counted(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.range("r", 1, 2, 5, 10)
    for _ in range(3):
        file.range("odd", 1, 2, 5, 10, eventType=127)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    assert events(stage)["name"].to_list() == ["r"]
    assert [(f.count, f.severity) for f in stage.audit.findings if f.kind == "not_imported"] == [
        (3, "note")
    ]
    assert "missing_table" in kinds(stage)
