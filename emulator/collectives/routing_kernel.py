"""Which messages have the same ends? Compiled; imported when first needed, as numba is."""

from __future__ import annotations

import numpy as np

from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.tracer.compiled import compiled


@compiled
def distinct_pairs(sources: I32, targets: I32, chips: int) -> tuple[I32, I64]:
    """Number pairs in the order in which they come first.

    Returns:
        int32[m], the pair of each message; int64[pairs], the first message of each.
    """
    known = np.full(chips * chips, -1, np.int32)
    pair, first = np.empty(len(sources), np.int32), np.empty(len(sources), np.int64)
    count = 0
    for message in range(len(sources)):
        ends = np.int64(sources[message]) * chips + targets[message]
        if known[ends] < 0:
            known[ends] = count
            first[count] = message
            count += 1
        pair[message] = known[ends]
    return pair, first[:count].copy()


@compiled
def repeat_routes(pair: I32, offsets: I64, links: I32) -> tuple[I64, I32]:
    """CSR offsets, int64[m + 1], and links of messages by the routes of their pairs."""
    starts = np.zeros(len(pair) + 1, np.int64)
    for message in range(len(pair)):
        length = offsets[pair[message] + 1] - offsets[pair[message]]
        starts[message + 1] = starts[message] + length
    repeated = np.empty(starts[-1], np.int32)
    for message in range(len(pair)):
        first, at = offsets[pair[message]], starts[message]
        for hop in range(starts[message + 1] - at):
            repeated[at + hop] = links[first + hop]
    return starts, repeated
