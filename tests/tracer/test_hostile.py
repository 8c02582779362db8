"""Traces that nobody of good will wrote, and operations that could lose one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from trnprof.tracer.batches import ColumnError
from trnprof.tracer.compact import compact
from trnprof.tracer.errors import TraceError, WriteError
from trnprof.tracer.manifest import Clock, create_trace_directory, write_manifest
from trnprof.tracer.merge import merge
from trnprof.tracer.reader import open_trace
from trnprof.tracer.writer import TraceWriter


def _columns(rows: int, start_ns: int = 0) -> dict[str, Any]:
    return {
        "track_id": np.zeros(rows, np.uint32),
        "start_ns": np.arange(start_ns, start_ns + 10 * rows, 10),
        "duration_ns": np.full(rows, 5),
        "name": ["n"] * rows,
        "category": ["compute"] * rows,
    }


def _writer(path: Path, name: str, tracks: int = 1, epoch: int | None = None) -> TraceWriter:
    writer = TraceWriter(path, writer=name, clocks=[Clock(0, "host", epoch)], flush_rows=10)
    writer.add_tracks(
        {
            "track_id": np.arange(tracks),
            "kind": ["engine"] * tracks,
            "name": [f"t{i}" for i in range(tracks)],
            "sort_order": np.arange(tracks),
            "lane": [0] * tracks,
            "exclusive": [True] * tracks,
            "clock_id": [0] * tracks,
            "host": ["h"] * tracks,
            "replica_count": [1] * tracks,
        }
    )
    return writer


def _recorded(path: Path, name: str = "a", rows: int = 100) -> Path:
    with _writer(path, name) as writer:
        writer.append_events(_columns(rows))
    write_manifest(path)
    return path


def _edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rows", "x"),
        ("rows", None),
        ("rows", -5),
        ("bytes", "x"),
        ("table", []),
        ("file", 3),
        ("file", "../outside.arrow"),
        ("file", "events/../../a-0.arrow"),
        ("rows_index", "/outside.arrow"),
        ("tracks_index", 3),
    ],
)
def test_distorted_shard_is_refused_with_its_place(tmp_path: Path, key: str, value: object) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    _edit(path / "manifest.d" / "a.json", lambda d: d["shards"][0].update({key: value}))
    with pytest.raises(TraceError, match=r"a\.json: malformed fragment: shards\[0\]"):
        open_trace(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("writer", "b"), ("number", -1), ("number", 4096), ("clocks", [3]), ("clocks", [{}])],
)
def test_distorted_fragment_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    _edit(path / "manifest.d" / "a.json", lambda d: d.update({key: value}))
    with pytest.raises(TraceError, match=r"a\.json: malformed fragment"):
        open_trace(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("fragments", 3), ("fragments", None), ("system", "x"), ("is_simulation", "no"), ("notes", 1)],
)
def test_distorted_manifest_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    _edit(path / "manifest.json", lambda d: d.update({key: value}))
    with pytest.raises(TraceError, match=r"manifest\.json: malformed manifest"):
        open_trace(path)


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    (path / "manifest.d" / "a.json").write_text("[" * 100_000)
    with pytest.raises(TraceError, match="malformed fragment"):
        open_trace(path)


def test_merge_writes_nothing_outside_its_output(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "in" / "deep" / "t.trnprof")
    fragment = path / "manifest.d" / "a.json"
    _edit(fragment, lambda d: d.update(writer="../../../outside", shards=[]))
    with pytest.raises(TraceError):
        merge([path], tmp_path / "in" / "deep" / "o.trnprof")
    assert not list(tmp_path.rglob("*outside*"))


def test_compacting_in_place_never_takes_a_trace_from_its_running_writer(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    writer = _writer(path, "a")
    writer.append_events(_columns(100))
    writer.flush()
    with pytest.raises(TraceError, match="not sealed"):
        compact(path)
    writer.append_events(_columns(1, start_ns=5_000))
    writer.seal()
    assert open_trace(path).events.collect().height == 101


@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_compacting_in_place_keeps_a_damaged_trace_for_repair(tmp_path: Path, damage: str) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    file = path / "events" / "a-0.arrow"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 3] ^= 1
    broken = bytes(data[: len(data) // 2] if damage == "truncate" else data)
    file.write_bytes(broken)
    with pytest.raises(TraceError, match="damaged"):
        compact(path)
    assert file.read_bytes() == broken
    assert compact(path, tmp_path / "kept.trnprof").is_dir()


def test_compacting_in_place_carries_other_files_over(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    (path / "notes.txt").write_text("mine")
    (path / "extra").mkdir()
    (path / "extra" / "more.txt").write_text("too")
    compact(path)
    assert (path / "notes.txt").read_text() == "mine"
    assert (path / "extra" / "more.txt").read_text() == "too"


def test_a_dangling_id_is_not_taken_for_the_next_writers(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    with _writer(path, "a", tracks=2) as writer:
        writer.append_events({**_columns(1), "track_id": [3], "op_id": [0]})
    with _writer(path, "b", tracks=4) as writer:
        writer.add_ops({"op_id": [0], "kind": ["aten"], "name": ["mm"]})
        writer.append_events({**_columns(1), "op_id": [0]})
    found = {p.kind: p.count for p in open_trace(path).validate() if p.severity == "error"}
    assert found == {"dangling_track": 1, "dangling_op": 1}


def test_damaged_stream_metadata_never_reaches_polars(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    writer = _writer(path, "a")
    writer.append_events(_columns(20))
    writer.flush()
    stream = path / "events" / "a-0.arrows"
    data = stream.read_bytes()
    word = b"open at the end"  # metadata of events.duration_ns
    assert word in data
    stream.write_bytes(data.replace(word, b"\xff" + word[1:], 1))
    assert open_trace(path).events.collect().height == 20


def test_too_many_distinct_datatypes_are_told_in_one_line(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "t.trnprof", "a")
    for block in range(4):
        dtypes = [f"d{block * 50 + i}" for i in range(50)]
        writer.append_events({**_columns(50, start_ns=1_000 * block), "dtype": dtypes})
    with pytest.raises(ColumnError, match="distinct values"):
        writer.seal()
    assert open_trace(tmp_path / "t.trnprof").events.collect().height == 200


def test_merge_refuses_one_trace_twice_and_an_output_inside_an_input(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "t.trnprof")
    with pytest.raises(TraceError, match="twice"):
        merge([path, tmp_path / "." / "t.trnprof"], tmp_path / "o.trnprof")
    with pytest.raises(TraceError, match="inside"):
        merge([path], path / "o.trnprof")


def _rank(path: Path, name: str, start_ns: int, epoch: int | None, ranks: list[int]) -> Path:
    with _writer(path, name, epoch=epoch) as writer:
        writer.add_groups(
            {"group_id": [0], "ranks": pa.array([ranks], pa.list_(pa.int32())), "name": ["tp"]}
        )
        writer.add_ops(
            {
                "op_id": [0],
                "kind": ["collective"],
                "name": ["all_reduce"],
                "group_id": [0],
                "group_seq": [0],
            }
        )
        writer.append_events(
            {
                **_columns(2, start_ns=start_ns),
                "name": [name] * 2,
                "category": ["collective"] * 2,
                "op_id": [0, 0],
            }
        )
    return path


def _collectives(path: Path) -> list[tuple[str, str]]:
    trace = open_trace(path)
    events = trace.events.collect()
    name = dict(zip(events["event_id"], events["name"].cast(pl.String), strict=True))
    flows = trace.flows.filter(pl.col("kind").cast(pl.String) == "collective").collect()
    return [(name[s], name[t]) for s, t in flows.select("source_event", "target_event").iter_rows()]


@pytest.mark.parametrize(
    ("epochs", "last"), [((None, None, None), "r1"), ((10**18, 10**18 - 900, 10**18 + 700), "r2")]
)
def test_the_last_to_arrive_releases_the_others(
    tmp_path: Path, epochs: tuple[int | None, ...], last: str
) -> None:
    starts = (0, 800, 300)
    parts = [
        _rank(tmp_path / f"{i}.trnprof", f"r{i}", starts[i], epochs[i], [0, 1, 2]) for i in range(3)
    ]
    merged = merge(parts, tmp_path / "m.trnprof")
    others = sorted({"r0", "r1", "r2"} - {last})
    assert sorted(_collectives(merged)) == [(last, other) for other in others]


def test_groups_of_one_name_and_other_ranks_are_not_linked(tmp_path: Path) -> None:
    parts = [
        _rank(tmp_path / "0.trnprof", "r0", 0, None, [0, 1]),
        _rank(tmp_path / "1.trnprof", "r2", 0, None, [2, 3]),
    ]
    assert _collectives(merge(parts, tmp_path / "m.trnprof")) == []


def test_arguments_that_are_not_utf8_are_shown_as_well_as_can_be(tmp_path: Path) -> None:
    write_manifest(create_trace_directory(tmp_path / "t", force=False), command=["x", "\udcff"])
    assert open_trace(tmp_path / "t").manifest["command"] == ["x", "?"]


def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="not valid UTF-8"):
        create_trace_directory(tmp_path / "\udcff.trnprof", force=False)
