"""Neuron Explorer's formulas against counters that its users published."""

from __future__ import annotations

import polars as pl
import pytest
from tests.analysis.traces import DMA0, PEAK_FLOPS, TENSOR, build, core_tracks, event, step

from trnprof.analysis.metrics import combine_units, derive, dtype_multipliers
from trnprof.analysis.scope import device_scope
from trnprof.analysis.screen import screen_of

INF2_PEAK = 128 * 128 * 2 * 2.8e9
INF2_BANDWIDTH = 410e9
TRN2_PEAK = 128 * 128 * 2 * 2.4e9

# summary-json of one NEFF on inf2 (tools 2.28.23), as published by pantheongpu/pantheonneuron
INF2_COUNTERS = {
    "total_time": 0.000149710075,
    "total_active_time": 0.00014409027,
    "model_flops": 67_108_864,
    "hardware_flops": 136_380_416,
    "transpose_flops": 2_162_688,
    "adjusted_hardware_flops": 136_380_416,  # BF16: the same
    "adjusted_transpose_flops": 2_162_688,
    "hbm_read_bytes": 8_470_528,
    "hbm_write_bytes": 16_384,
    "peak_flops": INF2_PEAK,
    "peak_bytes_per_s": INF2_BANDWIDTH,
    "dma_peak_bytes_per_s": INF2_BANDWIDTH,
    "dma_transfer_count": 19,
    "dma_transfer_total_bytes": 8_486_912,
    "dma_active_time": 66_875 / 1.4e9,
    "cc_op_active_time": 0.0,
}
INF2_METRICS = {
    "hfu_estimated_percent": 0.009928714238395054,
    "mfu_estimated_percent": 0.004885633591650872,
    "mfu_hlo_estimated_percent": 0.004885633591650872,
    "mfu_inst_estimated_percent": 0.009771267183301744,
    "mfu_max_achievable_estimated_percent": 0.03533507997793712,
    "mfu_hlo_max_achievable_estimated_percent": 0.03533507997793712,
    "mfu_inst_max_achievable_estimated_percent": 0.07067015995587424,
    "mbu_estimated_percent": 0.13826581387961806,
    "mm_arithmetic_intensity": 15.814671814671815,
    "peak_flops_bandwidth_ratio": 223.78146341463415,
    "total_active_time_percent": 0.9624620787879505,
    "dma_transfer_average_bytes": 446_679.58,
    "neuroncore_cycle_count": 209_594,
}
SINGLE_PRECISION = 2e-7
"""Neuron Explorer computes from 32-bit floats."""


@pytest.mark.parametrize("name", INF2_METRICS)
def test_published_inf2_metrics_follow_from_its_counters(name: str) -> None:
    found = derive(pl.DataFrame([INF2_COUNTERS]), base_clock_ghz=1.4).row(0, named=True)
    tolerance = (
        1e-5
        if name in ("neuroncore_cycle_count", "dma_transfer_average_bytes")
        else SINGLE_PRECISION
    )
    assert found[name] == pytest.approx(INF2_METRICS[name], rel=tolerance)


# fp32 attention kernel on a 1.2 GHz core: (total_time, adjusted hardware and transpose FLOPs, hfu, mfu_inst), before and
# after a change to bf16; a published diff of its counters, four digits
FP32_KERNEL = [
    (2.199e-05, 3.355e07, 1.678e07, 0.0194, 0.009699),
    (2.266e-05, 2.307e07, 1.258e07, 0.01295, 0.005885),
]


@pytest.mark.parametrize(("total", "hardware", "transpose", "hfu", "mfu"), FP32_KERNEL)
def test_utilization_uses_adjusted_flops(
    total: float, hardware: float, transpose: float, hfu: float, mfu: float
) -> None:
    counters = INF2_COUNTERS | {
        "total_time": total,
        "model_flops": 0,
        "adjusted_hardware_flops": hardware,
        "adjusted_transpose_flops": transpose,
        "peak_flops": TRN2_PEAK,
    }
    found = derive(pl.DataFrame([counters])).row(0, named=True)
    assert found["hfu_estimated_percent"] == pytest.approx(hfu, rel=1e-3)
    assert found["mfu_inst_estimated_percent"] == pytest.approx(mfu, rel=2e-3)
    assert found["mfu_estimated_percent"] == found["mfu_inst_estimated_percent"]
    assert found["mfu_hlo_estimated_percent"] is None
    assert found["neuroncore_cycle_count"] is None


