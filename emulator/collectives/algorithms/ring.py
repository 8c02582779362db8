"""What does each rank send to the next around a ring? One direction, one segment a step (fabric.md 1.4; AWS's Ring).

Every function adds the messages of one axis of a grid of ranks and returns the next free step and ``held``: the messages by which each rank has
got what it goes on with (int64[ranks, k]).
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import Axis
from trnprof.emulator.collectives.algorithms.steps import Steps
from trnprof.emulator.fabric.fabric import I64


def reduce_scatter(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """In step t a rank sends the block of the rank t + 1 before it, with its own share added: size - 1 steps.

    Args:
        steps: to add to.
        axis: along which.
        step: the first.
        held: messages that each rank must have got before it begins.
    """
    turn = _turns(steps, axis, held.shape[1] * (axis.size - 1))
    blocks = axis.block_at(axis.coordinate - 1 - turn)
    arrived = _go_round(steps, axis, step, blocks, held, adds=True)
    return step + axis.size - 1, np.concatenate([arrived[:, -1:], held], axis=1)


def all_gather(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """In step 0 a rank sends its own block, in later ones that which it has just got: size - 1 steps."""
    turn = _turns(steps, axis, held.shape[1])
    blocks = axis.block_at(axis.coordinate - turn)
    arrived = _go_round(steps, axis, step, blocks, held, adds=False)
    return step + axis.size - 1, np.concatenate([arrived, held], axis=1)


def _turns(steps: Steps, axis: Axis, others: int) -> I64:
    """int64[size - 1, 1], the turns of a round; refused before anything of their number is made, where there are too many messages.

    Args:
        steps: to add to.
        axis: along which.
        others: how often a rank of all turns waits for messages of other axes.
    """
    turns = axis.size - 1
    steps.reserve(turns * axis.ranks, (turns + others) * axis.ranks)
    return np.arange(turns)[:, None]


def _go_round(steps: Steps, axis: Axis, step: int, blocks: I64, held: I64, *, adds: bool) -> I64:
    """Send the blocks, int64[turns, ranks], each to the next rank; what goes on in a turn has come in the one before.

    Returns:
        int64[ranks, turns], the message by which each rank got what came in each turn.
    """
    turns, needed = len(blocks), held.shape[1]
    before, after = axis.same(axis.at(axis.coordinate - 1)), axis.at(axis.coordinate + 1)
    arrived = steps.count + np.arange(turns)[:, None] * axis.ranks + before
    passed_on = arrived[:-1, :, None]
    if adds and needed:
        own = np.broadcast_to(held, (turns - 1, *held.shape))
        passed_on = np.concatenate([passed_on, own], axis=2)
    for turn, dependencies in ((slice(0, 1), held[None]), (slice(1, None), passed_on)):
        steps.add(
            step + np.arange(turns)[turn, None],
            axis.index,
            after,
            blocks[turn],
            dependencies,
            segments=axis.block_segments,
            stride=axis.block_stride,
            is_reduced=adds,
        )
    return arrived.T


def all_to_all(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """What is for the rank d further on goes d times to the next, for one d after the other: size (size - 1) / 2 steps (fabric.md 1.2)."""
    before, after = axis.same(axis.at(axis.coordinate - 1)), axis.at(axis.coordinate + 1)
    hops = axis.size * (axis.size - 1) // 2
    steps.reserve(hops * axis.ranks, (hops + (axis.size - 1) * held.shape[1]) * axis.ranks)
    arrivals: list[I64] = []
    for distance in range(1, axis.size):
        hop = np.arange(distance)[:, None]
        arrived = steps.count + hop * axis.ranks + before
        blocks = axis.block_at(axis.coordinate - hop + distance)
        begun_after = np.concatenate([*(last[:, None] for last in arrivals[-1:]), held], axis=1)
        for turn, dependencies in (
            (slice(0, 1), begun_after[None]),
            (slice(1, None), arrived[:-1, :, None]),
        ):
            steps.add(
                step + hop[turn],
                axis.index,
                after,
                blocks[turn],
                dependencies,
                segments=axis.block_segments,
                stride=axis.block_stride,
                copies=axis.stride,
            )
        step += distance
        arrivals.append(arrived[-1])
    return step, np.concatenate([np.stack(arrivals, axis=1), held], axis=1)
