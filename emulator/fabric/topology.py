"""How are chips joined? Coordinates, and tiers that join the chips which differ in some of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

RING: Final = "ring"
MESH: Final = "mesh"
SWITCH: Final = "switch"
KINDS: Final = (RING, MESH, SWITCH)


@dataclass(frozen=True)
class Tier:
    """One kind of link: it joins chips that differ in nothing but the coordinates that it spans.

    Attributes:
        name: as people call it: "x", "tray", "plane", "efa".
        kind: "ring" (each chip and its two neighbours along one coordinate, with wrap links), "mesh" (each chip and every other)
            or "switch" (each chip and a switch).
        spans: names of the coordinates.
        link_bytes_per_s: of one link in one direction; for a switch, all ports of one chip into it together.
        link_ns: from the head's departure to its arrival over one link.
        switch_ns: what the crossing of a switch adds to the link before it.
        leaf: switch only: the spanned coordinates within which one switch stands; all of them where there is one level. The switches of a
            tier are joined each with each by trunks.
        trunk_bytes_per_s: from one such switch to another, in one direction; 0 where there is one level.
        switches: how many equal physical switches one modelled switch stands for: traffic is spread over them evenly.
        ports: of one physical switch, None where unknown.
    """

    name: str
    kind: str
    spans: tuple[str, ...]
    link_bytes_per_s: float
    link_ns: float
    switch_ns: float = 0.0
    leaf: tuple[str, ...] = ()
    trunk_bytes_per_s: float = 0.0
    switches: int = 1
    ports: int | None = None


@dataclass(frozen=True)
class Topology:
    """Chips on a grid of coordinates. The number of a chip counts the first coordinate fastest.

    Attributes:
        coordinates: their names.
        sizes: how many values each has.
        tiers: in the order in which routes take them (dimension order).
    """

    coordinates: tuple[str, ...]
    sizes: tuple[int, ...]
    tiers: tuple[Tier, ...]

    @property
    def chips(self) -> int:
        """Number of chips."""
        return prod(self.sizes)

    def size_of(self, names: tuple[str, ...]) -> int:
        """How many chips differ in nothing but these coordinates."""
        return prod(self.sizes[self.coordinates.index(name)] for name in names)

    def leaves_of(self, tier: Tier) -> int:
        """How many switches a group of a switch tier has."""
        return self.size_of(tier.spans) // self.size_of(tier.leaf or tier.spans)
