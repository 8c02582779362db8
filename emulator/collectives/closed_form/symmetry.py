"""Is a dimension of a group the same for all of its ranks? Then one pair of neighbours stands for all, which is what formulas need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.emulator.collectives.group import Group
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.topology import MESH, RING, SWITCH, Tier
from trnprof.tracer.errors import CollectiveError


@dataclass(frozen=True)
class Dimension:
    """What lies between the ranks of one dimension.

    Attributes:
        kind: RING (neighbours around a whole ring of 4 or more), MESH (all with all; so are rings of 2 and 3) or SWITCH (all with all, by a
            link up and a link down).
        size: ranks.
        hops: links from a rank to the next.
        latency_ps: of these links together.
        bytes_per_s: of each.
    """

    kind: str
    size: int
    hops: int
    latency_ps: int
    bytes_per_s: float


def inexact(why: str, instead: str = "") -> CollectiveError:
    """The error where no formula is exact.

    Args:
        why: in words.
        instead: what has a formula, if that is known.
    """
    other = f"{instead}, or " if instead else "use "
    return CollectiveError(f"no closed form: {why}; {other}the fidelity chunked or fluid")


def dimension_of(group: Group, number: int, fabric: Fabric) -> Dimension:
    """A dimension of a group.

    Raises:
        CollectiveError: its ranks are not joined alike.
    """
    topology, tier_number = fabric.topology, group.tiers[number]
    if tier_number < 0:
        raise inexact("the ranks are no grid, so they are not joined alike")
    tier, size = topology.tiers[tier_number], group.sizes[number]
    coordinates = tuple(group.names[number].split("+"))
    whole = topology.size_of(coordinates)
    if tier.kind == RING and size != whole:
        raise inexact(
            f"{size} ranks are a part of a ring of {whole}, so some are neighbours and some are not"
        )
    if tier.kind == SWITCH and tier.leaf and not set(coordinates) <= set(tier.leaf):
        raise inexact(
            f"trunks join the switches of {tier.name!r}, so some ranks are nearer than others"
        )
    latencies, bytes_per_s = _links(fabric, tier_number, tier)
    kind = MESH if tier.kind == RING and size <= 3 else tier.kind
    return Dimension(kind, size, len(latencies), sum(latencies), bytes_per_s)


def _links(fabric: Fabric, number: int, tier: Tier) -> tuple[list[int], float]:
    """Latencies of the links from a rank to the next, and the bandwidth that all have."""
    first, past = fabric.first_link[number : number + 2].tolist()
    rows = [slice(first, past)]
    if tier.kind == SWITCH:
        rows = [
            slice(first + way * fabric.chips, first + (way + 1) * fabric.chips) for way in (0, 1)
        ]
    rates = np.concatenate([fabric.bytes_per_s[row] for row in rows])
    latencies = [fabric.latency_ps[row] for row in rows]
    are_alike = all((part == part[0]).all() for part in (rates, *latencies))
    if not are_alike or any(fabric.is_failed[row].any() for row in rows):
        raise inexact(f"the links of {tier.name!r} are not all alike")
    return [int(part[0]) for part in latencies], float(rates[0])
