"""Collectives: what their kernels and NCCL's own annotations say, put together by hand here."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.nsys_files import NsysFile, global_pid
from tests.tracer.formats.staged import events, kinds, staged, table

from trnprof.tracer.formats.collective_names import VARIABLE
from trnprof.tracer.formats.nsys.format import FORMAT

NCCL = 7
"""Number of the domain in these files."""
COMM = 0xF3A1_0000_0000_0001
"""A communicator whose number does not fit a signed integer."""
OTHER = 0x11
RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def schemas(file: NsysFile) -> None:
    """One schema of a call: communicator, bytes; one of ncclCommInitRank: communicator, ranks, rank."""
    entry = ("idx", "flags", "type", "name", "offset")
    u64, i32 = 18, 5
    for schema, rows in (
        (1, [(0, 0, u64, "NCCL communicator ID", 0), (1, 0, u64, "Message size [bytes]", 8)]),
        (
            2,
            [
                (0, 0, u64, "NCCL communicator ID", 0),
                (1, 0, i32, "No. of ranks", 8),
                (2, 0, i32, "Rank", 12),
            ],
        ),
    ):
        for row in rows:
            file.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=NCCL,
                schemaId=schema,
                **dict(zip(entry, row, strict=True)),
            )


def payload(schema: int, body: bytes) -> bytes:
    return struct.pack("<IIQQQ", NCCL, 0, schema, len(body), 0) + body


def annotated(
    file: NsysFile, name: str, start: int, end: int, pid: int, body: bytes = b"", schema: int = 1
) -> None:
    binary = payload(schema, body) if body else None
    file.range(name, start, end, pid, pid, domainId=NCCL, binaryData=binary)


def joined(file: NsysFile, pid: int, rank: int, ranks: int = 2, communicator: int = COMM) -> None:
    body = struct.pack("<Qii", communicator, ranks, rank)
    annotated(file, "ncclCommInitRank", 1, 9, pid, body, schema=2)


def launched(
    file: NsysFile, kernel: str, at: int, begin: int, end: int, pid: int, number: int, **more: Any
) -> None:
    file.call("cudaLaunchKernelExC_v11060", at, at + 2, pid, pid, correlationId=number)
    file.kernel(kernel, begin, end, pid=pid, correlationId=number, stream=20, **more)


def two_ranks(path: Path) -> Path:
    file = NsysFile(path)
    schemas(file)
    for rank, pid in enumerate((500, 400)):  # the order of processes is not that of ranks
        gpu = {"deviceId": rank}
        joined(file, pid, rank)
        annotated(file, "ncclAllReduce", 100, 120, pid, struct.pack("<QQ", COMM, 4096))
        launched(file, RING, 110, 200, 260 + rank, pid, 1, **gpu)
        annotated(file, "ncclAllGather", 130, 150, pid, struct.pack("<QQ", COMM, 1000))
        launched(file, GATHER, 140, 300, 340, pid, 2, **gpu)
        annotated(file, "ncclReduceScatter", 160, 180, pid, struct.pack("<QQ", COMM, 1000))
        launched(file, SCATTER, 170, 400, 440, pid, 3, **gpu)
        annotated(file, "ncclGroupStart", 200, 201, pid)
        annotated(file, "ncclSend", 202, 203, pid, struct.pack("<QQ", COMM, 10))
        annotated(file, "ncclRecv", 204, 205, pid, struct.pack("<QQ", COMM, 30))
        annotated(file, "ncclGroupEnd", 206, 230, pid)
        launched(file, SEND_RECV, 210, 500, 510, pid, 4, **gpu)
        launched(file, RING, 240, 600, 610, pid, 5, **gpu)  # inside no annotation
        launched(file, "gemm", 250, 205, 215, pid, 6, **gpu)
    return file.done()


def test_kernels_get_collective_group_order_and_bytes_from_the_calls(tmp_path: Path) -> None:
    stage = staged(FORMAT, two_ranks(tmp_path / "a.sqlite"), tmp_path / "stage")
    rows = events(stage).filter(pl.col("op_id").is_not_null())
    assert set(rows["category"]) == {"collective"}
    assert rows.height == 10
    ops = table(stage, "ops").sort("op_id")
    shown = ("name", "algorithm", "dtypes", "group_id", "group_seq", "in_bytes", "out_bytes")
    expected = [
        ("AllReduce", "RING_LL", "bfloat16", 0, 0, 4096, 4096),
        ("AllGather", "RING_LL", None, 0, 1, 1000, 2000),
        ("ReduceScatter", "RING_SIMPLE", "float32", 0, 2, 2000, 1000),
        ("SendRecv", None, None, 0, None, 40, 40),
        ("AllReduce", "RING_LL", "bfloat16", None, None, None, None),
    ]
    assert ops.select(shown).rows() == expected * 2
    sized = rows.select("name", "bytes").rows()
    assert (
        sized == [(RING, 4096), (GATHER, 1000), (SCATTER, 1000), (SEND_RECV, 40), (RING, None)] * 2
    )
    (group,) = stage.groups
    assert group["ranks"] == [[0, 1]]
    assert group["name"] == [f"NCCL {COMM:#x}"]
    missing = next(f for f in stage.audit.findings if f.kind == "collectives_without_size")
    assert missing.count == 2
    assert events(stage).filter(name="gemm")["category"].to_list() == ["compute"] * 2


def test_members_of_a_smaller_communicator_are_not_guessed(tmp_path: Path) -> None:
    """Its ranks 0 and 1 may be any two of the job's four."""
    file = NsysFile(tmp_path / "a.sqlite")
    schemas(file)
    joined(file, 3, rank=1, ranks=4)
    joined(file, 3, rank=1, ranks=2, communicator=OTHER)
    for i, communicator in enumerate((COMM, OTHER)):
        at = 100 + 100 * i
        annotated(file, "ncclAllGather", at, at + 20, 3, struct.pack("<QQ", communicator, 8))
        launched(file, GATHER, at + 5, at + 30, at + 40, 3, i + 1)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    assert stage.groups[0]["ranks"] == [[0, 1, 2, 3], []]
    assert table(stage, "ops")["out_bytes"].to_list() == [32, 16]
    assert (stage.facts.rank, stage.facts.world_size) == (1, 4)


