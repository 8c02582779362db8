"""What a profile says of itself, its counters, several nodes, and the same tables in other containers."""

from __future__ import annotations

import contextlib
import json
import lzma
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal
from tests.tracer.formats.nsys_files import NsysFile, global_pid, global_tid
from tests.tracer.formats.staged import counters, events, kinds, staged, table

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.nsys import parquet as nsys_parquet
from trnprof.tracer.formats.nsys.format import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.source import Head
from trnprof.tracer.reader import open_trace

SHARED = Path(__file__).parents[3].parent / "shared"
UTC = 1_779_630_014_975_716_426


def test_metrics_become_counters_with_units(tmp_path: Path) -> None:
    """Percentages as fractions, MHz as Hz; the low byte of the type is the GPU."""
    file = NsysFile(tmp_path / "a.sqlite")
    names = {1: "SMs Active [Throughput %]", 2: "GPC Clock Frequency [MHz]", 3: "PCIe RX"}
    for gpu, kind in ((0, 0x0100), (1, 0x0101)):
        for number, name in names.items():
            file.add(
                "TARGET_INFO_GPU_METRICS",
                typeId=kind,
                sourceId=1,
                typeName="t",
                metricId=number,
                metricName=name,
            )
            for i in range(50):
                file.add(
                    "GPU_METRICS", timestamp=100 * i, typeId=kind, metricId=number, value=i + gpu
                )
    file.add("GPU_METRICS", timestamp=7, typeId=0x0100, metricId=9, value=5)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    units = {t.name: t.unit for t in stage.timelines if t.kind == "counter"}
    assert units == {
        "SMs Active": "fraction",
        "GPC Clock Frequency": "Hz",
        "PCIe RX": "1",
        "metric 9": "1",
    }
    of_gpu = {i: t.chip for i, t in enumerate(stage.timelines)}
    samples = table(stage, "counters").with_columns(gpu=pl.col("timeline").replace_strict(of_gpu))
    for gpu in (0, 1):
        own = samples.filter(pl.col("gpu") == gpu)
        for name, scale in (("SMs Active", 0.01), ("GPC Clock Frequency", 1e6), ("PCIe RX", 1.0)):
            (number,) = [
                i for i, t in enumerate(stage.timelines) if t.name == name and t.chip == gpu
            ]
            rows = own.filter(timeline=number).select("timestamp_ns", "value").rows()
            assert rows == [(100 * i, pytest.approx((i + gpu) * scale)) for i in range(50)]
    unnamed = next(f for f in stage.audit.findings if f.kind == "unnamed_metrics")
    assert unnamed.count == 1


def test_allocated_memory_adds_up(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    changes = [
        (30, 0, 100),
        (10, 0, 50),
        (20, 1, 50),
        (40, 1, 100),
    ]  # time, operation, bytes: not in order
    for at, operation, size in changes:
        file.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            start=at,
            globalPid=global_pid(3),
            deviceId=0,
            bytes=size,
            memKind=2,
            memoryOperationType=operation,
        )
    file.add(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        start=15,
        globalPid=global_pid(3),
        deviceId=0,
        bytes=7,
        memKind=1,
        memoryOperationType=0,
    )
    file.range("r", 1, 2, 3, 3)
    found = counters(staged(FORMAT, file.done(), tmp_path / "stage"))
    assert found == {"allocated memory": [(10, 50.0), (20, 0.0), (30, 100.0), (40, 0.0)]}


def facts_of(
    tmp_path: Path,
    environment: str = "",
    exported: dict[str, str] | None = None,
    start: int | None = UTC,
) -> tuple[object, ...]:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
    file = NsysFile(path)
    file.range("r", 1, 2, 3, 3)
    if start is not None:
        file.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=start)
    file.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
    file.add("META_DATA_CAPTURE", name="COMMAND_LINE:ENVIRONMENT_VARIABLE", value=environment)
    for name, value in (exported or {}).items():
        file.add("META_DATA_EXPORT", name=name, value=value)
    stage = staged(FORMAT, file.done(), tmp_path / f"{path.stem}.stage")
    facts = stage.facts
    assert "sesame" not in json.dumps(facts.metadata)  # no secret is kept
    return facts.base_unix_ns, facts.rank, facts.world_size, facts.host, facts.metadata.get("node")


