"""Neuron Explorer's Parquet tables: what becomes of each, and every trap that is known of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.tracer.formats.neuron_profiles import (
    INF2,
    Row,
    instruction,
    metadata,
    published_inf2,
    transfer,
    write_profile,
)
from tests.tracer.formats.staged import counters, events, kinds, staged, table

from trnprof.analysis.report import build_report
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron import tables as neuron_tables
from trnprof.tracer.formats.neuron.explorer import FORMAT
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.source import Head
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.reader import open_trace

UNIX = 1_760_000_000_000_000_000


def imported(tmp_path: Path, tables: dict[str, list[Row]], **options: Any) -> Stage:
    folder = write_profile(tmp_path / "profile", {"Metadata": metadata(), **tables}, **options)
    return staged(FORMAT, folder, tmp_path / "stage")


def test_report_of_an_import_equals_the_published_counters(tmp_path: Path) -> None:
    folder = write_profile(
        tmp_path / "p", published_inf2(), with_schema=True, parts={"Instruction": 3}
    )
    summary = import_profiles([folder], tmp_path / "out.trnprof")
    assert summary.sources[0].format == "neuron-explorer"
    trace = open_trace(tmp_path / "out.trnprof")
    assert [p for p in trace.validate() if p.severity == "error"] == []
    metrics = build_report(trace)["overall"]["metrics"]
    # the profile's times are whole nanoseconds, the counters' total time has fractions of one
    same = (
        *(
            "total_time",
            "neuroncore_cycle_count",
            "hardware_flops",
            "transpose_flops",
            "hfu_estimated_percent",
        ),
        *("mfu_inst_estimated_percent", "mbu_estimated_percent", "mm_arithmetic_intensity"),
        *("peak_flops_bandwidth_ratio", "mfu_inst_max_achievable_estimated_percent"),
        *("tensor_engine_active_time", "tensor_engine_active_time_percent"),
        *("hbm_read_bytes", "hbm_write_bytes", "dma_transfer_count", "dma_transfer_total_bytes"),
    )
    for name in same:
        assert metrics[name] == pytest.approx(INF2[name], rel=2e-6), name
    assert trace.system["core"]["name"] == "NeuronCore-v2"
    assert "hfu_estimated_percent" in json.dumps(trace.manifest)


def test_fp32_kernel_of_a_newer_core_is_told_in_bf16_equivalents(tmp_path: Path) -> None:
    """Published before/after diff of a float32 attention kernel on a 1.2 GHz core."""
    total_ns, raw, transposed = 21_990, 8_388_608, 4_194_304
    rows = [
        instruction(
            0,
            0,
            2_000,
            operands="src=fp32@0x0[1,0,0][512,1,1] dst=0x1[1,0,0][512,1,1] 64*64",
            raw_flops=raw - transposed,
            adjusted_flops=4 * (raw - transposed),
        ),
        instruction(
            1,
            2_000,
            4_645,
            operands="",
            raw_flops=transposed,
            adjusted_flops=4 * transposed,
            flops_transpose=transposed,
        ),
        instruction(2, total_ns - 10, total_ns, "Vector", opcode="TENSOR_TENSOR"),
    ]
    core = metadata(
        instance_type="trn2.48xlarge",
        tensor_engine_clock_freq=2.4,
        neuroncore_clock_freq=1.2,
        hbm_ddr_bandwidth=716.8e9,
    )
    folder = write_profile(tmp_path / "p", {"Metadata": core, "Instruction": rows})
    import_profiles([folder], tmp_path / "out.trnprof")
    metrics = build_report(open_trace(tmp_path / "out.trnprof"))["overall"]["metrics"]
    assert metrics["adjusted_hardware_flops"] == pytest.approx(3.355e7, rel=1e-3)
    assert metrics["adjusted_transpose_flops"] == pytest.approx(1.678e7, rel=1e-3)
    assert metrics["hfu_estimated_percent"] == pytest.approx(0.0194, rel=1e-3)
    assert metrics["mfu_inst_estimated_percent"] == pytest.approx(0.009699, rel=1e-3)
    assert metrics["neuroncore_cycle_count"] == pytest.approx(2.639e4, rel=1e-3)
    assert metrics["tensor_engine_active_time"] == pytest.approx(4.645e-6)


def test_engines_of_any_case_and_the_matrix_lane(tmp_path: Path) -> None:
    names = [
        "Tensor",
        "tensor",
        "TENSOR",
        "vector",
        "GpSimd",
        "gpsimd",
        "Scalar",
        "sync",
        "Sync",
        "Novel",
    ]
    rows = [instruction(i, 10 * i, 10 * i + 9, name, opcode="X") for i, name in enumerate(names)]
    rows[1]["timeline_track"] = "TensorMatrix"
    stage = imported(tmp_path, {"Instruction": rows})
    found = events(stage)
    assert found["track"].to_list() == [
        *(
            "Tensor",
            "Tensor",
            "Tensor",
            "Vector",
            "GpSimd",
            "GpSimd",
            "Scalar",
            "Sync",
            "Sync",
            "Novel",
        ),
    ]
    engines = [t for t in stage.timelines if t.kind == "engine"]
    assert [t.name for t in sorted(engines, key=lambda t: t.sort_order)] == [
        *("Tensor", "Tensor", "Vector", "Scalar", "GpSimd", "Sync", "Novel"),
    ]
    assert not any(t.exclusive for t in engines)
    assert json.loads(found["attributes"][1])["timeline_track"] == "TensorMatrix"


def test_semaphore_waits_are_beside_and_dma_triggers_are_issue(tmp_path: Path) -> None:
    rows = [
        instruction(0, 0, 100, opcode="EVENT_SEMAPHORE", operands=""),
        instruction(1, 100, 110, "Sync", opcode="DMA_DIRECT2D", operands="", dma_wait_time_ns=4),
        instruction(2, 110, 150, evt_wait_time_ns=30),
    ]
    found = events(imported(tmp_path, {"Instruction": rows}))
    assert found["kind"].to_list() == ["thread", "engine", "engine"]
    assert found["track"].to_list() == ["Tensor waits", "Sync", "Tensor"]
    assert found["category"].to_list() == ["sync", "sync", "compute"]
    assert found["wait_reason"].to_list() == [None, "queue", "semaphore"]


def test_lnc2_has_two_cores(tmp_path: Path) -> None:
    rows = [instruction(i, i, i + 1, pcore_idx=i % 2) for i in range(4)]
    core = metadata(num_physical_cores=2, vnc_enabled=True, neuroncore_idx=1, neuron_device_idx=3)
    stage = imported(tmp_path, {"Instruction": rows, "Metadata": core})
    cores = [t for t in stage.timelines if t.kind == "core"]
    assert [(t.name, t.core, t.chip) for t in cores] == [("core 2", 2, 3), ("core 3", 3, 3)]
    chips = [t for t in stage.timelines if t.kind == "chip"]
    assert [t.name for t in chips] == ["Neuron device 3"]


def test_transfers_count_and_packets_are_drawn_beside(tmp_path: Path) -> None:
    packets: list[Row] = [
        {
            "id": i,
            "start_ts": 100 * i,
            "end_ts": 100 * i + 50,
            "engine_idx": i % 2,
            "transfer_bytes": 512,
            "queue_type": "data",
            "packet_aggregation_id": 7,
        }
        for i in range(4)
    ]
    packets.append(dict(packets[3], id=9))
    stage = imported(
        tmp_path,
        {
            "Instruction": [instruction(0, 0, 10)],
            "DmaPacketAggregated": [
                transfer(7, 0, 400, 2048, source="SB", dest="DRAM", variable="unknown")
            ],
            "DmaPacket": packets,
        },
    )
    found = events(stage).filter(pl.col("category") == "dma")
    counted = found.filter(pl.col("kind") == "dma_queue")
    assert counted["bytes"].to_list() == [2048]
    assert counted["source_memory"].to_list() == ["sbuf"]
    assert counted["target_memory"].to_list() == ["hbm"]
    beside = found.filter(pl.col("kind") == "module")
    assert beside["track"].to_list() == [
        "DMA engine 0",
        "DMA engine 1",
        "DMA engine 0",
        "DMA engine 1",
        "DMA engine 1",
    ]
    # the packet that is there twice has another id, and the same fingerprint
    prints = stage.times("fingerprint")
    assert prints[-1] == prints[-2] != prints[-3]
    told = stage.facts.metadata["neuron_dma"]
    assert told["transfers"] == {
        "rows": 1,
        "payload_bytes": 2048,
        "active_ns": 400,
        "summed_ns": 400,
    }
    assert told["packets"]["active_ns"] == 200
    assert told["packets"]["payload_bytes"] == 2560
    assert {"missing_transfers", "missing_dge_notifications"} <= kinds(stage)


def test_packets_alone_lie_on_their_queues(tmp_path: Path) -> None:
    packets: list[Row] = [
        {
            "id": 0,
            "start_ts": 0,
            "end_ts": 9,
            "transfer_bytes": 4096,
            "queue_type": "input",
            "queue_idx": 3,
            "pcore_idx": 0,
            "variable": "w",
        },
        {
            "id": 1,
            "start_ts": 9,
            "end_ts": 12,
            "transfer_bytes": 4,
            "queue_type": "instruction",
            "queue_name": "qi",
        },
    ]
    queues: list[Row] = [{"name": "qSPIO", "pcore_idx": 0, "idx": 3}]
    stage = imported(
        tmp_path,
        {"Instruction": [instruction(0, 0, 10)], "DmaPacket": packets, "DmaQueuesInfo": queues},
    )
    found = events(stage).filter(pl.col("category") == "dma")
    assert found["track"].to_list() == ["qSPIO", "qi"]
    assert found["kind"].to_list() == ["dma_queue"] * 2
    assert found["descriptor_bytes"].to_list() == [4096, 4]
    assert stage.facts.metadata["neuron_dma"]["packets"]["payload_bytes"] == 4096
    assert "only_packets" in kinds(stage)


def test_nothing_of_dma_means_no_dge_notifications(tmp_path: Path) -> None:
    stage = imported(tmp_path, {"Instruction": [instruction(0, 0, 10)]})
    (finding,) = [f for f in stage.audit.findings if f.kind == "missing_dge_notifications"]
    assert finding.severity == "warning"
    assert "NEURON_RT_ENABLE_DGE_NOTIFICATIONS" in finding.message


def test_sb2sb_transfers_are_flagged(tmp_path: Path) -> None:
    rows = [
        transfer(0, 0, 9, 64, source="SBUF", dest="SBUF", read_num_sbuf_partitions=4),
        transfer(1, 9, 12, 64),
    ]
    stage = imported(tmp_path, {"DmaPacketAggregated": rows})
    assert {f.kind: f.count for f in stage.audit.findings}["doubled_sbuf_transfers"] == 1


def test_collectives_have_operations_groups_and_alignment(tmp_path: Path) -> None:
    def op(start: int, name: str, group: str, number: int | None = None) -> Row:
        return {
            "start_ts": start,
            "end_ts": start + 50,
            "operation": name,
            "algorithm": "ring",
            "dtype": "bf16",
            "stream_id": 1,
            "input_size": 100,
            "output_size": 400,
            "replica_group": group,
            "replica_group_id": number,
            "op_id": 0,
        }

    rows = [
        op(0, "AllGather", "[[0, 1, 2, 3]]"),
        op(60, "AllReduce", "[[0,1,2,3]]"),
        op(120, "AllReduce", "[[0,1],[2,3]]", 1),
        op(180, "AllReduce", ""),
    ]
    cc = [{"start_ts": 5, "end_ts": 7, "core_idx": 2, "description": "TPB_TRIGGER"}]
    stage = imported(tmp_path, {"CcOp": rows, "CcInstruction": cc})
    found = events(stage)
    assert found["kind"].to_list() == ["collective_stream"] * 4 + ["module"]
    assert found["bytes"].to_list() == [400] * 4 + [None]
    assert found["dtype"].to_list()[:4] == ["bfloat16"] * 4
    ops = table(stage, "ops")
    assert ops["kind"].to_list() == ["collective"] * 4
    assert ops["group_id"].to_list() == [0, 0, 1, 2]
    assert ops["group_seq"].to_list() == [0, 1, 0, 0]
    assert ops["in_bytes"].to_list() == [100] * 4
    assert [g["ranks"][0] for g in stage.groups] == [[0, 1, 2, 3], [2, 3], []]
    assert found["op_id"].to_list()[:4] == ops["op_id"].to_list()
    align = stage.facts.collectives
    assert align is not None
    assert align["sequence"].to_list() == [0, 1, 0, 0]
    assert align["end_ns"].to_list() == [50, 110, 170, 230]
    assert align["group"].n_unique() == 3


def test_the_ladder_leads_from_instructions_to_modules(tmp_path: Path) -> None:
    rung = {"start_ts": 0, "end_ts": 10, "time_intervals": "[[0,10]]"}
    tables: dict[str, list[Row]] = {
        "FrameworkNode": [
            {
                **rung,
                "node_name": "Model",
                "parent_name": "",
                "children_names": "mlp",
                "children_ids": "1",
            },
            {**rung, "node_name": "mlp", "parent_name": "Model"},
        ],
        "FrameworkInstruction": [
            {**rung, "id": 0, "raw_framework_id": 40, "framework_name": "Model/mlp/aten.mm"}
        ],
        "HloInstruction": [
            {**rung, "id": 0, "raw_hlo_id": 30, "raw_framework_id": 40, "hlo_name": "dot.3"}
        ],
        "PenguinInstruction": [
            {**rung, "id": 0, "raw_penguin_id": 20, "raw_hlo_id": 30, "penguin_name": "mm_tile"}
        ],
        "BirInstruction": [
            {
                **rung,
                "id": 0,
                "raw_bir_id": (5 << 48) + 10,
                "raw_penguin_id": 20,
                "bir_name": "I-10",
            }
        ],
        "Instruction": [
            instruction(
                0,
                0,
                5,
                raw_bir_id=(5 << 48) + 10,
                hlo_name="dot.3",
                layer="Model/mlp/aten.mm",
                nki_source_location="/src/model.py:12",
            ),
            instruction(1, 5, 9, raw_hlo_id=30, raw_bir_id=99),
            instruction(2, 9, 10),
        ],
    }
    stage = imported(tmp_path, tables)
    ops = table(stage, "ops")
    found = events(stage).filter(pl.col("kind") == "engine")
    rows = ops.rows_by_key("op_id", named=True, unique=True)

    def ladder(op: int | None) -> list[str]:
        names = []
        while op is not None:
            names.append(f"{rows[op]['kind']} {rows[op]['name']}")
            op = rows[op]["parent_id"]
        return names

    assert ladder(found["op_id"][0]) == [
        *(
            "aten dot.3",
            "kernel I-10",
            "kernel mm_tile",
            "kernel dot.3",
            "aten aten.mm",
            "module mlp",
            "module Model",
        ),
    ]
    assert ladder(found["op_id"][1])[1:3] == ["kernel dot.3", "aten aten.mm"]
    assert found["op_id"][2] is None
    leaf = rows[found["op_id"][0]]
    assert (leaf["source_file"], leaf["source_line"], leaf["module_path"]) == (
        "/src/model.py",
        12,
        "Model.mlp",
    )
    lanes = events(stage).filter(pl.col("kind") == "module")
    assert lanes["track"].to_list() == ["framework layers", "framework layers", "HLO"]
    assert rows[lanes["op_id"][2]]["name"] == "dot.3"


def test_places_in_the_source_come_from_any_table(tmp_path: Path) -> None:
    tables: dict[str, list[Row]] = {
        "KernelInstructions": [
            {
                "kernel_instruction_name": "k1",
                "stack_frame_id": 1,
                "stack_frame_depth": 0,
                "file_path": "/outer.py",
                "line_number": 1,
            },
            {"kernel_instruction_name": "k1", "stack_frame_id": 2, "stack_frame_depth": 1},
        ],
        "KernelStackFrames": [{"stack_frame_id": 2, "file_path": "/inner.py", "line_number": 22}],
        "StackFrame": [{"id": "7", "file_location_id": 3}],
        "StackFrameFileLocation": [{"id": "3", "file_name_id": 4, "line_number": 33}],
        "StackFrameFileName": [{"id": "4", "name": "/model.py"}],
        "Instruction": [
            instruction(0, 0, 1, kernel_instruction_name="k1"),
            instruction(1, 1, 2, stack_frame_ids="7,8"),
            instruction(2, 2, 3, bir_debug_info_source_location="/bir.py:5", stack_frame_ids="7"),
            instruction(3, 3, 4, kernel_instruction_name="unknown"),
        ],
    }
    stage = imported(tmp_path, tables)
    ops = table(stage, "ops").rows_by_key("op_id", named=True, unique=True)
    where = [
        ops[i]["source_file"] and (ops[i]["source_file"], ops[i]["source_line"])
        if i is not None
        else None
        for i in events(stage)["op_id"]
    ]
    assert where == [("/inner.py", 22), ("/model.py", 33), ("/bir.py", 5), None]
    assert {ops[i]["kind"] for i in events(stage)["op_id"].drop_nulls()} == {"source_line"}
    assert "missing_debug_info" not in kinds(stage)


def test_counters(tmp_path: Path) -> None:
    tables: dict[str, list[Row]] = {
        "PendingDma": [{"timestamp": 5, "value": 3}, {"timestamp": 9, "value": 0}],
        "HbmUsage": [{"timestamp": 5, "current_throughput": 2.5e9, "total_transfer_bytes": 100}],
        "SbufUsage": [
            {"timestamp": 5, "avg_util_percent": 0.5},
            {"timestamp": 6, "avg_util_percent": None},
        ],
        "PsumUsage": [{"timestamp": 5, "avg_util_percent": 62.5, "bank_3_util_percent": 50.0}],
        "SemaphoreUpdate": [{"timestamp": 5, "id": "12", "value": 4}],
        "Throttle": [
            {"timestamp": 10, "duration": 10, "k": 7, "n": 8, "type": "activity"},
            {"timestamp": 20, "duration": 5, "k": 1, "n": 2, "type": "activity"},
            {"timestamp": 30, "duration": 5, "k": 253, "n": 1, "type": "periodic"},
        ],
    }
    stage = imported(tmp_path, tables)
    found = counters(stage)
    assert found["pending DMAs"] == [(5, 3.0), (9, 0.0)]
    assert found["HBM throughput"] == [(5, 2.5e9)]
    assert found["SBUF use"] == [(5, 0.5)]
    assert found["PSUM use"] == [(5, 0.625)]
    assert found["PSUM use, bank 3"] == [(5, 0.5)]
    assert found["semaphore 12"] == [(5, 4.0)]
    assert sorted(found["utilization limit, throttle activity"]) == [
        (10, 0.875),
        (20, 0.5),
        (25, 1.0),
    ]
    assert "utilization limit, throttle periodic" not in found
    assert {"impossible_metric", "percent_scale"} <= kinds(stage)
    units = {t.name: t.unit for t in stage.timelines if t.kind == "counter"}
    assert (units["SBUF use"], units["HBM bytes so far"], units["pending DMAs"]) == (
        "fraction",
        "B",
        "1",
    )


@pytest.mark.parametrize("is_turned", [False, True])
def test_dependencies_are_turned_by_time(tmp_path: Path, is_turned: bool) -> None:
    edges: list[Row] = []
    for source, target, table_of_source, word in (
        (70, 1, "dma_block", "flow"),
        (1, 2, "instruction", "anti"),
        (2, 3, "instruction", ""),
    ):
        row = {
            "in_id": source,
            "out_id": target,
            "in_table": table_of_source,
            "out_table": "instruction",
        }
        if is_turned:
            row = {
                "in_id": target,
                "out_id": source,
                "in_table": "instruction",
                "out_table": table_of_source,
            }
        edges.append({**row, "dependency_type": word, "gap_time": 5})
    edges.append({"in_id": 1, "out_id": 999, "in_table": "Instruction", "out_table": "instruction"})
    tables = {
        "DmaPacketAggregated": [transfer(70, 0, 10, 64)],
        "Instruction": [instruction(i, 20 * i, 20 * i + 9) for i in (1, 2, 3)],
        "Flow": edges,
    }
    stage = imported(tmp_path, tables)
    # instructions are rows 0 to 2, the transfer is row 3
    flows = table(stage, "flows").sort("target_row")
    assert flows["source_row"].to_list() == [3, 0, 1]
    assert flows["target_row"].to_list() == [0, 1, 2]
    assert flows["kind"].to_list() == ["data", "buffer", "semaphore"]
    assert flows["lag_ns"].to_list() == [5, 5, 5]
    assert {f.kind: f.count for f in stage.audit.findings}["dangling_flows"] == 1


def test_errors_warnings_and_barriers(tmp_path: Path) -> None:
    tables: dict[str, list[Row]] = {
        "Error": [
            {"timestamp": 7, "type": "Errors", "description": "NaN produced", "error_type_id": 3}
        ],
        "Warning": [
            {"message": "12 notifications were dropped", "category": "capture"},
            {"message": "old tool", "category": "capture"},
        ],
        "CoreBarriers": [
            {"start_ts": 3, "end_ts": 6, "engine_name": "Sync", "id": 1, "semaphore": 9}
        ],
        "Instruction": [instruction(0, 0, 10, opcode="UNKNOWN_0x7f")],
    }
    stage = imported(tmp_path, tables)
    found = {f.kind: f for f in stage.audit.findings}
    assert found["dropped_events"].severity == "error"
    assert "12 notifications were dropped" in found["dropped_events"].message
    assert found["profiler_warning"].example == "old tool"
    assert found["device_error"].example == "NaN produced"
    assert found["unknown_opcode"].example == "UNKNOWN_0x7f"
    rows = events(stage)
    marker = rows.filter(pl.col("category") == "marker")
    assert (marker["start_ns"][0], marker["end_ns"][0], marker["name"][0]) == (7, 7, "NaN produced")
    assert rows.filter(pl.col("name") == "core barrier")["kind"].to_list() == ["thread"]


def test_facts(tmp_path: Path) -> None:
    tables: dict[str, list[Row]] = {
        "Instruction": [instruction(0, 0, 10)],
        "Metadata": metadata(
            is_simulation=True, ntff_version=9, profile_schema_version="8.0.0", profile_name="mm"
        ),
        "Summary": [{"hfu_estimated_percent": 253.0, "total_time": 0.5}],
        "ThrottleSummary": [
            {"nc_idx": 0, "throttle_type": "activity 0", "throttle_active_time_percent": 0.25}
        ],
        "TensorInfo": [{"variable_name": "w", "size": 64}] * 1500,
        "HbmUsageSummaryByType": [
            {"neuron_device_idx": 0, "neuroncore_idx": 0, "usage_type": "Tensor", "usage_bytes": 5}
        ],
    }
    stage = imported(tmp_path, tables)
    facts = stage.facts
    assert facts.is_simulation
    assert facts.metrics["profiles"]["mm"]["total_time"] == 0.5
    assert facts.metrics["profiles"]["mm"]["throttle_activity_0_active_time_nc0_percent"] == 0.25
    assert facts.metrics["raw"]["mm"] == {"hfu_estimated_percent": 253.0}
    assert {"unknown_ntff_version", "unknown_schema", "impossible_metric"} <= kinds(stage)
    tensors = facts.metadata["neuron_rows"]["TensorInfo"]
    assert (tensors["rows"], len(tensors["first"])) == (1500, 1000)
    peaks = dict(zip(facts.peaks["dtype"], facts.peaks["flops_per_s"], strict=True))
    assert peaks["bfloat16"] == pytest.approx(128 * 128 * 2 * 2.8e9)
    assert peaks["float32"] == pytest.approx(peaks["bfloat16"] / 4)
    assert peaks["float8"] == peaks["bfloat16"]
    json.dumps([facts.metadata, facts.metrics, facts.system])


def test_unknown_fields_and_tables_are_kept_or_told(tmp_path: Path) -> None:
    rows = [instruction(0, 0, 10, novel_counter=7, novel_word="x")]
    folder = write_profile(tmp_path / "p", {"Metadata": metadata(), "Instruction": rows})
    pa.parquet.write_table(pa.table({"a": [1]}), folder / "Novelty.parquet")
    stage = staged(FORMAT, folder, tmp_path / "stage")
    kept = json.loads(events(stage)["attributes"][0])
    assert (kept["novel_counter"], kept["novel_word"]) == (7, "x")
    assert kept["operands"] == rows[0]["operands"]
    assert {"unknown_field", "unknown_table"} <= kinds(stage)


def test_missing_tables_and_fields_are_tolerated(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    columns = {
        "start_ts": [0, 5],
        "end_ts": [4, 9],
        "engine": ["tensor", "vector"],
        "opcode": ["MATMUL", "COPY"],
    }
    pa.parquet.write_table(pa.table(columns), folder / "instruction_0.parquet")
    stage = staged(FORMAT, folder, tmp_path / "stage")
    assert events(stage)["track"].to_list() == ["Tensor", "Vector"]
    assert "missing_field" in kinds(stage)
    assert stage.facts.system is None


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.string(), ["100", "200"]),
        (pa.float64(), [100.0, 200.0]),
        (pa.timestamp("ns"), [100, 200]),
        (pa.duration("ns"), [100, 200]),
        (pa.int32(), [100, 200]),
        (pa.uint64(), [100, 200]),
        (pa.dictionary(pa.int8(), pa.string()), ["100", "200"]),
        (pa.large_string(), ["100", "200"]),
    ],
)
def test_times_of_other_physical_types(
    tmp_path: Path, type_: pa.DataType, values: list[Any]
) -> None:
    rows = [instruction(i, 0, 300) | {"start_ts": value} for i, value in enumerate(values)]
    stage = imported(tmp_path, {"Instruction": rows}, types={("Instruction", "start_ts"): type_})
    assert events(stage)["start_ns"].to_list() == [100, 200]


def test_a_column_without_times_is_named(tmp_path: Path) -> None:
    rows = [instruction(0, 0, 9) | {"start_ts": "noon", "duration_ns": 0}]
    with pytest.raises(ProfileError, match=r"table Instruction, column start_ts: .*'noon'"):
        imported(tmp_path, {"Instruction": rows}, types={("Instruction", "start_ts"): pa.string()})


def test_split_tables_and_damaged_files(tmp_path: Path) -> None:
    rows = [instruction(i, i, i + 1) for i in range(30)]
    folder = write_profile(
        tmp_path / "p", {"Metadata": metadata(), "Instruction": rows}, parts={"Instruction": 12}
    )
    found = events(staged(FORMAT, folder, tmp_path / "whole"))
    assert found["start_ns"].to_list() == list(range(30))
    (folder / "Instruction_3.parquet").unlink()
    (folder / "Instruction_5.parquet").write_bytes(b"PAR1 cut")
    stage = staged(FORMAT, folder, tmp_path / "stage")
    assert events(stage).height == 30 - 3 - 3
    told = {f.kind: f for f in stage.audit.findings}
    assert told["missing_part"].example == "Instruction_3.parquet"
    assert "Instruction_5.parquet" in told["unreadable_table"].where
    for path in folder.glob("*.parquet"):
        path.write_bytes(b"no parquet")
    with pytest.raises(ProfileError, match="none of its Parquet tables can be read"):
        staged(FORMAT, folder, tmp_path / "none")


def test_data_pages_that_are_damaged_lose_only_their_rows(tmp_path: Path) -> None:
    rows = [instruction(i, i, i + 1) for i in range(50)]
    folder = write_profile(
        tmp_path / "p",
        {"Metadata": metadata(), "Instruction": rows, "PendingDma": [{"timestamp": 1, "value": 1}]},
    )
    path = folder / "Instruction.parquet"
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    stage = staged(FORMAT, folder, tmp_path / "stage")
    assert "unreadable_table" in kinds(stage)
    assert counters(stage)["pending DMAs"] == [(1, 1.0)]


def test_several_profiles_in_a_tree_are_several_sources(tmp_path: Path) -> None:
    for name in ("a@latest", "b@latest"):
        write_profile(tmp_path / "profiles" / "global" / name, published_inf2())
    summary = import_profiles([tmp_path / "profiles"], tmp_path / "out.trnprof")
    assert [s.format for s in summary.sources] == ["neuron-explorer"] * 2
    assert len({s.writer for s in summary.sources}) == 2


def test_recognition() -> None:
    assert FORMAT.recognise(Head("p", b"", ("Instruction_0.parquet", "Summary.parquet"))) >= 90
    assert FORMAT.recognise(Head("p", b"", ("SystemProfileEvents.parquet",))) >= 90
    assert FORMAT.recognise(Head("p", b"", ("a/SchemaFields.parquet",))) >= 90
    assert (
        FORMAT.recognise(Head("p", b"", ("train.parquet", "test_0.parquet", "Instruction.csv")))
        == 0
    )
    assert FORMAT.recognise(Head("p", b"{}", ())) == 0


def _system_tables(lengths: list[int]) -> dict[str, list[Row]]:
    events_: list[Row] = []
    at = UNIX
    for i, length in enumerate(lengths):
        flow = [f"{i:x}"]
        common: Row = {
            "instance_id": "i-1",
            "process_id": 9,
            "worker_gid": 5,
            "flow_id": flow,
            "nc_idx": 1,
        }
        events_.append(
            {
                "id": 4 * i,
                "name": "nrt_execute",
                "start_ts": at,
                "end_ts": at + 10_000,
                "trace_event_source": "neuron_rt",
                "thread_id": 11,
                **common,
            }
        )
        events_ += [
            {
                "id": 4 * i + 1 + core,
                "name": "nc_exec_running",
                "start_ts": at + 5_000,
                "end_ts": at + 5_000 + length,
                "trace_event_source": "neuron_hw",
                "pcore_idx": core,
                **common,
            }
            for core in (0, 1)
        ]
        at += length + 50_000
    events_.append(
        {
            "id": 99,
            "name": "dmem_buf_copyin",
            "start_ts": UNIX + 7,
            "end_ts": UNIX + 9,
            "trace_event_source": "neuron_rt",
            "thread_id": 11,
            "instance_id": "i-1",
            "process_id": 9,
            "extra_attributes_json": '{"size": 4096, "model_id": 3}',
        }
    )
    return {
        "SystemProfileEvents": events_,
        "CpuUsage": [
            {"timestamp": UNIX, "util_percent": 43.5, "cpu_id": "0", "instance_id": "i-1"}
        ],
        "HostMemUsage": [
            {"timestamp": UNIX, "used_bytes": 10, "used_percent": 50.0, "instance_id": "i-1"}
        ],
        "SystemProfileHbmUsage": [
            {
                "timestamp": UNIX,
                "total_bytes": 77,
                "weights_bytes": 7,
                "device_idx": 0,
                "hbm_idx": 2,
                "instance_id": "i-1",
            }
        ],
    }


def test_a_system_profile_alone(tmp_path: Path) -> None:
    stage = imported(tmp_path, _system_tables([300_000, 700_000]))
    facts = stage.facts
    assert (facts.base_unix_ns, facts.rank, facts.host) == (0, 5, "i-1")
    found = events(stage)
    runs = found.filter(pl.col("name") == "nc_exec_running")
    assert runs["kind"].to_list() == ["stream"] * 4
    assert runs["track"].to_list() == ["executions"] * 4
    cores = [t.name for t in stage.timelines if t.kind == "core"]
    assert cores == ["i-1 core 1.0", "i-1 core 1.1"]
    copy = found.filter(pl.col("name") == "dmem_buf_copyin").row(0, named=True)
    assert (copy["bytes"], copy["source_memory"], copy["target_memory"], copy["category"]) == (
        4096,
        "host",
        "hbm",
        "dma",
    )
    assert (
        json.loads(copy["attributes"])["extra_attributes_json"] == '{"size": 4096, "model_id": 3}'
    )
    # with LNC 2 an execution launches two rows that share its flow
    flows = table(stage, "flows")
    assert sorted(zip(flows["source_row"], flows["target_row"], strict=True)) == [
        (0, 1),
        (0, 2),
        (3, 4),
        (3, 5),
    ]
    assert flows["kind"].unique().to_list() == ["launch"]
    samples = counters(stage)
    assert samples["i-1 CPU 0"] == [(UNIX, pytest.approx(0.435))]
    assert samples["i-1 host memory share"] == [(UNIX, 0.5)]
    assert samples["i-1 device 0, HBM 2: weights"] == [(UNIX, 7.0)]


def test_device_and_system_are_bound_by_durations(tmp_path: Path) -> None:
    lengths = [300_000, 700_000, 1_100_000]
    tables = _system_tables(lengths)
    start = UNIX + 5_000 + lengths[0] + 50_000
    zero = start - 1_234
    tables["ExecutionInfo"] = [
        {"execution_index": 0, "execution_start_ts": 1_234, "execution_end_ts": 1_234 + 700_150}
    ]
    tables["Instruction"] = [instruction(0, 1_300, 700_000)]
    stage = imported(tmp_path, tables)
    assert stage.facts.base_unix_ns == zero
    found = events(stage)
    assert found.filter(pl.col("name") == "MATMUL")["start_ns"].to_list() == [1_300]
    runs = found.filter(pl.col("name") == "nc_exec_running")
    assert runs["kind"].unique().to_list() == ["module"]
    assert 1_234 in runs["start_ns"].to_list()
    fit = stage.facts.metadata["clock_fit"]
    assert fit["alternatives"] == 1
    assert fit["max_error_ns"] <= 150
    assert "clock_fit" in kinds(stage)


def test_device_and_system_that_do_not_match_are_told(tmp_path: Path) -> None:
    tables = _system_tables([300_000])
    tables["Instruction"] = [instruction(0, 10, 700)]
    stage = imported(tmp_path, tables)
    assert "unbound_clocks" in kinds(stage)
    assert stage.facts.base_unix_ns == UNIX + 5_000


def test_tables_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [instruction(i, i, i + 1) for i in range(1_000)]
    folder = write_profile(tmp_path / "p", {"Instruction": rows})
    monkeypatch.setattr(neuron_tables, "BLOCK_ROWS", 64)
    tables = neuron_tables.ProfileTables(folder, "p", Audit())
    heights = [frame.height for frame in tables.batches("Instruction")]
    assert (max(heights), sum(heights)) == (64, 1_000)
