"""Can this task graph be scheduled, and if not, which task is at fault? Shared by both schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.taskgraph import I64, ServerState, TaskGraph
from trnprof.tracer.errors import GraphError
from trnprof.tracer.units import printable

Names = Callable[[int], str] | Sequence[str] | None
"""What people call the tasks of a graph: a sequence over all of them, a function of the index, or nothing."""

MAX_NAMED = 8
MAX_ENTRIES = 2**31 - 1
MAX_TIME_PS = 2**63 - 1

_TASK_ARRAYS = ("duration_ps", "release_ps", "release_blocker")


def check_graph(graph: TaskGraph, state: ServerState | None, names: Names = None) -> None:
    """Check everything but cycles and servers held twice, which scheduling itself meets.

    Raises:
        GraphError: an array of the wrong type, shape or length; offsets that are no CSR offsets; a negative duration,
            release or occupancy; a lag that reaches back beyond the start of the task waited for; a dependency or server
            that does not exist; times whose sum exceeds int64.
    """
    tasks, servers = len(graph), len(graph.in_order)
    for name in _TASK_ARRAYS:
        _check_array(name, getattr(graph, name), tasks)
    for name in ("server_ids", "dependencies"):
        _check_array(name, getattr(graph, name), None)
    _check_array("occupancy_ps", graph.occupancy_ps, len(graph.server_ids))
    _check_array("lag_ps", graph.lag_ps, len(graph.dependencies))
    _check_offsets("server_offsets", graph.server_offsets, tasks, len(graph.server_ids))
    _check_offsets("dependency_offsets", graph.dependency_offsets, tasks, len(graph.dependencies))
    if graph.in_order.dtype != np.bool_ or graph.in_order.ndim != 1:
        raise GraphError("in_order must be a bool array with one entry a server")
    _check_range("duration_ps", graph.duration_ps, None, 0, MAX_TIME_PS, names)
    _check_range("release_ps", graph.release_ps, None, 0, MAX_TIME_PS, names)
    _check_range("release_blocker", graph.release_blocker, None, -1, MAX_TIME_PS - 2, names)
    _check_range("server_ids", graph.server_ids, graph.server_offsets, 0, servers - 1, names)
    _check_range("occupancy_ps", graph.occupancy_ps, graph.server_offsets, 0, MAX_TIME_PS, names)
    _check_range("dependencies", graph.dependencies, graph.dependency_offsets, 0, tasks - 1, names)
    _check_lags(graph, names)
    if state is not None:
        _check_state(state, servers)
    _check_sum(graph, state)


def describe_task(task: int, names: Names) -> str:
    """The task as an error calls it: its index, and its name where there is one."""
    if names is None:
        return f"task {task}"
    name = names(task) if callable(names) else names[task]
    return f"task {task} ({printable(str(name))})"


def raise_held_twice(graph: TaskGraph, pair: int, names: Names) -> NoReturn:
    """Raise for a (task, server) pair that its task has had before."""
    task = _owner(graph.server_offsets, pair)
    raise GraphError(
        f"{describe_task(task, names)} holds server {graph.server_ids[pair]} twice; give it one occupancy"
    )


def raise_cycle(graph: TaskGraph, unfinished: NDArray[np.bool_], names: Names) -> NoReturn:
    """Raise for the tasks that wait for each other.

    Args:
        graph: the graph.
        unfinished: bool[n], the tasks that could not start: those on a cycle or behind one.
        names: what people call the tasks.
    """
    cycle = find_cycle(graph, unfinished)
    waits = []
    for task, source, server in cycle[:MAX_NAMED]:
        if task == source:
            waits.append(f"{describe_task(task, names)} waits for itself")
        elif server < 0:
            waits.append(f"{describe_task(task, names)} waits for {describe_task(source, names)}")
        else:
            behind = describe_task(source, names)
            waits.append(
                f"{describe_task(task, names)} is queued behind {behind} on server {server}"
            )
    more = ", …" if len(cycle) > MAX_NAMED else ""
    raise GraphError(f"tasks wait for each other in a cycle: {', '.join(waits)}{more}")


def find_cycle(graph: TaskGraph, unfinished: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """One cycle among the unfinished tasks, each of which waits for at least one other of them.

    Each is followed to the lowest task it waits for, starting at the lowest. Taking 2^k steps at once, k = 0, 1, …,
    reaches the cycle in log2(n) vector operations.

    Returns:
        At most ``MAX_NAMED + 1`` of (task, task it waits for, server whose queue it waits in or -1). A cycle that
        is complete begins with its lowest task.
    """
    tasks, sources, servers = _waits(graph)
    kept = unfinished[tasks] & unfinished[sources]
    tasks, sources, servers = tasks[kept], sources[kept], servers[kept]
    order = np.lexsort((servers, sources, tasks))
    waiting, first = np.unique(tasks[order], return_index=True)
    follows = np.full(len(graph), -1, np.int64)
    follows[waiting] = sources[order][first]
    via = np.full(len(graph), -1, np.int64)
    via[waiting] = servers[order][first]

    task, jump = int(np.argmax(unfinished)), follows
    for _ in range(len(graph).bit_length()):
        task, jump = int(jump[task]), jump[jump]
    cycle: list[tuple[int, int, int]] = []
    while len(cycle) <= MAX_NAMED and not (cycle and task == cycle[0][0]):
        cycle.append((task, int(follows[task]), int(via[task])))
        task = int(follows[task])
    if len(cycle) > MAX_NAMED:
        return cycle
    lowest = cycle.index(min(cycle))
    return cycle[lowest:] + cycle[:lowest]


def _waits(graph: TaskGraph) -> tuple[I64, I64, I64]:
    """Every (task, task it waits for, server of the queue or -1 for a dependency)."""
    index = np.arange(len(graph))
    dependents = np.repeat(index, np.diff(graph.dependency_offsets))
    owners = np.repeat(index, np.diff(graph.server_offsets))
    queued = np.flatnonzero(graph.in_order[graph.server_ids])
    queued = queued[np.argsort(graph.server_ids[queued], kind="stable")]
    server, owner = graph.server_ids[queued].astype(np.int64), owners[queued]
    adjacent = server[1:] == server[:-1]
    return (
        np.concatenate([dependents, owner[1:][adjacent]]),
        np.concatenate([graph.dependencies, owner[:-1][adjacent]]),
        np.concatenate([np.full(len(dependents), -1, np.int64), server[1:][adjacent]]),
    )


def _check_array(name: str, array: NDArray[np.signedinteger], length: int | None) -> None:
    if array.ndim != 1 or array.dtype.kind != "i":
        raise GraphError(
            f"{name} is {array.dtype}{list(array.shape)}; it must be a flat array of signed integers"
        )
    if length is not None and len(array) != length:
        raise GraphError(f"{name} has {len(array)} entries; it must have {length}")
    if len(array) > MAX_ENTRIES:
        raise GraphError(
            f"{name} has {len(array)} entries, more than 2^31 - 1; schedule it in steps"
        )


def _check_offsets(name: str, offsets: I64, tasks: int, entries: int) -> None:
    _check_array(name, offsets, tasks + 1)
    if offsets[0] != 0 or offsets[-1] != entries:
        raise GraphError(
            f"{name} runs from {offsets[0]} to {offsets[-1]}; it must run from 0 to {entries}"
        )
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        task = int(np.argmax(falls))
        raise GraphError(
            f"{name}[{task + 1}] is {offsets[task + 1]}, less than the {offsets[task]} before it"
        )


def _check_range(
    name: str,
    array: NDArray[np.signedinteger],
    offsets: I64 | None,
    low: int,
    high: int,
    names: Names,
) -> None:
    """Every value within low..high, or the first that is not, with its task."""
    if not len(array) or (array.min() >= low and array.max() <= high):
        return
    at = int(np.argmax((array < low) | (array > high)))
    task = at if offsets is None else _owner(offsets, at)
    wanted = f"at least {low}" if high >= MAX_TIME_PS - 2 else f"in {low}..{high}"
    raise GraphError(
        f"{describe_task(task, names)}: {name}[{at}] is {array[at]}; it must be {wanted}"
    )


def _check_lags(graph: TaskGraph, names: Names) -> None:
    if graph.lag_ps.min(initial=0) >= 0:
        return
    early = graph.lag_ps < -graph.duration_ps[graph.dependencies]
    if early.any():
        at = int(np.argmax(early))
        source = int(graph.dependencies[at])
        raise GraphError(
            f"{describe_task(_owner(graph.dependency_offsets, at), names)}: lag_ps[{at}] is {graph.lag_ps[at]}; it must be at"
            f" least -{graph.duration_ps[source]}, or it starts before {describe_task(source, names)} does"
        )


def _check_state(state: ServerState, servers: int) -> None:
    _check_array("free_ps of the carried state", state.free_ps, servers)
    _check_array("last_task of the carried state", state.last_task, servers)
    if (state.free_ps < 0).any():
        server = int(np.argmax(state.free_ps < 0))
        raise GraphError(
            f"carried state: free_ps[{server}] is {state.free_ps[server]}; it must be at least 0"
        )
    if (state.last_task < -1).any():
        server = int(np.argmax(state.last_task < -1))
        raise GraphError(
            f"carried state: last_task[{server}] is {state.last_task[server]}; pass the state of a schedule on"
            " through carry_state"
        )


def _check_sum(graph: TaskGraph, state: ServerState | None) -> None:
    """No path is longer than the sum of everything on it."""
    total = float(graph.release_ps.max(initial=0))
    for part in (graph.duration_ps, graph.occupancy_ps, np.maximum(graph.lag_ps, 0)):
        total += float(part.sum(dtype=np.float64))
    if state is not None:
        total += float(state.free_ps.max(initial=0))
    if total >= MAX_TIME_PS:
        raise GraphError(
            f"the times of this graph add up to {total:.3g} ps; int64 picoseconds hold {MAX_TIME_PS:.3g}"
            " (106 days): schedule it in steps"
        )


def _owner(offsets: I64, entry: int) -> int:
    return int(np.searchsorted(offsets, entry, side="right")) - 1
