"""open_trace joins whatever writers left, and says in one line what is missing or wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from trnprof.tracer.errors import TraceError
from trnprof.tracer.info import summary, summary_lines
from trnprof.tracer.manifest import Clock, write_manifest
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.schema import TABLES, Table
from trnprof.tracer.streams import read_stream
from trnprof.tracer.writer import TraceWriter


def write(path: Path, name: str, tracks: int = 2, **options: Any) -> TraceWriter:
    """A writer with tracks, ops, a group and 100 events on its last track, flushed, not sealed."""
    out = TraceWriter(path, writer=name, flush_rows=20, **options)
    out.add_tracks(
        {
            "track_id": np.arange(tracks),
            "parent_id": [None, *[0] * (tracks - 1)],
            "kind": ["engine"] * tracks,
            "name": [f"{name} {i}" for i in range(tracks)],
            "sort_order": np.arange(tracks),
            "lane": [0] * tracks,
            "exclusive": [True] * tracks,
            "clock_id": [0] * tracks,
            "host": ["host0"] * tracks,
            "replica_count": [1] * tracks,
        }
    )
    out.add_groups({"group_id": [0], "ranks": [[0, 1]], "name": ["tp"]})
    out.add_ops(
        {
            "op_id": [0, 1],
            "parent_id": [None, 0],
            "kind": ["module", "collective"],
            "name": ["Model", "all_reduce"],
            "group_id": [None, 0],
            "group_seq": [None, 0],
        }
    )
    out.append_events(
        {
            "track_id": np.full(100, tracks - 1),
            "start_ns": np.arange(100) * 10,
            "duration_ns": np.full(100, 10),
            "name": [f"{name}{i % 7}" for i in range(100)],
            "category": ["compute"] * 100,
            "op_id": np.full(100, 1),
        }
    )
    out.flush()
    return out


def test_ids_of_writers_are_rebased_and_references_with_them(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    for name, tracks in (("a", 2), ("b", 3), ("c", 1)):
        write(path, name, tracks).seal()
    trace = open_trace(path)
    assert [f["track_base"] for f in trace.fragments] == [0, 2, 5]
    assert [f["op_base"] for f in trace.fragments] == [0, 2, 4]
    assert trace.tracks["track_id"].to_list() == [0, 1, 2, 3, 4, 5]
    assert trace.tracks["parent_id"].to_list() == [None, 0, None, 2, 2, None]
    ops = trace.ops.collect()
    assert ops["parent_id"].to_list() == [None, 0, None, 2, None, 4]
    assert ops["group_id"].to_list() == [None, 0, None, 1, None, 2]
    by_name = trace.events.group_by(pl.col("name").cast(pl.String).str.head(1)).agg(
        pl.col("track_id", "op_id").unique().first(), pl.len()
    )
    assert by_name.sort("name").collect().rows() == [
        ("a", 1, 1, 100),
        ("b", 4, 3, 100),
        ("c", 5, 5, 100),
    ]
    assert [p.kind for p in trace.validate()] == ["no_manifest"]


def test_sealed_and_unsealed_writers_mix(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    write(path, "a").seal()
    write(path, "b")
    write(path, "c").seal()
    trace = open_trace(path)
    assert trace.events.select("track_id", pl.len().over("track_id")).unique().sort(
        "track_id"
    ).collect().rows() == [
        (1, 100),
        (3, 100),
        (5, 100),
    ]
    assert trace.events.collect()["event_id"].n_unique() == 300
    assert {(p.severity, p.kind) for p in trace.problems} == {
        ("warning", "unsealed"),
        ("warning", "no_manifest"),
    }
    names = trace.events.filter(pl.col("name") == "b3").collect()
    assert names.height == 14


def test_every_table_of_an_empty_recording_has_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    with TraceWriter(path, writer="w"):
        pass
    write(tmp_path / "full.trnprof", "w").seal()
    trace, full = open_trace(path), open_trace(tmp_path / "full.trnprof")
    for name, table in TABLES.items():
        frame = getattr(trace, name).lazy().collect()
        assert frame.height == 0
        assert tuple(frame.columns) == table.names
        assert frame.schema == getattr(full, name).lazy().collect_schema()
    assert [p.kind for p in trace.validate()] == ["no_manifest"]


def test_equal_clocks_are_one_and_different_ones_get_new_ids(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    for name, epoch in (("a", 7), ("b", 7), ("c", 9)):
        write(path, name, clocks=[Clock(0, "host", epoch)]).seal()
    trace = open_trace(path)
    assert trace.tracks["clock_id"].to_list() == [0, 0, 0, 0, 1, 1]
    assert [f["clocks"][0]["clock_id"] for f in trace.fragments] == [0, 0, 1]


def test_a_writer_stopped_before_its_first_byte_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    write(path, "a").seal()
    (path / "manifest.d" / "b.json").touch()
    problems = open_trace(path).problems
    assert [p.message for p in problems if p.kind == "unsealed"] == [
        "writer b was stopped before it wrote anything"
    ]


def test_a_stopped_seal_counts_no_row_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    write(path, "a")
    stream = (path / "events" / "a-0.arrows").read_bytes()
    write(tmp_path / "u.trnprof", "a").seal()
    (path / "events" / "a-0.arrow").write_bytes(
        (tmp_path / "u.trnprof/events/a-0.arrow").read_bytes()
    )
    assert open_trace(path).events.collect().height == 100
    fragment = json.loads((tmp_path / "u.trnprof/manifest.d/a.json").read_text()) | {
        "sealed": False
    }
    (path / "manifest.d" / "a.json").write_text(json.dumps(fragment))
    (path / "events" / "a-0.arrows").write_bytes(stream)
    assert open_trace(path).events.collect().height == 100


def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "t.trnprof"
    write(path, "a").seal()
    write(path, "b").seal()
    write_manifest(path)
    assert open_trace(path).validate() == []
    return path


@pytest.mark.parametrize("table", ["events", "tracks", "ops"])
def test_a_missing_sealed_file_is_told_and_the_rest_reads(tmp_path: Path, table: str) -> None:
    path = sealed(tmp_path)
    file = path / table / ("a-0.arrow" if table == "events" else "a.arrow")
    file.unlink()
    trace = open_trace(path)
    (problem,) = trace.problems
    assert (problem.severity, problem.kind) == ("error", "missing_file")
    assert file.name in problem.message
    assert trace.events.collect().height == (100 if table == "events" else 200)


def test_a_truncated_sealed_file_gives_its_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnprof.tracer.seal.BATCH_ROWS", 30)
    path = sealed(tmp_path)
    file = path / "events" / "a-0.arrow"
    data = file.read_bytes()
    seen = set()
    for size in range(0, len(data), max(1, len(data) // 60)):
        file.write_bytes(data[:size])
        trace = open_trace(path)
        (problem,) = trace.problems
        assert (problem.severity, problem.kind) == ("error", "damaged_file")
        assert f"is truncated ({size} bytes" in problem.message
        found = trace.events.filter(pl.col("track_id") == 1).collect()
        assert found["start_ns"].to_list() == [10 * i for i in range(found.height)]
        seen.add(found.height)
    assert seen == {0, 30, 60, 90, 100}


def test_a_sealed_file_without_its_footer_is_read_from_the_front(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    file = path / "events" / "a-0.arrow"
    data = file.read_bytes()
    file.write_bytes(data[:-10] + bytes(10))
    trace = open_trace(path)
    assert [p.kind for p in trace.problems] == ["damaged_file"]
    assert trace.events.collect().height == 200


def test_sealed_shards_are_not_read_on_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sealed(tmp_path)

    def refuse_events(path: Path, table: Table, skip_bytes: int = 0) -> Any:
        assert table.name != "events"
        return read_stream(path, table, skip_bytes)

    monkeypatch.setattr("trnprof.tracer.shards.read_stream", refuse_events)
    assert open_trace(path).events.select(pl.len()).collect().item() == 200


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_schema_version_is_refused(tmp_path: Path, version: Any) -> None:
    path = sealed(tmp_path)
    file = path / "manifest.d" / "b.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": version}))
    expected = f"{file}: trace schema {version!r}, but trnprof 0.1.0 reads 1; use the trnprof version that wrote it (0.1.0)"
    with pytest.raises(TraceError, match=f"^{re.escape(expected)}$"):
        open_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"schema": 1,\n "writer": oops}',
            "malformed fragment: Expecting value at line 2 column 12",
        ),
        ("[]", "malformed fragment: not a JSON object"),
        (b'{"a": "\xff"}', "malformed fragment: not UTF-8 at byte 7"),
        ('{"schema": 1}', "malformed fragment: 'writer' is missing or not a str"),
    ],
)
def test_a_malformed_fragment_is_named_with_the_place(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = sealed(tmp_path)
    file = path / "manifest.d" / "b.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    assert str(caught.value).startswith(f"{file}: {message}")


def test_paths_that_are_no_trace_are_told_apart(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "file.json").write_text("{}")
    (tmp_path / "bare" / "manifest.d").mkdir(parents=True)
    cases = {
        tmp_path / "tt.trnprof": f"no such trace: {tmp_path / 'tt.trnprof'}; did you mean {path}?",
        tmp_path / "t": f"no such trace: {tmp_path / 't'}; did you mean {path}?",
        empty / "x": f"no such trace: {empty / 'x'}",
        tmp_path
        / "file.json": f"{tmp_path / 'file.json'} is a file, not a trace: a trace is a directory NAME.trnprof "
        "(an exported profile must be imported first)",
        empty: f"{empty} is not a trace: the directory is empty",
        tmp_path: f"{tmp_path} is not a trace: it has no manifest.d/; did you mean {tmp_path / 'bare'}?",
        tmp_path / "bare": f"{tmp_path / 'bare'} is an empty trace: no writer has started in it",
    }
    for place, message in cases.items():
        with pytest.raises(TraceError) as caught:
            open_trace(place)
        assert str(caught.value) == message


def test_a_writer_of_the_manifest_without_fragment_is_told(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    (path / "manifest.d" / "b.json").unlink()
    (problem,) = open_trace(path).problems
    assert (problem.kind, problem.severity) == ("missing_fragment", "error")


def test_summary_counts_what_is_there(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    found = summary(open_trace(path))
    assert found["rows"] == {
        "tracks": 4,
        "ops": 4,
        "groups": 2,
        "steps": 0,
        "peaks": 0,
        "events": 200,
        "flows": 0,
        "counters": 0,
    }
    assert found["clocks"] == [{"clock_id": 0, "start_ns": 0, "end_ns": 1000, "events": 200}]
    assert found["events_by_category"] == {"compute": 200}
    assert found["size_bytes"] == sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    json.dumps(found)
    assert "clock 0     200 events over 1 µs" in summary_lines(found)


def test_a_trace_made_of_frames_needs_no_directory(tmp_path: Path) -> None:
    trace = open_trace(sealed(tmp_path))
    bare = Trace(
        path=Path("nowhere"),
        manifest={},
        fragments=(),
        **{name: getattr(trace, name) for name in TABLES},
    )
    assert bare.validate() == []
    assert summary(bare)["rows"]["events"] == 200
