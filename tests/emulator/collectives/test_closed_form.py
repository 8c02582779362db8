"""Do formulas, whole messages first come, first served, and fluids agree, where they must? And do they with what others published?"""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    REDUCE_SCATTER,
    SEND_RECV,
)
from trnprof.emulator.collectives.request import (
    CHUNKED,
    CLOSED_FORM,
    CUT_THROUGH,
    FLUID,
    FORWARDINGS,
    STORE_AND_FORWARD,
    Jitter,
    Request,
)
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link, fail_link
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import TIES
from trnprof.emulator.fabric.scale_out import ScaleOut, scale_out
from trnprof.tracer.errors import CollectiveError

REDUCING = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
GIB = 2**30


def made_up(spec: str, bytes_per_s: float = 50e9, latency_ps: int = 500_000) -> Fabric:
    return build_fabric(made_up_topology(spec, [bytes_per_s], [latency_ps]))


def asked(
    collective: str, fabric: Fabric, size: int, algorithms: Any, chunks: int | None = 1, **more: Any
) -> Request:
    """Of whole messages, unless told otherwise."""
    names = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    ranks = tuple(range(fabric.chips))
    return Request(collective, size, ranks, names, CLOSED_FORM, chunks, **more)


def formula_ps(fabric: Fabric, request: Request, endpoint: Endpoint = NO_COST) -> int:
    return run_collective(fabric, request, endpoint).time_ps


def fluid_ps(fabric: Fabric, request: Request, endpoint: Endpoint = NO_COST) -> int:
    return run_collective(fabric, replace(request, fidelity=FLUID), endpoint).time_ps


def chunked_ps(
    fabric: Fabric, request: Request, endpoint: Endpoint = NO_COST, chunks: int = 1
) -> int:
    whole = replace(request, fidelity=CHUNKED, chunks=chunks)
    return run_collective(fabric, whole, endpoint).time_ps


# figures of others


@pytest.mark.parametrize(("ranks", "milliseconds"), [(64, 21.2022922), (144, 21.4687057)])
def test_a_ring_through_a_switch_is_as_published(ranks: int, milliseconds: float) -> None:
    """fabric.md 1.6: SimGrid, LogGOPSim and the formula."""
    fabric = made_up(f"switch:{ranks}", 100e9, 250_000)
    time_ps = formula_ps(fabric, asked(ALL_REDUCE, fabric, GIB, "ring"))
    assert time_ps / 1e9 == pytest.approx(milliseconds, rel=1e-7)


@pytest.mark.parametrize(
    ("spec", "algorithm", "collective", "nanoseconds"),
    [
        ("ring:16", "ring", ALL_REDUCE, 37_515_031),
        ("ring:16", "ring", ALL_GATHER, 18_757_516),
        ("torus:4x4", "ring", ALL_REDUCE, 37_506_015),
        ("torus:4x4", "ring", REDUCE_SCATTER, 18_753_008),
        ("mesh:16", "direct", ALL_TO_ALL, 1_250_500),
    ],
)
def test_gibibyte_rows_of_astra_sim(
    spec: str, algorithm: str, collective: str, nanoseconds: int
) -> None:
    """fabric.md 1.3 (50 GiB/s, 500 ns); the last by hand, a + seg / B."""
    fabric = made_up(spec, 50 * GIB)
    time_ps = formula_ps(fabric, asked(collective, fabric, GIB, algorithm))
    assert time_ps / 1000 == pytest.approx(nanoseconds, rel=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "nanoseconds", "rel"),
    [
        ("ring", 39_501_127, 1e-5),
        ("halving-doubling", 39_387_013, 1e-4),
        ("direct", 20_002_003, 0.016),
    ],
)
def test_rows_of_astra_sim_through_a_switch(algorithm: str, nanoseconds: int, rel: float) -> None:
    """fabric.md 1.3 (switch 64, 100 GiB/s, 500 ns). ASTRA-sim's direct has the last segment stored once more, 1 / 63 of all."""
    fabric = made_up("switch:64", 100 * GIB)
    request = asked(ALL_REDUCE, fabric, GIB, algorithm, forwarding=STORE_AND_FORWARD)
    assert formula_ps(fabric, request) / 1000 == pytest.approx(nanoseconds, rel=rel)


def test_halving_doubling_pays_for_distance_around_a_ring() -> None:
    """fabric.md 1.4: 80.0 ms where a ring takes 37.5."""
    fabric = made_up("ring:16", 50 * GIB)
    time_ps = formula_ps(fabric, asked(ALL_REDUCE, fabric, GIB, "halving-doubling"))
    assert time_ps / 1e9 == pytest.approx(80.0, abs=0.05)


