"""When does each task run? The readable twin of ``scheduler``: the same answers, a task at a time, with heapq.

A task *arrives* when its dependencies are met and everything before it in its in-order queues has been placed; its
key is the time at which it is ready and those queues are free. The heap hands out arrived tasks by (key, index). Keys
never fall, because whatever a placed task lets arrive has a key no earlier than its start (lags reach back no
further). Each is placed at ``max(key, free times of its shared servers)``, so a shared server serves in order of
arrival, and what is reserved for a task stays reserved: nothing is moved into a gap before it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from trnprof.emulator.graph_check import Names, check_graph, raise_cycle, raise_held_twice
from trnprof.emulator.taskgraph import Schedule, ServerState, TaskGraph

NOTHING = -1


def schedule(graph: TaskGraph, state: ServerState | None = None, names: Names = None) -> Schedule:
    """Place every task of a graph.

    Args:
        graph: the tasks.
        state: what an earlier graph left of the servers; all free from 0 by default.
        names: what errors call the tasks.

    Raises:
        GraphError: the graph is malformed, or its tasks wait for each other.
    """
    check_graph(graph, state, names)
    tasks = _tasks(graph)
    pending = _link(tasks, graph, names)
    servers = _Servers.carried(graph, state)
    arrived = [
        (servers.arrival(task), index) for index, task in enumerate(tasks) if not pending[index]
    ]
    heapq.heapify(arrived)
    placed = 0
    while arrived:
        key, index = heapq.heappop(arrived)
        task = tasks[index]
        servers.place(task, key)
        placed += 1
        for dependent, lag in task.dependents:
            tasks[dependent].met(index, task.end + lag)
        for waiting in [dependent for dependent, _ in task.dependents] + task.next_in_queue:
            pending[waiting] -= 1
            if not pending[waiting]:
                heapq.heappush(arrived, (servers.arrival(tasks[waiting]), waiting))
    if placed < len(tasks):
        raise_cycle(graph, np.array(pending) > 0, names)
    return _schedule(tasks, servers)


@dataclass(slots=True)
class _Task:
    index: int
    duration: int
    ready: int
    binding: int
    """What set ``ready``: the lowest dependency, else the release as -2 - id, else NOTHING."""
    held: list[tuple[int, int]]
    dependents: list[tuple[int, int]]
    next_in_queue: list[int]
    start: int = 0
    blocker: int = NOTHING

    @property
    def end(self) -> int:
        return self.start + self.duration

    def met(self, dependency: int, time: int) -> None:
        """A dependency is met at a time, its lag included."""
        if time > self.ready:
            self.ready, self.binding = time, dependency
        elif time == self.ready:
            self.binding = _foremost([self.binding, dependency])


@dataclass
class _Servers:
    free: list[int]
    holder: list[int]
    """Index of the task that held it last, -2 - id for one of an earlier graph, NOTHING."""
    in_order: list[bool]

    @classmethod
    def carried(cls, graph: TaskGraph, state: ServerState | None) -> _Servers:
        count = len(graph.in_order)
        if state is None:
            return cls([0] * count, [NOTHING] * count, graph.in_order.tolist())
        holders = [-2 - last for last in state.last_task.tolist()]  # -1 stays -1: NOTHING
        return cls(state.free_ps.tolist(), holders, graph.in_order.tolist())

    def arrival(self, task: _Task) -> int:
        """When the task is ready and its queues are free; they change no more before it is placed."""
        return max([task.ready] + [self.free[k] for k, _ in task.held if self.in_order[k]])

    def place(self, task: _Task, key: int) -> None:
        """Start the task and reserve its servers."""
        task.start = max([key] + [self.free[k] for k, _ in task.held])
        if task.ready == task.start:
            task.blocker = task.binding
        if task.blocker == NOTHING:
            task.blocker = _foremost(
                [self.holder[k] for k, _ in task.held if self.free[k] == task.start]
            )
        for k, occupancy in task.held:
            self.free[k] = task.start + occupancy
            self.holder[k] = task.index


def _foremost(blockers: list[int]) -> int:
    """The lowest index of this graph, else the lowest id of an earlier one (given as -2 - id), else NOTHING."""
    own = [blocker for blocker in blockers if blocker >= 0]
    earlier = [blocker for blocker in blockers if blocker <= -2]
    return min(own) if own else max(earlier, default=NOTHING)


def _tasks(graph: TaskGraph) -> list[_Task]:
    bounds = graph.server_offsets.tolist()
    pairs = list(zip(graph.server_ids.tolist(), graph.occupancy_ps.tolist(), strict=True))
    columns = (graph.duration_ps, graph.release_ps, -2 - graph.release_blocker.astype(np.int64))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        _Task(
            index, duration, release, released_by, pairs[bounds[index] : bounds[index + 1]], [], []
        )
        for index, (duration, release, released_by) in enumerate(rows)
    ]


def _link(tasks: list[_Task], graph: TaskGraph, names: Names) -> list[int]:
    """Fill in who waits for whom; returns for how many others each task waits."""
    bounds, sources = graph.dependency_offsets.tolist(), graph.dependencies.tolist()
    lags, in_order = graph.lag_ps.tolist(), graph.in_order.tolist()
    pending = [0] * len(tasks)
    last_on = [NOTHING] * len(in_order)
    for task in tasks:
        for edge in range(bounds[task.index], bounds[task.index + 1]):
            tasks[sources[edge]].dependents.append((task.index, lags[edge]))
            pending[task.index] += 1
        for position, (k, _) in enumerate(task.held):
            if last_on[k] == task.index:
                raise_held_twice(graph, int(graph.server_offsets[task.index]) + position, names)
            if in_order[k] and last_on[k] != NOTHING:
                tasks[last_on[k]].next_in_queue.append(task.index)
                pending[task.index] += 1
            last_on[k] = task.index
    return pending


def _schedule(tasks: list[_Task], servers: _Servers) -> Schedule:
    return Schedule(
        start_ps=np.array([task.start for task in tasks], np.int64),
        end_ps=np.array([task.end for task in tasks], np.int64),
        ready_ps=np.array([task.ready for task in tasks], np.int64),
        blocker=np.array([task.blocker for task in tasks], np.int64),
        state=ServerState(np.array(servers.free, np.int64), np.array(servers.holder, np.int64)),
    )
