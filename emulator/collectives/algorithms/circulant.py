"""How do any number of ranks, alike in all they do, scatter or gather in a logarithmic number of steps? Over a circulant graph.

Träff: Optimal, non-pipelined reduce-scatter and allreduce algorithms (arXiv:2410.14234, 2024); the gather is that of Bruck, Ho, Kipnis, Upfal and
Weathersby: Efficient algorithms for all-to-all communications in multiport message-passing systems (1997). ceil(log2(size)) steps, in which each rank
sends size - 1 blocks in all, the least that is possible, whatever the size. Partners are as far apart as half of the ranks, so it is for switches. NCCL's
PAT goes over the same distances (NVIDIA developer blog, NCCL 2.23, 2025).

The functions are of the same form as those of ``ring``; the axis is the last one of its grid, so that a block is one segment.
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import Axis
from trnprof.emulator.collectives.algorithms.steps import Steps
from trnprof.emulator.fabric.fabric import I64


def skips(size: int) -> list[tuple[int, int]]:
    """The distance of each step of a scatter, and how many blocks it moves.

    >>> skips(5)
    [(3, 2), (2, 1), (1, 1)]
    """
    found = []
    while size > 1:
        distance = (size + 1) // 2
        found.append((distance, size - distance))
        size = distance
    return found


def reduce_scatter(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """Of the blocks of the ranks 0 to n - 1 further on, a rank sends the farther half to the rank half of n further on: n halves."""
    for number, (distance, blocks) in enumerate(skips(axis.size)):
        first = axis.block_at(axis.coordinate + distance)
        held = _send(steps, axis, step + number, distance, blocks, first, held, adds=True)
    return step + len(skips(axis.size)), held


def all_gather(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """The same backwards: the blocks that a rank has, its own and those of ranks further on, go back to where they are still missing."""
    first = axis.block_at(axis.coordinate)
    for number, (distance, blocks) in enumerate(reversed(skips(axis.size))):
        held = _send(steps, axis, step + number, -distance, blocks, first, held, adds=False)
    return step + len(skips(axis.size)), held


def _send(
    steps: Steps,
    axis: Axis,
    step: int,
    distance: int,
    blocks: int,
    first: I64,
    held: I64,
    *,
    adds: bool,
) -> I64:
    """Each sends so many blocks so far, and has then got those of the rank as far the other way."""
    assert axis.block_segments == 1
    steps.reserve(axis.ranks, axis.ranks * held.shape[1])
    arrived = steps.count + axis.same(axis.at(axis.coordinate - distance))
    steps.add(
        step,
        axis.index,
        axis.at(axis.coordinate + distance),
        first,
        held,
        segments=blocks,
        stride=axis.stride,
        is_reduced=adds,
    )
    return np.concatenate([held, arrived[:, None]], axis=1)
