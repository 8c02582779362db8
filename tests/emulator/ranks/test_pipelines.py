"""Stages that run together: bubbles against closed forms and a recursion, who waits for whom, and programs that do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests.emulator.programs import op, program, ref
from tests.emulator.ranks.pipelines import pipeline
from tests.emulator.ranks.worlds import Run, collective, run

from trnprof.analysis.ranks import rank_breakdown
from trnprof.analysis.report import build_report
from trnprof.emulator.ranks.costs import CollectiveCosts
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import (
    CollectiveCall,
    Operation,
    ProcessGroup,
    TensorRef,
    Workload,
    World,
)
from trnprof.tracer.errors import CaptureError

ULTRA = load_system("trn2-ultra")
SPREAD = {"placement": "spread", "lnc": 1}
SCHEDULES = pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])


def emulated(path: Path, workload: Workload, **options: object) -> Run:
    return run(path, workload, ULTRA, **(SPREAD | options))


def on_lanes(done: Run, kind: str) -> pl.DataFrame:
    """Events on tracks of a kind, with the rank and the name of the track."""
    lanes = done.trace.tracks.with_columns(pl.col("kind").cast(pl.String))
    named = lanes.filter(pl.col("kind") == kind).select("track_id", "rank", track="name")
    return done.events.join(named, on="track_id").with_columns(
        pl.col("name", "wait_reason").cast(pl.String)
    )


def tensor_ns(done: Run) -> dict[int, int]:
    """How long the tensor engine of each emulated rank works."""
    events = on_lanes(done, "engine").filter(pl.col("track") == "Tensor")
    return dict(events.group_by("rank").agg(pl.col("duration_ns").sum()).rows())


def hop_ns(nbytes: int) -> float:
    costs = CollectiveCosts(ULTRA.machine, tuple(range(64)))
    call = CollectiveCall("send_recv", 0, nbytes, root=0, target=1)
    return costs.cost(call, ((0, 1),)).duration_ps / 1000


# ---- bubbles


@SCHEDULES
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 4), (4, 8)])
def test_the_bubble_of_equal_stages(
    tmp_path: Path, schedule: str, stages: int, batches: int
) -> None:
    """(p - 1) / (m + p - 1) of the time, and a little more for messages and the first loads behind them (the recursion below has them)."""
    done = emulated(tmp_path / "t", pipeline(schedule, stages, batches))
    expected = (stages - 1) / (batches + stages - 1)
    assert len(tensor_ns(done)) == stages
    for busy in tensor_ns(done).values():
        assert expected <= 1 - busy / done.outcome.device_ns <= expected + 0.045


@SCHEDULES
def test_the_report_shows_the_bubble(tmp_path: Path, schedule: str) -> None:
    done = emulated(tmp_path / "t", pipeline(schedule, 4, 8))
    assert done.trace.validate() == []
    report = build_report(done.trace)
    assert report["core_count"] == 4
    parts = report["overall"]["breakdown"]
    assert parts["total_ns"] == done.outcome.device_ns
    idle = 1 - parts["compute_ns"] / parts["total_ns"]
    assert 3 / 11 <= idle <= 3 / 11 + 0.04
    ranks = rank_breakdown(done.trace).units
    assert ranks["rank"].to_list() == [0, 1, 2, 3]
    assert ranks["replica_count"].to_list() == [1] * 4


def recursion(
    order: Sequence[Sequence[tuple[str, int]]], lengths: dict[str, float], hop: float
) -> float:
    """When the last of all is done, where each stage does its list in order and a message takes so long."""
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0] * len(order)
    at = [0] * len(order)
    while any(at[s] < len(order[s]) for s in range(len(order))):
        for s, own in enumerate(order):
            while at[s] < len(own):
                kind, batch = own[at[s]]
                source = s - 1 if kind == "f" else s + 1
                needed = 0.0
                if 0 <= source < len(order):
                    if (kind, batch, source) not in done:
                        break
                    needed = done[kind, batch, source] + hop
                free[s] = max(free[s], needed) + lengths[kind]
                done[kind, batch, s] = free[s]
                at[s] += 1
    return max(free)


def orders(schedule: str, stages: int, batches: int) -> list[list[tuple[str, int]]]:
    forward = [("f", b) for b in range(batches)]
    if schedule == "gpipe":
        return [forward + [("b", b) for b in reversed(range(batches))]] * stages
    found = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, batches)
        own = forward[:ahead]
        for batch in range(batches):
            own = own + forward[batch + ahead : batch + ahead + 1] + [("b", batch)]
        found.append(own)
    return found


@SCHEDULES
@pytest.mark.parametrize(("stages", "batches"), [(3, 2), (4, 8)])
def test_a_pipeline_takes_as_long_as_the_recursion_says(
    tmp_path: Path, schedule: str, stages: int, batches: int
) -> None:
    """Lengths of a forward and a backward from one stage alone: the products are equal, a backward has twice as many."""
    one = emulated(tmp_path / "one", pipeline("gpipe", 1, batches))
    each = one.outcome.device_ns / batches
    expected = recursion(
        orders(schedule, stages, batches),
        {"f": each / 3, "b": each * 2 / 3},
        hop_ns(2048 * 1024 * 2),
    )
    done = emulated(tmp_path / "t", pipeline(schedule, stages, batches))
    assert done.outcome.device_ns == pytest.approx(expected, rel=0.03)


def test_copies_of_a_pipeline_are_replicas(tmp_path: Path) -> None:
    one = emulated(tmp_path / "one", pipeline("1f1b", 2, 4))
    two = emulated(tmp_path / "two", pipeline("1f1b", 2, 4, copies=2))
    classes = two.outcome.details["rank_classes"]
    assert [(c["rank"], c["members"]) for c in classes] == [(0, [0, 1]), (2, [2, 3])]
    # of other chips: as far from each other
    assert two.outcome.device_ns == pytest.approx(one.outcome.device_ns, rel=0.02)
    cores = two.trace.tracks.filter(pl.col("kind").cast(pl.String) == "core").sort("rank")
    assert cores["replica_count"].to_list() == [2, 1, 2, 1]
    own = dict(zip(cores["rank"], cores["track_id"], strict=True))
    assert cores["replica_of"].to_list() == [None, own[0], None, own[2]]


def test_steps_follow_each_other_stage_by_stage(tmp_path: Path) -> None:
    done = emulated(tmp_path / "t", pipeline("1f1b", 3, 3, steps=2))
    steps = done.trace.steps.sort("rank", "step")
    assert steps["rank"].to_list() == [0, 0, 1, 1, 2, 2]
    for _, own in steps.group_by("rank"):
        assert own["start_ns"][0] == 0
        assert own["start_ns"][1] == own["end_ns"][0]
        assert own["end_ns"][1] == done.outcome.device_ns
    # the last stage is through with the first step before the first stage is
    first = steps.filter(pl.col("step") == 0)["end_ns"].to_list()
    assert first[2] < first[1] < first[0]
    inside = done.events.join(
        done.trace.tracks.select("track_id", "rank").filter(pl.col("rank").is_not_null()),
        on="track_id",
    ).join(steps.select("rank", "step", a="start_ns", b="end_ns"), on=["rank", "step"])
    assert inside.filter(
        (pl.col("start_ns") < pl.col("a")) | (pl.col("end_ns") > pl.col("b"))
    ).is_empty()


# ---- who waits for whom

X, W, Y, Z = (ref(n, 2048, 2048) for n in range(1, 5))
LATER = 5_000_000


def mm(source: TensorRef, out: TensorRef) -> Operation:
    return op("mm", [source, W], [out])


def send(tensor: TensorRef, source: int, target: int, **more: int) -> Operation:
    plain = collective("send_recv", tensor.nbytes, [tensor], [], root=source, target=target)
    return replace(plain, name="c10d::send", source_file="pipe.py", source_line=3, **more)  # type: ignore[arg-type]


def receive(tensor: TensorRef, source: int, target: int) -> Operation:
    plain = collective("send_recv", tensor.nbytes, [], [tensor], root=source, target=target)
    return replace(plain, name="c10d::recv_", source_file="pipe.py", source_line=9)


def together(*programs: Sequence[Operation], ranks: int = 1) -> Workload:
    """A program a stage, of so many ranks each, all of which are in one group."""
    size = len(programs) * ranks
    everybody = tuple(range(size))
    group = ProcessGroup("pp", everybody, (everybody,))
    made = []
    for number, operations in enumerate(programs):
        own = tuple(range(number * ranks, (number + 1) * ranks))
        made.append(replace(program(operations), groups=(group,), world=World(size, own[0], own)))
    return replace(made[0], others=tuple(made[1:]))


def test_a_receive_begins_with_its_send(tmp_path: Path) -> None:
    done = emulated(
        tmp_path / "t", together([mm(X, Y), send(Y, 0, 1)], [receive(X, 0, 1), mm(X, Y)])
    )
    one, other = on_lanes(done, "collective_stream").sort("rank").iter_rows(named=True)
    assert (one["track"], other["track"]) == ("CC pp 0>1",) * 2
    assert one["start_ns"] == other["start_ns"] > 0
    assert one["duration_ns"] == other["duration_ns"] == pytest.approx(hop_ns(Y.nbytes), abs=1)
    assert one["wait_reason"] in ("data", "semaphore")
    assert other["wait_reason"] == "peer"
    stores = on_lanes(done, "dma_queue").filter(
        (pl.col("rank") == 0) & (pl.col("name") == "store mm")
    )
    assert other["blocked_by"] == one["blocked_by"] == stores.sort("end_ns")["event_id"][-1]
    # and who reads it begins when it ends
    products = on_lanes(done, "engine").filter((pl.col("rank") == 1) & (pl.col("name") == "mm"))
    assert products["start_ns"].min() > one["end_ns"]


def test_operations_of_both_have_the_same_place_in_their_group(tmp_path: Path) -> None:
    exchange = [mm(X, Y), send(Y, 0, 1), receive(Z, 1, 0)]
    answer = [receive(X, 0, 1), mm(X, Y), send(Y, 1, 0)]
    done = emulated(tmp_path / "t", together(exchange, answer))
    ops = done.trace.ops.filter(pl.col("kind") == "collective").collect()
    assert done.trace.groups.select("name", "ranks").rows() == [
        ("pp 0>1", [0, 1]),
        ("pp 1>0", [1, 0]),
    ]
    assert sorted(ops.select("group_id", "group_seq").rows()) == [(0, 0)] * 2 + [(1, 0)] * 2
    links = on_lanes(done, "link")
    assert links["op_id"].n_unique() == 2  # a message is on links once


def test_flows_join_the_ranks(tmp_path: Path) -> None:
    programs = together([mm(X, Y), send(Y, 0, 1)], [receive(X, 0, 1), mm(X, Y)])
    for edges in ("all", "binding"):
        done = emulated(tmp_path / edges, programs, edges=edges)
        received = on_lanes(done, "collective_stream").filter(pl.col("rank") == 1)
        into = done.trace.flows.filter(pl.col("target_event") == received["event_id"][0]).collect()
        assert received["blocked_by"][0] in into["source_event"].to_list()
        assert into["kind"].cast(pl.String).unique().to_list() == ["collective"]


def test_all_start_when_the_last_has_come(tmp_path: Path) -> None:
    """A sum over three stages, of which the second has most to do before."""
    shared = collective("all_reduce", X.nbytes, [Z], [Z])
    work = [[], [mm(X, Y), mm(Y, Z)], [mm(X, Z)]]
    done = emulated(
        tmp_path / "t", together(*([*before, shared, mm(X, Y)] for before in work), ranks=2)
    )
    events = on_lanes(done, "collective_stream").sort("rank")
    assert events["rank"].to_list() == [0, 2, 4]
    assert events["start_ns"].n_unique() == events["end_ns"].n_unique() == 1
    assert events["wait_reason"].to_list()[::2] == ["peer", "peer"]
    late = on_lanes(done, "dma_queue").filter(pl.col("event_id") == events["blocked_by"][0])
    assert late["rank"].to_list() == [2]
    # nobody waits but who reads it
    products = on_lanes(done, "engine").filter((pl.col("rank") == 0) & (pl.col("name") == "mm"))
    assert products["start_ns"].min() < events["start_ns"][0]


@pytest.mark.parametrize("sends_first", [True, False])
def test_exchanges_posted_together_do_not_wait_for_each_other(
    tmp_path: Path, sends_first: bool
) -> None:
    def both(own: int, other: int) -> list[Operation]:
        pair = [send(X, own, other), receive(Y, other, own)]
        return pair if sends_first else pair[::-1]

    done = emulated(tmp_path / "t", together(both(0, 1), both(1, 0)[::-1]))
    events = on_lanes(done, "collective_stream")
    assert len(events) == 4
    assert events["start_ns"].max() == 0


# ---- what does not fit together


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        (
            ([mm(X, Y), send(Y, 0, 1)], [mm(X, Y)]),
            r"send_recv of rank 0 \(c10d::send, step 0, pipe.py:3\).*nothing from rank 1 matches",
        ),
        (
            ([send(X, 0, 1)], [receive(X, 0, 1), receive(Y, 0, 1)]),
            r"send_recv of rank 1 \(c10d::recv_, step 0, pipe.py:9\), the collective no. 2.*nothing from rank 0 matches",
        ),
        (
            ([send(X, 0, 1)], [receive(ref(9, 7), 0, 1)]),
            r"is of 16,777,216 bytes, send_recv of rank 1 .* of 28",
        ),
        (
            ([collective("all_reduce", 8, [X], [X])], [collective("all_gather", 8, [X], [X])]),
            r"all_reduce of rank 0 .* meets all_gather of rank 1",
        ),
        (
            (
                [receive(X, 1, 0), mm(X, Y), send(Y, 0, 1)],
                [receive(X, 0, 1), mm(X, Y), send(Y, 1, 0)],
            ),
            r"ranks wait for each other, none can go on: send_recv of rank 0 \(c10d::recv_, step 0, pipe.py:9\); send_recv of rank 1 ",
        ),
    ],
    ids=["nobody receives", "nobody sends", "other bytes", "another collective", "each waits"],
)
def test_programs_that_do_not_fit_are_refused(
    tmp_path: Path, programs: tuple[list[Operation], ...], message: str
) -> None:
    with pytest.raises(CaptureError, match=message) as error:
        emulated(tmp_path / "t", together(*programs))
    assert "\n" not in str(error.value)


# ---- other parallelism within stages


def test_stages_do_not_wait_for_each_others_groups(tmp_path: Path) -> None:
    """Pairs of ranks on a ring of four chips, two of each stage, all named as siblings: each stage's sums are its own."""
    pairs = ((0, 1), (2, 3))
    large = collective("all_reduce", 400_000_000, [X], [Y])
    programs = []
    for own in pairs:
        groups = (ProcessGroup("tp", own, pairs),)
        made = program([large, large])
        programs.append(replace(made, groups=groups, world=World(4, own[0], own)))
    done = emulated(tmp_path / "t", replace(programs[0], others=(programs[1],)))
    assert done.trace.validate() == []
    events = on_lanes(done, "collective_stream").sort("rank", "start_ns")
    assert events["rank"].to_list() == [0, 0, 2, 2]
    assert events["start_ns"][0] == events["start_ns"][2] == 0
    assert events["end_ns"][1] == events["end_ns"][3] == done.outcome.device_ns
    costs = CollectiveCosts(ULTRA.machine, tuple(range(64)))
    call = large.collective
    assert call is not None
    alone = costs.cost(call, ((0, 1),)).duration_ps / 1000
    assert events["duration_ns"].to_list() == pytest.approx([alone] * 4, abs=1)


