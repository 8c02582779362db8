"""How are the links between many pairs of chips listed fast? Compiled walks over tiers; imported when first needed, as numba is."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.tracer.compiled import compiled, inlined

RING: Final = 0
MESH: Final = 1
SWITCH: Final = 2
UNREACHED: Final = -1


class Tables(NamedTuple):
    """What a walk looks up.

    Attributes:
        values: int64[coordinates, chips].
        chains: int64[masks, tiers], see ``chains``.
        kind: int64[tiers], RING, MESH or SWITCH.
        size: int64[tiers], chips of a group.
        leaves: int64[tiers], switches of a group.
        first_link: int64[tiers].
        place: int64[tiers, chips].
        offset: int64[tiers, chips].
        switch: int64[tiers, chips].
        stride: int64[tiers], rings: from a chip's number to the next one's.
    """

    values: I64
    chains: I64
    kind: I64
    size: I64
    leaves: I64
    first_link: I64
    place: I64
    offset: I64
    switch: I64
    stride: I64


@inlined
def _chain(tables: Tables, source: int, target: int) -> I64:
    mask = 0
    for row in range(len(tables.values)):
        if tables.values[row, source] != tables.values[row, target]:
            mask |= 1 << row
    chain: I64 = tables.chains[mask]
    return chain


@inlined
def _moved(tables: Tables, tier: int, chip: int, target: int) -> int:
    """The chip of the group of ``chip`` that stands where the target does."""
    moved: int = chip - tables.offset[tier, chip] + tables.offset[tier, target]
    return moved


@compiled
def count_links(tables: Tables, sources: I64, targets: I64) -> I64:
    """int64[pairs], links of each route; UNREACHED where no tiers join the pair."""
    counts = np.zeros(len(sources), np.int64)
    for pair in range(len(sources)):
        chip, target = sources[pair], targets[pair]
        if chip == target:
            continue
        for tier in _chain(tables, chip, target):
            if tier < 0:
                break
            here, there = tables.place[tier, chip], tables.place[tier, target]
            next_chip = _moved(tables, tier, chip, target)
            if tables.kind[tier] == RING:
                ahead = (there - here) % tables.size[tier]
                counts[pair] += min(ahead, tables.size[tier] - ahead)
            elif tables.kind[tier] == MESH:
                counts[pair] += 1
            else:
                counts[pair] += 2 + (tables.switch[tier, chip] != tables.switch[tier, next_chip])
            chip = next_chip
        if chip != target:
            counts[pair] = UNREACHED
    return counts


@compiled
def write_links(tables: Tables, sources: I64, targets: I64, offsets: I64, is_balanced: bool) -> I32:
    """int32[offsets[-1]], the links of each route at its offset; pairs without links are skipped."""
    links = np.empty(offsets[-1], np.int32)
    for pair in range(len(sources)):
        slot = offsets[pair]
        if slot == offsets[pair + 1]:
            continue
        chip, target = sources[pair], targets[pair]
        for tier in _chain(tables, chip, target):
            if tier < 0:
                break
            next_chip = _moved(tables, tier, chip, target)
            if tables.kind[tier] == RING:
                slot = _write_ring(tables, tier, chip, target, is_balanced, links, slot)
            elif tables.kind[tier] == MESH:
                here, there = tables.place[tier, chip], tables.place[tier, target]
                column = there - (there > here)
                links[slot] = tables.first_link[tier] + chip * (tables.size[tier] - 1) + column
                slot += 1
            else:
                slot = _write_switch(tables, tier, chip, next_chip, links, slot)
            chip = next_chip
    return links


@compiled
def _write_ring(
    tables: Tables, tier: int, chip: int, target: int, is_balanced: bool, links: I32, slot: int
) -> int:
    """The shorter way round; at half the size clockwise, or, balanced, so from even places and the other way from odd ones."""
    size, first, stride = tables.size[tier], tables.first_link[tier], tables.stride[tier]
    place, there = tables.place[tier, chip], tables.place[tier, target]
    ahead = (there - place) % size
    clockwise = 2 * ahead < size or (2 * ahead == size and not (is_balanced and place % 2 == 1))
    while place != there:
        if size == 2:
            links[slot] = first + chip
        else:
            links[slot] = first + 2 * chip + (0 if clockwise else 1)
        slot += 1
        next_place = (place + (1 if clockwise else -1)) % size
        chip += (next_place - place) * stride
        place = next_place
    return slot


@compiled
def _write_switch(
    tables: Tables, tier: int, chip: int, next_chip: int, links: I32, slot: int
) -> int:
    """Up, over a trunk where the two chips are at different switches, down."""
    chips = tables.values.shape[1]
    first, leaves = tables.first_link[tier], tables.leaves[tier]
    here, there = tables.switch[tier, chip], tables.switch[tier, next_chip]
    links[slot] = first + chip
    slot += 1
    if here != there:
        column = there % leaves - (there > here)
        links[slot] = first + 2 * chips + here * (leaves - 1) + column
        slot += 1
    links[slot] = first + chips + next_chip
    return slot + 1


@compiled
def pairs_over(offsets: I64, links: I32, is_failed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool[pairs], whether a route takes a failed link."""
    hit = np.zeros(len(offsets) - 1, np.bool_)
    for pair in range(len(hit)):
        for slot in range(offsets[pair], offsets[pair + 1]):
            hit[pair] |= is_failed[links[slot]]
    return hit
