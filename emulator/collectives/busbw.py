"""By what is a collective's algorithm bandwidth multiplied to compare it with the links' bandwidth?"""

from __future__ import annotations

from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
)


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests and nccom-test count it (their PERFORMANCE and reference pages).

    Args:
        collective: a name of ``messages.COLLECTIVES``.
        ranks: of its group.
    """
    if collective == ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if collective in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        return (ranks - 1) / ranks
    return 1.0
