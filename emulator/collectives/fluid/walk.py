"""What did the last message wait for, back to the start, among fluids? A compiled walk; imported when first needed, as numba is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trnprof.emulator.collectives.bound_kernel import Spent
from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.tracer.compiled import compiled


class Flows(NamedTuple):
    """Columns of ``fluid.Flowed``, and the CC-core of each message as a server: int64[m]."""

    ready_ps: I64
    start_ps: I64
    flow_ps: I64
    end_ps: I64
    blocker: I64
    bottleneck: I32
    poster: I64


@compiled
def walk(
    flows: Flows,
    last: int,
    dma_start_ps: int,
    dma_done_ps: int,
    step: I32,
    first: int,
    servers: int,
) -> Spent:
    """Follow blockers back.

    Args:
        flows: all messages.
        last: the one that ends last.
        dma_start_ps: from a message's post until it leaves.
        dma_done_ps: from its last byte to its being seen.
        step: int32[m], of the collective's own messages.
        first: the number of its first message.
        servers: how many there are.
    """
    server_ps, step_ps = np.zeros(servers, np.int64), np.zeros(step.max() + 1, np.int64)
    message, latency_ps, steps = last, 0, 0
    while True:
        ready, end = flows.ready_ps[message], flows.end_ps[message]
        posted = flows.start_ps[message] - dma_start_ps - ready
        flowed = end - dma_done_ps - flows.flow_ps[message]
        server_ps[flows.poster[message]] += posted
        if flowed > 0:
            server_ps[flows.bottleneck[message]] += flowed
        latency_ps += end - ready - posted - flowed
        step_ps[step[message - first]] += end - ready
        steps += 1
        if flows.blocker[message] < 0:
            break
        message = flows.blocker[message]
    if flows.blocker[message] <= -2:
        late_ps, late_position = ready, -2 - flows.blocker[message]
    else:
        late_ps, late_position = 0, -1
        latency_ps += ready
    return Spent(server_ps, step_ps, latency_ps, late_ps, late_position, steps)
