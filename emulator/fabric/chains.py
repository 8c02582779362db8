"""Which tiers does a route take? By which coordinates differ: a short table, made once a fabric."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.fabric.topology import Topology

NONE = -1
"""Fills a chain; a chain that begins with it for chips that differ means that no tiers join them."""


def tier_chains(topology: Topology) -> I64:
    """The tiers between chips, in order, by the mask of coordinates in which they differ (bit i: coordinate i).

    Of all sets of tiers that span what differs, the one that spans least of what does not; of those, the one of the fewest tiers; of
    those, the first in the order of the topology. So a tier that spans every coordinate (scale-out over instances) is taken between
    instances alone, and not to save a step within one.

    Returns:
        int64[2 ** coordinates, tiers], filled up with NONE.
    """
    bits = {
        name: 1 << bit
        for bit, (name, size) in enumerate(zip(topology.coordinates, topology.sizes, strict=True))
        if size > 1
    }
    spans = [sum(bits.get(name, 0) for name in tier.spans) for tier in topology.tiers]
    tiers = range(len(spans))
    sets = [some for count in range(len(spans) + 1) for some in combinations(tiers, count)]
    spanned = np.array([_union(spans[tier] for tier in some) for some in sets], np.int64)
    chains = np.full((1 << len(topology.coordinates), len(spans)), NONE, np.int64)
    for mask in range(1, len(chains)):
        beyond = np.bitwise_count(spanned & ~mask).astype(np.int64)
        beyond[(spanned & mask) != mask] = 64
        best = int(beyond.argmin())  # the first of the least
        if beyond[best] < 64:
            chains[mask, : len(sets[best])] = sets[best]
    return chains


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
