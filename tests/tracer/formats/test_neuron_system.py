"""System profiles in JSON: the viewers' file with its older and newer spellings, and the runtime's live starts and stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged, table

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron import system_events as neuron_system_events
from trnprof.tracer.formats.neuron.system import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.reader import open_trace

UNIX = 1_760_000_000_000_000_000
Row = dict[str, Any]


def written(tmp_path: Path, document: Any, name: str = "system_profile.json") -> Path:
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def stage_of(tmp_path: Path, document: Any) -> Stage:
    return staged(FORMAT, written(tmp_path, document), tmp_path / "stage")


def viewed() -> list[Row]:
    """As the viewers write it: ids as text, a unit, framework rows by their type."""
    common: Row = {"timestamp_unit": "ns", "instance_id": "i-7", "process_id": "4242"}
    return [
        {
            **common,
            "name": "nrt_execute",
            "timestamp": UNIX,
            "duration": 900,
            "thread_id": 5,
            "group": "nrt-nc-000",
            "lnc_idx": "0",
            "type": 3,
            "exec_id": 1,
            "model_name": "/m/graph.neff",
        },
        {
            **common,
            "name": "nc_exec_running",
            "timestamp": UNIX + 100,
            "duration": 700,
            "nc_idx": 0,
            "device_core_idx": 0,
            "exec_id": 1,
            "worker_gid": 6,
        },
        {
            **common,
            "name": "nc_exec_running",
            "timestamp": UNIX + 100,
            "duration": 690,
            "nc_idx": 0,
            "device_core_idx": 1,
            "exec_id": 1,
            "worker_gid": 6,
        },
        {
            **common,
            "name": "cc_running",
            "timestamp": UNIX + 150,
            "duration": 50,
            "nc_idx": 0,
            "worker_gid": 6,
        },
        {
            **common,
            "name": "cc_exec_barrier",
            "timestamp": UNIX + 120,
            "duration": 20,
            "nc_idx": 0,
            "worker_gid": 6,
        },
        {
            **common,
            "name": "timestamp_sync_point",
            "timestamp": UNIX + 90,
            "duration": 0,
            "nc_idx": 0,
        },
        {
            **common,
            "name": "aten::mm",
            "timestamp": UNIX - 50,
            "duration": 2_000,
            "group": "framework-77",
            "type": 99999,
        },
        {
            **common,
            "name": "dmem_buf_copyout",
            "timestamp": UNIX + 950,
            "duration": 30,
            "thread_id": 5,
            "size": 4096,
            "tensor_name": "out",
        },
        {
            **common,
            "name": "nrt_tensor_allocate",
            "timestamp": UNIX - 900,
            "duration": 10,
            "thread_id": 5,
            "size": 64,
        },
    ]


@pytest.mark.parametrize("key", ["trace_event", "trace_events"])
def test_both_spellings(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, {key: viewed()})
    assert FORMAT.recognise(head_of(path)) >= 85
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage)
    assert found["kind"].to_list() == [
        "thread",
        "stream",
        "stream",
        "collective_stream",
        "thread",
        "thread",
        "thread",
        "thread",
        "thread",
    ]
    assert found["category"].to_list() == [
        "host",
        "compute",
        "compute",
        "collective",
        "sync",
        "marker",
        "host",
        "dma",
        "memory",
    ]
    assert found["track"].to_list()[:2] == ["i-7 process 4242, thread 5", "executions"]
    assert found["track"][6] == "i-7 process 4242, framework thread 77"
    assert (found["start_ns"][0], found["end_ns"][0]) == (UNIX, UNIX + 900)
    copy = found.row(7, named=True)
    assert (copy["bytes"], copy["source_memory"], copy["target_memory"]) == (4096, "hbm", "host")
    assert json.loads(found["attributes"][0])["model_name"] == "/m/graph.neff"
    assert [t.name for t in stage.timelines if t.kind == "core"] == [
        "i-7 core 0.0",
        "i-7 core 0.1",
        "i-7 core 0",
    ]
    assert (stage.facts.rank, stage.facts.host, stage.facts.base_unix_ns) == (6, "i-7", 0)
    flows = table(stage, "flows")
    assert sorted(zip(flows["source_row"], flows["target_row"], strict=True)) == [(0, 1), (0, 2)]


def test_samples(tmp_path: Path) -> None:
    document = {
        "trace_event": viewed()[:1],
        "mem_usage": [
            {
                "timestamp": UNIX,
                "duration": 1,
                "instance_id": "i-7",
                "percent_usage": 12.5,
                "usage": 1000,
            }
        ],
        "cpu_util": [
            {"timestamp": UNIX, "cpu_id": 3, "util": 0.5, "instance_id": "i-7"},
            {"timestamp": UNIX + 1, "cpu_id": 3, "util": 80, "instance_id": "i-7"},
        ],
        "device_mem_usage": [
            {
                "timestamp": UNIX,
                "hbm_idx": "1",
                "total_bytes": 12e9,
                "dram_spill_bytes": 0,
                "dma_rings_spill_bytes": 5000000,
            }
        ],
    }
    stage = stage_of(tmp_path, document)
    found = counters(stage)
    assert found["i-7 host memory"] == [(UNIX, 1000.0)]
    assert found["i-7 host memory share"] == [(UNIX, 0.125)]
    assert found["i-7 CPU 3"] == [(UNIX, 0.005), (UNIX + 1, pytest.approx(0.8))]
    assert found["HBM 1: total"] == [(UNIX, 12e9)]
    assert found["HBM 1: dma rings spill"] == [(UNIX, 5e6)]


def test_units_of_time(tmp_path: Path) -> None:
    rows = [
        {
            "name": "a",
            "timestamp": 1760000000000000.25,
            "duration": 2.5,
            "timestamp_unit": "us",
            "thread_id": 1,
            "process_id": "1",
        },
        {
            "name": "b",
            "timestamp": "1760000000000",
            "duration": "3",
            "timestamp_unit": "ms",
            "thread_id": 1,
            "process_id": "1",
        },
        {
            "name": "c",
            "timestamp": UNIX,
            "duration": 4,
            "timestamp_unit": "fortnights",
            "thread_id": 1,
            "process_id": "1",
        },
        {"name": "d", "timestamp": UNIX, "duration": None, "thread_id": 1, "process_id": "1"},
    ]
    # Python would write the fraction with one digit
    text = json.dumps({"trace_event": rows}).replace("1760000000000000.2,", "1760000000000000.25,")
    assert "0.25" in text
    stage = stage_of(tmp_path, text)
    found = events(stage)
    assert (found["end_ns"] - found["start_ns"]).to_list()[:3] == [2_500, 3_000_000, 4]
    assert found["start_ns"].to_list() == [UNIX + 250, UNIX, UNIX, UNIX]
    assert found["end_ns"][3] == UNFINISHED
    assert "unknown_time_unit" in kinds(stage)


def test_a_full_ring_buffer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron_system_events, "RING_EVENTS", 50)
    rows = [
        {"name": "nc_exec_running", "timestamp": UNIX + 10 * i, "duration": 5, "nc_idx": i % 2}
        for i in range(99)
    ]
    stage = stage_of(tmp_path, {"trace_event": rows})
    (finding,) = [f for f in stage.audit.findings if f.kind == "ring_buffer_full"]
    assert (finding.severity, finding.count, finding.example) == ("error", 1, "core 0")


def live(sync_offset: int, *, with_sync: bool = True) -> Row:
    """What the runtime's interface hands out: hardware events are on the device's clock, here 5,000 + sync_offset behind."""

    def event(kind: str, phase: str, at: int, number: int, **data: Any) -> Row:
        if "nc_timestamp_ns" in data:
            at = data["nc_timestamp_ns"]
        return {
            "event_type": kind,
            "phase": phase,
            "id": number,
            "nc_idx": 2,
            "nc_local_id": 0,
            "tracking_id": number,
            "thread_id": 8,
            "worker_gid": 3,
            "data": data,
            "timestamp_ns": at,
        }

    rows = [
        event("nrt_execute", "start", UNIX, 1, model_id=10001, exec_id=4),
        event("nc_exec_running", "stop", 0, 2, nc_timestamp_ns=9_000),
        event(
            "nc_exec_running", "start", 0, 2, exec_id=4, device_core_idx=1, nc_timestamp_ns=6_000
        ),
        event("nrt_execute", "stop", UNIX + 8_000, 1),
        event("kbl_exec_post", "stop", UNIX + 20, 9),
        event("nrt_tensor_write", "start", UNIX + 30, 10, size=512),
        event("hw_notify", "instant", UNIX + 40, 11),
    ]
    if with_sync:
        sync = {"exec_id": 4, "cpu_timestamp_ns": UNIX, "nc_timestamp_ns": 5_000 + sync_offset}
        rows.append(event("timestamp_sync_point", "instant", 0, 12, **sync))
    return {"events": rows, "data_version": 2}


def test_live_events_are_paired_and_put_on_the_hosts_clock(tmp_path: Path) -> None:
    path = written(tmp_path, live(0), "events.json")
    assert FORMAT.recognise(head_of(path)) >= 85
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage)
    run = found.filter(pl.col("name") == "nc_exec_running").row(0, named=True)
    # neuron.md 3.4: adjusted = sync_cpu + (event_dev - sync_dev)
    assert (run["start_ns"], run["end_ns"]) == (UNIX + 1_000, UNIX + 4_000)
    assert run["kind"] == "stream"
    execute = found.filter(pl.col("name") == "nrt_execute").row(0, named=True)
    assert (execute["start_ns"], execute["end_ns"]) == (UNIX, UNIX + 8_000)
    assert json.loads(execute["attributes"])["data"] == '{"model_id": 10001, "exec_id": 4}'
    opened = found.filter(pl.col("name") == "nrt_tensor_write").row(0, named=True)
    assert (opened["end_ns"], opened["bytes"]) == (UNFINISHED, 512)
    assert {f.kind: f.count for f in stage.audit.findings}["unmatched_ends"] == 1
    assert stage.facts.metadata["clock_fit"]["points"] == 1
    assert stage.facts.rank == 3
    flows = table(stage, "flows")
    names = found["name"].to_list()
    assert [
        (names[a], names[b]) for a, b in zip(flows["source_row"], flows["target_row"], strict=True)
    ] == [("nrt_execute", "nc_exec_running")]


def test_live_events_without_sync_points_say_so(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, live(0, with_sync=False))
    told = {f.kind: f for f in stage.audit.findings}
    assert told["unsynchronised_events"].severity == "warning"


def test_pairs_may_lie_in_different_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trnprof.tracer.formats.neuron import json_text as neuron_json

    monkeypatch.setattr(neuron_json, "MAX_ROWS", 3)
    count = 20
    starts = [
        {
            "event_type": "nrt_execute",
            "phase": "start",
            "tracking_id": i,
            "nc_idx": 0,
            "timestamp_ns": UNIX + i,
        }
        for i in range(count)
    ]
    stops = [
        {
            "event_type": "nrt_execute",
            "phase": "stop",
            "tracking_id": i,
            "nc_idx": 0,
            "timestamp_ns": UNIX + 1_000 + 2 * i,
        }
        for i in range(count)
    ]
    stage = stage_of(tmp_path, {"events": starts + stops})
    found = events(stage).sort("start_ns")
    assert (found["end_ns"] - found["start_ns"]).to_list() == [1_000 + i for i in range(count)]


def test_a_cut_file_keeps_whole_events(tmp_path: Path) -> None:
    text = json.dumps({"trace_event": viewed()})
    stage = stage_of(tmp_path, text[: text.rindex("nrt_tensor_allocate")])
    assert stage.rows == 8
    assert "truncated" in kinds(stage)


@pytest.mark.parametrize(
    "document", ["{}", '{"trace_event": []}', '{"events": []}', '{"trace_event": 5}', "[]", "{"]
)
def test_nothing_in_it_is_one_clear_error(tmp_path: Path, document: str) -> None:
    with pytest.raises(ProfileError, match="no event in its trace_event"):
        stage_of(tmp_path, document)


def test_other_json_is_not_taken_for_it(tmp_path: Path) -> None:
    for text in ('{"traceEvents": [{"ph": "X"}]}', '{"events": [{"name": "x"}]}', "[1]", ""):
        assert FORMAT.recognise(head_of(written(tmp_path, text, "x.json"))) == 0


def test_end_to_end(tmp_path: Path) -> None:
    path = written(tmp_path, {"trace_event": viewed()})
    summary = import_profiles([path], tmp_path / "out.trnprof")
    assert (summary.sources[0].format, summary.sources[0].rank) == ("neuron-system", 6)
    trace = open_trace(tmp_path / "out.trnprof")
    assert [p for p in trace.validate() if p.severity == "error"] == []
    assert trace.events.collect().height == 9