def test_multipliers_are_the_documented_ones_without_peaks() -> None:
    v3 = dtype_multipliers(build())
    v2 = dtype_multipliers(build(manifest={"system": {"core": {"name": "NeuronCore-v2"}}}))
    assert (v3["bf16"], v3["float32"], v3["fp8"], v3["mxfp4"]) == (1.0, 4.0, 0.5, 0.25)
    assert (v2["float32"], v2["float8"]) == (4.0, 1.0)


def test_multipliers_follow_the_peaks_table() -> None:
    peaks = [
        {"dtype": "bfloat16", "flops_per_s": 80e12},
        {"dtype": "float32", "flops_per_s": 16e12},
        {"dtype": "float8", "flops_per_s": 320e12, "sparsity": "4:16"},
    ]
    found = dtype_multipliers(build(peaks=peaks))
    assert found["fp32"] == 5.0
    assert found["float8"] == 0.5


def test_roofline_counts_each_datatype_at_its_own_peak() -> None:
    flops = [(1e6, "bfloat16"), (1e6, "float32")]
    events = [event(TENSOR, 100 * i, 50, flops=f, dtype=d) for i, (f, d) in enumerate(flops)]
    trace = build(events, steps=[step(0, 0, 1000)])
    scope = device_scope(trace)
    assert scope is not None
    row = derive(screen_of(trace, scope).counters()).row(0, named=True)
    assert row["roofline_compute_s"] == pytest.approx(1e6 / PEAK_FLOPS + 1e6 / (PEAK_FLOPS / 4))


@pytest.mark.parametrize(
    ("stack", "engines", "reached"),
    [
        (725e9, 430e9, 430e9),
        (100e9, 430e9, 100e9),
        (725e9, None, 725e9),
        (None, 430e9, 430e9),
        (None, None, None),
    ],
)
def test_dma_reaches_the_lower_of_stack_and_engines(
    stack: float | None, engines: float | None, reached: float | None
) -> None:
    tracks = [
        {**t, "peak_bytes_per_s": stack} if t["kind"] == "core" else t
        for t in core_tracks(2, dma_bytes_per_s=engines)
    ]
    moved = {"bytes": 1000, "source_memory": "hbm", "target_memory": "sbuf"}
    trace = build([event(DMA0, 0, 10, **moved)], tracks=tracks, steps=[step(0, 0, 100)])
    scope = device_scope(trace)
    assert scope is not None
    assert scope.units["dma_peak_bytes_per_s"].to_list() == [reached, reached]
    both = derive(combine_units(screen_of(trace, scope).counters())).row(0, named=True)
    assert both["dma_peak_bytes_per_s"] == (None if reached is None else 2 * reached)
    assert both["peak_bytes_per_s"] == (None if stack is None else 2 * stack)
    needed_s = None if reached is None else 1000 / (2 * reached)
    assert both["roofline_memory_s"] == pytest.approx(needed_s)


@pytest.mark.parametrize(
    ("engines", "needed_s"), [(430e9, 2 * 4300 / 725e9), (300e9, 4300 / 300e9)]
)
def test_copy_within_hbm_passes_the_engines_once_and_the_stack_twice(
    engines: float, needed_s: float
) -> None:
    counters = INF2_COUNTERS | {
        "hbm_read_bytes": 4300,
        "hbm_write_bytes": 4300,
        "dma_transfer_total_bytes": 4300,
        "peak_bytes_per_s": 725e9,
        "dma_peak_bytes_per_s": engines,
    }
    found = derive(pl.DataFrame([counters])).row(0, named=True)
    assert found["roofline_memory_s"] == pytest.approx(needed_s)


def test_cores_of_one_rank_share_its_operations_and_replicas_weigh() -> None:
    tracks = [{**t, "rank": 0 if t.get("rank") is not None else None} for t in core_tracks(2)]
    events = [event(TENSOR + 10 * core, 0, 10, op_id=7, step=0, flops=50.0) for core in range(2)]
    ops = [{"op_id": 7, "name": "mm", "model_flops": 100.0}]
    trace = build(events, tracks=tracks, ops=ops, steps=[step(0, 0, 100)])
    scope = device_scope(trace)
    assert scope is not None
    counters = screen_of(trace, scope).counters()
    assert counters.filter(pl.col("window") == 0)["model_flops"].to_list() == [50.0, 50.0]
    twice = counters.with_columns(replica_count=pl.lit(3))
    combined = combine_units(twice).row(0, named=True)
    assert (combined["model_flops"], combined["hardware_flops"]) == (300.0, 300.0)
    assert combined["peak_flops"] == 6 * PEAK_FLOPS
    assert combined["total_time"] == pytest.approx(100e-9)
