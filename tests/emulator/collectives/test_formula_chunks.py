"""Does the closed form have the chunks of the chunked fidelity, where there is a formula of chunks? And does it say which algorithm has one?"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
    SEND_RECV,
)
from trnprof.emulator.collectives.request import (
    CHUNKED,
    CLOSED_FORM,
    FORWARDINGS,
    STORE_AND_FORWARD,
    Request,
)
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.machine import load_machine
from trnprof.emulator.system_files import list_systems
from trnprof.tracer.errors import CollectiveError


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [50e9], [500_000]))


def asked(collective: str, fabric: Fabric, size: int, algorithm: str) -> Request:
    return Request(collective, size, tuple(range(fabric.chips)), (algorithm,), CLOSED_FORM)


def both_ps(fabric: Fabric, request: Request, endpoint: Endpoint = NO_COST) -> tuple[int, int]:
    """By formula, and chunk by chunk."""
    chunked = replace(request, fidelity=CHUNKED)
    formula, served = (run_collective(fabric, one, endpoint) for one in (request, chunked))
    return formula.time_ps, served.time_ps


@pytest.mark.parametrize("spec", ["ring:8", "switch:8", "mesh:5"])
@pytest.mark.parametrize("collective", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
@pytest.mark.parametrize("size", [2**16, 2**20, 2**22, 2**28])
def test_rings_have_the_chunks_of_the_chunked_fidelity(
    spec: str, collective: str, size: int
) -> None:
    fabric = made_up(spec)
    formula, chunked = both_ps(fabric, asked(collective, fabric, size, "ring"))
    assert formula == pytest.approx(chunked, abs=500)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["ring:8", "switch:6", "mesh:5", "ring:2", "torus:4x3", "switch:4,ring:5", "mesh:3,switch:2,ring:4"]),
    st.integers(1, 10**8),
    st.sampled_from([None, None, 1, 2, 7, 20]),
    st.sampled_from(FORWARDINGS),
    st.lists(st.sampled_from([7e9, 20e9, 50e9]), min_size=3, max_size=3),
    st.integers(0, 3_000_000),
)  # fmt: skip
def test_broadcasts_by_rings_are_chains_of_chunks(
    spec: str,
    size: int,
    chunks: int | None,
    forwarding: str,
    rates: list[float],
    latency_ps: int,
) -> None:
    """Links of another speed in each dimension: the slowest says how fast chunks follow each other."""
    dimensions = len(made_up(spec).topology.sizes)
    fabric = build_fabric(made_up_topology(spec, rates[:dimensions], [latency_ps]))
    request = replace(asked(BROADCAST, fabric, size, "ring"), chunks=chunks, forwarding=forwarding)
    formula, chunked = both_ps(fabric, request)
    assert formula == pytest.approx(chunked, rel=1e-9, abs=2 * fabric.chips + 40)


@pytest.mark.parametrize("system", list_systems())
def test_a_message_between_neighbours_has_a_formula_on_every_system(system: str) -> None:
    machine = load_machine(system)
    fabric, paid = build_fabric(machine.topology), machine.endpoint()
    for size in (1, 3, 4096, 65_537, 2**20, 10**7, 2**27, 2**30):
        request = Request(SEND_RECV, size, (0, 1), ("direct",), CLOSED_FORM)
        formula, chunked = both_ps(fabric, request, paid)
        assert formula == pytest.approx(chunked, rel=1e-6, abs=50)


@pytest.mark.parametrize("spec", ["ring:6", "switch:5", "mesh:4"])
@pytest.mark.parametrize("collective", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
def test_one_step_has_the_bytes_of_all_steps(spec: str, collective: str) -> None:
    fabric = made_up(spec)
    request = asked(collective, fabric, 10_000_019, "ring")
    chunked = run_collective(fabric, replace(request, fidelity=CHUNKED))
    formula = run_collective(fabric, request)
    assert formula.link_bytes.tolist() == chunked.link_bytes.tolist()
    assert chunked.messages is not None
    bound_by_latency = run_collective(fabric, replace(request, bytes=64))
    assert bound_by_latency.bound.resource == f"{chunked.messages.steps} steps"


def test_a_formula_of_many_ranks_needs_few_messages() -> None:
    """33.5 million messages of an all_reduce, and 34 billion of an all_to_all, which nothing could hold."""
    fabric, ranks = made_up("ring:4096"), 4096
    for collective, steps in ((ALL_REDUCE, 2 * 4095), (ALL_TO_ALL, 4095 * 2048)):
        outcome = run_collective(
            fabric, replace(asked(collective, fabric, 2**30, "ring"), chunks=1)
        )
        segment = 2**30 // ranks
        assert outcome.link_bytes.sum() == ranks * steps * segment
        assert outcome.time_ps == pytest.approx(steps * (500_000 + segment / 50e9 * 1e12), rel=1e-6)


@pytest.mark.parametrize("forwarding", FORWARDINGS)
@pytest.mark.parametrize("chunks", [1, 7])
def test_one_message_over_any_fabric(forwarding: str, chunks: int) -> None:
    fabric = degrade_link(made_up("torus:4x4"), "0>1", 0.5)
    request = Request(
        SEND_RECV, 7_000_000, (0, 6), ("direct",), CLOSED_FORM, chunks=chunks, forwarding=forwarding
    )
    formula, chunked = both_ps(fabric, request)
    assert chunked == pytest.approx(formula, abs=10)
    slowest, others = 280_000_000, 2 * 140_000_000
    stored = others // chunks if forwarding == STORE_AND_FORWARD else 0
    assert formula == 3 * 500_000 + slowest + stored


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 10**7),
    st.sampled_from([1, 6]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from(FORWARDINGS),
    st.sampled_from([0, 200_000, 50_000_000]),
    st.sampled_from([0, 90e9]),
)
def test_one_message_that_is_posted(
    size: int, receiver: int, chunks: int | None, forwarding: str, post_ps: int, hbm: float
) -> None:
    fabric = degrade_link(made_up("torus:4x4"), "0>1", 0.4)
    paid = Endpoint(1_000_000, post_ps, 500_000, 300_000, 900e9, hbm, 2.0)
    ranks = (0, receiver)
    request = Request(
        SEND_RECV, size, ranks, ("direct",), CLOSED_FORM, chunks, forwarding=forwarding
    )
    formula, chunked = both_ps(fabric, request, paid)
    assert formula == pytest.approx(chunked, abs=50)


@pytest.mark.parametrize("system", ["trn1", "trn2", "trn2-ultra", "trn3-gen1", "trn4"])
def test_where_rings_in_all_dimensions_have_none_the_ring_named_has_one(system: str) -> None:
    machine = load_machine(system)
    fabric, paid = build_fabric(machine.topology), machine.endpoint()
    for algorithm in ("kangaring", "multi-ring"):
        with pytest.raises(CollectiveError, match="choose --algorithm ring, or the fidelity"):
            run_collective(fabric, asked(ALL_REDUCE, fabric, 2**28, algorithm), paid)
    whole = replace(asked(ALL_REDUCE, fabric, 2**28, "ring"), chunks=1)
    formula, chunked = both_ps(fabric, whole, paid)
    assert formula == pytest.approx(chunked, rel=1e-6)
