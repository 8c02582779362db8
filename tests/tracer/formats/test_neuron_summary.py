"""Summaries: published counters, both layouts of text, figures that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.formats.neuron_profiles import INF2, summary_json
from tests.tracer.formats.staged import head_of, kinds, staged

from trnprof.analysis.metrics import derive
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.summary import FORMAT
from trnprof.tracer.formats.neuron.summary_text import in_own_unit, parse_summary_text
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.source import Head
from trnprof.tracer.reader import open_trace

# a summary-text of trn1.2xlarge, tools 2.26.14 (values of a public BERT fine-tuning log, laid out as the tool does)
TABLE = """
Summary metrics account for Logical NeuronCore config = 2
+----------------+-------------------------------------------------+------------------+
| Group          | Name                                            | Value            |
+----------------+-------------------------------------------------+------------------+
| overall_stats  | event_count                                     | 488839           |
|                | hardware_flops                                  | 654.344 GFLOPS   |
|                | mm_arithmetic_intensity                         | 69.75 flops/byte |
|                | model_flops                                     | 536.363 GFLOPS   |
|                | neuroncore_cycle_count                          | 75289488         |
|                | peak_flops_bandwidth_ratio                      | 223.78           |
|                | total_time                                      | 53.78 ms         |
|                | transpose_flops                                 | 117.976 GFLOPS   |
| data_movement  | dma_active_time_percent                         | 85.22 %          |
|                | hbm_read_bytes                                  | 4.334 GiB        |
|                | hbm_write_bytes                                 | 2.828 GiB        |
|                | mbu_estimated_percent                           | 34.88 %          |
|                | output_queue_bytes                              | 0 B              |
|                | weight_size_bytes                               | 112 KiB          |
| tensor_engine  | hfu_estimated_percent                           | 13.26 %          |
|                | mfu_estimated_percent                           | 10.87 %          |
|                | mfu_max_achievable_estimated_percent            | 31.17 %          |
| sync_engine    | sync_engine_active_time                         | 322.1 us         |
| system         | compiler_version                                | 2.21.18209.0+043b1bf7 |
|                | instance_type                                   | trn1.2xlarge     |
|                | profiler_version                                | 2.26.14.0%kaena-tools/2.26@6459a28 |
| throttling_nc0 | throttle_active_nc0_time_ns                     | 3.15 ms          |
|                | throttle_activity_0_avg_util_limit_nc0_percent  | 87.5 %           |
|                | throttle_avg_util_limit_nc0_percent             | 109.67 %         |
|                | throttle_periodic_avg_util_limit_nc0_percent    | 25300 %          |
+----------------+-------------------------------------------------+------------------+

| ND Idx | NC Idx | Usage Type       | Amount     |
| ------ | ------ | ---------------- | ---------- |
| 0      | 0      | Tensor           | 17.995 MiB |
| 0      | 0      | profiler buffers | 2.443 GiB  |
| 0      | 0      | io               | 64 B       |
| 0      | 0      | Total            | 5.472 GiB  |
"""
# the newer layout (as a public workshop page shows it)
INDENTED = """
s_2b34ee2866d9218f6a487d2535f8008b7e887e99
    total_duration_ns    1786270865722793417
    message_count:
        Cpu_Util_Message_Count          0
        Trace_Events_Message_Count      9634
    event_type_count:
        kbl_exec_post                         20
        nrt_tensor_free                       4800
n_7792fe1daf87c456c04c96497296393233c1c7b1
    activate_instruction_count                        5220
    throttle_activity_0_avg_util_limit_nc4_percent    1
    adjusted_hardware_flops                           161563672576
    hardware_dynamic_dma_size_percent                 0.041778316085653945
    throttle_active_nc5_time_ns                       22297550
