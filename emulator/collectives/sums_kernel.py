"""What goes over each link, and when has everything arrived? Compiled sums; imported when first needed, as numba is."""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.chunked.stages_kernel import whole_ps
from trnprof.emulator.fabric.fabric import F64, I32, I64
from trnprof.tracer.compiled import compiled


@compiled
def sum_over_links(offsets: I64, links: I32, amounts: I64, count: int) -> I64:
    """Add up over each link an amount of each message that takes it: int64[count]."""
    sums = np.zeros(count, np.int64)
    for message in range(len(offsets) - 1):
        for hop in range(offsets[message], offsets[message + 1]):
            sums[links[hop]] += amounts[message]
    return sums


@compiled
def hold_links_ps(offsets: I64, links: I32, sizes: I64, bytes_per_s: F64) -> I64:
    """How long each link is held by messages of these sizes: int64[links]."""
    sums = np.zeros(len(bytes_per_s), np.int64)
    for message in range(len(offsets) - 1):
        for hop in range(offsets[message], offsets[message + 1]):
            sums[links[hop]] += whole_ps(sizes[message], bytes_per_s[links[hop]])
    return sums


@compiled
def hold_in_all_ps(
    offsets: I64, links: I32, sizes: I64, bytes_per_s: F64, latency_ps: I64
) -> tuple[float, float]:
    """How long all links together are held by messages of these sizes, and their latencies, where each is passed: without overflow."""
    held_ps, passed_ps = 0.0, 0.0
    for message in range(len(offsets) - 1):
        for hop in range(offsets[message], offsets[message + 1]):
            held_ps += 1e12 * sizes[message] / bytes_per_s[links[hop]]
            passed_ps += latency_ps[links[hop]]
    return held_ps, passed_ps


@compiled
def busy_ps(
    servers: I32, occupancy_ps: I64, message: I32, first: int, past: int, links: int
) -> I64:
    """How long each link is held by messages first..past-1: int64[links]."""
    busy = np.zeros(links, np.int64)
    for task in range(len(servers)):
        if servers[task] < links and first <= message[task] < past:
            busy[servers[task]] += occupancy_ps[task]
    return busy


@compiled
def last_arrivals(
    target: I32, last_task: I64, arrival_lag_ps: I64, end_ps: I64, release_ps: I64
) -> tuple[I64, int]:
    """When each position has all that is sent to it, and is there itself.

    Args:
        target: int32[m], positions.
        last_task: int64[chunks * m], chunk by chunk.
        arrival_lag_ps: int64[chunks * m].
        end_ps: int64[tasks].
        release_ps: int64[positions], when each comes.

    Returns:
        int64[positions]; and which entry of ``last_task`` arrives last of all, -1 without any.
    """
    arrivals = release_ps.copy()
    latest, at = -1, -1
    for entry in range(len(last_task)):
        time = end_ps[last_task[entry]] + arrival_lag_ps[entry]
        position = target[entry % len(target)]
        arrivals[position] = max(arrivals[position], time)
        if time > latest:
            latest, at = time, entry
    return arrivals, at
