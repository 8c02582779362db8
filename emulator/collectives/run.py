"""How long does a collective take, and what happens meanwhile? From a request to its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trnprof.emulator.collectives.algorithms.policy import choose
from trnprof.emulator.collectives.algorithms.register import plan
from trnprof.emulator.collectives.chunked.run import run_chunked
from trnprof.emulator.collectives.closed_form.one_step import plan_ring
from trnprof.emulator.collectives.closed_form.run import run_closed_form
from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.fluid.run import run_fluid
from trnprof.emulator.collectives.group import Group, make_group
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.perturb import slowed_links
from trnprof.emulator.collectives.planned import Planned, Ran
from trnprof.emulator.collectives.request import CHUNKED, CLOSED_FORM, Request
from trnprof.emulator.collectives.request_check import check_request
from trnprof.emulator.collectives.routing import message_routes
from trnprof.emulator.collectives.time_check import check_times
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.machine import Machine
from trnprof.emulator.scheduler import frozen
from trnprof.tracer.errors import CollectiveError


def run_collective(
    fabric: Fabric, request: Request, endpoint: Endpoint = NO_COST, machine: Machine | None = None
) -> Outcome:
    """Run one collective that has the fabric to itself.

    Args:
        fabric: links, faults included but for those of slow chips, which the request names.
        request: what is asked.
        endpoint: what messages cost at their chips.
        machine: whose policy chooses the algorithm where the request does not.

    Raises:
        CollectiveError: what is asked makes no sense, or its algorithm or fidelity cannot do it.
        FabricError: chips that nothing joins.
    """
    return run_many(fabric, [request], endpoint, machine)[0]


def run_many(
    fabric: Fabric,
    requests: Sequence[Request],
    endpoint: Endpoint = NO_COST,
    machine: Machine | None = None,
) -> list[Outcome]:
    """Run collectives and transfers that are in flight at once: they share links, and the memory and DMA engines of chips.

    Args:
        fabric: as above.
        requests: of one fidelity, which may not be the closed form if there are several; ``release_ps`` says when each begins.
        endpoint: as above.
        machine: as above.

    Raises:
        CollectiveError: as above.
        FabricError: as above.
    """
    if not requests:
        return []
    fidelities = {request.fidelity for request in requests}
    if len(fidelities) > 1:
        raise CollectiveError(
            f"all in flight at once need one fidelity, not {' and '.join(sorted(fidelities))}"
        )
    if len(requests) > 1 and CLOSED_FORM in fidelities:
        raise CollectiveError(
            "the closed form knows a lone collective: use chunked or fluid for several at once"
        )
    slow = {chip: factor for request in requests for chip, factor in request.slow_chips.items()}
    asked = [replace(request, slow_chips=slow) if slow else request for request in requests]
    for request in asked:
        check_request(request)
    fabric = slowed_links(fabric, asked[0])
    groups = [make_group(fabric.topology, request.ranks, request.replicas) for request in asked]
    planned = [
        _planned(fabric, request, group, machine)
        for request, group in zip(asked, groups, strict=True)
    ]
    check_times(planned, fabric, endpoint)
    if CLOSED_FORM in fidelities:
        ran = [run_closed_form(fabric, planned[0], groups[0], endpoint)]
    else:
        run = run_chunked if CHUNKED in fidelities else run_fluid
        ran = run(planned, fabric, endpoint)
    return [
        _outcome(one, how, fabric, part)
        for part, (one, how) in enumerate(zip(planned, ran, strict=True))
    ]


def _planned(fabric: Fabric, request: Request, group: Group, machine: Machine | None) -> Planned:
    algorithms, reason = request.algorithms, ""
    if not algorithms:
        algorithms, reason = choose(request.collective, request.bytes, group, machine)
    messages, times = plan_ring(request, algorithms, group) or (
        plan(
            request.collective, algorithms, group, request.bytes, request.root, request.sent_bytes
        ),
        1,
    )
    routes = message_routes(fabric, messages, group.ranks, request.ties)
    return Planned(request, tuple(algorithms), reason, messages, routes, times)


def _outcome(planned: Planned, ran: Ran, fabric: Fabric, part: int) -> Outcome:
    from trnprof.emulator.collectives.sums_kernel import sum_over_links

    request, routes = planned.request, planned.routes
    return Outcome(
        request=request,
        fabric=fabric,
        algorithms=planned.algorithms,
        chosen_because=planned.chosen_because,
        fidelity=request.fidelity,
        time_ps=ran.time_ps,
        rank_end_ps=ran.rank_end_ps,
        link_bytes=sum_over_links(
            frozen(routes.offsets),
            frozen(routes.links, np.int32),
            frozen(planned.messages.bytes),
            fabric.links,
        )
        * planned.times,
        link_busy_ps=ran.link_busy_ps,
        bound=ran.bound,
        messages=None if request.fidelity == CLOSED_FORM else planned.messages,
        events=ran.events,
        part=part,
        formula_chunks=ran.formula_chunks,
    )