# alone on their links: formula, whole messages and fluids are one


@st.composite
def uncontended(draw: st.DrawFn) -> tuple[Fabric, Request]:
    """No two messages share a link, or those that do go from one rank, or to one."""
    kinds = draw(st.lists(st.sampled_from(["ring", "mesh", "switch"]), min_size=1, max_size=3))
    sizes = [draw(st.integers(2, 9 if len(kinds) == 1 else 4)) for _ in kinds]
    collective = draw(st.sampled_from([*REDUCING, ALL_TO_ALL, BROADCAST]))
    names = []
    for kind, size in zip(kinds, sizes, strict=True):
        able = ["ring"]
        if kind != "ring" or size <= 3:
            able.append("direct")
            is_halved = size & (size - 1) == 0 and collective in REDUCING
            able += ["halving-doubling"] * is_halved
        names.append(draw(st.sampled_from(able)))
    spec = ",".join(f"{kind}:{size}" for kind, size in zip(kinds, sizes, strict=True))
    rates = [draw(st.floats(1e8, 1e11)) for _ in kinds]
    latencies = [draw(st.integers(0, 3_000_000)) for _ in kinds]
    fabric = build_fabric(made_up_topology(spec, rates, latencies))
    return fabric, asked(collective, fabric, draw(st.integers(1, 10**9)), names)


@settings(max_examples=150, deadline=None)
@given(uncontended())
def test_all_three_agree(case: tuple[Fabric, Request]) -> None:
    fabric, request = case
    formula = formula_ps(fabric, request)
    slack = 3 * run_steps(
        fabric, request
    )  # ps: fluids round each end, and make those 1 ps apart one
    assert fluid_ps(fabric, request) == pytest.approx(formula, rel=1e-9, abs=slack)
    assert chunked_ps(fabric, request) == pytest.approx(formula, rel=1e-9, abs=slack)


def run_steps(fabric: Fabric, request: Request) -> int:
    outcome = run_collective(fabric, replace(request, fidelity=FLUID))
    assert outcome.messages is not None
    return outcome.messages.steps + fabric.chips


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ring:6", "ring:9", "mesh:5", "switch:8", "ring:2"]),
    st.sampled_from([*REDUCING, ALL_TO_ALL]),
    st.integers(1, 10**8),
    st.integers(2, 20),
    st.sampled_from(FORWARDINGS),
    st.integers(0, 5_000_000),
)
def test_rings_of_chunks(
    spec: str, collective: str, size: int, chunks: int, forwarding: str, latency_ps: int
) -> None:
    fabric = made_up(spec, 50e9, latency_ps)
    request = asked(collective, fabric, size, "ring", chunks=chunks, forwarding=forwarding)
    steps = fabric.chips**2
    assert chunked_ps(fabric, request, NO_COST, chunks) == pytest.approx(
        formula_ps(fabric, request), rel=1e-9, abs=3 * steps + chunks
    )


@pytest.mark.parametrize(
    ("spec", "algorithms"),
    [
        ("ring:5", ["ring"]),
        ("mesh:8", ["ring", "direct", "halving-doubling"]),
        ("switch:8", ["ring", "direct", "halving-doubling"]),
        ("switch:4,ring:3", ["ring", "direct"]),
        ("mesh:4,switch:2", ["ring", "direct", "halving-doubling"]),
    ],
)
@pytest.mark.parametrize("collective", REDUCING)
def test_stored_and_forwarded(spec: str, algorithms: list[str], collective: str) -> None:
    fabric = made_up(spec)
    for algorithm in algorithms:
        request = asked(collective, fabric, 10**7, algorithm, forwarding=STORE_AND_FORWARD)
        assert chunked_ps(fabric, request) == pytest.approx(formula_ps(fabric, request), abs=50)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(ALL_REDUCE, "tree"), (BROADCAST, "tree"), (BARRIER, "dissemination"), (PERMUTE, "direct"),
     (ALL_TO_ALL, "all-pairs"), (SEND_RECV, "direct")],
)  # fmt: skip
@pytest.mark.parametrize("spec", ["mesh:2", "mesh:8", "mesh:16", "switch:4", "switch:16"])
def test_one_dimension(spec: str, collective: str, algorithm: str) -> None:
    fabric = made_up(spec)
    request = asked(collective, fabric, 12_345_678, algorithm)
    formula = formula_ps(fabric, request)
    assert fluid_ps(fabric, request) == pytest.approx(formula, abs=100)
    assert chunked_ps(fabric, request) == pytest.approx(formula, abs=100)


