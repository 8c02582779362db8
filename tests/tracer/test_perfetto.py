"""What the real Perfetto trace processor reads in an exported file: every row, by value.

Its statistics do not tell of every fault, so slices, unfinished ones and durations are counted as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.trace_processor import needs_trace_processor, query
from tests.tracer.perfetto_traces import CORE, Row, event, flow, frame, step, trace_of, track

from trnprof.tracer.formats.perfetto_export.export import ExportSummary, export
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.writer import Clock, TraceWriter

pytestmark = needs_trace_processor

SLICES = """select s.ts, s.dur, s.name, s.category, t.name as track, p.name as parent
    from slice s join track t on t.id = s.track_id left join track p on p.id = t.parent_id order by s.ts, t.name, s.dur"""
COUNTS = "select count(*) as n, sum(dur = -1) as unfinished, max(depth) as depth from slice"
ARROWS = "select a.name as source, b.name as target from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in order by 1, 2"
TREE = """with recursive path(id, text) as (
    select id, name from track where parent_id is null
    union all select t.id, path.text || ' > ' || t.name from track t join path on t.parent_id = path.id)
    select distinct text from path order by text"""


def exported(
    tmp_path: Path, trace: Trace, *sql: str, **options: Any
) -> tuple[ExportSummary, list[list[Row]]]:
    """Export, check the counts that no statistic gives, and ask."""
    summary = export(trace, tmp_path / "x.pftrace", **options)
    (counts,), *answers = query(tmp_path / "x.pftrace", COUNTS, *sql)
    assert counts["n"] == summary.slices + summary.steps
    assert (counts["unfinished"] or 0) == summary.unfinished
    return summary, answers


def test_slices_steps_counters_and_tree(tmp_path: Path) -> None:
    rows = [
        event(1, 3, 0, 100, "matmul", step=0),
        event(2, 3, 100, 0, "mark", category="marker"),
        event(3, 3, 100, 50, "matmul\t2", step=0),
        event(4, 4, 20, 200, "ädd"),
        event(5, 5, 30, 10, "", category="dma", step=1),
        event(6, 5, 40, None, "open", category="dma"),
    ]
    samples = [
        {"track_id": 6, "timestamp_ns": t, "value": v} for t, v in [(0, 5.0), (7, 0.25), (9, -3e12)]
    ]
    trace = trace_of(
        events=rows, counters=samples, steps=[step(0, 0, 150, label="warm-up"), step(1, 150, 220)]
    )
    _, (slices, tree, counters, units) = exported(
        tmp_path,
        trace,
        SLICES,
        TREE,
        "select c.ts, c.value, t.name from counter c join track t on t.id = c.track_id order by c.ts",
        "select name, unit from counter_track",
    )
    core = "core 0"
    assert [tuple(r.values()) for r in slices] == [
        (0, 100, "matmul", "compute", "Tensor", core),
        (0, 150, "warm-up", "step", "steps", core),
        (20, 200, "ädd", "compute", "Vector", core),
        (30, 10, "(unnamed)", "dma", "DMA q0", core),
        (40, -1, "open", "dma", "DMA q0", core),
        (100, 0, "mark", "marker", "Tensor", core),
        (100, 50, "matmul\t2", "compute", "Tensor", core),
        (150, 70, "step 1", "step", "steps", core),
    ]
    root = "host0 > chip 0 > core 0"
    leaves = ("DMA q0", "HBM bytes", "Tensor", "Vector", "steps")
    assert [r["text"] for r in tree] == [
        "host0",
        "host0 > chip 0",
        root,
        *(f"{root} > {n}" for n in leaves),
    ]
    assert [tuple(r.values()) for r in counters] == [
        (0, 5.0, "HBM bytes"),
        (7, 0.25, "HBM bytes"),
        (9, -3e12, "HBM bytes"),
    ]
    assert units == [{"name": "HBM bytes", "unit": "bytes"}]


def test_arguments(tmp_path: Path) -> None:
    ops = [
        {"op_id": 7, "kind": "aten", "name": "aten.mm", "module_path": "net.fc1", "phase": "forward",
         "source_file": "train.py", "source_line": 12, "input_shapes": "[4, 8], [8, 2]"},
        {"op_id": 9, "kind": "aten", "name": "aten.add", "source_file": "train.py"},
    ]  # fmt: skip
    full = {
        "op_id": 7, "step": 3, "dtype": "bf16", "is_transpose": True, "flops": 1.5e12, "bytes": 2**40, "source_memory": "hbm",
        "target_memory": "sbuf", "descriptor_bytes": 512, "ready_ns": 4, "wait_reason": "semaphore", "attributes": '{"x": "ü"}',
    }  # fmt: skip
    rows = [
        event(1, 3, 5, 1, "a", **full),
        event(2, 3, 7, 1, "b", op_id=9),
        event(3, 3, 9, 1, "c", op_id=8),
    ]
    _, (arguments,) = exported(
        tmp_path, trace_of(events=rows, ops=ops),
        "select s.name, a.key, a.value_type, a.int_value, a.string_value, a.real_value from slice s join args a using (arg_set_id) "
        "where a.key glob 'debug.*' order by a.id",
    )  # fmt: skip
    got: dict[str, dict[str, tuple[str, Any]]] = {"a": {}, "b": {}, "c": {}}
    for r in arguments:
        value = next(
            (r[k] for k in ("string_value", "real_value", "int_value") if r[k] is not None), None
        )
        got[r["name"]][r["key"].removeprefix("debug.")] = (r["value_type"], value)
    assert got["a"] == {
        "op": ("string", "aten.mm"),
        "module": ("string", "net.fc1"),
        "phase": ("string", "forward"),
        "shapes": ("string", "[4, 8], [8, 2]"),
        "source": ("string", "train.py:12"),
        "step": ("int", 3),
        "dtype": ("string", "bf16"),
        "flops": ("real", 1.5e12),
        "is_transpose": ("bool", 1),
        "bytes": ("int", 2**40),
        "source_memory": ("string", "hbm"),
        "target_memory": ("string", "sbuf"),
        "descriptor_bytes": ("int", 512),
        "ready_ns": ("int", 4),
        "wait_reason": ("string", "semaphore"),
        "attributes": ("string", '{"x": "ü"}'),
    }
    assert got["b"] == {"op": ("string", "aten.add"), "source": ("string", "train.py")}
    assert got["c"] == {}


def test_flows_join_the_right_slices(tmp_path: Path) -> None:
    rows = [
        event(1, 3, 0, 10, "load", step=0),
        event(2, 4, 10, 10, "add", step=0, blocked_by=1),
        event(3, 5, 10, 5, "side", step=0, blocked_by=1),
        event(4, 3, 20, 0, "signal", step=0, blocked_by=2),
        event(5, 4, 20, 9, "store", step=0, blocked_by=4),
        event(6, 4, 29, None, "open", step=1, blocked_by=5),
    ]
    edges = [flow(1, 3, "collective"), flow(3, 6), flow(3, 6, "queue")]
    trace = trace_of(events=rows, flows=edges)
    _, (critical,) = exported(tmp_path, trace, ARROWS)
    pairs = [("add", "signal"), ("load", "add"), ("signal", "store")]
    assert [tuple(r.values()) for r in critical] == pairs
    _, (every,) = exported(tmp_path, trace, ARROWS, flows="all", force=True)
    assert [tuple(r.values()) for r in every] == [
        ("load", "side"),
        ("side", "open"),
        ("side", "open"),
    ]


def test_clocks_without_a_relation_stand_apart(tmp_path: Path) -> None:
    tracks = [
        *CORE,
        track(8, "thread", "Main", 0, clock_id=1),
        track(9, "thread", "Main", 0, clock_id=1, lane=1),
    ]
    clocks = [
        {"clock_id": 0, "kind": "device", "epoch_unix_ns": None},
        {"clock_id": 1, "kind": "host", "epoch_unix_ns": 10**18},
    ]
    rows = [
        event(1, 3, 0, 10, "kernel"),
        event(2, 8, 7000, 100, "outer"),
        event(3, 9, 7010, 20, "inner", ready_ns=7005),
    ]
    trace = trace_of(events=rows, tracks=tracks, clocks=clocks, manifest={"is_simulation": True})
    summary, (slices, tree, ready) = exported(
        tmp_path, trace, "select ts, dur, name from slice order by name", TREE,
        "select int_value as ready from args where key = 'debug.ready_ns'",
    )  # fmt: skip
    assert summary.offsets_ns == {"device time (emulated)": 0, "host time": -7000}
    assert [tuple(r.values()) for r in slices] == [
        (10, 20, "inner"),
        (0, 10, "kernel"),
        (0, 100, "outer"),
    ]
    paths = [r["text"] for r in tree]
    assert "device time (emulated) > host0 > chip 0 > core 0 > Tensor" in paths
    assert "host time > host0 > Main" in paths
    assert not [p for p in paths if p.startswith("host time") and "chip" in p]
    assert ready == [{"ready": 5}]


def test_hosts_with_a_wall_clock_are_aligned(tmp_path: Path) -> None:
    tracks = [
        track(0, "host", "a", host="a"), track(1, "thread", "Main", 0),
        track(2, "host", "b", host="b", clock_id=1), track(3, "thread", "Main", 2, clock_id=1),
    ]  # fmt: skip
    clocks = [{"clock_id": i, "kind": "host", "epoch_unix_ns": 10**18 + i * 300} for i in (0, 1)]
    rows = [event(1, 1, 1000, 1, "first"), event(2, 3, 1000, 1, "second")]
    _, (slices,) = exported(
        tmp_path,
        trace_of(events=rows, tracks=tracks, clocks=clocks),
        "select name, ts from slice order by ts",
    )
    assert [tuple(r.values()) for r in slices] == [("first", 1000), ("second", 1300)]


def test_namesakes_stay_apart_and_lanes_come_together(tmp_path: Path) -> None:
    tracks = [track(0, "core", "core")] + [track(i, "dma_queue", "q0", 0) for i in (1, 2)]
    tracks += [track(3 + i, "thread", "lanes", 0, lane=i) for i in range(3)]
    rows = [event(i, i, 0, 10 + i) for i in range(1, 6)]
    _, (groups,) = exported(
        tmp_path, trace_of(events=rows, tracks=tracks),
        "select t.name, count(*) as slices, extract_arg(t.source_arg_set_id, 'sibling_merge_key') is not null as merged, "
        "t.track_group_id is not null as grouped, count(distinct t.track_group_id) as groups "
        "from track t join slice s on s.track_id = t.id group by t.name order by t.name",
    )  # fmt: skip
    assert [(g["name"], g["slices"], g["groups"]) for g in groups] == [
        ("lanes", 3, 1),
        ("q0", 2, 0),
    ]


def random_events(count: int, seed: int) -> pl.DataFrame:
    """Events on tracks 3 to 5 that follow each other, some without length, some with a gap, in random order."""
    random = np.random.default_rng(seed)
    lane = random.integers(3, 6, count)
    length, gap = random.integers(0, 50, count), random.integers(0, 3, count)
    start = np.zeros(count, np.int64)
    for each in (3, 4, 5):
        mine = lane == each
        start[mine] = np.cumsum(length[mine] + gap[mine]) - length[mine]
    names = [f"op {n}" for n in random.integers(0, 40, count).tolist()]
    blocked = np.maximum(np.arange(count) - random.integers(1, 9, count), 0)
    columns: dict[str, Any] = {
        "event_id": pl.Series(np.arange(count), dtype=pl.UInt64), "track_id": pl.Series(lane, dtype=pl.UInt32),
        "start_ns": start, "duration_ns": length, "name": pl.Series(names, dtype=pl.Categorical), "flops": random.random(count),
        "step": pl.Series(np.arange(count) // 1000, dtype=pl.Int32), "blocked_by": pl.Series(blocked, dtype=pl.UInt64),
    }  # fmt: skip
    base = frame("events", [event(0, 3, 0, 1)])
    return pl.concat([base] * count).with_columns(**columns)


@pytest.mark.parametrize("seed", [1, 2])
def test_large_random_traces_add_up(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnprof.tracer.formats.perfetto_export.order.BATCH_ROWS", 7001)
    rows = random_events(30_000, seed)
    summary, (sums, flows, flops) = exported(
        tmp_path, trace_of(events=rows.sample(fraction=1, shuffle=True, seed=seed)),
        "select t.name as track, s.name, count(*) as n, sum(s.dur) as dur, min(s.ts) as first, max(s.ts) as last, max(s.depth) as depth "
        "from slice s join track t on t.id = s.track_id group by 1, 2 order by 1, 2",
        "select count(*) as n from flow",
        "select count(*) as n, sum(real_value) as total from args where key = 'debug.flops'",
    )  # fmt: skip
    names = {3: "Tensor", 4: "Vector", 5: "DMA q0"}
    expected = (
        rows.with_columns(
            track=pl.col("track_id").replace_strict(names), name=pl.col("name").cast(pl.String)
        )
        .group_by("track", "name")
        .agg(
            n=pl.len(),
            dur=pl.col("duration_ns").sum(),
            first=pl.col("start_ns").min(),
            last=pl.col("start_ns").max(),
        )
        .sort("track", "name")
    )
    assert [{k: v for k, v in r.items() if k != "depth"} for r in sums] == expected.to_dicts()
    assert {r["depth"] for r in sums} == {0}
    assert flows == [{"n": summary.flows}]
    assert flops[0]["n"] == rows.height
    assert flops[0]["total"] == pytest.approx(rows["flops"].sum())


def test_a_trace_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.trnprof"
    with TraceWriter(path, writer="w", clocks=[Clock(0, "device")]) as writer:
        writer.add_tracks({key: [row[key] for row in CORE] for key in CORE[0]})
        for first in range(0, 3000, 1000):
            i = np.arange(first, first + 1000)
            writer.append_events(
                {
                    "track_id": (3 + i % 3).astype(np.uint32), "start_ns": i * 10, "duration_ns": np.full(1000, 30),
                    "name": [f"op{n % 5}" for n in i.tolist()], "category": ["compute"] * 1000,
                }
            )  # fmt: skip
    _, (sums,) = exported(
        tmp_path,
        open_trace(path),
        "select name, count(*) as n, sum(dur) as dur from slice group by name",
    )
    assert sums == [{"name": f"op{n}", "n": 600, "dur": 18_000} for n in range(5)]


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    export(trace_of(events=[event(1, 3, 4, 2, "a")]), tmp_path / "x.pftrace.gz")
    assert query(tmp_path / "x.pftrace.gz", "select ts, dur, name from slice") == [
        [{"ts": 4, "dur": 2, "name": "a"}]
    ]