def test_groups_that_share_links_take_turns(tmp_path: Path) -> None:
    """Chips 0 and 2 of a ring of four reach each other over 1 or 3, as those two do over 2 or 0."""
    programs = []
    for own in ((0, 2), (1, 3)):
        made = program([collective("all_gather", 400_000_000, [X], [Y])])
        groups = (ProcessGroup("tp", own, (own,)),)
        programs.append(replace(made, groups=groups, world=World(4, own[0], own)))
    done = emulated(tmp_path / "t", replace(programs[0], others=(programs[1],)))
    assert done.trace.validate() == []
    first, second = on_lanes(done, "collective_stream").sort("start_ns").iter_rows(named=True)
    assert second["wait_reason"] == "link"
    assert second["blocked_by"] == first["event_id"]
    busy = on_lanes(done, "link").filter(pl.col("start_ns") == first["start_ns"])
    assert second["start_ns"] == busy["end_ns"].max()


def test_memory_is_each_stages_own(tmp_path: Path) -> None:
    small, large = ref(1, 1000), ref(1, 2_000_000)
    programs = together([op("relu_", [small], [small])], [op("relu_", [large], [large])])
    huge = ref(7, 60_000, 60_000, role="parameter")
    late = replace(programs.others[0], resident=(huge,))
    done = emulated(tmp_path / "t", replace(programs, others=(late,)))
    classes = done.outcome.details["rank_classes"]
    assert [c["hbm_peak_bytes"] for c in classes] == [4000, huge.nbytes + large.nbytes]
    note, *more = done.outcome.details["notes"]
    assert [text.split(":")[0] for text in more] == [
        "largest at the peak of rank 1",
        "to make it fit",
    ]
    assert note.startswith("does not fit: HBM of rank 1 peaks at 14.4")
    counters = done.trace.counters.collect().join(
        done.trace.tracks.select("track_id", "rank"), on="track_id"
    )
    peaks = counters.group_by("rank").agg(pl.col("value").max()).sort("rank")
    assert peaks.rows() == [(0, 4000.0), (1, float(huge.nbytes + large.nbytes))]
