"""Device profiles in the older JSON: renamed fields, picoseconds, both kinds of DMA rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged, table

from trnprof.analysis.report import build_report
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.device import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.reader import open_trace

Row = dict[str, Any]
OPERANDS = "src=bf16@0x4000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128"


def document(scale: int = 1, **more: Any) -> Row:
    """A profile of two matmuls, a copy and a load; times in ns times ``scale``."""

    def at(start: int, length: int, **fields: Any) -> Row:
        return {"timestamp": start * scale, "duration": length * scale, **fields}

    return {
        "summary": [
            {
                "total_time": 5e-6,
                "hfu_estimated_percent": 0.1,
                "neuroncore_cycle_count": 7000,
                "instance_type": "trn1.2xlarge",
            }
        ],
        "instruction": [
            at(
                0,
                1000,
                id=1,
                label="Tensor",
                subgroup="Tensor",
                opcode="MATMUL",
                operands=OPERANDS,
                instruction_type="REGULAR",
                nki_source_location="/k.py:7",
                predecessors=[],
            ),
            at(
                1000,
                500,
                id=2,
                label="TensorMatrix",
                subgroup="Tensor",
                opcode="MATMUL",
                operands=OPERANDS,
                instruction_type="TRANSPOSE",
                predecessors=[{"id": 1}],
            ),
            at(
                1600,
                400,
                id=3,
                label="Vector",
                subgroup="Vector",
                opcode="COPY",
                evt_wait_time=100 * scale,
                predecessors=[{"id": 1}, {"id": 2}],
            ),
        ],
        "dma": [
            at(
                100,
                800,
                dma_queue="qSp1",
                queue_type="input",
                aggregated="yes",
                block_id=4,
                variable="w",
                source="DRAM",
                dest="SB",
                read_size=640,
                write_size=640,
                transfer_size=640,
                source_num_sb_partitions=0,
                dest_num_sb_partitions=128,
            ),
            at(100, 200, dma_queue="qSp1", queue_type="input", transfer_size=320),
        ],
        "cc_ops": [at(2000, 900, operation="all_reduce", input_size=64, replica_group="[[0,1]]")],
        "ham": [at(3000, 1000, k=7, n=8)],
        **more,
    }


def stage_of(tmp_path: Path, content: Any) -> Stage:
    path = tmp_path / "ntff.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert FORMAT.recognise(head_of(path)) >= 90
    return staged(FORMAT, path, tmp_path / "stage")


@pytest.mark.parametrize("scale", [1, 1000])
def test_rows_are_those_of_todays_tables(tmp_path: Path, scale: int) -> None:
    stage = stage_of(tmp_path, document(scale))
    found = events(stage)
    engines = found.filter(pl.col("kind") == "engine")
    assert engines["track"].to_list() == ["Tensor", "Tensor", "Vector"]
    assert engines["start_ns"].to_list() == [0, 1000, 1600]
    assert engines["end_ns"].to_list() == [1000, 1500, 2000]
    assert engines["is_transpose"].to_list() == [False, True, None]
    assert engines["flops"].to_list() == [2 * 128 * 128 * 512, 2 * 128 * 128 * 512, None]
    assert engines["dtype"].to_list() == ["bfloat16", "bfloat16", None]
    assert engines["wait_reason"].to_list() == [None, None, "semaphore"]
    assert json.loads(engines["attributes"][1])["timeline_track"] == "TensorMatrix"
    queue = found.filter(pl.col("kind") == "dma_queue").row(0, named=True)
    assert (queue["track"], queue["bytes"], queue["source_memory"], queue["target_memory"]) == (
        "qSp1",
        640,
        "hbm",
        "sbuf",
    )
    assert found.filter((pl.col("category") == "dma") & (pl.col("kind") == "module")).height == 1
    collective = found.filter(pl.col("category") == "collective").row(0, named=True)
    assert (
        collective["name"],
        collective["start_ns"],
        collective["end_ns"],
        collective["bytes"],
    ) == ("all_reduce", 2000, 2900, 64)
    assert table(stage, "ops").filter(pl.col("source_line") == 7)["source_file"].to_list() == [
        "/k.py"
    ]
    flows = table(stage, "flows")
    assert sorted(zip(flows["source_row"], flows["target_row"], strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 2),
    ]
    assert ("picoseconds" in kinds(stage)) == (scale == 1000)
    assert {"flops_from_operands"} <= kinds(stage)
    assert stage.facts.metrics["profiles"][""]["hfu_estimated_percent"] == 0.1
    assert stage.facts.system is not None
    assert stage.facts.system["core"]["name"] == "NeuronCore-v2"


def test_throttle_is_a_counter(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, document())
    assert sorted(counters(stage)["utilization limit, throttle unknown"]) == [
        (3000, 0.875),
        (4000, 1.0),
    ]


def test_the_summary_may_stand_last_and_arrays_may_be_unknown(tmp_path: Path) -> None:
    content = document(1000, novel=[{"a": 1}])
    content["summary"] = content.pop("summary")
    stage = stage_of(tmp_path, content)
    assert events(stage)["start_ns"].max() == 2000
    assert {"picoseconds", "unknown_member"} <= kinds(stage)


def test_without_a_summary_times_are_nanoseconds_and_that_is_told(tmp_path: Path) -> None:
    content = document()
    del content["summary"]
    assert "assumed_time_unit" in kinds(stage_of(tmp_path, content))


def test_a_cut_file_keeps_whole_rows(tmp_path: Path) -> None:
    text = json.dumps(document())
    stage = stage_of(tmp_path, text[: text.index('"subgroup": "Vector"')])
    assert stage.rows == 2
    assert "truncated" in kinds(stage)


def test_nothing_in_it_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ntff.json"
    path.write_text('{"summary": [{"hfu_estimated_percent": 1}], "instruction": []}')
    with pytest.raises(
        ProfileError, match=r"ntff\.json: neither an instruction nor a DMA transfer"
    ):
        staged(FORMAT, path, tmp_path / "stage")


def test_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "ntff.json"
    path.write_text(json.dumps(document()))
    summary = import_profiles([path], tmp_path / "out.trnprof")
    assert summary.sources[0].format == "neuron-device"
    trace = open_trace(tmp_path / "out.trnprof")
    assert [p for p in trace.validate() if p.severity == "error"] == []
    metrics = build_report(trace)["overall"]["metrics"]
    assert metrics["hardware_flops"] == 2 * 2 * 128 * 128 * 512
    assert metrics["hbm_read_bytes"] == 640
    assert metrics["cc_op_count"] == 1
