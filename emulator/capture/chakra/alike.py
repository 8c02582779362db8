"""Do two ranks do the same, and in which groups each of them? Their execution traces side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.groups import Groups, members, recorded_groups
from trnprof.emulator.capture.chakra.trace import ExecutionTrace
from trnprof.emulator.fabric.fabric import I64

_COMPARED: Final = (
    schema.IS_CPU_OP,
    schema.NUM_OPS,
    schema.TENSOR_SIZE,
    schema.COMM_TYPE,
    schema.COMM_SIZE,
    schema.INVOLVED_DIM,
)
_COMMUNICATION: Final = (schema.COMM_SEND, schema.COMM_RECV, schema.COMM_COLL)
_WAY_OUT: Final = "each rank is in one group of a collective, and sends to one rank and receives from one in a node"


@dataclass
class Meetings:
    """With whom each rank communicates in each node that does.

    Attributes:
        own: by node of the first rank, the ranks that it meets; of a send or receive its source and target.
        elsewhere: by those ranks, those that other ranks meet in the same nodes, in the order they were found.
        names: what groups are called, by their ranks.
        has_tags: messages of a pair of ranks are not received in the order in which they are sent: their tags tell them apart.
        durations_differ: whether the ranks were measured to take different times for the same.
    """

    own: dict[int, tuple[int, ...]] = field(default_factory=dict)
    elsewhere: dict[tuple[int, ...], dict[tuple[int, ...], None]] = field(default_factory=dict)
    names: dict[tuple[int, ...], str] = field(default_factory=dict)
    has_tags: bool = False
    durations_differ: bool = False

    def group_name(self, met: tuple[int, ...]) -> str:
        """What the ranks of one are called, or those that do what they do: the same for all these."""
        return self.names.get(min(self.elsewhere[met]), "")


def meet(trace: ExecutionTrace, rank: int, groups: Groups, world: int) -> Meetings:
    """With whom one rank communicates."""
    meetings = Meetings()
    for node, met in zip(communicating(trace), partners(trace, rank, groups, world), strict=True):
        meetings.own[node] = met
        meetings.elsewhere.setdefault(met, {met: None})
        meetings.names.setdefault(met, trace.group_name(node))
    return meetings


def partners(trace: ExecutionTrace, rank: int, groups: Groups, world: int) -> list[tuple[int, ...]]:
    """Whom one rank meets in each node that communicates, in topological order.

    Raises:
        ProfileError: a group that nothing describes, or ranks that are not there.
    """
    described = {**recorded_groups(trace), **groups}
    return [_met(trace, node, rank, described, world) for node in communicating(trace)]


def check_siblings(trace: ExecutionTrace, meetings: Meetings) -> None:
    """Refuse ranks that are in several groups of one collective, or alone in a different one.

    Raises:
        ProfileError: there are such.
    """
    for node, met in meetings.own.items():
        every = list(meetings.elsewhere[met])
        if not fit_together(every, is_pair=trace.columns.type[node] != schema.COMM_COLL):
            raise trace.fail(
                node,
                f"joins other ranks in groups that do not fit together ({_few(every)}); {_WAY_OUT}",
            )


def fit_together(every: Sequence[tuple[int, ...]], *, is_pair: bool) -> bool:
    """Whether groups that do the same are of one size and share no rank; pairs no source and no target."""
    if len({len(ranks) for ranks in every}) > 1:
        return False
    if is_pair:
        return all(len(set(ends)) == len(every) for ends in zip(*every, strict=True))
    members = [rank for ranks in every for rank in ranks]
    return len(set(members)) == len(members)


def _few(every: Sequence[tuple[int, ...]]) -> str:
    shown = ", ".join(
        str(list(ranks[:4]))[:-1] + (", …]" if len(ranks) > 4 else "]") for ranks in every[:3]
    )
    return shown + (", …" if len(every) > 3 else "")


def guessed_siblings(met: tuple[int, ...], groups: Groups) -> Iterator[tuple[int, ...]]:
    """Groups of the same size that share no rank with one, or with each other: those that do what it does, where one rank's trace is known."""
    taken = set(met)
    for ranks in groups.values():
        if len(ranks) == len(met) and not taken.intersection(ranks):
            taken.update(ranks)
            yield ranks


def communicating(trace: ExecutionTrace) -> list[int]:
    """Indices of the nodes that communicate, in topological order."""
    is_one = np.isin(trace.columns.type[trace.order], _COMMUNICATION)
    nodes: list[int] = trace.order[is_one].tolist()
    return nodes


def _met(
    trace: ExecutionTrace, node: int, rank: int, groups: Groups, world: int
) -> tuple[int, ...]:
    kind = trace.columns.type[node]
    if kind == schema.COMM_COLL:
        return members(trace, node, groups, rank, world)
    source = trace.value(node, schema.COMM_SRC, rank if kind == schema.COMM_SEND else -1)
    target = trace.value(node, schema.COMM_DST, rank if kind == schema.COMM_RECV else -1)
    if (source if kind == schema.COMM_SEND else target) != rank:
        raise trace.fail(node, f"goes from rank {source} to {target}, but this is rank {rank}")
    other = target if kind == schema.COMM_SEND else source
    if not 0 <= other < world:
        raise trace.fail(node, f"exchanges with rank {other}; there are 0 to {world - 1}")
    return source, target


def are_same(first: ExecutionTrace, other: ExecutionTrace) -> bool:
    """Whether types, sizes and dependencies are equal, node by node in topological order."""
    if len(first) != len(other):
        return False
    if (first.columns.type[first.order] != other.columns.type[other.order]).any():
        return False
    one = first.columns.values[first.order][:, _COMPARED]
    two = other.columns.values[other.order][:, _COMPARED]
    return not (one != two).any() and np.array_equal(_edges(first), _edges(other))


def _edges(trace: ExecutionTrace) -> I64:
    """int64[d], pairs of places in the topological order as one number each, sorted."""
    count = len(trace)
    place = np.empty(count, np.int64)
    place[trace.order] = np.arange(count)
    owner = np.repeat(np.arange(count), np.diff(trace.columns.dependency_offsets))
    return np.sort(place[owner] * count + place[trace.dependencies])
