"""How does one instance stand for many that do the same? As a fabric of its own links and its own ports into the network between them.

Where all instances do the same, what leaves one for others is what comes from others into it. So the network's port of each chip is as busy as that of its
twins, and one instance whose ports are joined to themselves takes as long as all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.scale_out import INSTANCE, ScaleOut, network_tier
from trnprof.emulator.fabric.topology import Topology
from trnprof.emulator.fabric.topology_check import check_topology
from trnprof.tracer.errors import FabricError

MAX_FOLDED_CHIPS: Final = 1 << 24
"""That are meant: far beyond any machine; a list of their ranks takes 0.6 GB."""


def folded_topology(topology: Topology, figures: ScaleOut, instances: int) -> Topology:
    """A topology of one instance of several: one more coordinate, of one value, and the network as the last tier.

    Args:
        topology: of one instance, of two chips or more.
        figures: of the network.
        instances: that are meant.

    Raises:
        FabricError: one chip an instance, too many chips, or figures that make no sense.
    """
    if topology.chips < 2:
        raise FabricError("instances of one chip are not folded: there is nothing within them")
    if topology.chips * instances > MAX_FOLDED_CHIPS:
        raise FabricError(
            f"{topology.chips * instances:,} chips are too many; at most {MAX_FOLDED_CHIPS:,}"
        )
    coordinates = (*topology.coordinates, INSTANCE)
    folded = Topology(
        coordinates, (*topology.sizes, 1), (*topology.tiers, network_tier(coordinates, figures))
    )
    check_topology(folded)
    return folded


def first_instance(fabric: Fabric) -> Fabric:
    """A folded fabric without the network: ids of links are the same."""
    topology = fabric.topology
    alone = Topology(topology.coordinates[:-1], topology.sizes[:-1], topology.tiers[:-1])
    return replace(fabric, topology=alone, first_link=fabric.first_link[:-1])


def network_links(
    fabric: Fabric, sources: NDArray[Any], targets: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The links of a folded fabric from chips into the network, and from it to chips.

    Args:
        fabric: folded.
        sources: int[...], chips.
        targets: int[...], chips.
    """
    first = fabric.first_link[-2]
    return first + sources, first + fabric.chips + targets