def test_clock_host_and_rank(tmp_path: Path) -> None:
    assert facts_of(tmp_path) == (UTC, None, None, "node7", None)
    torchrun = "PASSWORD=sesame;RANK=5;LOCAL_RANK=1;WORLD_SIZE=8;GROUP_RANK=1"
    assert facts_of(tmp_path, torchrun) == (UTC, 5, 8, "node7", 1)
    assert facts_of(tmp_path, 'SLURM_PROCID="3"; SLURM_NTASKS="4"') == (UTC, 3, 4, "node7", None)
    assert facts_of(tmp_path, "MY_RANK=9;RANKS=2;RANK=x") == (UTC, None, None, "node7", None)
    assert facts_of(tmp_path, start=None)[0] is None
    shifted = {"EXPORT_PARAM_TIME_SHIFT": "1000"}
    assert facts_of(tmp_path, exported=shifted)[0] == UTC - 1000
    unix = {"EXPORT_PARAM_TIME_NORMALIZE": "true"}
    assert facts_of(tmp_path, exported=unix)[0] == 0
    assert facts_of(tmp_path, exported=unix | shifted)[0] == -1000


def test_nodes_are_laid_side_by_side_by_their_session_start(tmp_path: Path) -> None:
    """Two nodes whose sessions began 250 ns apart."""
    paths = []
    for rank in (0, 1):
        file = NsysFile(tmp_path / f"node{rank}.sqlite")
        file.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC + 250 * rank)
        file.add(
            "META_DATA_CAPTURE", name="ENVIRONMENT_VARIABLE", value=f"RANK={rank};WORLD_SIZE=2"
        )
        for i in range(3):
            file.kernel("k", 1000 * i + 1, 1000 * i + 50, pid=3, deviceId=0)
        paths.append(file.done())
    summary = import_profiles(paths, tmp_path / "t.trnprof")
    assert [source.rank for source in summary.sources] == [0, 1]
    trace = open_trace(tmp_path / "t.trnprof")
    streams = trace.tracks.filter(kind="stream").select("track_id", "rank")
    rows = trace.events.collect().join(streams, on="track_id").sort("rank", "start_ns")
    first = rows.filter(rank=0)["start_ns"].to_numpy()
    assert (rows.filter(rank=1)["start_ns"].to_numpy() - first).tolist() == [250] * 3


