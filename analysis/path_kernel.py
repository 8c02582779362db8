"""How are the edges of a step followed fast? Two walks over them, compiled; imported only when first needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

I64 = NDArray[np.int64]


@compiled
def walk_back(blockers: I64, last: int) -> I64:
    """Indices from ``last`` back to the first event that nothing bound, the latest first; a circle ends where it closes."""
    path = np.empty(len(blockers), np.int64)
    seen = np.zeros(len(blockers), np.bool_)
    count = 0
    at = last
    while at >= 0 and not seen[at]:
        seen[at] = True
        path[count] = at
        count += 1
        at = blockers[at]
    return path[:count]


@compiled
def latest_ends(starts: I64, ends: I64, offsets: I64, targets: I64, lags: I64, end: int) -> I64:
    """How late each event may end without moving ``end``, if nothing else changes.

    Args:
        starts: int64[n], in ascending order.
        ends: int64[n].
        offsets: int64[n + 1], CSR offsets into the next two, by source.
        targets: int64[e], who waits for it.
        lags: int64[e], how long after its end the target may start.
        end: of the step.
    """
    latest = np.full(len(starts), end, np.int64)
    for event in range(len(starts) - 1, -1, -1):
        for edge in range(offsets[event], offsets[event + 1]):
            target = targets[edge]
            latest_start = latest[target] - (ends[target] - starts[target])
            latest[event] = min(latest[event], latest_start - lags[edge])
        latest[event] = max(latest[event], ends[event])
    return latest
