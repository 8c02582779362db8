"""Databases of rocprofv3: what SQL says of them is what the trace says, whatever the version of the schema."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.rocpd_databases import GUID, RpdDatabase, SdkDatabase
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged, table

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.nsys import format as nsys
from trnprof.tracer.formats.rocpd.format import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.reader import open_trace

LAYOUTS = ("3", "stamps", "4")
SHAPE = {
    f"{what}_size_{axis}": size
    for what, sizes in (("grid", (512, 2, 1)), ("workgroup", (256, 1, 1)))
    for axis, size in zip("xyz", sizes, strict=True)
}


def small(path: Path, layout: str = "3") -> Path:
    """Two calls, one of which launches a kernel and one a copy; a marked step, an instant, counters, memory."""
    db = SdkDatabase(path, layout)
    db.machine(environment={"RANK": "3", "WORLD_SIZE": "8", "SECRET": "hunter2"})
    host = {"nid": 1, "pid": 100, "tid": 101}
    db.insert("rocpd_info_thread", id=101, nid=1, pid=100, tid=101, name="main")
    gpu = host | {"agent_id": 2, "queue_id": 1, "stream_id": 1}
    message = json.dumps({"message": 'step "0"'})
    for name, start, end, event in (
        (
            "roctxThreadRangeA",
            1_000,
            9_000,
            db.event("MARKER_CORE_RANGE_API", 1, extdata=json.dumps({"message": "step 0"})),
        ),
        ("roctxThreadRangeA", 1_500, 1_600, db.event("MARKER_CORE_RANGE_API", 2, extdata=message)),
        ("hipLaunchKernel", 2_000, 2_500, db.event("HIP_RUNTIME_API", 3, correlation_id=77)),
        ("hipMemcpyAsync", 3_000, 3_100, db.event("HIP_RUNTIME_API", 4)),
        ("hipFree", 9_500, None, db.event("HIP_RUNTIME_API", 5)),
    ):
        db.row("rocpd_region", start, end, name_id=db.string(name), event_id=event, **host)
    for position, (name, value) in enumerate((("function", '0x1 "k"'), ("stream", None))):
        db.insert("rocpd_arg", event_id=3, position=position, type="void*", name=name, value=value)
    db.insert("rocpd_arg", event_id=4, position=0, type="size_t", name="sizeBytes", value="4096")
    db.insert(
        "rocpd_info_kernel_symbol", id=9, kernel_name="_Z3addPf.kd", display_name="add(float*)"
    )
    launched = db.event("KERNEL_DISPATCH", 3)
    kernel = {"kernel_id": 9, "dispatch_id": 1, "group_segment_size": 64, "private_segment_size": 0}
    db.row("rocpd_kernel_dispatch", 4_000, 5_000, event_id=launched, **kernel, **SHAPE, **gpu)
    copied = db.event("MEMORY_COPY", 4)
    copy = {
        "name_id": db.string("MEMORY_COPY_HOST_TO_DEVICE"),
        "size": 4096,
        "src_agent_id": 0,
        "dst_agent_id": 2,
    }
    place = host | {"stream_id": 1}
    db.row("rocpd_memory_copy", 5_100, 5_300, event_id=copied, **copy, **place)
    counted(db, launched, host)
    db.row("rocpd_graph_launch", 3_900, 5_400, graph_exec_id=5, kernel_dispatch_count=1, **gpu)
    db.close()
    return path


def counted(db: SdkDatabase, launched: int, host: dict[str, int]) -> None:
    """Counters of the launched kernel and of samples, an instant, allocations."""
    db.insert(
        "rocpd_info_pmc", id=1 << 40, nid=1, pid=100, agent_id=2, name="SQ_WAVES", symbol="SQ_WAVES"
    )
    db.insert(
        "rocpd_info_pmc", id=5, nid=1, pid=100, agent_id=2, name="Busy", symbol="Busy", units="%"
    )
    for waves in (10.0, 22.0):
        db.insert("rocpd_pmc_event", event_id=launched, pmc_id=1 << 40, value=waves)
    sampled = db.event("amd_smi")
    db.insert("rocpd_pmc_event", event_id=sampled, pmc_id=5, value=50.0)
    track = db.track("Busy", nid=1, pid=100)
    db.sample(4_500, sampled, track)
    marked = db.event("MARKER_CORE_API", 6)
    db.sample(4_600, marked, db.track("MARKER_CORE_API", nid=1, pid=100, tid=101))
    for kind, at, size in (("ALLOC", 100, 1 << 20), ("ALLOC", 200, 1 << 10), ("FREE", 300, 0)):
        event = db.event("MEMORY_ALLOCATION", 0)
        memory = {
            "type": kind,
            "level": "REAL",
            "address": 0x1000 if at != 200 else 0x2000,
            "size": size,
        }
        where = host if kind == "FREE" else host | {"agent_id": 2}
        db.row("rocpd_memory_allocate", at, at + 10, event_id=event, **memory, **where)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_says_the_same(tmp_path: Path, layout: str) -> None:
    path = small(tmp_path / "results.db", layout)
    assert FORMAT.recognise(head_of(path)) == 100
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = {row["name"]: row for row in events(stage).iter_rows(named=True)}
    kernel = found["add(float*)"]
    assert (kernel["start_ns"], kernel["end_ns"], kernel["category"]) == (4_000, 5_000, "compute")
    assert (kernel["kind"], kernel["track"], kernel["step"]) == ("stream", "Stream 0, Queue 0", 0)
    assert json.loads(kernel["attributes"]) == {
        "grid": [512, 2, 1],
        "workgroup": [256, 1, 1],
        "dispatch_id": 1,
        "group_segment_size": 64,
    }
    copy = found["MEMORY_COPY_HOST_TO_DEVICE"]
    assert (copy["bytes"], copy["source_memory"], copy["target_memory"]) == (4096, "host", "hbm")
    assert (copy["kind"], copy["track"]) == ("stream", "Stream 0 copies")
    call = json.loads(found["hipLaunchKernel"]["attributes"])
    assert call == {
        "args": {"function": '0x1 "k"', "stream": None},
        "stack_id": 3,
        "correlation_id": 77,
    }
    assert found['step "0"']["track"] == "ROCTX"
    assert found["hipFree"]["end_ns"] == UNFINISHED
    assert found["MARKER_CORE_API"]["category"] == "marker"
    assert found["graph launch"]["kind"] == "module"
    flows = table(stage, "flows")
    names = events(stage)["name"]
    pairs = zip(flows["source_row"], flows["target_row"], strict=True)
    assert [(names[a], names[b]) for a, b in pairs] == [
        ("hipLaunchKernel", "add(float*)"),
        ("hipMemcpyAsync", "MEMORY_COPY_HOST_TO_DEVICE"),
    ]
    assert counters(stage) == {
        "SQ_WAVES": [(4_000, 32.0), (5_000, 0.0)],
        "Busy": [(4_500, 0.5)],
        "allocated memory": [(110, 2.0**20), (210, 2.0**20 + 2**10), (310, 2.0**10)],
    }
    assert stage.steps[0]["label"] == ["step 0"]


def test_facts(tmp_path: Path) -> None:
    stage = staged(FORMAT, small(tmp_path / "a.db"), tmp_path / "stage")
    facts = stage.facts
    assert (facts.rank, facts.world_size, facts.host, facts.base_unix_ns) == (3, 8, "host-a", None)
    (chip,) = [t for t in stage.timelines if t.kind == "chip"]
    # AMD Instinct MI300X data sheet: 1307.4 TFLOP/s BF16, 5.3 TB/s
    assert (chip.name, chip.peak_flops, chip.peak_bytes_per_s) == ("GPU 1", 1307.4e12, 5.3e12)
    assert facts.system is not None
    assert facts.system["chip"]["compute_units"] == 304
    assert "hunter2" not in repr(facts)


def test_a_partition_has_no_peak(tmp_path: Path) -> None:
    db = SdkDatabase(tmp_path / "a.db")
    db.machine(agent={"cu_count": 38})
    db.insert("rocpd_info_kernel_symbol", id=9, display_name="k")
    db.row(
        "rocpd_kernel_dispatch",
        1,
        2,
        kernel_id=9,
        nid=1,
        pid=100,
        agent_id=1,
        queue_id=0,
        stream_id=0,
    )
    db.close()
    stage = staged(FORMAT, tmp_path / "a.db", tmp_path / "stage")
    assert [t.peak_flops for t in stage.timelines if t.kind == "chip"] == [None]


def big(path: Path, layout: str, seed: int) -> Path:
    """Random kernels and copies of two processes on two hosts, several sets of tables."""
    chance = random.Random(seed)
    for node in (1, 2):
        db = SdkDatabase(path, layout, GUID[:-1] + str(node))
        db.machine(node=node, pid=node * 50, host=f"host-{node}")
        names = [
            "gemm",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "softmax",
        ]
        for number, name in enumerate(names):
            db.insert(
                "rocpd_info_kernel_symbol",
                id=number + 1,
                kernel_name=name,
                display_name=name if number else "",
            )
        at = 1_000
        for stack in range(1, 1_500):
            host = {"nid": node, "pid": node * 50, "tid": chance.randrange(1, 4)}
            at += chance.randrange(50)
            if chance.random() < 0.9:
                event = db.event("HIP_RUNTIME_API", stack)
                db.row(
                    "rocpd_region",
                    at,
                    at + chance.randrange(1, 40),
                    name_id=db.string("hipLaunchKernel"),
                    event_id=event,
                    **host,
                )
            gpu = host | {
                "agent_id": chance.randrange(1, 3),
                "queue_id": 0,
                "stream_id": chance.randrange(2),
            }
            event = db.event("KERNEL_DISPATCH", stack)
            row = {"kernel_id": chance.randrange(1, 4), "dispatch_id": stack, "event_id": event}
            db.row(
                "rocpd_kernel_dispatch",
                at + 100,
                at + 100 + chance.randrange(90),
                **row,
                **SHAPE,
                **gpu,
            )
        db.close()
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_are_those_of_sql(tmp_path: Path, layout: str) -> None:
    path = big(tmp_path / "merged.db", layout, 5)
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage)
    with sqlite3.connect(path) as connection:
        for node in (1, 2):
            suffix = GUID[:-1] + str(node)
            assert _by_kernel(found, stage, node) == _by_kernel_in_sql(connection, layout, suffix)
            ours = _linked(found, stage, node)
            sql = (
                f"SELECT count(*) FROM `rocpd_event{suffix}` D JOIN `rocpd_kernel_dispatch{suffix}` K ON K.event_id = D.id "
                f"JOIN `rocpd_event{suffix}` E ON E.stack_id = D.stack_id JOIN `rocpd_region{suffix}` R ON R.event_id = E.id"
            )
            assert ours == connection.execute(sql).fetchone()[0]
    collectives = found.filter(pl.col("category") == "collective")
    assert collectives["op_id"].to_list() == list(range(collectives.height))
    ops = table(stage, "ops")
    assert set(ops["name"]) == {"AllReduce"}
    assert set(ops["algorithm"]) == {"RING_LL"}
    assert set(ops["dtypes"]) == {"bfloat16"}
    chips = {t.chip: t.name for t in stage.timelines if t.kind == "chip"}
    assert chips == {0: "GPU 0", 1: "GPU 1", 2: "host-2 GPU 0", 3: "host-2 GPU 1"}
    assert "merged_ranks" in kinds(stage)
    aligned = stage.facts.collectives
    assert aligned is not None
    assert aligned["start_ns"].is_sorted()


def _chips(stage: Stage, node: int) -> list[int]:
    return [0, 1] if node == 1 else [2, 3]


def _of_node(found: pl.DataFrame, stage: Stage, node: int) -> pl.DataFrame:
    chips = [stage.timelines[n].chip for n in stage.times("timeline").tolist()]
    numbered = found.with_columns(chip=pl.Series(chips), row=pl.int_range(pl.len()))
    return numbered.filter(pl.col("chip").is_in(_chips(stage, node)), pl.col("kind") == "stream")


def _by_kernel(found: pl.DataFrame, stage: Stage, node: int) -> dict[str, tuple[int, int]]:
    grouped = (
        _of_node(found, stage, node)
        .group_by("name")
        .agg(pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    )
    return {name: (count, ns) for name, count, ns in grouped.iter_rows()}


def _linked(found: pl.DataFrame, stage: Stage, node: int) -> int:
    rows = set(_of_node(found, stage, node)["row"])
    return sum(target in rows for target in table(stage, "flows")["target_row"])


def _by_kernel_in_sql(
    connection: sqlite3.Connection, layout: str, suffix: str
) -> dict[str, tuple[int, int]]:
    start, end, join = "K.start", "K.end", ""
    if layout == "stamps":
        start, end = "A.value", "B.value"
        join = f"JOIN `rocpd_timestamp{suffix}` A ON A.id = K.start_id JOIN `rocpd_timestamp{suffix}` B ON B.id = K.end_id"
    sql = (
        f"SELECT coalesce(nullif(S.display_name, ''), S.kernel_name), count(*), sum({end} - {start}) FROM `rocpd_kernel_dispatch{suffix}` K "
        f"JOIN `rocpd_info_kernel_symbol{suffix}` S ON S.id = K.kernel_id {join} GROUP BY 1"
    )
    return {name: (count, ns) for name, count, ns in connection.execute(sql)}


def test_ends_of_copies(tmp_path: Path) -> None:
    db = SdkDatabase(tmp_path / "a.db")
    db.machine()
    cases: list[tuple[str, Any, Any]] = [
        ("MEMORY_COPY_DEVICE_TO_DEVICE", 1, 2),
        ("MEMORY_COPY_DEVICE_TO_DEVICE", 2, 2),
        ("MEMORY_COPY_DEVICE_TO_HOST", 2, 0),
        ("MEMORY_COPY_HOST_TO_HOST", 0, 0),
        ("MEMORY_COPY_HOST_TO_DEVICE", None, None),
    ]
    for at, (name, source, target) in enumerate(cases):
        row = {
            "name_id": db.string(name),
            "size": 8,
            "src_agent_id": source,
            "dst_agent_id": target,
        }
        db.row("rocpd_memory_copy", at, at + 1, nid=1, pid=100, tid=5, stream_id=0, **row)
    db.close()
    found = events(staged(FORMAT, tmp_path / "a.db", tmp_path / "stage"))
    assert found.select("source_memory", "target_memory", "track").rows() == [
        ("hbm", "remote", "Default Stream copies"),
        ("hbm", "hbm", "Default Stream copies"),
        ("hbm", "host", "Default Stream copies"),
        ("host", "host", "copies"),
        ("host", "hbm", "copies"),
    ]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    db = SdkDatabase(tmp_path / "a.db", suffix="")
    db.machine()
    for name in (
        "rocpd_event",
        "rocpd_region",
        "rocpd_info_kernel_symbol",
        "rocpd_info_agent",
        "rocpd_arg",
    ):
        db.connection.execute(f"DROP TABLE {name}")
    db.row(
        "rocpd_kernel_dispatch",
        5,
        9,
        kernel_id=4,
        nid=1,
        pid=100,
        agent_id=1,
        queue_id=3,
        stream_id=2,
    )
    db.close()
    stage = staged(FORMAT, tmp_path / "a.db", tmp_path / "stage")
    found = events(stage).row(0, named=True)
    assert (found["name"], found["track"]) == ("[unnamed]", "stream 2, queue 3")
    told = {f.kind: f for f in stage.audit.findings}
    assert told["unlinked_kernels"].severity == "warning"
    assert told["missing_table"].where.endswith("rocpd_region")


def test_values_of_other_types(tmp_path: Path) -> None:
    db = SdkDatabase(tmp_path / "a.db")
    db.machine()
    db.insert("rocpd_info_kernel_symbol", id=4, display_name="k")
    place = {"nid": 1, "pid": 100, "agent_id": 1, "queue_id": 0, "stream_id": 0}
    db.row("rocpd_kernel_dispatch", 5, 9, kernel_id=4, **place)
    db.row("rocpd_kernel_dispatch", 15, 19, kernel_id="four", **place)
    db.close()
    stage = staged(FORMAT, tmp_path / "a.db", tmp_path / "stage")
    assert events(stage)["name"].to_list() == ["k", "[unnamed]"]
    assert "unreadable_values" in kinds(stage)


def test_a_cut_database_keeps_what_is_there(tmp_path: Path) -> None:
    path = big(tmp_path / "a.db", "3", 9)
    data = path.read_bytes()
    cut = tmp_path / "cut.db"
    cut.write_bytes(data[: len(data) * 6 // 10])
    stage = staged(FORMAT, cut, tmp_path / "stage")
    whole = staged(FORMAT, path, tmp_path / "whole")
    assert 0 < stage.rows < whole.rows
    assert "truncated" in kinds(stage)


def test_other_databases_are_not_taken_for_it(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE people (id INTEGER, name TEXT)")
    with sqlite3.connect(tmp_path / "nsys.sqlite") as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    rpd = RpdDatabase(tmp_path / "a.rpd")
    rpd.close()
    ours = small(tmp_path / "a.db")
    heads = {
        p.name: head_of(p)
        for p in (tmp_path / "other.db", tmp_path / "nsys.sqlite", tmp_path / "a.rpd", ours)
    }
    assert {n: (FORMAT.recognise(h), nsys.FORMAT.recognise(h)) for n, h in heads.items()} == {
        "other.db": (0, 0),
        "nsys.sqlite": (0, 100),
        "a.rpd": (100, 0),
        "a.db": (100, 0),
    }
    with pytest.raises(
        ProfileError, match=r"no table of rocprofv3 or rpd is in it \(it has people\)"
    ):
        staged(FORMAT, tmp_path / "other.db", tmp_path / "stage")


def test_end_to_end(tmp_path: Path) -> None:
    import_profiles([small(tmp_path / "results.db")], tmp_path / "out.trnprof")
    trace = open_trace(tmp_path / "out.trnprof")
    found = trace.events.collect()
    assert found.height == 12
    assert trace.peaks.filter(pl.col("dtype") == "bfloat16")["flops_per_s"].to_list() == [1307.4e12]
    assert [p for p in trace.validate() if p.severity == "error"] == []
