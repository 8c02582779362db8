"""Does a request make sense before anything is made of it?"""

from __future__ import annotations

import math

from trnprof.emulator.collectives.messages import COLLECTIVES
from trnprof.emulator.collectives.request import (
    CHUNKED,
    FIDELITIES,
    FLUID,
    FORWARDINGS,
    Request,
)
from trnprof.tracer.errors import CollectiveError
from trnprof.tracer.units import format_ns

MAX_BYTES = 2**53
MAX_CHUNKS = 65_536
MAX_SKEW_PS = 10**15


def check_request(request: Request) -> None:
    """Check all that does not need the fabric or the algorithm.

    Raises:
        CollectiveError: an unknown name, a size, count or time out of range, or a rank that is late but not of the group.
    """
    _check_name("collective", request.collective, COLLECTIVES)
    _check_name("fidelity", request.fidelity, FIDELITIES)
    _check_name("forwarding", request.forwarding, FORWARDINGS)
    if not 0 <= request.bytes <= MAX_BYTES:
        raise CollectiveError(f"{request.bytes} bytes: expected 0 to {MAX_BYTES} (8 PiB)")
    if request.chunks is not None and not 1 <= request.chunks <= MAX_CHUNKS:
        raise CollectiveError(f"{request.chunks} chunks a message: expected 1 to {MAX_CHUNKS:,}")
    if request.fidelity == FLUID and (request.chunks or 1) > 1:
        raise CollectiveError(
            f"{FLUID} has whole messages, no chunks: leave them out, or use the fidelity {CHUNKED}"
        )
    for position, time_ps in request.release_ps.items():
        if not 0 <= position < len(request.ranks):
            raise CollectiveError(
                f"rank {position} is late, but the group has ranks 0 to {len(request.ranks) - 1}"
            )
        if not 0 <= time_ps <= MAX_SKEW_PS:
            raise CollectiveError(
                f"rank {position} is late by {format_ns(time_ps / 1000)}: expected 0 to 1000 s"
            )
    if request.jitter is not None and not 0 <= request.jitter.sigma <= 10:
        raise CollectiveError(
            f"jitter of sigma {request.jitter.sigma:g}: expected 0 to 10 (1000 %)"
        )
    _check_astra_sim(request)


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise CollectiveError(f"unknown {what} {name!r}; known are {', '.join(known)}")


def _check_astra_sim(request: Request) -> None:
    astra = request.astra_sim
    if astra is None:
        return
    if request.fidelity != CHUNKED:
        raise CollectiveError(f"ASTRA-sim's ways need the fidelity {CHUNKED}")
    rate = astra.memory_bytes_per_s
    if astra.active_chunks < 0 or astra.endpoint_ps < 0 or rate < 0 or not math.isfinite(rate):
        raise CollectiveError("ASTRA-sim's counts, delays and bandwidths: expected 0 or more")
