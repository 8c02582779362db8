"""Over which links do bytes go from one chip to another?

In dimension order: over the tiers that ``chains`` picks, one after the other, each to the place of the target in what it spans; on a ring the
shorter way round. Pairs whose route has a failed link, and they alone, go the way of ``reroute``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.chains import tier_chains
from trnprof.emulator.fabric.fabric import I64, Fabric, Routes
from trnprof.emulator.fabric.layout import coordinate_values, lay_out
from trnprof.emulator.fabric.topology import KINDS, Topology
from trnprof.tracer.errors import FabricError

CLOCKWISE: Final = "clockwise"
BALANCED: Final = "balanced"
TIES: Final = (CLOCKWISE, BALANCED)
MAX_ROUTE_LINKS: Final = 2**28
"""Of all routes of one call: 1 GiB of them."""


def find_routes(
    fabric: Fabric,
    sources: NDArray[np.integer[Any]],
    targets: NDArray[np.integer[Any]],
    ties: str = CLOCKWISE,
) -> Routes:
    """The route of each pair.

    Takes O(links of all routes), and a search over the fabric for each source (or target, if those are fewer) that failed links touch.

    Args:
        fabric: links, failed ones marked.
        sources: int[pairs], chips.
        targets: int[pairs], chips; where a pair has one chip twice, its route is empty.
        ties: which way to the chip opposite on a ring of even size: "clockwise" (up; as ASTRA-sim does), or "balanced": so from even
            places, the other way from odd ones, which loads both directions alike in uniform traffic.

    Raises:
        FabricError: a chip out of range, a pair that nothing joins, or too many routes.
    """
    if ties not in TIES:
        raise FabricError(f"ties {ties!r}: known are {', '.join(TIES)}")
    source = _checked(fabric, sources)
    target = _checked(fabric, targets)
    from trnprof.emulator.fabric import route_kernel as kernel

    tables = _tables(fabric.topology)._replace(
        first_link=np.ascontiguousarray(fabric.first_link[:-1])
    )
    counts = kernel.count_links(tables, source, target)
    lost = counts < 0
    offsets = offsets_of(np.maximum(counts, 0))
    if offsets[-1] > MAX_ROUTE_LINKS:
        raise FabricError(
            f"{len(counts):,} routes of {offsets[-1]:,} links are too many; at most "
            f"{MAX_ROUTE_LINKS:,} links: use fewer chips"
        )
    links = kernel.write_links(tables, source, target, offsets, ties == BALANCED)
    routes = Routes(offsets, links)
    if fabric.is_failed.any():
        lost |= kernel.pairs_over(offsets, links, fabric.is_failed)
    if not lost.any():
        return routes
    from trnprof.emulator.fabric.reroute import reroute

    return _replaced(routes, lost, reroute(fabric, source[lost], target[lost]))


def _checked(fabric: Fabric, chips: NDArray[np.integer[Any]]) -> I64:
    numbers = np.ascontiguousarray(chips, np.int64)
    wrong = (numbers < 0) | (numbers >= fabric.chips)
    if wrong.any():
        raise FabricError(
            f"chip {numbers[wrong][0]} is out of range; chips are 0..{fabric.chips - 1}"
        )
    return numbers


@lru_cache(maxsize=8)
def _tables(topology: Topology) -> Any:
    """What routes are made by, without the numbers of links."""
    from trnprof.emulator.fabric.route_kernel import Tables

    layouts = [lay_out(topology, tier) for tier in topology.tiers]
    shape = (len(layouts), topology.chips)
    return Tables(
        values=coordinate_values(topology),
        chains=tier_chains(topology),
        kind=np.array([KINDS.index(tier.kind) for tier in topology.tiers], np.int64),
        size=np.array([layout.size for layout in layouts], np.int64),
        leaves=np.array([layout.leaves for layout in layouts], np.int64),
        first_link=np.empty(0, np.int64),
        place=np.array([layout.place for layout in layouts], np.int64).reshape(shape),
        offset=np.array([layout.offset for layout in layouts], np.int64).reshape(shape),
        switch=np.array([layout.switch for layout in layouts], np.int64).reshape(shape),
        stride=np.array([layout.offset_of_place[1:2].sum() for layout in layouts], np.int64),
    )


def _replaced(routes: Routes, lost: NDArray[np.bool_], others: Routes) -> Routes:
    """Routes with those of some pairs exchanged for others, in order."""
    counts = np.diff(routes.offsets)
    kept = np.repeat(~lost, counts)
    counts = counts.copy()
    counts[lost] = np.diff(others.offsets)
    offsets = offsets_of(counts)
    is_other = np.repeat(lost, counts)
    links = np.empty(offsets[-1], np.int32)
    links[is_other] = others.links
    links[~is_other] = routes.links[kept]
    return Routes(offsets, links)