def test_processes_that_do_not_say_their_rank_are_numbered_by_gpu(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    for pid, gpu in ((10, 1), (20, 0)):
        file.kernel("k", 10, 20, pid=pid, deviceId=gpu)
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    assert sorted((t.chip or 0, t.rank) for t in stage.timelines if t.kind == "chip") == [
        (0, 0),
        (1, 1),
    ]
    assumed = next(f for f in stage.audit.findings if f.kind == "merged_ranks")
    assert assumed.severity == "warning"
    assert "ranks 0 to 1" in assumed.message


def test_what_the_profiler_complained_about_is_told(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "a.sqlite")
    file.range("r", 1, 2, 3, 3)
    file.add("DIAGNOSTIC_EVENT", severity=1, text="Profiling has started.")
    file.add("DIAGNOSTIC_EVENT", severity=2, text="Not all NVTX events might have been collected.")
    for _ in range(2):
        file.add("DIAGNOSTIC_EVENT", severity=3, text="CUPTI: buffer size mismatch")
    file.add("COMPOSITE_EVENTS", id=1, start=5, cpu=0, globalTid=global_tid(3, 3))
    stage = staged(FORMAT, file.done(), tmp_path / "stage")
    told = {f.kind: f.message for f in stage.audit.findings}
    assert "Not all NVTX events" in told["dropped_events"]
    (odd,) = [f for f in stage.audit.findings if f.kind == "profiler_warning"]
    assert odd.where.endswith(": DIAGNOSTIC_EVENT, row 2")
    assert odd.count == 2
    assert "buffer size mismatch" in told["profiler_warning"]
    assert "CPU samples are not imported" in told["not_imported"]
    assert not any("has started" in message for message in told.values())


def rich(path: Path) -> Path:
    file = NsysFile(path)
    file.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
    file.add(
        "TARGET_INFO_GPU_METRICS",
        typeId=0,
        sourceId=1,
        typeName="t",
        metricId=1,
        metricName="SMs Active [%]",
    )
    for i in range(40):
        file.call("cudaLaunchKernel", 100 * i, 100 * i + 9, 3, 3, correlationId=i + 1)
        file.kernel(
            f"gemm_{i % 3}", 100 * i + 20, 100 * i + 80, pid=3, correlationId=i + 1, gridX=i
        )
        file.range(f"step {i}", 100 * i, 100 * i + 99, 3, 3, doubleValue=i / 7, color=i)
        file.range(None, 100 * i + 1, None, 3, 3, eventType=34, textId=file.string("mark"))
        file.add("GPU_METRICS", timestamp=100 * i, typeId=0, metricId=1, value=i)
    return file.done()


def as_parquet(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path.with_suffix(".parquet"), row_group_size=16)


def as_arrow(frame: pl.DataFrame, path: Path) -> None:
    frame.write_ipc(path.with_suffix(".arrow"), compat_level=pl.CompatLevel.oldest())


def as_stream(frame: pl.DataFrame, path: Path) -> None:
    """Texts as dictionaries, which Arrow has for them."""
    rows = frame.to_arrow()
    for i, field in enumerate(rows.schema):
        if pa.types.is_large_string(field.type):
            rows = rows.set_column(i, field.name, rows[i].cast(pa.string()).dictionary_encode())
    with ipc.new_stream(path.with_suffix(".arrows"), rows.schema) as sink:
        sink.write_table(rows, max_chunksize=16)


@pytest.mark.parametrize("write", [as_parquet, as_arrow, as_stream])
def test_directories_of_tables_give_the_same_as_sqlite(
    tmp_path: Path, write: Callable[[pl.DataFrame, Path], None]
) -> None:
    path = rich(tmp_path / "a.sqlite")
    directory = tmp_path / "a_pqtdir"
    directory.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as sql:
        names = [n for (n,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            cursor = sql.execute(f"SELECT * FROM {name}")
            columns = [c[0] for c in cursor.description]
            write(
                pl.DataFrame(
                    cursor.fetchall(), schema=columns, orient="row", infer_schema_length=None
                ),
                directory / name,
            )
    files = tuple(sorted(p.name for p in directory.iterdir()))
    assert nsys_parquet.FORMAT.recognise(Head("a_pqtdir", b"", files)) == 95
    ours = staged(FORMAT, path, tmp_path / "stage")
    theirs = staged(nsys_parquet.FORMAT, directory, tmp_path / "other")
    assert_frame_equal(events(ours), events(theirs))
    for name in ("flows", "counters"):
        assert_frame_equal(table(ours, name), table(theirs, name))
    assert ours.timelines == theirs.timelines
    assert ours.facts.base_unix_ns == theirs.facts.base_unix_ns == UTC
    assert (
        np.asarray(ours.steps[0]["start_ns"]).tolist()
        == np.asarray(theirs.steps[0]["start_ns"]).tolist()
    )


def test_parquet_of_other_types(tmp_path: Path) -> None:
    """Times as timestamps, unsigned and small integers, numbers as text, and a file that is no Parquet."""
    directory = tmp_path / "d"
    directory.mkdir()
    columns = {
        "start": pa.array([1_000, 3_000], pa.timestamp("ns")),
        "end": pa.array([2_000, 4_000], pa.uint64()),
        "deviceId": pa.array([0, 0], pa.int8()),
        "contextId": pa.array(["1", "one"]),
        "streamId": pa.array([7.0, 7.0]),
        "shortName": pa.array([0, None], pa.int32()),
    }
    pq.write_table(pa.table(columns), directory / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    pq.write_table(pa.table({"id": [0], "value": ["k"]}), directory / "StringIds.parquet")
    (directory / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 and nothing else")
    stage = staged(nsys_parquet.FORMAT, directory, tmp_path / "stage")
    rows = events(stage).select("name", "start_ns", "end_ns").rows()
    assert rows == [("k", 1000, 2000), ("[unnamed]", 3000, 4000)]
    assert {"unreadable_values", "damaged_table"} <= kinds(stage)


def test_columns_of_lists_are_missing_and_told_by_table_and_column(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    kernels = pa.table({"start": [1, 3], "end": [2, 4], "shortName": [[0], [1]]})
    pq.write_table(kernels, directory / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    stage = staged(nsys_parquet.FORMAT, directory, tmp_path / "stage")
    assert events(stage).select("start_ns", "end_ns").rows() == [(1, 2), (3, 4)]
    (odd,) = [f for f in stage.audit.findings if f.kind == "unreadable_values"]
    assert odd.where.endswith(": CUPTI_ACTIVITY_KIND_KERNEL.shortName")
    assert odd.count == 2


def test_a_printed_table_is_refused_with_what_to_export() -> None:
    path = SHARED / "traces" / "nsys" / "report_nvtx_pushpop_trace.csv.xz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    assert lzma.decompress(path.read_bytes()).startswith(b"Start (ns)")
    with pytest.raises(
        ProfileError, match=r"^\S+ is a table of text, .* nsys export --type sqlite"
    ):
        import_profiles([path], path.parent / "never.trnprof")
