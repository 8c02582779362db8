"""Over which links does each message go? As ``routes`` says, but a pair of chips that many messages have is looked up once."""

from __future__ import annotations

from typing import Final

import numpy as np

from trnprof.emulator.fabric.fabric import I32, Fabric, Routes
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.scheduler import frozen

MAX_TABLE: Final = 1 << 22
"""Pairs of chips that a table is made for: 16 MB."""


def message_routes(fabric: Fabric, sources: I32, targets: I32, ties: str) -> Routes:
    """The route of each message.

    Args:
        fabric: links.
        sources: int32[m], chips.
        targets: int32[m], chips.
        ties: of ``routes.TIES``.

    Raises:
        FabricError: a pair that nothing joins, or too many links.
    """
    chips = fabric.chips
    if chips * chips > MAX_TABLE or len(sources) <= chips:
        return find_routes(fabric, sources, targets, ties)
    from trnprof.emulator.collectives.routing_kernel import distinct_pairs, repeat_routes

    pair, first = distinct_pairs(frozen(sources, np.int32), frozen(targets, np.int32), chips)
    distinct = find_routes(fabric, sources[first], targets[first], ties)
    if len(first) == len(sources):
        return distinct
    return Routes(*repeat_routes(pair, frozen(distinct.offsets), frozen(distinct.links, np.int32)))
