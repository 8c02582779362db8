"""Are routes walks of the fewest links in dimension order, with the loads that others computed?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.fabric.searching import (
    all_pairs,
    check_walks,
    distances,
    graph_of,
    grid,
    links_by_definition,
    topologies,
)

from trnprof.emulator.fabric import routes as module
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import BALANCED, CLOCKWISE, TIES, find_routes
from trnprof.emulator.fabric.topology import Tier, Topology
from trnprof.tracer.errors import FabricError


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [50e9], [500_000]))


def loads(fabric: Fabric, sources: np.ndarray, targets: np.ndarray, ties: str) -> np.ndarray:
    routes = find_routes(fabric, sources, targets, ties)
    return np.bincount(routes.links, minlength=fabric.links)


@settings(max_examples=100, deadline=None)
@given(topologies(), st.sampled_from(TIES))
def test_routes_are_walks_in_the_order_of_tiers(topology: Topology, ties: str) -> None:
    fabric = build_fabric(topology)
    sources, targets = all_pairs(fabric.chips)
    routes = find_routes(fabric, sources, targets, ties)
    check_walks(fabric, routes, sources, targets)
    assert routes.links.dtype == np.int32
    assert routes.offsets.dtype == np.int64
    for pair in range(len(routes)):
        tiers = fabric.tier[routes.links[routes.offsets[pair] : routes.offsets[pair + 1]]]
        assert (np.diff(tiers) >= 0).all()


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize(
    "spec",
    ["ring:2", "ring:5", "ring:6", "torus:4x4", "torus:3x2x4", "mesh:7", "switch:6", "mesh:3,mesh:4",
     "torus:2x2x2x2"],
)  # fmt: skip
def test_routes_are_of_the_fewest_links(spec: str, ties: str) -> None:
    topology = made_up_topology(spec, [1.0], [0])
    fabric = build_fabric(topology)
    graph = graph_of(links_by_definition(topology))
    sources, targets = all_pairs(fabric.chips)
    found = np.diff(find_routes(fabric, sources, targets, ties).offsets)
    fewest = {source: distances(graph, str(source)) for source in range(fabric.chips)}
    assert found.tolist() == [
        fewest[source][str(target)]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("spec", "microseconds"),
    [("torus:4x4", 251.65824), ("torus:4x4x4", 1006.63296), ("torus:8x8", 1677.7216)],
)
def test_all_to_all_loads_the_busiest_link_as_simgrid_says(spec: str, microseconds: float) -> None:
    """fabric.md 1.6: 1 MiB a pair at 50e9 B/s takes as long as the busiest link does."""
    fabric = made_up(spec)
    busiest = loads(fabric, *all_pairs(fabric.chips), CLOCKWISE).max()
    assert busiest * 2**20 / 50e9 * 1e6 == pytest.approx(microseconds, rel=1e-9)


@pytest.mark.parametrize(
    ("spec", "microseconds"), [("torus:4x4x4", 2684.35), ("torus:8x8", 5368.71)]
)
def test_a_half_shift_loads_the_busiest_link_as_simgrid_says(
    spec: str, microseconds: float
) -> None:
    """Each chip sends 64 MiB to the one half the chips on (fabric.md 1.6)."""
    fabric = made_up(spec)
    sources = np.arange(fabric.chips)
    busiest = loads(fabric, sources, (sources + fabric.chips // 2) % fabric.chips, CLOCKWISE).max()
    assert busiest * 2**26 / 50e9 * 1e6 == pytest.approx(microseconds, abs=0.005)


@pytest.mark.parametrize(
    "spec", ["ring:4", "torus:4x4", "torus:8x4", "torus:4x4x4", "ring:12", "torus:3x5"]
)
def test_balanced_ties_load_all_links_of_a_dimension_alike(spec: str) -> None:
    fabric = made_up(spec)
    load = loads(fabric, *all_pairs(fabric.chips), BALANCED)
    for tier in range(len(fabric.topology.tiers)):
        assert len(set(load[fabric.tier == tier])) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 16))
def test_ties_add_nothing_and_balanced_is_no_worse(size: int) -> None:
    fabric = made_up(f"ring:{size}")
    pairs = all_pairs(size)
    clockwise, balanced = loads(fabric, *pairs, CLOCKWISE), loads(fabric, *pairs, BALANCED)
    assert clockwise.sum() == balanced.sum()
    assert balanced.max() <= clockwise.max()
    # whole messages cannot be spread better than the mean, rounded up
    assert balanced.max() == -(-balanced.sum() // fabric.links) or size % 4 == 0


def test_ties_go_up_when_clockwise() -> None:
    fabric = made_up("ring:4")
    for ties, way in ((CLOCKWISE, [1, 2, 3]), (BALANCED, [1, 0, 3])):
        links = find_routes(fabric, np.array([1]), np.array([3]), ties).links
        assert [1, *fabric.target[links].tolist()] == way


def test_both_orders_of_chips_are_asked_alike_in_any_integer_type() -> None:
    fabric = made_up("torus:4x4")
    one = find_routes(fabric, np.array([5, 3], np.int32), np.array([0, 3], np.int32))
    other = find_routes(fabric, np.array([3, 5], np.uint8), np.array([3, 0], np.uint8))
    assert np.array_equal(one.links, other.links)
    assert one.offsets.tolist() == [0, 2, 2]
    assert other.offsets.tolist() == [0, 0, 2]
    assert len(find_routes(fabric, np.empty(0, np.int64), np.empty(0, np.int64))) == 0


def test_the_first_dimension_is_the_fastest_and_goes_first() -> None:
    fabric = made_up("switch:3,ring:4")
    assert grid(fabric.topology)[4] == {"x": 1, "y": 1}
    links = find_routes(fabric, np.array([0]), np.array([4])).links
    assert fabric.target[links].tolist() == [12, 1, 4]


def test_a_tier_that_spans_more_than_differs_is_the_last_resort() -> None:
    """Else a way over two dimensions of a torus would take the one tier that spans all."""
    rings = [Tier(name, "ring", (name,), 1.0, 1.0) for name in "xy"]
    wide = Tier("wide", "switch", ("x", "y", "z"), 1.0, 1.0)
    fabric = build_fabric(Topology(("x", "y", "z"), (4, 4, 2), (*rings, wide)))
    tiers = [
        fabric.tier[find_routes(fabric, np.array([0]), np.array([target])).links].tolist()
        for target in (5, 16, 21)
    ]
    assert tiers == [[0, 1], [2, 2], [2, 2]]


@pytest.mark.parametrize(("sources", "targets"), [([0], [16]), ([-1], [0])])
def test_chips_out_of_range_are_refused(sources: list[int], targets: list[int]) -> None:
    with pytest.raises(FabricError, match=r"chip (16|-1) is out of range; chips are 0\.\.15"):
        find_routes(made_up("ring:16"), np.array(sources), np.array(targets))


def test_unknown_ties_are_refused() -> None:
    with pytest.raises(FabricError, match="'both': known are clockwise, balanced"):
        find_routes(made_up("ring:4"), np.array([0]), np.array([1]), "both")


def test_chips_that_no_tier_joins_are_named() -> None:
    topology = Topology(("x", "y"), (4, 2), (Tier("x", "ring", ("x",), 1.0, 1.0),))
    fabric = build_fabric(topology)
    assert len(find_routes(fabric, np.array([0]), np.array([3])).links) == 1
    with pytest.raises(FabricError, match="no way from chip 1 to chip 6: no tier joins"):
        find_routes(fabric, np.array([0, 1]), np.array([3, 6]))


def test_too_many_routes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROUTE_LINKS", 100)
    with pytest.raises(FabricError, match="256 routes of 1,024 links are too many"):
        find_routes(made_up("ring:16"), *all_pairs(16))
