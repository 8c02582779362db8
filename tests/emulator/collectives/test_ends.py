"""What do chips pay for messages, and what do slow chips, late ranks, slow links and noise do?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.outcome import Events, Outcome
from trnprof.emulator.collectives.request import Jitter, Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.collectives.servers import DMA, HBM, LINK, POST, Servers
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link, fail_link, slow_chip
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.names import find_links
from trnprof.tracer.errors import CollectiveError, FabricError

RATE, LATENCY = 50e9, 500_000
MIB = 2**20
COSTS = Endpoint(
    start_ps=4_000_000,
    post_ps=200_000,
    dma_start_ps=1_000_000,
    dma_done_ps=300_000,
    dma_bytes_per_s=400e9,
    hbm_bytes_per_s=800e9,
    reduce_touches=3,
)


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [RATE], [LATENCY]))


def run(fabric: Fabric, endpoint: Endpoint = NO_COST, **given: Any) -> Outcome:
    request = Request("all_gather", 8 * MIB, tuple(range(fabric.chips)), ("ring",), chunks=1)
    return run_collective(fabric, replace(request, **given), endpoint)


def ps(size: float, rate: float = RATE) -> int:
    return round(size / rate * 1e12)


def seen(outcome: Outcome) -> Events:
    assert outcome.events is not None
    return outcome.events


def kinds(fabric: Fabric, outcome: Outcome) -> list[str]:
    servers = Servers(fabric.links, fabric.chips)
    return [servers.kind(server) for server in seen(outcome).graph.server_ids.tolist()]


# --- endpoints ---


@pytest.mark.parametrize("chunks", [1, 4])
def test_one_message_pays_at_both_ends(chunks: int) -> None:
    """It is posted (its first chunk first), its DMA starts, it streams through all at the rate of the slowest (the link), and is seen."""
    fabric = made_up("ring:4")
    outcome = run(
        fabric, COSTS, collective="send_recv", ranks=(0, 1), algorithms=("direct",), chunks=chunks
    )
    assert kinds(fabric, outcome) == [POST, DMA, HBM, LINK, HBM] * chunks
    fixed = (
        COSTS.start_ps + COSTS.post_ps // chunks + COSTS.dma_start_ps + LATENCY + COSTS.dma_done_ps
    )
    assert outcome.time_ps == fixed + ps(8 * MIB)
    hbm = seen(outcome).bytes[np.array(kinds(fabric, outcome)) == HBM]
    assert hbm.sum() == 2 * 8 * MIB


@pytest.mark.parametrize("chunks", [1, 16])
def test_posts_are_paid_by_messages_not_chunks(chunks: int) -> None:
    fabric = made_up("mesh:8")
    outcome = run(fabric, COSTS, algorithms=("direct",), chunks=chunks)
    is_post = np.array(kinds(fabric, outcome)) == POST
    assert seen(outcome).graph.occupancy_ps[is_post].sum() == 8 * 7 * COSTS.post_ps


def test_costs_of_nothing_make_no_events() -> None:
    fabric = made_up("ring:4")
    only_dma = replace(COSTS, post_ps=0, hbm_bytes_per_s=0.0)
    outcome = run(fabric, only_dma, collective="send_recv", ranks=(0, 1), algorithms=("direct",))
    assert kinds(fabric, outcome) == [DMA, LINK]
    fixed = COSTS.start_ps + COSTS.dma_start_ps + LATENCY + COSTS.dma_done_ps
    assert outcome.time_ps == fixed + ps(8 * MIB)


def test_each_step_pays_again() -> None:
    fabric = made_up("ring:8")
    outcome = run(fabric, COSTS)
    step = COSTS.post_ps + COSTS.dma_start_ps + LATENCY + COSTS.dma_done_ps + ps(MIB)
    assert outcome.time_ps == COSTS.start_ps + 7 * step


def test_a_core_posts_one_message_at_a_time() -> None:
    """Seven of nothing, to seven others over links of their own."""
    fabric = made_up("mesh:8")
    posts = Endpoint(post_ps=10_000_000)
    outcome = run(fabric, posts, bytes=8, algorithms=("direct",))
    assert outcome.time_ps == pytest.approx(7 * posts.post_ps + LATENCY, abs=100)
    assert (outcome.bound.kind, outcome.bound.resource) == ("post", "CC-core of chip 0")


@pytest.mark.parametrize(("collective", "touches"), [("all_gather", 2), ("reduce_scatter", 4)])
def test_memory_that_is_slow_bounds(collective: str, touches: int) -> None:
    """Each chip reads what it sends, and writes what comes (or adds it to what is there: three touches)."""
    slow = Endpoint(hbm_bytes_per_s=10e9, reduce_touches=3)
    outcome = run(made_up("mesh:8"), slow, collective=collective, algorithms=("direct",), chunks=16)
    everything = ps(7 * MIB * touches, 10e9)
    assert everything <= outcome.time_ps <= 1.1 * everything
    assert outcome.bound.kind == "hbm"


def test_a_second_copy_is_read_once() -> None:
    """KangaRing reads once for two writes: a third less traffic than a ring of single messages."""
    fabric = made_up("ring:8")
    traffic = {}
    for name in ("ring", "kangaring"):
        outcome = run(fabric, Endpoint(hbm_bytes_per_s=1e12), algorithms=(name,))
        is_hbm = np.array(kinds(fabric, outcome)) == HBM
        traffic[name] = int(seen(outcome).bytes[is_hbm].sum())
    assert traffic["ring"] == 8 * 7 * MIB * 2
    assert 0.70 < traffic["kangaring"] / traffic["ring"] < 0.80


# --- slow and failed ---


def test_a_slow_link_bounds_a_ring() -> None:
    """Seven messages cross it one after the other at half the rate; nothing else takes as long."""
    fabric = degrade_link(made_up("ring:8"), "3>4", 0.5)
    outcome = run(fabric)
    assert outcome.time_ps >= 7 * 2 * ps(MIB)
    assert outcome.time_ps == pytest.approx(7 * (2 * ps(MIB) + LATENCY), rel=0.05)
    assert (outcome.bound.kind, outcome.bound.resource) == ("link", "link 3>4")
    slow = find_links(fabric, "3>4")
    assert outcome.link_busy_ps.argmax() == slow
    assert outcome.link_bytes[slow] == 7 * MIB


def test_a_failed_link_is_gone_round() -> None:
    """From 3 to 4 by way of 2, 1, 0, 7, 6, 5: its messages share links with nobody's, but in one direction more hops."""
    fabric = fail_link(made_up("ring:8"), "3-4")
    outcome = run(fabric)
    assert outcome.link_bytes[find_links(fabric, "3-4")].sum() == 0
    assert outcome.link_bytes[find_links(fabric, "1>0")] == 7 * MIB
    assert outcome.time_ps > run(made_up("ring:8")).time_ps
    with pytest.raises(FabricError):
        run(fail_link(fabric, "5-6"))


