"""In which order can nodes run, and which wait for each other? Compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.followers import find_followers
from trnprof.emulator.heap import drop_least, push
from trnprof.tracer.compiled import compiled


@compiled
def order_nodes(ids: NDArray[np.uint64], offsets: I64, dependencies: I64) -> I64:
    """A topological order, of those that can come next always the one of the least id.

    Args:
        ids: uint64[n].
        offsets: int64[n + 1], CSR offsets.
        dependencies: int64[d], indices of the nodes that each one waits for.

    Returns:
        int64[m], indices; m < n if some nodes wait for each other.
    """
    count = ids.size
    waiting = np.diff(offsets)
    first, followers = find_followers(offsets, dependencies)
    keys, items, size = np.empty(count, np.uint64), np.empty(count, np.int64), 0
    for node in range(count):
        if waiting[node] == 0:
            push(keys, items, size, ids[node], node)
            size += 1
    order, done = np.empty(count, np.int64), 0
    while size > 0:
        node = items[0]
        drop_least(keys, items, size)
        size -= 1
        order[done] = node
        done += 1
        for at in range(first[node], first[node + 1]):
            follower = followers[at]
            waiting[follower] -= 1
            if waiting[follower] == 0:
                push(keys, items, size, ids[follower], follower)
                size += 1
    return order[:done]


def find_cycle(offsets: I64, dependencies: I64, order: I64) -> list[int]:
    """Nodes of which each waits for the next, and the last for the first; some are not in the order.

    Args:
        offsets: int64[n + 1].
        dependencies: int64[d].
        order: int64[m], of the nodes that can run.
    """
    is_stuck = np.ones(len(offsets) - 1, bool)
    is_stuck[order] = False
    node = int(np.flatnonzero(is_stuck)[0])
    places: dict[int, int] = {}
    path: list[int] = []
    while node not in places:
        places[node] = len(path)
        path.append(node)
        waits_for = dependencies[offsets[node] : offsets[node + 1]]
        node = int(waits_for[is_stuck[waits_for]][0])
    return path[places[node] :]