# where messages share links: fluids are exact


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ring:4", "ring:8", "ring:16", "torus:4x4", "torus:8x2", "switch:4,ring:4"]),
    st.sampled_from(REDUCING),
    st.sampled_from(["direct", "halving-doubling"]),
    st.integers(1, 10**9),
    st.sampled_from(TIES),
    st.integers(0, 3_000_000),
)
def test_around_rings(
    spec: str, collective: str, algorithm: str, size: int, ties: str, latency_ps: int
) -> None:
    fabric = made_up(spec, 50e9, latency_ps)
    request = asked(collective, fabric, size, algorithm, ties=ties)
    formula = formula_ps(fabric, request)
    assert fluid_ps(fabric, request) == pytest.approx(formula, rel=1e-9, abs=200)


@pytest.mark.parametrize("spec", ["ring:7", "torus:5x5", "torus:4x4"])
@pytest.mark.parametrize("collective", [*REDUCING, ALL_TO_ALL])
def test_large_messages_straight_around_rings_agree_in_chunks_too(
    spec: str, collective: str
) -> None:
    fabric = made_up(spec)
    request = asked(collective, fabric, 2**28, "direct")
    formula = formula_ps(fabric, request)
    assert chunked_ps(fabric, request) == pytest.approx(formula, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ring:4", "ring:6", "ring:3", "mesh:3", "mesh:8", "switch:5", "torus:4x4",
                     "torus:3x3x3", "mesh:4,mesh:4", "switch:3,switch:3"]),
    st.sampled_from(REDUCING),
    st.sampled_from(["multi-ring", "kangaring"]),
    st.integers(10**4, 10**9),
    st.integers(0, 3_000_000),
)  # fmt: skip
def test_rings_both_ways_in_all_dimensions(
    spec: str, collective: str, algorithm: str, size: int, latency_ps: int
) -> None:
    fabric = made_up(spec, 50e9, latency_ps)
    request = asked(collective, fabric, size, algorithm)
    # parts and segments are rounded: up to 2 bytes a step
    slack = 60 * len(request.ranks)
    assert fluid_ps(fabric, request) == pytest.approx(
        formula_ps(fabric, request), rel=1e-6, abs=slack * 50
    )


@pytest.mark.parametrize("spec", ["torus:4x4", "ring:4", "mesh:4", "torus:3x3"])
@pytest.mark.parametrize("size", [2**17, 2**20, 2**24, 2**28])
@pytest.mark.parametrize("collective", [*REDUCING, ALL_TO_ALL, BROADCAST])
def test_instances(spec: str, size: int, collective: str) -> None:
    """Of every size: stages run by direct, halving-doubling or rings."""
    instance = made_up_topology(spec, [50e9], [500_000])
    fabric = build_fabric(scale_out(instance, ScaleOut(20e9, 5000.0, 1000.0), 4))
    request = asked(collective, fabric, size * 9, "hierarchical")
    is_ring_inside = size * 9 > (10**6 if "3x3" in spec else 56 * 10**6)
    is_direct_broadcast = (
        collective == BROADCAST and size * 9 < 10**6 and spec in ("torus:4x4", "ring:4")
    )
    if (collective in REDUCING and is_ring_inside) or is_direct_broadcast:
        with pytest.raises(CollectiveError, match=r"queue for the links between|straight around"):
            formula_ps(fabric, request)
    else:
        formula = formula_ps(fabric, request)
        assert fluid_ps(fabric, request) == pytest.approx(formula, rel=1e-6, abs=200)


# what chips pay


CONSTANT = Endpoint(5_000_000, 0, 700_000, 300_000)
POSTED = Endpoint(5_000_000, 200_000, 700_000, 300_000)
PAID = Endpoint(1_000_000, 100_000, 500_000, 500_000, 40e9, 90e9, 2.0)


@pytest.mark.parametrize("spec", ["ring:8", "mesh:8", "switch:8", "torus:4x4", "switch:4,ring:4"])
@pytest.mark.parametrize("collective", REDUCING)
@pytest.mark.parametrize("endpoint", [CONSTANT, POSTED, PAID])
def test_what_chips_pay(spec: str, collective: str, endpoint: Endpoint) -> None:
    fabric = made_up(spec)
    for algorithm in ("ring", "halving-doubling"):
        request = asked(collective, fabric, 2**24, algorithm)
        formula = formula_ps(fabric, request, endpoint)
        assert fluid_ps(fabric, request, endpoint) == pytest.approx(formula, abs=500)
        if endpoint is not PAID and algorithm == "ring":
            assert chunked_ps(fabric, request, endpoint) == pytest.approx(formula, abs=500)


