"""How do slow chips, late ranks and noise change what is asked?"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.request import Jitter, Request
from trnprof.emulator.fabric.fabric import F64, I64, Fabric
from trnprof.emulator.fabric.faults import slow_chip

NOBODY = -1


def slowed_links(fabric: Fabric, request: Request) -> Fabric:
    """The fabric with the links of slow chips slowed down.

    Raises:
        FabricError: no such chip, or a factor that is not in 0 < factor <= 1.
    """
    for chip, factor in request.slow_chips.items():
        fabric = slow_chip(fabric, chip, factor)
    return fabric


def chip_speeds(chips: int, request: Request) -> F64:
    """float64[chips], the fraction of its speed that the endpoint of each chip has left."""
    speeds = np.ones(chips)
    for chip, factor in request.slow_chips.items():
        speeds[chip] *= factor
    return speeds


def releases(request: Request) -> tuple[I64, I64]:
    """When each position comes to the collective, and who is to blame for it.

    Returns:
        int64[ranks] ps; int64[ranks], the position itself if it comes late, else NOBODY.
    """
    release_ps = np.zeros(len(request.ranks), np.int64)
    for position, time_ps in request.release_ps.items():
        release_ps[position] = time_ps
    return release_ps, np.where(release_ps > 0, np.arange(len(release_ps)), NOBODY)


def noise(jitter: Jitter | None, transfers: int) -> F64:
    """Factors of transfer times, log-normal of median 1.

    Returns:
        float64[transfers]; empty without jitter.
    """
    if jitter is None or jitter.sigma == 0:
        return np.empty(0)
    return np.random.default_rng(jitter.seed).lognormal(0.0, jitter.sigma, transfers)
