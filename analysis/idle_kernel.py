"""How is the chain of blockers behind a gap followed fast? One walk a gap, compiled; imported only when first needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

I64 = NDArray[np.int64]
RUN, WAIT, REST = 0, 1, 2


@compiled
def chain_pieces(
    gap_starts: I64, gap_ends: I64, enders: I64, starts: I64, ends: I64, blockers: I64, ranks: I64, is_host: NDArray[np.bool_]
) -> tuple[I64, I64, I64, I64, I64, I64]:  # fmt: skip
    """Cut gaps by what their chains of blockers did.

    Args:
        gap_starts: int64[g].
        gap_ends: int64[g].
        enders: int64[g], index of the event that ends each gap.
        starts: int64[n], of events.
        ends: int64[n].
        blockers: int64[n], index of the event that bound the start of each; below 0 where there is none.
        ranks: int64[n], below 0 where there is none.
        is_host: bool[n], whether an event is the host's: what comes before it is the host's too.

    Returns:
        int64[p] each: gap, index of the event that is waited for (-1: nothing is known of it), of the event that waits, start, end, and RUN
        (the one waited for runs), WAIT (between its end and the start of the other) or REST (everything before: of another rank, of the host,
        or without blocker). The pieces of a gap sum to it.
    """
    size = 4 * len(gap_starts) + 16
    found = np.empty((6, size), np.int64)
    count = 0
    for gap in range(len(gap_starts)):
        begin, until = gap_starts[gap], gap_ends[gap]
        waiter = enders[gap]
        own_rank = ranks[waiter]
        left = len(starts) + 1
        while until > begin:
            source = blockers[waiter]
            left -= 1
            ends_here = source < 0 or left < 0
            if not ends_here:
                is_peer = own_rank >= 0 and ranks[source] >= 0 and ranks[source] != own_rank
                ends_here = is_peer or is_host[source]
            if count + 2 >= size:
                grown = np.empty((6, 2 * size), np.int64)
                grown[:, :count] = found[:, :count]
                found, size = grown, 2 * size
            if ends_here:
                found[:, count] = np.array([gap, source, waiter, begin, until, REST])
                count += 1
                break
            after = min(max(ends[source], begin), until)
            if until > after:
                found[:, count] = np.array([gap, source, waiter, after, until, WAIT])
                count += 1
            runs = min(max(starts[source], begin), after)
            if after > runs:
                found[:, count] = np.array([gap, source, waiter, runs, after, RUN])
                count += 1
            until = runs
            waiter = source
    kept = found[:, :count]
    return kept[0], kept[1], kept[2], kept[3], kept[4], kept[5]
