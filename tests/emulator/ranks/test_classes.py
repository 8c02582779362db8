"""Which ranks are equal: by hand, against a search for pairs that differ, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.emulator.programs import op, ref
from tests.emulator.ranks.pipelines import pipeline
from tests.emulator.ranks.worlds import collective, group, mesh, world

from trnprof.emulator.ranks.classes import RankClass, classes_of, parted
from trnprof.emulator.ranks.costs import CollectiveCosts
from trnprof.emulator.ranks.faults import Faults
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Workload, World
from trnprof.tracer.errors import CaptureError

ULTRA = load_system("trn2-ultra").machine


def program_on(*sizes: int) -> Workload:
    """A sum over each dimension of a mesh."""
    x = ref(1, 1000)
    dimensions = mesh(*sizes)
    operations = [collective("all_reduce", 4000, [x], [x], group=i) for i in range(len(sizes))]
    groups = [group(f"d{i}", siblings) for i, siblings in enumerate(dimensions)]
    size = len(dimensions[0]) * len(dimensions[0][0])
    return world(operations, groups, size)


def found(workload: Workload, faults: Faults, **options: bool) -> tuple[RankClass, ...]:
    costs = CollectiveCosts(ULTRA, tuple(range(workload.world.size)), faults)
    return classes_of(workload, costs, **options)


def members(workload: Workload, faults: Faults) -> list[tuple[int, ...]]:
    return [each.members for each in found(workload, faults)]


def test_equal_ranks_are_one_class() -> None:
    assert members(program_on(4, 4), Faults()) == [tuple(range(16))]


def test_a_slow_rank_parts_its_row_its_column_and_the_rest() -> None:
    slow = Faults(slow_ranks={5: 0.5})
    row, column = {4, 6, 7}, {1, 9, 13}
    rest = set(range(16)) - row - column - {5}
    assert [set(m) for m in members(program_on(4, 4), slow)] == [rest, column, row, {5}]


def test_a_rank_that_is_as_fast_as_the_others_is_one_of_them() -> None:
    assert members(program_on(4, 4), Faults(slow_ranks={5: 1.0})) == [tuple(range(16))]


@pytest.mark.parametrize("faults", [Faults(slow_chips={5: 0.5}), Faults(late_ns={5: 1000})])
def test_slow_chips_and_late_ranks_part_likewise(faults: Faults) -> None:
    assert {5} in [set(m) for m in members(program_on(4, 4), faults)]


def test_ranks_in_one_group_with_a_slow_one_are_two_classes() -> None:
    assert members(program_on(8), Faults(slow_ranks={3: 0.9})) == [(0, 1, 2, 4, 5, 6, 7), (3,)]


def test_a_slower_link_parts_the_ranks_whose_group_it_slows() -> None:
    """Rows of four chips are rings along x; one link of the row of 4..7 is slow."""
    parts = members(program_on(4, 4), Faults(degraded=(("4-5", 0.1),)))
    assert (4, 5, 6, 7) in parts or {4, 5, 6, 7} == {
        r for p in parts if p[0] in range(4, 8) for r in p
    }
    assert not any({0, 4} <= set(part) for part in parts)


def test_a_class_has_the_groups_of_its_rank() -> None:
    classes = found(program_on(4, 4), Faults(slow_ranks={5: 0.5}))
    for each in classes:
        assert all(each.rank in g.ranks for g in each.program.groups)
        for g in each.program.groups:
            assert (5 in g.ranks) == (g.siblings == (g.ranks,))


def test_unfolded_every_rank_is_its_own() -> None:
    classes = found(program_on(2, 2), Faults(), fold=False)
    assert [each.members for each in classes] == [(0,), (1,), (2,), (3,)]
    assert {each.kind for each in classes} == {0}
    assert classes[3].program.groups[0].ranks == (1, 3)
    assert classes[3].program.groups[0].siblings == ((0, 2), (1, 3))


def differing(traits: list[int], groups: list[tuple[tuple[int, ...], ...]]) -> set[frozenset[int]]:
    """Pairs that something tells apart, found by crossing out until nothing changes."""
    ranks = range(len(traits))
    apart = {frozenset(p) for p in combinations(ranks, 2) if traits[p[0]] != traits[p[1]]}
    while True:
        first_equal = [min(b for b in ranks if frozenset((a, b)) not in apart) for a in ranks]
        held = [[sorted(first_equal[r] for r in g) for g in groups[a]] for a in ranks]
        more = {frozenset((a, b)) for a, b in combinations(ranks, 2) if held[a] != held[b]} | apart
        if more == apart:
            return apart
        apart = more


@given(
    shape=st.sampled_from([(6,), (2, 3), (4, 2), (2, 2, 2), (3, 4)]),
    slow=st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=4),
)
def test_parting_is_the_coarsest_that_is_stable(
    shape: tuple[int, ...], slow: dict[int, int]
) -> None:
    dimensions = mesh(*shape)
    size = len(dimensions[0]) * len(dimensions[0][0])
    traits = [slow.get(rank, 0) for rank in range(size)]
    groups = [
        tuple(next(g for g in siblings if rank in g) for siblings in dimensions)
        for rank in range(size)
    ]
    numbers = parted(traits, groups)
    pairs = {frozenset(p) for p in combinations(range(size), 2) if numbers[p[0]] != numbers[p[1]]}
    assert pairs == differing(traits, groups)


def test_stages_are_classes_and_sends_have_groups_of_two() -> None:
    first, second, third = found(pipeline("1f1b", 3, 2, copies=2), Faults())
    assert [each.members for each in (first, second, third)] == [(0, 1), (2, 3), (4, 5)]
    assert {g.name: g.ranks for g in second.program.groups} == {
        "pp 0>1": (0, 2),
        "pp 1>2": (2, 4),
        "pp 2>1": (4, 2),
        "pp 1>0": (2, 0),
    }
    assert first.program.groups[0].siblings == ((0, 2), (1, 3))


def stage(rank: int, size: int = 4, members: tuple[int, ...] = ()) -> Workload:
    x = ref(1, 8, 8)
    return replace(
        world([op("add", [x, x], [x])], [group("w", mesh(4)[0])], 4),
        world=World(size, rank, members),
    )


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ((stage(0), stage(1)), "both claim all other ranks"),
        ((stage(0), stage(1, 5, (1,))), "program 1 is of 5 ranks, program 0 of 4"),
        ((stage(0), stage(1, 4, (2, 3))), "rank 1 was captured and is none of its program's"),
        ((stage(0, 4, (0, 1)), stage(1, 4, (1, 2, 3))), "rank 1 runs two programs"),
        ((stage(0), stage(1, 4, (1, 7))), "rank 7 is not of 0..3"),
        ((stage(0, 4, (0, 1)), stage(2, 4, (2,))), "rank 3 runs no program"),
        ((stage(1), stage(1, 4, (1,))), "rank 1 was captured and runs another program"),
    ],
)
def test_programs_that_are_not_of_one_world_are_refused(
    programs: tuple[Workload, ...], message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        found(replace(programs[0], others=programs[1:]), Faults())


def test_a_rank_without_a_group_of_its_program_is_refused() -> None:
    x = ref(1, 8)
    workload = world([collective("all_reduce", 32, [x], [x])], [group("half", ((0, 1),))], 4)
    assert len(found(workload, Faults())) == 1
    with pytest.raises(CaptureError, match="rank 2 is in no group 'half'"):
        found(workload, Faults(slow_ranks={0: 0.5}))
