"""How are nested spans of threads told from what lies in them, fast? One sweep over them, compiled; imported only when first needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

I64 = NDArray[np.int64]


@compiled
def self_times(threads: I64, starts: I64, ends: I64) -> I64:
    """How long each span is the innermost of its thread: of those that are open the one that began last.

    Args:
        threads: int64[n], in ascending order.
        starts: int64[n], in ascending order within a thread; of spans that begin together the outer one comes first.
        ends: int64[n], none before its start.

    Returns:
        int64[n]; those of a thread sum to the time in which it has a span open.
    """
    own = np.zeros(len(starts), np.int64)
    stack = np.empty(len(starts), np.int64)
    depth = 0
    for index in range(len(starts) + 1):
        is_last = index == len(starts)
        is_new = is_last or index == 0 or threads[index] != threads[index - 1]
        if depth:
            now = starts[index - 1]  # until there it is decided
            while depth:
                top = stack[depth - 1]
                until = ends[top] if is_new else min(ends[top], starts[index])
                if until > now:
                    own[top] += until - now
                    now = until
                if ends[top] > now:
                    break
                depth -= 1
        if not is_last:
            stack[depth] = index
            depth += 1
    return own
