"""AWS's sizes choose, and say why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.emulator.collectives.moving import instances, whole

from trnprof.emulator.collectives.algorithms.policy import choose
from trnprof.emulator.collectives.algorithms.register import plan
from trnprof.emulator.collectives.group import Group, make_group
from trnprof.emulator.collectives.messages import COLLECTIVES
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.machine import Machine, load_machine

TRN2, H100 = load_machine("trn2"), load_machine("h100-hgx")
TRN4, GB200 = load_machine("trn4"), load_machine("gb200-nvl72")
CHIPS = make_group(TRN2.topology, range(16))
SCALED = TRN2.scaled(2)


@pytest.mark.parametrize(
    ("collective", "bytes", "ranks", "algorithm", "because"),
    [
        ("all_reduce", 999_999, range(16), "direct", "below 1 MB"),
        ("broadcast", 999_999, range(4), "direct", "below 1 MB"),
        ("all_reduce", 1_000_000, range(16), "halving-doubling", "1 MB to 56 MB"),
        ("reduce_scatter", 55_999_999, range(16), "halving-doubling", "1 MB to 56 MB"),
        ("all_gather", 56_000_000, range(16), "kangaring", "56 MB or more"),
        ("all_gather", 2_000_000, range(6), "kangaring", "no power of two"),
        ("all_gather", 60_000_000, range(3), "kangaring", "56 MB or more"),
        ("all_to_all", 999_999, range(16), "direct", "below 1 MB"),
        ("all_to_all", 60_000_000, range(16), "all-pairs", "every other"),
        ("broadcast", 60_000_000, range(16), "ring", "chain"),
        ("permute", 1, range(16), "direct", "rank to rank"),
        ("barrier", 1, range(16), "dissemination", "only"),
    ],
)
def test_sizes(collective: str, bytes: int, ranks: range, algorithm: str, because: str) -> None:
    names, reason = choose(collective, bytes, make_group(TRN2.topology, ranks), TRN2)
    assert names == (algorithm,)
    assert because in reason


@pytest.mark.parametrize(
    ("ranks", "algorithm"),
    [
        (range(32), "hierarchical"),
        ([0, 1, 2, 16, 17, 18], "hierarchical"),
        ([0, 16], "halving-doubling"),  # one rank an instance: over the network alone
        ([0, 1, 2, 16], "multi-ring"),
    ],
)
def test_several_instances(ranks: list[int], algorithm: str) -> None:
    bytes = 60_000_000 if algorithm == "multi-ring" else 20_000_000
    group = make_group(SCALED, ranks)
    assert choose("all_reduce", bytes, group, TRN2)[0] == (algorithm,)
    assert choose("all_to_all", bytes, group, TRN2)[0][0] in ("direct", "all-pairs")


@pytest.mark.parametrize("group", [CHIPS, whole("torus:3x5"), whole("ring:3")])
@pytest.mark.parametrize("machine", [TRN2, H100, None])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_chosen_can_be_done(collective: str, machine: Machine | None, group: Group) -> None:
    for bytes in (1, 10_000_000, 100_000_000):
        names, reason = choose(collective, bytes, group, machine)
        assert reason
        assert len(plan(collective, names, group, bytes))


def test_one_switch_has_a_policy_of_its_own() -> None:
    for bytes in (1000, 10_000_000, 1 << 30):
        for ranks in (range(144), [5, 3, 77]):
            group = make_group(TRN4.topology, ranks)
            names, reason = choose("all_reduce", bytes, group, TRN4)
            assert names == ("direct",)
            assert "estimate" in reason
    over = make_group(TRN4.scaled(2), range(288))
    assert choose("all_reduce", 1 << 30, over, TRN4)[0] == ("hierarchical",)
    tray = make_group(load_machine("trn3-gen2").topology, range(4))  # a switch, but not the machine
    assert choose("all_reduce", 1 << 30, tray, load_machine("trn3-gen2"))[0] == ("kangaring",)


@pytest.mark.parametrize("machine", [TRN4, GB200])
@pytest.mark.parametrize(("ranks", "algorithm"), [(17, "ring"), (18, "tree"), (72, "tree")])
def test_a_broadcast_through_a_switch_takes_the_sooner(
    machine: Machine, ranks: int, algorithm: str
) -> None:
    """A chain of c chunks over S ranks is done in S + c - 1 times of a chunk, a tree in 2 c."""
    group = make_group(machine.topology, range(ranks))
    assert choose("broadcast", 1 << 28, group, machine)[0] == (algorithm,)


def test_what_a_switch_has_is_no_slower_than_the_ring() -> None:
    for machine, collective in ((TRN4, "all_reduce"), (TRN4, "broadcast"), (GB200, "broadcast")):
        fabric = build_fabric(machine.topology)
        for bytes in (1 << 16, 1 << 24, 1 << 28):
            asked = Request(collective, bytes, tuple(range(fabric.chips)))
            chosen, ring = (
                run_collective(
                    fabric, replace(asked, algorithms=names), machine.endpoint(), machine
                )
                for names in ((), ("ring",))
            )
            assert chosen.time_ps < ring.time_ps


def test_without_sizes_it_is_a_ring() -> None:
    for machine in (H100, None):
        names, reason = choose("all_reduce", 1 << 30, whole("switch:8"), machine)
        assert names == ("ring",)
        assert "not known" in reason
    scaled = make_group(instances("ring:4", 2), range(8))
    assert choose("all_to_all", 8, scaled, None)[0] == ("all-pairs",)


@pytest.mark.parametrize("machine", [TRN2, H100, TRN4])
def test_many_instances_take_no_step_or_message_each(machine: Machine) -> None:
    chips = machine.topology.chips
    many = make_group(machine.folded(15_625), range(chips), 15_625)
    for size in (1000, 10**7, 10**9):
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            names, reason = choose(collective, size, many, machine)
            assert names == ("hierarchical",)
            assert "14 circulant steps" in reason
            messages = plan(collective, names, many, size)
            assert messages.whole_target is not None
            between = messages.step[messages.whole_target >= chips]
            assert len(set(between.tolist())) == (28 if collective == "all_reduce" else 14)
    few = make_group(machine.scaled(16), range(16 * chips))
    assert "circulant" not in choose("all_reduce", 10**7, few, machine)[1]
