"""Do routes go round failed links wherever a way is left, and are pairs without one named?"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.fabric.searching import (
    all_pairs,
    check_walks,
    distances,
    topologies,
    working_graph,
)

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import fail_link
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.fabric.topology import Topology
from trnprof.tracer.errors import FabricError


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [50e9], [500_000]))


def with_failed(fabric: Fabric, links: list[int]) -> Fabric:
    is_failed = np.zeros(fabric.links, np.bool_)
    is_failed[links] = True
    return replace(fabric, is_failed=is_failed)


def lost_pairs(fabric: Fabric) -> set[tuple[int, int]]:
    graph = working_graph(fabric)
    lost = set()
    for source in range(fabric.chips):
        reached = distances(graph, str(source))
        lost |= {(source, t) for t in range(fabric.chips) if str(t) not in reached}
    return lost


@settings(max_examples=150, deadline=None)
@given(topologies(), st.data())
def test_a_route_is_found_wherever_breadth_first_search_finds_one(
    topology: Topology, data: st.DataObject
) -> None:
    sound = build_fabric(topology)
    if not sound.links:
        return
    failed = data.draw(st.lists(st.integers(0, sound.links - 1), max_size=sound.links // 2))
    fabric = with_failed(sound, failed)
    sources, targets = all_pairs(fabric.chips)
    lost = lost_pairs(fabric)
    if lost:
        with pytest.raises(FabricError) as caught:
            find_routes(fabric, sources, targets)
        named = re.match(r"no way from chip (\d+) to chip (\d+): failed", str(caught.value))
        assert named is not None
        assert (int(named[1]), int(named[2])) in lost
        reached = [
            pair not in lost for pair in zip(sources.tolist(), targets.tolist(), strict=True)
        ]
        sources, targets = sources[reached], targets[reached]
    check_walks(fabric, find_routes(fabric, sources, targets), sources, targets)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["ring:6", "torus:4x3", "torus:3x3x2", "mesh:6"]), st.data())
def test_only_routes_over_failed_links_change_and_they_are_the_shortest_left(
    spec: str, data: st.DataObject
) -> None:
    sound = made_up(spec)
    fabric = with_failed(sound, data.draw(st.lists(st.integers(0, sound.links - 1), max_size=4)))
    lost = lost_pairs(fabric)
    pairs = [p for p in np.ndindex(fabric.chips, fabric.chips) if p not in lost]
    sources, targets = np.array(pairs).T
    before, after = find_routes(sound, sources, targets), find_routes(fabric, sources, targets)
    graph = working_graph(fabric)
    for pair, (source, target) in enumerate(pairs):
        usual = before.links[before.offsets[pair] : before.offsets[pair + 1]]
        taken = after.links[after.offsets[pair] : after.offsets[pair + 1]]
        if fabric.is_failed[usual].any():
            assert len(taken) == distances(graph, str(source))[str(target)]
        else:
            assert np.array_equal(usual, taken)


def test_searches_from_targets_find_the_same_lengths_as_from_sources() -> None:
    fabric = fail_link(fail_link(made_up("torus:4x4"), "0-1"), "0-4")
    others = np.arange(1, 16)
    to = find_routes(fabric, others, np.zeros(15, np.int64))
    away = find_routes(fabric, np.zeros(15, np.int64), others)
    check_walks(fabric, to, others, np.zeros(15, np.int64))
    assert np.array_equal(np.diff(to.offsets), np.diff(away.offsets))


def test_one_direction_may_fail_alone() -> None:
    fabric = fail_link(made_up("ring:4"), "0>1")
    there = find_routes(fabric, np.array([0]), np.array([1])).links
    back = find_routes(fabric, np.array([1]), np.array([0])).links
    assert fabric.target[there].tolist() == [3, 2, 1]
    assert fabric.target[back].tolist() == [0]


def test_least_latency_decides_not_fewest_links() -> None:
    """A ring of 1 ns links beside a switch of 1 us links: the other way round is shorter in time, longer in links."""
    slow, fast = 1_000_000, 1_000
    topology = made_up_topology("ring:6", [1.0], [fast])
    wide = made_up_topology("switch:6", [1.0], [slow]).tiers[0]
    both = replace(topology, tiers=(*topology.tiers, replace(wide, name="wide")))
    fabric = fail_link(build_fabric(both), "0-1")
    links = find_routes(fabric, np.array([0]), np.array([1])).links
    assert fabric.target[links].tolist() == [5, 4, 3, 2, 1]
    cut_off = fail_link(fabric, "0-5")
    links = find_routes(cut_off, np.array([0]), np.array([1])).links
    assert cut_off.tier[links].tolist() == [1, 1]


def test_a_partition_names_the_pair_and_what_failed() -> None:
    fabric = fail_link(fail_link(made_up("ring:4"), "0-1"), "2-3")
    assert len(find_routes(fabric, np.array([0]), np.array([3])).links) == 1
    with pytest.raises(FabricError) as caught:
        find_routes(fabric, np.array([0, 0, 3]), np.array([3, 2, 1]))
    assert str(caught.value) == (
        "no way from chip 0 to chip 2: failed links cut them off (0>1, 1>0, 2>3, 3>2)"
    )
    fabric = fail_link(fabric, "1-2")
    with pytest.raises(FabricError, match=r"\(0>1, 1>2, 1>0, 2>3 and 2 more\)"):
        find_routes(fabric, np.array([0]), np.array([2]))
