"""What a PyTorch profile says beside its times: collectives, memory, counters, modules, machine, names; and what makes it one."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.formats.kineto_profiles import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    NCCL,
    THREAD,
    Event,
    Profile,
    answer,
    figures,
    found,
    good,
    imported,
    named,
    saved,
)
from tests.tracer.formats.staged import counters, events, head_of, staged, table

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.collective_names import VARIABLE
from trnprof.tracer.formats.gpu_peaks import find_gpu
from trnprof.tracer.formats.kineto import places as kineto_places
from trnprof.tracer.formats.kineto.format import FORMAT
from trnprof.tracer.formats.kineto.links import Sides, find_launches
from trnprof.tracer.ingest.stage import Stage

MESSAGE = {
    "Collective name": "allgather", "In msg nelems": 1000, "Out msg nelems": 8000, "Group size": 8, "dtype": "BFloat16",
    "Process Group Name": "3", "Process Group Description": "tensor", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}  # fmt: skip


def stage_of(tmp_path: Path, profile: Profile) -> Stage:
    return staged(FORMAT, saved(tmp_path / "p.json", profile), tmp_path / "stage")


def test_messages_in_the_arguments_of_a_kernel(tmp_path: Path) -> None:
    profile = good()
    named(profile, NCCL)[1]["args"] |= MESSAGE
    stage = stage_of(tmp_path, profile)
    ops = table(stage, "ops").filter(kind="collective")
    said = ["name", "group_id", "group_seq", "algorithm", "in_bytes", "out_bytes", "dtypes"]
    # 1,000 elements of 2 bytes in, 8,000 out; the kernel of the first step says nothing
    assert ops.select(said).rows() == [
        ("AllReduce", None, None, "RING_LL", None, None, "float32"),
        ("allgather", 0, 0, "RING_LL", 2000, 16000, "bfloat16"),
    ]
    assert stage.groups == [{"group_id": [0], "ranks": [list(range(8))], "name": ["tensor 3"]}]
    work = events(stage).filter(category="collective")
    assert work.select("bytes", "dtype").rows() == [(None, "float32"), (16000, "bfloat16")]
    operators = table(stage, "ops").filter(kind="aten").select("op_id", "name")
    launched = ops.join(operators, left_on="parent_id", right_on="op_id")
    assert launched["name_right"].to_list() == ["aten::op2", "aten::op2"]


@pytest.mark.parametrize("by_annotation", [False, True])
def test_messages_of_what_encloses_the_launch(by_annotation: bool, tmp_path: Path) -> None:
    profile = good()
    launch = next(e for e in named(profile, "cudaLaunchKernel") if e["args"]["correlation"] == 3)
    around: Event = launch | {"ts": launch["ts"] - 1, "dur": launch["dur"] + 2}
    if by_annotation:
        around |= {"cat": "user_annotation", "name": "nccl:all_gather"}
        around["args"] = {"Input Dims": [[10, 100]], "Input type": ["c10::BFloat16"]}
    else:
        around |= {"cat": "cpu_op", "name": "record_param_comms", "args": MESSAGE}
    profile["traceEvents"].append(around)
    ops = table(stage_of(tmp_path, profile), "ops").filter(kind="collective")
    first = ops.select("name", "in_bytes", "out_bytes", "dtypes").row(0)
    assert first == (
        ("all_gather", 2000, None, "bfloat16")
        if by_annotation
        else ("allgather", 2000, 16000, "bfloat16")
    )


def test_groups_are_completed_from_the_header(tmp_path: Path) -> None:
    profile = good()
    profile["distributedInfo"]["pg_config"] = [
        {"pg_name": "3", "pg_desc": "tensor", "pg_size": 3, "ranks": [0, 4, 8]}
    ]
    named(profile, NCCL)[0]["args"] |= MESSAGE | {
        "Process Group Ranks": "[0, ..., 8]",
        "Group size": 3,
    }
    assert stage_of(tmp_path, profile).groups[0]["ranks"] == [[0, 4, 8]]


def test_ranks_are_aligned_by_group_and_ordinal(tmp_path: Path) -> None:
    shift_us = 123_456
    first, second = good(steps=5), good(rank=1, steps=5, start_us=1_000_000 + shift_us)
    for profile in (first, second):
        for event in named(profile, NCCL):
            event["args"] |= MESSAGE
    for event in named(second, NCCL):  # rank 1 comes later, both end together
        event["ts"] += 40
        event["dur"] -= 40
    paths = [saved(tmp_path / f"{n}.json", p) for n, p in enumerate((first, second))]
    _, trace = imported(paths, tmp_path / "t.trnprof")
    collectives = trace.events.filter(pl.col("category") == "collective").collect()
    ends = (collectives["start_ns"] + collectives["duration_ns"]).to_numpy().reshape(2, 5)
    assert (ends[0] == ends[1]).all()


def test_a_name_that_the_user_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = good()
    for event in named(profile, NCCL):
        event["name"] = "fused_moe_exchange"
    path = saved(tmp_path / "p.json", profile)
    _, trace = imported(path, tmp_path / "t.trnprof")
    assert figures(trace)[0]["communication_ns"] == 0
    monkeypatch.setenv(VARIABLE, "^fused_moe_")
    _, trace = imported(path, tmp_path / "t.trnprof")
    assert figures(trace) == [answer()]
    monkeypatch.setenv(VARIABLE, "fused_(")
    with pytest.raises(ProfileError, match="no regular expression"):
        staged(FORMAT, path, tmp_path / "stage")


def test_allocations_become_counters_of_each_device(tmp_path: Path) -> None:
    profile = good()
    for at, (device, kind, total) in enumerate(
        [(0, 1, 4096), (-1, 0, 10), (0, 1, 8192), (1, 1, 7)]
    ):
        arguments = {
            "Device Id": device,
            "Device Type": kind,
            "Total Allocated": total,
            "Total Reserved": total * 2,
        }
        arguments |= {"Bytes": -5, "Addr": 1}
        profile["traceEvents"].append(
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": HOST, "tid": THREAD, "ts": 1000 + at,
             "args": arguments}
        )  # fmt: skip
    stage = stage_of(tmp_path, profile)
    assert counters(stage) == {
        "GPU 0 memory allocated": [(1_000_000, 4096), (1_002_000, 8192)],
        "GPU 0 memory reserved": [(1_000_000, 8192), (1_002_000, 16384)],
        "GPU 1 memory allocated": [(1_003_000, 7)],
        "GPU 1 memory reserved": [(1_003_000, 14)],
        "CPU memory allocated": [(1_001_000, 10)],
        "CPU memory reserved": [(1_001_000, 20)],
    }
    assert {t.unit for t in stage.timelines if t.kind == "counter"} == {"B"}
    assert events(stage).filter(category="memory")["name"].to_list() == ["[memory]"] * 4


def test_counter_events_have_a_counter_for_each_series(tmp_path: Path) -> None:
    profile = good()
    for ts, values in ((1, {"used": 5, "free": 3.5}), (2, {"used": 6}), (3, {"used": "7"})):
        profile["traceEvents"].append(
            {"ph": "C", "name": "power", "pid": "GPU 0", "ts": ts, "args": values}
        )
    found_counters = counters(stage_of(tmp_path, profile))
    assert found_counters == {
        "GPU 0 power used": [(1000, 5), (2000, 6), (3000, 7)],
        "GPU 0 power free": [(1000, 3.5)],
    }


def _python(name: str, number: int, parent: int | None, ts: int, dur: int) -> Event:
    return {
        "ph": "X", "cat": "python_function", "name": name, "pid": HOST, "tid": THREAD, "ts": ts, "dur": dur,
        "args": {"Python id": number, "Python parent id": parent, "Ev Idx": number},
    }  # fmt: skip


def test_stacks_of_python_give_modules_and_lines(tmp_path: Path) -> None:
    profile = good(start_us=1000)
    profile["traceEvents"] += [
        _python("train.py(12): step", 1, None, 1000, 900),
        _python("nn.Module: Net_0", 2, 1, 1010, 800),
        _python("torch/nn/modules/module.py(1501): _call_impl", 3, 2, 1011, 700),
        _python("nn.Module: Linear_1", 4, 3, 1070, 60),
        _python("optimizer.py(3): step", 5, None, 2000, 900),
    ]
    profile["traceEvents"].append(
        named(profile, "ProfilerStep#11")[0] | {"name": "Optimizer.step#SGD.step", "dur": 500}
    )
    profile["traceEvents"].append(
        named(profile, "aten::op3")[0]
        | {"name": "autograd::engine::evaluate_function: MmBackward0", "ts": 1190, "dur": 50}
    )
    ops = table(stage_of(tmp_path, profile), "ops")
    rows = ops.select("name", "module_path", "source_file", "source_line", "phase").rows()
    assert rows[:4] == [
        ("aten::op0", "Net_0", "train.py", 12, None),
        ("aten::op1", "Net_0.Linear_1", "train.py", 12, None),
        ("aten::op2", "Net_0", "train.py", 12, None),
        ("aten::op3", "Net_0", "train.py", 12, "backward"),
    ]
    assert rows[4] == ("aten::op0", None, "optimizer.py", 3, "optimizer")
    assert ops.row(3, named=True)["parent_id"] == 8


def test_shapes_and_datatypes_of_operators(tmp_path: Path) -> None:
    profile = good()
    named(profile, "aten::op0")[0]["args"] |= {
        "Input Dims": [[4, 8], [], [8, 2]], "Input type": ["c10::BFloat16", "Scalar", "float"],
    }  # fmt: skip
    row = table(stage_of(tmp_path, profile), "ops").row(0, named=True)
    assert row["input_shapes"] == "[4, 8], [], [8, 2]"
    assert row["dtypes"] == "bfloat16, Scalar, float32"


def test_what_lies_where(tmp_path: Path) -> None:
    profile = good(steps=1)
    wait = {"name": "Event Sync", "cat": "cuda_sync"}
    drawn = {"name": "ProfilerStep#10", "cat": "gpu_user_annotation", "dur": 500}
    profile["traceEvents"] += [named(profile, "gemm")[0] | wait, named(profile, "gemm")[0] | drawn]
    profile["traceEvents"] += [
        {"ph": "X", "name": "no category", "pid": "GPU 7", "tid": 3, "ts": 1_000_100, "dur": 50},
        {"ph": "X", "name": "no category", "pid": 5, "tid": 5, "ts": 1_000_100, "dur": 50},
    ]
    rows = (
        events(stage_of(tmp_path, profile))
        .select("name", "track", "kind", "category", "step")
        .rows()
    )
    assert ("gemm", "stream 7", "stream", "compute", 0) in rows
    assert ("Event Sync", "stream 7 (synchronization)", "thread", "sync", 0) in rows
    assert ("ProfilerStep#10", "stream 7 (annotations)", "module", "host", 0) in rows
    assert [r[1:4] for r in rows if r[0] == "no category"] == [
        ("stream 3", "stream", "compute"), ("5: thread 5", "thread", "host"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ends", "size"),
    [
        ("Memcpy HtoD (Pinned -> Device)", ("host", "hbm"), 4096),
        ("Memcpy DtoH (Device -> Pageable)", ("hbm", "host"), 5),
        ("Memcpy DtoD (Device -> Device)", ("hbm", "hbm"), 1 << 40),
        ("Memcpy PtoP (Device -> Device)", ("hbm", "remote"), 6),
        ("CopyHostToDevice", ("host", "hbm"), 7),
        ("copyBuffer", (None, None), None),
    ],
)
def test_copies(name: str, ends: tuple[str, str], size: int | None, tmp_path: Path) -> None:
    profile = good(steps=1)
    (copy,) = (e for e in profile["traceEvents"] if e.get("cat") == "gpu_memcpy")
    copy["name"] = name
    if size is not None:
        copy["args"]["bytes"] = size
    (row,) = events(stage_of(tmp_path, profile)).filter(category="dma").to_dicts()
    assert (row["source_memory"], row["target_memory"], row["bytes"]) == (*ends, size)


def test_attributes_are_kept_as_they_are(tmp_path: Path) -> None:
    profile = good(steps=1)
    arguments = {
        "grid": [1, 2, 3],
        "est. achieved occupancy %": 31.25,
        "x": {"y": None},
        "text": 'a"b\\é',
    }
    named(profile, "relu")[0]["args"] |= arguments
    (row,) = events(stage_of(tmp_path, profile)).filter(name="relu").to_dicts()
    assert json.loads(row["attributes"]) == named(profile, "relu")[0]["args"]


def test_the_header_is_kept_but_for_events(tmp_path: Path) -> None:
    profile = good() | {"host_name": "node7", "trace_id": "AB", "with_stack": 1}
    profile["deviceProperties"] = [
        {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206_141_652_992, "numSms": 304}
    ]
    stage = stage_of(tmp_path, profile)
    assert (stage.facts.rank, stage.facts.world_size, stage.facts.host) == (0, 2, "node7")
    assert stage.facts.metadata["kineto"] == {
        k: v for k, v in profile.items() if k not in ("traceEvents", "deviceProperties")
    }
    (chip,) = (t for t in stage.timelines if t.kind == "chip")
    # AMD's data sheet of the MI300X: 1,307.4 TFLOP/s of BF16, 5.3 TB/s
    assert (chip.name, chip.peak_flops, chip.peak_bytes_per_s) == (
        "GPU 0 (AMD Instinct MI300X)",
        1307.4e12,
        5.3e12,
    )


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "gb_per_s"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA H100 80GB HBM3", 989.5, 3350),
        ("NVIDIA H200", 989.5, 4800),
        ("NVIDIA B200", 2250, 8000),
        ("AMD Instinct MI300X VF", 1307.4, 5300),
        ("Tesla V100-SXM2-32GB", None, 900),
        ("NVIDIA H800", None, None),
    ],
)
def test_peaks_by_the_name_of_a_gpu(
    name: str, bf16_tflops: float | None, gb_per_s: float | None
) -> None:
    gpu = find_gpu(name)
    assert gpu.flops_per_s.get("bfloat16") == (bf16_tflops and pytest.approx(bf16_tflops * 1e12))
    assert gpu.bytes_per_s == (gb_per_s and pytest.approx(gb_per_s * 1e9))


def test_every_peak_says_where_it_was_printed() -> None:
    text = files("trnprof.tracer.formats").joinpath("gpu_peaks.toml").read_text("utf-8")
    for gpu in tomllib.loads(text)["gpu"]:
        has_figures = any(
            isinstance(gpu[key], int | float) for key in gpu if key.endswith(("_tflops", "_per_s"))
        )
        assert gpu.get("source") or gpu.get("estimate") or not has_figures, gpu["name"]
        assert has_figures or gpu.get("absent"), gpu["name"]


def test_ranges_in_two_halves(tmp_path: Path) -> None:
    half = {"pid": 9, "tid": 1, "cat": "user_annotation"}
    rows: list[tuple[str, str, int]] = [
        ("B", "outer", 10), ("B", "inner", 20), ("E", "", 30), ("E", "", 40), ("E", "", 50), ("B", "open", 60),
    ]  # fmt: skip
    profile = good(steps=1)
    profile["traceEvents"] += [half | {"ph": ph, "name": name, "ts": ts} for ph, name, ts in rows]
    profile["traceEvents"].reverse()
    stage = stage_of(tmp_path, profile)
    by_name = {r["name"]: (r["start_ns"], r["end_ns"]) for r in events(stage).to_dicts()}
    assert by_name["outer"] == (10_000, 40_000)
    assert by_name["inner"] == (20_000, 30_000)
    assert by_name["open"][1] < 0
    assert {f.kind: f.count for f in stage.audit.findings}["unmatched_ends"] == 1


def test_a_million_names_are_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_places, "MOST_NAMES", 10)
    profile = good()
    profile["traceEvents"] += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": f"t{tid}"}}
        for tid in range(50_000)
    ]
    told = {f.kind: f.count for f in stage_of(tmp_path, profile).audit.findings}
    # whole blocks: what the first one has beyond the limit is remembered
    assert 0 < told["too_many_metadata"] < 50_000


def test_kernels_on_streams_without_a_header_are_recognised(tmp_path: Path) -> None:
    profile = good()
    kernels = [e for e in profile["traceEvents"] if e.get("cat") == "kernel"]
    rows = [
        e | {"args": {k: e["args"][k] for k in ("device", "stream", "correlation")}}
        for e in kernels
    ]
    path = saved(tmp_path / "k.json", {"traceEvents": rows})
    assert FORMAT.recognise(head_of(path)) > 50


def test_other_phases_are_counted(tmp_path: Path) -> None:
    profile = good()
    profile["traceEvents"] += [{"ph": "b", "name": "x", "pid": 1, "tid": 1, "ts": 1, "id": 3}] * 5
    stage = stage_of(tmp_path, profile)
    (told,) = (f for f in stage.audit.findings if f.kind == "unknown_phase")
    assert (told.count, told.example) == (5, "b (5)")


def test_forward_and_backward_are_joined(tmp_path: Path) -> None:
    profile = good()
    ends = [named(profile, "aten::op1")[0], named(profile, "aten::op2")[1]]
    for phase, op in zip("sf", ends, strict=True):
        arrow = {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "bp": "e"}
        profile["traceEvents"].append(arrow | {k: op[k] for k in ("pid", "tid", "ts")})
    profile["traceEvents"].append(
        {"ph": "f", "cat": "fwdbwd", "id": 2, "pid": HOST, "tid": THREAD, "ts": 1_000_020}
    )
    stage = stage_of(tmp_path, profile)
    flows = table(stage, "flows").filter(kind="data")
    names = events(stage)["name"]
    assert [(names[r["source_row"]], names[r["target_row"]]) for r in flows.to_dicts()] == [
        ("aten::op1", "aten::op2")
    ]
    assert {f.kind: f.count for f in stage.audit.findings}["dangling_flows"] == 1


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (json.dumps(good())[:4000], 80, 90),
        (json.dumps(good()["traceEvents"])[:4000], 80, 90),
        ('{"schemaVersion": 1, "deviceProperties": [', 60, 90),
        (
            '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}',
            0,
            0,
        ),
        ('{"displayTimeUnit":"ns","metadata":{"highres-ticks":true}, "traceEvents":[', 0, 0),
        ("SQLite format 3", 0, 0),
    ],
)
def test_what_is_recognised(text: str, low: int, high: int, tmp_path: Path) -> None:
    assert low <= FORMAT.recognise(head_of(saved(tmp_path / "x", text))) <= high


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), ("[[", "no event"), ('{"a": 1}', "traceEvents"), ("<a>", "no JSON")],
)
def test_what_is_no_profile_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    if message == "no event":
        stage = staged(FORMAT, saved(tmp_path / "x.json", text), tmp_path / "stage")
        assert "no_events" in {f.kind for f in stage.audit.findings}
        return
    with pytest.raises(ProfileError, match=message) as error:
        staged(FORMAT, saved(tmp_path / "x.json", text), tmp_path / "stage")
    assert "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 9)), max_size=12),
    st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 9)), max_size=12),
)
def test_the_latest_call_of_an_id_launches(
    calls: list[tuple[int, int]], work: list[tuple[int, int]]
) -> None:
    def sides(rows: list[tuple[int, int]], process: int) -> Sides:
        columns = np.array(rows, np.int64).reshape(-1, 2)
        return Sides(columns[:, 0], columns[:, 1], np.full(len(rows), process))

    def expected(correlation: int, start: int) -> int:
        same = [(s, -n) for n, (c, s) in enumerate(calls) if c == correlation > 0]
        before = [pair for pair in same if pair[0] <= start]
        chosen: Any = max(before, default=None) or min(
            same, key=lambda p: (p[0], -p[1]), default=None
        )
        return -1 if chosen is None else -chosen[1]

    assert find_launches(sides(calls, 0), sides(work, 1)).tolist() == [
        expected(*row) for row in work
    ]


def test_names_of_streams_and_threads(tmp_path: Path) -> None:
    profile = good(steps=1)
    profile["traceEvents"] += [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": HOST,
            "tid": THREAD,
            "args": {"name": "main thread"},
        },
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 0,
            "tid": COMMUNICATION,
            "args": {"name": "NCCL stream"},
        },
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": COMPUTE, "args": {"name": "stream 7 "}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    ]
    summary, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    rows = trace.tracks.select(pl.col("kind").cast(pl.String), "name", "chip").rows()
    assert ("thread", "main thread", None) in rows
    assert ("stream", "NCCL stream", 0) in rows
    assert ("stream", "stream 7", 0) in rows
    assert ("chip", "GPU 0", 0) in rows
    assert "overlapping_exclusive" not in found(summary)
