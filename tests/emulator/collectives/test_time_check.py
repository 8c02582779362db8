"""Times beyond belief are refused in one line, by every fidelity alike; times just below are right."""

from __future__ import annotations

import pytest

from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.request import (
    CHUNKED,
    CLOSED_FORM,
    FIDELITIES,
    FLUID,
    AstraSim,
    Jitter,
    Request,
)
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.tracer.errors import CollectiveError, TrnprofError
from trnprof.tracer.units import (
    parse_bytes,
    parse_bytes_per_s,
    parse_duration_ns,
    parse_duration_ps,
)

RANKS = tuple(range(16))


def ring(bytes_per_s: float, latency_ps: float = 1000) -> Fabric:
    return build_fabric(made_up_topology("ring:16", [bytes_per_s], [latency_ps]))


def request(size: int, fidelity: str, **more: object) -> Request:
    return Request("all_reduce", size, RANKS, ("ring",), fidelity, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(
    ("size", "bytes_per_s", "latency_ps"),
    [(100 << 20, 1.0, 1), (1 << 50, 1e9, 1), (1 << 20, 1e-9, 1), (1 << 20, 1e9, 1e15)],
)
def test_beyond_belief(fidelity: str, size: int, bytes_per_s: float, latency_ps: float) -> None:
    with pytest.raises(CollectiveError, match="at most 26 days: check bytes"):
        run_collective(ring(bytes_per_s, latency_ps), request(size, fidelity))


@pytest.mark.parametrize("fidelity", [CHUNKED, FLUID])
def test_faults_beyond_belief(fidelity: str) -> None:
    sound = ring(50e9)
    with pytest.raises(CollectiveError, match="26 days"):
        run_collective(degrade_link(sound, "0-1", 1e-30), request(1 << 20, fidelity))
    for more in ({"slow_chips": {1: 1e-13}}, {"jitter": Jitter(1, 10)}):
        with pytest.raises(CollectiveError, match="26 days"):
            run_collective(sound, request(1 << 30, fidelity, **more))


def test_costs_of_chips_beyond_belief() -> None:
    for endpoint in (
        Endpoint(hbm_bytes_per_s=1.0, reduce_touches=2),
        Endpoint(dma_bytes_per_s=1.0),
        Endpoint(post_ps=2**60),
        Endpoint(dma_start_ps=2**60),
    ):
        with pytest.raises(CollectiveError, match="26 days"):
            run_collective(ring(50e9), request(1 << 30, CHUNKED), endpoint)
    slow = request(1 << 30, CHUNKED, astra_sim=AstraSim(memory_bytes_per_s=1.0))
    with pytest.raises(CollectiveError, match="26 days"):
        run_collective(ring(50e9), slow)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_the_longest_that_is_believed(fidelity: str) -> None:
    """A ring of 16 sends 30/16 of the buffer over each link, one after the other."""
    size = 16 << 20
    outcome = run_collective(ring(1000.0, 0), request(size, fidelity, chunks=1))
    assert outcome.time_ps == pytest.approx(30 * (1 << 20) / 1000 * 1e12, rel=1e-9)


def test_closed_form_is_not_negative() -> None:
    outcome = run_collective(ring(300.0), request(16 << 20, CLOSED_FORM))
    assert outcome.time_ps > 0
    assert (outcome.link_busy_ps >= 0).all()


def test_numbers_that_64_bits_do_not_hold() -> None:
    for parse, text in (
        (parse_bytes, "1e300GB"),
        (parse_bytes_per_s, "1e300GB/s"),
        (parse_duration_ns, "1e300s"),
        (parse_duration_ps, "1e7s"),
    ):
        with pytest.raises(TrnprofError, match="too large"):
            parse(text)
