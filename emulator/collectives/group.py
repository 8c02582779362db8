"""Which ranks take part, and which dimensions do they keep of the machine that they are a part of?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.emulator.fabric.layout import coordinate_values
from trnprof.emulator.fabric.scale_out import INSTANCE
from trnprof.emulator.fabric.topology import SWITCH, Tier, Topology
from trnprof.tracer.errors import CollectiveError


@dataclass(frozen=True)
class Group:
    """The ranks of a collective, position by position; position p has coordinate ``p // prod(sizes[:d]) % sizes[d]`` in dimension d.

    A group is a grid where it holds every combination of some values of the machine's coordinates, in the order of the chips' numbers. Any other
    is flat: one dimension in the order given.

    A folded group stands for one of the same ranks of each of several instances, all of which do the same: it has the ranks of the first instance, and
    knows how many there are. Its dimensions, and its length, are those of the whole group, the instance last.

    Attributes:
        ranks: int32[ranks], chip of each position.
        sizes: of the dimensions, fastest first; coordinates in which all ranks agree are left out.
        tiers: by dimension, index into the topology's tiers of the one that joins it, -1 for a flat group.
        names: by dimension, the coordinates that it is made of, joined by ``+``; empty for a flat group.
        ring_bytes_per_s: by dimension, what a rank can send with rings both ways round: over two links, or over the one that it has in a
            switch or where it has one neighbour; 1 for a flat group.
        instances: int32[ranks], instance of each position; 0 where the machine is one.
        replicas: instances that a folded group stands for; 1 of any other.
    """

    ranks: I32
    sizes: tuple[int, ...]
    tiers: tuple[int, ...]
    names: tuple[str, ...]
    ring_bytes_per_s: tuple[float, ...]
    instances: I32
    replicas: int = 1

    def __len__(self) -> int:
        return len(self.ranks) * self.replicas

    @property
    def instance_count(self) -> int:
        """On how many instances its ranks are."""
        return self.replicas if self.replicas > 1 else len(np.unique(self.instances))


def make_group(topology: Topology, ranks: Sequence[int], replicas: int = 1) -> Group:
    """The group of some chips.

    Args:
        topology: of the machine; for a folded group, of a folded one (see ``folding``).
        ranks: numbers of chips, in the order of their positions; for a folded group, those of the first instance.
        replicas: instances that a folded group stands for.

    Raises:
        CollectiveError: no ranks, a rank out of range, or one given twice.
    """
    if replicas > 1:
        return _folded(topology, make_group(topology, ranks), replicas)
    chips = _checked(topology, ranks)
    values = coordinate_values(topology)[:, chips]
    instances = np.zeros(len(chips), np.int32)
    if INSTANCE in topology.coordinates:
        instances = values[topology.coordinates.index(INSTANCE)].astype(np.int32)
    ids = chips.astype(np.int32)
    sizes = tuple(len(np.unique(row)) for row in values)
    is_ascending = bool((np.diff(chips) > 0).all())
    if len(chips) == 1 or prod(sizes) != len(chips) or not is_ascending:
        return Group(ids, (len(chips),), (-1,), ("",), (1.0,), instances)
    dimensions = _dimensions(topology, [row for row, size in enumerate(sizes) if size > 1])
    grid = tuple(prod(sizes[row] for row in rows) for _, rows in dimensions)
    tiers = [topology.tiers[tier] for tier, _ in dimensions]
    return Group(
        ids,
        grid,
        tuple(tier for tier, _ in dimensions),
        tuple("+".join(topology.coordinates[row] for row in rows) for _, rows in dimensions),
        tuple(
            tier.link_bytes_per_s * (1 if size == 2 or tier.kind == SWITCH else 2)
            for tier, size in zip(tiers, grid, strict=True)
        ),
        instances,
    )


def _folded(topology: Topology, first: Group, replicas: int) -> Group:
    """The group of an instance's ranks and of all others that do the same, the network between instances being the last tier."""
    if len(first.ranks) > 1 and not first.names[-1]:
        return replace(first, sizes=(len(first) * replicas,), replicas=replicas)
    network = len(topology.tiers) - 1
    keep = slice(None) if len(first.ranks) > 1 else slice(0)
    rate = topology.tiers[network].link_bytes_per_s
    return replace(
        first,
        sizes=(*first.sizes[keep], replicas),
        tiers=(*first.tiers[keep], network),
        names=(*first.names[keep], INSTANCE),
        ring_bytes_per_s=(*first.ring_bytes_per_s[keep], rate),
        replicas=replicas,
    )


def _checked(topology: Topology, ranks: Sequence[int]) -> I64:
    if len(ranks) == 0:
        raise CollectiveError("a group without ranks: give one or more")
    try:
        chips = np.array(ranks, np.int64)
    except OverflowError:
        chips = np.array([-1])
    outside = (chips < 0) | (chips >= topology.chips)
    if outside.any():
        raise CollectiveError(
            f"rank {ranks[int(outside.argmax())]} is out of range: the machine has ranks 0 to {topology.chips - 1}"
        )
    unique, counts = np.unique(chips, return_counts=True)
    if (counts > 1).any():
        raise CollectiveError(
            f"rank {unique[int(counts.argmax())]} is given {counts.max()} times: a group holds a rank once"
        )
    return chips


def _dimensions(topology: Topology, rows: list[int]) -> list[tuple[int, list[int]]]:
    """The tier and the coordinates (by row) of each dimension; neighbours that the same tier joins make one."""
    dimensions: list[tuple[int, list[int]]] = []
    for row in rows:
        tier = _tier_of(topology, topology.coordinates[row])
        if dimensions and dimensions[-1][0] == tier:
            dimensions[-1][1].append(row)
        else:
            dimensions.append((tier, [row]))
    return dimensions


def _tier_of(topology: Topology, coordinate: str) -> int:
    """The tier that joins chips which differ in a coordinate: the one that spans least, the first of such."""
    spanning = [number for number, tier in enumerate(topology.tiers) if coordinate in tier.spans]
    if not spanning:
        raise CollectiveError(
            f"no link joins chips that differ in {coordinate!r}: a collective among them needs one"
        )

    def reach(number: int) -> int:
        tier: Tier = topology.tiers[number]
        return topology.size_of(tier.spans)

    return min(spanning, key=reach)
