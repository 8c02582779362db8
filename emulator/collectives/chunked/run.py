"""When does each chunk cross each link? Collectives in flight at once, lowered to tasks and scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trnprof.emulator.collectives.bound import LATENCY, PEER, find_bound
from trnprof.emulator.collectives.chunked.lower import Arrivals, Lowered, lower
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.outcome import Bound, Events
from trnprof.emulator.collectives.planned import Planned, Ran
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.scheduler import frozen, schedule
from trnprof.emulator.taskgraph import TaskGraph


def run_chunked(planned: Sequence[Planned], fabric: Fabric, endpoint: Endpoint) -> list[Ran]:
    """Run collectives that share links, first come, first served; those that come at once take turns, chunk by chunk.

    Args:
        planned: what is in flight.
        fabric: links, slow chips' slowed down.
        endpoint: what messages cost at their chips.

    Raises:
        CollectiveError: too many transfers, or a message from a chip to itself.
    """
    servers = Servers(fabric.links, fabric.chips, len(planned))
    lowered = _together(
        [
            lower(one.messages, fabric, one.routes, endpoint, one.request, servers, index)
            for index, one in enumerate(planned)
        ]
    )
    graph = lowered.graph
    events = Events(
        graph,
        schedule(graph),
        lowered.first_message,
        lowered.message,
        lowered.chunk,
        lowered.bytes,
        np.where(graph.server_ids < fabric.links, graph.server_ids, np.int32(-1)),
    )
    return [
        _ran(one, events, index, arrivals, servers, fabric)
        for index, (one, arrivals) in enumerate(zip(planned, lowered.arrivals, strict=True))
    ]


def _ran(
    one: Planned, events: Events, part: int, arrivals: Arrivals, servers: Servers, fabric: Fabric
) -> Ran:
    from trnprof.emulator.collectives import sums_kernel as kernel

    graph, end_ps = events.graph, frozen(events.schedule.end_ps)
    first, past = events.first_message[part : part + 2].tolist()
    busy_ps = kernel.busy_ps(
        frozen(graph.server_ids, np.int32),
        frozen(graph.occupancy_ps),
        frozen(events.message, np.int32),
        first,
        past,
        fabric.links,
    )
    rank_end_ps, last = kernel.last_arrivals(
        frozen(one.messages.target, np.int32),
        frozen(arrivals.last_task),
        frozen(arrivals.lag_ps),
        end_ps,
        frozen(arrivals.release_ps),
    )
    time_ps = int(rank_end_ps.max(initial=0))
    if last < 0 and time_ps == 0:
        return Ran(0, rank_end_ps, busy_ps, Bound(LATENCY, "no messages"), events)
    at = (int(arrivals.last_task[last]), int(arrivals.lag_ps[last])) if last >= 0 else (0, 0)
    if last < 0 or int(end_ps[at[0]]) + at[1] < time_ps:  # everything was there before a late rank
        late = Bound(PEER, f"rank {int(np.argmax(rank_end_ps))}")
        return Ran(time_ps, rank_end_ps, busy_ps, late, events)
    bound = find_bound(events, part, one.messages, one.request, servers, fabric, at)
    return Ran(time_ps, rank_end_ps, busy_ps, bound, events)


def _together(parts: list[Lowered]) -> Lowered:
    """Tasks of several collectives in one graph, numbered chunk by chunk, and for each chunk collective by collective."""
    if len(parts) == 1:
        return parts[0]
    graphs = [part.graph for part in parts]
    tasks = np.cumsum([0, *(len(graph) for graph in graphs)])
    messages = np.cumsum([0, *(int(part.first_message[-1]) for part in parts)])
    chunk = np.concatenate([part.chunk for part in parts])
    order = np.argsort(chunk, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    counts = np.concatenate([np.diff(graph.dependency_offsets) for graph in graphs])
    old, offsets = offsets_of(counts), offsets_of(counts[order])
    edges = np.arange(offsets[-1]) + np.repeat(old[:-1][order] - offsets[:-1], counts[order])
    sources = [graph.dependencies + task for graph, task in zip(graphs, tasks, strict=False)]
    occupancy_ps = np.concatenate([graph.occupancy_ps for graph in graphs])[order]
    graph = TaskGraph(
        duration_ps=occupancy_ps,
        release_ps=np.concatenate([graph.release_ps for graph in graphs])[order],
        release_blocker=np.concatenate([graph.release_blocker for graph in graphs])[order],
        server_offsets=np.arange(len(order) + 1, dtype=np.int64),
        server_ids=np.concatenate([graph.server_ids for graph in graphs])[order],
        occupancy_ps=occupancy_ps,
        dependency_offsets=offsets,
        dependencies=number[np.concatenate(sources)[edges]],
        lag_ps=np.concatenate([graph.lag_ps for graph in graphs])[edges],
        in_order=graphs[0].in_order,
    )
    shifted = [part.message + first for part, first in zip(parts, messages, strict=False)]
    return Lowered(
        graph=graph,
        first_message=messages.astype(np.int64),
        message=np.concatenate(shifted).astype(np.int32)[order],
        chunk=chunk[order],
        bytes=np.concatenate([part.bytes for part in parts])[order],
        arrivals=tuple(
            replace(part.arrivals[0], last_task=number[part.arrivals[0].last_task + task])
            for part, task in zip(parts, tasks, strict=False)
        ),
    )
