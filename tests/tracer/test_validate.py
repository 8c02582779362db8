"""validate() finds each planted fault, counts it, names an example, and finds nothing in a sound trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.event_ids import EventIds
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.overlap import overlapping, overlapping_events
from trnprof.tracer.problems import Problem
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.schema import TABLES
from trnprof.tracer.writer import TraceWriter


def write(path: Path, shard_rows: int = 1000) -> Trace:
    """A sound trace: two lanes and a counter, an operation under another, flows, steps."""
    with TraceWriter(path, writer="w", shard_rows=shard_rows) as out:
        out.add_tracks(
            {
                "track_id": [0, 1, 2],
                "parent_id": [None, 0, 0],
                "kind": ["core", "engine", "counter"],
                "name": ["core 0", "Tensor", "HBM bytes"],
                "sort_order": [0, 0, 1],
                "lane": [0, 0, 0],
                "exclusive": [False, True, False],
                "clock_id": [0, 0, 0],
                "host": ["host0"] * 3,
                "replica_count": [1, 1, 1],
            }
        )
        out.add_groups({"group_id": [0], "ranks": [[0]], "name": ["tp"]})
        out.add_ops(
            {
                "op_id": [0, 1, 2],
                "parent_id": [None, 0, 1],
                "kind": ["module", "aten", "collective"],
                "name": ["M", "mm", "all_reduce"],
                "group_id": [None, None, 0],
            }
        )
        for first in (0, 10):
            ids = out.reserve(10)
            numbers = np.arange(first, first + 10)
            out.append_events(
                {
                    "event_id": ids,
                    "track_id": np.full(10, 1),
                    "start_ns": numbers * 10,
                    "duration_ns": np.full(10, 10),
                    "name": ["x"] * 10,
                    "category": ["compute"] * 10,
                    "op_id": np.full(10, 2),
                    "blocked_by": pl.Series(ids).shift(1),
                    "wait_reason": ["data"] * 10,
                }
            )
            out.append_flows(
                {
                    "source_event": ids[:-1],
                    "target_event": ids[1:],
                    "kind": ["data"] * 9,
                    "lag_ns": [0] * 9,
                }
            )
        out.append_counters(
            {"track_id": [2, 2, 2], "timestamp_ns": [0, 5, 9], "value": [1.0, 2.0, 0.0]}
        )
        out.add_steps(
            {
                "step": [0, 1],
                "rank": [0, 0],
                "clock_id": [0, 0],
                "start_ns": [0, 100],
                "end_ns": [100, 200],
                "label": ["0", "1"],
                "source": ["marker", "marker"],
            }
        )
    write_manifest(path)
    return open_trace(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return write(tmp_path_factory.mktemp("sound") / "t.trnprof")


@pytest.mark.parametrize("shard_rows", [1000, 10])
def test_a_sound_trace_has_no_problem(tmp_path: Path, shard_rows: int) -> None:
    assert write(tmp_path / "t.trnprof", shard_rows).validate() == []


def altered(trace: Trace, table: str, key: str, value: Any, **change: Any) -> Trace:
    """The trace as frames in memory, with columns of the rows whose ``key`` is ``value`` changed."""
    frames = {name: getattr(trace, name).lazy().collect() for name in TABLES}
    rows = frames[table]
    words = [name for name, type_ in rows.schema.items() if type_ == pl.Categorical]
    rows = rows.with_columns(pl.col(words).cast(pl.String)).with_columns(
        pl.when(pl.col(key) == value)
        .then(pl.lit(new, rows.schema[name] if name not in words else pl.String))
        .otherwise(pl.col(name))
        .alias(name)
        for name, new in change.items()
    )
    frames[table] = rows
    lazy = ("events", "ops", "flows", "counters")
    return Trace(
        path=Path("nowhere"),
        manifest={},
        fragments=(),
        **{n: f.lazy() if n in lazy else f for n, f in frames.items()},
    )


@pytest.mark.parametrize(
    ("table", "key", "value", "change", "kind", "where"),
    [
        ("events", "event_id", 7, {"duration_ns": -1}, "negative_duration", "events, event 7"),
        ("events", "event_id", 7, {"duration_ns": None}, "unfinished", "events, event 7"),
        ("events", "event_id", 7, {"track_id": 9}, "dangling_track", "events, event 7"),
        ("events", "event_id", 7, {"op_id": 9}, "dangling_op", "events, event 7"),
        ("events", "event_id", 7, {"blocked_by": 99}, "dangling_blocked_by", "events, event_id 7"),
        ("events", "event_id", 7, {"duration_ns": 11}, "overlap", "events, event 8"),
        ("events", "event_id", 7, {"category": "cooking"}, "unknown_category", "events, event 7"),
        (
            "events",
            "event_id",
            7,
            {"wait_reason": "bored"},
            "unknown_wait_reason",
            "events, event 7",
        ),
        (
            "events",
            "event_id",
            7,
            {"source_memory": "tape"},
            "unknown_source_memory",
            "events, event 7",
        ),
        ("events", "event_id", 7, {"start_ns": None}, "null_value", "events, event 7"),
        (
            "flows",
            "target_event",
            7,
            {"source_event": 99},
            "dangling_source_event",
            "flows, target_event 7",
        ),
        (
            "flows",
            "target_event",
            7,
            {"target_event": 99},
            "dangling_target_event",
            "flows, target_event 99",
        ),
        ("flows", "target_event", 7, {"kind": "magic"}, "unknown_kind", "flows, flow to event 7"),
        ("counters", "timestamp_ns", 5, {"track_id": 9}, "dangling_track", "counters, sample at 5"),
        ("counters", "timestamp_ns", 5, {"track_id": 1}, "not_a_counter", "counters, sample at 5"),
        (
            "counters",
            "timestamp_ns",
            5,
            {"timestamp_ns": -5},
            "counter_order",
            "counters, sample at -5",
        ),
        ("tracks", "track_id", 1, {"parent_id": 9}, "dangling_parent", "tracks, track 1"),
        ("tracks", "track_id", 1, {"replica_of": 9}, "dangling_replica", "tracks, track 1"),
        ("tracks", "track_id", 0, {"parent_id": 1}, "parent_cycle", "tracks, track 0"),
        ("tracks", "track_id", 0, {"kind": "sofa"}, "unknown_kind", "tracks, track 0"),
        ("ops", "op_id", 1, {"parent_id": 9}, "dangling_parent", "ops, op 1"),
        ("ops", "op_id", 0, {"parent_id": 2}, "parent_cycle", "ops, op 0"),
        ("ops", "op_id", 2, {"group_id": 9}, "dangling_group", "ops, op 2"),
        ("steps", "step", 1, {"clock_id": 7}, "dangling_clock", "steps, step 1"),
        ("steps", "step", 1, {"start_ns": 99}, "step_order", "steps, step 1"),
        ("steps", "step", 1, {"end_ns": 0}, "negative_duration", "steps, step 1"),
        ("steps", "step", 1, {"step": 0, "start_ns": 100}, "duplicate_step", "steps, step 0"),
    ],
)
def test_one_planted_fault_is_found(
    sound: Trace, table: str, key: str, value: Any, change: dict[str, Any], kind: str, where: str
) -> None:
    problems = [p for p in altered(sound, table, key, value, **change).validate() if p.kind == kind]
    (problem,) = problems
    assert problem.where == where
    assert problem.severity == ("warning" if kind == "unfinished" else "error")


def test_shared_ids_are_found_and_counted(sound: Trace) -> None:
    frames = {name: getattr(sound, name).lazy().collect() for name in TABLES}
    twice = {
        "events": frames["events"].vstack(frames["events"].head(3)).lazy(),
        "tracks": frames["tracks"].vstack(frames["tracks"].head(1)),
        "ops": frames["ops"].vstack(frames["ops"].head(1)).lazy(),
        "groups": frames["groups"].vstack(frames["groups"]),
        "flows": frames["flows"].lazy(),
        "counters": frames["counters"].lazy(),
    }
    trace = Trace(
        path=Path("nowhere"),
        manifest={},
        fragments=(),
        steps=frames["steps"],
        peaks=frames["peaks"],
        **twice,
    )
    found = {p.kind: p.count for p in trace.validate()}
    assert found["duplicate_event_id"] == 3
    assert (found["duplicate_track_id"], found["duplicate_op_id"], found["duplicate_group_id"]) == (
        2,
        2,
        2,
    )


def test_flipped_bits_of_sealed_files_are_found_by_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    write(path)
    for file in sorted(path.rglob("*.arrow")):
        data = file.read_bytes()
        file.write_bytes(data[:700] + bytes([data[700] ^ 4]) + data[701:])
        kinds = [
            p for p in open_trace(path).validate() if p.kind in ("crc_mismatch", "damaged_file")
        ]
        assert kinds, file
        file.write_bytes(data)
    assert open_trace(path).validate() == []


def test_a_damaged_value_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    write(path)
    file = path / "events" / "w-0.arrow"
    data = file.read_bytes()
    place = data.index(np.full(20, 10, np.int64).tobytes())
    file.write_bytes(data[:place] + b"\xff" * 8 + data[place + 8 :])
    kinds = [p.kind for p in open_trace(path).validate()]
    assert kinds[0] == "crc_mismatch"
    assert "negative_duration" not in kinds


def test_unsealed_and_torn_recordings_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    out = TraceWriter(path, writer="w")
    for start in (0, 10):
        out.append_counters({"track_id": [0], "timestamp_ns": [start], "value": [1.0]})
        out.flush()
    stream = path / "counters" / "w-0.arrows"
    stream.write_bytes(stream.read_bytes()[:-20])
    problems = {p.kind: p.severity for p in open_trace(path).validate()}
    assert problems == {
        "torn_stream": "error",
        "dangling_track": "error",
        "unsealed": "warning",
        "no_manifest": "warning",
    }


INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), max_size=25
)


def count_overlaps(intervals: list[tuple[int, int, int]]) -> int:
    """Brute force: how many intervals begin inside one that comes before them in order of start."""
    solid = sorted((i for i in intervals if i[2] > 0), key=lambda i: (i[0], i[1]))
    return sum(
        any(t == track and s + d > start for t, s, d in solid[:place])
        for place, (track, start, _) in enumerate(solid)
    )


def frame_of(intervals: list[tuple[int, int, int]]) -> pl.DataFrame:
    rows = [(n, t, s, d) for n, (t, s, d) in enumerate(intervals)]
    schema = {
        "event_id": pl.UInt64,
        "track_id": pl.UInt32,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


@settings(max_examples=60, deadline=None)
@given(intervals=INTERVALS)
def test_overlaps_are_those_of_brute_force(intervals: list[tuple[int, int, int]]) -> None:
    frame = frame_of(intervals).with_columns(
        (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
    )
    assert overlapping(frame).height == count_overlaps(intervals)


@settings(max_examples=60, deadline=None)
@given(intervals=INTERVALS, cuts=st.lists(st.integers(0, 25), max_size=3))
def test_overlaps_do_not_depend_on_the_shards(
    intervals: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    frame = frame_of(intervals)
    edges = [0, *sorted(cuts), max(25, len(intervals))]
    parts = [frame.slice(a, b - a).lazy() for a, b in pairwise(edges)]
    assert overlapping_events(parts).height == count_overlaps(intervals)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=4),
    refs=st.lists(st.integers(0, 45), max_size=15),
)
def test_event_ids_are_a_set(parts: list[list[int]], refs: list[int]) -> None:
    known, expected = EventIds(), set[int]()
    for part in parts:
        again = known.add(np.array(part, np.uint64))
        assert again.tolist() == sorted({i for i in part if i in expected or part.count(i) > 1})
        expected |= set(part)
    assert known.missing(np.array(refs, np.uint64)).tolist() == sorted(set(refs) - expected)


def test_errors_come_before_warnings(sound: Trace) -> None:
    trace = altered(sound, "events", "event_id", 3, duration_ns=None)
    trace = Trace(**{**vars(trace), "problems": (Problem("warning", "unsealed", "w", "m"),)})
    trace = altered(trace, "steps", "step", 1, end_ns=0)
    severities = [p.severity for p in trace.validate()]
    assert severities == sorted(severities)
