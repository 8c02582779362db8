"""In which order are the operations of an execution trace taken up on a machine that is to run them as ASTRA-sim does?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trnprof.emulator.csr import offsets_of
from trnprof.emulator.given import LOAD, ON_HOST, STORE, given_cost
from trnprof.emulator.lowering.given import duration_ps
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.workload import Operation

_COMPUTING, _COMMUNICATING, _HOST = range(3)
_RESOURCES: Final = {ON_HOST: _HOST, LOAD: _COMMUNICATING, STORE: _COMMUNICATING}
"""Of those that are no collectives; transfers to and from memory count as communication there."""


def order_taken_up(operations: Sequence[Operation], ranks: Ranks) -> list[tuple[int, ...]]:
    """Positions of operations, each a group of its own, in the order in which they start.

    Ranks of a program that are unequal (one is late, or slow) take them up in one order all the same, that of ranks which are not: else two
    might wait for each other.

    Args:
        operations: of a given cost; their tokens are numbered by the ids of their nodes.
        ranks: those of the program.
    """
    from trnprof.emulator.lowering.take_up_kernel import take_up

    makers = {op.outputs[0].tensor: position for position, op in enumerate(operations)}
    sources = [
        [makers[ref.tensor] for ref in op.inputs if ref.tensor in makers] for op in operations
    ]
    resources, durations = [], []
    for op in operations:
        cost = given_cost(op)
        assert cost is not None
        if op.collective is None:
            resources.append(_RESOURCES.get(cost.what, _COMPUTING))
            durations.append(duration_ps(ranks, cost))
        else:
            resources.append(_COMMUNICATING)
            durations.append(ranks.common_cost(op.collective).duration_ps)
    order = take_up(
        np.array([op.outputs[0].tensor for op in operations], np.int64),
        np.array(resources, np.int64),
        np.array(durations, np.int64),
        offsets_of(np.array([len(each) for each in sources], np.int64)),
        np.array([source for each in sources for source in each], np.int64),
    )
    return [(position,) for position in order.tolist()]
