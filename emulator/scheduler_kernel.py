"""How is a task graph scheduled fast? The loop of ``reference``, compiled; imported only when first needed.

Importing this module imports numba. What is compiled is cached beside this file, or, where that is read-only, in the
user's cache directory (numba's own choice; ``NUMBA_CACHE_DIR`` overrides it). Where neither can be written, each
process compiles anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.taskgraph import I32, I64
from trnprof.tracer.compiled import compiled


class Held(NamedTuple):
    """The servers each task holds, as in TaskGraph: CSR offsets, then an entry a (task, server) pair."""

    offsets: I64
    server_ids: I32
    occupancy_ps: I64
    in_order: NDArray[np.bool_]


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
def link_dependents(offsets: I64, dependencies: I64, lag_ps: I64) -> tuple[I32, I32, I64]:
    """Turn dependencies into dependents by counting sort.

    Returns:
        int32[n + 1] CSR offsets, int32[e] dependents, each with int64[e] its lag; by task, then by dependent.
    """
    tasks = len(offsets) - 1
    ends = np.zeros(tasks + 1, np.int32)
    for source in dependencies:
        ends[source + 1] += 1
    for task in range(tasks):
        ends[task + 1] += ends[task]
    # ends[task] is where the dependents of task begin; writing them advances it to where they end
    dependents = np.empty(len(dependencies), np.int32)
    lags = np.empty(len(dependencies), np.int64)
    for task in range(tasks):
        for edge in range(offsets[task], offsets[task + 1]):
            source = dependencies[edge]
            slot = ends[source]
            ends[source] = slot + 1
            dependents[slot] = task
            lags[slot] = lag_ps[edge]
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


@compiled
def _push(keys: I64, tasks: I32, size: int, key: int, task: int) -> None:
    """Add to a binary heap of ``size`` entries, least (key, task) first."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and tasks[parent] < task):
            break
        keys[child] = keys[parent]
        tasks[child] = tasks[parent]
        child = parent
    keys[child] = key
    tasks[child] = task


@compiled
def _drop_least(keys: I64, tasks: I32, size: int) -> None:
    """Remove the least of ``size`` entries: its place sinks to a leaf, and the last entry rises from there."""
    last = size - 1
    key, task = keys[last], tasks[last]
    hole, child = 0, 1
    while child < last:
        other = child + 1
        if other < last and (
            keys[other] < keys[child]
            or (keys[other] == keys[child] and tasks[other] < tasks[child])
        ):
            child = other
        if key < keys[child] or (key == keys[child] and task < tasks[child]):
            break
        keys[hole] = keys[child]
        tasks[hole] = tasks[child]
        hole = child
        child = 2 * hole + 1
    keys[hole] = key
    tasks[hole] = task


@compiled
def _foremost(blocker: int, other: int) -> int:
    """The lower index of this graph, else the lower id of an earlier one (-2 - id), else -1."""
    if other == -1 or (blocker >= 0 and other < 0):
        return blocker
    if blocker == -1 or (blocker < 0 and other >= 0):
        return other
    return min(blocker, other) if blocker >= 0 else max(blocker, other)


@compiled
def _arrival(task: int, ready: int, held: Held, free: I64) -> int:
    """When a task is ready and its queues are free."""
    key = ready
    for pair in range(held.offsets[task], held.offsets[task + 1]):
        server = held.server_ids[pair]
        if held.in_order[server]:
            key = max(key, free[server])
    return key


@compiled
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
def place_tasks(
    duration_ps: I64,
    held: Held,
    waiters: Waiters,
    pending: I32,
    ready: I64,
    blocker: I64,
    free: I64,
    holder: I64,
) -> tuple[I64, I64, int]:
    """The event loop.

    Args:
        duration_ps: int64[n].
        held: the servers of each task.
        waiters: who waits for each task.
        pending: int32[n], for how many dependencies and queues each waits; all 0 on return unless there is a cycle.
        ready: int64[n], the releases; on return when each was ready.
        blocker: int64[n], the releases' blockers as -2 - id; on return what bound each start.
        free: int64[servers], updated.
        holder: int64[servers], updated.

    Returns:
        Starts and ends, int64[n], and how many tasks were placed.
    """
    tasks = len(duration_ps)
    start, end = np.empty(tasks, np.int64), np.empty(tasks, np.int64)
    keys, heap = np.empty(tasks, np.int64), np.empty(tasks, np.int32)
    size = placed = 0
    for task in range(tasks):
        if pending[task] == 0:
            _push(keys, heap, size, _arrival(task, ready[task], held, free), task)
            size += 1
    while size > 0:
        task, key = heap[0], keys[0]
        _drop_least(keys, heap, size)
        size -= 1
        placed += 1
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
                _push(keys, heap, size, _arrival(waiting, ready[waiting], held, free), waiting)
                size += 1
        for pair in range(held.offsets[task], held.offsets[task + 1]):
            waiting = waiters.followers[pair]
            if waiting >= 0:
                pending[waiting] -= 1
                if pending[waiting] == 0:
                    _push(keys, heap, size, _arrival(waiting, ready[waiting], held, free), waiting)
                    size += 1
    return start, end, placed
