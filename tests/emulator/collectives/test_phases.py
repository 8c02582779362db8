"""Do the phases of a collective overlap chunk by chunk, so that a gather takes as long as the scatter whose mirror image it is?"""

from __future__ import annotations

import pytest

from trnprof.emulator.collectives.endpoint import NO_COST
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.machine import load_machine

SIZE = 2**28
TORI = {
    "4x4": made_up_topology("torus:4x4", [50e9], [500_000]),
    "4x4x4": made_up_topology("torus:4x4x4", [50e9], [500_000]),
    "5x3": made_up_topology("torus:5x3", [50e9], [500_000]),
    "trn2-ultra": load_machine("trn2-ultra").topology,  # its third dimension is slower
}


def time_ps(collective: str, fabric: Fabric, algorithm: str) -> int:
    request = Request(collective, SIZE, tuple(range(fabric.chips)), (algorithm,))
    return run_collective(fabric, request, NO_COST).time_ps


@pytest.mark.parametrize("torus", TORI)
@pytest.mark.parametrize("algorithm", ["ring", "multi-ring", "direct"])
def test_a_gather_is_a_scatter_backwards(torus: str, algorithm: str) -> None:
    """Both move the same bytes over the same links. Served first come, first served, they are not each other's mirror image to the picosecond."""
    fabric = build_fabric(TORI[torus])
    gather = time_ps("all_gather", fabric, algorithm)
    scatter = time_ps("reduce_scatter", fabric, algorithm)
    assert gather == pytest.approx(scatter, rel=0.05)
    assert time_ps("all_reduce", fabric, algorithm) < 1.1 * (gather + scatter)


@pytest.mark.parametrize("torus", TORI)
def test_a_gather_is_near_the_bound_of_all_links(torus: str) -> None:
    """A chip receives (N - 1) / N of the buffer over its links: Chan, Heimlich, Purkayastha, van de Geijn (2007)."""
    fabric = build_fabric(TORI[torus])
    received = SIZE * (fabric.chips - 1) / fabric.chips
    bound_ps = received / (fabric.bytes_per_s.sum() / fabric.chips) * 1e12
    assert bound_ps < time_ps("all_gather", fabric, "multi-ring") < 1.06 * bound_ps


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_a_dimension_begins_with_the_first_chunk_of_the_one_before(algorithm: str) -> None:
    """Three of four blocks go over each clockwise link of the busier dimension (by direct one goes over one, one over two); that of the other hides."""
    fabric = build_fabric(TORI["4x4"])
    alone_ps = 3 / 4 * SIZE / 50e9 * 1e12
    for collective in ("all_gather", "reduce_scatter"):
        assert alone_ps < time_ps(collective, fabric, algorithm) < 1.05 * alone_ps
