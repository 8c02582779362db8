"""Can a fabric be built of a topology? One clear line if not."""

from __future__ import annotations

import math
from typing import Final

from trnprof.emulator.fabric.topology import KINDS, MESH, RING, SWITCH, Tier, Topology
from trnprof.tracer.errors import FabricError

MAX_CHIPS: Final = 65_536
MAX_LINKS: Final = 4_194_304
"""Directed ones; a fabric of so many takes about 200 MB."""
MAX_COORDINATES: Final = 8
MAX_TIERS: Final = 8
MAX_NS: Final = 1e12
"""Of a latency: 1,000 s, so that sums of picoseconds stay far from overflow."""


def check_topology(topology: Topology) -> None:
    """Check sizes, spans and figures.

    Raises:
        FabricError: what is wrong with which coordinate or tier.
    """
    _check_grid(topology)
    names = [tier.name for tier in topology.tiers]
    for tier in topology.tiers:
        if names.count(tier.name) > 1:
            raise FabricError(f"tier {tier.name!r}: another tier has this name too")
        _check_spans(topology, tier)
        _check_figures(tier)
    links = sum(count_links(topology, tier) for tier in topology.tiers)
    if links > MAX_LINKS:
        raise FabricError(
            f"a fabric of {topology.chips:,} chips with {links:,} links is too large; "
            f"at most {MAX_LINKS:,} links"
        )


def count_links(topology: Topology, tier: Tier) -> int:
    """How many directed links a tier has."""
    size = topology.size_of(tier.spans)
    if size == 1:
        return 0
    if tier.kind == MESH:
        return topology.chips * (size - 1)
    if tier.kind == RING:
        return topology.chips * (2 if size > 2 else 1)
    leaves = topology.leaves_of(tier)
    return 2 * topology.chips + topology.chips // size * leaves * (leaves - 1)


def _check_grid(topology: Topology) -> None:
    coordinates, sizes = topology.coordinates, topology.sizes
    if not coordinates or len(coordinates) != len(sizes):
        raise FabricError(
            f"a topology needs one size a coordinate: {len(coordinates)} coordinates, {len(sizes)} sizes"
        )
    if len(set(coordinates)) < len(coordinates):
        raise FabricError(f"coordinates {', '.join(coordinates)}: two have the same name")
    if len(coordinates) > MAX_COORDINATES or len(topology.tiers) > MAX_TIERS:
        raise FabricError(
            f"a topology of {len(coordinates)} coordinates and {len(topology.tiers)} tiers is too "
            f"large; at most {MAX_COORDINATES} and {MAX_TIERS}"
        )
    for name, size in zip(coordinates, sizes, strict=True):
        if size < 1:
            raise FabricError(f"coordinate {name!r}: size {size}, expected 1 or more")
    if topology.chips > MAX_CHIPS:
        raise FabricError(
            f"a fabric of {topology.chips:,} chips is too large; at most {MAX_CHIPS:,} chips"
        )


def _check_spans(topology: Topology, tier: Tier) -> None:
    where = f"tier {tier.name!r}"
    if tier.kind not in KINDS:
        raise FabricError(f"{where}: unknown kind {tier.kind!r}; known are {', '.join(KINDS)}")
    if not tier.spans or len(set(tier.spans)) < len(tier.spans):
        raise FabricError(
            f"{where}: expected the names of the coordinates that it spans, each once"
        )
    for name in tier.spans:
        if name not in topology.coordinates:
            raise FabricError(
                f"{where}: spans {name!r}, which is not among {', '.join(topology.coordinates)}"
            )
    if tier.kind == RING and len(tier.spans) > 1:
        raise FabricError(f"{where}: a ring spans one coordinate, not {', '.join(tier.spans)}")
    for name in tier.leaf:
        if name not in tier.spans:
            raise FabricError(f"{where}: leaf {name!r} is not among what it spans")
    if tier.kind != SWITCH and tier.leaf:
        raise FabricError(f"{where}: leaf is for switches, not for a {tier.kind}")


def _check_figures(tier: Tier) -> None:
    where = f"tier {tier.name!r}"
    _check_bandwidth(where, "bandwidth", tier.link_bytes_per_s)
    if tier.leaf and set(tier.leaf) < set(tier.spans):
        _check_bandwidth(where, "bandwidth of trunks", tier.trunk_bytes_per_s)
    for what, ns in (("latency", tier.link_ns), ("latency of a switch", tier.switch_ns)):
        if not 0 <= ns <= MAX_NS:
            raise FabricError(f"{where}: {what} of {ns:g} ns, expected 0 to {MAX_NS:g}")


def _check_bandwidth(where: str, what: str, bytes_per_s: float) -> None:
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise FabricError(f"{where}: {what} of {bytes_per_s:g} B/s, expected more than 0")
