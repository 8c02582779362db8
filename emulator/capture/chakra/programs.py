"""Which ranks of a set of execution traces run one program, and whom does each of these programs meet?

Ranks of equal nodes are one program as long as they meet ranks of equal programs in each of them: stages of a pipeline are told apart by whom they
send to. Ranks that could not be emulated as one (they send to each other, or meet others in groups that do not fit together) are programs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.alike import (
    Meetings,
    are_same,
    check_siblings,
    communicating,
    fit_together,
    partners,
)
from trnprof.emulator.capture.chakra.groups import Groups
from trnprof.emulator.capture.chakra.trace import ExecutionTrace, read_trace
from trnprof.emulator.fabric.fabric import I64

Met = tuple[int, ...]


@dataclass(frozen=True)
class RankProgram:
    """What some ranks do.

    Attributes:
        trace: of a rank that does it.
        rank: the one that is emulated.
        members: all of them, ascending.
        meetings: whom they meet.
    """

    trace: ExecutionTrace
    rank: int
    members: tuple[int, ...]
    meetings: Meetings


@dataclass
class _Kind:
    """Ranks of equal nodes.

    Attributes:
        first: the trace of the first of them.
        nodes: those of it that communicate.
        durations_differ: whether they were measured to take different times for the same.
    """

    first: ExecutionTrace
    nodes: list[int]
    durations_differ: bool = False


@dataclass
class _Ranks:
    """What was read of all ranks.

    Attributes:
        kinds: of them.
        kind_of: by rank.
        met: by rank, the different sets of ranks that it meets.
        which: by rank, int32[communicating nodes], which of these it meets there.
        sent, received: tags by source and target, in topological order.
        names: of groups.
    """

    kinds: list[_Kind] = field(default_factory=list)
    kind_of: list[int] = field(default_factory=list)
    met: list[list[Met]] = field(default_factory=list)
    which: list[np.ndarray] = field(default_factory=list)
    sent: dict[Met, list[int]] = field(default_factory=dict)
    received: dict[Met, list[int]] = field(default_factory=dict)
    names: dict[Met, str] = field(default_factory=dict)

    def add(self, trace: ExecutionTrace, rank: int, groups: Groups, world: int) -> None:
        """The next rank."""
        nodes = communicating(trace)
        numbers: dict[Met, int] = {}
        which = []
        for node, met in zip(nodes, partners(trace, rank, groups, world), strict=True):
            which.append(numbers.setdefault(met, len(numbers)))
            self.names.setdefault(met, trace.group_name(node))
            if trace.columns.type[node] != schema.COMM_COLL:
                is_sent = trace.columns.type[node] == schema.COMM_SEND
                tags = (self.sent if is_sent else self.received).setdefault(met, [])
                tags.append(trace.value(node, schema.COMM_TAG))
        self.met.append(list(numbers))
        self.which.append(np.array(which, np.int32))
        for number, kind in enumerate(self.kinds):
            if are_same(kind.first, trace):
                self.kind_of.append(number)
                kind.durations_differ |= _durations_differ(kind.first, trace)
                return
        self.kind_of.append(len(self.kinds))
        self.kinds.append(_Kind(trace, nodes))

    @property
    def has_tags(self) -> bool:
        """Whether any messages are received in another order than they are sent."""
        return any(self.sent.get(pair, tags) != tags for pair, tags in self.received.items())


def rank_programs(by_rank: Mapping[int, Path], groups: Groups) -> list[RankProgram]:
    """The programs of the traces of all ranks, that of rank 0 first.

    Raises:
        ProfileError: a file that is damaged, groups that nothing describes, or ranks of one program in groups that do not fit together.
    """
    ranks = _Ranks()
    for rank in range(len(by_rank)):
        ranks.add(read_trace(by_rank[rank]), rank, groups, len(by_rank))
    if len(ranks.kinds) == 1:
        (program,) = _programs(ranks, [0] * len(by_rank))
        check_siblings(program.trace, program.meetings)
        return [program]
    colours = _refined(ranks, ranks.kind_of)
    while misfits := _misfits(programs := _programs(ranks, colours), len(by_rank)):
        alone = [(c, rank if c in misfits else -1) for rank, c in enumerate(colours)]
        colours = _refined(ranks, _numbered(alone))
    return programs


def _numbered(traits: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(trait, len(numbers)) for trait in traits]


def _refined(ranks: _Ranks, colours: Sequence[int]) -> list[int]:
    """Part ranks until those of one colour meet ranks of the same colours in each node."""
    colours = list(colours)
    while True:
        seen: dict[tuple[int, ...], int] = {}
        traits = []
        for rank, colour in enumerate(colours):
            held = [tuple(colours[other] for other in met) for met in ranks.met[rank]]
            numbers = np.array([seen.setdefault(each, len(seen)) for each in held], np.int32)
            traits.append((colour, numbers[ranks.which[rank]].tobytes()))
        finer = _numbered(traits)
        if len(set(finer)) == len(set(colours)):
            return finer
        colours = finer


def _programs(ranks: _Ranks, colours: Sequence[int]) -> list[RankProgram]:
    members: dict[int, list[int]] = {}
    for rank, colour in enumerate(colours):
        members.setdefault(colour, []).append(rank)
    has_tags = ranks.has_tags
    programs = []
    for own in members.values():
        kind = ranks.kinds[ranks.kind_of[own[0]]]
        meetings = Meetings(
            names=ranks.names,
            has_tags=has_tags and len(members) > 1,
            durations_differ=kind.durations_differ and len(own) > 1,
        )
        met = ranks.met[own[0]]
        first_which: I64 = ranks.which[own[0]]
        meetings.own = dict(zip(kind.nodes, (met[i] for i in first_which.tolist()), strict=True))
        for rank in own:
            both = np.unique(np.stack([first_which, ranks.which[rank]]), axis=1)
            for one, other in both.T.tolist():
                meetings.elsewhere.setdefault(met[one], {})[ranks.met[rank][other]] = None
        programs.append(RankProgram(kind.first, own[0], tuple(own), meetings))
    return programs


def _misfits(programs: Sequence[RankProgram], world: int) -> set[int]:
    """Places of programs of several ranks that cannot be emulated as one."""
    owner = {rank: i for i, program in enumerate(programs) for rank in program.members}
    together = [
        {frozenset(every) for every in program.meetings.elsewhere.values()} for program in programs
    ]
    found = set()
    for number, program in enumerate(programs):
        types = program.trace.columns.type
        for node, met in program.meetings.own.items():
            every = frozenset(program.meetings.elsewhere[met])
            is_pair = types[node] != schema.COMM_COLL
            others = {owner[rank] for ranks in every for rank in ranks}
            if (
                not fit_together(list(every), is_pair=is_pair)
                or (is_pair and any(owner[a] == owner[b] for a, b in every if a != b))
                or any(every not in together[other] for other in others)
            ):
                found |= {number, *others}
    return {number for number in found if len(programs[number].members) > 1}


def _durations_differ(first: ExecutionTrace, other: ExecutionTrace) -> bool:
    one, two = (each.columns.duration_us[each.order] for each in (first, other))
    return bool((one != two).any())
