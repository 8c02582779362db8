"""When does each task run? The compiled scheduler; ``reference`` is its readable twin and gives the same answers.

numba is imported by the first call, not by this module, so that commands which schedule nothing start fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trnprof.emulator.graph_check import Names, check_graph, raise_cycle, raise_held_twice
from trnprof.emulator.taskgraph import I64, Schedule, ServerState, TaskGraph


def schedule(graph: TaskGraph, state: ServerState | None = None, names: Names = None) -> Schedule:
    """Place every task of a graph; see taskgraph for what that means.

    Takes O((n + e + s) log r) for r tasks ready at once, and O(n + e + s) where tasks are served in the order of their index.

    Args:
        graph: the tasks.
        state: what an earlier graph left of the servers (see carry_state); all free from 0 by default.
        names: what errors call the tasks: a sequence over all, or a function of the index.

    Raises:
        GraphError: the graph is malformed, or its tasks wait for each other.
    """
    check_graph(graph, state, names)
    from trnprof.emulator import scheduler_kernel as kernel

    held = kernel.Held(
        frozen(graph.server_offsets),
        frozen(graph.server_ids, np.int32),
        frozen(graph.occupancy_ps),
        frozen(graph.in_order, np.bool_),
    )
    edges = kernel.Edges(
        frozen(graph.dependency_offsets), frozen(graph.dependencies), frozen(graph.lag_ps)
    )
    course = kernel.Course(
        graph.release_ps.astype(np.int64),
        -2 - graph.release_blocker.astype(np.int64),
        *_servers(len(graph.in_order), state),
    )
    start, end, pending, repeated = kernel.place_tasks(
        frozen(graph.duration_ps), held, edges, course
    )
    if repeated >= 0:
        raise_held_twice(graph, repeated, names)
    if pending.any():
        raise_cycle(graph, pending > 0, names)
    servers = ServerState(course.free, course.holder)
    return Schedule(start, end, course.ready, course.blocker, servers)


def carry_state(state: ServerState, task_ids: NDArray[np.integer]) -> ServerState:
    """The state a schedule ended with, as the next graph's schedule takes it.

    Args:
        state: of a Schedule.
        task_ids: int[n], the caller's id of each task of the graph that was scheduled.
    """
    last = state.last_task
    ids = np.where(last == -1, -1, -2 - last)
    ids[last >= 0] = np.asarray(task_ids)[last[last >= 0]]
    return ServerState(state.free_ps.copy(), ids)


def _servers(count: int, state: ServerState | None) -> tuple[I64, I64]:
    """Free time and last holder of each server, both to be written on; an earlier graph's holder is -2 - id."""
    if state is None:
        return np.zeros(count, np.int64), np.full(count, -1, np.int64)
    return state.free_ps.astype(np.int64), -2 - state.last_task.astype(np.int64)


def frozen(array: NDArray[Any], dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """A contiguous read-only view, copied only if need be: one array type, so that compiled functions are compiled once."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view
