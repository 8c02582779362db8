"""How does a collective run over several instances? Within each and between them by turns, so that little crosses the slow network.

After AWS's description (Neuron documents, inter-node collectives, Hierarchical): all_gather between instances, then within; reduce_scatter
within, then between; all_reduce within, between, within. "Between" joins the ranks that have the same place in their instances.

Between more instances than ``MANY_INSTANCES`` other rules hold, ours, an estimate. A ring has as many steps as other instances, each of which costs its
latency; direct has as many messages as that to post. Reductions take ``circulant`` steps instead, as many as the number of instances has bits, with the
bytes of a ring and through the same ports; a broadcast goes down a tree. Both are for a network without blocking, which is how it is modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import grid_positions
from trnprof.emulator.collectives.algorithms.dimensions import run_dimensions
from trnprof.emulator.collectives.algorithms.multi_ring import rings
from trnprof.emulator.collectives.algorithms.names import (
    CIRCULANT,
    DIRECT,
    HALVING_DOUBLING,
    RING,
    TREE,
)
from trnprof.emulator.collectives.algorithms.steps import Steps, merge
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import ALL_TO_ALL, BROADCAST, Messages
from trnprof.emulator.fabric.fabric import I32
from trnprof.emulator.fabric.scale_out import INSTANCE
from trnprof.tracer.errors import CollectiveError

DIRECT_BELOW_BYTES: Final = 1_000_000
HALVING_DOUBLING_BELOW_BYTES: Final = 56_000_000
"""Sizes at which a stage changes its algorithm (Neuron documents, intra-node collectives, Algorithm Summary)."""
MANY_INSTANCES: Final = 16
"""Up to so many those sizes hold between instances too. At 1.5 us a post and 17 us a message (Trainium2 over EFA), 16 more posts are a message more."""


@dataclass(frozen=True)
class _Levels:
    """A group as a grid whose last dimension is the instance.

    Attributes:
        within: sizes of the dimensions within an instance; none where each holds one rank.
        bytes_per_s: what a rank can send along each.
        instances: how many.
        positions: int32[ranks], position of each place of the grid; of a folded group, of the first instance's.
        replicas: how many times it is folded.
    """

    within: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    instances: int
    positions: I32
    replicas: int


def hierarchical(collective: str, group: Group, bytes: int, root: int) -> Messages:
    """The messages; which algorithm each stage runs by depends on its share of the bytes (see ``stage_algorithm``).

    A stage of rings within instances uses all their dimensions both ways, as ``multi_ring`` does.

    Raises:
        CollectiveError: one instance, instances with unequal numbers of ranks, or too many messages.
    """
    levels = _levels(group)
    if collective in (ALL_TO_ALL, BROADCAST):
        is_direct = collective == ALL_TO_ALL or bytes < DIRECT_BELOW_BYTES
        stage = DIRECT if is_direct else RING
        is_tree = collective == BROADCAST and levels.instances > MANY_INSTANCES
        run = _run(collective, levels, bytes, stage, TREE if is_tree else stage, root=root)
        return merge([run])
    within = stage_algorithm(levels.within, bytes)
    between = between_algorithm(levels.instances, bytes // prod(levels.within))
    if within != RING or not levels.within:
        return merge([_run(collective, levels, bytes, within, between)])
    return merge(
        [
            _run(collective, levels, share, RING, between, order, is_backward=is_backward)
            for order, is_backward, share in rings(levels.within, levels.bytes_per_s, bytes)
        ]
    )


def _run(
    collective: str,
    levels: _Levels,
    bytes: int,
    within: str,
    between: str,
    order: Sequence[int] | None = None,
    *,
    is_backward: bool = False,
    root: int = 0,
) -> Steps:
    """One part of the buffer: the dimensions within an instance in an order, then the instances."""
    count = len(levels.within)
    dimensions = [*(order or range(count)), count]
    sizes = (*levels.within, levels.instances)
    here, ways = (sizes, dimensions) if levels.replicas == 1 else (levels.within, dimensions[:-1])
    places = grid_positions(here, ways, is_backward=is_backward) if here else np.zeros(1, np.int32)
    steps = run_dimensions(
        collective,
        [sizes[dimension] for dimension in dimensions],
        [within] * count + [between],
        levels.positions[places],
        bytes,
        root,
        levels.replicas,
    )
    steps.is_backward = is_backward
    return steps


def between_algorithm(instances: int, bytes: int) -> str:
    """That of a reduction's stage between instances, each position of which has so many bytes for all of them."""
    if instances > MANY_INSTANCES:
        return CIRCULANT
    return stage_algorithm((instances,), bytes)


def stage_algorithm(sizes: tuple[int, ...], bytes: int) -> str:
    """Direct for small buffers, halving-doubling for middling ones where all sizes are powers of two, rings for the rest."""
    if bytes < DIRECT_BELOW_BYTES:
        return DIRECT
    if bytes < HALVING_DOUBLING_BELOW_BYTES and all(size & (size - 1) == 0 for size in sizes):
        return HALVING_DOUBLING
    return RING


def _levels(group: Group) -> _Levels:
    if group.replicas > 1:
        return _folded_levels(group)
    instances, counts = np.unique(group.instances, return_counts=True)
    if len(instances) < 2:
        raise CollectiveError(
            "hierarchical needs ranks on two instances or more of a system (--system, --instances): choose another "
            "algorithm; over several dimensions ring and direct run one dimension after the other"
        )
    if group.names[-1] == INSTANCE:
        positions = np.arange(len(group), dtype=np.int32)
        return _Levels(group.sizes[:-1], group.ring_bytes_per_s[:-1], group.sizes[-1], positions, 1)
    if (counts != counts[0]).any():
        raise CollectiveError(
            f"hierarchical needs as many ranks on each instance: here are {counts.min()} to {counts.max()}"
        )
    positions = np.argsort(group.instances, kind="stable").astype(np.int32)
    within = (int(counts[0]),) if counts[0] > 1 else ()
    return _Levels(within, (1.0,) * len(within), len(instances), positions, 1)


def _folded_levels(group: Group) -> _Levels:
    """Of the ranks that are there and, as often, the others."""
    positions = np.arange(len(group.ranks), dtype=np.int32)
    within, rates = group.sizes[:-1], group.ring_bytes_per_s[:-1]
    if group.names[-1] != INSTANCE:
        within = (len(positions),) if len(positions) > 1 else ()
        rates = (1.0,) * len(within)
    return _Levels(within, rates, group.replicas, positions, group.replicas)
