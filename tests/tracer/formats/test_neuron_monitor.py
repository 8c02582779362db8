"""neuron-monitor's lines, with values of a real one (inf2.xlarge, runtime 2.30.51)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tracer.formats.staged import counters, head_of, kinds, staged

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.monitor import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.reader import open_trace

# pantheongpu/pantheonneuron, data/probe-2026-08-26/07-neuron-monitor-schema.txt (its identifiers are replaced)
REPORT: dict[str, Any] = {
    "instance_info": {
        "ami_id": "ami-x",
        "error": "",
        "instance_id": "i-x",
        "instance_type": "inf2.xlarge",
        "subnet_id": "subnet-x",
    },
    "neuron_hardware_info": {
        "logical_neuroncore_config": 1,
        "neuron_device_count": 1,
        "neuron_device_memory_size": 34359738368,
        "neuron_device_type": "inferentia2",
        "neuron_device_version": "v3",
        "neuroncore_per_device_count": 2,
        "neuroncore_version": "v2",
    },
    "neuron_runtime_data": [
        {
            "pid": 2199,
            "neuron_runtime_tag": "2199",
            "report": {
                "neuroncore_counters": {
                    "period": 1.000665759,
                    "neuroncores_in_use": {
                        "0": {
                            "effective_flops": 875590474948,
                            "neuroncore_utilization": 89.40087251059674,
                        },
                        "1": {"effective_flops": 0, "neuroncore_utilization": 0},
                    },
                },
                "execution_stats": {
                    "period": 1.000590175,
                    "error_summary": {
                        "hardware": 0,
                        "model": 0,
                        "numerical": 0,
                        "runtime": 0,
                        "transient": 0,
                    },
                    "execution_summary": {"completed": 816, "timed_out": 0},
                    "latency_stats": {
                        "device_latency": {
                            "p50": 0.0011217594146728516,
                            "p99": 0.0011413097381591797,
                        },
                        "total_latency": None,
                    },
                },
                "memory_used": {
                    "period": 1.000598866,
                    "neuron_runtime_used_bytes": {
                        "host": 1166249984,
                        "neuron_device": 141649980,
                        "usage_breakdown": {
                            "host": {
                                "application_memory": 1162055680,
                                "constants": 0,
                                "dma_buffers": 4194304,
                                "tensors": 0,
                            },
                            "neuroncore_memory_usage": {
                                "0": {
                                    "constants": 33619968,
                                    "model_code": 106027452,
                                    "tensors": 131072,
                                }
                            },
                        },
                    },
                    "loaded_models": [{"model_id": 10001, "name": "/secret/path.neff"}],
                },
                "neuron_runtime_vcpu_usage": {
                    "period": 1.000568674,
                    "vcpu_usage": {"system": 10.8, "user": 14.57},
                },
            },
        }
    ],
    "system_data": {
        "neuron_hw_counters": {
            "period": 1.999993528,
            "neuron_devices": [
                {"neuron_device_index": 0, "mem_ecc_corrected": 0, "sram_ecc_uncorrected": 3}
            ],
        },
        "memory_info": {"memory_total_bytes": 16378843136, "memory_used_bytes": 4335874048},
        "vcpu_usage": {"average_usage": {"idle": 75.0, "user": 20.0}, "context_switch_count": 7372},
    },
}


def stage_of(tmp_path: Path, lines: list[str]) -> Stage:
    path = tmp_path / "monitor.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return staged(FORMAT, path, tmp_path / "stage")


def test_a_real_report_as_counters(tmp_path: Path) -> None:
    line = json.dumps(REPORT)
    path = tmp_path / "m.json"
    path.write_text(line)
    assert FORMAT.recognise(head_of(path)) >= 90
    stage = stage_of(tmp_path, [line, line])
    found = counters(stage)
    period = round(1.000568674e9)  # the shortest of its sections
    run = "runtime 2199: "
    assert found[run + "core 0 utilization"] == [
        (0, pytest.approx(0.8940087251059674)),
        (period, pytest.approx(0.8940087251059674)),
    ]
    assert found[run + "core 0 effective flops"][0] == (0, 875590474948.0)
    assert found[run + "core 1 utilization"][0] == (0, 0.0)
    assert found[run + "executions a period, completed"][1] == (period, 816.0)
    assert found[run + "device latency p50"][0] == (0, 0.0011217594146728516)
    assert found[run + "memory, neuron device"][0] == (0, 141649980.0)
    assert found[run + "host memory, dma buffers".replace(" buffers", "_buffers")][0] == (
        0,
        4194304.0,
    )
    assert found[run + "core 0 memory, model_code"][0] == (0, 106027452.0)
    assert found[run + "CPU user"][0] == (0, pytest.approx(0.1457))
    assert found["Neuron device 0: sram ecc uncorrected"][0] == (0, 3.0)
    assert found["host: memory used"][0] == (0, 4335874048.0)
    assert found["host: CPU idle"][0] == (0, 0.75)
    units = {t.name: t.unit for t in stage.timelines}
    assert units[run + "core 0 utilization"] == "fraction"
    assert units[run + "core 0 effective flops"] == "FLOP/s"
    assert units[run + "device latency p50"] == "s"
    assert {"reckoned_times", "edge_periods"} <= kinds(stage)
    kept = json.dumps([stage.facts.metadata, stage.facts.system])
    assert "NeuronCore-v2" in kept
    assert not any(secret in kept for secret in ("ami-x", "i-x", "subnet-x", "/secret"))


def test_null_sections_errors_and_several_runtimes(tmp_path: Path) -> None:
    report = copy.deepcopy(REPORT)
    first = report["neuron_runtime_data"][0]
    second = copy.deepcopy(first)
    second["neuron_runtime_tag"] = "77"
    second["report"]["neuroncore_counters"]["neuroncores_in_use"] = {
        "0": {
            "flops": 5.0,
            "neuroncore_utilization": 253.0,
            "v3d": {"nc_v3": {"1": {"neuroncore_utilization": 50}}},
        }
    }
    first["report"]["execution_stats"] = None
    first["report"]["memory_used"] = {"error": "runtime went away"}
    first["error"] = "cannot reach runtime"
    report["neuron_runtime_data"].append(second)
    report["system_data"] = None
    stage = stage_of(tmp_path, [json.dumps(report)])
    found = counters(stage)
    assert found["runtime 77: core 0 flops"] == [(0, 5.0)]
    assert found["runtime 77: core 0 nc_v3.1 utilization"] == [(0, 0.5)]
    assert found["runtime 2199: core 0 utilization"] == [(0, pytest.approx(0.894, abs=1e-3))]
    told = {(f.kind, f.example) for f in stage.audit.findings}
    assert {
        ("monitor_error", "runtime 2199: cannot reach runtime"),
        ("monitor_error", "memory_used: runtime went away"),
    } <= told
    assert {"null_section", "impossible_metric"} <= kinds(stage)


@pytest.mark.parametrize(
    ("stamp", "prefix", "expected"),
    [
        (1760000000, "", 1_760_000_000_000_000_000),
        (1760000000.25, "", 1_760_000_000_250_000_000),
        (1760000000123, "", 1_760_000_000_123_000_000),
        ("2025-10-09T08:53:20.5Z", "", 1_760_000_000_500_000_000),
        (None, "2025-10-09 10:53:20,25+02:00 ", 1_760_000_000_250_000_000),
    ],
)
def test_lines_that_somebody_stamped_are_on_unix_time(
    tmp_path: Path, stamp: Any, prefix: str, expected: int
) -> None:
    report = REPORT if stamp is None else {**REPORT, "timestamp": stamp}
    stage = stage_of(tmp_path, [prefix + json.dumps(report)])
    assert counters(stage)["host: CPU idle"] == [(expected, 0.75)]
    assert stage.facts.base_unix_ns == 0
    assert "reckoned_times" not in kinds(stage)


def test_lines_that_are_cut_are_left_out(tmp_path: Path) -> None:
    line = json.dumps(REPORT)
    stage = stage_of(tmp_path, [line, line[:100], "{}", "NaN", line.replace("75.0", "NaN")])
    assert {f.kind: f.count for f in stage.audit.findings}["malformed_line"] == 3
    assert len(counters(stage)["host: CPU idle"]) == 1
    assert len(counters(stage)["host: CPU user"]) == 2


def test_no_report_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"monitor\.jsonl: no line of it is a report"):
        stage_of(tmp_path, ["{}", "text"])


def test_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join([json.dumps(REPORT)] * 5))
    summary = import_profiles([path], tmp_path / "out.trnprof")
    assert summary.sources[0].format == "neuron-monitor"
    trace = open_trace(tmp_path / "out.trnprof")
    assert [p for p in trace.validate() if p.severity == "error"] == []
    assert trace.counters.collect().height == sum(
        map(len, counters(staged(FORMAT, path, tmp_path / "s")).values())
    )
