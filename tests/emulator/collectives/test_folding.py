"""One instance that stands for all takes exactly as long as all of them, and its links are as busy as theirs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator.collectives.algorithms.circulant import skips
from trnprof.emulator.collectives.algorithms.names import HIERARCHICAL
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.request import CHUNKED, CLOSED_FORM, FLUID, Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.names import link_name
from trnprof.emulator.machine import Machine, load_machine
from trnprof.tracer.errors import CollectiveError, FabricError

machine = lru_cache(load_machine)


@lru_cache
def fabric(system: str, instances: int, *, is_folded: bool) -> Fabric:
    one: Machine = machine(system)
    return build_fabric(one.folded(instances) if is_folded else one.scaled(instances))


def both(
    system: str,
    instances: int,
    collective: str,
    size: int,
    algorithms: tuple[str, ...] = (),
    fidelity: str = CHUNKED,
    ranks: Sequence[int] | None = None,
    chunks: int | None = None,
) -> tuple[Outcome, Outcome]:
    """Of all instances, and of one for all."""
    one = machine(system)
    chips = one.topology.chips
    here = tuple(range(chips)) if ranks is None else tuple(ranks)
    everywhere = tuple(i * chips + rank for i in range(instances) for rank in here)
    return (
        run_collective(
            fabric(system, instances, is_folded=False),
            Request(collective, size, everywhere, algorithms, fidelity, chunks),
            one.endpoint(),
            one,
        ),
        run_collective(
            fabric(system, instances, is_folded=True),
            Request(collective, size, here, algorithms, fidelity, chunks, replicas=instances),
            one.endpoint(),
            one,
        ),
    )


def check_equal(whole: Outcome, folded: Outcome) -> None:
    assert (folded.time_ps, folded.algorithms) == (whole.time_ps, whole.algorithms)
    assert folded.chosen_because == whole.chosen_because
    instances, here = folded.request.replicas, len(folded.request.ranks)
    ends = np.asarray(whole.rank_end_ps).reshape(instances, here)
    assert (ends == np.asarray(folded.rank_end_ps)).all()
    assert np.asarray(whole.link_bytes).sum() == instances * np.asarray(folded.link_bytes).sum()
    names = {link_name(whole.fabric, link): link for link in range(whole.fabric.links)}
    twins = [names[link_name(folded.fabric, link)] for link in range(folded.fabric.links)]
    assert (np.asarray(whole.link_bytes)[twins] == folded.link_bytes).all()
    assert (np.asarray(whole.link_busy_ps)[twins] == folded.link_busy_ps).all()


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "barrier")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["trn2", "trn1", "h100-hgx"]),
    st.sampled_from([2, 3, 4, 5, 8, 16]),
    st.sampled_from(COLLECTIVES),
    st.one_of(st.integers(1, 10**6), st.integers(10**6, 3 * 10**8)),
    st.sampled_from([None, 1, 3]),
)
def test_as_the_policy_has_it(
    system: str, instances: int, collective: str, size: int, chunks: int | None
) -> None:
    if collective == "all_to_all":
        instances = min(instances, 4)
    size = 0 if collective == "barrier" else size
    check_equal(*both(system, instances, collective, size, chunks=chunks))


@pytest.mark.parametrize("collective", COLLECTIVES[:3])
@pytest.mark.parametrize("size", [1000, 10_000_000, 200_000_000])
def test_many_instances(collective: str, size: int) -> None:
    for instances in (17, 23):
        check_equal(*both("trn2", instances, collective, size))


@pytest.mark.parametrize(
    ("system", "instances", "size"), [("trn2-ultra", 3, 2**24), ("trn3-gen1", 2, 2**26)]
)
def test_large_instances(system: str, instances: int, size: int) -> None:
    check_equal(*both(system, instances, "all_reduce", size))


@pytest.mark.parametrize(
    "algorithm", ["ring", "direct", "halving-doubling", "all-pairs", "hierarchical"]
)
@pytest.mark.parametrize("instances", [2, 4])
def test_by_each_algorithm_that_can(algorithm: str, instances: int) -> None:
    for collective in COLLECTIVES[:3]:
        check_equal(*both("trn2", instances, collective, 30_000_000, (algorithm,)))
    mixed = ("ring", "direct", "halving-doubling")
    check_equal(*both("trn2", instances, "all_reduce", 30_000_000, mixed))


@pytest.mark.parametrize("ranks", [[0], [5], [0, 1, 4, 5], [3, 9, 2], [0, 5, 10, 15]])
@pytest.mark.parametrize("instances", [2, 5, 18])
def test_some_ranks_of_each_instance(ranks: list[int], instances: int) -> None:
    for collective in ("all_reduce", "all_to_all", "barrier"):
        for size in (10_000, 4_000_000):
            algorithms = () if instances == 18 or len(ranks) > 1 else ("ring",)
            if collective == "barrier":
                algorithms, size = (), 0
            check_equal(*both("trn2", instances, collective, size, algorithms, ranks=ranks))


def test_other_fidelities() -> None:
    """The closed form is the same; fluid too but for twins that rounding sets apart where all are emulated."""
    for size in (500_000, 2_000_000):
        for instances in (4, 20):
            check_equal(*both("h100-hgx", instances, "all_reduce", size, fidelity=CLOSED_FORM))
    for instances in (2, 3, 4):
        for size in (10**5, 10**7, 2 * 10**8):
            whole, folded = both("trn2", instances, "all_reduce", size, fidelity=FLUID)
            assert folded.time_ps == pytest.approx(whole.time_ps, rel=1e-9)
    whole, folded = both("trn2", 8, "all_reduce", 2 * 10**8, fidelity=FLUID)
    assert folded.time_ps == pytest.approx(whole.time_ps, rel=0.02)


def test_what_is_not_folded_says_so() -> None:
    for collective, algorithm in (
        ("broadcast", "hierarchical"),
        ("send_recv", "direct"),
        ("all_reduce", "kangaring"),
        ("all_reduce", "multi-ring"),
        ("all_reduce", "tree"),
    ):
        with pytest.raises(CollectiveError, match="is not folded"):
            both("trn2", 2, collective, 1000, (algorithm,))
    with pytest.raises(FabricError, match="too many"):
        machine("trn2").folded(2**30)


def test_a_million_chips_take_the_steps_that_the_number_of_instances_has_bits() -> None:
    """ceil(log2(15,625)) = 14 steps a phase, in which a port carries its share less its own. No longer than one phase after the other."""
    one, size = machine("trn2-ultra"), 2**34
    request = Request("reduce_scatter", size, tuple(range(64)), replicas=15_625)
    outcome = run_collective(build_fabric(one.folded(15_625)), request, one.endpoint(), one)
    assert outcome.algorithms == (HIERARCHICAL,)
    assert outcome.messages is not None
    between = outcome.messages.step[outcome.messages.whole_target >= 64]
    assert len(np.unique(between)) == 14
    port = int(outcome.fabric.first_link[-2])
    share = size / 64 * (1 - 1 / 15_625)
    assert outcome.link_bytes[port] == pytest.approx(share, rel=1e-3)
    links = 2 * sum(tier.link_bytes_per_s for tier in one.topology.tiers)
    within_s, between_s = size * (1 - 1 / 64) / links, share / one.scale_out.link_bytes_per_s
    assert max(within_s, between_s) < outcome.time_ps / 1e12 < within_s + between_s


@given(st.integers(2, 10**6))
def test_circulant_steps(size: int) -> None:
    """ceil(log2(size)) of them move size - 1 blocks, each no more than there are (Träff 2024, theorem 1)."""
    found = skips(size)
    assert len(found) == (size - 1).bit_length()
    assert sum(blocks for _, blocks in found) == size - 1
    assert all(1 <= blocks <= distance for distance, blocks in found)
