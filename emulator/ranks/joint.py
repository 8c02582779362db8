"""How are the steps of several classes of ranks scheduled together?

Their task lists are joined into one graph. Each class has servers of its own (of a core, the streams of its groups, its host); the parts
of the fabric are everybody's. A collective of several classes is one task of it, which holds the streams of all and waits for what each of them waits
for; so it starts for all when the last one is there. Afterwards each class gets its own part of the schedule back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.csr import offsets_of
from trnprof.emulator.lowering.step import LoweredStep
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.taskgraph import I64, Schedule, TaskGraph
from trnprof.emulator.workload import Operation


@dataclass(frozen=True)
class Part:
    """One class in a step.

    Attributes:
        lowered: its tasks.
        graph: of them, at its speed.
        servers: int64[servers of its graph], which of the joint graph.
        places: by collective among its tasks, the place where it meets others, -1 for none.
    """

    lowered: LoweredStep
    graph: TaskGraph
    servers: I64
    places: Mapping[int, int]


@dataclass(frozen=True)
class JointGraph:
    """The tasks of several classes.

    Attributes:
        graph: what is scheduled.
        tasks: by class, int64[its tasks], which of the graph.
        is_met: by class, bool[its tasks], whether it is a collective in which it meets others.
        is_first: by class, bool[its tasks], whether no class before it has that task too.
    """

    graph: TaskGraph
    tasks: tuple[I64, ...]
    is_met: tuple[NDArray[np.bool_], ...]
    is_first: tuple[NDArray[np.bool_], ...]


def server_maps(classes: Sequence[Ranks], parts: int) -> tuple[tuple[I64, ...], int]:
    """Servers of each class in the joint graph: all of one class, then of the next, then the parts of the fabric.

    Args:
        classes: of ranks.
        parts: of the fabric.

    Returns:
        By class, int64[its servers]; the number of all. A class without groups has no parts of the fabric.
    """
    counts = [ranks.own_count for ranks in classes]
    bases = np.cumsum([0, *counts])
    fabric = int(bases[-1]) + np.arange(parts)
    own = [base + np.arange(count) for base, count in zip(bases, counts, strict=False)]
    maps = [
        np.concatenate([a, fabric]) if ranks.groups else a
        for a, ranks in zip(own, classes, strict=True)
    ]
    return tuple(maps), int(bases[-1]) + parts


def places_of(
    lowered: LoweredStep, operations: Sequence[Operation], first: int, places: Sequence[int]
) -> dict[int, int]:
    """Where the collectives among a class's tasks meet others.

    Args:
        lowered: its step.
        operations: of the step.
        first: position of the first of them in the program.
        places: by group, see ``meetings``.
    """
    labels = list(lowered.tasks.labels)
    positions = {task: labels[lowered.tasks.label_ids[task]].op for task in lowered.collectives}
    found = {}
    # they meet in the order of the program, which is that of the tasks unless these are taken up in another
    for task, position in sorted(positions.items(), key=itemgetter(1)):
        call = operations[position - first].collective
        assert call is not None
        found[task] = places[call.group]
    return found


def slowed(graph: TaskGraph, collectives: Sequence[int], speed: float) -> TaskGraph:
    """The graph of a class of which all but collectives takes longer, by one over its speed."""
    if speed == 1.0:
        return graph
    is_own = np.ones(len(graph), bool)
    is_own[list(collectives)] = False

    def longer(times: I64, tasks: I64) -> I64:
        return np.where(is_own[tasks], np.rint(times / speed).astype(np.int64), times)

    index = np.arange(len(graph))
    holders = np.repeat(index, np.diff(graph.server_offsets))
    return replace(
        graph,
        duration_ps=longer(graph.duration_ps, index),
        occupancy_ps=longer(graph.occupancy_ps, holders),
        lag_ps=longer(graph.lag_ps, graph.dependencies),
    )


def join(parts: Sequence[Part], server_count: int) -> JointGraph:
    """One graph of the tasks of all classes."""
    counts = [len(part.graph) for part in parts]
    bases = np.cumsum([0, *counts])
    at = np.arange(bases[-1])
    met = np.zeros(bases[-1], bool)
    for rows in _met(parts, bases):
        at[rows] = rows[0]
        met[rows] = True
    is_first = at == np.arange(len(at))
    task = (np.cumsum(is_first) - 1)[at]
    own = [slice(a, b) for a, b in pairwise(bases)]
    return JointGraph(
        _joined(parts, bases, task, is_first, server_count),
        tuple(task[each] for each in own),
        tuple(met[each] for each in own),
        tuple(is_first[each] for each in own),
    )


def _met(parts: Sequence[Part], bases: I64) -> list[list[int]]:
    """Rows of each meeting, by class; a row is a task of a class, counted through all classes."""
    rows: dict[tuple[int, int], list[int]] = {}
    for part, base in zip(parts, bases, strict=False):
        seen: Counter[int] = Counter()
        for local, place in part.places.items():
            if place >= 0:
                rows.setdefault((place, seen[place]), []).append(int(base) + local)
                seen[place] += 1
    return list(rows.values())


def _joined(
    parts: Sequence[Part], bases: I64, task: I64, is_first: NDArray[np.bool_], servers: int
) -> TaskGraph:
    """The graph of all rows; those of a meeting are one task, which holds the parts of the fabric once."""
    graphs = [_chained(part) for part in parts]
    shift = list(zip(graphs, bases, strict=False))
    holders = np.concatenate([base + _owners(g.server_offsets) for g, base in shift])
    held = np.concatenate([part.servers[part.graph.server_ids] for part in parts])
    waiting = np.concatenate([base + _owners(g.dependency_offsets) for g, base in shift])
    sources = np.concatenate([base + g.dependencies for g, base in shift])
    in_order = np.zeros(servers, bool)
    for part, graph in zip(parts, graphs, strict=True):
        in_order[part.servers] = graph.in_order
    is_shared = np.bincount(np.concatenate([p.servers for p in parts]), minlength=servers) > 1
    kept = is_first[holders] | ~is_shared[held]
    by_holder = np.argsort(task[holders[kept]], kind="stable")
    by_waiting = np.argsort(task[waiting], kind="stable")
    count = int(is_first.sum())
    release, blocker = _releases(graphs, task, count)
    return TaskGraph(
        duration_ps=np.concatenate([g.duration_ps for g in graphs])[is_first],
        release_ps=release,
        release_blocker=blocker,
        server_offsets=offsets_of(np.bincount(task[holders[kept]], minlength=count)),
        server_ids=held[kept][by_holder].astype(np.int32),
        occupancy_ps=np.concatenate([g.occupancy_ps for g in graphs])[kept][by_holder],
        dependency_offsets=offsets_of(np.bincount(task[waiting], minlength=count)),
        dependencies=task[sources][by_waiting],
        lag_ps=np.concatenate([g.lag_ps for g in graphs])[by_waiting],
        in_order=in_order,
    )


def _chained(part: Part) -> TaskGraph:
    """The graph of a class whose queues for several places (or none) are dependencies: queues of all are in the order of their first class."""
    graph = part.graph
    place = np.full(len(graph), -1, np.int64)
    place[list(part.places)] = list(part.places.values())
    owner = _owners(graph.server_offsets)
    least, most = np.full((2, len(graph.in_order)), -1, np.int64)
    least[graph.server_ids] = place[owner]
    np.minimum.at(least, graph.server_ids, place[owner])
    np.maximum.at(most, graph.server_ids, place[owner])
    is_mixed = graph.in_order & (least < most)
    held = np.flatnonzero(is_mixed[graph.server_ids])
    if not len(held):
        return graph
    held = held[np.argsort(graph.server_ids[held], kind="stable")]
    follows = graph.server_ids[held[1:]] == graph.server_ids[held[:-1]]
    before, after = held[:-1][follows], held[1:][follows]
    lags = graph.occupancy_ps[before] - graph.duration_ps[owner[before]]
    waiting = np.concatenate([_owners(graph.dependency_offsets), owner[after]])
    order = np.argsort(waiting, kind="stable")
    return replace(
        graph,
        dependency_offsets=offsets_of(np.bincount(waiting, minlength=len(graph))),
        dependencies=np.concatenate([graph.dependencies, owner[before]])[order],
        lag_ps=np.concatenate([graph.lag_ps, lags])[order],
        in_order=graph.in_order & ~is_mixed,
    )


def _releases(graphs: Sequence[TaskGraph], task: I64, count: int) -> tuple[I64, I64]:
    """A meeting is released when the last of its classes is."""
    times = np.concatenate([g.release_ps for g in graphs])
    blockers = np.concatenate([g.release_blocker for g in graphs])
    release = np.full(count, -1, np.int64)
    np.maximum.at(release, task, times)
    blocker = np.full(count, -1, np.int64)
    latest = np.flatnonzero(times == release[task])[::-1]
    blocker[task[latest]] = blockers[latest]
    return release, blocker


def part_of(
    joint: JointGraph,
    number: int,
    graph: TaskGraph,
    outcome: Schedule,
    event_of: NDArray[np.uint64],
) -> Schedule:
    """What the schedule says of one class; the blockers that are other classes' are given as -2 - event_id.

    Args:
        joint: the graph of all.
        number: of the class.
        graph: of the class alone.
        outcome: of the graph of all.
        event_of: uint64[tasks of the graph of all], an event of each.
    """
    own = joint.tasks[number]
    local = np.full(len(joint.graph), -1, np.int64)
    local[own] = np.arange(len(own))
    blocker = outcome.blocker[own]
    here = np.maximum(blocker, 0)
    of_others = -2 - event_of[here].astype(np.int64)
    mine = np.where(local[here] >= 0, local[here], of_others)
    part = Schedule(
        outcome.start_ps[own],
        outcome.end_ps[own],
        outcome.ready_ps[own],
        np.where(blocker >= 0, mine, blocker),
        outcome.state,
    )
    return _own_first(part, graph, joint.is_met[number])


def _own_first(part: Schedule, graph: TaskGraph, is_met: NDArray[np.bool_]) -> Schedule:
    """A class that comes to a collective just when the last one does is held up by what it waits for itself: the lowest of its tasks."""
    targets = _owners(graph.dependency_offsets)
    asked = is_met & (part.blocker < 0) & (part.start_ps == part.ready_ps)
    kept = np.flatnonzero(asked[targets])
    targets, sources = targets[kept], graph.dependencies[kept]
    binds = part.end_ps[sources] + graph.lag_ps[kept] == part.ready_ps[targets]
    lowest = np.full(len(graph), len(graph), np.int64)
    np.minimum.at(lowest, targets[binds], sources[binds])
    return replace(part, blocker=np.where(lowest < len(graph), lowest, part.blocker))


def stuck(graph: TaskGraph) -> NDArray[np.bool_]:
    """bool[tasks], those that can never start: on a cycle of dependencies and queues, or behind one."""
    held = graph.in_order[graph.server_ids]
    order = np.argsort(graph.server_ids[held], kind="stable")
    queue = graph.server_ids[held][order]
    owner = _owners(graph.server_offsets)[held][order]
    follows = queue[1:] == queue[:-1]
    sources = np.concatenate([graph.dependencies, owner[:-1][follows]])
    targets = np.concatenate([_owners(graph.dependency_offsets), owner[1:][follows]])
    behind = np.argsort(sources, kind="stable")
    offsets = offsets_of(np.bincount(sources, minlength=len(graph)))
    pending = np.bincount(targets, minlength=len(graph))
    ready = np.flatnonzero(pending == 0).tolist()
    while ready:
        task = ready.pop()
        for target in targets[behind[offsets[task] : offsets[task + 1]]].tolist():
            pending[target] -= 1
            if pending[target] == 0:
                ready.append(target)
    return pending > 0


def _owners(offsets: I64) -> I64:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
