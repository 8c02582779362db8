"""How do several instances of a machine make one topology? By a switched network that every chip is joined to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnprof.emulator.fabric.topology import SWITCH, Tier, Topology
from trnprof.emulator.fabric.topology_check import check_topology
from trnprof.tracer.errors import FabricError

INSTANCE = "instance"


@dataclass(frozen=True)
class ScaleOut:
    """The network between instances, without blocking.

    Attributes:
        link_bytes_per_s: of one chip into it, in one direction, all its network cards together.
        link_ns: from a chip to the network, or from it to a chip.
        switch_ns: what crossing it adds.
        name: of the tier.
    """

    link_bytes_per_s: float
    link_ns: float
    switch_ns: float = 0.0
    name: str = "efa"


def scale_out(topology: Topology, figures: ScaleOut, instances: int) -> Topology:
    """A topology of several instances: one more coordinate, the slowest, and a switch tier that spans all coordinates.

    Routes take it between instances alone (see ``chains``).

    Args:
        topology: of one instance.
        figures: of the network.
        instances: how many; 1 leaves the topology as it is.

    Raises:
        FabricError: fewer than 1 instance, too many chips, or figures that make no sense.
    """
    if instances < 1:
        raise FabricError(f"{instances} instances: expected 1 or more")
    if instances == 1:
        return topology
    coordinates = (*topology.coordinates, INSTANCE)
    scaled = replace(
        topology,
        coordinates=coordinates,
        sizes=(*topology.sizes, instances),
        tiers=(*topology.tiers, network_tier(coordinates, figures)),
    )
    check_topology(scaled)
    return scaled


def network_tier(coordinates: tuple[str, ...], figures: ScaleOut) -> Tier:
    """The network as a switch that spans all coordinates."""
    return Tier(
        figures.name,
        SWITCH,
        coordinates,
        figures.link_bytes_per_s,
        figures.link_ns,
        figures.switch_ns,
    )
