"""Can the times of collectives be held at all? One clear line instead of sums of picoseconds that overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.perturb import chip_speeds
from trnprof.emulator.collectives.planned import Planned
from trnprof.emulator.collectives.request import DEFAULT_CHUNKS
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.scheduler import frozen
from trnprof.tracer.errors import CollectiveError

MAX_PS: Final = 2.0**61
"""26 days. Of all transfers together, one after the other: no order of them can take longer, in any fidelity."""

NOISE_DEVIATIONS: Final = 8
"""Standard deviations that noise is thought to stay within: the odds against it are 1e-15 a transfer."""

ASTRA_SUM_TOUCHES: Final = 3


def check_times(planned: Sequence[Planned], fabric: Fabric, endpoint: Endpoint) -> None:
    """Check that whatever is in flight ends before picoseconds overflow.

    Args:
        planned: what is in flight.
        fabric: links, slow chips' slowed down.
        endpoint: what messages cost at their chips.

    Raises:
        CollectiveError: all transfers, one after the other, would take more than ``MAX_PS``.
    """
    total_ps = sum(
        one.times * (_links_ps(one, fabric) + _ends_ps(one, fabric, endpoint)) for one in planned
    )
    if not total_ps < MAX_PS:
        raise CollectiveError(
            f"transfers of {_days(total_ps)} in all; at most 26 days: check bytes, bandwidths, latencies, and how slow or noisy "
            "links and chips are said to be"
        )


def _days(time_ps: float) -> str:
    days = time_ps / 86_400e12
    return f"{days:,.0f} days" if days < 1e6 else f"{days:.3g} days"


def _links_ps(one: Planned, fabric: Fabric) -> float:
    """All messages over all their links, every chunk with its latency, and noise at its worst."""
    from trnprof.emulator.collectives.sums_kernel import hold_in_all_ps

    request = one.request
    held_ps, latency_ps = hold_in_all_ps(
        frozen(one.routes.offsets),
        frozen(one.routes.links, np.int32),
        frozen(one.messages.bytes),
        frozen(fabric.bytes_per_s, np.float64),
        frozen(fabric.latency_ps),
    )
    chunks = request.chunks if request.chunks is not None else DEFAULT_CHUNKS
    sigma = request.jitter.sigma if request.jitter else 0.0
    return float((held_ps + latency_ps * chunks) * math.exp(NOISE_DEVIATIONS * sigma))


def _ends_ps(one: Planned, fabric: Fabric, endpoint: Endpoint) -> float:
    """What the slowest of chips would take for all messages, and the latest rank's coming."""
    request, messages = one.request, one.messages
    touches = 1 + max(endpoint.reduce_touches, 1.0)
    rates = [(1.0, endpoint.dma_bytes_per_s), (touches, endpoint.hbm_bytes_per_s)]
    delays_ps = endpoint.dma_start_ps + endpoint.dma_done_ps
    if request.astra_sim is not None:
        rates = [(ASTRA_SUM_TOUCHES, request.astra_sim.memory_bytes_per_s)]
        delays_ps = 2 * request.astra_sim.endpoint_ps
    ps_per_byte = sum(1e12 * times / rate for times, rate in rates if rate > 0)
    slowest = float(chip_speeds(fabric.chips, request).min(initial=1))
    work_ps = float(messages.bytes.sum(dtype=np.float64)) * ps_per_byte
    work_ps += len(messages) * (endpoint.post_ps + delays_ps)
    late_ps = max(request.release_ps.values(), default=0)
    return work_ps / slowest + endpoint.start_ps + late_ps
