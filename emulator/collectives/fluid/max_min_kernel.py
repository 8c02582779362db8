"""How is max-min fair sharing found fast? Progressive filling, compiled; imported when first needed, as numba is.

The share of a link is what it has left over the flows on it that have no rate yet. The link of the least share is a bottleneck: its flows get
that share as their rate, for good, and take it from the other links on their routes. That never lowers another link's share, so shares may be
kept in a heap and looked at again only when they come out first (Bertsekas and Gallager, Data Networks, 6.5.2).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trnprof.emulator.fabric.fabric import F64, I32, I64
from trnprof.emulator.heap import drop_least, sink
from trnprof.tracer.compiled import compiled, inlined

UNRATED: Final = -1.0
NO_LINK: Final = -1
SLACK: Final = 1 + 1e-12
"""A share that has grown by less has not."""


class Paths(NamedTuple):
    """Routes of flows.

    Attributes:
        offsets: int64[flows + 1], CSR offsets of the next two.
        links: int32[entries].
        uses: float64[entries], bytes that the link carries a byte of the flow.
    """

    offsets: I64
    links: I32
    uses: F64


class Scratch(NamedTuple):
    """What ``fill`` works on, made once for many calls.

    Attributes:
        remaining: float64[links], capacity that is not given away.
        load: float64[links], flows without a rate, by weight and use.
        pending: int32[links], entries of such flows; all 0 between calls.
        begin: int64[links], where the flows of a link begin in ``members``.
        end: int64[links], and end.
        used: int32[links], links on any route.
        keys: float64[links], heap of shares.
        heap: int32[links], its links.
        members: int32[entries], flows by link.
    """

    remaining: F64
    load: F64
    pending: I32
    begin: I64
    end: I64
    used: I32
    keys: F64
    heap: I32
    members: I32


@compiled
def make_scratch(links: int, entries: int) -> Scratch:
    """For so many links, and entries of the routes of all flows together."""
    return Scratch(
        np.empty(links),
        np.empty(links),
        np.zeros(links, np.int32),
        np.empty(links, np.int64),
        np.empty(links, np.int64),
        np.empty(links, np.int32),
        np.empty(links),
        np.empty(links, np.int32),
        np.empty(entries, np.int32),
    )


@compiled
def fill(
    flows: I32,
    paths: Paths,
    weights: F64,
    capacities: F64,
    scratch: Scratch,
    rates: F64,
    bottlenecks: I32,
) -> None:
    """Rate some flows, as if there were no others. Takes O(entries log links), about.

    Args:
        flows: int32[n], ids.
        paths: of all flows.
        weights: float64[flows], how many equal flows each stands for.
        capacities: float64[links].
        scratch: to work on.
        rates: float64[flows]; those of ``flows`` are written, infinite where a route is empty.
        bottlenecks: int32[flows]; likewise the link that keeps each from more, NO_LINK where none does.
    """
    used = _gather(flows, paths, weights, capacities, scratch, rates, bottlenecks)
    keys, heap = scratch.keys, scratch.heap
    for slot in range(used):
        keys[slot] = scratch.remaining[scratch.used[slot]] / scratch.load[scratch.used[slot]]
        heap[slot] = scratch.used[slot]
    for slot in range(used // 2 - 1, -1, -1):
        sink(keys, heap, used, slot, keys[slot], heap[slot])
    level, size = 0.0, used
    while size > 0:
        link = heap[0]
        if scratch.pending[link] == 0:
            drop_least(keys, heap, size)
            size -= 1
            continue
        share = scratch.remaining[link] / scratch.load[link]
        if share > keys[0] * SLACK:
            sink(keys, heap, size, 0, share, link)
            continue
        level = max(level, share)  # rounding may have lowered it
        _freeze(link, level, paths, weights, scratch, rates, bottlenecks)
        drop_least(keys, heap, size)
        size -= 1


@inlined
def _gather(
    flows: I32,
    paths: Paths,
    weights: F64,
    capacities: F64,
    scratch: Scratch,
    rates: F64,
    bottlenecks: I32,
) -> int:
    """List the links of some flows and the flows of each link; returns the number of links."""
    pending, load = scratch.pending, scratch.load
    used = 0
    for flow in flows:
        first, past = paths.offsets[flow], paths.offsets[flow + 1]
        rates[flow] = UNRATED if past > first else np.inf
        bottlenecks[flow] = NO_LINK
        for entry in range(first, past):
            link = paths.links[entry]
            if pending[link] == 0:
                scratch.used[used] = link
                used += 1
                scratch.remaining[link] = capacities[link]
                load[link] = 0.0
            pending[link] += 1
            load[link] += weights[flow] * paths.uses[entry]
    slot = 0
    for link in scratch.used[:used]:
        scratch.begin[link] = scratch.end[link] = slot
        slot += pending[link]
    for flow in flows:
        for link in paths.links[paths.offsets[flow] : paths.offsets[flow + 1]]:
            scratch.members[scratch.end[link]] = flow
            scratch.end[link] += 1
    return used


@inlined
def _freeze(
    bottleneck: int,
    level: float,
    paths: Paths,
    weights: F64,
    scratch: Scratch,
    rates: F64,
    bottlenecks: I32,
) -> None:
    """Give the flows of a link that have no rate this one, and take it from their routes."""
    for flow in scratch.members[scratch.begin[bottleneck] : scratch.end[bottleneck]]:
        if rates[flow] != UNRATED:
            continue
        rates[flow] = level
        bottlenecks[flow] = bottleneck
        for entry in range(paths.offsets[flow], paths.offsets[flow + 1]):
            link = paths.links[entry]
            weight = weights[flow] * paths.uses[entry]
            scratch.remaining[link] -= weight * level
            scratch.load[link] -= weight
            scratch.pending[link] -= 1
