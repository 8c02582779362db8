"""How does a collective run dimension by dimension? A phase of an algorithm along each axis, the buffer shrinking or growing between.

As in fabric.md 1.2: reduce_scatter goes from the first dimension to the last, all_gather back, all_reduce there and back; all_to_all goes through
all dimensions with the full buffer; broadcast comes down from the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trnprof.emulator.collectives.algorithms import (
    broadcast,
    circulant,
    direct,
    halving_doubling,
    ring,
)
from trnprof.emulator.collectives.algorithms.axis import Axis, make_axes
from trnprof.emulator.collectives.algorithms.names import (
    CIRCULANT,
    DIRECT,
    HALVING_DOUBLING,
    RING,
    TREE,
)
from trnprof.emulator.collectives.algorithms.steps import Steps
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
)
from trnprof.emulator.fabric.fabric import I32, I64

Phase = Callable[[Steps, Axis, int, I64], tuple[int, I64]]
RootedPhase = Callable[[Steps, Axis, int, I64, int], tuple[int, I64]]


@dataclass(frozen=True)
class AxisAlgorithm:
    """What an algorithm does along one axis; None for what it cannot do.

    On the way back from the last dimension of an all_reduce, ASTRA-sim goes round the other way (its queues "first" and "last"): that matters
    where messages of different distances share links, so for direct.
    """

    reduce_scatter: Phase | None = None
    all_gather: Phase | None = None
    all_gather_back: Phase | None = None
    all_to_all: Phase | None = None
    broadcast: RootedPhase | None = None


AXIS_ALGORITHMS: Final = {
    RING: AxisAlgorithm(
        ring.reduce_scatter,
        ring.all_gather,
        ring.all_gather,
        ring.all_to_all,
        broadcast.along_chain,
    ),
    DIRECT: AxisAlgorithm(
        direct.reduce_scatter,
        direct.all_gather,
        direct.all_gather_back,
        direct.all_to_all,
        broadcast.from_one,
    ),
    HALVING_DOUBLING: AxisAlgorithm(
        halving_doubling.reduce_scatter, halving_doubling.all_gather, halving_doubling.all_gather
    ),
    CIRCULANT: AxisAlgorithm(circulant.reduce_scatter, circulant.all_gather, circulant.all_gather),
    TREE: AxisAlgorithm(broadcast=broadcast.along_tree),
}


def run_dimensions(
    collective: str,
    sizes: Sequence[int],
    algorithms: Sequence[str],
    positions: I32,
    bytes: int,
    root: int = 0,
    replicas: int = 1,
) -> Steps:
    """The steps of a collective on a grid.

    Args:
        collective: all_reduce, all_gather, reduce_scatter, all_to_all or broadcast.
        sizes: of the grid, fastest first.
        algorithms: names of ``AXIS_ALGORITHMS``, one a dimension, which can do the collective.
        positions: int32[ranks], position in the group of each place of the grid; where it is folded, of the ranks that are there.
        bytes: of the full buffer; a rank's segment is its share rounded up.
        root: position that broadcasts.
        replicas: how many times the group is folded (see ``Group``): along its last dimension.

    Raises:
        CollectiveError: halving-doubling on a size that is no power of two, or too many messages.
    """
    along = list(
        zip(make_axes(sizes, replicas), (AXIS_ALGORITHMS[name] for name in algorithms), strict=True)
    )
    ranks = len(positions) * replicas
    step, held = 0, np.zeros((len(positions), 0), np.int64)
    if collective == BROADCAST:
        return _broadcast(along, positions, bytes, root)
    steps = Steps(positions, -(-bytes // ranks), replicas=replicas)
    if collective == ALL_TO_ALL:
        for axis, algorithm in along:
            assert algorithm.all_to_all is not None
            step, held = algorithm.all_to_all(steps, axis, step, held)
    if collective in (REDUCE_SCATTER, ALL_REDUCE):
        for axis, algorithm in along:
            assert algorithm.reduce_scatter is not None
            step, held = algorithm.reduce_scatter(steps, axis, step, held)
    if collective in (ALL_GATHER, ALL_REDUCE):
        for axis, algorithm in reversed(along):
            is_way_back = collective == ALL_REDUCE and axis.stride * axis.size < ranks
            gather = algorithm.all_gather_back if is_way_back else algorithm.all_gather
            assert gather is not None
            step, held = gather(steps, axis, step, held)
    return steps


def _broadcast(
    along: Sequence[tuple[Axis, AxisAlgorithm]], positions: I32, bytes: int, root: int
) -> Steps:
    steps = Steps(positions, bytes, is_whole=True)
    place = int(np.flatnonzero(positions == root)[0])
    step, brought = 0, np.full(len(positions), -1, np.int64)
    for axis, algorithm in reversed(along):
        assert algorithm.broadcast is not None
        step, brought = algorithm.broadcast(steps, axis, step, brought, place)
    return steps
