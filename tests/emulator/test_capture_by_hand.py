"""Collectives called by hand, sends and their receives, launchers' command lines, siblings of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.emulator.distributed import calls, played
from tests.emulator.programs import op, ref

from trnprof.emulator.capture.messages import pair_messages
from trnprof.emulator.capture.torchrun import rank_command
from trnprof.emulator.ranks.traffic import traffic_of
from trnprof.emulator.workload import CollectiveCall, Operation
from trnprof.tracer.errors import CaptureError

RANKS, ROW = 4, 16 * 4
"""Bytes of a row in scripts/hand.py, whose tensor has 8."""


def test_collectives_by_hand_have_the_bytes_of_their_definition() -> None:
    pytest.importorskip("torch")
    workload = played(RANKS, "hand.py")
    x = 8 * ROW
    found = [(call.kind, call.nbytes) for call in calls(workload, 0)]
    assert found == [
        ("all_reduce", x),
        ("all_reduce", x),
        ("broadcast", x),
        ("broadcast", x),  # a reduce
        ("all_gather", RANKS * x),
        ("all_gather", RANKS * x),
        ("reduce_scatter", RANKS * x),
        ("all_to_all", RANKS * x),
        ("all_to_all", 6 * ROW),
        ("permute", x),  # a send and a receive
        ("all_reduce", 16 * ROW),
        ("barrier", 0),
    ]
    uneven, exchange, pair = calls(workload, 0)[8:11]
    assert uneven.sent_bytes == (ROW, 2 * ROW, ROW, 2 * ROW)
    assert (exchange.root, exchange.target) == (0, 1)
    assert workload.groups[pair.group].ranks == (0, 1)
    names = [o.name for o in workload.operations]
    names = [o.name for o in workload.operations if not o.is_view]
    product = names.index("mm", names.index("c10d::allreduce_"))
    assert (
        names[product - 1] == "c10d::allreduce_"
    )  # issued before the product, waited for after it


def message(sends: bool, tensor: int, nbytes: int = 64, freed: tuple[int, ...] = ()) -> Operation:
    refs = [ref(tensor, nbytes // 4)]
    made = op(
        "c10d::send" if sends else "c10d::recv_", refs if sends else [], [] if sends else refs
    )
    root, target = (0, 1) if sends else (3, 0)
    call = CollectiveCall("send_recv", 0, nbytes, root, target)
    return replace(made, collective=call, freed=freed)


@pytest.mark.parametrize("sends_first", [True, False])
def test_a_send_and_its_receive_are_one_message_at_the_later_call(sends_first: bool) -> None:
    operations = [message(sends_first, 1), op("mm", [], []), message(not sends_first, 2)]
    (earlier, between, later), unpaired = pair_messages(operations)
    assert unpaired == 0
    assert between == operations[1]
    assert (earlier.collective, earlier.is_view, earlier.outputs) == (None, True, ())
    sent, received = (1, 2) if sends_first else (2, 1)
    assert [r.tensor for r in later.inputs] == [sent]
    assert [r.tensor for r in later.outputs] == [received]
    assert later.collective == CollectiveCall("permute", 0, 64, 0, 1)


def test_messages_of_other_sizes_are_no_pair_and_a_freed_tensor_is_not_read() -> None:
    assert pair_messages([message(True, 1), message(False, 2, 128)])[1] == 2
    (_, later), unpaired = pair_messages([message(True, 1), message(False, 2, freed=(1,))])
    assert (unpaired, later.inputs) == (0, ())


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_a_permute_goes_as_far_from_every_rank(shift: int) -> None:
    call = CollectiveCall("permute", 0, 100, root=2, target=(2 + shift) % 8)
    phases, exchanges = traffic_of(call, [range(8)], list(range(8)))
    assert not phases
    assert {e.chips for e in exchanges} == {(r, (r + shift) % 8) for r in range(8)}


@pytest.mark.parametrize(
    ("line", "world", "command", "sizes"),
    [
        ("python train.py --lr 1", None, "python train.py --lr 1", None),
        ("python train.py", 8, "python train.py", (8, 8)),
        (
            "python -m torch.distributed.run --nproc-per-node=4 --nnodes 2 -m pkg --x 1",
            None,
            "python -m pkg --x 1",
            (8, 4),
        ),
        (
            "python -u -m torch.distributed.launch --nproc_per_node 2 train.py --y",
            None,
            "python -u train.py --local-rank=0 --y",
            (2, 2),
        ),
        (
            "python -m torch.distributed.run --nproc-per-node auto --nnodes 1:4 --rdzv_endpoint=h:1 t.py",
            16,
            "python t.py",
            (16, 16),
        ),
    ],
)
def test_the_command_of_rank_0(
    line: str, world: int | None, command: str, sizes: tuple[int, int] | None
) -> None:
    rank = rank_command(line.split(), world)
    assert rank.command == tuple(command.split())
    if sizes is None:
        assert rank.environment() == {}
        return
    environment = rank.environment()
    assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == tuple(map(str, sizes))
    assert (environment["RANK"], environment["LOCAL_RANK"]) == ("0", "0")


def test_launchers_that_leave_the_number_open() -> None:
    with pytest.raises(CaptureError, match="--nproc-per-node auto: give a number"):
        rank_command("python -m torch.distributed.run --nproc-per-node auto t.py".split())
    with pytest.raises(CaptureError, match="the launcher starts 4 x 2 ranks"):
        rank_command(
            "python -m torch.distributed.run --nproc-per-node 4 --nnodes 2 t.py".split(), 16
        )
