"""Which algorithm does a collective run by where the caller names none, and why?

AWS's library changes its algorithm with the size of the buffer (Neuron documents, intra-node collectives, Algorithm Summary): mesh below 1 MB,
recursive halving-doubling to 56 MB, KangaRing above, rings elsewhere; hierarchical over several instances. The sizes are figures of the machine.

That is for tori, whose chips have neighbours. Where one switch joins all chips, two rules of ours come first, an estimate, as no one has printed any:

* Direct, whatever the size: one step, and no link carries more than by a ring, which takes as many steps as there are other ranks.
* A broadcast to more ranks than a message has chunks goes along a tree. A chain of S steps takes S + c - 1 times as long as one of its c chunks
  over a link, so less than the 2 c of a tree only while S <= c.

Over more than ``MANY_INSTANCES`` instances it is ``hierarchical`` at all sizes and on all machines, where there are as many ranks on each: what grows with the
number of instances by other algorithms grows with its logarithm by this one (see ``hierarchical``), or, of an all_to_all, is least. An estimate too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trnprof.emulator.collectives.algorithms.circulant import skips
from trnprof.emulator.collectives.algorithms.hierarchical import MANY_INSTANCES
from trnprof.emulator.collectives.algorithms.names import (
    ALL_PAIRS,
    DIRECT,
    DISSEMINATION,
    HALVING_DOUBLING,
    HIERARCHICAL,
    KANGARING,
    MULTI_RING,
    RING,
    TREE,
)
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import (
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    SEND_RECV,
)
from trnprof.emulator.collectives.request import DEFAULT_CHUNKS
from trnprof.emulator.fabric.topology import SWITCH
from trnprof.emulator.machine import Machine

_ESTIMATE: Final = "an estimate, as AWS's sizes are for tori"


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
    if _is_on_many(group):
        return (HIERARCHICAL,), _many(collective, group.instance_count)
    sizes = machine.collectives if machine else None
    if collective == ALL_TO_ALL:
        if sizes and bytes < sizes.direct_below_bytes:
            return (DIRECT,), f"below {_megabytes(sizes.direct_below_bytes)}: fewest messages"
        return (ALL_PAIRS,), "every rank has something for every other"
    has_switch = machine is not None and _is_one_switch(machine, group)
    if collective == BROADCAST and has_switch and len(group) - 1 > DEFAULT_CHUNKS:
        return (TREE,), f"one switch joins all: sooner than {len(group) - 1} ranks in a chain"
    if sizes is None:
        return (RING,), "at which sizes another is used is not known of this machine"
    if _is_hierarchical(group):
        return (HIERARCHICAL,), "ranks on several instances"
    if has_switch and collective != BROADCAST:
        return (DIRECT,), f"one switch joins all: fewest steps ({_ESTIMATE})"
    limit, larger = sizes.direct_below_bytes, sizes.halving_doubling_below_bytes
    if bytes < limit:
        return (DIRECT,), f"below {_megabytes(limit)}: fewest steps"
    if collective == BROADCAST:
        return (RING,), f"{_megabytes(limit)} or more: a pipelined chain"
    if bytes < larger and all(size & (size - 1) == 0 for size in group.sizes):
        return (HALVING_DOUBLING,), f"{_megabytes(limit)} to {_megabytes(larger)}"
    if group.instance_count > 1:
        return (MULTI_RING,), f"{_megabytes(limit)} or more, over instances alone"
    if bytes < larger:
        return (KANGARING,), f"below {_megabytes(larger)}, but no power of two"
    return (KANGARING,), f"{_megabytes(larger)} or more"


def _is_hierarchical(group: Group) -> bool:
    """Whether it has as many ranks, and more than one, on each of several instances."""
    if group.replicas > 1:
        return len(group.ranks) > 1
    _, counts = np.unique(group.instances, return_counts=True)
    return len(counts) > 1 and counts[0] > 1 and bool((counts == counts[0]).all())


def _is_on_many(group: Group) -> bool:
    """Whether it has as many ranks on each of many instances."""
    if group.instance_count <= MANY_INSTANCES:
        return False
    _, counts = np.unique(group.instances, return_counts=True)
    return bool((counts == counts[0]).all())


def _many(collective: str, instances: int) -> str:
    """What runs between so many instances, in words."""
    if collective == ALL_TO_ALL:
        return f"{instances:,} instances: fewest messages over their network (an estimate)"
    if collective == BROADCAST:
        return f"{instances:,} instances: down a tree between them (an estimate)"
    steps, others = len(skips(instances)), instances - 1
    return f"{instances:,} instances: {steps} circulant steps a phase between them, not a ring's {others:,} (an estimate)"


def _is_one_switch(machine: Machine, group: Group) -> bool:
    """Whether all links of the machine lead to one switch, and the ranks are on one such machine."""
    tiers = machine.topology.tiers
    is_switch = (
        group.replicas == 1 and len(tiers) == 1 and tiers[0].kind == SWITCH and not tiers[0].leaf
    )
    return is_switch and bool((group.instances == group.instances[0]).all())


def _megabytes(bytes: int) -> str:
    return f"{bytes / 1e6:g} MB"
