"""Places under the roofs: by hand, against a twin in plain Python, and on devices whose peaks or traffic nobody knows."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.analysis.traces import (  # fmt: skip
    BANDWIDTH,
    DMA0,
    PEAK_FLOPS,
    TENSOR,
    VECTOR,
    Row,
    build,
    core_tracks,
    event,
    frame,
    step,
)

from trnprof.analysis.focus import focus
from trnprof.analysis.metrics import tensor_peaks
from trnprof.analysis.roofline import datatypes, placements, throttles
from trnprof.analysis.scope import Scope, device_scope
from trnprof.analysis.sections.roofline import build as section
from trnprof.analysis.sections.section import as_json
from trnprof.analysis.sections.subject import subject_of
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES

FP32 = PEAK_FLOPS / 4
PEAKS: list[Row] = [
    {"dtype": "bfloat16", "flops_per_s": PEAK_FLOPS},
    {"dtype": "float32", "flops_per_s": FP32},
]
LOAD: dict[str, Any] = {"source_memory": "hbm", "target_memory": "sbuf"}
DMA_RATE = BANDWIDTH / 2


def whole(trace: Trace) -> Scope:
    scope = device_scope(trace)
    assert scope is not None
    return focus(scope)


def ops(*paths: str) -> list[Row]:
    return [{"op_id": i, "name": "mm", "module_path": path, "phase": "forward"} for i, path in enumerate(paths)]  # fmt: skip


def test_a_layer_by_hand() -> None:
    """1 GFLOP in FP32 and 0.5 MB over 100 µs: half of what its peak allows, and far right of the ridge."""
    events = [
        event(TENSOR, 0, 60_000, flops=6e8, dtype="float32", op_id=0),
        event(TENSOR, 60_000, 40_000, flops=4e8, dtype="fp32", op_id=0),
        event(VECTOR, 0, 100_000, flops=9e9, op_id=0),  # not the matmul engine's
        event(DMA0, 10_000, 5_000, bytes=500_000, op_id=0, **LOAD),
        event(DMA0, 20_000, 10_000, bytes=2_000_000, op_id=1, **LOAD),
    ]
    trace = build(events, ops=ops("layers.0.mlp", "embed"), peaks=PEAKS, steps=[step(0, 0, 100_000)],
                  tracks=core_tracks(dma_bytes_per_s=DMA_RATE))  # fmt: skip
    mlp, embed = placements(whole(trace), trace, "layer").rows(named=True)
    assert (mlp["module"], mlp["dtype"], mlp["time_ns"]) == ("layers.0.mlp", "float32", 100_000)
    assert mlp["intensity"] == pytest.approx(1e9 / 500_000)
    assert mlp["peak_flops_per_s"] == pytest.approx(FP32)
    assert mlp["attainable_flops_per_s"] == pytest.approx(FP32)
    assert mlp["achieved_flops_per_s"] == pytest.approx(1e9 / 100e-6)
    assert mlp["roofline_share"] == pytest.approx(1e9 / FP32 / 100e-6)
    assert mlp["limit"] == "compute"
    # no FLOPs: the DMA engines, slower than the stack, are its roof
    assert (embed["limit"], embed["intensity"], embed["attainable_flops_per_s"]) == ("DMA", None, None)  # fmt: skip
    assert embed["roofline_ns"] == pytest.approx(2_000_000 / DMA_RATE * 1e9)
    rows = {row["dtype"]: row for row in datatypes(whole(trace), trace).rows(named=True)}
    assert rows["float32"]["flops"] == 1e9
    assert rows["float32"]["ridge"] == pytest.approx(FP32 / BANDWIDTH)
    assert rows["float32"]["dma_ridge"] == pytest.approx(2 * FP32 / BANDWIDTH)
    assert (rows["bfloat16"]["flops"], rows["bfloat16"]["flops_share"]) == (0, 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("by", ["operator", "layer"])
def test_places_are_those_of_a_twin(seed: int, by: Any) -> None:
    """Two cores, one of which stands for three; every figure summed event by event."""
    draw = random.Random(seed)
    tracks = [
        row | ({"replica_count": 3} if row["track_id"] in (3, *range(20, 27)) else {})
        for row in core_tracks(2, dma_bytes_per_s=DMA_RATE)
    ]
    paths = ["a", "b", "a"]
    events, free = [], dict.fromkeys((TENSOR, DMA0, TENSOR + 10, DMA0 + 10), 0)
    for _ in range(40):
        track = draw.choice(list(free))
        start = free[track] + draw.randrange(30)
        length = draw.randrange(1, 50)
        free[track] = start + length
        of = draw.randrange(len(paths))
        if track % 10 == TENSOR % 10:
            kind = draw.choice(["bfloat16", "float32"])
            events.append(event(track, start, length, flops=float(draw.randrange(1, 10**6)), dtype=kind, op_id=of))  # fmt: skip
        else:
            events.append(event(track, start, length, bytes=draw.randrange(1, 9000), op_id=of, **LOAD))  # fmt: skip
    trace = build(events, ops=ops(*paths), peaks=PEAKS, tracks=tracks)
    found = {row["module"]: row for row in placements(whole(trace), trace, by).rows(named=True)}
    peak = {"bfloat16": PEAK_FLOPS, "float32": FP32}
    for module in {paths[e["op_id"]] for e in events}:
        totals = dict.fromkeys(("time_ns", "flops", "compute", "hbm", "memory"), 0.0)
        for core, weight in ((0, 1), (1, 3)):
            mine = [e for e in events if paths[e["op_id"]] == module and (e["track_id"] - TENSOR) // 10 == core]  # fmt: skip
            active = {t for e in mine for t in range(e["start_ns"], e["start_ns"] + e["duration_ns"])}  # fmt: skip
            work = [e for e in mine if "flops" in e]
            moved = sum(e.get("bytes", 0) for e in mine)
            values = (
                len(active),
                sum(e["flops"] for e in work),
                sum(e["flops"] / peak[e["dtype"]] for e in work),
                moved,
                moved / DMA_RATE,
            )
            for name, value in zip(totals, values, strict=True):
                totals[name] += value * weight / 4
        row = found[module]
        roof = max(totals["compute"], totals["memory"])
        assert row["time_ns"] == pytest.approx(totals["time_ns"])
        assert row["hbm_bytes"] == pytest.approx(totals["hbm"])
        assert row["roofline_ns"] == pytest.approx(roof * 1e9)
        assert row["roofline_share"] == pytest.approx(roof * 1e9 / totals["time_ns"])
        assert row["limit"] == ("compute" if totals["compute"] >= totals["memory"] else "DMA")
        if totals["flops"]:
            assert row["flops"] == pytest.approx(totals["flops"])
            assert row["attainable_flops_per_s"] == pytest.approx(totals["flops"] / roof)
            assert row["peak_flops_per_s"] == pytest.approx(totals["flops"] / totals["compute"])


def gpu(peak: float | None, flops: float | None) -> Trace:
    tracks: list[Row] = [
        {"track_id": 0, "kind": "host", "name": "host0"},
        {"track_id": 1, "parent_id": 0, "kind": "chip", "name": "GPU 0", "chip": 0, "rank": 0, "peak_flops": peak},
        {"track_id": 2, "parent_id": 1, "kind": "stream", "name": "stream 7", "chip": 0, "rank": 0},
    ]  # fmt: skip
    events = [{"track_id": 2, "start_ns": 0, "duration_ns": 1000, "name": "gemm", "flops": flops}]
    return build(events, tracks=tracks, manifest={"imported": {}})


def test_devices_that_nobody_knows_have_no_roof() -> None:
    unknown = as_json(section(subject_of(gpu(None, 1e9))))
    (row,) = unknown["by_operator"]
    assert (row["achieved_flops_per_s"], row["attainable_flops_per_s"], row["limit"]) == (1e15, None, None)  # fmt: skip
    assert "the peaks of this device are not known, so nothing has a roof" in unknown["notes"]
    known = as_json(section(subject_of(gpu(2e15, 1e9))))
    (row,) = known["by_operator"]
    assert (row["roofline_share"], row["hbm_bytes"], row["limit"]) == (0.5, None, None)
    assert any("the roof is the peak alone" in note for note in known["notes"])
    silent = section(subject_of(gpu(2e15, None))).nothing_to_say
    assert silent == "because no event has FLOPs or HBM traffic in this window"


def test_throttling_where_it_is_counted() -> None:
    counter = {"track_id": 90, "parent_id": 2, "kind": "counter", "name": "utilization limit, throttle activity_0", "rank": 0, "unit": "fraction"}  # fmt: skip
    trace = build(
        [event(TENSOR, 0, 100, flops=1.0)], tracks=[*core_tracks(), counter], steps=[step(0, 0, 100)]
    )  # fmt: skip
    samples = [{"track_id": 90, "timestamp_ns": at, "value": v} for at, v in ((10, 0.5), (30, 1.0))]
    counted = replace(trace, counters=frame(TABLES["counters"], samples).lazy())
    (row,) = throttles(counted, whole(counted)).rows(named=True)
    assert row["throttle"] == "activity_0"
    assert (row["mean_limit"], row["lowest_limit"], row["limited_share"]) == (0.9, 0.5, 0.2)
    assert not throttles(trace, whole(trace)).height


def test_the_figures_are_those_of_the_metrics() -> None:
    events = [event(TENSOR, 0, 1000, flops=1e6, dtype="bfloat16"), event(DMA0, 0, 500, bytes=4000, **LOAD)]  # fmt: skip
    trace = build(events, peaks=PEAKS, steps=[step(0, 0, 1000)])
    assert tensor_peaks(trace)["bfloat16"] == PEAK_FLOPS
    rows = {row["key"]: row["value"] for row in as_json(section(subject_of(trace)))["summary"]}
    assert rows["hfu_estimated_percent"] == pytest.approx(1e6 / (PEAK_FLOPS * 1e-6))
    assert rows["mbu_estimated_percent"] == pytest.approx(4000 / (BANDWIDTH * 1e-6))
    assert rows["mm_arithmetic_intensity"] == pytest.approx(250)
    assert rows["peak_flops_bandwidth_ratio"] == pytest.approx(PEAK_FLOPS / BANDWIDTH)