"""


def test_published_counters_follow_from_each_other(tmp_path: Path) -> None:
    """The formulas of the report, on the counters of an imported summary, give the published metrics."""
    path = tmp_path / "summary.json"
    path.write_text(summary_json())
    stage = staged(FORMAT, path, tmp_path / "stage")
    (figures,) = stage.facts.metrics["profiles"].values()
    assert stage.facts.metrics["tool_version"] == "2.28.23.0"
    assert stage.facts.metrics["source"] == "summary-json"
    assert figures["hfu_estimated_percent"] == INF2["hfu_estimated_percent"]
    counted = (
        "total_time",
        "total_active_time",
        "hardware_flops",
        "transpose_flops",
        "hbm_read_bytes",
        "hbm_write_bytes",
        "dma_transfer_count",
        "dma_transfer_total_bytes",
        "model_flops",
    )
    counters = pl.DataFrame(
        {
            **{name: [float(figures[name])] for name in counted},
            "adjusted_hardware_flops": [float(figures["hardware_flops"])],
            "adjusted_transpose_flops": [float(figures["transpose_flops"])],
            "dma_active_time": [0.0],
            "cc_op_active_time": [0.0],
            "cc_op_count": [0],
            # NeuronCore-v2: 128 x 128 x 2 x 2.8 GHz and 410 GB/s a core
            "peak_flops": [128 * 128 * 2 * 2.8e9],
            "peak_bytes_per_s": [410e9],
            "dma_peak_bytes_per_s": [410e9],
        }
    )
    derived = derive(counters, 1.4).row(0, named=True)
    for metric in INF2:
        if metric in derived and "tensor_engine" not in metric:
            assert derived[metric] == pytest.approx(INF2[metric], rel=1e-5), metric
    assert stage.facts.system is not None
    assert stage.facts.system["core"] == {"name": "NeuronCore-v2", "base_clock_ghz": 1.4}


def test_text_with_units_has_the_names_units(tmp_path: Path) -> None:
    path = tmp_path / "summary.txt"
    path.write_text(TABLE)
    assert FORMAT.recognise(head_of(path)) >= 80
    stage = staged(FORMAT, path, tmp_path / "stage")
    figures = stage.facts.metrics["profiles"][""]
    assert figures["total_time"] == pytest.approx(0.05378)
    assert figures["hardware_flops"] == 654_344_000_000
    assert figures["hbm_read_bytes"] == round(4.334 * 2**30)
    assert figures["weight_size_bytes"] == 112 * 1024
    assert figures["dma_active_time_percent"] == pytest.approx(0.8522)
    assert figures["sync_engine_active_time"] == pytest.approx(322.1e-6)
    assert figures["throttle_active_nc0_time_ns"] == pytest.approx(3.15e6)
    assert figures["event_count"] == 488839
    assert figures["instance_type"] == "trn1.2xlarge"
    assert figures["output_queue_bytes"] == 0
    assert stage.facts.metrics["tool_version"].startswith("2.26.14")
    assert stage.facts.metrics["memory"]["nd0/nc0"]["Total"] == pytest.approx(5.472 * 2**30, abs=1)
    # published: HFU = hardware FLOPs / (91.75 TFLOP/s x total time)
    hfu = figures["hardware_flops"] / (128 * 128 * 2 * 2.8e9 * figures["total_time"])
    assert hfu == pytest.approx(figures["hfu_estimated_percent"], rel=1e-3)
    assert "rounded_metrics" in kinds(stage)


def test_impossible_throttle_figures_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "summary.txt"
    path.write_text(TABLE)
    stage = staged(FORMAT, path, tmp_path / "stage")
    raw = stage.facts.metrics["raw"][""]
    assert raw["throttle_periodic_avg_util_limit_nc0_percent"] == pytest.approx(253.0)
    assert raw["throttle_avg_util_limit_nc0_percent"] == pytest.approx(1.0967)
    assert len(raw) == 2
    figures = stage.facts.metrics["profiles"][""]
    assert "throttle_periodic_avg_util_limit_nc0_percent" not in figures
    assert figures["throttle_activity_0_avg_util_limit_nc0_percent"] == 0.875
    (finding,) = [f for f in stage.audit.findings if f.kind == "impossible_metric"]
    assert finding.count == 2
    assert "109.67 %" in finding.example


def test_markdown_copies_read_the_same() -> None:
    """Copies that went through a Markdown editor: bold values, and the group's empty cell moved behind."""
    copied = "\n".join(
        [
            "| Group | Name | Value |",
            "| ----- | ---- | ----- |",
            "| overall_stats | **event_count** | 488839 |",
            "| **hardware_flops** | 654.344 **GFLOPS** | |",
            "| **total_time** | 53.78 **ms** |              |",
            "| **sync_engine_active_time** | 322.1 **us** | |",
            "| 0 | 0 | dma rings io | 1.847 **MiB** |",
        ]
    )
    found = parse_summary_text(copied)
    (figures,) = found.profiles.values()
    assert figures == {
        "event_count": 488839,
        "hardware_flops": 654_344_000_000,
        "total_time": pytest.approx(0.05378),
        "sync_engine_active_time": pytest.approx(322.1e-6),
    }
    assert found.memory == {"nd0/nc0": {"dma rings io": pytest.approx(1.847 * 2**20)}}


