"""Which send belongs to which receive? Within a program by what it does itself, between programs of ranks that differ by their order.

Where all ranks do the same, what a rank sends is what another receives. So a send and a receive of as many bytes in one group are one
message: every rank sends as far along the group. It begins at the later of the two calls, reads what is sent and writes what is received;
the earlier call moves nothing. What finds no partner is a message of rank 0 alone.

Between ranks that were each captured a message is the so many-th from one to the other. Both have to tell of it: what one exchanged before its
first forward (weights that are handed out) and the other too is set-up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trnprof.emulator.collectives.messages import PERMUTE, SEND_RECV
from trnprof.emulator.workload import CollectiveCall, Operation, Workload, WorkloadStep

MESSAGE_KEYS: Final = ("message", "setup")
"""What the log says of a send or receive beside the call: the so many-th from its sender to its receiver, whether it came during set-up."""
UNPAIRED: Final = (
    "{} send(s) or receive(s) of rank 0 have no counterpart in rank 0, so ranks differ: they are timed as lone messages, and what other "
    "ranks do for themselves is not in the trace"
)
_ONE_STEP: Final = (
    "what ranks send each other crosses the boundaries of their steps, which were found in each by itself: all is one step; mark steps "
    "with trnprof.step"
)
_CUT_SHORT: Final = (
    "ranks ended in different steps: only the {} step(s) that all of them ended are here"
)


def is_receive(op: Operation) -> bool:
    """Whether it receives what one other rank sends."""
    return op.collective is not None and op.collective.kind == SEND_RECV and not op.inputs


def incomplete(step: int) -> str:
    """The label of a step that the end of the program cut short."""
    return f"step {step} (incomplete)"


def joined(programs: Sequence[Workload]) -> Workload:
    """One workload of what was captured of each rank; the first is the main one."""
    if len(programs) == 1:
        return _paired(programs[0], lambda _: False)
    made = _with_common_steps(_without_setup(programs))
    owner = {rank: i for i, each in enumerate(programs) for rank in each.world.members}
    paired = []
    for number, program in enumerate(made):

        def crosses(
            call: CollectiveCall, number: int = number, program: Workload = program
        ) -> bool:
            ranks = program.groups[call.group].ranks
            return {owner.get(ranks[call.root]), owner.get(ranks[call.target])} != {number}

        paired.append(_paired(program, crosses))
    return replace(paired[0], others=tuple(paired[1:]))


def _paired(program: Workload, crosses: Callable[[CollectiveCall], bool]) -> Workload:
    """The program with one message for each send and its receive."""
    operations, unpaired = pair_messages(program.operations, crosses)
    notes = (*program.notes, UNPAIRED.format(unpaired)) if unpaired else program.notes
    return replace(program, operations=tuple(map(_plain, operations)), notes=notes)


def pair_messages(
    operations: Sequence[Operation], crosses: Callable[[CollectiveCall], bool] = lambda _: False
) -> tuple[list[Operation], int]:
    """Make one message of each send and its receive.

    Args:
        operations: in issue order.
        crosses: whether a message goes to or comes from a rank that runs another program; such ones are left as they are.

    Returns:
        The operations, as many; how many sends and receives found no partner.
    """
    paired = list(operations)
    waiting: defaultdict[tuple[int, int, bool], deque[int]] = defaultdict(deque)
    for position, op in enumerate(operations):
        call = op.collective
        if call is None or call.kind != SEND_RECV or crosses(call):
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
        paired[earlier] = _silent(operations[earlier])
    return paired, sum(map(len, waiting.values()))


@dataclass
class _Message:
    """What both ends tell: position of the operation in its program, -1 for none."""

    send: tuple[int, int] = (-1, -1)
    receive: tuple[int, int] = (-1, -1)


def _messages(programs: Sequence[Workload]) -> list[_Message]:
    """Messages that were numbered, and where each end of them is."""
    found: defaultdict[Any, _Message] = defaultdict(_Message)
    for number, program in enumerate(programs):
        for position, op in enumerate(program.operations):
            call = op.collective
            if call is None or "message" not in op.arguments:
                continue
            ranks = program.groups[call.group].ranks
            key = (ranks, ranks[call.root], ranks[call.target], op.arguments["message"])
            end = "receive" if is_receive(op) else "send"
            setattr(found[key], end, (number, position))
    return list(found.values())


def _without_setup(programs: Sequence[Workload]) -> list[Workload]:
    """Messages that one end exchanged before its first forward and of which the other does not tell, or before its own too, are left out."""
    operations = [list(program.operations) for program in programs]
    for message in _messages(programs):
        ends = [end for end in (message.send, message.receive) if end[1] >= 0]
        if all(operations[n][at].arguments.get("setup") for n, at in ends):
            for number, at in ends:
                operations[number][at] = _silent(operations[number][at])
    return [
        replace(program, operations=tuple(own))
        for program, own in zip(programs, operations, strict=True)
    ]


def _with_common_steps(programs: Sequence[Workload]) -> list[Workload]:
    """The programs up to the last step that all of them ended; with one step, where a message begins in one step and ends in another."""
    if not all(program.complete and _whole(program) for program in programs):
        programs = _cut_short(programs)
    operations = [program.operations for program in programs]
    for message in _messages(programs):
        (a, sent), (b, received) = message.send, message.receive
        if min(sent, received) >= 0 and operations[a][sent].step != operations[b][received].step:
            break
    else:
        return list(programs)
    step = WorkloadStep(
        0, "step 0", programs[0].steps[-1].source if programs[0].steps else "forward"
    )
    return [
        replace(
            program,
            operations=tuple(replace(op, step=0) for op in program.operations),
            steps=(step,) if program.operations else (),
            notes=(*program.notes, _ONE_STEP),
        )
        for program in programs
    ]


def _whole(program: Workload) -> bool:
    return all(step.label != incomplete(step.step) for step in program.steps)


def _cut_short(programs: Sequence[Workload]) -> list[Workload]:
    """Only the steps that each of them ended."""
    common = set.intersection(
        *({s.step for s in p.steps if s.label != incomplete(s.step)} for p in programs)
    )
    note = _CUT_SHORT.format(len(common))
    return [
        replace(
            program,
            operations=tuple(op for op in program.operations if op.step in common),
            steps=tuple(step for step in program.steps if step.step in common),
            notes=(*(n for n in program.notes if "is incomplete" not in n), note),
        )
        for program in programs
    ]


def _silent(op: Operation) -> Operation:
    """An operation that moves nothing."""
    return _plain(replace(op, collective=None, is_view=True, outputs=()))


def _plain(op: Operation) -> Operation:
    if "message" not in op.arguments:
        return op
    kept = {name: value for name, value in op.arguments.items() if name not in MESSAGE_KEYS}
    return replace(op, arguments=kept)
