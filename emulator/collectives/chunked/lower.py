"""Which tasks does a collective consist of? A message over its route, chunk by chunk, and what its ends pay for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.collectives.perturb import chip_speeds, noise, releases
from trnprof.emulator.collectives.request import (
    CUT_THROUGH,
    DEFAULT_CHUNKS,
    MAX_DEFAULT_TRANSFERS,
    MIN_CHUNK_BYTES,
    Request,
)
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import F64, I32, I64, Fabric, Routes
from trnprof.emulator.scheduler import frozen
from trnprof.emulator.taskgraph import TaskGraph
from trnprof.tracer.errors import CollectiveError

ASTRA_TICK_PS: Final = 1000
MAX_TASKS: Final = 50_000_000
"""Of one collective: some 10 GB of them."""


@dataclass(frozen=True)
class Lowered:
    """Tasks of one or several collectives, before they are scheduled.

    Attributes:
        graph: one server a task.
        first_message: int64[collectives + 1], see ``outcome.Events``.
        message: int32[tasks], among those of all collectives.
        chunk: int32[tasks].
        bytes: int64[tasks].
        arrivals: of each collective.
    """

    graph: TaskGraph
    first_message: I64
    message: I32
    chunk: I32
    bytes: I64
    arrivals: tuple[Arrivals, ...]


@dataclass(frozen=True)
class Arrivals:
    """Where to find out when the chunks of one collective have arrived.

    Attributes:
        last_task: int64[chunks * m], chunk by chunk: the last task of each message.
        lag_ps: int64[chunks * m], from its end to the arrival.
        release_ps: int64[ranks], when each position comes.
    """

    last_task: I64
    lag_ps: I64
    release_ps: I64


def lower(
    messages: Messages,
    fabric: Fabric,
    routes: Routes,
    endpoint: Endpoint,
    request: Request,
    servers: Servers | None = None,
    collective: int = 0,
) -> Lowered:
    """The tasks of one collective.

    Args:
        messages: positions of ``request.ranks``.
        fabric: links, slow chips' slowed down.
        routes: one a message.
        endpoint: what messages cost at their chips.
        request: what is asked.
        servers: numbers of servers; of this collective alone by default.
        collective: which of those in flight this is.

    Raises:
        CollectiveError: a message from a chip to itself, or too many tasks.
    """
    from trnprof.emulator.collectives.chunked import lower_kernel as kernel
    from trnprof.emulator.collectives.chunked import stages_kernel

    servers = servers or Servers(fabric.links, fabric.chips)
    work = _work(messages, routes, request)
    costs = _costs(endpoint, request)
    rates = _rates(fabric, costs, request, servers, collective)
    offsets = stages_kernel.count_stages(work, rates)
    chunks = chunk_count(messages, int(offsets[-1]), request)
    _check(work, chunks * int(offsets[-1]))
    stages = _empty_stages(offsets, rates)
    stages_kernel.list_links(work, rates, chunks, stages)
    stages_kernel.list_ends(work, rates, chunks, stages)
    doubled = stages_kernel.mark_early(stages)
    release_ps, blockers = releases(request)
    waits = _waits(
        messages, request, costs, chunks, release_ps[messages.source], blockers[messages.source]
    )
    count = chunks * int(offsets[-1])
    edges = count + chunks * (doubled + len(waits.dependencies) - len(messages))
    edges += (chunks - waits.window) * len(waits.gates)
    edges += (chunks - 1) * kernel.count_pacing(stages, waits)
    tasks = _empty_tasks(count, edges, chunks * len(messages))
    factors = frozen(noise(request.jitter, count), np.float64)
    kernel.write_columns(work.bytes, stages, waits, chunks, factors, fabric.links, tasks)
    kernel.write_edges(stages, waits, chunks, factors, fabric.links, tasks)
    return _lowered(tasks, servers, len(messages), release_ps)


def chunk_count(messages: Messages, transfers: int, request: Request) -> int:
    """Into how many chunks each message is cut.

    Args:
        messages: of the collective.
        transfers: tasks a chunk.
        request: what is asked.
    """
    if request.chunks is not None:
        return request.chunks
    if request.astra_sim is not None:
        return 1
    return default_chunks(int(messages.bytes.sum()) // max(len(messages), 1), transfers)


def default_chunks(mean_bytes: int, transfers: int) -> int:
    """The same where nobody says.

    Args:
        mean_bytes: of the messages.
        transfers: tasks a chunk.
    """
    most = min(
        DEFAULT_CHUNKS, mean_bytes // MIN_CHUNK_BYTES, MAX_DEFAULT_TRANSFERS // max(transfers, 1)
    )
    return max(1, most)


def _work(messages: Messages, routes: Routes, request: Request) -> Any:
    from trnprof.emulator.collectives.chunked.stages_kernel import Work

    chips = np.array(request.ranks, np.int32)
    everything = np.ones(len(messages), np.bool_)
    return Work(
        source=frozen(chips[messages.source], np.int32),
        target=frozen(chips[messages.target], np.int32),
        bytes=frozen(messages.bytes),
        is_reduced=frozen(messages.is_reduced, np.bool_),
        reads_hbm=frozen(
            everything if messages.reads_hbm is None else messages.reads_hbm, np.bool_
        ),
        writes_hbm=frozen(
            everything if messages.writes_hbm is None else messages.writes_hbm, np.bool_
        ),
        route_offsets=frozen(routes.offsets),
        route_links=frozen(routes.links, np.int32),
    )


def _costs(endpoint: Endpoint, request: Request) -> Endpoint:
    """What is charged at the chips: of ASTRA-sim's ways, its delays."""
    if request.astra_sim is None:
        return endpoint
    delay_ps = request.astra_sim.endpoint_ps
    return Endpoint(start_ps=delay_ps, dma_done_ps=delay_ps)


