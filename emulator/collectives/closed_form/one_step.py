"""Which step of a ring stands for all of its steps, where only the bytes on links are asked for? A formula needs no more."""

from __future__ import annotations

from collections.abc import Sequence

from trnprof.emulator.collectives.algorithms.names import RING
from trnprof.emulator.collectives.algorithms.point_to_point import permute
from trnprof.emulator.collectives.algorithms.register import resolve
from trnprof.emulator.collectives.closed_form.formulas import PHASES, ring_steps
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import BROADCAST, Messages
from trnprof.emulator.collectives.request import CLOSED_FORM, Request


def plan_ring(
    request: Request, algorithms: Sequence[str], group: Group
) -> tuple[Messages, int] | None:
    """One step of a ring in one dimension, and how many there are; None where all messages are needed, or there are none.

    In each, every rank sends a segment to the next one (see ``ring_steps``).

    Args:
        request: what is asked.
        algorithms: by which it runs.
        group: among whom.

    Raises:
        CollectiveError: see ``algorithms.plan``.
    """
    if request.fidelity != CLOSED_FORM or len(group.sizes) != 1 or group.replicas > 1:
        return None
    collective, ranks = request.collective, len(group)
    if collective not in PHASES or collective == BROADCAST or request.bytes < 1 or ranks == 1:
        return None
    is_ragged = request.sent_bytes is not None
    if resolve(collective, algorithms, group, is_ragged=is_ragged) != (RING,):
        return None
    steps = sum(ring_steps(phase, ranks) for phase in PHASES[collective])
    return permute(ranks, -(-request.bytes // ranks)), steps
