"""What bounds a collective? The path back from its last arrival, and the link that has most to do."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.collectives.outcome import Bound, Events
from trnprof.emulator.collectives.request import CUT_THROUGH, Request
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.fabric.fabric import I64, Fabric, Routes
from trnprof.emulator.scheduler import frozen

LATENCY: Final = "latency"
PEER: Final = "peer"
STANDS_OUT: Final = 1.1
"""A step that takes so much more of the path than the one after it is named."""


def bandwidth_bound_ps(messages: Messages, routes: Routes, fabric: Fabric) -> int:
    """The least time that these messages can take over these routes: that of the busiest link, if it never waits.

    Args:
        messages: of one collective.
        routes: one a message.
        fabric: their links.
    """
    return int(link_times_ps(messages, routes, fabric).max(initial=0))


def link_times_ps(messages: Messages, routes: Routes, fabric: Fabric) -> I64:
    """int64[links], how long each is held by messages without noise; arguments as above."""
    from trnprof.emulator.collectives.sums_kernel import hold_links_ps

    times: I64 = hold_links_ps(
        frozen(routes.offsets),
        frozen(routes.links, np.int32),
        frozen(messages.bytes),
        frozen(fabric.bytes_per_s, np.float64),
    )
    return times


def find_bound(
    events: Events,
    part: int,
    messages: Messages,
    request: Request,
    servers: Servers,
    fabric: Fabric,
    last: tuple[int, int],
) -> Bound:
    """On what the time of a collective was spent most, back from what arrived last, each task waiting for its blocker.

    Args:
        events: of all collectives in flight.
        part: which this is.
        messages: its own.
        request: what is asked.
        servers: numbers of servers.
        fabric: for names.
        last: the task after which the last chunk arrives, and the lag from its end until then, in ps.
    """
    from trnprof.emulator.collectives import bound_kernel as kernel

    graph, schedule = events.graph, events.schedule
    run = kernel.Run(
        start_ps=frozen(schedule.start_ps),
        end_ps=frozen(schedule.end_ps),
        blocker=frozen(schedule.blocker),
        occupancy_ps=frozen(graph.occupancy_ps),
        server=frozen(graph.server_ids, np.int32),
        dependency_offsets=frozen(graph.dependency_offsets),
        dependencies=frozen(graph.dependencies),
        lag_ps=frozen(graph.lag_ps),
        message=frozen(events.message, np.int32),
        chunk=frozen(events.chunk, np.int32),
    )
    cuts_through = request.astra_sim is None and request.forwarding == CUT_THROUGH
    spent = kernel.walk(
        run,
        *last,
        frozen(messages.step, np.int32),
        int(events.first_message[part]),
        len(servers),
        servers.first_post(0),
        servers.links,
        cuts_through,
    )
    return largest_part(spent, servers, fabric)


def largest_part(spent: Any, servers: Servers, fabric: Fabric) -> Bound:
    """The kind that took most, and of it the resource; the first on ties.

    Args:
        spent: of a walk back, see ``bound_kernel.Spent``.
        servers: numbers of servers.
        fabric: for names.
    """
    spent_ps = {
        kind: spent.server_ps[each.start : each.stop] for kind, each in servers.numbers().items()
    }
    totals = {kind: int(each.sum()) for kind, each in spent_ps.items()}
    totals |= {LATENCY: spent.latency_ps, PEER: spent.late_ps}
    kind = max(totals, key=lambda name: totals[name])
    if kind == PEER:
        return Bound(PEER, f"rank {spent.late_position}")
    step = _longest_step(spent.step_ps)
    if kind == LATENCY:
        chain = "1 message" if spent.steps == 1 else f"{spent.steps} messages one after the other"
        return Bound(LATENCY, chain, step)
    server = servers.numbers()[kind].start + int(np.argmax(spent_ps[kind]))
    return Bound(kind, servers.name(server, fabric), step)


def _longest_step(step_ps: Any) -> int | None:
    """The step that the path was in longest, where there are several and it stands out."""
    if len(step_ps) < 2:
        return None
    second, first = np.partition(step_ps, -2)[-2:]
    return int(np.argmax(step_ps)) if first >= STANDS_OUT * second else None