def _rates(
    fabric: Fabric, costs: Endpoint, request: Request, servers: Servers, collective: int
) -> Any:
    from trnprof.emulator.collectives.chunked.stages_kernel import Rates

    speeds, astra = chip_speeds(fabric.chips, request), request.astra_sim
    return Rates(
        link_bytes_per_s=frozen(fabric.bytes_per_s, np.float64),
        link_latency_ps=frozen(fabric.latency_ps),
        post_ps=frozen(np.rint(costs.post_ps / speeds) if costs.post_ps else speeds[:0]),
        dma_bytes_per_s=_each(costs.dma_bytes_per_s, speeds),
        hbm_bytes_per_s=_each(costs.hbm_bytes_per_s, speeds),
        reduce_touches=float(costs.reduce_touches),
        dma_start_ps=costs.dma_start_ps,
        done_ps=costs.dma_done_ps,
        sum_bytes_per_s=float(astra.memory_bytes_per_s) if astra else 0.0,
        tick_ps=ASTRA_TICK_PS if astra else 0,
        cuts_through=astra is None and request.forwarding == CUT_THROUGH,
        first_dma=servers.first_dma,
        first_hbm=servers.first_hbm,
        first_post=servers.first_post(collective),
    )


def _waits(
    messages: Messages,
    request: Request,
    costs: Endpoint,
    chunks: int,
    release_ps: I64,
    blockers: I64,
) -> Any:
    """What messages wait for; releases are those of their senders, int64[m]."""
    from trnprof.emulator.collectives.chunked.lower_kernel import Waits

    lead_ps = 0 if costs.post_ps else costs.dma_start_ps
    gate_offsets, gates = _gates(messages, request)
    return Waits(
        offsets=frozen(messages.dependency_offsets),
        dependencies=frozen(messages.dependencies),
        gate_offsets=frozen(gate_offsets),
        gates=frozen(gates),
        window=_window(request, chunks),
        is_paced=request.astra_sim is None and _takes_turns(messages),
        lead_ps=lead_ps,
        gate_lead_ps=costs.start_ps,
        release_ps=frozen(release_ps + (costs.start_ps + lead_ps)),
        release_blocker=frozen(blockers),
    )


def _each(bytes_per_s: float, speeds: F64) -> F64:
    return frozen(bytes_per_s * speeds if bytes_per_s > 0 else speeds[:0], np.float64)


def _takes_turns(messages: Messages) -> bool:
    """Whether the chunks of a message leave one after the other, so that those of others get their turn.

    Not around one ring: a rank sends to one other alone, and while it sends on what came first no latency shows.
    """
    target = messages.target if messages.whole_target is None else messages.whole_target
    receiver = np.zeros(int(messages.source.max(initial=0)) + 1, np.int64)
    receiver[messages.source] = target
    has_one = bool((receiver[messages.source] == target).all())
    return not has_one or len(messages.dependencies) == 0


