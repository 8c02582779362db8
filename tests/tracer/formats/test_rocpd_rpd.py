"""Databases of the rpd tracer: calls, operations and what links them, as SQL joins them."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from tests.tracer.formats.rocpd_databases import RpdDatabase
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged, table

from trnprof.tracer.formats.collective_names import VARIABLE
from trnprof.tracer.formats.rocpd.format import FORMAT
from trnprof.tracer.ingest.stage import Stage

COPY = {"width": "", "height": "", "dst": "0x1", "src": "0x2", "sync": 0, "pinned": 1}


def small(path: Path, version: int) -> Path:
    db = RpdDatabase(path, version)
    db.api("UserMarker", 0, 1_000, args="step 4", tid=8)
    db.api("UserMarker", 50, 50, args='a "mark"')
    launch = db.api("hipLaunchKernel", 100, 120, args='{"stream": 1}')
    row = {"gridX": 64, "gridY": 1, "gridZ": 1, "workgroupX": 32, "workgroupY": 1, "workgroupZ": 1}
    name = db.string("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)")
    sizes = {"groupSegmentSize": 128, "privateSegmentSize": 0, "kernelName_id": name}
    db.insert("rocpd_kernelapi", api_ptr_id=launch, stream="0x7f", **row, **sizes)
    db.op(
        "KernelExecution",
        200,
        300,
        name="ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
        api=launch,
    )
    copy = db.api("hipMemcpyAsync", 130, 140)
    ends = {"kind": 2, "srcDevice": 0, "dstDevice": 0}
    db.insert("rocpd_copyapi", api_ptr_id=copy, stream="0x7f", size=512, **ends, **COPY)
    db.op("CopyDeviceToHost", 310, 330, api=copy)
    peer = db.api("hipMemcpyPeerAsync", 150, 160)
    ends = {"kind": 3, "srcDevice": 0, "dstDevice": 1}
    db.insert("rocpd_copyapi", api_ptr_id=peer, stream="0x7f", size="", **ends, **COPY)
    db.op("CopyDeviceToDevice", 340, 350, api=peer)
    db.op("FillBuffer", 360, 370)
    graph = db.api("hipGraphLaunch", 170, 180)
    for at in (400, 420):
        db.op("Task", at, at + 10, name="gemm", queue=3, api=graph)
    db.insert(
        "rocpd_monitor",
        deviceType="gpu",
        deviceId=0,
        monitorType="sclk",
        start=10,
        end=90,
        value="1700",
    )
    db.insert(
        "rocpd_monitor",
        deviceType="gpu",
        deviceId=6,
        monitorType="power",
        start=10,
        end=90,
        value="n/a",
    )
    db.insert(
        "rocpd_monitor",
        deviceType="gpu",
        deviceId=6,
        monitorType="power",
        start=20,
        end=90,
        value="80.5",
    )
    if version >= 3:
        for value in (3.0, 4.0):
            db.insert("rocpd_counter", value=value, op_id=1, name_id=db.string("SQ_WAVES"))
    db.close()
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_both_schemas(tmp_path: Path, version: int) -> None:
    path = small(tmp_path / "trace.rpd", version)
    assert FORMAT.recognise(head_of(path)) == 100
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage)
    shown = found.select("name", "category", "kind", "track", "step", "bytes")
    kernel = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"
    assert shown.rows() == [
        ("step 4", "host", "thread", "ROCTX", 0, None),
        ('a "mark"', "marker", "thread", "ROCTX", 0, None),
        *(
            (name, "host", "thread", "process 7: thread 8", 0, None)
            for name in (
                "hipLaunchKernel",
                "hipMemcpyAsync",
                "hipMemcpyPeerAsync",
                "hipGraphLaunch",
            )
        ),
        (kernel, "collective", "stream", "stream 0x7f, queue 0", 0, None),
        ("CopyDeviceToHost", "dma", "stream", "stream 0x7f, queue 0 copies", 0, 512),
        ("CopyDeviceToDevice", "dma", "stream", "stream 0x7f, queue 0 copies", 0, None),
        ("FillBuffer", "dma", "stream", "queue 0", None, None),
        ("gemm", "compute", "stream", "queue 3", 0, None),
        ("gemm", "compute", "stream", "queue 3", 0, None),
    ]
    memories = found.filter(pl.col("category") == "dma").select("source_memory", "target_memory")
    assert memories.rows() == [("hbm", "host"), ("hbm", "remote"), (None, "hbm")]
    call = json.loads(found["attributes"][2])
    assert call["args"] == '{"stream": 1}'
    assert json.loads(found["attributes"][6]) == {
        "grid": [64, 1, 1],
        "workgroup": [32, 1, 1],
        "groupSegmentSize": 128,
    }
    flows = table(stage, "flows")
    assert list(zip(flows["source_row"], flows["target_row"], strict=True)) == [
        *((2, 6), (3, 7), (4, 8), (5, 10), (5, 11)),
    ]
    assert {f.kind: f.count for f in stage.audit.findings if f.kind == "unlinked_kernels"} == {
        "unlinked_kernels": 1
    }
    samples = counters(stage)
    assert samples.pop("SQ_WAVES", None) == (None if version < 3 else [(200, 7.0), (300, 0.0)])
    assert samples == {"sclk": [(10, 1.7e9)], "gpu 6 power": [(20, 80.5)]}
    assert stage.facts.collectives is not None


def _random(path: Path) -> Stage:
    chance = random.Random(4)
    db = RpdDatabase(path, 3, {"gpu_stride": "1000", "pid_stride": "10000000"})
    for i in range(3_000):
        node = chance.randrange(2)
        pid = 40 + chance.randrange(2) + node * 10_000_000
        api = db.api("hipLaunchKernel", 10 * i, 10 * i + 5, args=f"call {i}", pid=pid, tid=pid + 1)
        for _ in range(chance.choice((0, 1, 1, 2))):
            start = 10 * i + chance.randrange(500)
            place = {"gpu": pid % 2 + 1_000 * node, "queue": chance.randrange(2)}
            kind, name = chance.choice((("KernelExecution", "gemm"), ("CopyHostToDevice", "")))
            db.op(kind, start, start + chance.randrange(1, 60), name=name, api=api, **place)
        if chance.random() < 0.3:
            row = {"kind": 1, "srcDevice": 0, "dstDevice": 0, "size": chance.randrange(1, 1 << 20)}
            db.insert(
                "rocpd_copyapi", api_ptr_id=api, stream=f"0x{chance.randrange(3)}", **row, **COPY
            )
    db.close()
    return staged(FORMAT, path, path.with_suffix(".stage"))


def test_sums_are_those_of_sql(tmp_path: Path) -> None:
    stage = _random(tmp_path / "trace.rpd")
    found = events(stage)
    chip = [stage.timelines[n].chip for n in stage.times("timeline").tolist()]
    ops = found.with_columns(chip=pl.Series(chip)).filter(pl.col("kind") == "stream")
    keys = ("chip", "name")
    duration = (pl.col("end_ns") - pl.col("start_ns")).sum()
    ours = ops.group_by(keys).agg(pl.len(), duration.alias("ns"), pl.col("bytes").sum())
    with sqlite3.connect(tmp_path / "trace.rpd") as connection:
        theirs = connection.execute(
            "SELECT O.gpuId, coalesce(nullif(D.string, ''), T.string), count(*), sum(O.end - O.start), coalesce(sum(CASE WHEN T.string LIKE "
            "'Copy%' AND (SELECT count(*) FROM rocpd_api_ops B WHERE B.api_id = A.api_id) = 1 THEN C.size END), 0) FROM rocpd_op O "
            "JOIN rocpd_string D ON D.id = O.description_id JOIN rocpd_string T ON T.id = O.opType_id "
            "JOIN rocpd_api_ops A ON A.op_id = O.id LEFT JOIN rocpd_copyapi C ON C.api_ptr_id = A.api_id GROUP BY 1, 2"
        ).fetchall()
        links = connection.execute("SELECT count(*) FROM rocpd_api_ops").fetchone()[0]
    number = {stage.timelines[i].name: stage.timelines[i].chip for i in range(len(stage.timelines))}
    chip_of = {
        0: number["GPU 0"],
        1: number["GPU 1"],
        1000: number["node 1 GPU 0"],
        1001: number["node 1 GPU 1"],
    }
    assert sorted(ours.rows()) == sorted((chip_of[gpu], *rest) for gpu, *rest in theirs)
    assert table(stage, "flows").height == links
    assert {"merged_ranks", "split_copies"} <= kinds(stage)
    args = [json.loads(a)["args"] for a in found.filter(pl.col("kind") == "thread")["attributes"]]
    assert args == [f"call {i}" for i in range(3_000)]


def test_tables_that_are_not_there_read_as_empty(tmp_path: Path) -> None:
    path = small(tmp_path / "trace.rpd", 2)
    with sqlite3.connect(path) as connection:
        for name in (
            "rocpd_api",
            "rocpd_api_ops",
            "rocpd_kernelapi",
            "rocpd_copyapi",
            "rocpd_monitor",
        ):
            connection.execute(f"DROP TABLE {name}")
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage)
    assert found["category"].to_list() == ["collective", "dma", "dma", "dma", "compute", "compute"]
    told = {f.kind: f for f in stage.audit.findings}
    assert told["unlinked_kernels"].severity == "warning"
    assert told["missing_table"].where.endswith("rocpd_api")


def test_names_that_the_user_adds_are_of_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path / "a.rpd", 2)
    monkeypatch.setenv(VARIABLE, "^gemm$")
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage).filter(pl.col("category") == "collective")
    assert found["start_ns"].to_list() == [200, 400, 420]
    assert table(stage, "ops").sort("op_id")["name"].to_list()[1:] == ["gemm", "gemm"]
