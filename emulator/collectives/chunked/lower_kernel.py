"""How are chunks of messages turned into tasks fast? Compiled; imported when first needed, as numba is.

A task is a chunk at a stage (see ``stages_kernel``). Tasks are numbered chunk by chunk, message by message, stage by stage, so that messages take
turns chunk by chunk where they come at once, as the queues of DMA engines do.

The chunks of a message leave one after the other: each waits until the one before has left the first link, and is read once that one begins to
leave. So the messages of a chip take turns at a link, as rings of DMA descriptors do, and a chunk that goes on to the next step or dimension does
not stand behind all chunks of a message that was posted before it.

Loops use arrays by names of their own: numba counts references whenever one is taken out of a tuple.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trnprof.emulator.collectives.chunked.stages_kernel import Stages, share
from trnprof.emulator.fabric.fabric import F64, I32, I64
from trnprof.tracer.compiled import compiled, inlined


class Waits(NamedTuple):
    """What the first stage of each message waits for.

    Attributes:
        offsets: int64[m + 1], CSR offsets of the next.
        dependencies: int64[e], messages whose chunk must have arrived.
        gate_offsets: int64[m + 1], CSR offsets of the next.
        gates: int64[g], messages whose chunk ``window`` before must have arrived.
        window: see there.
        is_paced: whether the chunks of a message leave one after the other (ASTRA-sim's all queue at once).
        lead_ps: from then until the first stage begins.
        gate_lead_ps: the same after gates.
        release_ps: int64[m], when the sender is there.
        release_blocker: int64[m].
    """

    offsets: I64
    dependencies: I64
    gate_offsets: I64
    gates: I64
    window: int
    is_paced: bool
    lead_ps: int
    gate_lead_ps: int
    release_ps: I64
    release_blocker: I64


class Tasks(NamedTuple):
    """What is written: the columns of a TaskGraph of one server a task, and of Events; see there.

    Attributes:
        last_task: int64[chunks * m], the last stage of each, chunk by chunk.
        arrival_lag_ps: int64[chunks * m], from its end until the chunk has arrived.
    """

    occupancy_ps: I64
    release_ps: I64
    release_blocker: I64
    server: I32
    dependency_offsets: I64
    dependencies: I64
    lag_ps: I64
    message: I32
    chunk: I32
    bytes: I64
    last_task: I64
    arrival_lag_ps: I64


@compiled
def write_columns(
    sizes: I64, stages: Stages, waits: Waits, chunks: int, factors: F64, links: int, tasks: Tasks
) -> None:
    """Fill in all columns of the tasks of one collective but for what they wait for. Tasks are numbered from 0.

    Args:
        sizes: int64[m], bytes of messages.
        stages: their chains.
        waits: for the releases.
        chunks: into how many each is cut.
        factors: float64[tasks], noise on what links take, or empty.
        links: servers below are links.
        tasks: written.
    """
    offsets, servers, times, is_each = stages.offsets, stages.server, stages.time_ps, stages.is_each
    occupancy_ps, server, of_message = tasks.occupancy_ps, tasks.server, tasks.message
    of_chunk, size, last_task = tasks.chunk, tasks.bytes, tasks.last_task
    release_ps, release_blocker = tasks.release_ps, tasks.release_blocker
    releases, blockers = waits.release_ps, waits.release_blocker
    release_ps[:], release_blocker[:] = 0, -1
    is_noisy, task = len(factors) > 0, 0
    for chunk in range(chunks):
        for message in range(len(sizes)):
            release_ps[task], release_blocker[task] = releases[message], blockers[message]
            for stage in range(offsets[message], offsets[message + 1]):
                time = times[stage] if is_each else share(times[stage], chunk, chunks)
                if is_noisy and servers[stage] < links:
                    time = int(np.rint(time * factors[task]))
                occupancy_ps[task], server[task] = time, servers[stage]
                of_message[task], of_chunk[task] = message, chunk
                size[task] = share(sizes[message], chunk, chunks)
                task += 1
            last_task[chunk * len(sizes) + message] = task - 1


@compiled
def write_edges(
    stages: Stages, waits: Waits, chunks: int, factors: F64, links: int, tasks: Tasks
) -> None:
    """Fill in what each task waits for; to be called after ``write_columns``, with the same arguments."""
    offsets, servers, streams = stages.offsets, stages.server, stages.streams
    latencies, is_early, first_link = stages.latency_ps, stages.is_early, stages.first_link
    edges, dependencies, lag_ps = tasks.dependency_offsets, tasks.dependencies, tasks.lag_ps
    occupancy_ps, arrival_lag_ps = tasks.occupancy_ps, tasks.arrival_lag_ps
    is_noisy, posts, per_chunk = len(factors) > 0, stages.posts, offsets[-1]
    count = len(first_link)
    task = edge = slowest_task = 0
    for chunk in range(chunks):
        for message in range(count):
            edges[task] = edge
            edge = _write_waits(waits, message, chunk, count, tasks, edge)
            first, link = offsets[message], first_link[message]
            is_paced = chunk > 0 and waits.is_paced
            latency = slowest = since_ps = np.int64(0)
            slowest_task = task
            for stage in range(first, offsets[message + 1]):
                time = occupancy_ps[task]
                if stage > first:
                    back = occupancy_ps[task - 1]
                    if not is_early[stage]:
                        back = min(back, time)
                    edges[task] = edge
                    edge = _wait(
                        dependencies, lag_ps, edge, task - 1, latency - back * streams[stage - 1]
                    )
                    if is_early[stage - 1] and not is_early[stage]:
                        back = min(slowest, time)
                        edge = _wait(dependencies, lag_ps, edge, slowest_task, since_ps - back)
                if is_paced and stage == link:
                    edge = _wait(dependencies, lag_ps, edge, task - per_chunk, 0)
                elif is_paced and stage == first + posts and stage < link:
                    left = task - per_chunk + link - stage
                    edge = _wait(dependencies, lag_ps, edge, left, -occupancy_ps[left])
                latency = latencies[stage]
                if is_noisy and servers[stage] < links:
                    latency = np.int64(np.rint(latency * factors[task]))
                if time >= slowest or not streams[stage]:
                    slowest, slowest_task, since_ps = time * streams[stage], task, np.int64(0)
                since_ps += latency
                task += 1
            arrival_lag_ps[chunk * count + message] = latency
    edges[task] = edge


@inlined
def _wait(dependencies: I64, lag_ps: I64, edge: int, source: int, lag: int) -> int:
    dependencies[edge], lag_ps[edge] = source, lag
    return edge + 1


@compiled
def count_pacing(stages: Stages, waits: Waits) -> int:
    """How many stages wait for the chunk before."""
    if not waits.is_paced:
        return 0
    paced = len(stages.first_link)
    for message in range(len(stages.first_link)):
        paced += stages.offsets[message] + stages.posts < stages.first_link[message]
    return paced


@inlined
def _write_waits(
    waits: Waits, message: int, chunk: int, count: int, tasks: Tasks, edge: int
) -> int:
    """What the first task of a chunk waits for; returns the next free edge."""
    for at in range(waits.offsets[message], waits.offsets[message + 1]):
        before = chunk * count + waits.dependencies[at]
        tasks.dependencies[edge] = tasks.last_task[before]
        tasks.lag_ps[edge] = tasks.arrival_lag_ps[before] + waits.lead_ps
        edge += 1
    if chunk >= waits.window:
        for at in range(waits.gate_offsets[message], waits.gate_offsets[message + 1]):
            before = (chunk - waits.window) * count + waits.gates[at]
            tasks.dependencies[edge] = tasks.last_task[before]
            tasks.lag_ps[edge] = tasks.arrival_lag_ps[before] + waits.gate_lead_ps
            edge += 1
    return edge