def test_indented_text_has_profiles_and_the_system_session(tmp_path: Path) -> None:
    path = tmp_path / "view.txt"
    path.write_text(INDENTED)
    assert FORMAT.recognise(head_of(path)) >= 80
    stage = staged(FORMAT, path, tmp_path / "stage")
    profiles = stage.facts.metrics["profiles"]
    assert list(profiles) == ["n_7792fe1daf87c456c04c96497296393233c1c7b1"]
    (figures,) = profiles.values()
    assert figures["hardware_dynamic_dma_size_percent"] == 0.041778316085653945
    assert figures["adjusted_hardware_flops"] == 161563672576
    (system,) = stage.facts.metadata["system_profiles"].values()
    assert system["event_type_count.nrt_tensor_free"] == 4800
    assert system["total_duration_ns"] == 1786270865722793417


def test_every_profile_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    one, two = (
        {"total_time": 1.0, "hfu_estimated_percent": 0.5},
        {"total_time": 2.0, "mbu_estimated_percent": 1.5},
    )
    path.write_text(
        "INFO loading profile\n"
        + json.dumps({"n_aa": one, "n_bb": two, "s_cc": {"message_count": {"x": 3}}})
    )
    stage = staged(FORMAT, path, tmp_path / "stage")
    assert stage.facts.metrics["profiles"] == {"n_aa": one, "n_bb": {"total_time": 2.0}}
    assert stage.facts.metrics["raw"] == {"n_bb": {"mbu_estimated_percent": 1.5}}
    assert stage.facts.metadata["system_profiles"] == {"s_cc": {"message_count.x": 3}}


def test_roofline_caps_may_exceed_one(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        json.dumps({"n_aa": {"total_time": 1.0, "mfu_max_achievable_estimated_percent": 2.5}})
    )
    stage = staged(FORMAT, path, tmp_path / "stage")
    assert "raw" not in stage.facts.metrics


@pytest.mark.parametrize(
    "text", ["", "{}", '{"n_a": {}}', "nothing here", '{"total_time": ', "[1, 2]"]
)
def test_what_is_no_summary_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"x\.json: "):
        staged(FORMAT, path, tmp_path / "stage")


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet='|{}[]":,.%\n _abcgimnstuB0123456789', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    parse_summary_text(text)
    assert 0 <= FORMAT.recognise(Head("x", text.encode())) <= 100


def test_units() -> None:
    assert in_own_unit("total_time", "1,234.5", "us") == pytest.approx(1.2345e-3)
    assert in_own_unit("throttle_active_nc0_time_ns", "3", "us") == pytest.approx(3_000)
    assert in_own_unit("hbm_read_bytes", "2", "KiB") == 2048
    assert in_own_unit("hbm_read_bytes", "2", "furlongs") is None


def test_a_summary_alone_becomes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text(summary_json())
    summary = import_profiles([path], tmp_path / "out.trnprof")
    assert summary.sources[0].format == "neuron-summary"
    trace = open_trace(tmp_path / "out.trnprof")
    assert "hfu_estimated_percent" in json.dumps(trace.manifest)
    assert [p for p in trace.validate() if p.severity == "error"] == []
