"""Who waits for each node? Dependencies turned round, for compiled loops."""

from __future__ import annotations

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.tracer.compiled import compiled


@compiled
def find_followers(offsets: I64, dependencies: I64) -> tuple[I64, I64]:
    """By counting sort.

    Args:
        offsets: int64[n + 1], CSR offsets.
        dependencies: int64[d], indices of the nodes that each one waits for.

    Returns:
        int64[n + 1] CSR offsets, int64[d] nodes that wait for each one, ascending.
    """
    count = offsets.size - 1
    first = np.zeros(count + 1, np.int64)
    for source in dependencies:
        first[source + 1] += 1
    first = np.cumsum(first)
    place = first[:-1].copy()
    followers = np.empty(dependencies.size, np.int64)
    for node in range(count):
        for at in range(offsets[node], offsets[node + 1]):
            source = dependencies[at]
            followers[place[source]] = node
            place[source] += 1
    return first, followers
