"""How long does a lone collective take on a sound and symmetric fabric? By formula, or not at all.

The formulas (``formulas``) are of whole messages, but for rings in one dimension, broadcasts by rings and lone messages, which have the chunks that they are given,
or those of the chunked fidelity (``chunks``). They go by the latencies and bandwidths of the group's dimensions. They are exact for fluids. Where no
two messages share a link they are so for the chunked run of one chunk too; where they do, whole messages that come first and are served first
may hide a latency (rings through a switch) or block what comes after them (halving-doubling around a ring). Where no formula holds, the error says
why and names the fidelities that need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from trnprof.emulator.collectives.algorithms.barrier import BARRIER_BYTES
from trnprof.emulator.collectives.algorithms.hierarchical import (
    DIRECT_BELOW_BYTES,
    MANY_INSTANCES,
    between_algorithm,
    stage_algorithm,
)
from trnprof.emulator.collectives.algorithms.multi_ring import split
from trnprof.emulator.collectives.algorithms.names import (
    DIRECT,
    HIERARCHICAL,
    KANGARING,
    MULTI_RING,
    PER_DIMENSION,
    RING,
    TREE,
)
from trnprof.emulator.collectives.algorithms.register import resolve
from trnprof.emulator.collectives.closed_form.chunks import count_chunks, has_chunks, message_links
from trnprof.emulator.collectives.closed_form.formulas import (
    PHASES,
    PS,
    Costs,
    phase_ps,
    pipelined_chain_ps,
    pipelined_ring_ps,
    ring_steps,
    step_ps,
    tree_ps,
)
from trnprof.emulator.collectives.closed_form.symmetry import Dimension, dimension_of, inexact
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import (
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    PERMUTE,
    SEND_RECV,
)
from trnprof.emulator.collectives.request import STORE_AND_FORWARD, Request
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.routes import BALANCED
from trnprof.emulator.fabric.scale_out import INSTANCE
from trnprof.emulator.fabric.topology import RING as RING_OF_LINKS
from trnprof.emulator.fabric.topology import SWITCH

HAS_FORMULA: Final = "choose --algorithm ring"
"""What to do where rings over several dimensions and directions at once have no formula: dimension by dimension, one way round, they have one."""


def time_ps(
    collective: str,
    algorithms: Sequence[str],
    group: Group,
    fabric: Fabric,
    request: Request,
    endpoint: Endpoint,
) -> int:
    """The time from the call to the last arrival.

    Args:
        collective: a name of ``messages.COLLECTIVES``.
        algorithms: see ``algorithms.plan``.
        group: among whom.
        fabric: links, faults included.
        request: bytes, chunks (where not given, those of the chunked fidelity if there is a formula, else messages are whole), forwarding and the rest.
        endpoint: what messages cost at their chips.

    Raises:
        CollectiveError: no formula is exact, or see ``algorithms.plan``.
    """
    names = resolve(collective, algorithms, group)
    if len(group) == 1:
        return 0
    _check(request)
    costs = Costs(endpoint, request.forwarding, request.ties == BALANCED)
    chunks = count_chunks(collective, names, group, fabric, request, endpoint)
    if collective == SEND_RECV:
        total = _one_message_ps(group, fabric, request, costs, chunks)
    else:
        total = _of_all_ps(collective, names, group, fabric, request, costs, chunks)
    return endpoint.start_ps + round(total)


def _of_all_ps(
    collective: str,
    names: Sequence[str],
    group: Group,
    fabric: Fabric,
    request: Request,
    costs: Costs,
    chunks: int,
) -> float:
    dimensions = [dimension_of(group, number, fabric) for number in range(len(group.sizes))]
    if has_chunks(collective, names, len(dimensions), costs.endpoint):
        if collective == BROADCAST:
            return pipelined_chain_ps(dimensions, costs, request.bytes, chunks)
        return _pipelined_ps(collective, dimensions[0], costs, request, chunks)
    if (request.chunks or 1) > 1:
        raise inexact(
            "of chunks there is one for rings in one dimension, a broadcast by rings, a send_recv, and chips that pay nothing for them: "
            "leave out the chunks"
        )
    if names[0] in (MULTI_RING, KANGARING):
        if names[0] == KANGARING and costs.endpoint.hbm_bytes_per_s:
            raise inexact("what kangaring spares of HBM differs from step to step", HAS_FORMULA)
        return _rings_ps(collective, dimensions, costs, request.bytes)
    if names[0] == HIERARCHICAL:
        return _hierarchical_ps(collective, group, dimensions, costs, request.bytes)
    if collective in PHASES and all(name in PER_DIMENSION for name in names):
        return dimensions_ps(collective, names, dimensions, costs, request.bytes)
    if len(dimensions) > 1:
        raise inexact(f"{collective} by {names[0]} runs over several dimensions at once")
    return _of_one_ps(collective, names[0], dimensions[0], costs, request.bytes)


def _check(request: Request) -> None:
    if request.sent_bytes is not None:
        raise inexact("a ragged all_to_all is different for each rank")
    if any(request.release_ps.values()):
        raise inexact("ranks that come late make others wait")
    if request.jitter is not None and request.jitter.sigma:
        raise inexact("there is jitter")
    if any(factor != 1 for factor in request.slow_chips.values()):
        raise inexact("a slow chip makes others wait")


def dimensions_ps(
    collective: str, names: Sequence[str], dimensions: Sequence[Dimension], costs: Costs, bytes: int
) -> float:
    """Dimension by dimension, one phase after the other (fabric.md 1.2 and 1.4).

    Of n bytes among P ranks, a reduce_scatter has blocks of n / (N_0 … N_d) bytes in dimension d, from the first to the last; an all_gather the same,
    backwards; an all_reduce both. An all_to_all has n / N_d in each dimension, a broadcast n. With rings, for one: the sum over d of
    (N_d - 1) q_d(n / (N_0 … N_d)).
    """
    if collective == BROADCAST and len(dimensions) > 1 and not costs.is_free:
        raise inexact("ranks send on in two dimensions at once, and pay for both")
    segment = -(-bytes // prod(dimension.size for dimension in dimensions))
    return sum(
        phase_ps(name, phase, dimension, costs, size)
        for phase in PHASES[collective]
        for name, dimension, size in zip(
            names, dimensions, _blocks(phase, dimensions, segment, bytes), strict=True
        )
    )


def _blocks(phase: str, dimensions: Sequence[Dimension], segment: int, bytes: int) -> list[int]:
    """Bytes of a block in each dimension."""
    if phase == BROADCAST:
        return [bytes] * len(dimensions)
    sizes = [dimension.size for dimension in dimensions]
    if phase == ALL_TO_ALL:
        return [segment * prod(sizes) // size for size in sizes]
    return [segment * prod(sizes[number + 1 :]) for number in range(len(sizes))]


def _pipelined_ps(
    collective: str, dimension: Dimension, costs: Costs, request: Request, chunks: int
) -> float:
    """A ring in one dimension, in chunks."""
    segment = -(-request.bytes // dimension.size)
    steps = sum(ring_steps(phase, dimension.size) for phase in PHASES[collective])
    return pipelined_ring_ps(steps, dimension, costs, segment, chunks)


def _one_message_ps(
    group: Group, fabric: Fabric, request: Request, costs: Costs, chunks: int
) -> float:
    """A message alone, of c chunks: the first one's way, and then one after the other, as often as the slowest part lets them through.

    A chunk takes a c-th of the message's post, then that of its time on the slowest link (stored and forwarded: on each).
    """
    links = message_links(group, fabric, request)
    paid = costs.endpoint
    slowest = min(rate for rate in (paid.dma_bytes_per_s, paid.hbm_bytes_per_s, np.inf) if rate)
    if slowest < fabric.bytes_per_s[links].max():
        raise inexact("chips that are slower than links hold up some chunks longer than others")
    over = np.rint(request.bytes / fabric.bytes_per_s[links] * PS)
    way = over.sum() if costs.forwarding == STORE_AND_FORWARD else over.max()
    first = (paid.post_ps + way) / chunks + int(fabric.latency_ps[links].sum())
    others = (chunks - 1) / chunks * max(paid.post_ps, over.max())
    return float(paid.dma_start_ps + first + others + paid.dma_done_ps)


def _of_one_ps(collective: str, name: str, dimension: Dimension, costs: Costs, bytes: int) -> float:
    """What has a formula in one dimension alone: trees, direct among all, a permutation by one place, and barriers.

    A barrier is ceil(log2(N)) steps of q(4 bytes), each rank telling the one 1, 2, 4, … further on (Hensgen, Finkel, Manber: Two algorithms for
    barrier synchronization, 1988); a permutation is q(n).
    """
    if collective == PERMUTE:
        return step_ps(dimension, costs, bytes, 2.0)
    if collective == BARRIER:
        if dimension.kind == RING_OF_LINKS:
            raise inexact("the messages of a barrier around a ring have ways of different lengths")
        rounds = (dimension.size - 1).bit_length()
        return rounds * step_ps(dimension, costs, BARRIER_BYTES, 2.0)
    if name == TREE:
        if collective == BROADCAST:
            return tree_ps(dimension, costs, bytes, 1)
        return tree_ps(dimension, costs, -(-bytes // 2), 2)
    return dimensions_ps(collective, (DIRECT,), (dimension,), costs, bytes)


def _rings_ps(collective: str, dimensions: Sequence[Dimension], costs: Costs, bytes: int) -> float:
    """A ring a dimension and direction, each with n / (2 k) bytes of k dimensions: all the time, each dimension carries one part each way.

    So it is the time of one part dimension by dimension, where dimensions are alike: the sum over d of (N - 1) q(n / (2 k N**d)) a phase. The two
    directions share links through a switch.
    """
    first = dimensions[0]
    if any(dimension != first for dimension in dimensions):
        raise inexact(
            "rings over dimensions that are not alike get in each other's way", HAS_FORMULA
        )
    if first.size == 2:
        raise inexact("both ways round are one way between two ranks", HAS_FORMULA)
    if costs.endpoint.post_ps:
        raise inexact("several parts of the buffer wait for each other's posts", HAS_FORMULA)
    parts = 2 * len(dimensions)
    shared = 2 if first.kind == SWITCH else 1
    share = max(split(bytes, [1.0] * parts))
    segment = -(-share // first.size ** len(dimensions))
    return sum(
        phase_ps(RING, phase, first, costs, size, parts, shared)
        for phase in PHASES[collective]
        for size in _blocks(phase, dimensions, segment, share)
    )


def _hierarchical_ps(
    collective: str, group: Group, dimensions: Sequence[Dimension], costs: Costs, bytes: int
) -> float:
    """Within instances and between them by turns: as dimension by dimension, the instance last, with the algorithms of ``stage_algorithm``."""
    if group.names[-1] != INSTANCE:
        raise inexact("the ranks of the instances are no grid")
    *within, between = dimensions
    if collective in (ALL_TO_ALL, BROADCAST):
        if collective == BROADCAST and between.size > MANY_INSTANCES:
            raise inexact("the ways down a tree have different lengths")
        is_direct = collective == ALL_TO_ALL or bytes < DIRECT_BELOW_BYTES
        names = [DIRECT if is_direct else RING] * len(dimensions)
        return dimensions_ps(collective, names, dimensions, costs, bytes)
    sizes = tuple(dimension.size for dimension in within)
    outer = between_algorithm(between.size, bytes // prod(sizes))
    inner = stage_algorithm(sizes, bytes)
    if inner == RING and within:
        raise inexact("the parts of rings within instances queue for the links between them")
    return dimensions_ps(collective, [*[inner] * len(within), outer], dimensions, costs, bytes)
