"""A program of many ranks as a trace: what its rows say of each other, and that commands read it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.emulator.programs import op, ref
from tests.emulator.ranks.worlds import Run, collective, group, layers, mesh, run, world

from trnprof.analysis.metrics import combine_units
from trnprof.analysis.ranks import rank_breakdown
from trnprof.analysis.report import build_report
from trnprof.analysis.scope import device_scope
from trnprof.analysis.screen import screen_of
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import ProcessGroup, Workload, World
from trnprof.tracer.errors import CaptureError, SystemDescriptionError, TrnprofError

ULTRA = load_system("trn2-ultra")
RANKS, LAYERS = 64, 4


def program_of(steps: int = 2) -> Workload:
    """Layers whose weights are gathered, then a sum over a group of 4, twice."""
    tensor = mesh(16, 4)[1]
    operations = []
    for step in range(steps):
        operations += layers(LAYERS, 1024, 512, RANKS, step=step, first=1000 * (step + 1))
        last = ref(1000 * (step + 1) + 200 + LAYERS - 1, 512, 1024, dtype="bfloat16")
        operations.append(collective("all_reduce", last.nbytes, [last], [last], group=1, step=step))
    return world(operations, [group("dp", mesh(RANKS)[0]), group("tp", tensor)], RANKS)


@pytest.fixture(scope="module", params=[1, 2])
def emulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(
        tmp_path_factory.mktemp("ranks") / "run.trnprof", program_of(), ULTRA, lnc=request.param
    )


def kinds(emulated: Run) -> pl.DataFrame:
    tracks = emulated.trace.tracks.with_columns(pl.col("kind").cast(pl.String))
    return emulated.events.join(tracks, on="track_id", suffix="_of_track")


def test_the_trace_is_clean(emulated: Run) -> None:
    assert emulated.trace.problems == ()
    assert emulated.trace.validate() == []
    assert emulated.outcome.events == len(emulated.events)


def test_collectives_have_their_group_order_and_bytes(emulated: Run) -> None:
    ops = emulated.trace.ops.filter(pl.col("kind") == "collective").collect().sort("op_id")
    assert emulated.trace.groups["name"].to_list() == ["dp", "tp"]
    assert emulated.trace.groups["ranks"].to_list() == [list(range(64)), [0, 1, 2, 3]]
    gathers = ops.filter(pl.col("group_id") == 0)
    assert gathers["group_seq"].to_list() == list(range(2 * LAYERS))
    nbytes = 1024 * 1024 * 2
    assert gathers["in_bytes"].unique().to_list() == [nbytes // 64]
    assert gathers["out_bytes"].unique().to_list() == [nbytes]
    sums = ops.filter(pl.col("group_id") == 1)
    assert sums["group_seq"].to_list() == [0, 1]
    assert sums["in_bytes"].to_list() == sums["out_bytes"].to_list()
    others = emulated.trace.ops.filter(pl.col("kind") == "aten").collect()
    assert others["group_id"].null_count() == len(others)


def test_each_group_has_a_stream_with_its_collectives(emulated: Run) -> None:
    streams = kinds(emulated).filter(pl.col("kind") == "collective_stream")
    named = streams.group_by("name_of_track").agg(pl.col("name").cast(pl.String).unique(), pl.len())
    assert sorted(named.rows()) == [
        ("CC dp", ["all_gather"], 2 * LAYERS),
        ("CC tp", ["all_reduce"], 2),
    ]


def test_links_are_real_and_begin_with_their_collective(emulated: Run) -> None:
    placed = kinds(emulated)
    links = placed.filter(pl.col("kind") == "link")
    streams = placed.filter(pl.col("kind") == "collective_stream")
    both = links.join(streams.select("op_id", begin="start_ns", until="end_ns"), on="op_id")
    assert len(both) == len(links) > 0
    assert (both["start_ns"] == both["begin"]).all()
    assert (both["end_ns"] <= both["until"]).all()
    assert links["replica_count"].unique().to_list() == [1]
    # a group on one chip uses none
    assert set(links["name"].cast(pl.String)) == {"all_gather"}
    chips = set(emulated.trace.tracks["chip"].drop_nulls())
    assert set(links["source_chip"]) | set(links["target_chip"]) <= chips | set(range(16))


def test_other_ranks_are_declared_and_not_written(emulated: Run) -> None:
    lnc = emulated.outcome.details["lnc"]
    tracks = emulated.trace.tracks.with_columns(pl.col("kind").cast(pl.String))
    replicas = tracks.filter(pl.col("replica_of").is_not_null())
    assert emulated.events.join(replicas, on="track_id", how="semi").is_empty()
    cores = tracks.filter(pl.col("kind") == "core")
    assert cores.group_by("rank").len()["len"].to_list() == [lnc] * RANKS
    assert cores.select("chip", "core").n_unique() == RANKS * lnc
    own = cores.filter(pl.col("replica_of").is_null())
    assert own["replica_count"].to_list() == [RANKS * lnc]
    for kind, count in (("engine", 5 * lnc), ("dma_queue", 4 * lnc), ("collective_stream", 2)):
        lanes = tracks.filter(pl.col("kind") == kind)
        assert lanes.group_by("rank").len()["len"].to_list() == [count] * RANKS
    represented = replicas.join(tracks, left_on="replica_of", right_on="track_id", suffix="_of")
    assert (represented["kind"] == represented["kind_of"]).all()
    assert represented["replica_of_of"].null_count() == len(replicas)


def test_the_report_weighs_replicas_and_closes(emulated: Run) -> None:
    """Time that no compute hides, by brute force over the nanoseconds' edges of one rank's events."""
    lnc = emulated.outcome.details["lnc"]
    report = build_report(emulated.trace)
    assert report["core_count"] == RANKS * lnc
    placed = kinds(emulated).filter(pl.col("kind") != "link")
    events = placed.filter(pl.col("category").cast(pl.String).is_in(["compute", "collective"]))
    edges = sorted({*events["start_ns"], *events["end_ns"]})
    exposed = 0
    for first, past in pairwise(edges):
        running = events.filter((pl.col("start_ns") <= first) & (pl.col("end_ns") >= past))
        exposed += (past - first) * (set(running["category"].cast(pl.String)) == {"collective"})
    parts = report["overall"]["breakdown"]
    assert parts["exposed_collective_ns"] == exposed > 0
    assert parts["total_ns"] == emulated.outcome.device_ns
    assert sum(parts.values()) == 2 * parts["total_ns"]
    (rank,) = rank_breakdown(emulated.trace).units.to_dicts()
    assert (rank["rank"], rank["replica_count"]) == (0, RANKS)


@pytest.mark.parametrize("lnc", [1, 2])
def test_model_flops_are_those_of_all_ranks(tmp_path: Path, lnc: int) -> None:
    """A rank's operation counts once, however many cores share it: MFU is FLOPs over the peak of both."""
    source = program_of(1)
    flops = 2.0 * 512 * 1024 * 1024
    operations = tuple(
        replace(o, model_flops=flops) if o.name == "mm" else o for o in source.operations
    )
    done = run(tmp_path / "t", replace(source, operations=operations), ULTRA, lnc=lnc)
    scope = device_scope(done.trace)
    assert scope is not None
    counters = combine_units(screen_of(done.trace, scope).counters())
    assert counters["model_flops"].unique().to_list() == [LAYERS * flops * RANKS]
    assert counters["hardware_flops"].unique().to_list() == [LAYERS * flops * RANKS]
    peak = ULTRA.core.tensor.peak_flops()
    assert counters["peak_flops"].unique().to_list() == pytest.approx([peak * RANKS * lnc])


