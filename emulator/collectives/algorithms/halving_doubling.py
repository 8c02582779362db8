"""With whom does each rank exchange half of what is left? Recursive halving and doubling, log2(size) steps (fabric.md 1.4; AWS's RDH).

The functions are of the same form as those of ``ring``. Halving goes from the nearest partner (half of the buffer, distance 1) to the farthest
(one block, distance size / 2), doubling back again, so most bytes go the shortest way (fabric.md 1.2).
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import Axis
from trnprof.emulator.collectives.algorithms.steps import Steps
from trnprof.emulator.fabric.fabric import I64
from trnprof.tracer.errors import CollectiveError


def reduce_scatter(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """In step t a rank sends, to the one at distance 2**t, the partner's half of the blocks that they both still have.

    Raises:
        CollectiveError: the size is no power of two.
    """
    for bit in range(_log2(axis.size)):
        held = _exchange(steps, axis, step + bit, bit, held, adds=True)
    return step + _log2(axis.size), held


def all_gather(steps: Steps, axis: Axis, step: int, held: I64) -> tuple[int, I64]:
    """In step t a rank sends all blocks that it has so far, 2**t of them, to the one at distance size / 2**(t + 1).

    Raises:
        CollectiveError: the size is no power of two.
    """
    bits = _log2(axis.size)
    for turn in range(bits):
        held = _exchange(steps, axis, step + turn, bits - 1 - turn, held, adds=False)
    return step + bits, held


def _exchange(steps: Steps, axis: Axis, step: int, bit: int, held: I64, *, adds: bool) -> I64:
    """Each sends to the partner that differs in one bit: the blocks that agree in that and all lower bits with the partner (or, when gathering, with itself)."""
    steps.reserve(axis.ranks, axis.ranks * held.shape[1])
    partner = axis.at(axis.coordinate ^ 1 << bit)
    chosen = axis.coordinate ^ 1 << bit if adds else axis.coordinate
    arrived = steps.count + axis.same(partner)
    steps.add(
        step,
        axis.index,
        partner,
        axis.block_at(chosen % (2 << bit)),
        held,
        segments=axis.block_segments * axis.size // (2 << bit),
        stride=axis.stride * (2 << bit),
        is_reduced=adds,
    )
    return np.concatenate([held, arrived[:, None]], axis=1)


def _log2(size: int) -> int:
    if size & (size - 1):
        raise CollectiveError(
            f"halving-doubling needs a power of two, not {size} ranks: choose ring or direct"
        )
    return size.bit_length() - 1
