"""Real PyTorch profiles: times of each rank equal those that others have counted, and our own recount event by event."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.kineto_profiles import (
    SHARED,
    figures,
    imported,
    launches,
    raw,
    recounted,
)

from trnprof.tracer.ingest.run import ImportSummary
from trnprof.tracer.reader import Trace

TRACES = SHARED / "traces" / "kineto"
ORACLES = SHARED / "oracles" / "kineto"
FILES = {
    "amd_mi250/rank0": "mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "cp_event_sync/rank0": "event_sync_trace.json.gz",
    **{f"dlrm_8rank/rank{r}": f"dlrm_8rank_worker{r}.pt.trace.json.gz" for r in range(8)},
    **{f"sampled_2rank/rank{r}": f"sampled_rank-{r}.json.gz" for r in range(2)},
}
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the shared traces")


Importing = Callable[[str], tuple[ImportSummary, Trace]]


@pytest.fixture(scope="module")
def importing(tmp_path_factory: pytest.TempPathFactory) -> Importing:
    """Imports each file once."""

    @cache
    def of(name: str) -> tuple[ImportSummary, Trace]:
        return imported(TRACES / name, tmp_path_factory.mktemp("trace") / "t.trnprof")

    return of


@pytest.mark.parametrize("key", FILES)
def test_the_breakdown_is_that_of_an_independent_count(key: str, importing: Importing) -> None:
    expected = json.loads((ORACLES / "breakdown.json").read_text())[key]["independent"]
    _, trace = importing(FILES[key])
    (ours,) = figures(trace)
    names = {
        "span": "span", "busy": "busy", "idle": "idle", "compute": "compute", "non_compute": "non_compute",
        "comm": "communication", "overlap": "overlap",
    }  # fmt: skip
    # the oracle has three decimals of a microsecond, of differences of floats
    for theirs, name in names.items():
        assert abs(ours[f"{name}_ns"] - 1000 * expected[f"{theirs}_us"]) <= 1.01, name
    share = expected["overlap_pct_of_comm"]
    if share is not None:
        assert round(100 * ours["overlap_ns"] / ours["communication_ns"], 2) == share


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda p: p.name)
def test_events_and_device_times_are_those_of_a_recount(path: Path, importing: Importing) -> None:
    events, expected = recounted(raw(path))
    summary, trace = importing(path.name)
    assert summary.events == events
    ours = figures(trace)
    assert [{name: each[name] for name in expected} for each in ours] == (
        [expected] if expected else []
    )


def test_collectives_of_eight_ranks(tmp_path: Path) -> None:
    rows = json.loads((ORACLES / "dlrm_collectives.json").read_text())["rows"]
    paths = [TRACES / FILES[f"dlrm_8rank/rank{r}"] for r in range(8)]
    _, trace = imported(paths, tmp_path / "t.trnprof")
    rank = trace.tracks.select("track_id", "rank")
    found = (
        trace.events.filter(pl.col("category") == "collective")
        .select("track_id", "start_ns", "duration_ns", pl.col("name").cast(pl.String))
        .collect()
        .join(rank, on="track_id")
        .sort("rank", "start_ns")
        .with_columns(
            i=pl.int_range(pl.len()).over("rank"), end_ns=pl.col("start_ns") + pl.col("duration_ns")
        )
    )
    assert found["rank"].n_unique() == 8
    spread = found.group_by("i").agg(
        start=pl.col("start_ns").max() - pl.col("start_ns").min(),
        end=pl.col("end_ns").max() - pl.col("end_ns").min(),
        last=pl.col("rank").sort_by("start_ns").last(),
        shortest=pl.col("duration_ns").min(),
        longest=pl.col("duration_ns").max(),
    )
    by_number: dict[int, dict[str, Any]] = {row["i"]: row for row in spread.to_dicts()}
    assert len(by_number) == len(rows) == 8
    for row in rows:
        ours = by_number[row["i"]]
        theirs = {
            "start": row["start_spread_us"], "end": row["end_spread_us"], "shortest": row["min_dur"], "longest": row["max_dur"],
        }  # fmt: skip
        assert {name: ours[name] for name in theirs} == {k: 1000 * v for k, v in theirs.items()}
        assert ours["last"] == row["last_arriver"]


@pytest.mark.parametrize("name", ["h100_bert_small.json.gz", "mi300_bert_small.json.gz"])
def test_launches_are_those_with_equal_correlation(name: str, importing: Importing) -> None:
    events = raw(TRACES / name)["traceEvents"]
    ranges = [e for e in events if e["ph"] == "X" and "correlation" in e.get("args", {})]
    calls = {
        e["args"]["correlation"]: e["name"]
        for e in ranges
        if "stream" not in e["args"] or e["cat"].endswith("_runtime")
    }
    work = [e for e in ranges if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    expected = sorted(
        (calls[c], e["name"]) for e in work if (c := e["args"]["correlation"]) in calls
    )
    _, trace = importing(name)
    assert launches(trace) == expected


def test_modules_and_lines_are_those_that_ids_of_python_calls_say(importing: Importing) -> None:
    path = TRACES / "h100_bert_small.json.gz"
    events = [e for e in raw(path)["traceEvents"] if e["ph"] == "X"]
    calls = [e for e in events if e.get("cat") == "python_function"]
    by_id = {e["args"]["Python id"]: e for e in calls}
    expected = []
    for op in (e for e in events if e.get("cat") == "cpu_op"):
        around = [
            e for e in calls
            if e["tid"] == op["tid"] and e["ts"] <= op["ts"] and op["ts"] + op["dur"] <= e["ts"] + e["dur"]
        ]  # fmt: skip
        modules: list[str] = []
        call = max(around, key=lambda e: (e["ts"], -e["dur"])) if around else None
        while call is not None:
            if call["name"].startswith("nn.Module: "):
                modules.insert(0, call["name"].removeprefix("nn.Module: "))
            call = by_id.get(call["args"]["Python parent id"])
        expected.append((op["name"], ".".join(modules) or None))
    _, trace = importing(path.name)
    ops = trace.ops.sort("op_id").select(pl.col("name").cast(pl.String), "module_path")
    ours = ops.collect().rows()
    assert ours == expected
    assert len({path for _, path in expected}) > 20


def test_the_machine_of_a_real_profile(importing: Importing) -> None:
    path = TRACES / "h100_bert_small.json.gz"
    document = raw(path)
    _, trace = importing(path.name)
    (properties, *_) = document["deviceProperties"]
    assert trace.system["name"] == properties["name"]
    assert trace.system["chip"]["cores"] == properties["numSms"]
    chip = trace.tracks.filter(kind="chip").row(0, named=True)
    # NVIDIA's data sheet of the H100 SXM: half of 1,979 TFLOP/s with sparsity, 3.35 TB/s
    assert (chip["peak_flops"], chip["peak_bytes_per_s"]) == (989.5e12, 3.35e12)
