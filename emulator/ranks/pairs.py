"""Who sends to whom? Between ranks of different programs each such pair and direction becomes a group of two of its own.

So a send is matched with its receive as ranks of a group are, in the order of both programs, and neither waits behind what goes to others or the
other way: a batch of sends and receives cannot wait for itself. Within one program, where every rank sends and receives, the ranks along which
messages go round become one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trnprof.emulator.collectives.messages import PERMUTE, SEND_RECV
from trnprof.emulator.workload import CollectiveCall, ProcessGroup, Workload


def with_pairs(programs: Sequence[Workload], owner: Sequence[int]) -> tuple[Workload, ...]:
    """The programs with a group for each pair of ranks, of different programs, of which one sends to the other.

    Args:
        programs: whose sends and receives name positions in larger groups.
        owner: by rank, the index of its program.
    """
    if len(programs) == 1:
        return tuple(programs)
    return tuple(_with_pairs(program, owner) for program in programs)


def with_rings(program: Workload) -> Workload:
    """The program with one message of a whole ring for those that go from each of its ranks to the next.

    An execution trace knows messages by pairs, of which each rank is in two, one as sender and one as receiver; what tells ranks apart
    needs groups of which each is in one.
    """
    groups = list(program.groups)
    for index, group in enumerate(groups):
        rings = _rings(group)
        if rings:
            own = next(ring for ring in rings if group.ranks[0] in ring)
            at = own.index(group.ranks[0])
            groups[index] = ProcessGroup(group.name, own[at:] + own[:at], rings)
    if tuple(groups) == program.groups:
        return program
    operations = []
    for op in program.operations:
        call = op.collective
        if call is not None and groups[call.group] != program.groups[call.group]:
            op = replace(op, collective=replace(call, kind=PERMUTE))
        operations.append(op)
    return replace(program, operations=tuple(operations), groups=tuple(groups))


def _rings(group: ProcessGroup) -> tuple[tuple[int, ...], ...]:
    """The ranks that a message passes on its way back to its sender, if the siblings are pairs from each of them to another."""
    following = dict(pair for pair in group.siblings if len(pair) == 2)
    is_overlapping = len(group.siblings) > 1 and not following.keys().isdisjoint(following.values())
    if len(following) < len(group.siblings) or not is_overlapping:
        return ()
    if set(following) != set(following.values()):
        return ()
    rings = []
    while following:
        ring = [next(iter(following))]
        while (target := following.pop(ring[-1])) != ring[0]:
            ring.append(target)
        rings.append(tuple(ring))
    return tuple(rings)


def ends(call: CollectiveCall, count: int) -> tuple[int, int]:
    """Positions of who sends and who receives, in a group of so many; to the next one, where nobody is named."""
    return call.root, call.target if call.target >= 0 else (call.root + 1) % count


def _with_pairs(program: Workload, owner: Sequence[int]) -> Workload:
    """Groups that are not used any more are left out: each has a stream in the trace."""
    groups: dict[tuple[int, ...], int] = {}
    operations = []
    for op in program.operations:
        call = op.collective
        if call is not None:
            pair = _crossing(call, program.groups[call.group], owner)
            index = groups.setdefault((call.group, *pair), len(groups))
            root, target = (0, 1) if pair else (call.root, call.target)
            op = replace(op, collective=replace(call, group=index, root=root, target=target))
        operations.append(op)
    made = tuple(
        _pair_of(program.groups[group], *pair) if pair else program.groups[group]
        for group, *pair in groups
    )
    return replace(program, operations=tuple(operations), groups=made)


def _crossing(call: CollectiveCall, group: ProcessGroup, owner: Sequence[int]) -> tuple[int, ...]:
    """Positions of sender and receiver, where they run different programs; else nothing."""
    if call.kind != SEND_RECV:
        return ()
    root, target = ends(call, len(group.ranks))
    is_crossing = owner[group.ranks[root]] != owner[group.ranks[target]]
    return (root, target) if is_crossing else ()


def _pair_of(group: ProcessGroup, root: int, target: int) -> ProcessGroup:
    siblings = group.siblings or (group.ranks,)
    return ProcessGroup(
        f"{group.name} {root}>{target}",
        (group.ranks[root], group.ranks[target]),
        tuple((ranks[root], ranks[target]) for ranks in siblings),
    )
