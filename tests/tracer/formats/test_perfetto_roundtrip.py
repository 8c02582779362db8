"""What trnprof exports for Perfetto comes back as it was: all that the export writes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.formats.kineto_profiles import answer, figures, good, imported, saved
from tests.tracer.perfetto_traces import CORE, Row, flow, frame, track

from trnprof.tracer.formats.perfetto_export.export import ExportSummary, export
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.schema import CATEGORIES, MEMORIES, STEP_SOURCES, WAIT_REASONS
from trnprof.tracer.writer import Clock, TraceWriter

SAMPLES = Path(__file__).parents[3] / "sample_traces"
COLUMNS = [
    "start_ns", "duration_ns", "name", "category", "step", "dtype", "is_transpose", "flops", "bytes", "source_memory",
    "target_memory", "descriptor_bytes", "ready_ns", "wait_reason", "attributes",
]  # fmt: skip
TIMES = ("start_ns", "end_ns", "ready_ns", "timestamp_ns")
OF_OPERATIONS = ["op", "module_path", "phase", "source_file", "source_line", "input_shapes"]
TRACKS = [
    *CORE,
    track(7, "dma_queue", "DMA q0", 2, rank=0),
    track(8, "thread", "Main", 0),
    track(9, "thread", "Main", 0, lane=1),
    track(10, "counter", "power", 0, unit="W"),
    track(11, "stream", "stream 7", 1),
]


def text(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def paths(trace: Trace) -> dict[int, tuple[Any, ...]]:
    """Kinds and names from the host down to each track."""
    rows = {row["track_id"]: row for row in text(trace.tracks).to_dicts()}

    def path(track_id: int | None) -> tuple[Any, ...]:
        if track_id is None:
            return ()
        row = rows[track_id]
        return (*path(row["parent_id"]), (row["kind"], row["name"]))

    return {track_id: path(track_id) for track_id in rows}


def later(frame: pl.DataFrame, by_ns: int) -> pl.DataFrame:
    """With all times moved."""
    return frame.with_columns(pl.col(n) + by_ns for n in TIMES if n in frame.columns)


def events_of(trace: Trace, by_ns: int = 0) -> dict[int, tuple[Any, ...]]:
    """All that is said of each event, its lane by path and number; one without length lies on any lane."""
    where, lanes = paths(trace), dict(trace.tracks.select("track_id", "lane").iter_rows())
    ops = text(trace.ops.collect()).select("op_id", pl.col("name").alias("op"), *OF_OPERATIONS[1:])
    frame = later(text(trace.events.collect()), by_ns).join(
        ops, on="op_id", how="left", maintain_order="left"
    )
    rows = frame.select("event_id", "track_id", *COLUMNS, *OF_OPERATIONS).rows()
    return {
        row[0]: (where[row[1]], None if row[3] == 0 else lanes[row[1]], *row[2:]) for row in rows
    }


def edges_of(trace: Trace, known: dict[int, tuple[Any, ...]]) -> Counter[Any]:
    rows = trace.flows.select("source_event", "target_event").collect().rows()
    return Counter((known[source], known[target]) for source, target in rows)


def samples_of(trace: Trace, by_ns: int = 0) -> Counter[Any]:
    rows = later(trace.counters.collect(), by_ns).rows()
    where, unit = paths(trace), dict(trace.tracks.select("track_id", "unit").iter_rows())
    return Counter((where[t], unit[t], *rest) for t, *rest in rows)


def steps_of(trace: Trace, by_ns: int = 0) -> Counter[Any]:
    columns = ["step", "rank", "start_ns", "end_ns", "label", "source"]
    return Counter(later(text(trace.steps), by_ns).select(columns).rows())


def there_and_back(trace: Trace, scratch: Path, name: str) -> tuple[ExportSummary, Trace]:
    summary = export(trace, scratch / f"{name}.pftrace", flows="all")
    import_profiles([scratch / f"{name}.pftrace"], scratch / f"{name}.trnprof")
    return summary, open_trace(scratch / f"{name}.trnprof")


@pytest.mark.parametrize("name", ["mlp-trn2", "convnet-trn2-eager", "transformer-trn2"])
def test_sample_traces_come_back(tmp_path: Path, name: str) -> None:
    before = open_trace(SAMPLES / f"{name}.trnprof")
    summary, after = there_and_back(before, tmp_path, "first")
    known, back = events_of(before), events_of(after)
    assert Counter(back.values()) == Counter(known.values())
    assert summary.flows_undrawn == 0
    assert edges_of(after, back) == edges_of(before, known)
    assert samples_of(after) == samples_of(before)
    assert steps_of(after) == steps_of(before)
    assert after.is_simulation
    assert not after.validate()
    there_and_back(after, tmp_path, "second")
    _, again = there_and_back(open_trace(tmp_path / "second.trnprof"), tmp_path, "third")
    assert again.is_simulation
    second, third = (tmp_path / f"{n}.pftrace" for n in ("second", "third"))
    assert second.read_bytes() == third.read_bytes()


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
EVENTS = st.fixed_dictionaries(
    {
        "name": WORDS,
        "category": st.sampled_from(CATEGORIES),
        "step": st.none() | st.integers(0, 2**31 - 1),
        "dtype": st.none() | st.sampled_from(["bf16", "fp8"]),
        "is_transpose": st.none() | st.booleans(),
        "flops": st.none() | st.floats(0, allow_infinity=False),
        "bytes": st.none() | st.integers(0, 2**63 - 1),
        "source_memory": st.none() | st.sampled_from(MEMORIES),
        "target_memory": st.none() | st.sampled_from(MEMORIES),
        "descriptor_bytes": st.none() | st.integers(0, 2**31 - 1),
        "ready_ns": st.none() | st.integers(0, 2**62),
        "wait_reason": st.none() | st.sampled_from(WAIT_REASONS),
        "attributes": st.none() | st.dictionaries(WORDS, st.integers() | WORDS).map(json.dumps),
        "op_id": st.none() | st.integers(0, 2),
    }
)
OPS: list[Row] = [
    {"op_id": 0, "kind": "aten", "name": "mm", "module_path": "net.fc1", "phase": "forward",
     "source_file": "train.py", "source_line": 12, "input_shapes": "[4, 8]"},
    {"op_id": 1, "kind": "aten", "name": "add"},
    {"op_id": 2, "kind": "aten", "name": "add", "source_file": "C:\\x y.py"},
]  # fmt: skip


@st.composite
def recorded(draw: st.DrawFn) -> tuple[list[Row], list[tuple[int, int]], list[Row], list[Row]]:
    """Events without overlap on their lanes, edges by index, counter samples and steps."""
    rows: list[Row] = []
    for lane in (3, 4, 5, 7, 8, 11):
        at = draw(st.integers(1000, 1040))
        for fields in draw(st.lists(EVENTS, max_size=3)):
            at += draw(st.integers(0, 9))
            length = draw(st.integers(0, 9))
            rows.append({**fields, "track_id": lane, "start_ns": at, "duration_ns": length})
            if lane == 8 and length > 2:
                inner = {"track_id": 9, "start_ns": at + 1, "duration_ns": 1}
                rows.append({**draw(EVENTS), **inner})
            at += length
        if draw(st.booleans()):
            rows.append({**draw(EVENTS), "track_id": lane, "start_ns": at, "duration_ns": None})
    number = st.integers(0, max(len(rows) - 1, 0))
    pair = st.tuples(number, number).filter(lambda p: p[0] != p[1])
    edges = draw(st.lists(pair, max_size=6)) if len(rows) > 1 else []
    sample = st.tuples(st.sampled_from([6, 10]), st.integers(900, 1200), st.floats(allow_nan=False))
    samples = draw(st.lists(sample.filter(lambda s: abs(s[2]) < 1e300), max_size=5))
    steps = draw(
        st.lists(st.tuples(st.integers(0, 50), st.sampled_from(STEP_SOURCES), WORDS), max_size=3)
    )
    return (
        rows,
        edges,
        [dict(zip(("track_id", "timestamp_ns", "value"), s, strict=True)) for s in samples],
        [
            {"step": i, "rank": 0, "clock_id": 0, "start_ns": 1000 + 9 * i, "end_ns": 1000 + 9 * i + length % 10,
             "label": label, "source": source}
            for i, (length, source, label) in enumerate(steps)
        ],
    )  # fmt: skip


def written(
    path: Path,
    rows: list[Row],
    edges: list[tuple[int, int]],
    samples: list[Row],
    steps: list[Row],
) -> tuple[Trace, list[int]]:
    """A trace on disk, and the ids of its events."""
    with TraceWriter(path, writer="w", clocks=[Clock(0, "device")]) as writer:
        writer.add_tracks(columns_of("tracks", TRACKS))
        writer.add_ops(columns_of("ops", OPS))
        writer.add_steps(columns_of("steps", steps))
        writer.append_counters(columns_of("counters", samples))
        columns = columns_of("events", rows)
        del columns["event_id"]
        ids = writer.append_events(columns).tolist()
        flows = [flow(ids[source], ids[target]) for source, target in edges]
        writer.append_flows(columns_of("flows", flows))
    return open_trace(path), ids


def columns_of(table: str, rows: list[Row]) -> dict[str, pl.Series]:
    found = frame(table, rows)
    return {name: found[name] for name in found.columns}


def first_start(trace: Trace) -> int:
    """A profile without a wall clock begins at 0 after an import."""
    return int(trace.events.select(pl.col("start_ns").min()).collect().item())


def is_drawn(source: Row, target: Row) -> bool:
    """Whether an arrow can show an edge: the target begins or ends after the source begins."""
    last = target["start_ns"] + (target["duration_ns"] or 0)
    return bool(source["start_ns"] < last)


@settings(max_examples=12, deadline=None)
@given(recorded().filter(lambda recording: bool(recording[0])))
def test_random_traces_come_back(
    recording: tuple[list[Row], list[tuple[int, int]], list[Row], list[Row]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        before, ids = written(scratch / "before.trnprof", *recording)
        summary, after = there_and_back(before, scratch, "first")
        moved = first_start(after) - first_start(before)
        known, back = events_of(before, moved), events_of(after)
        assert Counter(back.values()) == Counter(known.values())
        rows, edges, _, _ = recording
        drawn = [(s, t) for s, t in edges if is_drawn(rows[s], rows[t])]
        expected = Counter((known[ids[s]], known[ids[t]]) for s, t in drawn)
        assert summary.flows == len(drawn)
        assert edges_of(after, back) == expected
        assert samples_of(after) == samples_of(before, moved)
        assert steps_of(after) == steps_of(before, moved)
        assert not after.is_simulation
        _, again = there_and_back(after, scratch, "second")
        twice = events_of(again, first_start(after) - first_start(again))
        assert Counter(twice.values()) == Counter(back.values())
        assert edges_of(again, twice) == edges_of(after, back)


def test_an_imported_gpu_comes_back_with_its_busy_time(tmp_path: Path) -> None:
    profile = good()
    profile["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    for row in (7, 20):  # rows of a device that are no work
        profile["traceEvents"] += [
            {
                "ph": "X", "cat": category, "name": "beside", "pid": 0, "tid": row, "ts": 1_000_000, "dur": 9_000_000,
                "args": {"device": 0, "stream": row},
            }
            for category in ("gpu_user_annotation", "cuda_sync")
        ]  # fmt: skip
    before = imported(saved(tmp_path / "rank0.json", profile), tmp_path / "before.trnprof")[1]
    _, after = there_and_back(before, tmp_path, "first")
    assert figures(after) == figures(before) == [answer()]