def test_ranks_are_those_of_the_communicator(tmp_path: Path) -> None:
    stage = staged(FORMAT, two_ranks(tmp_path / "a.sqlite"), tmp_path / "stage")
    threads = {t.name: t.rank for t in stage.timelines if t.name.startswith("process")}
    assert threads == {"process 500: thread 500": 0, "process 400: thread 400": 1}
    assert [(t.chip, t.rank) for t in stage.timelines if t.kind == "chip"] == [(0, 0), (1, 1)]
    assert stage.facts.world_size == 2
    assert stage.facts.rank == 0


def test_clocks_can_be_aligned_by_the_collectives(tmp_path: Path) -> None:
    found = staged(FORMAT, two_ranks(tmp_path / "a.sqlite"), tmp_path / "stage").facts.collectives
    assert found is not None
    rows = found.sort("sequence").select("sequence", "name", "start_ns", "end_ns", "bytes").rows()
    assert rows == [
        (0, "AllReduce", 200, 260, 4096),
        (1, "AllGather", 300, 340, 1000),
        (2, "ReduceScatter", 400, 440, 1000),
    ]
    assert found["group"].n_unique() == 1


def test_payloads_as_json(tmp_path: Path) -> None:
    """``--include-json=true``: the same figures, with commas in their numbers."""
    file = NsysFile(tmp_path / "a.sqlite")
    text = json.dumps({"NCCL communicator ID": str(COMM), "Message size [bytes]": "1,048,576"})
    file.range("ncclAllReduce", 100, 120, 3, 3, domainId=NCCL, jsonText=text)
    launched(file, RING, 110, 200, 260, 3, 1)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    assert events(stage).filter(name=RING)["bytes"].to_list() == [1 << 20]
    assert stage.groups[0]["name"] == [f"NCCL {COMM:#x}"]


