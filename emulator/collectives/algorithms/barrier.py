"""Which messages make every rank wait for every other? A dissemination barrier of tiny ones.

Hensgen, Finkel, Manber: Two algorithms for barrier synchronization (1988): in round t a rank tells the one 2**t further on that it, and all that it
has heard of, have come. ceil(log2(ranks)) rounds, any number of ranks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.fabric.fabric import I64

BARRIER_BYTES: Final = 4
"""Of a message: one semaphore update."""


def dissemination(ranks: int) -> Messages:
    """The messages of a barrier; each waits for all that its sender has heard in the rounds before."""
    rounds = (ranks - 1).bit_length()
    index = np.arange(ranks)
    turn = np.repeat(np.arange(rounds), ranks)
    # int64[rounds, ranks]: the message by which a rank hears in a round
    heard = np.array([t * ranks + (index - (1 << t)) % ranks for t in range(rounds)], np.int64)
    waits = [heard[:t].T.ravel() for t in range(rounds)]
    offsets = np.zeros(rounds * ranks + 1, np.int64)
    np.cumsum(turn, out=offsets[1:])
    source = np.tile(index, rounds)
    return Messages(
        source=source.astype(np.int32),
        target=((source + (1 << turn)) % ranks).astype(np.int32),
        bytes=np.full(rounds * ranks, BARRIER_BYTES, np.int64),
        step=turn.astype(np.int32),
        is_reduced=np.zeros(rounds * ranks, np.bool_),
        dependency_offsets=offsets,
        dependencies=_joined(waits),
    )


def _joined(arrays: list[I64]) -> I64:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
