"""How many bytes do the messages of a collective hold in all? Closed forms, to hold what runs against.

An all_gather brings each rank what is of every other once, a reduce_scatter takes it away, whatever the algorithm: ranks (ranks - 1) segments.
An all_reduce is both (Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice, and experience, 2007).
"""

from __future__ import annotations

from collections.abc import Sequence

from trnprof.emulator.collectives.algorithms.barrier import BARRIER_BYTES
from trnprof.emulator.collectives.algorithms.names import (
    ALL_PAIRS,
    HIERARCHICAL,
    KANGARING,
    MULTI_RING,
    RING,
    TREE,
)
from trnprof.emulator.collectives.algorithms.register import resolve
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import (
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    SEND_RECV,
)


def volume_bytes(collective: str, algorithms: Sequence[str], group: Group, bytes: int) -> int:
    """Sum over the messages of a collective.

    Of multi-ring, kangaring and hierarchical, which cut the buffer into parts, it is exact where the segments of every part are whole bytes;
    their messages hold somewhat more otherwise, as segments are rounded up.

    Args:
        collective: a name of ``messages.COLLECTIVES``.
        algorithms: see ``algorithms.plan``.
        group: among whom.
        bytes: of the full buffer.

    Raises:
        CollectiveError: see ``algorithms.plan``.
    """
    names = resolve(collective, algorithms, group)
    ranks = len(group)
    if ranks == 1:
        return 0
    if collective == BARRIER:
        return ranks * (ranks - 1).bit_length() * BARRIER_BYTES
    if collective in (PERMUTE, SEND_RECV):
        return bytes * (ranks if collective == PERMUTE else 1)
    if collective == BROADCAST:
        return bytes * (ranks - 1)
    segment = -(-bytes // ranks)
    if collective == ALL_TO_ALL:
        return ranks * segment * _segments_sent(names, group)
    times = 2 if collective == ALL_REDUCE else 1
    if names[0] in (TREE, MULTI_RING, KANGARING, HIERARCHICAL):
        return times * (ranks - 1) * bytes
    return times * ranks * (ranks - 1) * segment


def _segments_sent(names: tuple[str, ...], group: Group) -> int:
    """What a rank sends in an all_to_all: in each dimension all but its own share; by a ring each as often as it is far."""
    ranks, sizes = len(group), group.sizes
    if names[0] == ALL_PAIRS:
        sizes = (ranks,)
    if names[0] == HIERARCHICAL:
        instances = group.instance_count
        sizes = sizes if len(sizes) > 1 else (ranks // instances, instances)
        names = names * len(sizes)
    return sum(
        ranks * (size - 1) // 2 if name == RING else ranks // size * (size - 1)
        for size, name in zip(sizes, names, strict=True)
    )