def test_without_annotations_the_names_of_kernels_tell(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    names = [
        RING,
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
        SEND_RECV,
        "vllm::cross_device_reduce_1stage<bf16, 8>",
        "reduce_kernel<512>",
    ]
    for i, name in enumerate(names):
        launched(file, name, 10 * i, 100 * i, 100 * i + 50, 3, i + 1)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    rows = events(stage).filter(kind="stream").select("name", "category").rows()
    assert rows == list(zip(names, ["collective"] * 4 + ["compute"], strict=True))
    assert table(stage, "ops")["name"].to_list() == [
        "AllReduce",
        "AllGather",
        "SendRecv",
        "vllm::cross_device_reduce_1stage",
    ]
    found = stage.facts.collectives
    assert found is not None
    assert found.select("group", "sequence", "name").rows() == [
        ("NCCL, by order", 0, "AllReduce"),
        ("NCCL, by order", 1, "AllGather"),
        ("NCCL, by order", 2, "vllm::cross_device_reduce_1stage"),
    ]
    assert "collectives_without_size" in kinds(stage)


def test_a_group_that_launches_several_kernels_gives_none_its_sum(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    schemas(file)
    annotated(file, "ncclGroupStart", 100, 101, 3)
    annotated(file, "ncclAllReduce", 102, 103, 3, struct.pack("<QQ", COMM, 10))
    annotated(file, "ncclAllReduce", 104, 105, 3, struct.pack("<QQ", OTHER, 30))
    annotated(file, "ncclGroupEnd", 106, 130, 3)
    launched(file, RING, 110, 200, 210, 3, 1)
    launched(file, RING, 120, 220, 230, 3, 2)
    rows = events(staged(FORMAT, file.done(), tmp_path / "stage"))
    assert rows.filter(name=RING)["bytes"].to_list() == [None, None]


def test_payloads_that_are_cut_or_of_another_schema_say_nothing(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    schemas(file)
    whole = payload(1, struct.pack("<QQ", COMM, 77))
    for i, binary in enumerate(
        [whole[:40], whole[:20], b"", payload(9, struct.pack("<QQ", COMM, 77)), whole]
    ):
        file.range("ncclAllReduce", 100 * i, 100 * i + 50, 3, 3, domainId=NCCL, binaryData=binary)
        launched(file, RING, 100 * i + 10, 100 * i + 60, 100 * i + 70, 3, i + 1)
    rows = events(staged(FORMAT, file.done(), tmp_path / "stage"))
    assert rows.filter(name=RING)["bytes"].to_list() == [None, None, None, None, 77]


def test_ranks_by_mpi_are_believed_first(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    for pid, rank in ((400, 6), (500, 5)):
        file.add("MPI_RANKS", globalPid=global_pid(pid), rank=rank)
        file.kernel("k", 10, 20, pid=pid, deviceId=pid // 500)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    assert [(t.chip, t.rank) for t in stage.timelines if t.kind == "chip"] == [(0, 6), (1, 5)]
    assert "merged_ranks" not in kinds(stage)


def test_names_that_the_user_adds_are_of_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    launched(file, "void fused_moe_dispatch<8>(int*)", 1, 10, 20, 5, 1)
    launched(file, "gemm", 2, 30, 40, 5, 2)
    path = file.done()
    stage = staged(FORMAT, path, tmp_path / "before")
    assert set(events(stage).filter(pl.col("start_ns") >= 10)["category"]) == {"compute"}
    monkeypatch.setenv(VARIABLE, "fused_moe_")
    stage = staged(FORMAT, path, tmp_path / "after")
    assert events(stage).filter(start_ns=10)["category"].to_list() == ["collective"]
    assert events(stage).filter(start_ns=30)["category"].to_list() == ["compute"]
    assert table(stage, "ops")["name"].to_list() == ["fused_moe_dispatch"]
