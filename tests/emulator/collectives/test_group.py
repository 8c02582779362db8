"""Which dimensions groups keep, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tests.emulator.collectives.moving import instances, made_up

from trnprof.emulator.collectives.group import make_group
from trnprof.emulator.fabric.topology import SWITCH, Tier, Topology
from trnprof.tracer.errors import CollectiveError

TORUS = made_up("torus:4x3x2", [3e9, 2e9, 1e9])


def test_all_ranks_keep_all_dimensions() -> None:
    group = make_group(TORUS, range(24))
    assert (group.sizes, group.tiers, group.names) == ((4, 3, 2), (0, 1, 2), ("x", "y", "z"))
    assert group.ring_bytes_per_s == (6e9, 4e9, 1e9)
    assert group.ranks.tolist() == list(range(24))
    assert not group.instances.any()


@pytest.mark.parametrize(
    ("ranks", "sizes", "names"),
    [
        (range(12), (4, 3), ("x", "y")),
        ([0, 4, 8], (3,), ("y",)),
        ([1, 3, 13, 15], (2, 2), ("x", "z")),
        ([0, 1, 2], (3,), ("x",)),
        ([0, 1, 2, 3, 4, 5], (6,), ("",)),  # no sub-grid
        ([0, 1, 3, 2], (4,), ("",)),  # another order is meant as it is
        ([5], (1,), ("",)),
    ],
)
def test_sub_groups(ranks: list[int], sizes: tuple[int, ...], names: tuple[str, ...]) -> None:
    group = make_group(TORUS, ranks)
    assert (group.sizes, group.names) == (sizes, names)
    assert group.ranks.tolist() == list(ranks)


def test_coordinates_of_one_switch_are_one_dimension() -> None:
    """As on gb200-nvl36x2; where trays have links of their own, trays are a dimension."""
    switch = Tier("switch", SWITCH, ("chip", "tray"), 1e9, 100.0)
    pair = Tier("pair", "mesh", ("rack",), 5e8, 100.0)
    tray = Tier("tray", "mesh", ("chip",), 2e9, 100.0)
    grid = (("chip", "tray", "rack"), (2, 3, 2))
    group = make_group(Topology(*grid, (switch, pair)), range(12))
    assert (group.sizes, group.tiers) == ((6, 2), (0, 1))
    assert group.names == ("chip+tray", "rack")
    group = make_group(Topology(*grid, (switch, pair, tray)), range(12))
    assert (group.sizes, group.tiers) == ((2, 3, 2), (2, 0, 1))
    assert group.ring_bytes_per_s == (2e9, 1e9, 5e8)


def test_instances_are_the_last_dimension() -> None:
    topology = instances("ring:4", 3)
    group = make_group(topology, range(12))
    assert (group.sizes, group.names) == ((4, 3), ("x", "instance"))
    assert group.instances.tolist() == np.repeat([0, 1, 2], 4).tolist()


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "one or more"),
        ([0, 24], "rank 24 is out of range: the machine has ranks 0 to 23"),
        ([-1, 2], "rank -1 is out of range"),
        ([2**70], "out of range"),
        ([3, 1, 3, 2], "rank 3 is given 2 times"),
    ],
)
def test_bad_ranks(ranks: list[int], words: str) -> None:
    with pytest.raises(CollectiveError, match=words) as caught:
        make_group(TORUS, ranks)
    assert "\n" not in str(caught.value)


def test_chips_that_nothing_joins() -> None:
    tier = Tier("x", "ring", ("x",), 1e9, 1.0)
    topology = Topology(("x", "y"), (2, 2), (tier,))
    with pytest.raises(CollectiveError, match="no link joins chips that differ in 'y'"):
        make_group(topology, range(4))
