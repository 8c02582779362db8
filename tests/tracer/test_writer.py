"""What TraceWriter writes is what open_trace reads, whatever happens in between."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from trnprof.tracer.batches import ColumnError
from trnprof.tracer.compact import compact
from trnprof.tracer.errors import OutputExistsError, WriteError
from trnprof.tracer.files import write_error
from trnprof.tracer.manifest import claim, create_trace_directory, write_manifest
from trnprof.tracer.reader import open_trace
from trnprof.tracer.schema import CATEGORIES, MEMORIES, SEQUENCE_BITS, WAIT_REASONS
from trnprof.tracer.writer import Clock, TraceWriter


def lane_events(first: int, count: int, track: int = 0) -> dict[str, Any]:
    """Events of 5 ns, one every 10 ns."""
    return {
        "track_id": np.full(count, track, np.uint32),
        "start_ns": np.arange(first, first + count) * 10,
        "duration_ns": np.full(count, 5),
        "name": [f"op{i % 3}" for i in range(count)],
        "category": ["compute"] * count,
    }


def one_track(track: int = 0) -> dict[str, Any]:
    return {
        "track_id": [track],
        "kind": ["engine"],
        "name": ["Tensor"],
        "sort_order": [0],
        "lane": [0],
        "exclusive": [True],
        "clock_id": [0],
        "host": ["host0"],
        "replica_count": [1],
    }


def read(path: Path) -> pl.DataFrame:
    return open_trace(path).events.sort("event_id").collect()


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
ROW = st.fixed_dictionaries(
    {
        "track_id": st.integers(0, 3),
        "start_ns": st.integers(-(2**62), 2**62),
        "duration_ns": nullable(st.integers(0, 2**40)),
        "name": WORDS,
        "category": st.sampled_from(CATEGORIES),
        "op_id": nullable(st.integers(0, 2**32 - 1)),
        "step": nullable(st.integers(-(2**31), 2**31 - 1)),
        "dtype": nullable(st.sampled_from(["bf16", "fp8", ""])),
        "is_transpose": nullable(st.booleans()),
        "flops": nullable(st.floats(allow_nan=False)),
        "bytes": nullable(INT64),
        "source_memory": nullable(st.sampled_from(MEMORIES)),
        "target_memory": nullable(st.sampled_from(MEMORIES)),
        "descriptor_bytes": nullable(st.integers(0, 2**31 - 1)),
        "ready_ns": nullable(INT64),
        "blocked_by": nullable(st.integers(0, 2**64 - 1)),
        "wait_reason": nullable(st.sampled_from(WAIT_REASONS)),
        "attributes": nullable(WORDS),
    }
)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    flush_rows=st.integers(1, 9),
    shard_rows=st.integers(3, 40),
    piece=st.integers(1, 7),
)
def test_any_columns_read_back_equal_unsealed_sealed_and_compacted(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    flush_rows: int,
    shard_rows: int,
    piece: int,
) -> None:
    path = tmp_path_factory.mktemp("trip") / "t.trnprof"
    writer = TraceWriter(
        path, writer="w", flush_rows=flush_rows, shard_rows=shard_rows, flush_seconds=1e9
    )
    ids: list[int] = []
    for first in range(0, len(rows), piece):
        part = rows[first : first + piece]
        ids += writer.append_events({k: [r[k] for r in part] for k in part[0]}).tolist()
    writer.flush()

    def check() -> None:
        found = read(path).with_columns(pl.col(pl.Categorical).cast(pl.String))
        expected = sorted(
            ({"event_id": i, **row} for i, row in zip(ids, rows, strict=True)),
            key=lambda r: r["event_id"],
        )
        assert found.to_dicts() == expected

    check()
    writer.seal()
    check()
    compact(path)
    check()


def test_numpy_arrow_and_polars_columns_read_back_the_same(tmp_path: Path) -> None:
    numbers = np.arange(100)
    words = [f"w{i % 7}" for i in numbers]
    forms = {
        "numpy": (numbers, words),
        "arrow": (pa.array(numbers), pa.array(words).dictionary_encode()),
        "polars": (pl.Series(numbers), pl.Series(words, dtype=pl.Categorical)),
        "strings": (pa.array(numbers, pa.int32()), pl.Series(words)),
        "chunked": (
            pa.chunked_array([numbers[:50], numbers[50:]]),
            pa.chunked_array(
                [pa.array(words[:9]).dictionary_encode(), pa.array(words[9:]).dictionary_encode()]
            ),
        ),
        "enum": (numbers, pl.Series(words, dtype=pl.Enum(sorted(set(words))))),
    }
    found = []
    for name, (starts, names) in forms.items():
        path = tmp_path / f"{name}.trnprof"
        with TraceWriter(path, writer="w") as writer:
            columns = lane_events(0, 100) | {"start_ns": starts, "name": names}
            writer.append_events(columns)
        found.append(read(path))
    for other in found[1:]:
        assert_frame_equal(found[0], other)
    assert found[0]["name"].cast(pl.String).to_list() == words


def test_caller_may_reuse_its_arrays(tmp_path: Path) -> None:
    columns = lane_events(0, 10)
    with TraceWriter(tmp_path / "t.trnprof", writer="w") as writer:
        writer.append_events(columns)
        columns["start_ns"][:] = -1
    assert read(tmp_path / "t.trnprof")["start_ns"].to_list() == list(range(0, 100, 10))


def test_reserved_ids_stay_in_their_shard_whenever_they_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    with TraceWriter(path, writer="w", shard_rows=10) as writer:
        writer.add_tracks(one_track())
        early = writer.reserve(4)
        assert (np.diff(early) == 1).all()
        later = writer.append_events(lane_events(10, 8))
        assert set((later >> np.uint64(SEQUENCE_BITS)).tolist()) == {1}
        writer.append_events({"event_id": early, **lane_events(0, 4)})
    trace = open_trace(path)
    assert [s.number for s in trace.shards] == [0, 1]
    assert [s.frame.collect().height for s in trace.shards] == [4, 8]
    assert [p.kind for p in trace.validate()] == ["no_manifest"]


def test_one_batch_over_several_shards_is_split_by_start(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    columns = lane_events(0, 25)
    columns["start_ns"] = columns["start_ns"][::-1].copy()
    with TraceWriter(path, writer="w", shard_rows=10) as writer:
        ids = writer.append_events(columns)
    entries = [e for e in open_trace(path).fragments[0]["shards"] if e["table"] == "events"]
    assert [(e["start_ns"], e["end_ns"], e["rows"]) for e in entries] == [
        (0, 95, 10),
        (100, 195, 10),
        (200, 245, 5),
    ]
    by_id = dict(read(path).select("event_id", "start_ns").iter_rows())
    assert [by_id[i] for i in ids.tolist()] == columns["start_ns"].tolist()


def test_ids_not_reserved_or_used_twice_are_refused(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.trnprof", writer="w") as writer:
        ids = writer.reserve(3)
        with pytest.raises(
            ColumnError, match=f"{int(ids[-1]) + 1} was not reserved by this writer"
        ):
            writer.append_events({"event_id": ids + np.uint64(1), **lane_events(0, 3)})
        writer.append_events({"event_id": ids, **lane_events(0, 3)})
        with pytest.raises(ColumnError, match="used twice"):
            writer.append_events({"event_id": ids, **lane_events(0, 3)})
        with pytest.raises(ValueError, match=r"not within 0\.\.4000000"):
            writer.reserve(4_000_001)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": [1, 2]}, "table events has no column 'colour'; it has event_id, track_id"),
        ({"start_ns": [1]}, "events.start_ns: 1 values, but event_id has 2"),
        (
            {"start_ns": [1, None]},
            "events.start_ns: null in row 1, but this column may not be null",
        ),
        ({"track_id": np.array([1, -1])}, "events.track_id: values do not fit uint32"),
        ({"track_id": [1, 2**32]}, "events.track_id: values do not fit uint32"),
        ({"duration_ns": np.array([0.5, 1.0])}, "events.duration_ns: values do not fit int64"),
        (
            {"category": ["compute", "cooking"]},
            "events.category: unknown value 'cooking'; known are compute, dma",
        ),
        ({"name": "ab"}, "events.name: one string where a column of values is expected"),
        ({"name": [1, 2]}, "events.name: values do not fit dictionary"),
    ],
)
def test_columns_that_do_not_fit_are_refused_and_nothing_is_written(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with TraceWriter(tmp_path / "t.trnprof", writer="w") as writer:
        with pytest.raises(ColumnError) as caught:
            writer.append_events(lane_events(0, 2) | change)
        assert str(caught.value).startswith(message)
    assert open_trace(tmp_path / "t.trnprof").events.collect().is_empty()


def test_too_many_values_for_small_keys_are_told_and_what_was_flushed_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    writer = TraceWriter(path, writer="w", flush_rows=100)
    for letter in "ab":
        writer.append_events(lane_events(0, 100) | {"dtype": [f"{letter}{i}" for i in range(100)]})
    with pytest.raises(ColumnError, match="more than 127 distinct values in a column of small"):
        writer.seal()
    assert open_trace(path).events.collect()["dtype"].n_unique() == 200


def test_missing_required_column_is_named(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.trnprof", writer="w")
    with pytest.raises(ValueError, match="table tracks: column 'host' is missing"):
        writer.add_tracks({k: v for k, v in one_track().items() if k != "host"})


def claim_many(path: Path, prefix: str, count: int) -> list[int]:
    return [claim(path, f"{prefix}{i}") for i in range(count)]


def test_racing_processes_never_share_a_number(tmp_path: Path) -> None:
    with get_context("spawn").Pool(2) as pool:
        jobs = [pool.apply_async(claim_many, (tmp_path, p, 150)) for p in "ab"]
        numbers = [n for job in jobs for n in job.get(60)]
    assert sorted(numbers) == list(range(300))


def test_rank_decides_the_number_if_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    assert [claim(tmp_path, f"w{i}") for i in range(3)] == [5, 0, 1]


def test_a_taken_name_is_refused_and_gives_its_number_back(tmp_path: Path) -> None:
    claim(tmp_path, "w")
    with pytest.raises(WriteError, match="a writer named 'w' is there already"):
        claim(tmp_path, "w")
    assert claim(tmp_path, "v") == 1
    with pytest.raises(WriteError, match=r"writer name '\.\./x': use 1 to 100 letters"):
        claim(tmp_path, "../x")


KILLED = """
import os, signal, sys
import numpy as np
from trnprof.tracer.writer import TraceWriter
sys.path.insert(0, sys.argv[2])
writer = TraceWriter(sys.argv[1], writer="w", flush_rows=100)
n = 70
for i in range(10**9):
    writer.append_events(dict(track_id=np.zeros(n, np.uint32), start_ns=np.arange(i * n, (i + 1) * n) * 10,
        duration_ns=np.full(n, 5), name=[f"op{j % 3}" for j in range(n)], category=["compute"] * n))
    if i == 20:
        print("going", flush=True)
