"""Is a chunked run what formulas, a simulation written otherwise, and the laws of conservation say?"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator.collectives.bound import bandwidth_bound_ps
from trnprof.emulator.collectives.busbw import bus_factor
from trnprof.emulator.collectives.chunked.run import run_chunked
from trnprof.emulator.collectives.endpoint import NO_COST
from trnprof.emulator.collectives.messages import COLLECTIVES, Messages
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.planned import Planned
from trnprof.emulator.collectives.request import (
    CUT_THROUGH,
    DEFAULT_CHUNKS,
    FORWARDINGS,
    MIN_CHUNK_BYTES,
    STORE_AND_FORWARD,
    Request,
)
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric, Routes
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import find_routes
from trnprof.tracer.errors import CollectiveError

RATE, LATENCY = 50e9, 500_000
MIB = 2**20


def made_up(
    spec: str, rates: tuple[float, ...] = (RATE,), latencies: tuple[float, ...] = (LATENCY,)
) -> Fabric:
    return build_fabric(made_up_topology(spec, rates, latencies))


def run(fabric: Fabric, collective: str, size: int, algorithm: str, **given: object) -> Outcome:
    request = Request(collective, size, tuple(range(fabric.chips)), (algorithm,))
    return run_collective(fabric, replace(request, **given))  # type: ignore[arg-type]


def ps(size: float, rate: float = RATE) -> int:
    return round(size / rate * 1e12)


# --- one message ---


@pytest.mark.parametrize("forwarding", FORWARDINGS)
@pytest.mark.parametrize("chunks", [1, 4, 7])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_one_message_over_hops(forwarding: str, chunks: int, hops: int) -> None:
    """Cut-through: latencies and one transfer. Stored and forwarded: chunks follow each other through the hops."""
    size = 7 * 4 * 50_000
    fabric = made_up("ring:9")
    outcome = run_collective(
        fabric,
        Request("send_recv", size, (0, hops), ("direct",), chunks=chunks, forwarding=forwarding),
    )
    time = ps(size)
    if forwarding == STORE_AND_FORWARD:
        time = time // chunks * (hops + chunks - 1)
    assert outcome.time_ps == hops * LATENCY + time
    assert outcome.rank_end_ps.tolist() == [0, outcome.time_ps]
    assert outcome.link_bytes.sum() == hops * size
    assert outcome.link_busy_ps.max() == ps(size)


@pytest.mark.parametrize("rates", [(10e9, 40e9, 20e9), (40e9, 20e9, 10e9), (40e9, 10e9, 20e9)])
@pytest.mark.parametrize("chunks", [1, 5])
def test_links_of_different_rates_cut_through(rates: tuple[float, ...], chunks: int) -> None:
    """A message takes the latencies of its links and the time of the slowest, however it is cut."""
    fabric = made_up("torus:3x3x3", rates, (100_000, 200_000, 300_000))
    outcome = run_collective(
        fabric, Request("send_recv", 5 * MIB, (0, 13), ("direct",), chunks=chunks)
    )
    assert outcome.time_ps == 600_000 + ps(5 * MIB, min(rates))


# --- formulas of whole collectives ---


@pytest.mark.parametrize("forwarding", FORWARDINGS)
@pytest.mark.parametrize("chunks", [1, 2, 16])
@pytest.mark.parametrize("spec", ["ring:8", "switch:8"])
@pytest.mark.parametrize("size", [8 * 1024, 64 * MIB])
def test_pipelined_ring(spec: str, chunks: int, size: int, forwarding: str) -> None:
    """Steps of chunks: either links never wait, or each chunk goes through all steps as if it were alone."""
    latency = 510_000
    steps, hops = 14, 1 if spec == "ring:8" else 2
    transfer = ps(size / 8 / chunks, 64e9)
    alone = hops * latency + transfer if forwarding == CUT_THROUGH else hops * (latency + transfer)
    outcome = run(
        made_up(spec, (64e9,), (latency,)),
        "all_reduce",
        size,
        "ring",
        chunks=chunks,
        forwarding=forwarding,
    )
    pipelined = steps * chunks * transfer + alone - transfer
    assert outcome.time_ps == pytest.approx(
        max(pipelined, steps * alone + (chunks - 1) * transfer), abs=steps * chunks
    )


@pytest.mark.parametrize(
    ("algorithm", "steps", "link_bytes"),
    [("halving-doubling", 6, 14 / 8), ("direct", 2, 14 / 8), ("ring", 14, 14 / 8)],
)
def test_all_reduce_on_a_switch(algorithm: str, steps: int, link_bytes: float) -> None:
    """Each step takes two links' latencies, each chip's link carries 2 (N - 1) / N of the buffer."""
    size = 8 * MIB
    outcome = run(made_up("switch:8"), "all_reduce", size, algorithm, chunks=1)
    assert outcome.time_ps == pytest.approx(
        steps * 2 * LATENCY + ps(size * link_bytes), abs=2 * steps * 7
    )
    assert set(outcome.link_bytes.tolist()) == {int(size * link_bytes)}


def test_bus_bandwidth_is_the_links_where_latency_is_nothing() -> None:
    """That is what the factors of nccl-tests are for."""
    fabric = made_up("switch:16", latencies=(0,))
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        outcome = run(fabric, collective, 256 * MIB, "ring")
        bus = outcome.algorithm_bandwidth_bytes_per_s * bus_factor(collective, 16)
        assert bus == pytest.approx(RATE, rel=0.001)
    assert bus_factor("broadcast", 16) == bus_factor("send_recv", 2) == 1


def test_one_rank_needs_no_time() -> None:
    outcome = run(made_up("ring:4"), "all_reduce", MIB, "ring", ranks=(2,))
    assert outcome.time_ps == 0
    assert outcome.rank_end_ps.tolist() == [0]
    assert outcome.link_bytes.sum() == 0
    assert outcome.algorithm_bandwidth_bytes_per_s == 0


# --- laws ---

CASES = st.tuples(
    st.sampled_from(["ring:5", "ring:8", "mesh:6", "switch:8", "torus:4x4", "switch:4,ring:3"]),
    st.sampled_from([name for name in COLLECTIVES if name != "barrier"]),
    st.sampled_from(["ring", "direct", "tree", "all-pairs", "kangaring", "halving-doubling"]),
    st.integers(1, 3 * MIB),
    st.integers(1, 5),
    st.sampled_from(FORWARDINGS),
)


@given(CASES)
@settings(max_examples=60, deadline=None)
def test_conservation(case: tuple[str, str, str, int, int, str]) -> None:
    """Bytes over links are those of messages over their routes, chunk by chunk; no time is below that of the busiest link."""
    spec, collective, algorithm, size, chunks, forwarding = case
    fabric = made_up(spec)
    try:
        outcome = run(fabric, collective, size, algorithm, chunks=chunks, forwarding=forwarding)
    except CollectiveError:
        return
    messages, events = outcome.messages, outcome.events
    assert messages is not None
    assert events is not None
    routes = find_routes(fabric, messages.source, messages.target)
    hops = np.diff(routes.offsets)
    assert outcome.link_bytes.sum() == (messages.bytes * hops).sum()
    moved = np.zeros(fabric.links, np.int64)
    np.add.at(moved, events.link, events.bytes)
    assert moved.tolist() == outcome.link_bytes.tolist()
    held = np.zeros(fabric.links, np.int64)
    np.add.at(held, events.link, events.graph.occupancy_ps)
    assert held.tolist() == outcome.link_busy_ps.tolist()
    assert outcome.time_ps >= bandwidth_bound_ps(messages, routes, fabric) >= held.max()
    assert outcome.time_ps >= held.max()
    assert np.bincount(events.message, minlength=len(messages)).tolist() == (chunks * hops).tolist()
    assert outcome.rank_end_ps.max() == outcome.time_ps


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Fabric, Messages, int, str]:
    """Messages anywhere that wait for any earlier ones, in times so small that ties are the rule."""
    fabric = made_up(
        draw(st.sampled_from(["ring:5", "torus:3x3", "switch:4", "mesh:4,ring:3"])),
        (1e12 / draw(st.sampled_from([1, 3])),),
        (draw(st.sampled_from([0, 2, 50])),),
    )
    count = draw(st.integers(1, 12))
    pairs = [draw(st.permutations(range(fabric.chips)))[:2] for _ in range(count)]
    waits = [
        sorted(draw(st.sets(st.integers(0, index - 1), max_size=2))) if index else []
        for index in range(count)
    ]
    source, target = np.array(pairs, np.int32).T
    return (
        fabric,
        Messages(
            np.ascontiguousarray(source),
            np.ascontiguousarray(target),
            np.array(draw(st.lists(st.integers(0, 20), min_size=count, max_size=count)), np.int64),
            np.zeros(count, np.int32),
            np.zeros(count, np.bool_),
            np.cumsum([0, *map(len, waits)]).astype(np.int64),
            np.array([wait for each in waits for wait in each], np.int64),
        ),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(FORWARDINGS)),
    )


@given(traffic())
@settings(max_examples=150, deadline=None)
def test_a_simulation_of_links_agrees(case: tuple[Fabric, Messages, int, str]) -> None:
    fabric, messages, chunks, forwarding = case
    routes = find_routes(fabric, messages.source, messages.target)
    request = Request(
        "permute", 1, tuple(range(fabric.chips)), (), chunks=chunks, forwarding=forwarding
    )
    (ran,) = run_chunked([Planned(request, (), "", messages, routes)], fabric, NO_COST)
    arrivals = simulate(fabric, messages, routes, chunks, forwarding == CUT_THROUGH)
    ends = [
        max([0, *(arrivals[m] for m in range(len(messages)) if messages.target[m] == position)])
        for position in range(fabric.chips)
    ]
    assert ran.rank_end_ps.tolist() == ends


def simulate(
    fabric: Fabric, messages: Messages, routes: Routes, chunks: int, cuts_through: bool
) -> list[int]:
    """When each message has arrived: chunks wait in queues of links, and go on when their head (or tail) is there.

    Those of one message leave one after the other, unless each rank sends to one other, step by step.
    """
    count = len(messages)
    free = [0] * fabric.links
    arrived: dict[tuple[int, int], int] = {}
    queue: list[tuple[int, int, int, int]] = []  # ready, chunk, message, hop: ties by number

    def cut(whole: int, chunk: int) -> int:
        return whole * (chunk + 1) // chunks - whole * chunk // chunks

    def transfer(message: int, hop: int, chunk: int) -> int:
        link = routes.links[routes.offsets[message] + hop]
        return cut(round(int(messages.bytes[message]) / fabric.bytes_per_s[link] * 1e12), chunk)

    def call(message: int, chunk: int) -> None:
        waits = messages.dependencies[
            messages.dependency_offsets[message] : messages.dependency_offsets[message + 1]
        ].tolist()
        met = [arrived.get((wait, chunk)) for wait in waits]
        if chunk and not is_ring:
            met.append(left.get((message, chunk - 1)))
        if (message, chunk) not in called and None not in met:
            called.add((message, chunk))
            ready = max([0, *(time for time in met if time is not None)])
            heapq.heappush(queue, (ready, chunk, message, 0))

    ways = {*zip(messages.source.tolist(), messages.target.tolist(), strict=True)}
    is_ring = len(ways) == len({sender for sender, _ in ways}) and len(messages.dependencies) > 0
    called: set[tuple[int, int]] = set()
    left: dict[tuple[int, int], int] = {}
    for message in range(count):
        for chunk in range(chunks):
            call(message, chunk)
    while queue:
        ready, chunk, message, hop = heapq.heappop(queue)
        link = int(routes.links[routes.offsets[message] + hop])
        start = max(ready, free[link])
        end = free[link] = start + transfer(message, hop, chunk)
        if hop == 0:
            left[message, chunk] = end
            call(message, min(chunk + 1, chunks - 1))
        there = end + int(fabric.latency_ps[link])
        if hop + 1 < routes.offsets[message + 1] - routes.offsets[message]:
            following = transfer(message, hop + 1, chunk)
            early = max(there - following, start + int(fabric.latency_ps[link]))
            heapq.heappush(queue, (early if cuts_through else there, chunk, message, hop + 1))
            continue
        arrived[message, chunk] = there
        for other in range(count):
            call(other, chunk)
    return [max(arrived[message, chunk] for chunk in range(chunks)) for message in range(count)]


# --- how many chunks ---


@pytest.mark.parametrize(
    ("size", "chunks"),
    [(1024, 1), (8 * MIN_CHUNK_BYTES, 1), (40 * MIN_CHUNK_BYTES, 5), (2**30, DEFAULT_CHUNKS)],
)
def test_chunks_by_default(size: int, chunks: int) -> None:
    outcome = run(made_up("ring:8"), "all_gather", size, "ring")
    assert outcome.events is not None
    assert outcome.events.chunk.max() + 1 == chunks


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"collective": "all_reduced"}, "unknown collective 'all_reduced'; known are all_reduce"),
        ({"fidelity": "exact"}, "unknown fidelity 'exact'"),
        ({"forwarding": "wormhole"}, "unknown forwarding 'wormhole'"),
        ({"bytes": -1}, "-1 bytes: expected"),
        ({"chunks": 0}, "0 chunks a message: expected 1 to"),
        ({"release_ps": {8: 5}}, "rank 8 is late, but the group has ranks 0 to 7"),
        ({"release_ps": {1: -5}}, "rank 1 is late by -0.005 ns"),
    ],
)
def test_requests_that_make_no_sense(wrong: dict[str, object], message: str) -> None:
    request = Request("all_reduce", MIB, tuple(range(8)), ("ring",))
    with pytest.raises(CollectiveError, match=message):
        run_collective(made_up("ring:8"), replace(request, **wrong))  # type: ignore[arg-type]


def test_too_many_transfers() -> None:
    with pytest.raises(CollectiveError, match="use fewer chunks, or the fidelity fluid"):
        run(made_up("ring:64"), "all_reduce", 2**30, "ring", chunks=65_536)
