"""Do collectives and transfers that are in flight at once share links?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.request import CLOSED_FORM, FLUID, Request
from trnprof.emulator.collectives.run import run_collective, run_many
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.tracer.errors import CollectiveError

RATE, LATENCY = 50e9, 500_000
MIB = 2**20


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [RATE], [LATENCY]))


def send(source: int, target: int, size: int, chunks: int = 16, at_ps: int = 0) -> Request:
    late = {0: at_ps} if at_ps else {}
    return Request("send_recv", size, (source, target), ("direct",), chunks=chunks, release_ps=late)


def ps(size: float, rate: float = RATE) -> int:
    return round(size / rate * 1e12)


def test_two_on_one_link_take_turns() -> None:
    """Each has half of it: both end when all is through, within a chunk."""
    one, other = run_many(made_up("ring:4"), [send(0, 1, 8 * MIB), send(0, 1, 8 * MIB)])
    assert other.time_ps == LATENCY + ps(16 * MIB)
    assert one.time_ps == other.time_ps - ps(8 * MIB / 16)
    assert (one.part, other.part) == (0, 1)
    assert one.link_bytes.tolist() == other.link_bytes.tolist()
    assert one.link_busy_ps.sum() == ps(8 * MIB)


def test_whoever_comes_later_waits_behind() -> None:
    late = ps(4 * MIB)
    one, other = run_many(made_up("ring:4"), [send(0, 1, 8 * MIB, 1), send(0, 1, 8 * MIB, 1, late)])
    assert one.time_ps == LATENCY + ps(8 * MIB)
    assert other.time_ps == LATENCY + ps(16 * MIB)
    assert (other.bound.kind, other.bound.resource) == ("link", "link 0>1")


def test_those_that_share_nothing_do_not_notice_each_other() -> None:
    fabric = made_up("torus:4x4")
    rows = [
        Request("all_reduce", 4 * MIB, tuple(range(4 * row, 4 * row + 4)), ("ring",), chunks=4)
        for row in range(4)
    ]
    alone = run_collective(fabric, rows[2])
    for outcome in run_many(fabric, rows):
        assert outcome.time_ps == alone.time_ps
        assert outcome.rank_end_ps.tolist() == alone.rank_end_ps.tolist()
        assert outcome.link_busy_ps.sum() == alone.link_busy_ps.sum()


def test_each_collective_has_its_own_core_and_all_share_the_memory() -> None:
    fabric, posts = made_up("mesh:3"), Endpoint(post_ps=50_000_000)
    both = [send(0, 1, 8, 1), send(0, 2, 8, 1)]
    assert {outcome.time_ps for outcome in run_many(fabric, both, posts)} == {
        run_collective(fabric, both[0], posts).time_ps
    }
    memory = Endpoint(hbm_bytes_per_s=1e9)
    large = [send(0, 1, 8 * MIB), send(0, 2, 8 * MIB)]
    times = [outcome.time_ps for outcome in run_many(fabric, large, memory)]
    assert max(times) == pytest.approx(ps(16 * MIB, 1e9), rel=0.07)


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 7), st.integers(1, MIB), st.integers(1, 4)),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=40, deadline=None)
def test_what_is_in_flight_at_once_is_conserved(sends: list[tuple[int, int, int, int]]) -> None:
    fabric = made_up("torus:4x2")
    requests = [send(source, (source + by) % 8, size, chunks) for source, by, size, chunks in sends]
    outcomes = run_many(fabric, requests)
    events = outcomes[0].events
    assert events is not None
    busy = np.zeros(fabric.links, np.int64)
    np.add.at(busy, events.link, events.graph.occupancy_ps)
    assert busy.tolist() == sum(outcome.link_busy_ps for outcome in outcomes).tolist()  # type: ignore[union-attr]
    assert events.first_message.tolist() == list(range(len(sends) + 1))
    alone = [run_collective(fabric, request) for request in requests]
    for outcome, single in zip(outcomes, alone, strict=True):
        assert outcome.time_ps >= single.time_ps
        assert outcome.link_bytes.tolist() == single.link_bytes.tolist()
        mine = events.message == outcome.part
        assert events.bytes[mine].sum() == single.link_bytes.sum()
    assert max(outcome.time_ps for outcome in outcomes) >= busy.max()


def test_fluids_and_chunks_agree_on_what_shares() -> None:
    """Three transfers over two links: 0 to 2, 0 to 1, 1 to 2, started at once."""
    fabric = made_up("ring:8")
    chunked = [send(0, 2, 8 * MIB, 64), send(0, 1, 8 * MIB, 64), send(1, 2, 8 * MIB, 64)]
    fluid = [replace(request, fidelity=FLUID, chunks=None) for request in chunked]
    for one, other in zip(run_many(fabric, chunked), run_many(fabric, fluid), strict=True):
        assert one.time_ps == pytest.approx(other.time_ps, rel=0.02)


def test_what_cannot_be_in_flight_at_once() -> None:
    fabric, request = made_up("ring:4"), send(0, 1, MIB)
    assert run_many(fabric, []) == []
    with pytest.raises(CollectiveError, match="need one fidelity, not chunked and fluid"):
        run_many(fabric, [request, replace(request, fidelity=FLUID)])
    with pytest.raises(CollectiveError, match="the closed form knows a lone collective"):
        run_many(fabric, [replace(request, fidelity=CLOSED_FORM)] * 2)