"""


def test_a_recording_that_was_killed_opens_with_what_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    command = [sys.executable, "-c", KILLED, str(path), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
        process.kill()
    trace = open_trace(path)
    found = trace.events.collect()
    expected = lane_events(0, found.height)
    assert found.height >= 20 * 70
    assert found["start_ns"].to_list() == expected["start_ns"].tolist()
    assert found["name"].cast(pl.String).to_list() == [
        f"op{(i % 70) % 3}" for i in range(found.height)
    ]
    assert {p.kind for p in trace.problems} <= {"unsealed", "no_manifest", "torn_stream"}
    assert "unsealed" in {p.kind for p in trace.problems}


def test_rows_are_flushed_by_time(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.trnprof", writer="w", flush_seconds=0.0) as writer:
        writer.append_events(lane_events(0, 3))
        assert open_trace(tmp_path / "t.trnprof").events.collect().height == 3


def test_with_block_seals_after_an_error_and_raises_it(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.trnprof", writer="w")

    def interrupted() -> None:
        with writer:
            writer.append_events(lane_events(0, 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    trace = open_trace(tmp_path / "t.trnprof")
    assert trace.fragments[0]["sealed"] is True
    assert trace.events.collect().height == 3
    with pytest.raises(WriteError, match="this writer is sealed; nothing more can be written"):
        writer.append_events(lane_events(0, 3))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "tiny"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs is not permitted here: {done.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk_is_told_and_leaves_what_was_whole(tiny_disk: Path) -> None:
    path = tiny_disk / "t.trnprof"

    def fill() -> None:
        with TraceWriter(path, writer="w", flush_rows=500) as writer:
            for first in range(0, 100_000, 500):
                writer.append_events(lane_events(first, 500))

    with pytest.raises(WriteError, match=r"cannot write .*the disk is full: free space"):
        fill()
    found = open_trace(path).events.collect()
    assert 1000 < found.height < 100_000
    assert found["start_ns"].to_list() == [10 * i for i in range(found.height)]


def test_a_read_only_file_system_is_told(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(WriteError, match="the file system is read-only: write elsewhere"):
        TraceWriter(tiny_disk / "t.trnprof", writer="w")


def test_a_disk_that_fills_while_sealing_keeps_the_streams(tiny_disk: Path) -> None:
    path = tiny_disk / "t.trnprof"
    writer = TraceWriter(path, writer="w", flush_rows=8000)
    writer.append_events(lane_events(0, 8000))
    with pytest.raises(WriteError, match="the disk is full"):
        writer.seal()
    assert open_trace(path).events.collect().height == 8000
    assert not list(path.rglob("*.tmp"))


def test_a_removed_directory_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    writer = TraceWriter(path, writer="w")
    writer.append_events(lane_events(0, 3))
    writer.flush()
    path.rename(tmp_path / "elsewhere")
    writer.append_events(lane_events(3, 3))
    with pytest.raises(WriteError, match="the directory is gone: was it removed"):
        writer.flush()
    with pytest.raises(WriteError, match="this writer is broken"):
        writer.append_events(lane_events(6, 3))
    assert open_trace(tmp_path / "elsewhere").events.collect().height == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only directories")
def test_a_read_only_directory_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(WriteError, match="permission denied: make the directory writable"):
        TraceWriter(tmp_path / "t.trnprof", writer="w")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.ENOTDIR, "a part of the path is a file"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_operating_system_errors_become_advice(code: int, advice: str) -> None:
    message = str(write_error(OSError(code, os.strerror(code)), "x.trnprof"))
    assert message.startswith(f"cannot write x.trnprof: {advice}")


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="a part of the path is a file, not a directory"):
        TraceWriter(tmp_path / "file" / "t.trnprof", writer="w")


def test_create_trace_directory_replaces_only_traces(tmp_path: Path) -> None:
    path = create_trace_directory(tmp_path / "a" / "t.trnprof", force=False)
    with pytest.raises(OutputExistsError, match="exists; give --force to replace it"):
        create_trace_directory(path, force=False)
    (path / "old").write_text("")
    assert not (create_trace_directory(path, force=True) / "old").exists()
    with pytest.raises(OutputExistsError, match="exists and is not a trace; choose another path"):
        create_trace_directory(tmp_path / "a", force=True)
    assert path.exists()


def test_reproducible_traces_are_equal_and_name_no_clock_nor_command(tmp_path: Path) -> None:
    for name, epoch in (("a", 17), ("b", 18)):
        clock = Clock(0, "host", epoch)
        path = tmp_path / f"{name}.trnprof"
        with TraceWriter(
            path, writer="w", clocks=[clock], command=[name], reproducible=True
        ) as writer:
            writer.add_tracks(one_track())
            writer.append_events(lane_events(0, 1000))
        write_manifest(path, command=[name], reproducible=True)
    a, b = (
        {
            p.relative_to(tmp_path / f"{n}.trnprof"): p.read_bytes()
            for p in (tmp_path / f"{n}.trnprof").rglob("*")
            if p.is_file()
        }
        for n in "ab"
    )
    assert a == b


def test_manifest_lists_the_fragments(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.trnprof", writer="w"):
        pass
    write_manifest(tmp_path / "t.trnprof", is_simulation=True, system={"name": "trn2"}, seed=7)
    manifest = json.loads((tmp_path / "t.trnprof" / "manifest.json").read_text())
    assert (manifest["fragments"], manifest["seed"], manifest["schema"]) == (["w"], 7, 1)
    trace = open_trace(tmp_path / "t.trnprof")
    assert trace.is_simulation
    assert trace.system["name"] == "trn2"