def test_the_same_program_gives_identical_tables(tmp_path: Path) -> None:
    def files(name: str) -> dict[str, str]:
        path = tmp_path / name / "run.trnprof"
        run(path, program_of(), ULTRA)
        tables = (f for f in sorted(path.rglob("*")) if f.is_file())
        return {
            str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in tables
        }

    assert files("one") == files("two")


def test_another_rank_than_the_first_can_be_the_one(tmp_path: Path) -> None:
    groups = [ProcessGroup("dp", tuple(range(4)), (tuple(range(4)),))]
    workload = replace(
        world([collective("all_reduce", 1000, [ref(1, 10)], [ref(1, 10)])], groups, 4),
        world=World(4, 2),
    )
    done = run(tmp_path / "t", workload, ULTRA, placement="spread")
    own = done.trace.tracks.filter((pl.col("kind") == "core") & pl.col("replica_of").is_null())
    assert own.select("rank", "chip").rows() == [(2, 2)]
    assert done.trace.steps["rank"].to_list() == [2]


def test_ranks_that_do_not_fit_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "t"
    workload = world(
        [op("mm", [ref(1, 8, 8), ref(2, 8, 8)], [ref(3, 8, 8)])], [group("w", mesh(300)[0])], 300
    )
    with pytest.raises(SystemDescriptionError, match="do not fit"):
        run(path, workload, ULTRA)
    assert list(path.iterdir()) == []


def test_a_group_of_unknown_ranks_is_refused(tmp_path: Path) -> None:
    workload = world(
        [op("mm", [ref(1, 8, 8), ref(2, 8, 8)], [ref(3, 8, 8)])], [group("w", mesh(8)[0])], 4
    )
    with pytest.raises(CaptureError, match="group 'w' has ranks"):
        run(tmp_path / "t", workload, ULTRA)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"group": 1}, "group 1 of 1: the workload is broken"),
        ({"kind": "all_join"}, "unknown collective 'all_join': the workload is broken"),
        ({"root": 8}, "root 8, target -1 in a group of 8"),
        ({"sent_bytes": (1, 2)}, "bytes for 2 ranks in a group of 8"),
        ({"nbytes": 2**60}, "expected 0 to"),
    ],
)
def test_a_collective_that_cannot_be_done_leaves_nothing_behind(
    tmp_path: Path, call: dict[str, Any], message: str
) -> None:
    good = collective("all_reduce", 1000, [ref(1, 10)], [ref(1, 10)])
    assert good.collective is not None
    bad = replace(good, collective=replace(good.collective, **call))
    path = tmp_path / "t"
    with pytest.raises(TrnprofError, match=message):
        run(path, world([good, bad], [group("w", mesh(8)[0])], 8), ULTRA)
    assert list(path.iterdir()) == []
