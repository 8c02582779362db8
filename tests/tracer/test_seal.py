"""Sealed files are sorted, indexed and lose nothing, wherever sealing stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trnprof.tracer import manifest, seal, writer
from trnprof.tracer.reader import locate_events, open_trace
from trnprof.tracer.seal import NO_ROW, event_order
from trnprof.tracer.writer import TraceWriter


def random_events(rng: np.random.Generator, count: int) -> dict[str, Any]:
    return {
        "track_id": rng.integers(0, 4, count).astype(np.uint32),
        "start_ns": rng.integers(0, 50, count),
        "duration_ns": pa.array(
            [None if d == 0 else d for d in rng.integers(0, 6, count).tolist()]
        ),
        "name": [f"n{i}" for i in rng.integers(0, 5, count)],
        "category": ["compute"] * count,
    }


def record(path: Path, seed: int, count: int, **limits: Any) -> None:
    rng = np.random.default_rng(seed)
    with TraceWriter(path, writer="w", **limits) as out:
        for _ in range(4):
            out.append_events(random_events(rng, count))
        out.reserve(3)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), count=st.integers(0, 40), high=st.sampled_from([3, 2**31, 2**62])
)
def test_order_is_that_of_a_plain_sort(seed: int, count: int, high: int) -> None:
    rng = np.random.default_rng(seed)
    track: NDArray[np.uint32] = rng.integers(0, 3, count).astype(np.uint32)
    start: NDArray[np.int64] = rng.integers(-high, high, count)
    duration: NDArray[np.int64] = rng.integers(0, 3, count)
    ids: NDArray[np.uint64] = rng.permutation(count).astype(np.uint64)
    keys = list(
        zip(track.tolist(), start.tolist(), (-duration).tolist(), ids.tolist(), strict=True)
    )
    expected = sorted(range(count), key=lambda row: keys[row])
    order = event_order(track, start, duration, ids)
    assert (list(range(count)) if order is None else order.tolist()) == expected


@pytest.mark.parametrize("shard_rows", [1000, 150])
def test_sealed_rows_are_sorted_and_indexed(tmp_path: Path, shard_rows: int) -> None:
    path = tmp_path / "t.trnprof"
    record(path, 1, 100, shard_rows=shard_rows)
    trace = open_trace(path)
    assert sum(s.entry["rows"] for s in trace.shards if s.entry) == 400
    for shard in trace.shards:
        assert shard.entry is not None
        rows = pl.read_ipc(shard.path)
        longest = -rows["duration_ns"].fill_null(2**63 - 1)
        keys = rows.with_columns(longest.alias("longest")).select(
            "track_id", "start_ns", "longest", "event_id"
        )
        assert keys.rows() == sorted(keys.rows())
        check_indexes(path, shard.entry, rows)


def check_indexes(root: Path, entry: Any, rows: pl.DataFrame) -> None:
    for track, first, end, longest in pl.read_ipc(root / entry["tracks_index"]).rows():
        inside = rows.slice(first, end - first)
        assert inside["track_id"].unique().to_list() == [track]
        assert rows.filter(pl.col("track_id") == track).height == end - first
        assert longest == (inside["duration_ns"].max() or 0)
    sequence = rows["event_id"].to_numpy() & np.uint64((1 << 40) - 1)
    row_of = pl.read_ipc(root / entry["rows_index"])["row"].to_numpy()
    assert row_of[sequence].tolist() == list(range(rows.height))
    assert (row_of == NO_ROW).sum() == len(row_of) - rows.height


def test_no_rows_index_where_row_is_sequence(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    with TraceWriter(path, writer="w") as out:
        out.append_events(
            {
                "track_id": [0, 0, 1],
                "start_ns": [0, 5, 2],
                "duration_ns": [5, 1, 1],
                "name": ["a", "b", "a"],
                "category": ["dma"] * 3,
            }
        )
    (entry,) = open_trace(path).fragments[0]["shards"]
    assert entry["rows_index"] is None
    assert sorted(p.name for p in (path / "events").iterdir()) == ["w-0.arrow", "w-0.tracks.arrow"]
    assert locate_events(open_trace(path), [2, 0, 9])["start_ns"].to_list() == [0, 2]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), wanted=st.lists(st.integers(0, 500), max_size=20))
def test_locate_gathers_what_a_filter_finds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, wanted: list[int]
) -> None:
    path = tmp_path_factory.mktemp("locate") / "t.trnprof"
    record(path, seed, 60, shard_rows=130)
    trace = open_trace(path)
    ids = [(n % 3) << 40 | n // 3 for n in wanted]
    expected = trace.events.filter(pl.col("event_id").is_in(ids)).sort("event_id").collect()
    assert locate_events(trace, np.array(ids, np.uint64)).equals(expected)


@pytest.mark.parametrize("damage", ["missing", "foreign", "truncated", "wrong"])
def test_locate_does_without_a_damaged_index(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "t.trnprof"
    record(path, 3, 50)
    trace = open_trace(path)
    index = path / "events" / "w-0.rows.arrow"
    if damage == "missing":
        index.unlink()
    elif damage == "foreign":
        index.write_bytes((path / "events" / "w-0.tracks.arrow").read_bytes())
    elif damage == "truncated":
        index.write_bytes(index.read_bytes()[:200])
    else:
        rows = pl.read_ipc(index)
        rows.select(pl.col("row").reverse()).write_ipc(index)
    ids = np.arange(0, 200, 7, dtype=np.uint64)
    assert locate_events(trace, ids)["event_id"].to_list() == ids.tolist()


def test_gather_crosses_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "BATCH_ROWS", 32)
    monkeypatch.setattr("trnprof.tracer.lookup.BATCH_ROWS", 32)
    path = tmp_path / "t.trnprof"
    record(path, 3, 50)
    trace = open_trace(path)
    ids = np.arange(0, 200, 7, dtype=np.uint64)
    assert locate_events(trace, ids)["event_id"].to_list() == ids.tolist()


def test_tracks_carry_their_longest_event(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    with TraceWriter(path, writer="w", shard_rows=2) as out:
        out.add_tracks(
            {
                "track_id": [0, 1],
                "kind": ["engine"] * 2,
                "name": ["a", "b"],
                "sort_order": [0, 1],
                "lane": [0, 0],
                "exclusive": [True] * 2,
                "clock_id": [0, 0],
                "host": ["h"] * 2,
                "replica_count": [1, 1],
            }
        )
        for start, duration in ((0, 7), (10, 9), (20, 8)):
            out.append_events(
                {
                    "track_id": [0],
                    "start_ns": [start],
                    "duration_ns": [duration],
                    "name": ["x"],
                    "category": ["dma"],
                }
            )
    assert open_trace(path).tracks["max_duration_ns"].to_list() == [9, None]


@pytest.mark.parametrize("stop_after", range(12))
def test_sealing_that_stops_anywhere_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    """Stop before the n-th rename, removal or write of the fragment."""
    path = tmp_path / "t.trnprof"
    out = TraceWriter(path, writer="w", shard_rows=100)
    rng = np.random.default_rng(5)
    for _ in range(2):
        out.append_events(random_events(rng, 90))
    out.flush()
    before = open_trace(path).events.sort("event_id").collect()
    calls = 0

    def counted(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > stop_after:
                raise KeyboardInterrupt
            return original(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted(Path.replace))
        patch.setattr(writer, "write_fragment", counted(manifest.write_fragment))
        try:
            out.seal()
        except KeyboardInterrupt:
            assert open_trace(path).fragments[0]["sealed"] is False
    assert open_trace(path).events.sort("event_id").collect().equals(before)


def test_flows_are_sorted_by_target_and_counters_by_track_and_time(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    with TraceWriter(path, writer="w") as out:
        out.append_flows(
            {
                "source_event": [3, 1, 2],
                "target_event": [9, 9, 4],
                "kind": ["data"] * 3,
                "lag_ns": [0, 1, 2],
            }
        )
        out.append_counters(
            {"track_id": [1, 0, 0], "timestamp_ns": [5, 7, 6], "value": [1.0, 2.0, 3.0]}
        )
    trace = open_trace(path)
    flows = trace.flows.collect()
    assert flows.select("target_event", "source_event").rows() == [(4, 2), (9, 1), (9, 3)]
    assert trace.counters.collect().rows() == [(0, 6, 3.0), (0, 7, 2.0), (1, 5, 1.0)]
