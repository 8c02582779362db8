"""Do messages that share links as fluids do take as long as SimGrid and arithmetic say?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trnprof.emulator.collectives.bound import bandwidth_bound_ps
from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.fluid.run import Flowed, flow, run_fluid
from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.collectives.outcome import Bound
from trnprof.emulator.collectives.planned import Planned
from trnprof.emulator.collectives.request import (
    FLUID,
    STORE_AND_FORWARD,
    Jitter,
    Request,
)
from trnprof.emulator.collectives.run import run_collective, run_many
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import find_routes
from trnprof.tracer.errors import CollectiveError

DATA = Path(__file__).parent / "data"
MIB = 2**20


def made_up(spec: str, bytes_per_s: float = 50e9, latency_ps: float = 0) -> Fabric:
    return build_fabric(made_up_topology(spec, [bytes_per_s], [latency_ps]))


def transfers(
    fabric: Fabric,
    source: Any,
    target: Any,
    size: Any,
    *,
    waits_for_previous: Any = False,
    is_reduced: bool = False,
    **asked: Any,
) -> Planned:
    """Messages between chips; message i is from position 2 i to position 2 i + 1, so that each may have a release of its own."""
    chips = np.stack([np.asarray(source), np.asarray(target)], axis=1)
    count = len(chips)
    waits = np.broadcast_to(np.asarray(waits_for_previous), count)
    messages = Messages(
        source=np.arange(0, 2 * count, 2, dtype=np.int32),
        target=np.arange(1, 2 * count, 2, dtype=np.int32),
        bytes=np.broadcast_to(np.asarray(size, np.int64), count).copy(),
        step=np.zeros(count, np.int32),
        is_reduced=np.full(count, is_reduced),
        dependency_offsets=np.concatenate([[0], np.cumsum(waits)]).astype(np.int64),
        dependencies=np.flatnonzero(waits) - 1,
    )
    request = Request("send_recv", 1, tuple(chips.ravel().tolist()), fidelity=FLUID, **asked)
    return Planned(request, (), "", messages, find_routes(fabric, chips[:, 0], chips[:, 1]))


def all_pairs(chips: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    source, target = np.divmod(np.arange(chips * chips), chips)
    return source[source != target], target[source != target]


def time_of(fabric: Fabric, *planned: Planned, endpoint: Endpoint = NO_COST) -> list[int]:
    return [ran.time_ps for ran in run_fluid(planned, fabric, endpoint)]


# what SimGrid says (fabric.md 1.6)


@pytest.mark.parametrize(
    ("spec", "microseconds"),
    [("torus:4x4", 251.65824), ("torus:4x4x4", 1006.63296), ("torus:8x8", 1677.7216)],
)
def test_all_to_all(spec: str, microseconds: float) -> None:
    fabric = made_up(spec)
    pairs = transfers(fabric, *all_pairs(fabric.chips), MIB)
    assert time_of(fabric, pairs)[0] / 1e6 == pytest.approx(microseconds, rel=1e-9)


@pytest.mark.parametrize(("sizes", "microseconds"), [((4, 4, 4), 2684.35), ((8, 8), 5368.71)])
def test_a_shift_by_half_of_each_dimension(sizes: tuple[int, ...], microseconds: float) -> None:
    fabric = made_up("torus:" + "x".join(map(str, sizes)))
    grid = np.arange(fabric.chips).reshape(sizes)
    target = np.roll(grid, [size // 2 for size in sizes], axis=range(len(sizes))).ravel()
    shift = transfers(fabric, grid.ravel(), target, 64 * MIB)
    assert time_of(fabric, shift)[0] / 1e6 == pytest.approx(microseconds, abs=0.005)


@pytest.mark.parametrize(("ranks", "milliseconds"), [(64, 21.2022922), (144, 21.4687044)])
def test_a_ring_through_a_switch(ranks: int, milliseconds: float) -> None:
    fabric = made_up(f"switch:{ranks}", 100e9, 250_000)
    size = 2**30 // ranks * ranks  # SimGrid's had whole bytes
    request = Request("all_reduce", size, tuple(range(ranks)), ("ring",), FLUID)
    outcome = run_collective(fabric, request)
    assert outcome.time_ps / 1e9 == pytest.approx(milliseconds, abs=1e-7)
    assert outcome.bound.kind == "link"


@pytest.mark.parametrize("case", range(3))
def test_overlapping_chains_of_transfers(case: int) -> None:
    """Made by data/simgrid_flows.py. SimGrid's precision is 1e-5 by default: it ends what has less left to do."""
    made = json.loads((DATA / "simgrid_flows.json").read_text())
    one = made["cases"][case]
    fabric = made_up(one["topology"], made["link_bytes_per_s"], one["latency_ps"])
    jobs = [
        transfers(
            fabric,
            *np.array(job["transfers"]).T,
            waits_for_previous=np.arange(len(job["transfers"])) > 0,
            release_ps={0: job["start_ps"]},
        )
        for job in one["jobs"]
    ]
    flowed = flow(jobs, fabric, NO_COST)
    ends = np.array([end for job in one["jobs"] for end in job["end_ps"]])
    np.testing.assert_allclose(flowed.end_ps, ends, rtol=2e-5)
    assert np.median(np.abs(flowed.end_ps / ends - 1)) < 1e-6


