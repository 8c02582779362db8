"""By what is a collective's algorithm bandwidth multiplied to compare it with the links' bandwidth?"""

from __future__ import annotations

from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
)
from trnprof.emulator.collectives.request import Request


def request_bus_factor(request: Request) -> float:
    """The factor of what is asked.

    Of a ragged all_to_all, it is the most that any rank sends to others over ``request.bytes``, the most that any has, what it keeps included: so the bus
    bandwidth is never more than a rank's links carry, and that of ``bus_factor`` where all send alike.
    """
    if request.sent_bytes is None:
        return bus_factor(request.collective, request.members)
    most = max(sum(row) - row[rank] for rank, row in enumerate(request.sent_bytes))
    return most / request.bytes if request.bytes else 0.0


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
