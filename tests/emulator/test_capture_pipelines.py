"""Captured pipelines: bubbles and bytes by closed form, the order of the work by hand, and real gloo processes that do and ask the same."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.emulator.distributed import played, run_real
from tests.emulator.ranks.worlds import Run, run

from trnprof.emulator.capture.peers import members
from trnprof.emulator.capture.replay import replay
from trnprof.emulator.capture.store import Row
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import CollectiveCall, Workload

pytest.importorskip("torch.distributed.pipelining")
ULTRA = load_system("trn2-ultra")
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B")
STAGES, BATCHES, ROWS, WIDTH = 3, 6, 2048, 8192
MESSAGE = ROWS * WIDTH // 16 * 2
"""Bytes of what goes from stage to stage: rows of bfloat16, a sixteenth as wide as a stage is inside, so that messages take no time."""
PRODUCTS = 6
"""Of a forward of what one rank has; a backward has twice as many."""


def pipeline() -> Workload:
    sizes = map(str, (1, BATCHES, ROWS, WIDTH))
    return played(STAGES, "pipeline.py", "nccl", "none", *sizes, *SCHEDULES)


def programs(workload: Workload) -> tuple[Workload, ...]:
    return workload, *workload.others


@cache
def emulated() -> tuple[Run, pl.DataFrame]:
    """The run, and when each of its forwards and backwards began: a row for each, in the order of the program."""
    from tempfile import mkdtemp

    done = run(Path(mkdtemp()), pipeline(), ULTRA, placement="spread", lnc=1)
    ops = done.trace.ops.filter(pl.col("name") == "mm").collect()
    ops = ops.select("op_id", phase=pl.col("phase").cast(pl.String))
    tracks = done.trace.tracks.filter(pl.col("rank").is_not_null()).select("track_id", "rank")
    products = (
        done.events.join(ops, on="op_id")
        .join(tracks, on="track_id")
        .group_by("step", "rank", "op_id", "phase")
        .agg(pl.col("start_ns").min())
        .sort("op_id")
        .with_columns(share=pl.when(pl.col("phase") == "forward").then(2).otherwise(1))
        .with_columns(
            # a rank of the interleaved schedule has two stages of half the products
            share=pl.col("share") * pl.when(pl.col("step") == 2).then(2).otherwise(1)
        )
        .with_columns(
            done=pl.col("share").cum_sum().over("step", "rank") - pl.col("share"),
            start_ns=pl.col("start_ns") - pl.col("start_ns").min().over("step"),
        )
    )
    return done, products.filter(pl.col("done") % (2 * PRODUCTS) == 0)


# ---- closed forms


@pytest.mark.parametrize(("step", "turns"), [(0, 1), (1, 1), (2, 2)], ids=SCHEDULES)
def test_the_bubble_is_that_of_the_closed_form(step: int, turns: int) -> None:
    """(p - 1) / (v m + p - 1) of the time of forward and backward, with v stages a rank; nothing of a stage runs in it."""
    done, _ = emulated()
    ops = done.trace.ops.collect().select("op_id", phase=pl.col("phase").cast(pl.String))
    tracks = done.trace.tracks.with_columns(pl.col("kind").cast(pl.String))
    engines = tracks.filter(pl.col("kind").is_in(["engine", "dma_queue"]))
    work = done.events.join(ops, on="op_id").join(engines.select("track_id", "rank"), on="track_id")
    work = work.filter((pl.col("step") == step) & (pl.col("phase") != "optimizer"))
    window = work["end_ns"].max() - work["start_ns"].min()
    expected = (STAGES - 1) / (turns * BATCHES + STAGES - 1)
    for rank in range(STAGES):
        own = work.filter(pl.col("rank") == rank).sort("start_ns")
        before = np.maximum.accumulate(own["end_ns"].to_numpy())
        gaps = np.maximum(own["start_ns"].to_numpy()[1:] - before[:-1], 0).sum()
        idle = 1 - (before[-1] - own["start_ns"][0] - gaps) / window
        assert expected - 0.005 <= idle <= expected + 0.012


def test_messages_have_the_bytes_of_the_activations() -> None:
    """There and back over each boundary, for each microbatch."""
    workload = pipeline()
    for step, turns in enumerate((1, 1, 2)):
        for rank, program in enumerate(programs(workload)):
            calls = [o.collective for o in program.operations if o.collective and o.step == step]
            assert {call.nbytes for call in calls} == {MESSAGE}
            stages = [rank + turn * STAGES for turn in range(turns)]
            neighbours = sum((s > 0) + (s < turns * STAGES - 1) for s in stages)
            sent = [call for call in calls if who(program, call)[0] == rank]
            assert len(sent) == len(calls) - len(sent) == neighbours * BATCHES


def who(program: Workload, call: CollectiveCall) -> tuple[int, int]:
    ranks = program.groups[call.group].ranks
    return ranks[call.root], ranks[call.target]


# ---- by hand

ORDERS = (
    ["FFFFFFBBBBBB"] * 3,
    ["FFFBFBFBFBBB", "FFBFBFBFBFBB", "FBFBFBFBFBFB"],
    ["FFFFFFFFBFBFBFBFBBBBBBBB", "FFFFFFBFBFBFBFBFBFBBBBBB", "FFFFBFBFBFBFBFBFBFBFBBBB"],
)
"""What each rank does, one after the other: of torch's interleaved schedule by its rule (2 (p - 1 - rank) + (v - 1) p before the first pair)."""