def test_a_slow_chip_slows_its_links_and_what_it_pays() -> None:
    fabric = made_up("ring:8")
    slowed = run(fabric, slow_chips={4: 0.5})
    assert slowed.time_ps == run(slow_chip(fabric, 4, 0.5)).time_ps
    assert slowed.fabric.bytes_per_s.min() == RATE / 2
    memory = Endpoint(post_ps=1_000_000, dma_bytes_per_s=1e9, hbm_bytes_per_s=2e9)
    asked: dict[str, Any] = {"collective": "send_recv", "algorithms": ("direct",)}
    sound = run(fabric, memory, ranks=(4, 5), **asked)
    slow = run(fabric, memory, ranks=(4, 5), slow_chips={4: 0.5}, **asked)
    assert slow.time_ps - LATENCY == 2 * (sound.time_ps - LATENCY)
    with pytest.raises(FabricError, match="chip 8"):
        run(fabric, slow_chips={8: 0.5})


# --- late ranks ---


def test_a_late_rank_holds_up_the_ring() -> None:
    """What it sends first goes round the whole ring from when it comes."""
    fabric, late = made_up("ring:8"), 40_000_000_000
    on_time, outcome = run(fabric), run(fabric, release_ps={5: late})
    assert outcome.time_ps == late + on_time.time_ps
    assert (outcome.bound.kind, outcome.bound.resource) == ("peer", "rank 5")
    first = seen(outcome).schedule.blocker
    assert (first == -2 - 5).sum() >= 1
    assert outcome.rank_end_ps[5] >= late


