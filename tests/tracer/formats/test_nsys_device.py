"""Kernels, copies, memsets, graphs, waits and the calls that launched them, against SQL over the same file."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.tracer.formats.nsys_files import NsysFile, global_pid, global_tid
from tests.tracer.formats.staged import events, head_of, kinds, staged, table

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.nsys.format import FORMAT
from trnprof.tracer.formats.nsys.names import process_id, process_of, thread_id
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.reader import open_trace

PIDS = (111, 222)


def sql(path: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return file.execute(query).fetchall()


def two_processes(path: Path) -> Path:
    """Two processes on two GPUs with the same correlation numbers, some kernels of which nobody recorded the launch."""
    file = NsysFile(path)
    dice = random.Random(3)
    for pid in PIDS:
        file.add("PROCESSES", globalPid=global_pid(pid), pid=pid, name="/usr/bin/python3")
        file.call("cudaDeviceSynchronize_v3020", 5, 9, pid, pid, correlationId=None)
        at = [1000] * 3
        for i in range(200):
            launched = 900 + 50 * i
            if i % 10:
                file.call(
                    "cudaLaunchKernel_v7000",
                    launched,
                    launched + 30,
                    pid,
                    pid + i % 2,
                    correlationId=i,
                )
            stream = i % 3
            start = max(at[stream], launched + dice.randrange(100))
            end = start + dice.randrange(1, 300)
            at[stream] = end
            file.kernel(
                f"gemm<{i % 7}>",
                start,
                end,
                pid=pid,
                stream=stream + 7,
                deviceId=PIDS.index(pid),
                correlationId=i,
                gridX=i,
                gridY=1,
                gridZ=1,
                blockX=256,
                blockY=1,
                blockZ=1,
                registersPerThread=32 * (i % 2),
            )
    return file.done()


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_processes(tmp_path_factory.mktemp("nsys") / "two.sqlite")


@pytest.fixture(scope="module")
def stage(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return staged(FORMAT, profile, tmp_path_factory.mktemp("two") / "stage")


def test_the_file_is_recognised_by_its_tables(profile: Path, tmp_path: Path) -> None:
    assert FORMAT.recognise(head_of(profile)) == 100
    other = tmp_path / "o.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as file:
        file.execute("CREATE TABLE people (name)")
    assert FORMAT.recognise(head_of(other)) == 0
    with pytest.raises(
        ProfileError,
        match=r"^\S*o.sqlite: no table of Nsight Systems is in it \(it has people\); export with nsys",
    ):
        staged(FORMAT, other, tmp_path / "stage")


def test_every_kernel_lies_on_its_stream_with_its_times_and_name(
    stage: Stage, profile: Path
) -> None:
    kernels = events(stage).filter(category="compute")
    expected = sql(
        profile,
        "SELECT start, end, value, deviceId, streamId FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName",
    )
    chips = {i: t.chip for i, t in enumerate(stage.timelines)}
    timeline = stage.times("timeline")
    rows = [
        (r["start_ns"], r["end_ns"], r["name"], chips[int(t)], int(r["track"].split()[1]))
        for r, t in zip(events(stage).iter_rows(named=True), timeline, strict=True)
        if r["category"] == "compute"
    ]
    assert sorted(rows) == sorted(expected)
    assert set(kernels["kind"]) == {"stream"}
    assert all(t.exclusive for t in stage.timelines if t.kind == "stream")


def test_kernels_are_linked_with_the_call_of_their_own_process(stage: Stage, profile: Path) -> None:
    flows = table(stage, "flows")
    rows = events(stage)
    start, name, track = rows["start_ns"], rows["name"], rows["track"]
    found = {
        (start[s], track[s], start[t], name[t])
        for s, t in zip(flows["source_row"], flows["target_row"], strict=True)
    }
    expected = {
        (launched, f"python3 {pid}: thread {tid}", begun, text)
        for launched, pid, tid, begun, text in sql(
            profile,
            """SELECT r.start, (r.globalTid / 0x1000000) % 0x1000000, r.globalTid % 0x1000000, k.start, value
            FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN CUPTI_ACTIVITY_KIND_KERNEL k
            ON r.correlationId = k.correlationId AND r.globalTid / 0x1000000 = k.globalPid / 0x1000000
            JOIN StringIds ON id = demangledName""",
        )
    }
    assert found == expected
    assert len(expected) == 360
    assert set(flows["kind"]) == {"launch"}
    unlinked = next(f for f in stage.audit.findings if f.kind == "unlinked_kernels")
    assert unlinked.count == 40


def test_calls_lie_on_their_threads_without_the_version_in_their_name(stage: Stage) -> None:
    calls = events(stage).filter(category="host")
    counts = calls.group_by("track", "name").len().sort("track", "name").rows()
    assert counts == [
        *[
            (f"python3 {p}: thread {p}", n, c)
            for p in (111,)
            for n, c in (("cudaDeviceSynchronize", 1), ("cudaLaunchKernel", 80))
        ],
        ("python3 111: thread 112", "cudaLaunchKernel", 100),
        *[
            (f"python3 {p}: thread {p}", n, c)
            for p in (222,)
            for n, c in (("cudaDeviceSynchronize", 1), ("cudaLaunchKernel", 80))
        ],
        ("python3 222: thread 223", "cudaLaunchKernel", 100),
    ]


def test_launch_configuration_is_kept(stage: Stage) -> None:
    kernels = events(stage).filter(category="compute")["attributes"].to_list()
    first, second = json.loads(kernels[0]), json.loads(kernels[1])
    assert first == {"grid": [0, 1, 1], "block": [256, 1, 1]}  # correlation and registers are 0
    assert second == {
        "grid": [1, 1, 1],
        "block": [256, 1, 1],
        "registersPerThread": 32,
        "correlationId": 1,
    }


def test_busy_time_of_each_stream_is_that_of_sql(profile: Path, tmp_path: Path) -> None:
    import_profiles([profile], tmp_path / "t.trnprof")
    trace = open_trace(tmp_path / "t.trnprof")
    assert not [p for p in trace.validate() if p.severity == "error"]
    streams = trace.tracks.filter(kind="stream").select("track_id", "chip")
    by_chip = (
        trace.events.collect()
        .join(streams, on="track_id")
        .group_by("chip")
        .agg(pl.col("duration_ns").sum())
        .sort("chip")
        .rows()
    )
    assert by_chip == sql(
        profile,
        "SELECT deviceId, SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY deviceId ORDER BY deviceId",
    )
    ranks = trace.tracks.filter(kind="stream").select("chip", "rank").unique().sort("chip").rows()
    assert ranks == [(0, 0), (1, 1)]


def test_copies_say_from_where_to_where(tmp_path: Path) -> None:
    """Kinds and memories as CUPTI numbers them."""
    file = NsysFile(tmp_path / "a.sqlite")
    at = 0
    cases = [
        # kind, source, target, device of the source → name, memories
        (1, 0, 2, None, "Memcpy HtoD (Pageable -> Device)", "host", "hbm"),
        (1, 1, 2, None, "Memcpy HtoD (Pinned -> Device)", "host", "hbm"),
        (2, 2, 1, None, "Memcpy DtoH (Device -> Pinned)", "hbm", "host"),
        (8, 2, 2, 0, "Memcpy DtoD (Device -> Device)", "hbm", "hbm"),
        (9, 0, 0, None, "Memcpy HtoH (Pageable -> Pageable)", "host", "host"),
        (10, 2, 2, 0, "Memcpy PtoP (Device -> Device)", "hbm", "remote"),
        (10, 2, 2, 1, "Memcpy PtoP (Device -> Device)", "remote", "hbm"),
        (11, 4, 4, None, "Memcpy UVM HtoD (Managed -> Managed)", "host", "hbm"),
    ]
    for i, (kind, source, target, device, *_) in enumerate(cases):
        file.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=at,
            end=at + 10,
            deviceId=0,
            contextId=1,
            streamId=7,
            bytes=1 << i,
            copyKind=kind,
            srcKind=source,
            dstKind=target,
            srcDeviceId=device,
        )
        at += 20
    file.add(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        start=at,
        end=at + 5,
        deviceId=0,
        contextId=1,
        streamId=7,
        value=255,
        bytes=4096,
        memKind=2,
    )
    rows = events(staged(FORMAT, file.done(), tmp_path / "stage"))
    found = rows.select("name", "bytes", "source_memory", "target_memory", "category").rows()
    assert found[:-1] == [(n, 1 << i, s, t, "dma") for i, (*_, n, s, t) in enumerate(cases)]
    assert found[-1] == ("Memset", 4096, None, "hbm", "dma")
    assert json.loads(rows["attributes"][-1]) == {"value": 255, "memKind": 2}


def test_graphs_occupy_their_stream_and_waits_do_not(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    place = {"deviceId": 0, "contextId": 1, "globalPid": global_pid(9)}
    file.call("cudaGraphLaunch_v10000", 10, 20, 9, 9, correlationId=4)
    file.add(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        start=30,
        end=90,
        streamId=7,
        correlationId=4,
        graphId=3,
        graphExecId=5,
        **place,
    )
    file.kernel("in_a_graph", 100, 120, pid=9, graphNodeId=77)
    file.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=40, end=95, streamId=7, syncType=3, **place
    )
    file.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        start=96,
        end=97,
        streamId=0xFFFFFFFF,
        syncType=4,
        **place,
    )
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    rows = events(stage).select("name", "category", "kind", "track").rows()
    assert rows[1:] == [
        ("in_a_graph", "compute", "stream", "stream 7"),
        ("CUDA graph 3", "compute", "stream", "stream 7"),
        ("Stream sync", "sync", "thread", "stream 7 sync"),
        ("Context sync", "sync", "thread", "context sync"),
    ]
    assert table(stage, "flows").select("source_row", "target_row").rows() == [(0, 2)]
    assert "opaque_graphs" in kinds(stage)
    assert json.loads(events(stage)["attributes"][1]) == {"graphNodeId": 77}


def test_driver_ordinals_are_mapped_to_gpus_of_the_host(tmp_path: Path) -> None:
    """With CUDA_VISIBLE_DEVICES each process calls its GPU 0."""
    file = NsysFile(tmp_path / "a.sqlite")
    for gpu, pid in ((2, 111), (5, 222)):
        file.add(
            "TARGET_INFO_GPU",
            id=gpu,
            name="NVIDIA H100 80GB HBM3",
            memoryBandwidth=3_350_000_000_000,
            smCount=132,
        )
        file.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        file.kernel("k", 10, 20, pid=pid)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    chips = [
        (t.name, t.chip, t.rank, t.peak_bytes_per_s) for t in stage.timelines if t.kind == "chip"
    ]
    assert chips == [("GPU 2", 2, 0, 3.35e12), ("GPU 5", 5, 1, 3.35e12)]
    # NVIDIA H100 data sheet: 1,979 TFLOP/s of BF16 with sparsity
    assert {t.peak_flops for t in stage.timelines if t.kind == "chip"} == {1979e12 / 2}
    assert 989.5e12 in stage.facts.peaks["flops_per_s"]
    assert stage.facts.system is not None
    assert stage.facts.system["name"] == "NVIDIA H100 80GB HBM3"


def test_streams_of_one_number_are_told_apart_by_process(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    for pid in PIDS:
        file.kernel("k", 10, 20, pid=pid)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    names = {t.name for t in stage.timelines if t.kind == "stream"}
    assert names == {f"stream 7 (process {pid}, context 1)" for pid in PIDS}


def test_serialised_ids_are_decoded_as_documented() -> None:
    """PID = globalTid / 0x1000000 % 0x1000000, TID = globalTid % 0x1000000."""
    tid = 0x0055_1234_5678_9ABC
    process = int(process_of(np.array([tid]))[0])
    assert process_id(process) == tid // 0x1000000 % 0x1000000
    assert thread_id(tid) == tid % 0x1000000
    assert global_tid(7, 9) == global_pid(7) + 9


def test_names_that_are_not_in_the_string_table(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.kernel("k", 10, 20, pid=1)
    file.kernel("k", 30, 40, pid=1, shortName=5)
    file.sql.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 12345 WHERE start = 30")
    assert events(staged(FORMAT, file.done(), tmp_path / "stage"))["name"].to_list() == [
        "k",
        "[unnamed]",
    ]


def test_a_kernel_table_alone_is_enough(tmp_path: Path) -> None:
    """Fault 35: what is missing is told, the rest is imported."""
    file = NsysFile(tmp_path / "a.sqlite")
    file.kernel("k", 10, 20, pid=1)
    file.sql.execute("DROP TABLE StringIds")
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    assert events(stage).select("name", "start_ns", "end_ns").rows() == [("[unnamed]", 10, 20)]
    absent = {f.where.rpartition(" ")[2] for f in stage.audit.findings if f.kind == "missing_table"}
    assert absent == {"StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"}


def test_columns_of_other_types_and_without_values(tmp_path: Path) -> None:
    """Numbers as text and as reals are taken; what is no number is missing, and counted."""
    file = NsysFile(tmp_path / "a.sqlite")
    file.table(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "start, end, deviceId, contextId, streamId, correlationId, globalPid, shortName, gridX",
    )
    name = file.string("k")
    insert = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, NULL, ?, ?)"
    file.sql.execute(insert, ("1000", 2000.0, "0", 7, None, name, "wide"))
    file.sql.execute(insert, (3000, 4000, 0, 7, -5, None, -1))
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    rows = events(stage).select("name", "start_ns", "end_ns", "track").rows()
    assert rows == [("k", 1000, 2000, "stream 7"), ("[unnamed]", 3000, 4000, "stream 7")]
    odd = next(f for f in stage.audit.findings if f.kind == "unreadable_values")
    assert odd.count == 1


def test_other_ranges_of_threads(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.add(
        "OSRT_API",
        start=1,
        end=5,
        globalTid=global_tid(3, 4),
        nameId=file.string("poll"),
        returnValue=0,
    )
    text = file.string("MPI_Allreduce")
    file.add(
        "MPI_COLLECTIVES_EVENTS", start=2, end=4, globalTid=global_tid(3, 4), textId=text, size=64
    )
    file.table("SCHED_EVENTS", "start INT, cpu INT, globalTid INT")
    file.add("SCHED_EVENTS", start=1, cpu=0, globalTid=global_tid(3, 4))
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    rows = events(stage).sort("start_ns").select("name", "track", "category").rows()
    assert rows == [("poll", "OS runtime", "host"), ("MPI_Allreduce", "MPI", "host")]
    left = [
        (f.where.rpartition(" ")[2], f.count)
        for f in stage.audit.findings
        if f.kind == "not_imported"
    ]
    assert left == [("SCHED_EVENTS", 1)]


def test_ranges_of_other_texts_at_the_same_time_repeat_nothing(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.table("LIBRARY_TRACE", "start INTEGER, end INTEGER, globalTid INTEGER, name TEXT")
    file.string("a profile")
    for name in ("open", "read", "read"):
        file.add("LIBRARY_TRACE", start=2, end=4, globalTid=global_tid(3, 4), name=name)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    prints = stage.times("fingerprint").tolist()
    assert prints[0] != prints[1] == prints[2]
