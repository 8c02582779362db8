"""Chrome traces with GPUs: what rocprof writes, and what makes a process a device."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tracer.formats.chrome_events import Event, arrows, stage_of, x
from tests.tracer.formats.staged import events, kinds

from trnprof.analysis.ranks import rank_breakdown
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.reader import open_trace


def rocprof() -> str:
    """As rocprof writes it: a leading empty event, ids as text, times in whole µs with exact ones beside."""

    def event(name: str, pid: int, tid: int, begin: int, end: int) -> Event:
        args = {
            "BeginNs": str(begin),
            "EndNs": str(end),
            "pid": str(pid),
            "tid": str(tid),
            "Name": name,
        }
        whole = {"ts": str(begin // 1000), "dur": str((end - begin) // 1000 or 1)}
        return {"ph": "X", "name": name, "pid": str(pid), "tid": str(tid), **whole, "args": args}

    labels = [(2, "CPU HIP API"), (1, "COPY"), (6, "GPU0"), (7, "GPU1")]
    rows: list[Event] = [{}]
    rows += [
        {"args": {"name": n}, "ph": "M", "pid": p, "name": "process_name", "sort_index": i}
        for i, (p, n) in enumerate(labels)
    ]
    rows += [
        event("hipLaunchKernel", 2, 900, 1_000_100, 1_004_900),
        event("gemm", 6, 0, 1_010_300, 1_030_700),
        event("ncclDevKernel_AllReduce", 6, 1, 1_020_000, 1_040_000),
        event("<barrier packet>", 6, 0, 1_030_700, 1_030_900),
        event("CopyHostToDevice", 1, 0, 1_000_000, 1_000_400),
        {"ts": 1004, "ph": "s", "cat": "DataFlow", "id": 0, "pid": 2, "tid": 900, "name": "dep"},
        {"ts": 1010, "ph": "t", "cat": "DataFlow", "id": 0, "pid": 6, "tid": 0, "name": "dep"},
    ]
    return json.dumps({"traceEvents": rows, "otherData": {"version": "rocprof"}})


def test_rocprof(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, rocprof())
    found = {r["name"]: r for r in events(stage).iter_rows(named=True)}
    assert (found["gemm"]["start_ns"], found["gemm"]["end_ns"]) == (1_010_300, 1_030_700)
    assert {n: (r["category"], r["kind"]) for n, r in found.items()} == {
        "hipLaunchKernel": ("host", "thread"),
        "gemm": ("compute", "stream"),
        "ncclDevKernel_AllReduce": ("collective", "stream"),
        "<barrier packet>": ("sync", "thread"),
        "CopyHostToDevice": ("dma", "dma_queue"),
    }
    copy = found["CopyHostToDevice"]
    assert (copy["source_memory"], copy["target_memory"]) == ("host", "hbm")
    assert arrows(stage) == {("hipLaunchKernel", "gemm", "launch")}
    chips = [t for t in stage.timelines if t.kind == "chip"]
    assert [(c.name, c.chip) for c in chips] == [("GPU 0", 0)]
    streams = sorted(t.name for t in stage.timelines if t.kind == "stream")
    assert streams == ["stream 0", "stream 1"]
    assert kinds(stage) == {"finer_times"}


def test_rocprof_as_the_report_sees_it(tmp_path: Path) -> None:
    """1,010,300–1,030,700 computes, 1,020,000–1,040,000 communicates, 400 ns copy at 1,000,000: by hand."""
    path = tmp_path / "results.json"
    path.write_text(rocprof())
    import_profiles([path], tmp_path / "out.trnprof")
    (row,) = rank_breakdown(open_trace(tmp_path / "out.trnprof")).whole.to_dicts()
    assert (row["compute_ns"], row["communication_ns"], row["overlap_ns"]) == (
        20_400,
        20_000,
        10_700,
    )
    assert (row["busy_ns"], row["span_ns"]) == (30_100, 40_000)


def test_a_process_is_no_gpu_by_half_a_name(tmp_path: Path) -> None:
    names = ["GPU Process", "GPU 0 worker", "COPY"]
    rows = [x("a", 0, 1, pid=p) for p in range(3)]
    rows += [
        {"ph": "M", "name": "process_name", "pid": p, "args": {"name": n}}
        for p, n in enumerate(names)
    ]
    stage = stage_of(tmp_path, rows)
    assert {t.kind for t in stage.timelines} == {"thread"}
