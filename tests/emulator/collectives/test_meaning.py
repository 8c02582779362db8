"""Every algorithm does what its collective says, whichever messages are fast, with the closed form's bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.collectives.moving import (
    Sums,
    all_to_all_leaves,
    instances,
    made_up,
    planned,
    whole,
)

from trnprof.emulator.collectives.algorithms.volume import volume_bytes
from trnprof.emulator.collectives.group import Group, make_group
from trnprof.emulator.collectives.messages import Messages

GRIDS = (
    "ring:2",
    "ring:3",
    "ring:8",
    "switch:7",
    "ring:2,ring:2",
    "ring:4,ring:3",
    "ring:3,ring:2,ring:4",
    "mesh:2,switch:5",
)
PER_DIMENSION = ("ring", "direct", "halving-doubling")
REDUCING = ("reduce_scatter", "all_gather", "all_reduce")


def check_sums(collective: str, messages: Messages, ranks: int, seed: int) -> None:
    sums = Sums(messages, ranks)
    if collective == "all_gather":
        sums.owners_have_their_own()
    else:
        sums.everybody_has_all()
    sums.run(seed)
    for part, owners in zip(sums.has, sums.owners, strict=True):
        for segment, owner in enumerate(owners):
            if collective == "all_gather":
                assert (part[:, segment] == np.eye(ranks)[owner]).all()
            elif collective == "all_reduce":
                assert (part[:, segment] == 1).all()
            else:
                assert (part[owner, segment] == 1).all()


def check_order(messages: Messages) -> None:
    dependent = np.repeat(np.arange(len(messages)), np.diff(messages.dependency_offsets))
    assert (messages.dependencies < dependent).all()
    assert (messages.step[messages.dependencies] < messages.step[dependent]).all()
    assert (np.diff(messages.step) >= 0).all()
    assert (messages.source != messages.target).all()
    assert sorted(set(messages.step.tolist())) == list(range(messages.steps))


def able(algorithm: str, group: Group) -> bool:
    return algorithm != "halving-doubling" or all(size in (2, 4, 8, 16) for size in group.sizes)


@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize(
    "algorithm", ["ring", "direct", "halving-doubling", "all-pairs", "multi-ring", "kangaring"]
)
def test_reductions_on_grids(collective: str, algorithm: str) -> None:
    for spec in GRIDS:
        group = whole(spec)
        if able(algorithm, group):
            ranks = len(group)
            messages = planned(collective, algorithm, group, 1008 * ranks)
            check_order(messages)
            for seed in range(3):
                check_sums(collective, messages, ranks, seed)
            expected = (2 if collective == "all_reduce" else 1) * (ranks - 1) * 1008 * ranks
            if algorithm not in ("multi-ring", "kangaring"):
                assert messages.bytes.sum() == expected
            else:
                assert expected <= messages.bytes.sum() < expected + 12 * 2 * ranks * ranks
            assert volume_bytes(collective, [algorithm], group, 1008 * ranks) == expected


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8, 13, 16, 21])
def test_a_tree_reduces_and_broadcasts(ranks: int) -> None:
    group = whole(f"switch:{ranks}")
    messages = planned("all_reduce", "tree", group, 1001)
    check_order(messages)
    check_sums("all_reduce", messages, ranks, seed=ranks)
    assert messages.bytes.sum() == 2 * (ranks - 1) * 1001
    assert messages.steps <= 2 * ranks.bit_length()
    assert np.bincount(messages.source, messages.bytes).max() <= 2 * 1001 * 2


@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.data(),
    st.integers(1, 10_000),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_mixture_of_algorithms(
    sizes: list[int], data: st.DataObject, bytes: int, seed: int
) -> None:
    names = [
        data.draw(st.sampled_from(PER_DIMENSION[: 3 if size in (2, 4) else 2])) for size in sizes
    ]
    collective = data.draw(st.sampled_from(REDUCING))
    group = whole(",".join(f"ring:{size}" for size in sizes))
    ranks = len(group)
    messages = planned(collective, names, group, bytes)
    check_order(messages)
    check_sums(collective, messages, ranks, seed)
    times = 2 if collective == "all_reduce" else 1
    assert messages.bytes.sum() == times * ranks * (ranks - 1) * -(-bytes // ranks)
    assert volume_bytes(collective, names, group, bytes) == messages.bytes.sum()


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_ranks_of_a_machine(data: st.DataObject) -> None:
    topology = made_up("torus:4x4")
    ranks = data.draw(st.lists(st.integers(0, 15), min_size=2, max_size=12, unique=True))
    group = make_group(topology, ranks)
    algorithm = data.draw(
        st.sampled_from(["ring", "direct", "multi-ring", "kangaring", "all-pairs"])
    )
    messages = planned("all_reduce", algorithm, group, data.draw(st.integers(1, 99_999)))
    check_order(messages)
    check_sums("all_reduce", messages, len(ranks), seed=0)


@pytest.mark.parametrize("algorithm", ["ring", "direct", "tree", "all-pairs"])
def test_a_broadcast_reaches_all(algorithm: str) -> None:
    for spec in GRIDS:
        group = whole(spec)
        for root in (0, len(group) // 2, len(group) - 1):
            messages = planned("broadcast", algorithm, group, 777, root)
            check_order(messages)
            sums = Sums(messages, len(group))
            sums.root_has(root)
            sums.run(seed=root)
            assert (sums.has[0][:, 0] == np.eye(len(group))[root]).all()
            assert len(messages) == len(group) - 1
            assert (messages.bytes == 777).all()
            assert volume_bytes("broadcast", [algorithm], group, 777) == messages.bytes.sum()


@pytest.mark.parametrize("algorithm", ["ring", "direct", "all-pairs"])
def test_an_all_to_all_transposes(algorithm: str) -> None:
    for spec in GRIDS:
        group = whole(spec)
        ranks = len(group)
        messages = planned("all_to_all", algorithm, group, 64 * ranks)
        check_order(messages)
        has = all_to_all_leaves(messages, ranks, 64)
        # rank r has, from every origin, what is for r, and nothing else
        assert (has == np.eye(ranks, dtype=bool)[:, None, :]).all()
        sizes = (ranks,) if algorithm == "all-pairs" else group.sizes
        full = 64 * ranks * ranks
        expected = sum(
            full * (size - 1) // 2 if algorithm == "ring" else full // size * (size - 1)
            for size in sizes
        )
        assert messages.bytes.sum() == expected
        assert volume_bytes("all_to_all", [algorithm], group, 64 * ranks) == expected
        if algorithm == "ring":
            assert messages.steps == sum(size * (size - 1) // 2 for size in sizes)


@pytest.mark.parametrize("bytes", [600_000, 10_000_000, 80_000_000])
@pytest.mark.parametrize(
    ("spec", "count"),
    [("ring:3,ring:2", 3), ("torus:2x4", 2), ("switch:4", 4), ("ring:3", 17), ("switch:2", 22)],
)
def test_hierarchical_on_whole_instances(spec: str, count: int, bytes: int) -> None:
    topology = instances(spec, count)
    group = make_group(topology, range(topology.chips))
    for collective in REDUCING:
        messages = planned(collective, "hierarchical", group, bytes)
        check_order(messages)
        check_sums(collective, messages, len(group), seed=1)
        crosses = group.instances[messages.source] != group.instances[messages.target]
        times = 2 if collective == "all_reduce" else 1
        least = times * (count - 1) * bytes
        assert least <= messages.bytes[crosses].sum() < least + 16 * len(group) ** 2
        assert volume_bytes(collective, ["hierarchical"], group, bytes) == pytest.approx(
            messages.bytes.sum(), rel=1e-3
        )
    messages = planned("all_to_all", "hierarchical", group, 64 * len(group))
    has = all_to_all_leaves(messages, len(group), 64)
    assert (has == np.eye(len(group), dtype=bool)[:, None, :]).all()
    messages = planned("broadcast", "hierarchical", group, bytes, root=len(group) - 1)
    check_order(messages)
    sums = Sums(messages, len(group))
    sums.root_has(len(group) - 1)
    sums.run(seed=3)
    assert (sums.has[0][:, 0, len(group) - 1] == 1).all()
    crosses = group.instances[messages.source] != group.instances[messages.target]
    assert crosses.sum() == count - 1


def test_hierarchical_on_a_flat_group() -> None:
    topology = instances("ring:6", 3)
    group = make_group(topology, [12, 13, 0, 5, 7, 9, 17, 1, 6])
    assert group.sizes == (9,)
    for collective in REDUCING:
        messages = planned(collective, "hierarchical", group, 90_000)
        check_sums(collective, messages, 9, seed=2)
        crosses = group.instances[messages.source] != group.instances[messages.target]
        assert messages.bytes[crosses].sum() == 2 * 90_000 * (
            2 if collective == "all_reduce" else 1
        )
    one_each = make_group(topology, [0, 6, 12])
    check_sums("all_reduce", planned("all_reduce", "hierarchical", one_each, 300), 3, seed=0)


def test_a_missing_dependency_is_seen() -> None:
    """The checks are worth something: without the last dependency of each message, sums go wrong."""
    group = whole("ring:4,ring:4")
    sound = planned("all_reduce", "ring", group, 16_000)
    keep = np.diff(sound.dependency_offsets) - (np.diff(sound.dependency_offsets) > 1)
    starts = np.repeat(sound.dependency_offsets[:-1] - (np.cumsum(keep) - keep), keep)
    broken = Messages(
        sound.source,
        sound.target,
        sound.bytes,
        sound.step,
        sound.is_reduced,
        np.concatenate([[0], np.cumsum(keep)]),
        sound.dependencies[np.arange(keep.sum()) + starts],
        sound.blocks,
    )
    failures = 0
    for seed in range(10):
        try:
            check_sums("all_reduce", broken, 16, seed)
        except AssertionError:
            failures += 1
    assert failures > 0
