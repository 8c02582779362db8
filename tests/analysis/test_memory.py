"""Memory over time against a nanosecond-by-nanosecond twin; what counters of which tools say; the section on odd traces."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.analysis.traces import TENSOR, build, core_tracks, event, frame, step

from trnprof.analysis.memory import at_instant, fragmentation, gauges, levels, peaks, timeline
from trnprof.analysis.sections.memory import build as section
from trnprof.analysis.sections.section import as_json
from trnprof.analysis.sections.subject import subject_of
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES

Samples = dict[str, list[tuple[int, float]]]


def counted(samples: Samples, end: int = 100, manifest: Any = None, unit: str = "B") -> Trace:
    tracks, rows = core_tracks(), []
    for number, (name, values) in enumerate(samples.items(), start=90):
        tracks.append({"track_id": number, "parent_id": 2, "kind": "counter", "name": name, "rank": 0, "unit": unit})  # fmt: skip
        rows += [{"track_id": number, "timestamp_ns": at, "value": v} for at, v in values]
    trace = build([event(TENSOR, 0, end)], tracks=tracks, steps=[step(0, 0, end)])
    counters = frame(TABLES["counters"], rows).lazy()
    return replace(trace, counters=counters, manifest=trace.manifest | (manifest or {}))


def at(samples: list[tuple[int, float]], when: int) -> float | None:
    before = [v for t, v in samples if t <= when]
    return before[-1] if before else None


@pytest.mark.parametrize("seed", range(8))
def test_every_nanosecond_is_counted_once(seed: int) -> None:
    draw = random.Random(seed)
    samples: Samples = {}
    for name in ("HBM parameters", "HBM gradients"):
        times = sorted(draw.sample(range(160), 12))
        samples[name] = [(t, float(draw.randrange(50))) for t in times]
    both = sorted({0, *(t for values in samples.values() for t, _ in values)})
    samples["HBM bytes"] = [(t, sum(at(samples[n], t) or 0.0 for n in ("HBM parameters", "HBM gradients"))) for t in both]  # fmt: skip
    start, end = 20, 120
    trace = counted(samples, manifest={"emulation": {"hbm": {"capacity_bytes": 60}}})
    known = gauges(trace, 0)
    held = levels(trace, known, start, end)
    total = [at(samples["HBM bytes"], t) or 0.0 for t in range(start, end)]
    (row,) = peaks(known, held).rows(named=True)
    final = at(samples["HBM bytes"], end) or 0.0
    assert row["peak"] == max(*total, final)
    assert row["full_ns"] == sum(v > 54 for v in total)
    assert row["near_peak_share"] == pytest.approx(sum(v > 0.9 * row["peak"] for v in total) / 100)
    assert row["mean"] == pytest.approx(sum(total) / 100)
    assert row["share"] == row["peak"] / 60
    live = dict(at_instant(known, held, row["gauge"], row["at_ns"]).iter_rows())
    assert sum(live.values()) == row["peak"]
    wanted = {n[4:]: at(samples[n], row["at_ns"]) for n in samples if n != "HBM bytes"}
    assert live == {use: v for use, v in wanted.items() if v}
    buckets = timeline(known, held, row["gauge"], start, end, 5)
    for bucket in buckets.rows(named=True):
        inside = total[bucket["at_ns"] - start :][:20]
        last = [final] if bucket["at_ns"] == 100 else []
        assert bucket["highest"] == max(*inside, *last)
        assert bucket["mean"] == pytest.approx(sum(inside) / 20)


def test_what_the_tools_call_their_memories() -> None:
    names = {
        "HBM bytes": ("HBM", None),
        "HBM optimizer state": ("HBM", "optimizer state"),
        "SBUF bytes": ("SBUF", None),
        "GPU 0 memory reserved": ("GPU 0 memory", None),
        "GPU 0 memory allocated": ("GPU 0 memory", "allocated"),
        "i-1 device 3, HBM 1: total": ("i-1 device 3, HBM 1", None),
        "i-1 device 3, HBM 1: dma rings io": ("i-1 device 3, HBM 1", "dma rings io"),
        "HBM bytes so far": None,
        "DMA bytes so far": None,
        "loss": None,
    }
    known = gauges(counted({name: [(0, 1.0)] for name in names}), 0)
    found = {row["track_id"]: (row["memory"], row["use"]) for row in known.rows(named=True)}
    assert found == {90 + i: pair for i, pair in enumerate(names.values()) if pair is not None}
    pairs = known.group_by("gauge").len().height
    assert pairs == 4


def test_fractions_of_sbuf_and_psum_are_shares() -> None:
    trace = counted({"SBUF use": [(0, 0.5), (50, 0.95)], "PSUM use": [(0, 0.25)]}, unit="fraction")
    rows = as_json(section(subject_of(trace)))["peaks"]
    assert [(r["memory"], r["share"], r["full_share"]) for r in rows] == [
        ("SBUF", 0.95, 0.5),
        ("PSUM", 0.25, 0.0),
    ]
    assert {r["peak_bytes"] for r in rows} == {None}


def test_what_is_reserved_and_not_allocated() -> None:
    trace = counted(
        {
            "GPU 0 memory reserved": [(0, 100.0), (10, 200.0), (60, 150.0)],
            "GPU 0 memory allocated": [(0, 90.0), (10, 120.0), (30, 180.0), (60, 20.0)],
        }
    )
    known = gauges(trace, 0)
    (row,) = fragmentation(known, levels(trace, known, 0, 100)).rows(named=True)
    assert (row["reserved"], row["allocated"], row["highest_unused"]) == (200, 180, 130)
    assert row["unused_share"] == pytest.approx(0.1)


def test_the_section_says_what_it_cannot() -> None:
    empty = build([event(TENSOR, 0, 10)], steps=[step(0, 0, 10)])
    assert section(subject_of(empty)).nothing_to_say == "because the trace has no counter of a memory"  # fmt: skip
    only_uses = counted({"HBM parameters": [(0, 5.0)]})
    assert "none as a whole" in (section(subject_of(only_uses)).nothing_to_say or "")
    late = counted({"HBM bytes": [(500, 5.0)]})
    assert section(subject_of(late)).nothing_to_say == "because no memory was counted in this window"  # fmt: skip
    nothing = counted({"HBM bytes": [(0, 0.0)]})
    assert as_json(section(subject_of(nothing)))["peaks"][0]["peak_bytes"] == 0


def test_largest_tensors_name_module_and_line() -> None:
    large = {"count": 2, "nbytes": 8, "category": "activations", "operator": "gelu", "phase": "forward",
             "module_path": "layers.0.mlp", "source_file": "/a/model.py", "source_line": 7, "dtype": "float32", "shape": [2]}  # fmt: skip
    told = {"emulation": {"hbm": {"capacity_bytes": 100, "peak_bytes": 50, "peak_largest": [large]}}}  # fmt: skip
    found = as_json(section(subject_of(counted({"HBM bytes": [(0, 40.0)]}, manifest=told))))
    assert found["largest"] == [
        {"bytes": 16, "count": 2, "use": "activations", "what": "float32 [2]", "operator": "gelu", "module": "layers.0.mlp", "source": "model.py:7"}
    ]  # fmt: skip
    assert any("for an instant" in note and "50 B" in note for note in found["notes"])
