"""Into how many chunks does a formula cut its messages, and are there any but whole ones?"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trnprof.emulator.collectives.algorithms.names import RING
from trnprof.emulator.collectives.chunked.lower import default_chunks
from trnprof.emulator.collectives.closed_form.formulas import PHASES, ring_steps
from trnprof.emulator.collectives.closed_form.symmetry import Dimension, dimension_of
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import BROADCAST, SEND_RECV
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.fabric.fabric import I32, Fabric
from trnprof.emulator.fabric.routes import find_routes


def has_chunks(collective: str, names: Sequence[str], dimensions: int, endpoint: Endpoint) -> bool:
    """Whether there is a formula of chunks.

    There is one for a lone message; and, where chips pay nothing but latencies, for rings in one dimension, and for a broadcast by rings.

    Args:
        collective: a name of ``messages.COLLECTIVES``.
        names: of its algorithms, one a dimension.
        dimensions: of the group.
        endpoint: what messages cost at their chips.
    """
    if collective == SEND_RECV:
        return True
    is_ring = collective in PHASES and all(name == RING for name in names)
    return is_ring and endpoint.is_free and (dimensions == 1 or collective == BROADCAST)


def count_chunks(
    collective: str,
    names: Sequence[str],
    group: Group,
    fabric: Fabric,
    request: Request,
    endpoint: Endpoint,
) -> int:
    """How many: those asked for, or those that the chunked fidelity cuts its messages into by default; 1 where the formula is of whole messages.

    Args:
        collective: as above.
        names: as above.
        group: among whom.
        fabric: links, faults included.
        request: what is asked.
        endpoint: as above.

    Raises:
        CollectiveError: the ranks of a dimension are not joined alike.
    """
    if len(group) == 1 or not has_chunks(collective, names, len(group.sizes), endpoint):
        return 1
    if request.chunks is not None:
        return request.chunks
    if collective == SEND_RECV:
        return default_chunks(request.bytes, len(message_links(group, fabric, request)))
    dimensions = [dimension_of(group, number, fabric) for number in range(len(group.sizes))]
    if collective == BROADCAST:
        return default_chunks(request.bytes, _broadcast_transfers(dimensions))
    (dimension,) = dimensions
    steps = sum(ring_steps(phase, dimension.size) for phase in PHASES[collective])
    transfers = steps * dimension.size * dimension.hops // request.replicas
    return default_chunks(-(-request.bytes // dimension.size), transfers)


def message_links(group: Group, fabric: Fabric, request: Request) -> I32:
    """int32[hops], the links of the one message of a send_recv."""
    pair = group.ranks[[request.root, (request.root + 1) % len(group)]]
    return find_routes(fabric, pair[:1], pair[1:], request.ties).links


def _broadcast_transfers(dimensions: Sequence[Dimension]) -> int:
    """Of one chunk over all links: a chain a line, from the last dimension down."""
    sizes = [dimension.size for dimension in dimensions]
    return sum(
        prod(sizes[number + 1 :]) * (dimension.size - 1) * dimension.hops
        for number, dimension in enumerate(dimensions)
    )
