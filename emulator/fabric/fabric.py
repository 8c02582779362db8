"""What are the links of a topology? Arrays over directed links, by which routes are made and times are reckoned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.topology import Topology

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Fabric:
    """Directed links between nodes: chips are nodes 0..chips-1, switches come after them.

    Attributes:
        topology: what it was made of.
        nodes: number of chips and switches.
        source: int32[links], node.
        target: int32[links], node.
        bytes_per_s: float64[links]; a degraded link has less than its tier says.
        latency_ps: int64[links], from the head's departure to its arrival, the crossing of a switch at its end included.
        tier: int32[links], index into ``topology.tiers``.
        first_link: int64[tiers + 1], where the links of each tier begin.
        is_failed: bool[links].
    """

    topology: Topology
    nodes: int
    source: I32
    target: I32
    bytes_per_s: F64
    latency_ps: I64
    tier: I32
    first_link: I64
    is_failed: NDArray[np.bool_]

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.topology.chips

    @property
    def links(self) -> int:
        """Number of directed links."""
        return len(self.source)


@dataclass(frozen=True)
class Routes:
    """The links between pairs of chips, in order; a route from a chip to itself is empty.

    Attributes:
        offsets: int64[pairs + 1], CSR offsets.
        links: int32[...], ids of directed links.
    """

    offsets: I64
    links: I32

    def __len__(self) -> int:
        return len(self.offsets) - 1
