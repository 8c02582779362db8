"""Do all ranks do the same, and in which groups each of them? Their execution traces side by side, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.groups import Groups, members, recorded_groups
from trnprof.emulator.capture.chakra.trace import ExecutionTrace
from trnprof.emulator.fabric.fabric import I64
from trnprof.tracer.errors import ProfileError

_COMPARED: Final = (
    schema.IS_CPU_OP,
    schema.NUM_OPS,
    schema.TENSOR_SIZE,
    schema.COMM_TYPE,
    schema.COMM_SIZE,
    schema.INVOLVED_DIM,
)
_COMMUNICATION: Final = (schema.COMM_SEND, schema.COMM_RECV, schema.COMM_COLL)
_WAY_OUT: Final = "only ranks that do the same are emulated together; to emulate one for itself, name its file and a JSON file of groups alone"


@dataclass
class Meetings:
    """With whom each rank communicates in each node that does.

    Attributes:
        own: by node of the first rank, the ranks that it meets; of a send or receive its source and target.
        elsewhere: by those ranks, those that other ranks meet in the same nodes, in the order they were found.
        durations_differ: whether the ranks were measured to take different times for the same.
    """

    own: dict[int, tuple[int, ...]] = field(default_factory=dict)
    elsewhere: dict[tuple[int, ...], dict[tuple[int, ...], None]] = field(default_factory=dict)
    durations_differ: bool = False


def meet(trace: ExecutionTrace, rank: int, groups: Groups, world: int) -> Meetings:
    """With whom one rank communicates."""
    meetings = Meetings()
    described = {**recorded_groups(trace), **groups}
    for node in _communicating(trace).tolist():
        met = _met(trace, node, rank, described, world)
        meetings.own[node] = met
        meetings.elsewhere.setdefault(met, {met: None})
    return meetings


def compare(
    meetings: Meetings,
    first: ExecutionTrace,
    other: ExecutionTrace,
    rank: int,
    groups: Groups,
    world: int,
) -> None:
    """Check that another rank does what the first does, and add whom it meets.

    Raises:
        ProfileError: it does something else.
    """
    _check_same(first, other, rank)
    described = {**recorded_groups(other), **groups}
    for node, same in zip(
        _communicating(first).tolist(), _communicating(other).tolist(), strict=True
    ):
        met = _met(other, same, rank, described, world)
        meetings.elsewhere[meetings.own[node]][met] = None
    meetings.durations_differ |= bool(
        (first.columns.duration_us[first.order] != other.columns.duration_us[other.order]).any()
    )


def check_siblings(trace: ExecutionTrace, meetings: Meetings, world: int) -> None:
    """Refuse ranks that are in several groups of one collective, or alone in a different one.

    Raises:
        ProfileError: there are such.
    """
    for node, met in meetings.own.items():
        every = list(meetings.elsewhere[met])
        is_pair = trace.columns.type[node] != schema.COMM_COLL
        sizes = {len(ranks) for ranks in every}
        sources = (
            [ranks[0] for ranks in every] if is_pair else [r for group in every for r in group]
        )
        if len(sizes) > 1 or len(set(sources)) < len(sources):
            raise trace.fail(
                node,
                f"joins other ranks in groups that do not fit together ({_few(every)}); {_WAY_OUT}",
            )


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


def _communicating(trace: ExecutionTrace) -> I64:
    """int64[k], indices of the nodes that communicate, in topological order."""
    is_one = np.isin(trace.columns.type[trace.order], _COMMUNICATION)
    return trace.order[is_one]


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


def _check_same(first: ExecutionTrace, other: ExecutionTrace, rank: int) -> None:
    """Types, sizes and dependencies are equal, node by node in topological order."""
    if len(first) != len(other):
        raise ProfileError(
            f"{other.label} has {len(other)} nodes, {first.label} has {len(first)}: {_WAY_OUT}"
        )
    differs = first.columns.type[first.order] != other.columns.type[other.order]
    one = first.columns.values[first.order][:, _COMPARED]
    two = other.columns.values[other.order][:, _COMPARED]
    differs |= (one != two).any(1)
    if not differs.any() and not np.array_equal(_edges(first), _edges(other)):
        raise ProfileError(
            f"{other.label}: nodes wait for others than those of {first.label} do; {_WAY_OUT}"
        )
    if differs.any():
        place = int(np.flatnonzero(differs)[0])
        node, counterpart = int(other.order[place]), int(first.order[place])
        raise other.fail(
            node,
            f"differs from node {first.columns.id[counterpart]} of {first.label}; {_WAY_OUT}",
        )


def _edges(trace: ExecutionTrace) -> I64:
    """int64[d], pairs of places in the topological order as one number each, sorted."""
    count = len(trace)
    place = np.empty(count, np.int64)
    place[trace.order] = np.arange(count)
    owner = np.repeat(np.arange(count), np.diff(trace.columns.dependency_offsets))
    return np.sort(place[owner] * count + place[trace.dependencies])
