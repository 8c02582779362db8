"""How long do collectives take that are in flight at once, if they share links as fluids do? By max-min fair rates, message by message.

A message is posted when what it waits for has arrived (and its sender has come), takes the latencies of its route, and then flows over all of
it at one rate until its bytes are over: as in SimGrid's model CM02 without cross traffic (Velho, Schnorr, Casanova and Legrand, TOMACS 2013).
Rates are max-min fair among all that flows, see ``max_min``, and change whenever something begins or ends. What a collective sends from one
chip to another goes one message after the other, as from a queue of DMA descriptors: else late ranks and noise would make messages of
different steps slow each other down, and the more the later it gets. What chips pay is shared alike: the DMA engines of the sender, the HBM of
both, as links of their own on the route. Messages are not cut into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnprof.emulator.collectives.bound import LATENCY, largest_part, link_times_ps
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.fluid.traffic import (
    capacities,
    join_messages,
    make_classes,
    make_times,
    make_traffic,
)
from trnprof.emulator.collectives.outcome import Bound
from trnprof.emulator.collectives.perturb import releases
from trnprof.emulator.collectives.planned import Planned, Ran
from trnprof.emulator.collectives.request import CUT_THROUGH
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.fabric.fabric import I32, I64, Fabric
from trnprof.emulator.scheduler import frozen
from trnprof.tracer.errors import CollectiveError


@dataclass(frozen=True)
class Flowed:
    """When the messages of several collectives flowed, one collective after the other.

    Attributes:
        first_message: int64[collectives + 1].
        ready_ps: int64[m], when all that a message waits for had come.
        start_ps: int64[m], when it left its sender.
        flow_ps: int64[m], when its head had come through, so that it flowed from then on, or from the end of the one before it.
        end_ps: int64[m], when it was seen at its receiver.
        blocker: int64[m], the message that it waited for last; -2 - position if for that rank, which came late; else -1.
        bottleneck: int32[m], the server (see ``Servers``) that kept its rate down at its end, -1 for none.
        poster: int64[m], the server that posted it.
        ratings: how often rates have been found.
    """

    first_message: I64
    ready_ps: I64
    start_ps: I64
    flow_ps: I64
    end_ps: I64
    blocker: I64
    bottleneck: I32
    poster: I64
    ratings: int


def run_fluid(planned: Sequence[Planned], fabric: Fabric, endpoint: Endpoint) -> list[Ran]:
    """Run collectives that share links.

    Args:
        planned: what is in flight.
        fabric: links, slow chips' slowed down.
        endpoint: what messages cost at their chips.

    Raises:
        CollectiveError: what fluids cannot do, or times beyond belief.
    """
    if not planned:
        return []
    flowed = flow(planned, fabric, endpoint)
    servers = Servers(fabric.links, fabric.chips, len(planned))
    return [
        _ran(part, int(first), flowed, fabric, endpoint, servers)
        for part, first in zip(planned, flowed.first_message, strict=False)
    ]


def flow(planned: Sequence[Planned], fabric: Fabric, endpoint: Endpoint) -> Flowed:
    """As ``run_fluid``, message by message."""
    from trnprof.emulator.collectives.fluid import kernel
    from trnprof.emulator.collectives.fluid.classes import NEVER

    for part in planned:
        if part.request.astra_sim is not None or part.request.forwarding != CUT_THROUGH:
            raise CollectiveError(
                "fluids go over all links of a route at once: store-and-forward needs the fidelity chunked"
            )
    joined = join_messages(planned)
    class_of, paths = make_classes(joined, fabric, endpoint)
    traffic = make_traffic(planned, joined, fabric, endpoint, class_of)
    times = make_times(planned, endpoint, len(joined.source))
    kernel.run_flows(traffic, paths, capacities(planned, fabric, endpoint), times)
    if times.end_ps.max(initial=0) >= NEVER:
        raise CollectiveError("messages that wait for each other never end")
    return Flowed(
        first_message=joined.first,
        ready_ps=times.ready_ps,
        start_ps=times.start_ps,
        flow_ps=times.start_ps + traffic.latency_ps,
        end_ps=times.end_ps,
        blocker=times.blocker,
        bottleneck=times.bottleneck,
        poster=Servers(fabric.links, fabric.chips).first_post(0) + traffic.poster.astype(np.int64),
        ratings=int(times.ratings[0]),
    )


def _ran(
    part: Planned, first: int, flowed: Flowed, fabric: Fabric, endpoint: Endpoint, servers: Servers
) -> Ran:
    messages = part.messages
    ends = flowed.end_ps[first : first + len(messages)]
    rank_end_ps = releases(part.request)[0]
    np.maximum.at(rank_end_ps, messages.target, ends)
    time_ps = int(rank_end_ps.max(initial=0))
    held_ps = link_times_ps(messages, part.routes, fabric)
    busy_ps = np.minimum(
        held_ps, time_ps
    )  # each message's is rounded, so their sum may be more by some ps
    if len(messages) == 0:
        return Ran(time_ps, rank_end_ps, busy_ps, Bound(LATENCY, "no messages"))
    last = first + int(np.argmax(ends))
    spent = _spent(flowed, last, messages.step, first, endpoint, servers)
    return Ran(time_ps, rank_end_ps, busy_ps, largest_part(spent, servers, fabric))


def _spent(
    flowed: Flowed, last: int, step: I32, first: int, endpoint: Endpoint, servers: Servers
) -> Any:
    """On what the time went, back from the last message, each waiting for the last that it needs."""
    from trnprof.emulator.collectives.fluid.walk import Flows, walk

    flows = Flows(
        frozen(flowed.ready_ps),
        frozen(flowed.start_ps),
        frozen(flowed.flow_ps),
        frozen(flowed.end_ps),
        frozen(flowed.blocker),
        frozen(flowed.bottleneck, np.int32),
        frozen(flowed.poster),
    )
    return walk(
        flows,
        last,
        endpoint.dma_start_ps,
        endpoint.dma_done_ps,
        frozen(step, np.int32),
        first,
        len(servers),
    )
