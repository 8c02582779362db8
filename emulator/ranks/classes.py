"""Which ranks are emulated, and whom does each of them stand for?

Ranks that run one program are equal until something tells them apart: one is slower, begins later, or has another one of those in its
groups. Ranks are one class if they run the same program at the same speed and if their groups hold equal numbers of ranks of each class;
classes are parted until that holds. One rank of each class is emulated, the others are its replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trnprof.emulator.ranks.costs import CollectiveCosts
from trnprof.emulator.ranks.pairs import with_pairs, with_rings
from trnprof.emulator.ranks.ranks import check_call
from trnprof.emulator.workload import CollectiveCall, ProcessGroup, Workload
from trnprof.tracer.errors import CaptureError

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RankClass:
    """Ranks of which one is emulated.

    Attributes:
        program: what they do; the groups are those of ``rank``, with siblings that do the same at the same time.
        rank: the one that is emulated.
        members: all of them, ascending.
        kind: number of what they are: ranks of one kind are equal, whether they are emulated once or each.
        speed: the fraction of its speed that each has left.
        late_ns: how much later than others they begin.
        alike: the groups as the program has them, with all siblings: the same for all its ranks.
    """

    program: Workload
    rank: int
    members: tuple[int, ...]
    kind: int = 0
    speed: float = 1.0
    late_ns: int = 0
    alike: tuple[ProcessGroup, ...] = ()


def classes_of(
    workload: Workload, costs: CollectiveCosts, *, fold: bool = True
) -> tuple[RankClass, ...]:
    """The classes of all ranks of a program, by the rank that is emulated.

    Args:
        workload: the program, and those of ranks that do something else.
        costs: of collectives, on a machine with its faults.
        fold: emulate one rank of each class; False: every rank.

    Raises:
        CaptureError: programs whose ranks are not those of the world, or groups that they do not have.
        CollectiveError, FabricError: a collective that cannot be done.
    """
    programs = (workload, *workload.others)
    owner = owners(programs)
    for program in programs:
        _check_groups(program)
    programs = with_pairs(programs, owner)
    size = workload.world.size
    faults = costs.faults
    if faults or not fold:
        programs = tuple(map(with_rings, programs))
    speeds = faults.speeds(costs.chip_of)
    late = tuple(faults.late_ns.get(rank, 0) for rank in range(size))
    colours = list(owner)
    if faults:
        links = _own_links(programs, owner, costs)
        traits = list(zip(owner, speeds, late, links, strict=True))
        colours = parted(traits, [_groups_of(programs[owner[r]], r) for r in range(size)])
    classes = []
    for members in _members(colours) if fold else [(rank,) for rank in range(size)]:
        program = programs[owner[members[0]]]
        captured = program.world.rank
        rank = captured if captured in members else members[0]
        own = replace(program, groups=_groups_for(program, rank, colours), others=())
        classes.append(
            RankClass(own, rank, members, colours[rank], speeds[rank], late[rank], program.groups)
        )
    return tuple(sorted(classes, key=lambda each: each.rank))


def owners(programs: Sequence[Workload]) -> tuple[int, ...]:
    """By rank, which of the programs it runs.

    Raises:
        CaptureError: worlds of different sizes, or ranks that run none or several.
    """
    size = programs[0].world.size
    owner = [-1] * size
    unclaimed = [i for i, program in enumerate(programs) if not program.world.members]
    if len(unclaimed) > 1:
        raise _broken(f"programs {unclaimed[0]} and {unclaimed[1]} both claim all other ranks")
    for number, program in enumerate(programs):
        world = program.world
        if world.size != size:
            raise _broken(f"program {number} is of {world.size} ranks, program 0 of {size}")
        if world.members and world.rank not in world.members:
            raise _broken(f"rank {world.rank} was captured and is none of its program's")
        for rank in world.members:
            if not 0 <= rank < size or owner[rank] >= 0:
                wrong = "runs two programs" if 0 <= rank < size else f"is not of 0..{size - 1}"
                raise _broken(f"rank {rank} {wrong}")
            owner[rank] = number
    rest = unclaimed[0] if unclaimed else -1
    owner = [rest if number < 0 else number for number in owner]
    for number, program in enumerate(programs):
        if not 0 <= program.world.rank < size or owner[program.world.rank] != number:
            raise _broken(f"rank {program.world.rank} was captured and runs another program")
    if -1 in owner:
        raise _broken(f"rank {owner.index(-1)} runs no program")
    return tuple(owner)


def parted(traits: Sequence[object], groups: Sequence[Groups]) -> list[int]:
    """Part ranks into the fewest classes whose groups hold equal numbers of ranks of each.

    Args:
        traits: by rank, what tells it from others.
        groups: by rank, the ranks of each of its groups.

    Returns:
        By rank, the number of its class, in the order of first ranks.
    """
    numbers: dict[object, int] = {}
    colours = [numbers.setdefault(trait, len(numbers)) for trait in traits]
    while True:
        seen: dict[tuple[int, ...], tuple[int, ...]] = {}
        for own in groups:
            for ranks in own:
                if ranks not in seen:
                    seen[ranks] = tuple(sorted(colours[rank] for rank in ranks))
        found: dict[object, int] = {}
        keys = ((c, *(seen[r] for r in own)) for c, own in zip(colours, groups, strict=True))
        finer = [found.setdefault(key, len(found)) for key in keys]
        if len(set(finer)) == len(set(colours)):
            return finer
        colours = finer


def _members(colours: Sequence[int]) -> list[tuple[int, ...]]:
    members: dict[int, list[int]] = {}
    for rank, colour in enumerate(colours):
        members.setdefault(colour, []).append(rank)
    return [tuple(ranks) for ranks in members.values()]


def _groups_for(program: Workload, rank: int, colours: Sequence[int]) -> tuple[ProcessGroup, ...]:
    """A program's groups as a rank has them; siblings are those with as many ranks of each class."""
    groups = []
    for group, own in zip(program.groups, _groups_of(program, rank), strict=True):
        held = sorted(colours[r] for r in own)
        siblings = tuple(s for s in group.siblings if sorted(colours[r] for r in s) == held)
        groups.append(replace(group, ranks=own, siblings=siblings))
    return tuple(groups)


