"""The tests' own idea of a fabric: coordinates in dictionaries, breadth-first search, no numpy."""

from __future__ import annotations

from collections import deque
from itertools import product

import numpy as np
from hypothesis import strategies as st

from trnprof.emulator.fabric.fabric import Fabric, Routes
from trnprof.emulator.fabric.topology import MESH, RING, SWITCH, Tier, Topology

Graph = dict[str, set[str]]


def grid(topology: Topology) -> list[dict[str, int]]:
    """The coordinates of each chip, in the order of their numbers."""
    slowest_first = product(*(range(size) for size in reversed(topology.sizes)))
    names = topology.coordinates
    return [dict(zip(names, reversed(values), strict=True)) for values in slowest_first]


def links_by_definition(topology: Topology) -> list[tuple[str, str]]:
    """Every directed link between names of nodes, as ``Tier`` defines the kinds; in no order."""
    chips = grid(topology)
    links = []
    for tier in topology.tiers:
        size = topology.size_of(tier.spans)
        if tier.kind == SWITCH and size > 1:
            links += _switch_links(topology, tier, chips)
            continue
        for one, other in product(range(len(chips)), repeat=2):
            differing = {n for n in topology.coordinates if chips[one][n] != chips[other][n]}
            if one == other or not differing <= set(tier.spans):
                continue
            if tier.kind == RING:
                away = (chips[other][tier.spans[0]] - chips[one][tier.spans[0]]) % size
                if away not in (1, size - 1):
                    continue
            links.append((str(one), str(other)))
    return links


def _switch_links(
    topology: Topology, tier: Tier, chips: list[dict[str, int]]
) -> list[tuple[str, str]]:
    """Switches are called by the coordinates of what stands at them."""
    links, switches = [], {}
    leaf = tier.leaf or tier.spans
    for number, values in enumerate(chips):
        group = tuple(values[n] for n in topology.coordinates if n not in tier.spans)
        within = tuple(values[n] for n in topology.coordinates if n in tier.spans and n not in leaf)
        name = f"{tier.name} {group} {within}"
        switches[name] = group
        links += [(str(number), name), (name, str(number))]
    return links + [
        (a, b) for a, b in product(switches, repeat=2) if a != b and switches[a] == switches[b]
    ]


def graph_of(links: list[tuple[str, str]]) -> Graph:
    graph: Graph = {}
    for source, target in links:
        graph.setdefault(source, set()).add(target)
    return graph


def working_graph(fabric: Fabric) -> Graph:
    """Of a built fabric, without its failed links."""
    ends = zip(fabric.source, fabric.target, fabric.is_failed, strict=True)
    return graph_of([(str(s), str(t)) for s, t, is_failed in ends if not is_failed])


def distances(graph: Graph, root: str) -> dict[str, int]:
    """Fewest links from one node to every other that it reaches."""
    found, waiting = {root: 0}, deque([root])
    while waiting:
        node = waiting.popleft()
        for near in graph.get(node, ()):
            if near not in found:
                found[near] = found[node] + 1
                waiting.append(near)
    return found


def all_pairs(chips: int) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(chips)
    return np.repeat(every, chips), np.tile(every, chips)


def check_walks(fabric: Fabric, routes: Routes, sources: np.ndarray, targets: np.ndarray) -> None:
    """Each route is a walk from its source to its target over links that work."""
    assert len(routes) == len(sources)
    for pair, (source, target) in enumerate(zip(sources, targets, strict=True)):
        node = source
        for link in routes.links[routes.offsets[pair] : routes.offsets[pair + 1]]:
            assert not fabric.is_failed[link]
            assert fabric.source[link] == node
            node = fabric.target[link]
        assert node == target


@st.composite
def topologies(draw: st.DrawFn, max_chips: int = 24) -> Topology:
    """Every chip is joined to every other: one tier a coordinate, and perhaps one that spans several."""
    sizes = draw(
        st.lists(st.integers(1, 6), min_size=1, max_size=3).filter(
            lambda sizes: int(np.prod(sizes)) <= max_chips
        )
    )
    names = tuple("abc"[: len(sizes)])
    figures = st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([0.0, 1.0, 3.0]))
    tiers = [
        Tier(name.upper(), draw(st.sampled_from([RING, MESH, SWITCH])), (name,), *draw(figures))
        for name in names
    ]
    if draw(st.booleans()):
        spans = tuple(name for name in names if draw(st.booleans())) or names
        leaf = tuple(name for name in spans if draw(st.booleans()))
        tiers.append(Tier("wide", SWITCH, spans, *draw(figures), 1.0, leaf, draw(figures)[0]))
    return Topology(names, tuple(sizes), tuple(tiers))