def test_a_step_by_hand() -> None:
    """One step of a ring of 2: 50 MB over 50 GB/s, memory of 90 GB/s reads and adds up: (1 + 2) x 50 MB."""
    fabric = made_up("ring:2")
    request = asked(REDUCE_SCATTER, fabric, 100_000_000, "ring")
    expected = 1_000_000 + 100_000 + 500_000 + 500_000 + 3 * 50e6 / 90e9 * 1e12 + 500_000
    assert formula_ps(fabric, request, PAID) == pytest.approx(expected, abs=1)


# what has no formula


@pytest.mark.parametrize(
    ("spec", "collective", "algorithm", "more", "why"),
    [
        ("ring:8", ALL_REDUCE, "ring", {"release_ps": {3: 5}}, "come late"),
        ("ring:8", ALL_REDUCE, "ring", {"jitter": Jitter(1, 0.02)}, "jitter"),
        ("ring:8", ALL_REDUCE, "ring", {"slow_chips": {3: 0.5}}, "slow chip"),
        ("ring:8", ALL_REDUCE, "tree", {}, "a tree needs"),
        ("mesh:6", ALL_REDUCE, "tree", {}, "power of two"),
        ("torus:4x4", ALL_REDUCE, "tree", {}, "several dimensions"),
        ("torus:4x4", PERMUTE, "direct", {}, "several dimensions"),
        ("torus:4x4", ALL_REDUCE, "ring", {"chunks": 4}, "chunks"),
        ("ring:8", BROADCAST, "tree", {"chunks": 4}, "chunks"),
        ("torus:4x2", ALL_REDUCE, "multi-ring", {}, "not alike"),
        ("ring:2", ALL_REDUCE, "multi-ring", {}, "one way between two ranks"),
        ("ring:8", BROADCAST, "direct", {}, "straight around a ring"),
        ("ring:8", ALL_TO_ALL, "direct", {"forwarding": STORE_AND_FORWARD}, "straight around"),
        ("ring:8", ALL_REDUCE, "halving-doubling", {"forwarding": STORE_AND_FORWARD}, "unevenly"),
        ("ring:8", BARRIER, "dissemination", {}, "different lengths"),
        ("mesh:3", ALL_TO_ALL, "direct", {"sent_bytes": ((0, 1, 2),) * 3}, "ragged"),
    ],
)  # fmt: skip
def test_where_nothing_is_exact_the_error_names_what_is(
    spec: str, collective: str, algorithm: str, more: dict[str, Any], why: str
) -> None:
    fabric = made_up(spec)
    request = asked(collective, fabric, 10**6, algorithm, **more)
    with pytest.raises(CollectiveError, match=rf"no closed form: .*{why}.*chunked or fluid"):
        formula_ps(fabric, request)


def test_faults_have_no_formula() -> None:
    for fabric in (
        degrade_link(made_up("ring:8"), "3-4", 0.5),
        fail_link(made_up("ring:8"), "3-4"),
    ):
        with pytest.raises(CollectiveError, match="the links of 'x' are not all alike; use"):
            formula_ps(fabric, asked(ALL_REDUCE, fabric, 10**6, "ring"))


def test_some_ranks_of_a_ring_have_no_formula() -> None:
    fabric = made_up("ring:8")
    for ranks in ((0, 1, 2, 3), (0, 2, 4, 6), (1, 0, 2)):
        with pytest.raises(CollectiveError, match="chunked or fluid"):
            formula_ps(fabric, Request(ALL_REDUCE, 100, ranks, ("ring",), CLOSED_FORM))


def test_some_ranks_of_a_mesh_are_a_mesh() -> None:
    fabric = made_up("mesh:8")
    request = Request(ALL_GATHER, 4000, (0, 3, 5, 6), ("direct",), CLOSED_FORM)
    assert formula_ps(fabric, request) == 500_000 + 20_000
    assert fluid_ps(fabric, request) == 520_000


def test_one_rank_has_nothing_to_do() -> None:
    fabric = made_up("ring:8")
    assert formula_ps(fabric, Request(ALL_REDUCE, 100, (3,), ("ring",), CLOSED_FORM)) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 10**7))
def test_halving_doubling_has_log2_latencies(levels: int, segment_bytes: int) -> None:
    """log2(N) L + (N - 1) / N n / B (Thakur, Rabenseifner, Gropp 2005)."""
    ranks = 2**levels
    size = segment_bytes * ranks
    fabric = made_up(f"mesh:{ranks}")
    expected = log2(ranks) * 500_000 + (ranks - 1) / ranks * size / 50e9 * 1e12
    request = asked(REDUCE_SCATTER, fabric, size, "halving-doubling", forwarding=CUT_THROUGH)
    assert formula_ps(fabric, request) == pytest.approx(expected, abs=levels)