# what arithmetic says


def test_one_transfer_pays_its_way() -> None:
    fabric = made_up("torus:4x4", 50e9, 500_000)
    endpoint = Endpoint(7_000_000, 40_000, 1_000_000, 2_000_000, 25e9, 100e9, 2.0)
    planned = transfers(fabric, [0], [5], 25_000_000)
    flowed = flow([planned], fabric, endpoint)
    assert flowed.ready_ps[0] == 7_000_000
    assert flowed.start_ps[0] == 7_000_000 + 40_000 + 1_000_000
    assert flowed.flow_ps[0] == flowed.start_ps[0] + 2 * 500_000
    assert flowed.end_ps[0] == flowed.flow_ps[0] + 10**9 + 2_000_000  # DMA is the slowest
    bound = run_fluid([planned], fabric, endpoint)[0].bound
    assert bound == Bound("dma", "DMA engines of chip 0")


@pytest.mark.parametrize(("touches", "time_ps"), [(1.0, 10**9), (3.0, 2 * 10**9)])
def test_memory_is_shared_by_what_is_read_and_written(touches: float, time_ps: int) -> None:
    """Each of a ring of 4 chips reads 10 MB and adds up 10 MB: (1 + touches) of 20 GB/s."""
    fabric = made_up("ring:4", 100e9)
    chips = np.arange(4)
    planned = transfers(fabric, chips, (chips + 1) % 4, 10_000_000, is_reduced=True)
    endpoint = Endpoint(hbm_bytes_per_s=20e9, reduce_touches=touches)
    ran = run_fluid([planned], fabric, endpoint)[0]
    assert ran.time_ps == time_ps
    assert ran.bound.kind == "hbm"


def test_posts_of_a_chip_follow_each_other() -> None:
    fabric = made_up("mesh:5", 1e9)
    planned = transfers(fabric, [0, 0, 0, 0], [1, 2, 3, 4], 1000)
    flowed = flow([planned], fabric, Endpoint(post_ps=300_000))
    assert flowed.start_ps.tolist() == [300_000, 600_000, 900_000, 1_200_000]
    assert (flowed.end_ps - flowed.start_ps == 1_000_000).all()


def test_the_second_half_goes_alone() -> None:
    """Two transfers share a link, the short one ends, the long one then has all of it."""
    fabric = made_up("ring:3", 1e9)
    short, long = (transfers(fabric, [0], [1], size) for size in (1000, 3000))
    assert time_of(fabric, short, long) == [2_000_000, 4_000_000]
    late = transfers(fabric, [0], [1], 1000, release_ps={0: 1_000_000})
    assert time_of(fabric, late, long) == [3_000_000, 4_000_000]


def test_what_a_collective_sends_from_chip_to_chip_queues() -> None:
    """And takes one share of a link, however much waits."""
    fabric = made_up("ring:3", 1e9)
    queue = transfers(fabric, [0, 0, 0], [1, 1, 1], [1000, 500, 2000])
    assert flow([queue], fabric, NO_COST).end_ps.tolist() == [1_000_000, 1_500_000, 3_500_000]
    other = transfers(fabric, [0], [1], 1500)
    ends = flow([queue, other], fabric, NO_COST).end_ps
    assert ends.tolist() == [2_000_000, 3_000_000, 5_000_000, 3_000_000]


