"""What did the last arrival wait for, back to the start? A compiled walk; imported when first needed, as numba is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.tracer.compiled import compiled, inlined


class Run(NamedTuple):
    """Columns of a graph and its schedule; see ``taskgraph``."""

    start_ps: I64
    end_ps: I64
    blocker: I64
    occupancy_ps: I64
    server: I32
    dependency_offsets: I64
    dependencies: I64
    lag_ps: I64
    message: I32
    chunk: I32


class Spent(NamedTuple):
    """What the time of the walk was spent on; all add up to it.

    Attributes:
        server_ps: int64[servers].
        step_ps: int64[steps], of the collective's own messages (also in ``server_ps`` and ``latency_ps``).
        latency_ps: of steps and hops.
        late_ps: for a rank that came late.
        late_position: that rank, -1 for none.
        steps: how many messages the walk passed.
    """

    server_ps: I64
    step_ps: I64
    latency_ps: int
    late_ps: int
    late_position: int
    steps: int


@inlined
def _edge(run: Run, task: int, blocker: int) -> int:
    """The edge by which a task waited for its blocker; -1: it waited for its server."""
    for edge in range(run.dependency_offsets[task], run.dependency_offsets[task + 1]):
        source = run.dependencies[edge]
        if source == blocker and run.end_ps[source] + run.lag_ps[edge] == run.start_ps[task]:
            return edge
    return -1


@inlined
def _latency(run: Run, task: int, edge: int, is_streamed: bool) -> int:
    """Of the time from the start of what the edge waits for to that of the task."""
    source = run.dependencies[edge]
    latency = run.lag_ps[edge]
    if is_streamed:  # the lag counts back from the end
        latency += min(run.occupancy_ps[source], run.occupancy_ps[task])
    spent = run.start_ps[task] - run.start_ps[source]
    return int(max(0, min(latency, spent)))


@compiled
def walk(
    run: Run,
    last: int,
    final_lag_ps: int,
    step: I32,
    first: int,
    servers: int,
    posts: int,
    links: int,
    cuts_through: bool,
) -> Spent:
    """Follow blockers back.

    Args:
        run: all tasks.
        last: the task that ends last.
        final_lag_ps: from its end to its arrival.
        step: int32[m], of the collective's own messages.
        first: the number of its first message.
        servers: how many there are.
        posts: first server that is a CC-core; nothing streams out of those.
        links: servers below are links.
        cuts_through: whether links stream into links.
    """
    server_ps, step_ps = np.zeros(servers, np.int64), np.zeros(step.max() + 1, np.int64)
    task, own = last, 0
    late_ps, late_position, steps = 0, -1, 1
    latency_ps = final_lag_ps
    server_ps[run.server[task]] += run.occupancy_ps[task]
    step_ps[step[run.message[task] - first]] += run.occupancy_ps[task] + final_lag_ps
    while run.blocker[task] >= 0:
        blocker = run.blocker[task]
        spent, latency = run.start_ps[task] - run.start_ps[blocker], 0
        edge = _edge(run, task, blocker)
        is_same = run.message[blocker] == run.message[task]
        is_chain = is_same and run.chunk[blocker] == run.chunk[task]
        if edge >= 0:
            both_links = run.server[blocker] < links and run.server[task] < links
            is_streamed = (
                is_chain and run.server[blocker] < posts and (cuts_through or not both_links)
            )
            latency = _latency(run, task, edge, is_streamed)
        server_ps[run.server[blocker]] += spent - latency
        latency_ps += latency
        own = run.message[blocker] - first
        if 0 <= own < len(step):
            step_ps[step[own]] += spent
        steps += not is_same
        task = blocker
    if run.blocker[task] <= -2:
        late_ps, late_position = run.start_ps[task], -2 - run.blocker[task]
    else:
        latency_ps += run.start_ps[task]
    return Spent(server_ps, step_ps, latency_ps, late_ps, late_position, steps)
