"""Where does each chip stand in each tier: in which group, at which place in it, at which switch?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.fabric.topology import SWITCH, Tier, Topology


@dataclass(frozen=True)
class TierLayout:
    """A group is chips that differ in nothing but the coordinates that a tier spans.

    Attributes:
        size: chips of a group.
        groups: how many there are.
        leaves: switches of a group; 0 where the tier has none.
        place: int64[chips], of each chip in its group, first coordinate fastest.
        offset: int64[chips], number of a chip less that of the first of its group.
        offset_of_place: int64[size], the same by place.
        switch: int64[chips], at which switch of the tier each chip is; all 0 where the tier has none.
    """

    size: int
    groups: int
    leaves: int
    place: I64
    offset: I64
    offset_of_place: I64
    switch: I64

    @property
    def switches(self) -> int:
        """How many switches the tier has."""
        return self.groups * self.leaves


def coordinate_values(topology: Topology) -> I64:
    """int64[coordinates, chips], the value of each coordinate of each chip."""
    chips = np.arange(topology.chips, dtype=np.int64)
    values = np.empty((len(topology.sizes), topology.chips), np.int64)
    for row, (stride, size) in enumerate(zip(_strides(topology), topology.sizes, strict=True)):
        values[row] = chips // stride % size
    return values


def lay_out(topology: Topology, tier: Tier) -> TierLayout:
    """The layout of one tier of a sound topology."""
    values = coordinate_values(topology)
    strides = np.array(_strides(topology), np.int64)
    spanned = [row for row, name in enumerate(topology.coordinates) if name in tier.spans]
    place = _mixed_radix(topology, values, spanned)
    offset = strides[spanned] @ values[spanned]
    size = topology.size_of(tier.spans)
    offset_of_place = np.zeros(size, np.int64)
    offset_of_place[place] = offset
    leaves, switch = 0, np.zeros(topology.chips, np.int64)
    if tier.kind == SWITCH and size > 1:
        leaves = topology.leaves_of(tier)
        within = tier.leaf or tier.spans
        outside = [row for row, name in enumerate(topology.coordinates) if name not in tier.spans]
        above = [row for row in spanned if topology.coordinates[row] not in within]
        switch = leaves * _mixed_radix(topology, values, outside)
        switch += _mixed_radix(topology, values, above)
    return TierLayout(size, topology.chips // size, leaves, place, offset, offset_of_place, switch)


def first_switches(topology: Topology) -> tuple[int, ...]:
    """The node of the first switch of each tier, and one past the last of all."""
    counts = [
        topology.chips // topology.size_of(tier.spans) * topology.leaves_of(tier)
        if tier.kind == SWITCH and topology.size_of(tier.spans) > 1
        else 0
        for tier in topology.tiers
    ]
    return tuple(accumulate(counts, initial=topology.chips))


def _strides(topology: Topology) -> list[int]:
    return [prod(topology.sizes[:row]) for row in range(len(topology.sizes))]


def _mixed_radix(topology: Topology, values: I64, rows: list[int]) -> I64:
    """int64[chips], the number that some coordinates make, the first of them fastest."""
    number = np.zeros(topology.chips, np.int64)
    stride = 1
    for row in rows:
        number += values[row] * stride
        stride *= topology.sizes[row]
    return number
