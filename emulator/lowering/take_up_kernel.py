"""In which order does ASTRA-sim take up nodes? Of those that wait for nothing more the one of the least id, when its resource is free.

So says its source (``Workload::issue_dep_free_nodes``, ``HardwareResource``): a rank has one node of each resource at a time. Our scheduler
serves first come, first served, so the order is found ahead, and resources then serve in it. Compiled.
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.followers import find_followers
from trnprof.emulator.heap import drop_least, push
from trnprof.tracer.compiled import compiled


@compiled
def take_up(ids: I64, resource: I64, duration_ps: I64, offsets: I64, waits_for: I64) -> I64:
    """The order in which nodes start.

    Args:
        ids: int64[n].
        resource: int64[n], from 0.
        duration_ps: int64[n].
        offsets: int64[n + 1], CSR offsets.
        waits_for: int64[d], indices of earlier nodes.

    Returns:
        int64[n], indices.
    """
    count, resources = ids.size, int(resource.max()) + 1
    pending = np.diff(offsets)
    first, followers = find_followers(offsets, waits_for)
    keys, items = np.empty((resources, count), np.int64), np.empty((resources, count), np.int64)
    sizes, is_free = np.zeros(resources, np.int64), np.ones(resources, np.bool_)
    for node in range(count):
        if pending[node] == 0:
            push(
                keys[resource[node]], items[resource[node]], sizes[resource[node]], ids[node], node
            )
            sizes[resource[node]] += 1
    ends, running, busy = np.empty(resources, np.int64), np.empty(resources, np.int64), 0
    order, started, now = np.empty(count, np.int64), 0, 0
    while started < count or busy > 0:
        for kind in range(resources):
            if is_free[kind] and sizes[kind] > 0:
                node = items[kind, 0]
                drop_least(keys[kind], items[kind], sizes[kind])
                sizes[kind] -= 1
                is_free[kind] = False
                push(ends, running, busy, now + duration_ps[node], node)
                busy += 1
                order[started] = node
                started += 1
        if busy == 0:
            break
        now, node = ends[0], running[0]
        drop_least(ends, running, busy)
        busy -= 1
        is_free[resource[node]] = True
        for at in range(first[node], first[node + 1]):
            follower = followers[at]
            pending[follower] -= 1
            if pending[follower] == 0:
                kind = resource[follower]
                push(keys[kind], items[kind], sizes[kind], ids[follower], follower)
                sizes[kind] += 1
    return order[:started]
