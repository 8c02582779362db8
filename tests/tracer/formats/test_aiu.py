"""Traces of IBM's AIU: the public files recounted with Python's json, transfers between ranks, cycles, damaged files."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged, table

from trnprof.analysis.ranks import rank_breakdown
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.aiu.format import FORMAT
from trnprof.tracer.formats.chrome.format import FORMAT as CHROME
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.reader import open_trace

FOLDER = Path(__file__).parents[3].parent / "shared" / "traces" / "aiu"
ONE, FOUR = FOLDER / "sample_flex_3062_job_4.json", FOLDER / "allreduce_tp4.json"
needs_files = pytest.mark.skipif(
    not ONE.is_file(), reason="no ../shared/traces/aiu beside the repository"
)
Event = dict[str, Any]
SUFFIXES = {
    "Cmpt Exec": ("compute", "engine", "compute"),
    "Cmpt Prep": ("prepare", "thread", "sync"),
    "DmaI": ("RDMA in", "collective_stream", "collective"),
    "DmaO": ("RDMA out", "collective_stream", "collective"),
}


def pairs_of(path: Path) -> list[tuple[Event, Event]]:
    """In the public files each beginning is followed by its end."""
    said = json.loads(path.read_text(), parse_float=str)
    pairs = list(zip(said[::2], said[1::2], strict=True))
    assert all((b["ph"], e["ph"], b["name"]) == ("B", "E", e["name"]) for b, e in pairs)
    return pairs


def ns(us: str) -> int:
    return int(Fraction(us) * 1000)


@needs_files
@pytest.mark.parametrize("path", [ONE, FOUR], ids=["one", "four"])
def test_public_files(tmp_path: Path, path: Path) -> None:
    assert FORMAT.recognise(head_of(path)) == 90 > CHROME.recognise(head_of(path)) > 0
    stage = staged(FORMAT, path, tmp_path / "stage")
    found = events(stage)
    wanted = []
    for begin, end in pairs_of(path):
        name, said = begin["name"], begin["attr"]
        place = next(v for k, v in SUFFIXES.items() if name.endswith(k))
        if "Set BcList" in name or "Xseg" in name:
            place = ("RDMA protocol", "thread", "sync")
        size = int(said["Bytes"]) if "Bytes" in said else None
        wanted.append((name, ns(begin["ts"]), ns(end["ts"]), *place, size))
    columns = ("name", "start_ns", "end_ns", "track", "kind", "category", "bytes")
    assert Counter(found.select(columns).rows()) == Counter(wanted)
    assert all("TS5" in json.loads(text) for text in found["attributes"])
    chips = sorted(t.name for t in stage.timelines if t.kind == "chip")
    assert chips == [f"AIU {rank}" for rank in sorted({b["pid"] for b, _ in pairs_of(path)})]


@needs_files
def test_transfers_go_from_rank_to_rank(tmp_path: Path) -> None:
    """A chain 0 → 1 → 2 → 3, then from 3 to all; each receives what carries the tag of its sender."""
    stage = staged(FORMAT, FOUR, tmp_path / "stage")
    found, flows = events(stage), table(stage, "flows")
    rank = [stage.timelines[n].rank for n in stage.times("timeline").tolist()]
    sent = [(rank[s], rank[t]) for s, t, k, _ in flows.iter_rows() if k == "collective"]
    assert sorted(sent) == [(0, 1), (1, 2), (2, 3), (3, 0), (3, 1), (3, 2)]
    queued = [
        (found["name"][s], found["name"][t]) for s, t, k, _ in flows.iter_rows() if k == "queue"
    ]
    assert len(queued) == 7
    assert all(a.replace("Prep", "Exec") == b for a, b in queued)
    ops = table(stage, "ops")
    assert (
        ops.select("kind", "name", "group_seq", "in_bytes").rows()
        == [("collective", "AllReduce_all_reduce_4", 0, 524_288)] * 4
    )
    (groups,) = stage.groups
    assert groups["ranks"] == [[0, 1, 2, 3]]
    in_collective = sum("CollGroup" in b["attr"] for b, _ in pairs_of(FOUR))
    assert found["op_id"].is_not_null().sum() == in_collective
    disagree = next(f for f in stage.audit.findings if f.kind == "rank_clocks_disagree")
    assert disagree.count == 3


@needs_files
def test_cycles_tell_the_clock(tmp_path: Path) -> None:
    rates = []
    for begin, end in pairs_of(ONE):
        cycles = int(begin["attr"]["TS4"], 16) - int(begin["attr"]["TS3"], 16)
        rates.append(cycles / float(Fraction(end["ts"]) - Fraction(begin["ts"])))
    stage = staged(FORMAT, ONE, tmp_path / "stage")
    assert stage.facts.metadata["aiu"] == {
        "cycles_per_us": round(median(rates), 3),
        "computations": 17,
    }
    assert (stage.facts.rank, kinds(stage)) == (0, set())


@needs_files
def test_compute_time_of_the_report(tmp_path: Path) -> None:
    """The union of the computations; one of the 17 is there twice."""
    import_profiles([ONE], tmp_path / "out.trnprof")
    trace = open_trace(tmp_path / "out.trnprof")
    spans = sorted({(ns(b["ts"]), ns(e["ts"])) for b, e in pairs_of(ONE)})
    starts, ends = np.array(spans).T
    assert (starts[1:] >= ends[:-1]).all()
    (row,) = rank_breakdown(trace).whole.to_dicts()
    assert (row["compute_ns"], row["busy_ns"]) == (int((ends - starts).sum()),) * 2
    assert row["span_ns"] == int(ends[-1] - starts[0])


def stage_of(tmp_path: Path, rows: list[Event]) -> Stage:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(rows))
    return staged(FORMAT, path, tmp_path / "stage")


def made(name: str, begin: float, end: float, tid: int = 1, **attr: str) -> list[Event]:
    stamps = {
        f"TS{k}": str(int(t * 560))
        for k, t in zip(range(1, 6), [0, 0, begin, end, end], strict=True)
    }
    common = {"name": name, "pid": 0, "tid": tid, "attr": {**stamps, **attr}}
    return [{**common, "ph": "B", "ts": begin}, {**common, "ph": "E", "ts": end}]


def test_overlapping_work_is_paired_by_its_stamps(tmp_path: Path) -> None:
    """Two of one name that overlap: by name alone the inner end would go to the later beginning."""
    stage = stage_of(tmp_path, [*made("a DmaI", 0, 10), *made("a DmaI", 5, 15)])
    assert events(stage).select("start_ns", "end_ns").rows() == [(0, 10_000), (5_000, 15_000)]
    assert set(events(stage)["source_memory"]) == {"host"}


def test_counters_that_ran_over_are_told(tmp_path: Path) -> None:
    rows = [row for k in range(5) for row in made(f"k{k} Cmpt Exec", 100 * k, 100 * k + 50)]
    rows += made("odd Cmpt Exec", 900, 950)
    rows[-1]["attr"] = rows[-2]["attr"] = {
        **rows[-1]["attr"],
        "TS4": str(int(rows[-1]["attr"]["TS3"]) + 7),
    }
    stage = stage_of(tmp_path, rows)
    assert {f.kind: f.count for f in stage.audit.findings} == {"cycles_disagree": 1}
    assert stage.facts.metadata["aiu"]["cycles_per_us"] == 560.0


def test_arguments_under_their_usual_name(tmp_path: Path) -> None:
    rows = [{**row, "args": row.pop("attr")} for row in made("a DmaO", 5, 9, Bytes="64")]
    found = events(stage_of(tmp_path, rows))
    assert found.select("kind", "bytes", "source_memory", "target_memory").rows() == [
        ("dma_queue", 64, "hbm", "host")
    ]


def test_a_counter_among_them(tmp_path: Path) -> None:
    counter = {"ph": "C", "name": "queue", "pid": 0, "ts": 1, "attr": {"length": 3}}
    stage = stage_of(tmp_path, [counter, {**counter, "attr": {}}, *made("a Cmpt Exec", 5, 9)])
    assert counters(stage) == {"queue length": [(1_000, 3.0)]}
    assert {f.kind: f.count for f in stage.audit.findings} == {"unreadable_values": 1}


def test_host_threads_stay_threads(tmp_path: Path) -> None:
    host = [{"ph": "X", "name": "Flex RoundTrip", "pid": 0, "tid": 7, "ts": 0, "dur": 99}]
    stage = stage_of(tmp_path, [*host, *made("a Cmpt Exec", 5, 9)])
    found = events(stage).sort("start_ns")
    assert found.select("name", "kind", "category").rows() == [
        ("Flex RoundTrip", "thread", "host"),
        ("a Cmpt Exec", "engine", "compute"),
    ]


@needs_files
@pytest.mark.parametrize("cut", range(1, 40))
def test_cut_files(tmp_path: Path, cut: int) -> None:
    data = FOUR.read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(data[: len(data) * cut // 40])
    with contextlib.suppress(ProfileError):
        stage = staged(FORMAT, path, tmp_path / "stage")
        assert "truncated" in kinds(stage)
