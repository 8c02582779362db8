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


def dissemination(ranks: int, replicas: int = 1) -> Messages:
    """The messages of a barrier; each waits for all that its sender has heard in the rounds before.

    Args:
        ranks: of the group.
        replicas: how many times it is folded (see ``Group``).
    """
    rounds, here = (ranks - 1).bit_length(), ranks // replicas
    index = np.arange(here)
    turn = np.repeat(np.arange(rounds), here)
    # int64[rounds, here]: the message by which a rank hears in a round
    heard = np.array([t * here + (index - (1 << t)) % here for t in range(rounds)], np.int64)
    waits = [heard[:t].T.ravel() for t in range(rounds)]
    offsets = np.zeros(rounds * here + 1, np.int64)
    np.cumsum(turn, out=offsets[1:])
    source = np.tile(index, rounds)
    target = (source + (1 << turn)) % ranks
    return Messages(
        source=source.astype(np.int32),
        target=(target % here).astype(np.int32),
        bytes=np.full(rounds * here, BARRIER_BYTES, np.int64),
        step=turn.astype(np.int32),
        is_reduced=np.zeros(rounds * here, np.bool_),
        dependency_offsets=offsets,
        dependencies=_joined(waits),
        whole_target=None if replicas == 1 else target,
    )


def _joined(arrays: list[I64]) -> I64:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
