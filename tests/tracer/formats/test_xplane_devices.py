"""What devices in an XSpace become: chips, engines, streams, collectives, steps, launches, figures."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.tracer.formats.staged import counters, events, kinds, staged, table
from tests.tracer.formats.xla_profiles import NS, START_NS, gpu_space, tpu, tpu_space
from tests.tracer.formats.xspaces import Space

from trnprof.analysis.ranks import rank_breakdown
from trnprof.tracer.formats.xplane.format import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.reader import open_trace


@pytest.fixture
def tpu_stage(tmp_path: Path) -> Stage:
    return staged(FORMAT, tpu_space().write(tmp_path / "tpu.xplane.pb"), tmp_path / "stage")


def test_each_line_of_a_tpu_has_its_place(tpu_stage: Stage) -> None:
    places = {
        (each.kind, each.name, each.chip, each.rank)
        for each in tpu_stage.timelines
        if each.chip != 1
    }
    assert places == {
        ("chip", "TPU 0", 0, 4),
        ("module", "XLA Modules", 0, 4),
        ("engine", "XLA Ops", 0, 4),
        ("module", "Control flow", 0, 4),
        ("dma_queue", "Async operations", 0, 4),
        ("collective_stream", "Async collectives", 0, 4),
        ("module", "TensorFlow Name Scope", 0, 4),
        ("thread", "main", None, None),
    }
    chips = [each for each in tpu_stage.timelines if each.kind == "chip"]
    assert [chip.rank for chip in chips] == [4, 5]
    assert {chip.peak_flops for chip in chips} == {918e12}
    assert {chip.peak_bytes_per_s for chip in chips} == {1640e9}
    assert tpu_stage.facts.host == "worker-1"
    assert tpu_stage.facts.system is not None
    assert tpu_stage.facts.system["name"] == "TPU v6 lite"
    assert kinds(tpu_stage) == set()


def test_operations_have_figures_and_sources(tpu_stage: Stage) -> None:
    found = events(tpu_stage).filter(pl.col("kind") == "engine")
    matmul = found.filter(pl.col("name") == "fusion.1")
    assert matmul.height == 4
    assert matmul["flops"].to_list() == [33_554_432.0] * 4
    assert matmul["bytes"].to_list() == [458_752] * 4
    assert matmul["category"].unique().to_list() == ["compute"]
    assert matmul["dtype"].unique().to_list() == ["bfloat16"]
    loop = events(tpu_stage).filter(pl.col("name") == "while.1")
    assert loop["flops"].null_count() == 2
    assert loop["kind"].to_list() == ["module"] * 2
    ops = table(tpu_stage, "ops")
    op = ops.row(int(matmul["op_id"][0]), named=True)
    assert op["name"] == "fusion.1"
    assert op["module_path"] == "jit(step)/layer/dot_general"
    assert (op["source_file"], op["source_line"]) == ("model.py", 12)
    assert op["input_shapes"] == "[128, 256], [256, 512]"
    assert op["model_flops"] == 33_000_000
    # 2 · 128 · 256 · 512
    assert matmul["flops"][0] == 2 * 128 * 256 * 512
    reduce = ops.filter(pl.col("kind") == "collective")
    assert reduce["name"].to_list() == ["all-reduce.2"]
    assert reduce["out_bytes"].to_list() == [4096]


def test_asynchronous_work_lies_beside_the_engine(tpu_stage: Stage) -> None:
    found = events(tpu_stage)
    assert found.filter(pl.col("kind") == "collective_stream")["name"].unique().to_list() == [
        "all-gather-start.4"
    ]
    copies = found.filter(pl.col("kind") == "dma_queue")
    assert copies["category"].unique().to_list() == ["dma"]
    assert set(copies["name"].to_list()) == {"copy-start.3"}


def test_steps_are_those_of_the_lowest_device(tpu_stage: Stage) -> None:
    (steps,) = tpu_stage.steps
    assert steps["label"] == ["10", "11"]
    assert steps["start_ns"] == [START_NS, START_NS + 1000]
    assert steps["end_ns"] == [START_NS + 1000, START_NS + 2000]
    device = events(tpu_stage).filter(pl.col("kind") != "thread")
    expected = (device["start_ns"] >= START_NS + 1000).cast(pl.Int32)
    assert device["step"].to_list() == expected.to_list()


def test_a_run_is_launched_by_the_host_that_enqueued_it(tpu_stage: Stage) -> None:
    found = events(tpu_stage)
    flows = table(tpu_stage, "flows")
    assert flows.height == 4
    for source, target in flows.select("source_row", "target_row").iter_rows():
        assert found["name"][source] == "DoEnqueueProgram"
        assert found["track"][target] == "XLA Modules"
        host, device = (json.loads(found["attributes"][row]) for row in (source, target))
        assert host["run_id"] == device["run_id"]
        chip = tpu_stage.timelines[int(tpu_stage.times("timeline")[target])].chip
        assert host["device_ordinal"] == chip


def test_the_report_counts_engines_only(tmp_path: Path) -> None:
    path = tpu_space().write(tmp_path / "tpu.xplane.pb")
    out = tmp_path / "run.trnprof"
    import_profiles([path], out)
    trace = open_trace(out)
    assert [p for p in trace.validate() if p.severity == "error"] == []
    found = rank_breakdown(trace)
    assert found.units["rank"].to_list() == [4, 5]
    # ns of each step: matmul 100–500, all-reduce 500–600, copy 50–250, all-gather 600–750; the loop around them is none of it
    expected = {"busy_ns": 700, "compute_ns": 400, "communication_ns": 250, "copy_only_ns": 50}
    expected |= {"overlap_ns": 0, "exposed_communication_ns": 250, "idle_ns": 300, "span_ns": 1000}
    for row in found.steps.iter_rows(named=True):
        assert {name: row[name] for name in expected} == expected
    assert found.steps["label"].to_list() == ["10", "11"] * 2


def test_sparse_cores_are_cores_of_their_chip(tmp_path: Path) -> None:
    space = Space()
    tpu(space, 0, global_core=0)
    plane = space.plane("/device:TPU:0 SparseCore 1")
    line = plane.line("Sparse Core Ops", START_NS)
    plane.event(plane.line("Sparse Core Modules", START_NS), "jit_step(7)", 0, 500 * NS)
    plane.event(line, "sc_gather.1", 100 * NS, 300 * NS)
    stage = staged(FORMAT, space.write(tmp_path / "sc.xplane.pb"), tmp_path / "stage")
    core = next(n for n, each in enumerate(stage.timelines) if each.kind == "core")
    assert stage.timelines[core].name == "SparseCore 1"
    parent = stage.timelines[core].parent
    assert parent is not None
    assert stage.timelines[parent].name == "TPU 0"
    work = events(stage).filter(pl.col("name") == "sc_gather.1")
    assert work["kind"].to_list() == ["engine"]
    assert work["step"].to_list() == [0]


def test_collectives_between_slices_are_collectives(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/device:CUSTOM:Megascale Trace")
    plane.event(plane.line("device 0 send", START_NS), "all-reduce.7", 0, 500 * NS)
    stage = staged(FORMAT, space.write(tmp_path / "m.xplane.pb"), tmp_path / "stage")
    (row,) = events(stage).iter_rows(named=True)
    assert (row["category"], row["kind"]) == ("collective", "module")


def test_streams_of_a_gpu_are_its_engines(tmp_path: Path) -> None:
    stage = staged(FORMAT, gpu_space().write(tmp_path / "gpu.xplane.pb"), tmp_path / "stage")
    found = events(stage)
    device = found.filter(pl.col("kind") == "stream")
    assert device["category"].to_list() == ["compute", "dma", "collective"]
    assert device["bytes"].to_list() == [None, 655_360, None]
    assert (device["source_memory"][1], device["target_memory"][1]) == ("host", "hbm")
    # what was derived from the kernels occupies nothing
    assert found.filter(pl.col("track") == "XLA Ops")["kind"].to_list() == ["module"]
    chip = stage.timelines[0]
    assert (chip.kind, chip.name, chip.rank) == ("chip", "GPU 0", None)
    assert chip.peak_bytes_per_s == 3.352e12
    ops = table(stage, "ops")
    assert ops["name"].to_list()[:2] == ["add.3", "all-reduce-start.1"]
    assert ops["kind"].to_list()[:2] == ["kernel", "collective"]
    assert ops["module_path"][0] == "jit(f)/add"


def test_kernels_are_launched_by_their_correlation(tmp_path: Path) -> None:
    stage = staged(FORMAT, gpu_space().write(tmp_path / "gpu.xplane.pb"), tmp_path / "stage")
    found, flows = events(stage), table(stage, "flows")
    pairs = {
        (found["name"][s], found["name"][t])
        for s, t in flows.select("source_row", "target_row").iter_rows()
    }
    assert pairs == {
        ("cuLaunchKernel", "loop_add_fusion"),
        ("cuMemcpyHtoDAsync", "MemcpyH2D"),
        ("cuLaunchKernelExC", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    }


def test_a_model_in_parentheses_is_no_part_of_a_device(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/device:GPU:0 (NVIDIA H100 80GB HBM3)")
    plane.event(plane.line("Stream #1(Kernel)"), "k", 0, 10 * NS)
    stage = staged(FORMAT, space.write(tmp_path / "gpu.xplane.pb"), tmp_path / "stage")
    assert [each.kind for each in stage.timelines] == ["chip", "stream"]


def test_counters_of_a_device(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/device:TPU:0")
    line = plane.line("_counters_", 100)
    for at, value in ((0, 1.5), (2_000, 2.5)):
        plane.event(line, "Power (W)", at, 0, counter_value=value)
    stage = staged(FORMAT, space.write(tmp_path / "c.xplane.pb"), tmp_path / "stage")
    assert counters(stage) == {"Power (W)": [(100, 1.5), (102, 2.5)]}
