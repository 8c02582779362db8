"""What does each rank send straight to every other of its line? All at once, one step (fabric.md 1.4; AWS's Mesh).

The functions are of the same form as those of ``ring``. Messages go to the next rank first, then to the one after it, …, so that no receiver
is everybody's first. The gather of an all_reduce that comes back along a dimension begins with the rank before instead, the other way round
(as ASTRA-sim does). An all_reduce is both steps one after the other, not AWS's single-step variant (which moves N / 2 times as much).
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import Axis
from trnprof.emulator.collectives.algorithms.steps import Steps
from trnprof.emulator.fabric.fabric import I64


def reduce_scatter(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """To each rank the block that is its own."""
    distances = _distances(steps, axis, held)
    blocks = axis.block_at(axis.coordinate + distances)
    return _send(steps, axis, step, blocks, held, distances, adds=True)


def all_gather(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """To each rank the sender's own block."""
    distances = _distances(steps, axis, held)
    return _send(steps, axis, step, axis.block_at(axis.coordinate), held, distances)


def all_gather_back(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """The same, to the rank before first, then to the one before that, and so on."""
    distances = _distances(steps, axis, held)[::-1]
    return _send(steps, axis, step, axis.block_at(axis.coordinate), held, distances)


def all_to_all(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """To each rank all that its coordinate's block is to get, from whomever the sender has it."""
    distances = _distances(steps, axis, held)
    blocks = axis.block_at(axis.coordinate + distances)
    return _send(steps, axis, step, blocks, held, distances, copies=axis.stride)


def _send(
    steps: Steps,
    axis: Axis,
    step: int,
    blocks: I64,
    held: I64,
    distances: I64,
    *,
    copies: int = 1,
    adds: bool = False,
) -> tuple[int, I64]:
    """Send blocks, int64[size - 1 or nothing, ranks], to the ranks at the distances, int64[size - 1, 1], in this order."""
    senders = axis.same(axis.at(axis.coordinate - distances))
    arrived = steps.count + np.arange(len(distances))[:, None] * axis.ranks + senders
    steps.add(
        step,
        axis.index,
        axis.at(axis.coordinate + distances),
        blocks,
        held,
        segments=axis.block_segments,
        stride=axis.block_stride,
        copies=copies,
        is_reduced=adds,
    )
    return step + 1, np.concatenate([arrived.T, held], axis=1)


def _distances(steps: Steps, axis: Axis, held: I64) -> I64:
    """To each of the others, int64[size - 1, 1]; refused before anything of their number is made, where they are too many."""
    messages = (axis.size - 1) * axis.ranks
    steps.reserve(messages, messages * held.shape[1])
    return np.arange(1, axis.size)[:, None]
