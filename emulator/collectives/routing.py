"""Over which links does each message go? As ``routes`` says, but a pair of chips that many messages have is looked up once.

Of a folded group (see ``Group``) those within the instance do; those to another go over the network, up from their sender and down to the receiver's twin in the
first instance: that of a message from elsewhere, which does the same there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import I32, Fabric, Routes
from trnprof.emulator.fabric.folding import first_instance, network_links
from trnprof.emulator.fabric.routes import find_routes
from trnprof.emulator.scheduler import frozen

MAX_TABLE: Final = 1 << 22
"""Pairs of chips that a table is made for: 16 MB."""


def message_routes(fabric: Fabric, messages: Messages, chips: I32, ties: str) -> Routes:
    """The route of each message.

    Args:
        fabric: links.
        messages: of a group.
        chips: int32[ranks], of the group's positions.
        ties: of ``routes.TIES``.

    Raises:
        FabricError: a pair that nothing joins, or too many links.
    """
    sources, targets = chips[messages.source], chips[messages.target]
    if messages.whole_target is None:
        return _pair_routes(fabric, sources, targets, ties)
    crosses = messages.whole_target >= len(chips)
    within = _pair_routes(first_instance(fabric), sources[~crosses], targets[~crosses], ties)
    counts = np.full(len(messages), 2)
    counts[~crosses] = np.diff(within.offsets)
    is_network = np.repeat(crosses, counts)
    up, down = network_links(fabric, sources[crosses], targets[crosses])
    links = np.empty(len(is_network), np.int32)
    links[~is_network] = within.links
    links[is_network] = np.stack([up, down], axis=1).ravel()
    return Routes(offsets_of(counts), links)


def _pair_routes(fabric: Fabric, sources: I32, targets: I32, ties: str) -> Routes:
    """The route from each source to its target.

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