@pytest.mark.parametrize("step", range(3), ids=SCHEDULES)
def test_ranks_work_in_the_order_of_the_schedule(step: int) -> None:
    _, work = emulated()
    own = work.filter(pl.col("step") == step)
    for rank, order in enumerate(ORDERS[step]):
        done = own.filter(pl.col("rank") == rank).sort("start_ns")
        assert "".join(phase[0].upper() for phase in done["phase"]) == order


def test_work_begins_when_it_is_reckoned_to_begin() -> None:
    """Microbatch i on stage s: forward at s + i forwards; the first backward after all of them, or as soon as its forward is through."""
    _, work = emulated()
    unit = work.filter((pl.col("step") == 0) & (pl.col("rank") == 0))["start_ns"][1]

    def starts(step: int, rank: int, phase: str) -> list[float]:
        is_own = (pl.col("step") == step) & (pl.col("rank") == rank) & (pl.col("phase") == phase)
        return (work.filter(is_own)["start_ns"] / unit).to_list()

    last = STAGES - 1
    for stage in range(STAGES):
        forward = [stage + i for i in range(BATCHES)]
        assert starts(0, stage, "forward") == pytest.approx(forward, abs=0.1)
        ahead = STAGES - stage
        assert starts(1, stage, "forward")[:ahead] == pytest.approx(forward[:ahead], abs=0.1)
    assert starts(0, last, "backward")[0] == pytest.approx(last + BATCHES, abs=0.1)
    assert starts(1, last, "backward")[0] == pytest.approx(last + 1, abs=0.1)
    back = starts(1, last, "forward")[1] - (last + 1)  # a backward lies between the two
    for stage in range(STAGES):
        first = last + 1 + (last - stage) * back
        assert starts(1, stage, "backward")[0] == pytest.approx(first, abs=0.1)


# ---- with data parallelism, and against real processes

WAYS = ("ddp,fsdp", "2", "4", "4", "64")
"""DDP, FSDP2 and DDP again inside stages, two ranks each; four microbatches of four rows."""
WEIGHTS = 2 * 64 * 64
"""Bytes of one matrix."""


def test_ranks_of_a_stage_are_alike(tmp_path: Path) -> None:
    workload = played(4, "pipeline.py", "nccl", *WAYS, *SCHEDULES)
    worlds = [program.world for program in programs(workload)]
    assert [(w.rank, w.members, w.label) for w in worlds] == [
        (0, (0, 1), "stages 0, 2"),
        (2, (2, 3), "stages 1, 3"),
    ]
    done = run(tmp_path / "t", workload, ULTRA)
    assert done.trace.validate() == []
    cores = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "core").sort("rank", "core")
    names = [f"core {2 * r + c} (stages {'0, 2' if r < 2 else '1, 3'})" for r in range(4) for c in (0, 1)]  # fmt: skip
    assert cores["name"].to_list() == names
    told = [each["label"] for each in done.outcome.details["rank_classes"]]
    assert told == ["stages 0, 2", "stages 1, 3"]


