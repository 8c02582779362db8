"""Do diameters, mean distances and bisections equal the published ones and those of brute force?"""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from tests.emulator.fabric.searching import (
    all_pairs,
    distances,
    graph_of,
    grid,
    links_by_definition,
    topologies,
)

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.measures import (
    Hops,
    bisection_bytes_per_s,
    cut_bytes_per_s,
    diameter_links,
    hop_table,
    mean_distance_links,
)
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.fabric.topology import Tier, Topology
from trnprof.tracer.errors import FabricError

TRN2 = made_up_topology("torus:4x4", [128e9], [0])
TRN2_ULTRA = made_up_topology("torus:4x4x4", [128e9, 128e9, 64e9], [0])


def test_trn2s_measures_are_those_of_its_sheet() -> None:
    """hardware.md 7.2, computed there from the links."""
    assert (diameter_links(TRN2), mean_distance_links(TRN2)) == (4, 2.0)
    assert (diameter_links(TRN2_ULTRA), mean_distance_links(TRN2_ULTRA)) == (6, 3.0)
    assert bisection_bytes_per_s(TRN2) == 1_024e9
    assert bisection_bytes_per_s(TRN2_ULTRA) == 2_048e9
    assert cut_bytes_per_s(TRN2_ULTRA, "z") == 2_048e9
    assert cut_bytes_per_s(TRN2_ULTRA, "x") == 4_096e9


def test_trn2s_torus_is_a_hypercube() -> None:
    """SemiAnalysis: 2x2x2x2 is isomorphic to 4x4; so both have the same distances."""
    cube = made_up_topology("torus:2x2x2x2", [128e9], [0])
    assert (diameter_links(cube), mean_distance_links(cube)) == (4, 2.0)
    assert bisection_bytes_per_s(cube) == 1_024e9


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("ring:2", 1.0), ("ring:3", 2.0), ("ring:8", 2.0), ("mesh:8", 16.0), ("mesh:5", 6.0), ("switch:8", 4.0),
     ("torus:4x3", 6.0), ("switch:4,ring:4", 8.0)],
)  # fmt: skip
def test_bisections_of_simple_fabrics(spec: str, expected: float) -> None:
    assert bisection_bytes_per_s(made_up_topology(spec, [1.0], [0])) == expected


def test_one_chip_has_no_bisection() -> None:
    one = Topology(("x",), (1,), (Tier("x", "ring", ("x",), 1.0, 0.0),))
    assert bisection_bytes_per_s(one) == 0.0
    assert (diameter_links(one), mean_distance_links(one), hop_table(one)) == (0, 0.0, ())
    with pytest.raises(FabricError, match="no coordinate 'x' of 2 values or more"):
        cut_bytes_per_s(one, "x")


def least_cut(fabric: Fabric, lower: set[int]) -> float:
    """What crosses from some chips to the others, the switches on whichever sides let least across."""
    switches = range(fabric.chips, fabric.nodes)
    columns = (fabric.source, fabric.target, fabric.bytes_per_s)
    ends = list(zip(*(column.tolist() for column in columns), strict=True))
    return min(
        sum((rate for s, t, rate in ends if s in inside and t not in inside), 0.0)
        for sides in product([False, True], repeat=len(switches))
        for inside in [lower | {s for s, side in zip(switches, sides, strict=True) if side}]
    )


@settings(max_examples=60, deadline=None)
@given(topologies(max_chips=12))
def test_a_bisection_is_the_least_cut_over_all_halves_of_a_coordinate(topology: Topology) -> None:
    fabric = build_fabric(topology)
    even = [
        n for n, size in zip(topology.coordinates, topology.sizes, strict=True) if size % 2 == 0
    ]
    if not even or fabric.nodes - fabric.chips > 8:
        return
    chips = grid(topology)
    least = min(
        least_cut(fabric, {number for number, at in enumerate(chips) if at[name] in values})
        for name in even
        for size in [topology.size_of((name,))]
        for values in combinations(range(size), size // 2)
    )
    assert bisection_bytes_per_s(topology) == pytest.approx(least)


@settings(max_examples=50, deadline=None)
@given(topologies())
def test_distances_from_one_chip_speak_for_all(topology: Topology) -> None:
    fabric = build_fabric(topology)
    routes = find_routes(fabric, *all_pairs(fabric.chips))
    lengths = routes.offsets[1:] - routes.offsets[:-1]
    assert diameter_links(topology) == lengths.max()
    assert mean_distance_links(topology) == pytest.approx(lengths.mean())
    table = hop_table(topology)
    assert sum(row.peers for row in table) == fabric.chips - 1
    assert max((row.most_links for row in table), default=0) == lengths.max()


@pytest.mark.parametrize("spec", ["torus:5x4", "mesh:6", "switch:4,switch:3"])
def test_diameters_are_those_of_breadth_first_search(spec: str) -> None:
    topology = made_up_topology(spec, [1.0], [0])
    graph = graph_of(links_by_definition(topology))
    found = [distances(graph, str(s))[str(t)] for s, t in product(range(topology.chips), repeat=2)]
    assert diameter_links(topology) == max(found)
    assert mean_distance_links(topology) == sum(found) / len(found)


def test_the_hop_table_tells_links_by_what_differs() -> None:
    assert hop_table(made_up_topology("switch:4,ring:6", [1.0], [0])) == (
        Hops(("x",), ("x",), 3, 2, 2),
        Hops(("y",), ("y",), 5, 1, 3),
        Hops(("x", "y"), ("x", "y"), 15, 3, 5),
    )


def test_chips_that_nothing_joins_have_no_distance() -> None:
    apart = Topology(("x", "y"), (4, 2), (Tier("x", "ring", ("x",), 1.0, 1.0),))
    with pytest.raises(FabricError, match="no way from chip 0 to chip 4"):
        diameter_links(apart)
    assert bisection_bytes_per_s(apart) == 0.0
