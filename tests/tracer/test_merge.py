"""Merged traces hold everything once, keep ids where they can, and tie collectives together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from trnprof.tracer.errors import OutputExistsError, TraceError
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.merge import merge
from trnprof.tracer.reader import Trace, locate_events, open_trace
from trnprof.tracer.writer import TraceWriter

NUMBER = 52  # bits below the writer's number in an event id


def record(path: Path, writer: str, rank: int, seal: bool = True, count: int = 10) -> None:
    out = TraceWriter(path, writer=writer)
    out.add_tracks(
        {
            "track_id": [0],
            "kind": ["collective_stream"],
            "name": [f"rank {rank}"],
            "sort_order": [0],
            "lane": [0],
            "exclusive": [True],
            "clock_id": [0],
            "host": ["h"],
            "rank": [rank],
            "replica_count": [1],
        }
    )
    out.add_groups({"group_id": [rank], "ranks": [[0, 1]], "name": ["tp"]})
    out.add_ops(
        {
            "op_id": np.arange(count),
            "kind": ["collective"] * count,
            "name": ["all_reduce"] * count,
            "group_id": [rank] * count,
            "group_seq": np.arange(count),
        }
    )
    ids = out.reserve(count)
    out.append_events(
        {
            "event_id": ids,
            "track_id": [0] * count,
            "start_ns": np.arange(count)[::-1] * 10,
            "duration_ns": [5] * count,
            "name": [f"all_reduce {rank}"] * count,
            "category": ["collective"] * count,
            "op_id": np.arange(count),
            "blocked_by": pl.Series(ids).shift(-1),
        }
    )
    out.append_flows(
        {
            "source_event": ids[1:],
            "target_event": ids[:-1],
            "kind": ["data"] * (count - 1),
            "lag_ns": [0] * (count - 1),
        }
    )
    if seal:
        out.seal()
        write_manifest(path, system={"name": "trn2"}, notes=[f"rank {rank}"], is_simulation=True)
    else:
        out.flush()


def decoded(trace: Trace, prefix: str) -> pl.DataFrame:
    return (
        trace.events.filter(pl.col("name") == prefix)
        .with_columns(pl.col(pl.Categorical).cast(pl.String))
        .sort("event_id")
        .collect()
    )


def test_traces_of_different_writers_keep_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        record(tmp_path / f"{rank}.trnprof", f"rank{rank}", rank)
    monkeypatch.delenv("RANK")
    paths = [tmp_path / "0.trnprof", tmp_path / "1.trnprof"]
    trace = open_trace(merge(paths, tmp_path / "m.trnprof"))
    assert trace.validate() == []
    assert [(f["writer"], f["number"]) for f in trace.fragments] == [
        ("rank0", 0),
        ("rank1", 1),
        ("merge", 2),
    ]
    for rank, path in enumerate(paths):
        alone = decoded(open_trace(path), f"all_reduce {rank}")
        together = decoded(trace, f"all_reduce {rank}")
        assert alone.drop("track_id", "op_id").equals(together.drop("track_id", "op_id"))
    assert trace.is_simulation
    assert trace.manifest["notes"] == ["rank 0", "rank 1"]
    assert trace.manifest["fragments"] == ["merge", "rank0", "rank1"]


def test_colliding_numbers_and_names_are_renumbered_with_every_reference(tmp_path: Path) -> None:
    paths = [tmp_path / "a.trnprof", tmp_path / "b.trnprof"]
    for rank, path in enumerate(paths):
        record(path, "w", rank)
    trace = open_trace(merge(paths, tmp_path / "m.trnprof"))
    assert trace.validate() == []
    assert [(f["writer"], f["number"]) for f in trace.fragments] == [
        ("w", 0),
        ("w_2", 1),
        ("merge", 2),
    ]
    alone, together = decoded(open_trace(paths[1]), "all_reduce 1"), decoded(trace, "all_reduce 1")
    shift = 1 << NUMBER
    assert (together["event_id"] - shift).equals(alone["event_id"])
    assert (together["blocked_by"] - shift).equals(alone["blocked_by"])
    assert together["start_ns"].equals(alone["start_ns"])
    ids = together["event_id"].to_numpy()[[2, 5]]
    assert (
        locate_events(trace, ids)["start_ns"].to_list()
        == together["start_ns"].gather([2, 5]).to_list()
    )
    data = trace.flows.filter(pl.col("kind") == "data").collect()
    assert data.filter(pl.col("source_event") >= shift).height == 9


def test_collectives_are_tied_across_writers_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a.trnprof", tmp_path / "b.trnprof", tmp_path / "c.trnprof"]
    for rank, path in enumerate(paths):
        record(path, "w", rank, count=10 - rank)
    first = merge(paths[:2], tmp_path / "m.trnprof")
    again = open_trace(merge([first, paths[2]], tmp_path / "n.trnprof"))
    assert again.validate() == []
    found = (
        again.flows.filter(pl.col("kind") == "collective")
        .select("source_event", "target_event")
        .collect()
    )
    numbers = {f["writer"]: f["number"] for f in again.fragments}
    expected = {(i, (numbers["w_2"] << NUMBER) | i) for i in range(9)}
    expected |= {(i, (numbers["w_3"] << NUMBER) | i) for i in range(8)}
    assert len(found) == 17
    assert set(found.rows()) == expected


def test_a_killed_recording_is_sealed_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.trnprof"
    record(path, "w", 0, seal=False)
    trace = open_trace(merge([path], tmp_path / "m.trnprof"))
    assert trace.validate() == []
    assert trace.fragments[0]["sealed"] is True
    assert trace.fragments[0]["warnings"] == ["this recording was stopped before its end"]
    assert trace.tracks["max_duration_ns"].to_list() == [5]
    assert (
        trace.events.sort("event_id")
        .collect()
        .equals(open_trace(path).events.sort("event_id").collect())
    )


def test_a_damaged_file_is_merged_as_far_as_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.trnprof"
    record(path, "w", 0)
    (path / "flows" / "w-0.arrow").write_bytes(b"")
    trace = open_trace(merge([path], tmp_path / "m.trnprof"))
    assert trace.validate() == []
    assert "w-0.arrow is truncated" in trace.fragments[0]["warnings"][0]


def test_peaks_are_joined_and_other_systems_noted(tmp_path: Path) -> None:
    paths = [tmp_path / "a.trnprof", tmp_path / "b.trnprof"]
    for rank, path in enumerate(paths):
        record(path, "w", rank)
        write_manifest(path, system={"name": f"trn{rank}"})
        with TraceWriter(path, writer="peaks") as out:
            out.set_peaks(
                {
                    "track_kind": ["engine"] * 2,
                    "track_name": ["Tensor"] * 2,
                    "dtype": ["bf16", "fp8"],
                    "sparsity": ["dense"] * 2,
                    "flops_per_s": [1.0, 2.0 + rank],
                }
            )
    trace = open_trace(merge(paths, tmp_path / "m.trnprof"))
    assert trace.peaks["flops_per_s"].to_list() == [1.0, 2.0, 3.0]
    assert trace.system["name"] == "trn0"
    assert trace.manifest["notes"] == [
        "the merged traces describe different systems; that of the first is kept"
    ]


def test_where_profiles_came_from_is_kept_with_the_names_their_writers_have_now(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "a.trnprof", tmp_path / "b.trnprof", tmp_path / "c.trnprof"]
    for number, path in enumerate(paths):
        record(path, "rank0", number)
    for name, path in zip("ab", paths, strict=False):
        source = {"label": f"{name}.json", "writer": "rank0", "events": 10}
        write_manifest(path, imported={"sources": [source], "audit": [{"kind": f"doubt {name}"}]})
    imported = open_trace(merge(paths, tmp_path / "m.trnprof")).manifest["imported"]
    assert [(s["label"], s["writer"]) for s in imported["sources"]] == [
        ("a.json", "rank0"),
        ("b.json", "rank0_2"),
    ]
    assert [finding["kind"] for finding in imported["audit"]] == ["doubt a", "doubt b"]


def test_output_is_not_replaced_without_force_and_no_input_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.trnprof"
    record(path, "w", 0)
    with pytest.raises(OutputExistsError, match="exists; give --force to replace it"):
        merge([path], path)
    with pytest.raises(TraceError, match="no trace was given"):
        merge([], tmp_path / "m.trnprof")
    with pytest.raises(TraceError, match="no such trace"):
        merge([path, tmp_path / "zzz"], tmp_path / "m.trnprof")
    before = open_trace(path).events.collect()
    assert open_trace(merge([path], path, force=True)).events.collect().equals(before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.trnprof"]


def test_a_merge_that_fails_leaves_the_old_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.trnprof"
    record(path, "w", 0)

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trnprof.tracer.merge.write_manifest", fail)
    with pytest.raises(KeyboardInterrupt):
        merge([path], path, force=True)
    assert open_trace(path).validate() == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.trnprof"]
