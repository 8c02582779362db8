"""What are the algorithms called, and which collectives can each do?"""

from __future__ import annotations

from typing import Final

from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    REDUCE_SCATTER,
    SEND_RECV,
)

RING: Final = "ring"
DIRECT: Final = "direct"
HALVING_DOUBLING: Final = "halving-doubling"
TREE: Final = "tree"
KANGARING: Final = "kangaring"
HIERARCHICAL: Final = "hierarchical"
MULTI_RING: Final = "multi-ring"
ALL_PAIRS: Final = "all-pairs"
DISSEMINATION: Final = "dissemination"
CIRCULANT: Final = "circulant"
"""Between many instances, as a stage of ``hierarchical``."""

ALIASES: Final = {"mesh": DIRECT, "rdh": HALVING_DOUBLING}
_REDUCING: Final = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
ALGORITHMS: Final = {
    RING: (*_REDUCING, ALL_TO_ALL, BROADCAST),
    DIRECT: (*_REDUCING, ALL_TO_ALL, BROADCAST, PERMUTE, SEND_RECV),
    HALVING_DOUBLING: _REDUCING,
    TREE: (ALL_REDUCE, BROADCAST),
    KANGARING: _REDUCING,
    HIERARCHICAL: (*_REDUCING, ALL_TO_ALL, BROADCAST),
    MULTI_RING: _REDUCING,
    ALL_PAIRS: (*_REDUCING, ALL_TO_ALL, BROADCAST),
    DISSEMINATION: (BARRIER,),
}
"""What each can do. ``direct`` runs dimension by dimension; ``all-pairs`` is direct among all ranks at once, whose messages pass through the chips between."""
RAGGED: Final = (DIRECT, ALL_PAIRS)
"""Those that can do an all_to_all whose ranks send different amounts: both straight from rank to rank, whatever the dimensions."""
UNFOLDED: Final = (MULTI_RING, KANGARING, TREE)
"""Those that a folded group (see ``Group``) cannot run by: rings that take the instances first, and trees."""
PER_DIMENSION: Final = (RING, DIRECT, HALVING_DOUBLING)
"""Those that run dimension by dimension, so that a list may hold them."""
