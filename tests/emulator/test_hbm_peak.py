"""HBM when it is fullest: as high as torch's allocator counts, what it is filled with, and what is said where it does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests.emulator.programs import TRN2, op, program, ref

import trnprof
from trnprof.emulator.emulate import emulate
from trnprof.emulator.hbm_uses import categories
from trnprof.emulator.workload import CollectiveCall, ProcessGroup, Workload, World
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.memory_names import hbm_counter

PARTS = ("parameters", "gradients", "optimizer state")

W, SHARD = ref(0, 8, 8, role="parameter"), ref(1, 4, 8, role="parameter")


def test_the_high_water_is_that_of_torchs_allocator(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.emulator.test_capture import SCRIPTS, run

    script = str(SCRIPTS / "high_water.py")
    counted = json.loads(subprocess.check_output([sys.executable, script, "profile"], text=True))
    _, workload = run("high_water.py")
    for execution in ("eager", "fused"):
        (tmp_path / execution).mkdir()
        hbm = emulate(workload, TRN2, tmp_path / execution, execution=execution).details["hbm"]
        parts = hbm["peak_by_category"]
        assert sum(parts.values()) == hbm["peak_bytes"]
        assert [parts[k] for k in ("parameters", "optimizer state")] == [
            counted[k] for k in ("parameters", "optimizer state")
        ]
        if execution == "eager":  # every tensor lies in HBM
            assert hbm["peak_bytes"] == pytest.approx(counted["all"], rel=0.01)
        else:  # what stays in SBUF does not
            assert hbm["peak_bytes"] < counted["all"]


def sharded() -> Workload:
    """A layer whose weights are gathered, its gradient reduced and scattered, and an update."""
    x, y, z = ref(10, 16, 8, role="input"), ref(11, 16, 8), ref(12, 16, 8)
    whole, weight = ref(13, 64), ref(14, 8, 8, role="input")
    passed, grad = ref(15, 16, 8, role="gradient"), ref(16, 8, 8, role="gradient")
    flat, part = ref(17, 64, role="gradient"), ref(18, 32, role="gradient")
    update = ref(19, 4, 8)
    group = ProcessGroup("dp", (0, 1), ((0, 1),))
    operations = [
        op("fsdp::all_gather_copy_in", [SHARD], [whole]),
        op("c10d::_allgather_base_", [whole], [whole]),
        op("fsdp::split_with_sizes_copy", [whole], [weight]),
        op("mm", [x, weight], [y]),
        op("c10d::allreduce_", [y], [y]),
        op("gelu", [y], [z]),
        op("gelu_backward", [z, y], [passed], "backward"),
        op("mm", [x, passed], [grad], "backward"),
        op("fsdp::chunk_cat", [grad], [flat], "backward"),
        op("c10d::_reduce_scatter_base_", [flat], [part], "backward"),
        op("mul", [part], [update], "optimizer"),
        op("add_", [SHARD, update], [SHARD], "optimizer"),
    ]
    kinds = {1: ("all_gather", 256), 4: ("all_reduce", 512), 9: ("reduce_scatter", 256)}
    asked = [
        replace(o, collective=CollectiveCall(kinds[i][0], 0, kinds[i][1])) if i in kinds else o
        for i, o in enumerate(operations)
    ]
    return replace(program(asked, [SHARD]), groups=(group,), world=World(2))


def test_what_each_tensor_is_for() -> None:
    found = categories(sharded())
    assert {name: {s for s in found if found[s] == name} for name in set(found.values())} == {
        "parameters": {1},
        "inputs": {10},
        "activations": {11, 12},  # an activation that is reduced is one
        "collectives' buffers": {13, 14, 17},  # gathered weights, and what is reduced
        "gradients": {18},
        "workspace": {15, 16, 19},
    }


def test_what_does_not_fit_is_told_with_its_origin_and_a_way_out(tmp_path: Path) -> None:
    big = [
        replace(
            op("relu", [W], [ref(i, 30_000, 30_000)]),
            module_path=f"layers.{i}.mlp",
            source_file="/somewhere/model.py",
            source_line=7,
        )
        for i in range(10, 15)
    ]
    reads = [op("sum", [o.outputs[0]], [ref(50 + i)]) for i, o in enumerate(big)]
    done = emulate(program([*big, *reads], [W]), TRN2, tmp_path)
    first, largest, ways = done.details["notes"]
    assert first.startswith("does not fit: HBM peaks at 18 GB, one core of trn2 has 12 GB (6 GB ")
    assert "at the peak: activations 18 GB, parameters 256 B" in first
    assert largest == (
        "largest at the peak: 5 x 3.6 GB activations float32 [30000, 30000] by relu in layers.*.mlp (model.py:7)"
    )
    assert "recompute activations (torch.utils.checkpoint)" in ways
    assert ways.endswith("--lnc 2, which gives a rank the HBM of two cores")
    told = done.details["hbm"]["peak_largest"][0]
    assert (told["count"], told["nbytes"], told["category"]) == (5, 3_600_000_000, "activations")
    assert (told["operator"], told["source_line"]) == ("relu", 7)
    (tmp_path / "two").mkdir()
    two = emulate(program([*big, *reads], [W]), TRN2, tmp_path / "two", lnc=2)
    assert two.details["notes"] == []


def test_an_adam_step_by_hand(tmp_path: Path) -> None:
    """Two weights of 256 B each: gradients as many bytes, two moments each, by use, over time."""
    weights = [ref(i, 8, 8, role="parameter") for i in (0, 1)]
    grads = [ref(2 + i, 8, 8, role="gradient") for i in (0, 1)]
    moments = [ref(4 + i, 8, 8, role="optimizer_state") for i in range(4)]
    x, y = ref(10, 8, 8, role="input"), ref(11, 8, 8)
    operations = [
        op("mm", [x, weights[0]], [y]),
        op("mm", [x, y], [grads[0]], "backward"),
        op("mm", [y, x], [grads[1]], "backward", freed=[y.tensor]),
        *(op("zeros_like", [w], [m], "optimizer") for w, m in zip(weights * 2, moments, strict=True)),
        *(op("add_", [w, g], [w], "optimizer") for w, g in zip(weights, grads, strict=True)),
    ]  # fmt: skip
    end = op("record_stream", [], [], freed=[g.tensor for g in grads])
    done = emulate(program([*operations, end], weights), TRN2, tmp_path, execution="eager")
    write_manifest(tmp_path, is_simulation=True, emulation=done.details)
    trace = trnprof.open(tmp_path)
    samples = trace.counters.collect().join(trace.tracks.select("track_id", "name"), on="track_id")
    highest = dict(samples.group_by("name").agg(pl.col("value").max()).iter_rows())
    assert {use: highest[hbm_counter(use)] for use in (*PARTS, "inputs", "activations")} == {
        "parameters": 512,
        "gradients": 512,
        "optimizer state": 1024,
        "inputs": 256,
        "activations": 256,
    }
    assert done.details["hbm"]["peak_by_category"] == {
        "optimizer state": 1024,
        "parameters": 512,
        "gradients": 512,
        "inputs": 256,
    }
    last = samples.group_by("name").agg(pl.col("value").last())
    assert dict(last.filter(pl.col("name") == "HBM gradients").iter_rows()) == {"HBM gradients": 0}
    # a counter says what changed: no value twice in a row
    again = samples.filter(pl.col("value") == pl.col("value").shift().over("track_id"))
    assert not again.height
    # SBUF holds nothing where every operator runs alone
    assert highest["SBUF bytes"] == 0


def test_sbuf_holds_what_kernels_pass_on(tmp_path: Path) -> None:
    a, b, c = (ref(i, 128, 128) for i in (1, 2, 3))
    x = ref(0, 128, 128, role="input")
    operations = [op("mm", [x, x], [a]), op("mm", [a, a], [b]), op("mm", [b, b], [c])]
    done = emulate(program(operations, []), TRN2, tmp_path)
    write_manifest(tmp_path, is_simulation=True, emulation=done.details)
    trace = trnprof.open(tmp_path)
    sbuf = trace.tracks.filter(pl.col("name") == "SBUF bytes")["track_id"][0]
    levels = trace.counters.filter(pl.col("track_id") == sbuf).collect()["value"]
    assert levels[0] == 0
    assert set(levels) <= {n * a.nbytes for n in range(5)}
    assert levels.max() >= a.nbytes
