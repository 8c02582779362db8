"""A workload through the emulator into a trace and back: what the rows say of each other, and what is refused."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.emulator.programs import TRN2, op, program, ref

from trnprof.emulator import emulate as module
from trnprof.emulator.emulate import Emulation, Forecast, emulate
from trnprof.emulator.lowering.residency import lifetimes
from trnprof.emulator.lowering.step import lower_step
from trnprof.emulator.scheduler import carry_state, schedule
from trnprof.emulator.taskgraph import ServerState
from trnprof.emulator.workload import Operation, TensorRef, Workload
from trnprof.tracer.errors import CaptureError, WriteError
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.memory_names import HBM_USES, hbm_counter
from trnprof.tracer.reader import Trace, open_trace

EXECUTIONS = pytest.mark.parametrize("execution", ["fused", "eager"])
WEIGHT = ref(0, 512, 512, role="parameter")
STATE = ref(1, 512, 512, role="optimizer_state")
RESIDENT = (WEIGHT, STATE)


def training(steps: int = 3) -> Workload:
    """A layer, a loss, its gradient, an update; what a step made dies in the next."""
    operations: list[Operation] = []
    freed: Sequence[int] = ()
    for step in range(steps):
        n = 10 * (step + 1)
        x, h, y = ref(n, 2048, 512, role="input"), ref(n + 1, 2048, 512), ref(n + 2, 2048, 512)
        turned = ref(n + 1, 512, 2048, contiguous=False)
        rows, loss, gradient = ref(n + 3, 2048), ref(n + 4), ref(n + 5, 512, 512, role="gradient")

        def add(
            name: str,
            inputs: Sequence[TensorRef],
            outputs: Sequence[TensorRef],
            phase: str,
            freed: Sequence[int] = (),
            step: int = step,
            **arguments: Any,
        ) -> None:
            operations.append(op(name, inputs, outputs, phase, step, freed, **arguments))

        add("mm", [x, WEIGHT], [h], "forward", freed)
        add("gelu", [h], [y], "forward")
        add("mylib::norm", [y], [rows], "forward")
        add("sum", [rows], [loss], "forward", dim=[0])
        add("mm", [turned, y], [gradient], "backward", freed=[n + 3])
        add("lerp_", [STATE, gradient], [STATE], "optimizer", freed=[n + 1, n + 2])
        add("add_", [WEIGHT, STATE], [WEIGHT], "optimizer")
        freed = [n, n + 4, n + 5]
    return program(operations, RESIDENT)


class Run(NamedTuple):
    trace: Trace
    outcome: Emulation
    events: pl.DataFrame
    forecasts: list[Forecast]


def run(path: Path, workload: Workload, **options: Any) -> Run:
    path.mkdir(parents=True, exist_ok=True)
    forecasts: list[Forecast] = []
    outcome = emulate(workload, TRN2, path, on_forecast=forecasts.append, **options)
    write_manifest(
        path, command=None, is_simulation=True, system=TRN2.describe(), emulation=outcome.details
    )
    trace = open_trace(path)
    return Run(trace, outcome, trace.events.collect().sort("event_id"), forecasts)


@pytest.fixture(scope="module", params=["fused", "eager"])
def emulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("emulated") / "run.trnprof"
    return run(folder, training(), execution=request.param, reproducible=True)


def exclusive(emulated: Run) -> pl.DataFrame:
    tracks = emulated.trace.tracks.filter(pl.col("exclusive"))["track_id"].to_list()
    return emulated.events.filter(pl.col("track_id").is_in(tracks))


def test_the_trace_is_clean(emulated: Run) -> None:
    assert emulated.trace.problems == ()
    assert emulated.trace.validate() == []
    assert emulated.outcome.events == len(emulated.events) == len(exclusive(emulated)) > 100


def test_steps_tile_the_time(emulated: Run) -> None:
    steps = emulated.trace.steps.sort("step")
    assert steps["step"].to_list() == [0, 1, 2]
    assert steps["start_ns"].to_list() == [0, *steps["end_ns"].to_list()[:-1]]
    assert steps["end_ns"][-1] == emulated.outcome.device_ns
    assert steps["label"].to_list() == ["step 0", "step 1", "step 2"]
    assert (steps["end_ns"] > steps["start_ns"]).all()


def test_events_lie_in_their_step(emulated: Run) -> None:
    joined = emulated.events.join(emulated.trace.steps, on="step", suffix="_step")
    assert len(joined) == len(emulated.events)
    assert (joined["start_ns"] >= joined["start_ns_step"]).all()
    assert (joined["start_ns"] + joined["duration_ns"] <= joined["end_ns"]).all()
    ends = joined.group_by("step").agg(
        (pl.col("start_ns") + pl.col("duration_ns")).max(), pl.col("end_ns").first()
    )
    assert (ends["start_ns"] == ends["end_ns"]).all()


def test_nothing_starts_before_it_is_ready(emulated: Run) -> None:
    assert (emulated.events["ready_ns"] <= emulated.events["start_ns"]).all()


def test_tracks_run_one_thing_at_a_time(emulated: Run) -> None:
    events = emulated.events.sort("track_id", "start_ns", "event_id")
    ends = (events["start_ns"] + events["duration_ns"]).shift(1)
    same = events["track_id"] == events["track_id"].shift(1)
    assert (events["start_ns"] >= ends).filter(same.fill_null(False)).all()


def test_what_blocked_an_event_ends_where_it_starts(emulated: Run) -> None:
    flows = emulated.trace.flows.collect()
    times = emulated.events.select(
        "event_id",
        "start_ns",
        "ready_ns",
        "blocked_by",
        end=pl.col("start_ns") + pl.col("duration_ns"),
    )
    bound = times.join(
        flows, left_on=["blocked_by", "event_id"], right_on=["source_event", "target_event"]
    )
    bound = bound.join(
        times.select("event_id", source_end="end"), left_on="blocked_by", right_on="event_id"
    )
    assert len(bound) > len(times) / 3
    late = bound["source_end"] + bound["lag_ns"] - bound["start_ns"]
    assert (late.abs() <= 1).all()  # each is rounded to a nanosecond
    assert (bound["ready_ns"] == bound["start_ns"]).all()
    # everything but what starts with the trace is held by something, and that is over or on the same queue
    unheld = times.filter(pl.col("blocked_by").is_null())
    assert (unheld["start_ns"] == 0).all()
    held = times.join(
        times.select("event_id", source="start_ns"), left_on="blocked_by", right_on="event_id"
    )
    assert len(held) == len(times) - len(unheld)
    assert (held["source"] <= held["start_ns"]).all()


def test_flows_point_from_earlier_to_later(emulated: Run) -> None:
    flows = emulated.trace.flows.collect()
    times = emulated.events.select(
        "event_id", "start_ns", end=pl.col("start_ns") + pl.col("duration_ns")
    )
    joined = flows.join(times, left_on="target_event", right_on="event_id").join(
        times, left_on="source_event", right_on="event_id", suffix="_source"
    )
    assert len(joined) == len(flows) > 100
    assert (joined["start_ns"] >= joined["end_source"] + joined["lag_ns"] - 2).all()


def test_a_wait_has_a_reason_exactly_where_there_is_a_gap(emulated: Run) -> None:
    starts = dict(zip(emulated.trace.steps["step"], emulated.trace.steps["start_ns"], strict=True))
    rows = emulated.events.sort("track_id", "start_ns", "event_id").iter_rows(named=True)
    last: dict[tuple[int, int], int] = {}
    for row in rows:
        key = (row["track_id"], row["step"])
        gap = row["start_ns"] > last.get(key, starts[row["step"]])
        assert (row["wait_reason"] is not None) == gap, row
        last[key] = row["start_ns"] + row["duration_ns"]


def test_rows_say_what_they_are(emulated: Run) -> None:
    kinds = dict(zip(emulated.trace.tracks["track_id"], emulated.trace.tracks["name"], strict=True))
    names = emulated.events["track_id"].replace_strict(kinds, return_dtype=pl.String)
    category = emulated.events["category"].cast(pl.String)
    dma = names.str.starts_with("DMA q")
    assert (category.filter(dma) == "dma").all()
    assert emulated.events["bytes"].is_not_null().equals(dma, check_names=False)
    assert emulated.events["flops"].is_not_null().equals(names == "Tensor", check_names=False)
    ops = emulated.trace.ops.collect()
    assert set(emulated.events["op_id"]) <= set(ops["op_id"])
    aten = ops.filter(pl.col("kind").cast(pl.String) == "aten")
    assert aten["name"].to_list() == [o.name for o in training().operations]
    flops = (
        emulated.events.group_by("step").agg(pl.col("flops").sum()).sort("step")["flops"].to_list()
    )
    # two products, and the 128 partial sums of the loss
    assert flops == pytest.approx([2 * (2 * 2048 * 512 * 512) + 2 * 128] * 3)


def test_no_cost_is_lost_between_operations_and_events(emulated: Run) -> None:
    moved = (
        emulated.events.filter(pl.col("bytes").is_not_null())
        .group_by("op_id")
        .agg(pl.col("bytes").sum())
    )
    aten = (
        emulated.trace.ops.filter(pl.col("kind").cast(pl.String) == "aten").sort("op_id").collect()
    )
    by_op = dict(zip(moved["op_id"], moved["bytes"], strict=True))
    ids: dict[str, list[int]] = defaultdict(list)
    for op_id, name in zip(aten["op_id"], aten["name"], strict=True):
        ids[name].append(op_id)
    assert all(by_op[i] >= WEIGHT.nbytes for i in ids["add_"])  # the new weight is stored
    assert all(
        by_op[i] >= WEIGHT.nbytes + 2048 * 512 * 4 for i in ids["mm"][::2]
    )  # weight and input are loaded


def test_fallbacks_are_counted_and_named(emulated: Run) -> None:
    details = emulated.outcome.details
    assert details["fallback_ops"] == 3
    assert details["fallback_names"] == {"mylib::norm": 3}
    assert 0 < details["fallback_time_percent"] < 1
    ops = emulated.trace.ops.collect().with_columns(pl.col("lowering").cast(pl.String))
    assert ops.filter(pl.col("lowering") == "fallback")["name"].to_list() == ["mylib::norm"] * 3
    assert details["estimates"] == TRN2.estimates


def test_the_forecast_comes_first_and_is_near(emulated: Run) -> None:
    assert len(emulated.forecasts) == 1
    assert emulated.forecasts[0].events == pytest.approx(len(emulated.events), rel=0.3)


# ---- HBM occupancy


def brute_force_hbm(workload: Workload, execution: str) -> tuple[list[tuple[int, float]], float]:
    """Occupancy from the lifetime of each storage: (ns, bytes) where it changes, and the peak."""
    uses = lifetimes(workload.operations)
    resident = {r.tensor: r.storage_nbytes for r in workload.resident}
    born, died = dict.fromkeys(resident, 0), dict[int, int]()
    clock, first = 0, 0
    state: ServerState | None = None
    for step in workload.steps:
        operations = [o for o in workload.operations if o.step == step.step]
        lowered = lower_step(TRN2, operations, first, uses, execution)
        outcome = schedule(lowered.tasks.graph(clock, 0 if step.step else -1), state)
        for storage, nbytes in lowered.hbm_storages.items():
            resident.setdefault(storage, nbytes)
            born.setdefault(storage, int(outcome.start_ps[lowered.first_task[storage]]))
        labels = list(lowered.tasks.labels)
        owners = [labels[i].op for i in lowered.tasks.label_ids]
        for position, operation in enumerate(operations, start=first):
            before = [end for end, op in zip(outcome.end_ps, owners, strict=True) if op < position]
            for storage in set(operation.freed) & set(born):
                died[storage] = max([clock, *map(int, before)])
        state = carry_state(outcome.state, np.arange(len(outcome.end_ps)))
        clock, first = int(outcome.end_ps.max()), first + len(operations)
    forever = clock + 1

    def level(time: int, *, before_frees: bool = False) -> int:
        ends = {s: died.get(s, forever) + before_frees for s in born}
        return sum(resident[s] for s, start in born.items() if start <= time < ends[s])

    moments = sorted({0, *born.values(), *died.values()})
    by_ns = {(t + 500) // 1000: float(level(t)) for t in moments}
    return sorted(by_ns.items()), float(max(level(t, before_frees=True) for t in moments))


@EXECUTIONS
def test_hbm_occupancy_follows_the_lifetimes(tmp_path: Path, execution: str) -> None:
    done = run(tmp_path / "t", training(), execution=execution)
    names = done.trace.tracks.select("track_id", "name")
    samples = done.trace.counters.collect().join(names, on="track_id", maintain_order="left")
    counters = samples.filter(pl.col("name") == "HBM bytes")
    found = dict(zip(counters["timestamp_ns"], counters["value"], strict=True))
    expected, peak = brute_force_hbm(training(), execution)
    changes = [(t, v) for i, (t, v) in enumerate(expected) if i == 0 or v != expected[i - 1][1]]
    assert {t: found.get(t) for t, _ in changes} == dict(changes)
    hbm = done.outcome.details["hbm"]
    assert (hbm["capacity_bytes"], hbm["peak_bytes"]) == (12_000_000_000, peak)
    assert sum(hbm["peak_by_category"].values()) == peak
    assert hbm["peak_by_category"]["parameters"] == WEIGHT.nbytes
    assert (counters["timestamp_ns"].diff().drop_nulls() >= 0).all()
    assert (counters["value"] >= 2 * WEIGHT.nbytes).all()
    # what each use holds sums to it at every instant
    by_use = samples.filter(pl.col("name").is_in([hbm_counter(use) for use in HBM_USES]))
    for when, value in counters.select("timestamp_ns", "value").iter_rows():
        until = by_use.filter(pl.col("timestamp_ns") <= when)
        assert until.group_by("name").agg(pl.col("value").last())["value"].sum() == value


def test_what_does_not_fit_is_said_and_timed_all_the_same(tmp_path: Path) -> None:
    huge = ref(0, 60_000, 60_000, role="parameter")  # 14.4 GB
    done = run(tmp_path / "t", program([op("relu_", [huge], [huge])], [huge]))
    note = done.outcome.details["notes"][0]
    assert note.startswith("does not fit: HBM peaks at 14.4")
    assert "one core of trn2 has 12 GB" in note
    assert "2.4" in note
    assert "at the peak: parameters 14.4" in note
    assert done.outcome.device_ns > 2 * huge.nbytes / 430e9 * 1e9
    small = run(tmp_path / "u", training(1))
    assert small.outcome.details["notes"] == []


# ---- options, refusals, determinism


def test_flows_all_binding_none(tmp_path: Path) -> None:
    runs = {
        kind: run(tmp_path / kind, training(), edges=kind) for kind in ("all", "binding", "none")
    }
    everything = pairs(runs["all"])
    binding = pairs(runs["binding"])
    assert pairs(runs["none"]) == set()
    assert binding < everything
    blocked = {
        (row["blocked_by"], row["event_id"]) for row in runs["all"].events.iter_rows(named=True)
    }
    assert binding == everything & blocked
    assert pairs(run(tmp_path / "default", training())) == everything


def pairs(done: Run) -> set[tuple[int, int]]:
    flows = done.trace.flows.collect()
    return set(zip(flows["source_event"], flows["target_event"], strict=True))


def test_many_events_get_their_binding_edges_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = pairs(run(tmp_path / "binding", training(), edges="binding"))
    monkeypatch.setattr(module, "ALL_EDGES_LIMIT", 10)
    assert pairs(run(tmp_path / "many", training())) == wanted


def tables(trace: Trace) -> dict[str, pl.DataFrame]:
    lazy = {name: getattr(trace, name) for name in ("events", "ops", "flows", "counters")}
    small = {"tracks": trace.tracks, "steps": trace.steps, "peaks": trace.peaks}
    return {**{name: frame.collect() for name, frame in lazy.items()}, **small}


@EXECUTIONS
def test_two_runs_are_equal(tmp_path: Path, execution: str) -> None:
    first, second = (
        run(tmp_path / name, training(), execution=execution, reproducible=True) for name in "ab"
    )
    assert first.outcome == second.outcome
    for name, frame in tables(first.trace).items():
        assert_frame_equal(frame, tables(second.trace)[name], categorical_as_str=True)


def test_an_empty_workload_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="nothing to emulate"):
        emulate(Workload((), ()), TRN2, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_too_small_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(
        WriteError, match=r"are needed while writing, .*1.* are free; record fewer steps"
    ):
        emulate(training(), TRN2, tmp_path)


def test_a_step_that_does_nothing_takes_no_time(tmp_path: Path) -> None:
    x = ref(0, 256, 256)
    relu, view = op("relu", [x], [ref(1, 256, 256)]), op("empty", [], [x], step=1)
    again = op("relu", [x], [ref(2, 256, 256)], step=2)
    done = run(tmp_path / "t", program([relu, view, again]))
    steps = done.trace.steps.sort("step")
    assert steps["end_ns"][1] == steps["start_ns"][1] == steps["end_ns"][0]
    assert steps["end_ns"][2] > steps["start_ns"][2]
    assert done.trace.validate() == []
    only_views = run(tmp_path / "u", program([op("empty", [], [x])]))
    assert (only_views.outcome.events, only_views.outcome.device_ns) == (0, 0)


def test_steps_carry_their_servers(tmp_path: Path) -> None:
    """A step alone and the same step after others take the same time: only the clock and busy queues carry over."""
    done = run(tmp_path / "t", training(5))
    lengths = (
        done.trace.steps.sort("step")["end_ns"] - done.trace.steps.sort("step")["start_ns"]
    ).to_list()
    # nothing of the last step is freed, so it writes more
    assert max(lengths[1:-1]) - min(lengths[1:-1]) <= 1
    blocked = done.events.filter(pl.col("step") == 1).filter(pl.col("blocked_by").is_not_null())
    earlier = done.events.filter(pl.col("step") == 0)["event_id"].to_list()
    assert blocked["blocked_by"].is_in(earlier).any()


def test_modules_are_a_tree(tmp_path: Path) -> None:
    x, y = ref(0, 64, 64), ref(1, 64, 64)
    inner = Operation("relu", "forward", 0, (x,), (y,), "blocks.0.act", "ReLU", "model.py", 7)
    outer = Operation("relu", "forward", 0, (y,), (x,), "", "Net")
    done = run(tmp_path / "t", program([inner, outer]))
    ops = done.trace.ops.collect().with_columns(pl.col("kind").cast(pl.String))
    modules = ops.filter(pl.col("kind") == "module")
    names = dict(zip(modules["op_id"], modules["name"], strict=True))
    parents = {n: names.get(p) for n, p in zip(modules["name"], modules["parent_id"], strict=True)}
    assert parents == {"Net": None, "blocks": "Net", "0": "blocks", "ReLU": "0"}
    aten = ops.filter(pl.col("kind") == "aten")
    assert [names[p] for p in aten["parent_id"]] == ["ReLU", "Net"]
    assert aten["source_line"].to_list() == [7, None]


def test_peaks_and_tracks_are_those_of_the_system(emulated: Run) -> None:
    tracks = {row["name"]: row for row in emulated.trace.tracks.iter_rows(named=True)}
    assert tracks["Tensor"]["peak_flops"] == pytest.approx(78.64e12, rel=1e-3)
    assert tracks["core 0"]["peak_bytes_per_s"] == TRN2.hbm_bytes_per_s_per_core
    assert tracks["HBM"]["peak_bytes_per_s"] == 2.9e12
    children = defaultdict(set)
    ids = {row["track_id"]: row["name"] for row in tracks.values()}
    for row in tracks.values():
        children[ids.get(row["parent_id"], "")].add(row["name"])
    assert children[""] == {"host0"}
    assert children["chip 0"] == {"HBM", "core 0"}
    assert {"Tensor", "Vector", "Scalar", "GpSimd", "Sync", "DMA q0", "HBM bytes"} <= children[
        "core 0"
    ]
    peaks = {row["dtype"]: row["flops_per_s"] for row in emulated.trace.peaks.iter_rows(named=True)}
    assert peaks["float8"] == 2 * peaks["bfloat16"] == 8 * peaks["float32"]