def _groups_of(program: Workload, rank: int) -> Groups:
    """Each group of a program as a rank of it has it: that one of the siblings in which it is."""
    if rank == program.world.rank:
        return tuple(group.ranks for group in program.groups)
    groups = []
    for group in program.groups:
        own = next((ranks for ranks in (group.ranks, *group.siblings) if rank in ranks), None)
        if own is None:
            raise _broken(f"rank {rank} is in no group {group.name!r}, of which its program is")
        groups.append(own)
    return tuple(groups)


def _own_links(
    programs: Sequence[Workload], owner: Sequence[int], costs: CollectiveCosts
) -> list[tuple[int, ...]]:
    """By rank, how long the largest collective of each kind takes its own groups where links are not as they were; else nothing."""
    faults = costs.faults
    if not (faults.degraded or faults.failed or faults.slow_chips):
        return [()] * len(owner)
    largest = [_largest_calls(program) for program in programs]
    times = []
    for rank, number in enumerate(owner):
        own = _groups_of(programs[number], rank)
        calls = largest[number]
        times.append(tuple(costs.cost(call, (own[call.group],)).duration_ps for call in calls))
    return times


def _largest_calls(program: Workload) -> list[CollectiveCall]:
    largest: dict[tuple[int, str], CollectiveCall] = {}
    for op in program.operations:
        call = op.collective
        if call is not None:
            known = largest.setdefault((call.group, call.kind), call)
            if call.nbytes > known.nbytes:
                largest[call.group, call.kind] = call
    return list(largest.values())


def _check_groups(program: Workload) -> None:
    size = program.world.size
    for group in program.groups:
        for members in (group.ranks, *group.siblings):
            if not members or min(members) < 0 or max(members) >= size:
                raise _broken(
                    f"group {group.name!r} has ranks {list(members)}, the program has 0..{size - 1}"
                )
    for op in program.operations:
        if op.collective is not None:
            check_call(op.name, op.collective, program.groups)


def _broken(what: str) -> CaptureError:
    return CaptureError(f"{what}: the workload is broken; record it anew")
