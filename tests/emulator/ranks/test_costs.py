"""What collectives of many ranks cost: against a lone run, sums over ranks by hand, and formulas of the chips' own exchange."""

from __future__ import annotations

import pytest
from tests.emulator.ranks.worlds import mesh

from trnprof.emulator.collectives.request import Request
from trnprof.emulator.collectives.run import run_collective, run_many
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.ranks.costs import CollectiveCosts
from trnprof.emulator.ranks.traffic import traffic_of
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import CollectiveCall

ULTRA = load_system("trn2-ultra").machine
GEN2 = load_system("trn3-gen2").machine
ONE_A_CHIP = tuple(range(64))
EIGHT_A_CHIP = tuple(rank // 8 for rank in range(512))
FOUR_A_CHIP = tuple(rank // 4 for rank in range(256))
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"]


def call(kind: str, nbytes: int = 4_000_000, **more: object) -> CollectiveCall:
    return CollectiveCall(kind, 0, 0 if kind == "barrier" else nbytes, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [tuple(range(4)), tuple(range(64)), (0, 4, 8, 12)])
def test_one_rank_a_chip_alone_costs_what_the_collective_does(
    kind: str, ranks: tuple[int, ...]
) -> None:
    cost = CollectiveCosts(ULTRA, ONE_A_CHIP).cost(call(kind), (ranks,))
    alone = run_collective(
        build_fabric(ULTRA.topology), Request(kind, 4_000_000, ranks), ULTRA.endpoint(), ULTRA
    )
    assert cost.duration_ps == alone.time_ps
    assert cost.link_bytes.sum() == alone.link_bytes.sum()
    assert cost.algorithm == ",".join(dict.fromkeys(alone.algorithms))


def test_groups_of_other_planes_share_no_links() -> None:
    alone, *_ = mesh(16, 4)[1]
    costs = CollectiveCosts(ULTRA, ONE_A_CHIP)
    one, all_at_once = (
        costs.cost(call("all_reduce"), groups) for groups in ((alone,), tuple(mesh(16, 4)[1]))
    )
    assert all_at_once.duration_ps == one.duration_ps
    assert all_at_once.link_bytes.sum() == 16 * one.link_bytes.sum()


def test_groups_that_cross_share_links() -> None:
    """Chips 0 and 2 of a ring of 4 reach each other over 1 or 3, as those two do over 2 or 0."""
    pairs = ((0, 2), (1, 3))
    costs = CollectiveCosts(ULTRA, ONE_A_CHIP)
    large = call("all_gather", 400_000_000)
    one, both = costs.cost(large, pairs[:1]), costs.cost(large, pairs)
    together = run_many(
        build_fabric(ULTRA.topology),
        [Request("all_gather", large.nbytes, pair) for pair in pairs],
        ULTRA.endpoint(),
        ULTRA,
    )
    assert both.duration_ps == max(each.time_ps for each in together)
    assert both.duration_ps > 1.5 * one.duration_ps


@pytest.mark.parametrize(("kind", "times"), [("all_gather", 1), ("all_reduce", 2)])
def test_links_carry_the_volume_of_the_algorithm(kind: str, times: int) -> None:
    """Through one switch: each byte that a rank gets goes up one link and down another; it gets all but its own share."""
    ranks = tuple(range(16))
    cost = CollectiveCosts(GEN2, tuple(range(144))).cost(call(kind, 16_000_000), (ranks,))
    assert cost.link_bytes.sum() == 2 * times * (len(ranks) - 1) * 16_000_000


def test_ranks_of_one_chip_touch_no_link() -> None:
    endpoint, k, nbytes = ULTRA.endpoint(), 4, 8_000_000
    groups = tuple(mesh(64, 4)[1])
    cost = CollectiveCosts(ULTRA, FOUR_A_CHIP).cost(call("all_reduce", nbytes), groups)
    fixed = (k - 1) * endpoint.post_ps + endpoint.dma_start_ps + endpoint.dma_done_ps
    moved = nbytes * (k - 1)  # of k ranks, each its (k - 1) / k
    by_dma = moved / endpoint.dma_bytes_per_s
    reduced = max(by_dma, moved * (1 + endpoint.reduce_touches) / endpoint.hbm_bytes_per_s)
    gathered = max(by_dma, moved * 2 / endpoint.hbm_bytes_per_s)
    expected = endpoint.start_ps + 2 * fixed + (reduced + gathered) * 1e12
    assert cost.duration_ps == pytest.approx(expected, abs=2)
    assert len(cost.links) == 0
    assert not cost.busy_ps(CollectiveCosts(ULTRA, FOUR_A_CHIP).parts)
    assert cost.algorithm == "intra-chip"


def test_two_groups_of_a_chip_share_its_memory() -> None:
    costs = CollectiveCosts(ULTRA, EIGHT_A_CHIP)
    large = call("all_gather", 800_000_000)
    one, two = (
        costs.cost(large, groups) for groups in (((0, 1, 2, 3),), ((0, 1, 2, 3), (4, 5, 6, 7)))
    )
    fixed = costs.cost(call("all_gather", 1), ((0, 1, 2, 3),)).duration_ps
    assert two.duration_ps - fixed == pytest.approx(2 * (one.duration_ps - fixed), rel=1e-4)


def test_ranks_that_are_several_a_chip_carry_the_buffer_once() -> None:
    """4 ranks a chip: what crosses between chips is that of one rank a chip, before and after it they exchange on the chip."""
    spread = CollectiveCosts(ULTRA, ONE_A_CHIP).cost(call("all_reduce"), (tuple(range(64)),))
    packed = CollectiveCosts(ULTRA, FOUR_A_CHIP).cost(call("all_reduce"), (tuple(range(256)),))
    assert packed.link_bytes.tolist() == spread.link_bytes.tolist()
    assert packed.duration_ps > spread.duration_ps
    assert packed.algorithm.startswith("intra-chip,")


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_groups_on_the_same_chips_add_their_bytes(kind: str) -> None:
    groups = mesh(16, 4)[0]  # rank 0, 4, 8, …: one of each chip; four of them on the same 16 chips
    costs = CollectiveCosts(ULTRA, FOUR_A_CHIP)
    one, all_four = (costs.cost(call(kind), each) for each in (groups[:1], tuple(groups)))
    assert all_four.link_bytes.sum() == 4 * one.link_bytes.sum()
    assert all_four.algorithm == one.algorithm


def test_an_all_to_all_sends_what_leaves_its_chip() -> None:
    """Brute force over pairs of ranks: a block each, to whoever is elsewhere; two links a message through the switch."""
    ranks, nbytes = range(16), 16_000
    chip_of = tuple(rank // 4 for rank in range(576))
    away = sum(chip_of[a] != chip_of[b] for a in ranks for b in ranks) * nbytes // 16
    near = sum(chip_of[a] == chip_of[b] == 0 and a != b for a in ranks for b in ranks)
    groups = (tuple(ranks),)
    cost = CollectiveCosts(GEN2, chip_of).cost(call("all_to_all", nbytes), groups)
    phases, _ = traffic_of(call("all_to_all", nbytes), groups, chip_of)
    assert cost.link_bytes.sum() == 2 * away
    assert [phase.nbytes for phase in phases] == [near * nbytes // 16]


def test_a_ragged_all_to_all_sends_most_to_the_chip_of_the_favourite() -> None:
    sent = (1000, 10, 10, 10, 500, 10, 10, 10)
    chip_of = tuple(rank // 4 for rank in range(8))
    ragged = call("all_to_all", sum(sent), sent_bytes=sent)
    phases, (exchange,) = traffic_of(ragged, (tuple(range(8)),), chip_of)
    assert exchange.sent_bytes == ((0, 4 * 530), (4 * 1030, 0))
    assert [phase.nbytes for phase in phases] == [3 * 1030]


@pytest.mark.parametrize(
    ("kind", "more", "pairs", "local"),
    [
        ("permute", {}, {(0, 1): 100, (1, 0): 100}, 300),
        ("send_recv", {"root": 1, "target": 6}, {(0, 1): 100}, 0),
        ("send_recv", {"root": 1, "target": 2}, {}, 100),
        ("send_recv", {"root": 7}, {(1, 0): 100}, 0),
    ],
)
def test_pairs_of_ranks_send_between_their_chips(
    kind: str, more: dict[str, int], pairs: dict[tuple[int, int], int], local: int
) -> None:
    chip_of = tuple(rank // 4 for rank in range(8))
    phases, exchanges = traffic_of(call(kind, 100, **more), (tuple(range(8)),), chip_of)
    assert {each.chips: each.nbytes for each in exchanges} == pairs
    assert sum(phase.nbytes for phase in phases) == local


def test_a_broadcast_comes_from_the_chip_of_its_root() -> None:
    chip_of = tuple(rank // 4 for rank in range(16))
    _, (exchange,) = traffic_of(call("broadcast", root=9), (tuple(range(16)),), chip_of)
    assert exchange.chips[exchange.root] == 2


def test_a_rank_alone_pays_for_the_call() -> None:
    cost = CollectiveCosts(ULTRA, ONE_A_CHIP).cost(call("all_reduce"), ((3,),))
    assert cost.duration_ps == ULTRA.endpoint().start_ps
    assert cost.algorithm == ""


def test_a_tier_is_busy_as_long_as_its_busiest_link() -> None:
    costs = CollectiveCosts(ULTRA, ONE_A_CHIP)
    cost = costs.cost(call("all_gather"), (tuple(range(64)),))
    for tier, busy_ps in cost.busy_ps(costs.parts).items():
        own = costs.fabric.tier[cost.links] == tier
        assert busy_ps == cost.link_busy_ps[own].max() <= cost.duration_ps
    assert set(cost.busy_ps(costs.parts)) == {0, 1, 2}
