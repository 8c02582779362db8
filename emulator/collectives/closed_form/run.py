"""What comes out of a formula: the time, what goes over links meanwhile, and what bounds it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from trnprof.emulator.collectives.algorithms.register import resolve
from trnprof.emulator.collectives.bound import LATENCY, link_times_ps
from trnprof.emulator.collectives.closed_form.chunks import count_chunks
from trnprof.emulator.collectives.closed_form.time import time_ps
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import SEND_RECV
from trnprof.emulator.collectives.outcome import Bound
from trnprof.emulator.collectives.planned import Planned, Ran
from trnprof.emulator.collectives.servers import DMA, HBM, LINK
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.names import link_name

_FAST_FACTOR: Final = 1e12
"""At so many times its rate, what is left of a part's time is latency."""


def run_closed_form(fabric: Fabric, planned: Planned, group: Group, endpoint: Endpoint) -> Ran:
    """Run one collective by formula; all its ranks end at once.

    Args:
        fabric: links, faults included.
        planned: what is asked, and its messages.
        group: among whom.
        endpoint: what messages cost at their chips.

    Raises:
        CollectiveError: no formula is exact.
    """
    request, messages = planned.request, planned.messages

    def formula_ps(links: Fabric, chips: Endpoint) -> int:
        return time_ps(request.collective, planned.algorithms, group, links, request, chips)

    total_ps = formula_ps(fabric, endpoint)
    busy_ps = link_times_ps(messages, planned.routes, fabric) * planned.times
    kind = _bound_kind(total_ps, request.collective == SEND_RECV, fabric, endpoint, formula_ps)
    if kind == LATENCY:
        bound = Bound(LATENCY, f"{messages.steps * planned.times} steps")
    elif kind == LINK:
        bound = Bound(LINK, f"link {link_name(fabric, int(busy_ps.argmax()))}")
    else:
        bound = Bound(kind, "every chip")
    names = resolve(request.collective, planned.algorithms, group)
    chunks = count_chunks(request.collective, names, group, fabric, request, endpoint)
    ends_ps = np.full(len(request.ranks), total_ps)
    return Ran(total_ps, ends_ps, busy_ps, bound, formula_chunks=chunks)


def _bound_kind(
    total_ps: int,
    is_one_message: bool,
    fabric: Fabric,
    endpoint: Endpoint,
    formula_ps: Callable[[Fabric, Endpoint], int],
) -> str:
    """Latency, if it is half of the time; else what would gain most if it were as fast as you like.

    One message has a formula only where its links are slower than its chips.
    """
    links = replace(fabric, bytes_per_s=fabric.bytes_per_s * _FAST_FACTOR)
    dma = replace(endpoint, dma_bytes_per_s=endpoint.dma_bytes_per_s * _FAST_FACTOR)
    hbm = replace(endpoint, hbm_bytes_per_s=endpoint.hbm_bytes_per_s * _FAST_FACTOR)
    both = replace(dma, hbm_bytes_per_s=hbm.hbm_bytes_per_s)
    if 2 * formula_ps(links, both) >= total_ps:
        return LATENCY
    if is_one_message:
        return LINK
    left_ps = {
        LINK: formula_ps(links, endpoint),
        DMA: formula_ps(fabric, dma),
        HBM: formula_ps(fabric, hbm),
    }
    return min(left_ps, key=lambda kind: left_ps[kind])
