"""A compacted trace is smaller and reads the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trnprof.tracer.compact import compact
from trnprof.tracer.errors import OutputExistsError, TraceError
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.reader import locate_events, open_trace
from trnprof.tracer.schema import TABLES
from trnprof.tracer.writer import TraceWriter


def record(path: Path, seal: bool = True) -> None:
    rng = np.random.default_rng(0)
    out = TraceWriter(path, writer="w", shard_rows=3000, flush_rows=500)
    out.add_tracks(
        {
            "track_id": np.arange(4),
            "kind": ["engine"] * 4,
            "name": list("abcd"),
            "sort_order": np.arange(4),
            "lane": [0] * 4,
            "exclusive": [True] * 4,
            "clock_id": [0] * 4,
            "host": ["h"] * 4,
            "replica_count": [1] * 4,
        }
    )
    out.set_peaks(
        {
            "track_kind": ["engine"],
            "track_name": [""],
            "dtype": ["bf16"],
            "sparsity": ["dense"],
            "flops_per_s": [1e12],
        }
    )
    for first in (0, 2500):
        numbers = np.arange(first, first + 2500)
        out.append_events(
            {
                "track_id": rng.integers(0, 4, 2500),
                "start_ns": numbers * 10,
                "duration_ns": np.full(2500, 10),
                "name": [f"op{i % 5}" for i in range(2500)],
                "category": ["compute"] * 2500,
            }
        )
    out.append_counters({"track_id": [0], "timestamp_ns": [0], "value": [1.0]})
    if seal:
        out.seal()
        write_manifest(path, system={"name": "trn2"})
    else:
        out.flush()


def size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


@pytest.mark.parametrize("in_place", [False, True])
def test_compacted_is_smaller_and_equal(tmp_path: Path, in_place: bool) -> None:
    path = tmp_path / "t.trnprof"
    record(path)
    before, size_before = open_trace(path), size(path)
    expected = {name: getattr(before, name).lazy().collect() for name in TABLES}
    (path / "workload.arrow").write_bytes(b"as it is")
    small = compact(path) if in_place else compact(path, tmp_path / "c.trnprof")
    after = open_trace(small)
    assert size(small) < size_before / 3
    for name, frame in expected.items():
        assert getattr(after, name).lazy().collect().equals(frame), name
    assert after.manifest == before.manifest
    assert [p.kind for p in after.validate()] == ["not_a_counter"]
    assert (small / "workload.arrow").read_bytes() == b"as it is"
    ids = np.array([0, 17, 2499, 1 << 40], np.uint64)
    assert locate_events(after, ids)["start_ns"].to_list() == [0, 170, 24990, 25000]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_killed_recording_is_sealed(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    record(path, seal=False)
    before = open_trace(path).events.sort("event_id").collect()
    after = open_trace(compact(path, tmp_path / "c.trnprof"))
    assert after.events.sort("event_id").collect().equals(before)
    assert after.fragments[0]["sealed"] is True
    assert after.tracks["max_duration_ns"].to_list() == [10] * 4


def test_output_is_not_replaced_without_force(tmp_path: Path) -> None:
    path = tmp_path / "t.trnprof"
    record(path)
    with pytest.raises(OutputExistsError, match="exists; give --force to replace it"):
        compact(path, path)
    with pytest.raises(TraceError, match="no such trace"):
        compact(tmp_path / "u.trnprof")