def test_a_rank_that_only_receives_late() -> None:
    """All was there before it came."""
    outcome = run(
        made_up("ring:4"),
        collective="send_recv",
        algorithms=("direct",),
        ranks=(0, 1),
        release_ps={1: 10**12},
    )
    assert outcome.time_ps == 10**12
    assert (outcome.bound.kind, outcome.bound.resource) == ("peer", "rank 1")


# --- noise ---


def test_noise_is_seeded_log_normal_and_of_median_one() -> None:
    fabric = made_up("ring:16")
    asked: dict[str, Any] = {"bytes": 512 * MIB, "chunks": 16}
    plain, noisy = run(fabric, **asked), run(fabric, jitter=Jitter(1, 0.05), **asked)
    again, other = (
        run(fabric, jitter=Jitter(1, 0.05), **asked),
        run(fabric, jitter=Jitter(2, 0.05), **asked),
    )
    assert noisy.time_ps == again.time_ps != other.time_ps
    assert run(fabric, jitter=Jitter(3, 0.0), **asked).time_ps == plain.time_ps
    assert noisy.time_ps > plain.time_ps  # whoever is slow is waited for, whoever is fast waits
    logs = np.log(seen(noisy).graph.occupancy_ps / seen(plain).graph.occupancy_ps)
    assert np.median(logs) == pytest.approx(0, abs=0.005)
    assert logs.std() == pytest.approx(0.05, rel=0.05)
    with pytest.raises(CollectiveError, match="jitter of sigma -1"):
        run(fabric, jitter=Jitter(1, -1.0))


# --- what bounds ---


@pytest.mark.parametrize(("size", "kind"), [(1024, "latency"), (64 * MIB, "link")])
def test_small_is_latency_and_large_is_bandwidth(size: int, kind: str) -> None:
    for algorithm in ("ring", "halving-doubling", "direct"):
        outcome = run(made_up("ring:8"), bytes=size, algorithms=(algorithm,))
        assert outcome.bound.kind == kind
    assert run(made_up("ring:8"), bytes=1024).bound.resource == "7 messages one after the other"


def test_the_step_that_stands_out() -> None:
    """On a switch, the first halving moves half of the buffer; a ring has no such step."""
    fabric = made_up("switch:8")
    asked: dict[str, Any] = {"collective": "reduce_scatter", "bytes": 64 * MIB}
    assert run(fabric, algorithms=("halving-doubling",), **asked).bound.step == 0
    assert run(fabric, algorithms=("ring",), **asked).bound.step is None


def test_the_bounds_parts_add_up() -> None:
    """Whatever the walk back meets, it accounts for all of the time."""
    from trnprof.emulator.collectives import bound_kernel

    fabric = degrade_link(made_up("torus:4x4"), "5-6", 0.3)
    spent = []
    walk = bound_kernel.walk

    def watched(*given: Any) -> Any:
        spent.append(walk(*given))
        return spent[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound_kernel, "walk", watched)
        for algorithm in ("ring", "direct", "kangaring", "all-pairs", "tree"):
            for endpoint in (NO_COST, COSTS):
                for late in ({}, {3: 70_000_000}):
                    outcome = run(
                        fabric,
                        endpoint,
                        collective="all_reduce",
                        algorithms=(algorithm,),
                        chunks=3,
                        release_ps=late,
                        jitter=Jitter(1, 0.1),
                    )
                    parts = spent.pop()
                    total = parts.server_ps.sum() + parts.latency_ps + parts.late_ps
                    assert total == outcome.time_ps
                    assert parts.server_ps.min() >= 0
