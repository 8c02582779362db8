"""Which algorithm does a collective run by where the caller names none, and why?

AWS's library changes its algorithm with the size of the buffer (Neuron documents, intra-node collectives, Algorithm Summary): mesh below 1 MB,
recursive halving-doubling to 56 MB, KangaRing above, rings elsewhere; hierarchical over several instances. The sizes are figures of the machine.
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.names import (
    ALL_PAIRS,
    DIRECT,
    DISSEMINATION,
    HALVING_DOUBLING,
    HIERARCHICAL,
    KANGARING,
    MULTI_RING,
    RING,
)
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import (
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    SEND_RECV,
)
from trnprof.emulator.machine import Machine


def choose(
    collective: str, bytes: int, group: Group, machine: Machine | None
) -> tuple[tuple[str, ...], str]:
    """The algorithm, as ``algorithms.plan`` takes it, and the reason, as it is printed.

    Args:
        collective: a name of ``messages.COLLECTIVES``.
        bytes: of the full buffer.
        group: among whom.
        machine: None for a made-up fabric.
    """
    if collective == BARRIER:
        return (DISSEMINATION,), "a barrier's only algorithm"
    if collective in (PERMUTE, SEND_RECV):
        return (DIRECT,), "from rank to rank"
    sizes = machine.collectives if machine else None
    if collective == ALL_TO_ALL:
        if sizes and bytes < sizes.direct_below_bytes:
            return (DIRECT,), f"below {_megabytes(sizes.direct_below_bytes)}: fewest messages"
        return (ALL_PAIRS,), "every rank has something for every other"
    if sizes is None:
        return (RING,), "at which sizes another is used is not known of this machine"
    if _is_hierarchical(group):
        return (HIERARCHICAL,), "ranks on several instances"
    limit, larger = sizes.direct_below_bytes, sizes.halving_doubling_below_bytes
    if bytes < limit:
        return (DIRECT,), f"below {_megabytes(limit)}: fewest steps"
    if collective == BROADCAST:
        return (RING,), f"{_megabytes(limit)} or more: a pipelined chain"
    if bytes < larger and all(size & (size - 1) == 0 for size in group.sizes):
        return (HALVING_DOUBLING,), f"{_megabytes(limit)} to {_megabytes(larger)}"
    if len(np.unique(group.instances)) > 1:
        return (MULTI_RING,), f"{_megabytes(limit)} or more, over instances alone"
    if bytes < larger:
        return (KANGARING,), f"below {_megabytes(larger)}, but no power of two"
    return (KANGARING,), f"{_megabytes(larger)} or more"


def _is_hierarchical(group: Group) -> bool:
    """Whether it has as many ranks, and more than one, on each of several instances."""
    _, counts = np.unique(group.instances, return_counts=True)
    return len(counts) > 1 and counts[0] > 1 and bool((counts == counts[0]).all())


def _megabytes(bytes: int) -> str:
    return f"{bytes / 1e6:g} MB"