def _window(request: Request, chunks: int) -> int:
    active = request.astra_sim.active_chunks if request.astra_sim else 0
    return min(active, chunks) or chunks


def _gates(messages: Messages, request: Request) -> tuple[I64, I64]:
    """Messages of an earlier chunk which must have arrived before those that wait for no other: the last ones to reach their sender.

    Returns:
        int64[m + 1] CSR offsets, int64[...] messages; none without a limit of chunks in flight.
    """
    count = len(messages)
    if request.astra_sim is None or not request.astra_sim.active_chunks:
        return np.zeros(count + 1, np.int64), np.empty(0, np.int64)
    is_last = np.ones(count, np.bool_)
    is_last[messages.dependencies] = False
    last = np.flatnonzero(is_last)
    last = last[np.argsort(messages.target[last], kind="stable")]
    begin = np.searchsorted(messages.target[last], messages.source, side="left")
    past = np.searchsorted(messages.target[last], messages.source, side="right")
    counts = np.where(np.diff(messages.dependency_offsets) == 0, past - begin, 0)
    offsets = offsets_of(counts)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    return offsets, last[np.repeat(begin, counts) + within]


def _check(work: Any, tasks: int) -> None:
    if tasks > MAX_TASKS:
        raise CollectiveError(
            f"{tasks:,} transfers of chunks are too many (at most {MAX_TASKS:,}): use fewer chunks, or the fidelity fluid"
        )
    own = np.diff(work.route_offsets) == 0
    if own.any():
        raise CollectiveError(f"a message from chip {work.source[np.argmax(own)]} to itself")


def _empty_stages(offsets: I64, rates: Any) -> Any:
    from trnprof.emulator.collectives.chunked.stages_kernel import Stages

    count = int(offsets[-1])
    return Stages(
        offsets=offsets,
        first_link=np.empty(len(offsets) - 1, np.int64),
        posts=int(len(rates.post_ps) > 0),
        is_each=rates.tick_ps > 0,
        server=np.empty(count, np.int32),
        time_ps=np.empty(count, np.int64),
        latency_ps=np.empty(count, np.int64),
        streams=np.empty(count, np.bool_),
        is_early=np.empty(count, np.bool_),
    )


def _empty_tasks(tasks: int, edges: int, ends: int) -> Any:
    from trnprof.emulator.collectives.chunked import lower_kernel as kernel

    return kernel.Tasks(
        occupancy_ps=np.empty(tasks, np.int64),
        release_ps=np.empty(tasks, np.int64),
        release_blocker=np.empty(tasks, np.int64),
        server=np.empty(tasks, np.int32),
        dependency_offsets=np.empty(tasks + 1, np.int64),
        dependencies=np.empty(edges, np.int64),
        lag_ps=np.empty(edges, np.int64),
        message=np.empty(tasks, np.int32),
        chunk=np.empty(tasks, np.int32),
        bytes=np.empty(tasks, np.int64),
        last_task=np.empty(ends, np.int64),
        arrival_lag_ps=np.empty(ends, np.int64),
    )


def _lowered(tasks: Any, servers: Servers, messages: int, release_ps: I64) -> Lowered:
    count = len(tasks.occupancy_ps)
    graph = TaskGraph(
        duration_ps=tasks.occupancy_ps,
        release_ps=tasks.release_ps,
        release_blocker=tasks.release_blocker,
        server_offsets=np.arange(count + 1, dtype=np.int64),
        server_ids=tasks.server,
        occupancy_ps=tasks.occupancy_ps,
        dependency_offsets=tasks.dependency_offsets,
        dependencies=tasks.dependencies,
        lag_ps=tasks.lag_ps,
        in_order=np.zeros(len(servers), np.bool_),
    )
    return Lowered(
        graph=graph,
        first_message=np.array([0, messages], np.int64),
        message=tasks.message,
        chunk=tasks.chunk,
        bytes=tasks.bytes,
        arrivals=(Arrivals(tasks.last_task, tasks.arrival_lag_ps, release_ps),),
    )