@pytest.mark.parametrize("spec", ["ring:16", "switch:24", "torus:4x4"])
def test_noise_makes_fluids_as_late_as_chunks(spec: str) -> None:
    """Neighbours' messages of different steps do not slow each other down."""
    fabric = made_up(spec, latency_ps=500_000)
    asked = Request("all_reduce", 2**28, tuple(range(fabric.chips)), ("ring",), FLUID, chunks=1)
    noisy = replace(asked, jitter=Jitter(1, 0.02))
    late = run_collective(fabric, noisy).time_ps / run_collective(fabric, asked).time_ps
    assert 1.005 < late < 1.05
    whole = run_collective(fabric, replace(noisy, fidelity="chunked")).time_ps
    assert run_collective(fabric, noisy).time_ps == pytest.approx(whole, rel=0.02)


def test_a_message_of_nothing_takes_its_latency() -> None:
    fabric = made_up("ring:8", 1e9, 500)
    flowed = flow(
        [transfers(fabric, [0, 3], [3, 4], 0, waits_for_previous=[0, 1])], fabric, NO_COST
    )
    assert flowed.end_ps.tolist() == [1500, 2000]
    assert flowed.blocker.tolist() == [-1, 0]


def test_a_late_rank_bounds_the_time() -> None:
    """It passes on, to the last rank, what came long ago."""
    fabric = made_up("ring:4", 50e9, 1000)
    asked = Request("broadcast", MIB, (0, 1, 2, 3), ("ring",), FLUID, release_ps={2: 10**10})
    late = run_collective(fabric, asked)
    assert late.time_ps == 10**10 + 1000 + 20_971_520
    assert late.rank_end_ps.tolist() == [0, 20_972_520, 10**10, late.time_ps]
    assert late.bound == Bound("peer", "rank 2")


def test_noise_is_seeded_and_has_a_median_of_1() -> None:
    fabric = made_up("mesh:32")
    planned = transfers(fabric, *all_pairs(32), 50_000)
    noisy = replace(planned, request=replace(planned.request, jitter=Jitter(3, 0.1)))
    ends = flow([noisy], fabric, NO_COST).end_ps
    assert ends.tolist() == flow([noisy], fabric, NO_COST).end_ps.tolist()
    assert np.median(ends) == pytest.approx(1_000_000, rel=0.02)
    assert np.log(ends / 1e6).std() == pytest.approx(0.1, rel=0.1)


# several at once


def test_two_collectives_share_what_one_has_alone() -> None:
    fabric = made_up("switch:16", 100e9)
    asked = Request("all_reduce", 64 * MIB, tuple(range(16)), ("ring",), FLUID)
    alone = run_collective(fabric, asked).time_ps
    both = run_many(fabric, [asked, asked])
    assert [outcome.time_ps for outcome in both] == [2 * alone] * 2


def test_groups_that_share_nothing_take_no_notice_of_each_other() -> None:
    fabric = made_up("torus:4x4", 50e9, 500_000)
    rows = [tuple(range(row, row + 4)) for row in (0, 4, 8, 12)]
    sizes = [MIB, 3 * MIB, 5 * MIB + 1, 7 * MIB]
    asked = [
        Request("all_reduce", size, row, ("ring",), FLUID)
        for row, size in zip(rows, sizes, strict=True)
    ]
    alone = [run_collective(fabric, one) for one in asked]
    both = run_many(fabric, asked)
    assert [outcome.time_ps for outcome in both] == [outcome.time_ps for outcome in alone]


def test_a_transfer_slows_down_a_collective_for_as_long_as_it_lasts() -> None:
    """A buffer goes along 3 links, 1 ms each; a transfer of 2 ms' worth shares the first, and then has it for itself."""
    fabric = made_up("ring:4", 1e9)
    collective = Request("broadcast", 1_000_000, (0, 1, 2, 3), ("ring",), FLUID)
    transfer = Request("send_recv", 2_000_000, (0, 1), ("direct",), FLUID)
    times = [outcome.time_ps for outcome in run_many(fabric, [collective, transfer])]
    assert times == [4 * 10**9, 3 * 10**9]


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Fabric, list[Planned]]:
    spec = draw(st.sampled_from(["ring:5", "torus:3x4", "mesh:6", "switch:7", "switch:3,ring:4"]))
    fabric = made_up(spec, 1e9, draw(st.sampled_from([0, 700])))
    chip = st.integers(0, fabric.chips - 1)
    row = st.tuples(chip, chip, st.integers(0, 5000), st.booleans()).filter(lambda r: r[0] != r[1])
    rows = st.lists(row, min_size=1, max_size=30)
    planned = []
    for part in draw(st.lists(rows, min_size=1, max_size=3)):
        source, target, size, waits = zip(*part, strict=True)
        follows = [False, *waits[1:]]
        releases = draw(st.dictionaries(st.integers(0, len(part) - 1), st.integers(0, 10**7)))
        late = {2 * at: time for at, time in releases.items()}
        planned.append(
            transfers(fabric, source, target, size, waits_for_previous=follows, release_ps=late)
        )
    return fabric, planned


