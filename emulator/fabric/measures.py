"""How wide and how deep is a topology: bisection, diameter, mean distance, links between chips by where they are?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.chains import tier_chains
from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.fabric.layout import coordinate_values
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.fabric.topology import MESH, RING, Tier, Topology
from trnprof.emulator.fabric.topology_check import check_topology
from trnprof.tracer.errors import FabricError


@dataclass(frozen=True)
class Hops:
    """The routes from a chip to those that differ from it in the same coordinates.

    Attributes:
        coordinates: in which they differ.
        tiers: names, in the order in which routes take them.
        peers: how many such chips each chip has.
        least_links: of the routes to them.
        most_links: likewise; one fewer chips and switches are passed on the way.
    """

    coordinates: tuple[str, ...]
    tiers: tuple[str, ...]
    peers: int
    least_links: int
    most_links: int


def bisection_bytes_per_s(topology: Topology) -> float:
    """What can cross from one half of the chips to the other, in one direction: the least over the coordinates.

    Coordinates of even size count; where there is none, those of odd size, with halves that differ by one value. 0 for one chip.

    Raises:
        FabricError: the topology makes no sense.
    """
    check_topology(topology)
    grid = list(zip(topology.coordinates, topology.sizes, strict=True))
    halved = [name for name, size in grid if size % 2 == 0]
    cut = halved or [name for name, size in grid if size > 1]
    return min((cut_bytes_per_s(topology, name) for name in cut), default=0.0)


def cut_bytes_per_s(topology: Topology, coordinate: str) -> float:
    """What can cross, in one direction, from the chips of the lower values of one coordinate to those of the upper.

    The least cut: of a switch tier whose switches stand on one side each, the trunks or the ports of one side, whichever carry less.

    Raises:
        FabricError: the topology makes no sense, or has no such coordinate of 2 values or more.
    """
    check_topology(topology)
    size = dict(zip(topology.coordinates, topology.sizes, strict=True)).get(coordinate, 0)
    if size < 2:
        raise FabricError(f"nothing to cut: no coordinate {coordinate!r} of 2 values or more")
    tiers = [tier for tier in topology.tiers if coordinate in tier.spans]
    return sum((_tier_cut(topology, tier, coordinate, size) for tier in tiers), 0.0)


def diameter_links(topology: Topology) -> int:
    """The most links of a route between two chips.

    Raises:
        FabricError: the topology makes no sense, or leaves chips apart.
    """
    return int(_distances(topology).max())


def mean_distance_links(topology: Topology) -> float:
    """Mean links of a route, over all pairs of chips, those of a chip with itself included.

    Raises:
        FabricError: the topology makes no sense, or leaves chips apart.
    """
    return float(_distances(topology).mean())


def hop_table(topology: Topology) -> tuple[Hops, ...]:
    """Links between chips by the coordinates in which they differ: a row a combination, the first coordinate fastest.

    Raises:
        FabricError: the topology makes no sense, or leaves chips apart.
    """
    distances = _distances(topology)
    differs = coordinate_values(topology) > 0
    masks = (1 << np.arange(len(differs))) @ differs
    chains = tier_chains(topology)
    rows = []
    for mask in np.unique(masks[1:]):
        links = distances[masks == mask]
        rows.append(
            Hops(
                tuple(n for bit, n in enumerate(topology.coordinates) if mask >> bit & 1),
                tuple(topology.tiers[tier].name for tier in chains[mask] if tier >= 0),
                len(links),
                int(links.min()),
                int(links.max()),
            )
        )
    return tuple(rows)


def _distances(topology: Topology) -> I64:
    """int64[chips], links from chip 0 to each; every other chip sees the same distances, as all groups of a tier are alike."""
    fabric = build_fabric(topology)
    chips = np.arange(fabric.chips)
    return np.diff(find_routes(fabric, np.zeros_like(chips), chips).offsets)


def _tier_cut(topology: Topology, tier: Tier, coordinate: str, size: int) -> float:
    lower = size // 2
    group = topology.size_of(tier.spans)
    groups = topology.chips // group
    chips = group // size * lower
    if tier.kind == RING:
        return groups * min(size - 1, 2) * tier.link_bytes_per_s
    if tier.kind == MESH:
        return groups * chips * (group - chips) * tier.link_bytes_per_s
    ports = chips * tier.link_bytes_per_s
    if coordinate in (tier.leaf or tier.spans):
        return groups * ports
    leaves = topology.leaves_of(tier)
    switches = leaves // size * lower
    return groups * min(ports, switches * (leaves - switches) * tier.trunk_bytes_per_s)
