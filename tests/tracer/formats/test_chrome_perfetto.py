"""Does the real Perfetto trace processor read the same slices and arrows in Chrome JSON as we do?

Stated exceptions, taken out of the files here: Perfetto drops the legacy async phases S, T and F, samples (P), arrows that go backward in
time, and an end (E) whose name is not that of an open slice; it cuts slices that overlap without nesting; and it binds an arrow that ends
(f) at the very time at which a slice begins to the slice after that, where the format's authors mean that one.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.trace_processor import needs_trace_processor, query
from tests.tracer.formats.staged import events, staged, table

from trnprof.tracer.formats.chrome.format import FORMAT
from trnprof.tracer.ingest.lanes import first_fit, in_order
from trnprof.tracer.ingest.stage import UNFINISHED, Stage

PUBLIC = Path(__file__).parents[3].parent / "shared" / "traces" / "chrome"
SLICES = """select s.ts, s.dur, s.name, s.depth, t.type = 'thread_execution' as on_thread
from slice s join track t on s.track_id = t.id"""
ARROWS = """select o.name as source, i.name as target from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id"""
Row = dict[str, Any]


def depths(stage: Stage) -> list[int]:
    """Lane of each event, which is its depth where slices nest."""
    timeline, start, end = (stage.times(n) for n in ("timeline", "start_ns", "end_ns"))
    end = np.where(end == UNFINISHED, np.iinfo(np.int64).max, end)
    order = in_order(timeline, start, end, len(stage.timelines))
    lanes, _ = first_fit(order, start, end, start == end)
    return [int(lane) for lane in lanes]


def ours(stage: Stage) -> tuple[Counter[Any], Counter[Any]]:
    """All slices (ts, dur, name), and those on threads with a length (ts, dur, name, depth)."""
    rows = events(stage).select("start_ns", "end_ns", "name", "track").rows()
    slices = [
        (s, -1 if e == UNFINISHED else e - s, n, d, t)
        for (s, e, n, t), d in zip(rows, depths(stage), strict=True)
    ]
    on_thread = (s[:4] for s in slices if s[1] > 0 and "async" not in s[4])
    return Counter(s[:3] for s in slices), Counter(on_thread)


def theirs(rows: list[Row]) -> tuple[Counter[Any], Counter[Any]]:
    slices = [(int(r["ts"]), int(r["dur"]), r["name"], r["depth"], r["on_thread"]) for r in rows]
    return Counter(s[:3] for s in slices), Counter(s[:4] for s in slices if s[1] > 0 and s[4])


def compare(tmp_path: Path, document: list[Row]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    stage = staged(FORMAT, path, tmp_path / "stage")
    slices, arrows = query(path, SLICES, ARROWS)
    assert ours(stage) == theirs(slices)
    flows, names = table(stage, "flows"), events(stage)["name"]
    mine = (
        Counter((names[s], names[t]) for s, t in flows.select("source_row", "target_row").rows())
        if flows.height
        else Counter()
    )
    assert mine == Counter((a["source"], a["target"]) for a in arrows)


@needs_trace_processor
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="no ../shared/traces beside the repository")
def test_public_files(tmp_path: Path) -> None:
    """All in one file, each with process ids of its own."""
    document: list[Row] = []
    for number, path in enumerate(sorted(PUBLIC.glob("*.json"))):
        said = json.loads(path.read_text())
        rows = said if isinstance(said, list) else said["traceEvents"]
        rows = [
            e for e in rows if e["ph"] not in "STFP" and not e["name"].endswith("UNMATCHED_END")
        ]
        if path.name == "simple_trace.json":
            rows = [
                e
                for e in rows
                if not (e["ph"] in "BE" and "Asub" in e["name"]) and e["name"] != "GlobalEvent1"
            ]
        if path.name == "flow_simple.json":
            rows = [{**e, "ts": 1000} if e["ph"] == "f" and e["ts"] == 1001 else e for e in rows]
        document += [{**e, "pid": e.get("pid", 0) + 100_000 * number} for e in rows]
    compare(tmp_path, document)


def threads(rng: Random) -> list[Row]:
    """Slices that nest, on some threads, as X or as B and E; arrows between some of them."""
    document: list[Row] = [
        {"ph": "X", "name": "only", "ts": 0, "dur": 1, "pid": 9, "tid": 99, "cat": "c"}
    ]
    slices: list[Row] = []
    for tid in range(1, rng.randint(20, 40)):
        at = {"pid": 1 + tid % 3, "tid": tid, "cat": "c"}
        _tree(rng, document, slices, at, 1_000, 1_000_000, 0)
    for number in range(30):
        ends = sorted(rng.sample(slices, 2), key=lambda row: row["inside"])
        for phase, chosen in zip("sf", ends, strict=True):
            place = {k: chosen[k] for k in ("pid", "tid")}
            flow = {"ph": phase, "id": number, "cat": "flow", "name": "arrow", "bp": "e"}
            document.append({**flow, **place, "ts": us(chosen["inside"] + (phase == "f"))})
    return document


def us(ns: int) -> float:
    return ns / 1000


def _tree(
    rng: Random,
    document: list[Row],
    slices: list[Row],
    at: Row,
    low: int,
    high: int,
    depth: int,
) -> None:
    for _ in range(rng.randint(0, 3 if depth else 4)):
        if depth > 4 or high - low < 200:
            return
        start = rng.randint(low, low + (high - low) // 4)
        end = rng.randint(start + 100, high)
        name = f"slice {len(slices)}"
        slices.append({**at, "inside": start + 50})
        if rng.random() < 0.5:
            document.append(
                {"ph": "X", "name": name, "ts": us(start), "dur": us(end - start), **at}
            )
            _tree(rng, document, slices, at, start + 60, end - 1, depth + 1)
        else:
            document.append({"ph": "B", "name": name, "ts": us(start), **at})
            _tree(rng, document, slices, at, start + 60, end - 1, depth + 1)
            named = {"name": name} if rng.random() < 0.5 else {}
            document.append({"ph": "E", "ts": us(end), **named, **at})
        low = end


@needs_trace_processor
@pytest.mark.parametrize("seed", [1, 2])
def test_made_files(tmp_path: Path, seed: int) -> None:
    compare(tmp_path, threads(Random(seed)))
