"""Which collectives do several classes of ranks take part in, and does everyone come?

Classes meet in a group of ranks: in the first collective of it that each issues in a step, in the second, and so on. A group is known by its
name and by all groups that do the same at the same time, since one class may be emulated in one of those and another in another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trnprof.emulator.collectives.messages import ALL_TO_ALL
from trnprof.emulator.ranks.classes import RankClass
from trnprof.emulator.workload import Operation
from trnprof.tracer.errors import CaptureError

MAX_NAMED: Final = 8


@dataclass(frozen=True)
class Meetings:
    """Where classes of ranks meet.

    Attributes:
        places: by class and group, the number of the place where the group meets; -1 where only one class is in it.
        guests: by place, the classes that come, ascending.
    """

    places: tuple[tuple[int, ...], ...]
    guests: tuple[tuple[int, ...], ...]


def meetings_of(classes: Sequence[RankClass]) -> Meetings:
    """Where they meet.

    Raises:
        CaptureError: not all of a group come to a collective, or not to the same.
    """
    of_rank = {rank: i for i, each in enumerate(classes) for rank in each.members}
    numbers: dict[object, int] = {}
    guests: list[tuple[int, ...]] = []
    places = []
    for each in classes:
        own = []
        taken: set[object] = set()
        for group in each.program.groups:
            siblings = group.siblings or (group.ranks,)
            who = tuple(sorted({of_rank[rank] for ranks in siblings for rank in ranks}))
            key: tuple[object, ...] = (group.name, tuple(sorted(siblings)))
            while key in taken:  # a program may have several groups of the same name and ranks
                key = (*key, "again")
            taken.add(key)
            if len(who) > 1 and key not in numbers:
                numbers[key] = len(guests)
                guests.append(who)
            own.append(numbers[key] if len(who) > 1 else -1)
        places.append(tuple(own))
    meetings = Meetings(tuple(places), tuple(guests))
    _check_all_come(classes, meetings)
    return meetings


def describe(each: RankClass, op: Operation) -> str:
    """An operation of some ranks, as errors call it."""
    line = f", {op.source_file}:{op.source_line}" if op.source_file else ""
    kind = op.collective.kind if op.collective else op.name
    return f"{kind} of {named_ranks(each.members)} ({op.name}, step {op.step}{line})"


def named_ranks(ranks: Sequence[int]) -> str:
    """A few ranks by name, more by number."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}..{ranks[-1]}"
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:MAX_NAMED]))}{more}"


def _check_all_come(classes: Sequence[RankClass], meetings: Meetings) -> None:
    if not meetings.guests:
        return
    calls = [_calls(each, places) for each, places in zip(classes, meetings.places, strict=True)]
    for place, step in sorted({key for own in calls for key in own}):
        guests = meetings.guests[place]
        lists = [calls[guest].get((place, step), []) for guest in guests]
        for ordinal in range(max(map(len, lists))):
            comes = {
                g: ops[ordinal] for g, ops in zip(guests, lists, strict=True) if ordinal < len(ops)
            }
            first = min(comes)
            for guest in guests:
                _check_pair(classes, (first, comes[first]), (guest, comes.get(guest)), ordinal)


def _check_pair(
    classes: Sequence[RankClass],
    one: tuple[int, Operation],
    other: tuple[int, Operation | None],
    ordinal: int,
) -> None:
    """Raise unless one collective of two classes is the same."""
    (first, op), (second, match) = one, other
    known, call = describe(classes[first], op), op.collective
    assert call is not None
    name = f"{_ordinal(ordinal)} of group {classes[first].program.groups[call.group].name!r} in this step"
    if match is None or match.collective is None:
        raise CaptureError(
            f"{known}, the {name}: nothing from {named_ranks(classes[second].members)} matches it, so it would wait for ever; the "
            "programs of these ranks do not fit together: check who sends and who receives"
        )
    found = match.collective
    if found.kind != call.kind:
        raise CaptureError(
            f"{known}, the {name}, meets {describe(classes[second], match)}: not the same"
        )
    if found.nbytes != call.nbytes and call.kind != ALL_TO_ALL:
        raise CaptureError(
            f"{known}, the {name}, is of {call.nbytes:,} bytes, {describe(classes[second], match)} of {found.nbytes:,}"
        )


def _ordinal(index: int) -> str:
    return f"collective no. {index + 1}"


def _calls(each: RankClass, places: Sequence[int]) -> dict[tuple[int, int], list[Operation]]:
    """Operations that meet others, by place and step."""
    calls: dict[tuple[int, int], list[Operation]] = {}
    for op in _collectives(each):
        assert op.collective is not None
        place = places[op.collective.group]
        if place >= 0:
            calls.setdefault((place, op.step), []).append(op)
    return calls


def _collectives(each: RankClass) -> Iterator[Operation]:
    return (op for op in each.program.operations if op.collective is not None)