@settings(max_examples=80, deadline=None)
@given(traffic())
def test_no_link_carries_more_than_it_can(case: tuple[Fabric, list[Planned]]) -> None:
    """Between any two moments, over every link, by what flows wholly within them."""
    fabric, planned = case
    flowed = flow(planned, fabric, NO_COST)
    hop_message, hop_link = _hops(planned)
    size = np.concatenate([part.messages.bytes for part in planned])
    for start in np.unique(flowed.flow_ps):
        for end in np.unique(flowed.end_ps[flowed.end_ps > start]):
            is_within = (flowed.flow_ps >= start) & (flowed.end_ps <= end)
            hops = is_within[hop_message]
            carried = np.bincount(hop_link[hops], size[hop_message[hops]], minlength=fabric.links)
            # two ps a message: ends are rounded, and those that are 1 ps apart made one
            assert (carried <= (end - start) * 1e-3 + 2e-3 * len(size) + 1e-6).all()


@settings(max_examples=80, deadline=None)
@given(traffic())
def test_times_are_in_order_and_never_below_the_bound(
    case: tuple[Fabric, list[Planned]],
) -> None:
    fabric, planned = case
    flowed = flow(planned, fabric, NO_COST)
    assert (flowed.ready_ps <= flowed.start_ps).all()
    assert (flowed.start_ps <= flowed.flow_ps).all()
    assert (flowed.flow_ps <= flowed.end_ps).all()
    _check_waits(flowed, planned)
    for part, ran in zip(planned, run_fluid(planned, fabric, NO_COST), strict=True):
        slack = 2 * len(part.messages)
        assert ran.time_ps + slack >= bandwidth_bound_ps(part.messages, part.routes, fabric)
        assert ran.time_ps == ran.rank_end_ps.max()


def _hops(planned: list[Planned]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    counts = np.concatenate([np.diff(part.routes.offsets) for part in planned])
    links = np.concatenate([part.routes.links for part in planned])
    return np.repeat(np.arange(len(counts)), counts), links


def _check_waits(flowed: Flowed, planned: list[Planned]) -> None:
    for part, first in zip(planned, flowed.first_message, strict=False):
        offsets, needed = part.messages.dependency_offsets, part.messages.dependencies + first
        for message in range(len(part.messages)):
            before = needed[offsets[message] : offsets[message + 1]]
            assert (flowed.end_ps[before] <= flowed.ready_ps[first + message]).all()


@settings(max_examples=40, deadline=None)
@given(traffic(), st.integers(1, 1000))
def test_time_scales(case: tuple[Fabric, list[Planned]], factor: int) -> None:
    """Everything that many times as long: bytes, latencies, releases."""
    fabric, planned = case
    longer = replace(fabric, latency_ps=fabric.latency_ps * factor)
    scaled = [
        replace(
            part,
            messages=replace(part.messages, bytes=part.messages.bytes * factor),
            request=replace(
                part.request,
                release_ps={at: late * factor for at, late in part.request.release_ps.items()},
            ),
        )
        for part in planned
    ]
    ends = flow(planned, fabric, NO_COST).end_ps
    np.testing.assert_allclose(
        flow(scaled, longer, NO_COST).end_ps, ends * factor, rtol=0, atol=200 * factor
    )


def test_nothing_to_do() -> None:
    fabric = made_up("ring:4")
    assert run_fluid([], fabric, NO_COST) == []
    empty = transfers(fabric, np.empty(0, int), np.empty(0, int), 1)
    assert time_of(fabric, empty) == [0]


def test_what_fluids_cannot_do() -> None:
    fabric = made_up("ring:4")
    planned = transfers(fabric, [0], [1], 1, forwarding=STORE_AND_FORWARD)
    with pytest.raises(CollectiveError, match="needs the fidelity chunked"):
        run_fluid([planned], fabric, NO_COST)
