"""How fast is each of many flows that share links? Max-min fair: none can have more without one that has no more getting less."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import F64, I64
from trnprof.emulator.scheduler import frozen
from trnprof.tracer.errors import FabricError


def max_min_rates(
    route_offsets: I64,
    route_links: NDArray[np.integer[Any]],
    capacities: F64,
    weights: NDArray[Any] | None = None,
) -> F64:
    """The rate of each flow.

    By progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): every rate rises alike until a link is full; the flows over that
    link keep what they have, and the others go on. The outcome is the only one in which each flow has a full link where nobody is faster.

    Takes O(entries log links), about.

    Args:
        route_offsets: int64[flows + 1], CSR offsets of the next.
        route_links: int[entries], the links of each flow, by number. A link that a flow takes twice carries it twice.
        capacities: float64[links], in any unit.
        weights: [flows], how many equal flows over the same route each entry stands for; 1 each by default.

    Returns:
        float64[flows], in that unit, of one of the flows that an entry stands for; infinite where a route is empty.

    Raises:
        FabricError: a link without capacity on a route.
    """
    links = frozen(route_links, np.int32)
    limits = np.array(capacities, np.float64)
    if len(links) and not (limits[links] > 0).all():
        link = links[~(limits[links] > 0)][0]
        raise FabricError(
            f"link {link} is on a route and has a bandwidth of {limits[link]:g}: expected more than 0"
        )
    from trnprof.emulator.collectives.fluid import max_min_kernel as kernel

    flows = len(route_offsets) - 1
    rates, bottlenecks = np.empty(flows), np.empty(flows, np.int32)
    kernel.fill(
        np.arange(flows, dtype=np.int32),
        kernel.Paths(frozen(route_offsets), links, np.ones(len(links))),
        np.ones(flows) if weights is None else np.array(weights, np.float64),
        limits,
        kernel.make_scratch(len(limits), len(links)),
        rates,
        bottlenecks,
    )
    return rates
