"""Execution traces of ranks that do different things: stages of a pipeline, alone and as replicas, and what does not fit together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.emulator.chakra.written import ALL_REDUCE, COLL, COMP, RECV, SEND, node, write
from tests.emulator.ranks.pipelines import pipeline
from tests.emulator.ranks.worlds import Run, run

from trnprof.emulator.capture.chakra.export import export_chakra
from trnprof.emulator.capture.chakra.workload import read_workload
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import CaptureError

TRN2 = load_system("trn2-ultra")
SUM = {"comm_type": ALL_REDUCE, "comm_size": 2**20, "is_cpu_op": False}
STAGES, BATCHES, WORK_US = 4, 5, 400


def read(folder: Path, ranks: Sequence[Sequence[Any]], groups: Mapping[str, Any] = {}) -> Workload:
    files = [write(folder / f"w.{rank}.et", nodes) for rank, nodes in enumerate(ranks)]
    if groups:
        (folder / "groups.json").write_text(json.dumps(groups))
        files.append(folder / "groups.json")
    return read_workload(files)


def stage(number: int, replicas: int = 1, own: int = 0) -> list[Any]:
    """Each batch is received, worked on and sent on; no work waits for a message to be sent. Replicas add up what they have in the end."""
    rank, nodes, last = number * replicas + own, [], []
    for batch in range(BATCHES):
        first = 10 * batch
        size = {"comm_size": 2**20, "comm_tag": batch, "is_cpu_op": False}
        source, target = rank - replicas, rank + replicas
        if number:
            nodes.append(node(first, RECV, comm_src=source, comm_dst=rank, **size))
            last = [*last, first]
        nodes.append(node(first + 1, COMP, data=last, duration=WORK_US, is_cpu_op=False))
        last = [first + 1]
        if number < STAGES - 1:
            nodes.append(node(first + 2, SEND, data=last, comm_src=rank, comm_dst=target, **size))
    if replicas > 1:
        nodes.append(node(10 * BATCHES, COLL, data=last, pg_name=str(number + 1), **SUM))
    return nodes


def messages(done: Run) -> pl.DataFrame:
    """Events of sends and receives, as each rank has them."""
    streams = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "collective_stream")
    return done.events.filter(pl.col("track_id").is_in(streams["track_id"].implode()))


def test_a_pipeline_takes_as_long_as_by_hand(tmp_path: Path) -> None:
    """The first batch passes all stages and messages, the others follow one by one."""
    workload = read(tmp_path, [stage(i) for i in range(STAGES)])
    assert [p.world.members for p in (workload, *workload.others)] == [(0,), (1,), (2,), (3,)]
    done = run(tmp_path / "run", workload, TRN2, placement="spread", lnc=1)
    assert done.trace.validate() == []
    sent = messages(done)
    (message_ns,) = sent["duration_ns"].unique()
    assert message_ns < 1000 * WORK_US
    work_ns = 1000 * WORK_US
    assert done.outcome.device_ns == pytest.approx(
        (STAGES - 1) * (work_ns + message_ns) + BATCHES * work_ns, abs=STAGES
    )


def test_replicas_of_a_stage_are_one_program(tmp_path: Path) -> None:
    """Middle stages have equal nodes; whom they send to tells them apart."""
    ranks = [stage(i, 2, own) for i in range(STAGES) for own in range(2)]
    groups = {str(i + 1): [2 * i, 2 * i + 1] for i in range(STAGES)}
    workload = read(tmp_path, ranks, groups)
    programs = (workload, *workload.others)
    assert [p.world.members for p in programs] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    folded = run(tmp_path / "folded", workload, TRN2)
    each = run(tmp_path / "each", workload, TRN2, fold=False)
    assert folded.outcome.device_ns == each.outcome.device_ns
    assert len(folded.outcome.details["rank_classes"]) == STAGES
    assert len(each.outcome.details["rank_classes"]) == 2 * STAGES


def test_one_that_sends_to_several_equal_ones(tmp_path: Path) -> None:
    """Ranks 1 and 2 get one message each, from one rank: they cannot be one program."""
    size = {"comm_size": 2**20, "is_cpu_op": False}
    first = [
        node(1, SEND, comm_src=0, comm_dst=1, comm_tag=7, **size),
        node(2, SEND, data=[1], comm_src=0, comm_dst=2, comm_tag=7, **size),
    ]
    others = [[node(1, RECV, comm_src=0, comm_dst=r, comm_tag=7, **size)] for r in (1, 2)]
    workload = read(tmp_path, [first, *others])
    assert [p.world.members for p in (workload, *workload.others)] == [(0,), (1,), (2,)]
    done = run(tmp_path / "run", workload, TRN2, placement="spread", lnc=1)
    assert len(messages(done)) == 4  # two messages, each at both ends


def test_tags_tell_messages_apart(tmp_path: Path) -> None:
    """The second to be sent is received first; as the sender waits between them, so does the receiver."""
    small, large = (
        {"comm_size": n, "is_cpu_op": False, "comm_src": 0, "comm_dst": 1} for n in (8, 2**20)
    )
    one = [
        node(1, SEND, comm_tag=1, **small),
        node(2, COMP, data=[1], duration=WORK_US, is_cpu_op=False),
        node(3, SEND, data=[2], comm_tag=2, **large),
    ]
    two = [node(1, RECV, comm_tag=2, **large), node(2, RECV, comm_tag=1, **small)]
    done = run(tmp_path / "run", read(tmp_path, [one, two]), TRN2, placement="spread", lnc=1)
    assert done.trace.validate() == []
    assert done.outcome.device_ns > 1000 * WORK_US


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_recorded_pipeline_there_and_back(tmp_path: Path, schedule: str) -> None:
    """Each rank's file has its own stage; the messages of both directions find each other again."""
    recorded = pipeline(schedule, STAGES, BATCHES, copies=2)
    summary = export_chakra(recorded, tmp_path / "traces", force=False)
    assert summary.ranks == 2 * STAGES
    workload = read_workload(sorted((tmp_path / "traces").iterdir()))
    programs = (workload, *workload.others)
    assert [p.world.members for p in programs] == [
        p.world.members for p in (recorded, *recorded.others)
    ]
    for program, original in zip(programs, (recorded, *recorded.others), strict=True):
        asked = [
            [op.collective for op in p.operations if op.collective] for p in (program, original)
        ]
        assert len(asked[0]) == len(asked[1]) > 0
        assert {call.nbytes for call in asked[0]} == {call.nbytes for call in asked[1]}
    folded = run(tmp_path / "folded", workload, TRN2)
    each = run(tmp_path / "each", workload, TRN2, fold=False)
    assert folded.outcome.device_ns == each.outcome.device_ns
    compute = folded.events.filter(pl.col("name").cast(pl.String) == "mm")
    assert folded.outcome.device_ns > compute["duration_ns"].sum() / STAGES / 2  # LNC 2


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ([node(1, COLL, comm_type=ALL_REDUCE, comm_size=8)], "is of 1,048,576 bytes, "),
        ([node(1, COMP, tensor_size=1)], "nothing from rank 1 matches it"),
        ([node(1, COLL, **{**SUM, "comm_type": 2})], "not the same"),
        ([node(1, SEND, comm_src=1, comm_dst=0, comm_size=8)], "nothing from rank"),
    ],
)
def test_what_does_not_fit_together_is_told(tmp_path: Path, second: list[Any], says: str) -> None:
    workload = read(tmp_path, [[node(1, COLL, **SUM)], second])
    with pytest.raises(CaptureError) as error:
        run(tmp_path / "run", workload, TRN2)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
