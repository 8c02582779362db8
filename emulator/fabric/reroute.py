"""Which way is left between chips whose usual route is cut?"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import I32, I64, Fabric, Routes
from trnprof.emulator.fabric.names import link_name
from trnprof.tracer.compiled import compiled
from trnprof.tracer.errors import FabricError

MAX_NAMED = 4


class Ways(NamedTuple):
    """Links that work, by the node at which a search stands; towards sources where it goes backwards.

    Attributes:
        offsets: int64[nodes + 1], CSR offsets.
        links: int64[...], ids.
        near: int32[all links], the node on the search's side.
        far: int32[all links], the other one.
        cost: int64[all links].
    """

    offsets: I64
    links: I64
    near: I32
    far: I32
    cost: I64


def reroute(fabric: Fabric, sources: I64, targets: I64) -> Routes:
    """The routes of least latency over links that work; of those, ones of the fewest links.

    Least latency rather than fewest links: two links over the scale-out network are no shorter than three within an instance.

    Args:
        fabric: with failed links.
        sources: int64[pairs], chips.
        targets: int64[pairs], others.

    Raises:
        FabricError: nothing joins a pair.
    """
    # one search a source, or a target, whichever are fewer
    is_backward = len(np.unique(targets)) < len(np.unique(sources))
    roots, ends = (targets, sources) if is_backward else (sources, targets)
    order = np.argsort(roots, kind="stable")
    counts, found = _search(_ways(fabric, is_backward), roots[order], ends[order], is_backward)
    if (counts < 0).any():
        pair = int(np.sort(order[counts < 0])[0])
        raise _disconnected(fabric, int(sources[pair]), int(targets[pair]))
    starts = np.empty(len(order), np.int64)
    starts[order] = np.cumsum(counts) - counts
    lengths = np.empty_like(counts)
    lengths[order] = counts
    offsets = offsets_of(lengths)
    slots = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Routes(offsets, found[slots])


def _ways(fabric: Fabric, is_backward: bool) -> Ways:
    near, far = fabric.source, fabric.target
    if is_backward:
        near, far = far, near
    works = np.flatnonzero(~fabric.is_failed)
    links = works[np.argsort(near[works], kind="stable")]
    counts = np.bincount(near[links], minlength=fabric.nodes)
    offsets = offsets_of(counts)
    return Ways(offsets, links, near, far, fabric.latency_ps + 1)


@compiled
def _search(ways: Ways, roots: I64, ends: I64, is_backward: bool) -> tuple[I64, I32]:
    """The ways from roots (in order) to ends.

    Returns:
        int64[pairs] counts of links, -1 where there is no way; int32[sum of counts], links from source to target.
    """
    counts = np.empty(len(roots), np.int64)
    found = np.empty(8 * len(roots) + 8, np.int32)
    total = 0
    via = np.empty(len(ways.offsets) - 1, np.int64)
    for pair in range(len(roots)):
        root, node = roots[pair], ends[pair]
        if pair == 0 or root != roots[pair - 1]:
            via = _reach(ways, root)
        if via[node] < 0:
            counts[pair] = -1
            continue
        first = total
        while node != root:
            if total == len(found):
                longer = np.empty(2 * total, np.int32)
                longer[:total] = found
                found = longer
            found[total] = via[node]
            node = ways.near[via[node]]
            total += 1
        if not is_backward:
            found[first:total] = found[first:total][::-1].copy()
        counts[pair] = total - first
    return counts, found[:total]


@compiled
def _reach(ways: Ways, root: int) -> I64:
    """int64[nodes], the link by which each node is reached (Dijkstra's algorithm); -1 for others and for the root."""
    nodes = len(ways.offsets) - 1
    via = np.full(nodes, -1, np.int64)
    least = np.full(nodes, np.iinfo(np.int64).max, np.int64)
    least[root] = 0
    waiting = [(np.int64(0), np.int64(root))]
    while len(waiting) > 0:
        cost, node = heapq.heappop(waiting)
        if cost > least[node]:
            continue
        for slot in range(ways.offsets[node], ways.offsets[node + 1]):
            link = ways.links[slot]
            further = cost + ways.cost[link]
            if further < least[ways.far[link]]:
                least[ways.far[link]] = further
                via[ways.far[link]] = link
                heapq.heappush(waiting, (np.int64(further), np.int64(ways.far[link])))
    return via


def _disconnected(fabric: Fabric, source: int, target: int) -> FabricError:
    failed = np.flatnonzero(fabric.is_failed)
    if not len(failed):
        return FabricError(
            f"no way from chip {source} to chip {target}: no tier joins the coordinates in which they differ"
        )
    named = ", ".join(link_name(fabric, int(link)) for link in failed[:MAX_NAMED])
    more = f" and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
    return FabricError(
        f"no way from chip {source} to chip {target}: failed links cut them off ({named}{more})"
    )
