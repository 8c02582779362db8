"""How is a task graph scheduled fast? The loop of ``reference``, compiled; imported only when first needed.

Importing this module imports numba. What is compiled is cached beside this file, or, where that is read-only, in the
user's cache directory (numba's own choice; ``NUMBA_CACHE_DIR`` overrides it). Where neither can be written, each
process compiles anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.heap import drop_least, push
from trnprof.emulator.taskgraph import I32, I64
from trnprof.tracer.compiled import compiled, inlined


class Held(NamedTuple):
    """The servers each task holds, as in TaskGraph: CSR offsets, then an entry a (task, server) pair."""

    offsets: I64
    server_ids: I32
    occupancy_ps: I64
    in_order: NDArray[np.bool_]


class Edges(NamedTuple):
    """What each task waits for, as in TaskGraph: CSR offsets, then an entry a dependency."""

    offsets: I64
    dependencies: I64
    lag_ps: I64


class Course(NamedTuple):
    """What placing changes.

    Attributes:
        ready: int64[n], first the releases; in the end when each was ready.
        blocker: int64[n], first the releases' blockers as -2 - id; in the end what bound each start.
        free: int64[servers].
        holder: int64[servers].
    """

    ready: I64
    blocker: I64
    free: I64
    holder: I64


class Waiters(NamedTuple):
    """Who waits for each task.

    Attributes:
        offsets: int32[n + 1], CSR offsets into the next two.
        dependents: int32[e].
        lag_ps: int64[e].
        followers: int32[s], the task that follows on the server of each (task, server) pair; -1 where none does or the
            server is shared.
    """

    offsets: I32
    dependents: I32
    lag_ps: I64
    followers: I32


@compiled
def link_dependents(edges: Edges) -> tuple[I32, I32, I64]:
    """Turn dependencies into dependents by counting sort.

    Returns:
        int32[n + 1] CSR offsets, int32[e] dependents, each with int64[e] its lag; by task, then by dependent.
    """
    tasks = len(edges.offsets) - 1
    ends = np.zeros(tasks + 1, np.int32)
    for source in edges.dependencies:
        ends[source + 1] += 1
    for task in range(tasks):
        ends[task + 1] += ends[task]
    # ends[task] is where the dependents of task begin; writing them advances it to where they end
    dependents = np.empty(len(edges.dependencies), np.int32)
    lags = np.empty(len(edges.dependencies), np.int64)
    for task in range(tasks):
        for edge in range(edges.offsets[task], edges.offsets[task + 1]):
            source = edges.dependencies[edge]
            slot = ends[source]
            ends[source] = slot + 1
            dependents[slot] = task
            lags[slot] = edges.lag_ps[edge]
    for task in range(tasks, 0, -1):
        ends[task] = ends[task - 1]
    ends[0] = 0
    return ends, dependents, lags


@compiled
def link_queues(held: Held, pending: I32) -> tuple[I32, int]:
    """Find the next task of each queue and count, in ``pending``, the queues in which a task has one before it.

    Returns:
        int32[s], the followers of ``Waiters``; and the first pair that holds a server for the second time, -1 if none
        does.
    """
    followers = np.full(len(held.server_ids), -1, np.int32)
    last_pair = np.full(len(held.in_order), -1, np.int64)
    for task in range(len(held.offsets) - 1):
        first = held.offsets[task]
        for pair in range(first, held.offsets[task + 1]):
            server = held.server_ids[pair]
            last = last_pair[server]
            if last >= first:
                return followers, pair
            if last >= 0 and held.in_order[server]:
                followers[last] = task
                pending[task] += 1
            last_pair[server] = pair
    return followers, -1


@inlined
def _foremost(blocker: int, other: int) -> int:
    """The lower index of this graph, else the lower id of an earlier one (-2 - id), else -1."""
    if other == -1 or (blocker >= 0 and other < 0):
        return blocker
    if blocker == -1 or (blocker < 0 and other >= 0):
        return other
    return min(blocker, other) if blocker >= 0 else max(blocker, other)


@inlined
def _arrival(task: int, ready: int, held: Held, free: I64) -> int:
    """When a task is ready and its queues are free."""
    key = ready
    for pair in range(held.offsets[task], held.offsets[task + 1]):
        server = held.server_ids[pair]
        if held.in_order[server]:
            key = max(key, free[server])
    return key


@inlined
def _place(
    task: int, key: int, ready: int, bound: int, held: Held, free: I64, holder: I64
) -> tuple[int, int]:
    """Start one task and reserve its servers; returns its start and its blocker."""
    first, past = held.offsets[task], held.offsets[task + 1]
    start = key
    for pair in range(first, past):
        start = max(start, free[held.server_ids[pair]])
    blocker = bound if start == ready else -1
    if blocker == -1:
        for pair in range(first, past):
            server = held.server_ids[pair]
            if free[server] == start:
                blocker = _foremost(blocker, holder[server])
    for pair in range(first, past):
        server = held.server_ids[pair]
        free[server] = start + held.occupancy_ps[pair]
        holder[server] = task
    return start, blocker


@compiled
def place_in_order(
    duration_ps: I64, held: Held, edges: Edges, course: Course, start: I64, end: I64
) -> bool:
    """Place tasks by their index, as long as the event loop serves each server in that order: no heap, no dependents.

    Where each task waits for lower ones only, the loop takes them by (key, index): what a placed task lets arrive has no lower key, and a higher
    index. So a shared server serves by (key, index), and both agree if keys never fall from one index to the next that it serves.

    Args:
        duration_ps: int64[n].
        held: the servers of each task.
        edges: what each waits for.
        course: updated; of no use unless all are placed.
        start: int64[n], written.
        end: int64[n], written.

    Returns:
        Whether all are placed.
    """
    ready, blocker, free, holder = course.ready, course.blocker, course.free, course.holder
    last_key, seen_by = np.full(len(free), -1, np.int64), np.full(len(free), -1, np.int64)
    for task in range(len(duration_ps)):
        for edge in range(edges.offsets[task], edges.offsets[task + 1]):
            source = edges.dependencies[edge]
            if source >= task:
                return False
            met = end[source] + edges.lag_ps[edge]
            if met > ready[task]:
                ready[task], blocker[task] = met, source
            elif met == ready[task]:
                blocker[task] = _foremost(blocker[task], source)
        key = _arrival(task, ready[task], held, free)
        for pair in range(held.offsets[task], held.offsets[task + 1]):
            server = held.server_ids[pair]
            if seen_by[server] == task or (key < last_key[server] and not held.in_order[server]):
                return False
            last_key[server], seen_by[server] = key, task
        start[task], blocker[task] = _place(
            task, key, ready[task], blocker[task], held, free, holder
        )
        end[task] = start[task] + duration_ps[task]
    return True


@compiled
def place_by_events(
    duration_ps: I64,
    held: Held,
    waiters: Waiters,
    pending: I32,
    course: Course,
    start: I64,
    end: I64,
) -> None:
    """The event loop.

    Args:
        duration_ps: int64[n].
        held: the servers of each task.
        waiters: who waits for each task.
        pending: int32[n], for how many dependencies and queues each waits; all 0 on return unless there is a cycle.
        course: updated.
        start: int64[n], written.
        end: int64[n], written.
    """
    ready, blocker, free, holder = course.ready, course.blocker, course.free, course.holder
    tasks = len(duration_ps)
    keys, heap = np.empty(tasks, np.int64), np.empty(tasks, np.int32)
    size = 0
    for task in range(tasks):
        if pending[task] == 0:
            push(keys, heap, size, _arrival(task, ready[task], held, free), task)
            size += 1
    while size > 0:
        task, key = heap[0], keys[0]
        drop_least(keys, heap, size)
        size -= 1
        start[task], blocker[task] = _place(
            task, key, ready[task], blocker[task], held, free, holder
        )
        end[task] = start[task] + duration_ps[task]
        for edge in range(waiters.offsets[task], waiters.offsets[task + 1]):
            waiting = waiters.dependents[edge]
            met = end[task] + waiters.lag_ps[edge]
            if met > ready[waiting]:
                ready[waiting], blocker[waiting] = met, task
            elif met == ready[waiting]:
                blocker[waiting] = _foremost(blocker[waiting], task)
            pending[waiting] -= 1
            if pending[waiting] == 0:
                push(keys, heap, size, _arrival(waiting, ready[waiting], held, free), waiting)
                size += 1
        for pair in range(held.offsets[task], held.offsets[task + 1]):
            waiting = waiters.followers[pair]
            if waiting >= 0:
                pending[waiting] -= 1
                if pending[waiting] == 0:
                    push(keys, heap, size, _arrival(waiting, ready[waiting], held, free), waiting)
                    size += 1


@compiled
def place_tasks(
    duration_ps: I64, held: Held, edges: Edges, course: Course
) -> tuple[I64, I64, I32, int]:
    """Place all tasks, in the order of their index if that will do.

    Args:
        duration_ps: int64[n].
        held: the servers of each task.
        edges: what each waits for.
        course: updated.

    Returns:
        Starts and ends, int64[n]; int32[n], for how many each still waits, above 0 on a cycle and behind it (empty if there is none); the
        first pair that holds a server for the second time (nothing is placed then), -1 if none does.
    """
    tasks = len(duration_ps)
    start, end = np.empty(tasks, np.int64), np.empty(tasks, np.int64)
    tried = Course(
        course.ready.copy(), course.blocker.copy(), course.free.copy(), course.holder.copy()
    )
    if place_in_order(duration_ps, held, edges, tried, start, end):
        course.ready[:], course.blocker[:] = tried.ready, tried.blocker
        course.free[:], course.holder[:] = tried.free, tried.holder
        return start, end, np.empty(0, np.int32), -1
    pending = np.empty(tasks, np.int32)
    for task in range(tasks):
        pending[task] = edges.offsets[task + 1] - edges.offsets[task]
    followers, repeated = link_queues(held, pending)
    if repeated < 0:
        offsets, dependents, lag_ps = link_dependents(edges)
        waiters = Waiters(offsets, dependents, lag_ps, followers)
        place_by_events(duration_ps, held, waiters, pending, course, start, end)
    return start, end, pending, repeated
