"""Which send belongs to which receive? Where all ranks do the same, what a rank sends is what another receives.

So a send and a receive of as many bytes in one group are one message: every rank sends as far along the group. It begins at the later
of the two calls, reads what is sent and writes what is received; the earlier call moves nothing. What finds no partner is a message
of rank 0 alone: such a program's ranks differ.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trnprof.emulator.collectives.messages import PERMUTE, SEND_RECV
from trnprof.emulator.workload import Operation

UNPAIRED: Final = (
    "{} send(s) or receive(s) of rank 0 have no counterpart in rank 0, so ranks differ (pipeline stages do): they are timed as lone "
    "messages, and what other ranks do for themselves is not in the trace"
)


def pair_messages(operations: Sequence[Operation]) -> tuple[list[Operation], int]:
    """Make one message of each send and its receive.

    Args:
        operations: in issue order.

    Returns:
        The operations, as many; how many sends and receives found no partner.
    """
    paired = list(operations)
    waiting: defaultdict[tuple[int, int, bool], deque[int]] = defaultdict(deque)
    for position, op in enumerate(operations):
        call = op.collective
        if call is None or call.kind != SEND_RECV:
            continue
        sends = bool(op.inputs)
        others = waiting[call.group, call.nbytes, not sends]
        if not others:
            waiting[call.group, call.nbytes, sends].append(position)
            continue
        earlier = others.popleft()
        send, receive = (op, operations[earlier]) if sends else (operations[earlier], op)
        assert send.collective is not None
        freed = {
            number for other in operations[earlier + 1 : position + 1] for number in other.freed
        }
        paired[position] = replace(
            op,
            inputs=tuple(ref for ref in send.inputs if ref.tensor not in freed),
            outputs=receive.outputs,
            collective=replace(send.collective, kind=PERMUTE),
        )
        paired[earlier] = replace(operations[earlier], collective=None, is_view=True, outputs=())
    return paired, sum(map(len, waiting.values()))