def test_real_stages_do_and_ask_what_played_ones_do(tmp_path: Path) -> None:
    out = tmp_path / "real"
    run_real(4, "logged_pipeline.py", str(out), *WAYS, *SCHEDULES, timeout_s=200)
    for program in programs(played(4, "pipeline.py", "nccl", *WAYS, *SCHEDULES)):
        real = json.loads(Path(f"{out}.{program.world.rank}").read_text())
        assert logged(program) == real
        assert len(real) > 200


def logged(program: Workload) -> list[list[Any]]:
    """Products and messages as scripts/logged_pipeline.py writes them; it leaves out the weights that DDP hands out when it is made."""
    rows: list[list[Any]] = []
    for op in program.operations:
        call = op.collective
        if op.name == "mm":
            rows.append(["mm", list(op.outputs[0].shape)])
        elif call is not None and (call.kind != "broadcast" or call.nbytes < WEIGHTS):
            ranks = program.groups[call.group].ranks
            own = ranks.index(program.world.rank)
            peer = -1
            if call.kind == "send_recv":
                peer = call.target if call.root == own else call.root
            rows.append([op.name, call.nbytes, list(ranks), peer])
    return rows


# ---- without torch.distributed.pipelining


def test_stages_by_hand_tell_each_other_shapes_and_objects() -> None:
    """The weight that goes over before the first forward is set-up; each further batch is larger, and a step of both."""
    first, second = programs(played(2, "stages_by_hand.py", "stages"))
    for program, end in ((first, "inputs"), (second, "outputs")):
        moved = [op for op in program.operations if op.collective is not None]
        assert [op.step for op in moved] == [0, 0, 1, 1, 2, 2]
        shapes = [getattr(op, end)[0].shape for op in moved]
        assert shapes == [(2,), (4, 128), (2,), (5, 128), (2,), (6, 128)]
    assert [op.inputs[1].shape for op in second.operations if op.name == "addmm"] == [
        (4, 128),
        (5, 128),
        (6, 128),
    ]


def test_ranks_that_send_round_a_ring_are_alike() -> None:
    workload = played(3, "stages_by_hand.py", "ring")
    assert workload.others == ()
    (call,) = [op.collective for op in workload.operations if op.collective is not None]
    assert (call.kind, call.root, call.target) == ("permute", 0, 1)


def test_ranks_with_the_same_positions_do_the_same() -> None:
    """A mesh of 2 x 2 x 2 whose first and last dimension have ranks that differ, and one of which only two ranks are told."""
    first = tuple((r, r + 4) for r in range(4))
    last = tuple((r, r + 1) for r in range(0, 8, 2))
    assert members(8, [0, 4], [first]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert members(8, [0, 1, 4], [first, last]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert members(4, [0, 1], [((0, 1),)]) == [[0], [1], [2, 3]]


def test_a_pipeline_without_an_optimizer_has_a_step_for_each_run_of_its_schedule() -> None:
    """Whatever its microbatches do; what is received right before a run belongs to it."""
    receive = {"kind": "send_recv", "group": 0, "nbytes": 4, "root": 1, "target": 0}
    call = json.dumps({"collective": {**receive, "sent_bytes": []}})
    run_of = [
        Row("cut", phase="pipeline"),
        *(
            row
            for _ in range(3)
            for row in (Row("cut", phase="forward"), Row("op", "mm", "forward"))
        ),
    ]
    rows = [*run_of, Row("op", "c10d::recv_", "forward", arguments=call), *run_of, Row("end")]
    workload = replay(rows, is_torn=False)
    assert [op.step for op in workload.operations] == [0, 0, 0, 1, 1, 1, 1]
    assert [step.source for step in workload.steps] == ["forward", "forward"]
