"""How long does each algorithm take where all ranks of a dimension are joined alike? The formulas, by step and by phase.

Throughout: N ranks of a dimension; s bytes of a message; B bytes/s of a link; L the latencies from a rank to the next, those of both links where a
switch lies between, and of D links around a ring. A step in which each rank sends one message over links that nobody else uses takes ::

    q(s) = L + s / B                          cut-through
    q(s) = L + h s / B                        store-and-forward over h links

(fabric.md 1.4; Hockney's model with L for its alpha: Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005).
Where m messages of a rank share what they pass, it is L + m s / B. What a chip pays comes on top: ::

    q(s) = post + dma_start + L + max(m_link s / B, m s / DMA, m s touches / HBM) + dma_done

where m messages are posted one after the other, so it is no less than m posts and one message's s / B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.collectives.algorithms.circulant import skips
from trnprof.emulator.collectives.algorithms.names import CIRCULANT, DIRECT, RING
from trnprof.emulator.collectives.closed_form.symmetry import Dimension, inexact
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
)
from trnprof.emulator.collectives.request import STORE_AND_FORWARD
from trnprof.emulator.fabric.topology import MESH
from trnprof.emulator.fabric.topology import RING as RING_OF_LINKS
from trnprof.tracer.errors import CollectiveError

PS = 1e12
PHASES: Final = {
    REDUCE_SCATTER: (REDUCE_SCATTER,),
    ALL_GATHER: (ALL_GATHER,),
    ALL_REDUCE: (REDUCE_SCATTER, ALL_GATHER),
    ALL_TO_ALL: (ALL_TO_ALL,),
    BROADCAST: (BROADCAST,),
}


@dataclass(frozen=True)
class Costs:
    """What holds for all steps of a collective.

    Attributes:
        endpoint: what messages cost at their chips.
        forwarding: of ``request.FORWARDINGS``.
        is_tie_split: whether the chips opposite on a ring are reached both ways round.
    """

    endpoint: Endpoint
    forwarding: str
    is_tie_split: bool

    @property
    def is_free(self) -> bool:
        """See ``Endpoint``."""
        return self.endpoint.is_free


def step_ps(
    dimension: Dimension,
    costs: Costs,
    size: int,
    touches: float,
    messages: int = 1,
    per_link: float = 1,
    distance: int = 1,
) -> float:
    """q(s): one step in which all ranks send alike.

    Args:
        dimension: in which.
        costs: see there.
        size: bytes of each message, s.
        touches: bytes of HBM that a chip reads and writes for each byte that it sends.
        messages: that a chip sends, m.
        per_link: messages that share a link, m_link.
        distance: of sender and receiver around a ring, D.
    """
    paid = costs.endpoint
    alone = float(np.rint(size / dimension.bytes_per_s * PS))
    if costs.forwarding == STORE_AND_FORWARD:
        if distance > 1:
            raise inexact("messages stored on their way along a ring wait for each other unevenly")
        alone *= dimension.hops
    linked = carry = alone + (per_link - 1) * size / dimension.bytes_per_s * PS
    if paid.dma_bytes_per_s > 0:
        carry = max(carry, messages * size / paid.dma_bytes_per_s * PS)
    if paid.hbm_bytes_per_s > 0:
        carry = max(carry, messages * size * touches / paid.hbm_bytes_per_s * PS)
    if messages > 1 and carry > linked:
        raise inexact(
            "chips that are slower than their links hold up some messages longer than others"
        )
    posted = max(paid.post_ps + carry, messages * paid.post_ps + alone)
    return paid.dma_start_ps + posted + distance * dimension.latency_ps + paid.dma_done_ps


def phase_ps(
    algorithm: str,
    phase: str,
    dimension: Dimension,
    costs: Costs,
    size: int,
    parts: int = 1,
    per_link: int = 1,
) -> float:
    """One phase of a collective along one dimension.

    Args:
        algorithm: RING, DIRECT, HALVING_DOUBLING or CIRCULANT.
        phase: reduce_scatter, all_gather, all_to_all or broadcast.
        dimension: along which.
        costs: see there.
        size: bytes of a block: what each rank is to have in the end, or has first (the whole buffer of a broadcast).
        parts: rings only: so many run at once, each with a part of the buffer.
        per_link: so many of them share each link.
    """
    paid = costs.endpoint
    touches = {REDUCE_SCATTER: 1 + paid.reduce_touches, BROADCAST: 1.0}.get(phase, 2.0)
    if algorithm == RING:
        return ring_steps(phase, dimension.size) * step_ps(
            dimension, costs, size, touches, parts, per_link
        )
    if algorithm == DIRECT:
        if phase == BROADCAST and dimension.kind == RING_OF_LINKS:
            raise inexact("a rank that sends straight around a ring uses some of its links alone")
        return _direct_ps(dimension, costs, size, touches)
    if algorithm == CIRCULANT:
        return _circulant_ps(dimension, costs, size, touches)
    return _halving_ps(dimension, costs, size, touches)


def ring_steps(phase: str, size: int) -> int:
    """N - 1 steps, each segment to the next rank; N (N - 1) / 2 of an all_to_all, whose segments go as far as they must one after the other.

    (N - 1) q(s) (Patarasu and Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009; fabric.md 1.2 and 1.4). An all_reduce
    is two phases.
    """
    steps = size - 1
    return steps * size // 2 if phase == ALL_TO_ALL else steps


def pipelined_ring_ps(
    steps: int, dimension: Dimension, costs: Costs, size: int, chunks: int
) -> float:
    """S steps around a ring, each message cut into c chunks that go on as soon as they have come.

    A link carries S c chunks, of t = s / (c B) each; a chunk takes q = L + t a step (store-and-forward: L + h t). Either the links never rest, or
    each chunk's way never does (fabric.md 1.4)::

        max(S c t + (q - t), S q + (c - 1) t)
    """
    whole = float(np.rint(size / dimension.bytes_per_s * PS))
    chunk = whole / chunks
    wait = _step_of_chunk_ps(dimension, costs, chunk)
    return max(steps * whole + wait - chunk, steps * wait + whole - chunk)


def pipelined_chain_ps(
    dimensions: Sequence[Dimension], costs: Costs, size: int, chunks: int
) -> float:
    """Down a chain of N - 1 steps a dimension, one dimension after the other, each message cut into c chunks that go on as soon as they have come.

    No link carries a chunk twice. The first chunk takes q = L + t a step (store-and-forward: L + h t), t = s / (c B); the others follow one after the
    other, as often as the slowest link lets one through (van de Geijn and Watts: SUMMA, 1997, for one dimension)::

        sum over d of (N_d - 1) q_d + (c - 1) max over d of t_d
    """
    way, slowest = 0.0, 0.0
    for dimension in dimensions:
        chunk = float(np.rint(size / dimension.bytes_per_s * PS)) / chunks
        way += (dimension.size - 1) * _step_of_chunk_ps(dimension, costs, chunk)
        slowest = max(slowest, chunk)
    return way + (chunks - 1) * slowest


def _step_of_chunk_ps(dimension: Dimension, costs: Costs, chunk_ps: float) -> float:
    """From a chunk's departure to its arrival at the next rank, of chips that pay nothing but latencies; a link takes ``chunk_ps``."""
    hops = dimension.hops if costs.forwarding == STORE_AND_FORWARD else 1
    paid = costs.endpoint
    return paid.dma_start_ps + dimension.latency_ps + hops * chunk_ps + paid.dma_done_ps


def _direct_ps(dimension: Dimension, costs: Costs, size: int, touches: float) -> float:
    """Every rank to every other at once: L + s / B on a mesh, L + (N - 1) s / B through a switch, where a rank's messages share its links.

    (fabric.md 1.4.) Around a ring see ``_direct_around_ps``.
    """
    others = dimension.size - 1
    if dimension.kind == RING_OF_LINKS:
        return _direct_around_ps(dimension, costs, size)
    shared = 1 if dimension.kind == MESH else others
    return step_ps(dimension, costs, size, touches, others, shared)


def _direct_around_ps(dimension: Dimension, costs: Costs, size: int) -> float:
    """Every rank to every other around a ring of N: d messages from ranks d before it, d = 1 … N / 2, go over each link in one direction.

    A link that is never idle once messages are there is done when ::

        max over j of (arrival of those from j before + sum over d that arrive no earlier of d s / B)

    so L + (1 + 2 + … + N / 2) s / B for large messages, L that of one link (the load of the busiest link: fabric.md 4). Of the chips opposite, half
    are reached either way where ties are split.
    """
    if costs.forwarding == STORE_AND_FORWARD or not costs.is_free:
        raise inexact(
            "messages that go straight around a ring and are stored, or paid for, wait unevenly"
        )
    ranks = dimension.size
    ahead = np.arange(1, ranks // 2 + 1)
    back = np.arange(1, (ranks + 1) // 2)
    crossing = ahead.astype(np.float64)
    if ranks % 2 == 0 and costs.is_tie_split:
        crossing[-1] /= 2
    whole = size / dimension.bytes_per_s * PS
    clockwise = _busy_until(ahead * dimension.latency_ps, crossing * whole)
    other_way = _busy_until(back * dimension.latency_ps, back * whole)
    return costs.endpoint.dma_start_ps + max(clockwise, other_way) + costs.endpoint.dma_done_ps


def _busy_until(arrivals: NDArray[Any], works: NDArray[Any]) -> float:
    """When a link has done works that arrive at these times, in order, if it never rests while there is one."""
    left = np.cumsum(works[::-1])[::-1]
    return float((arrivals + left).max(initial=0.0))


def _halving_ps(dimension: Dimension, costs: Costs, size: int, touches: float) -> float:
    """Halving (or doubling, backwards): with the partner at distance D = 1, 2, 4, … N / 2, a message of N s / (2 D) bytes.

    On a mesh or a switch the sum over D of q(N s / (2 D)), so log2(N) L + (N - 1) s / B (Thakur, Rabenseifner, Gropp 2005). Around a ring D messages
    go over the link in the middle of each pair of blocks, in either direction; at D = N / 2 all go clockwise, and D go over every link (D / 2 where
    ties are split)::

        sum over D of D (L + N s / (2 D B)) = (N - 1) L + log2(N) N s / (2 B)
    """
    size_of_all = dimension.size
    if size_of_all & (size_of_all - 1):
        raise CollectiveError(
            f"halving-doubling needs a power of two, not {size_of_all} ranks: choose ring or direct"
        )
    total, distance = 0.0, 1
    while distance < size_of_all:
        is_ring = dimension.kind == RING_OF_LINKS
        crossing: float = distance if is_ring else 1
        if is_ring and 2 * distance == size_of_all and costs.is_tie_split:
            crossing = distance / 2
        sent = size * size_of_all // (2 * distance)
        hops = distance if is_ring else 1
        total += step_ps(dimension, costs, sent, touches, 1, crossing, hops)
        distance *= 2
    return total


def _circulant_ps(dimension: Dimension, costs: Costs, size: int, touches: float) -> float:
    """Steps of N / 2, N / 4, … 1 blocks, rounded down and up so that they add up to N - 1: the sum of q(blocks s) (Träff 2024, see ``circulant``)."""
    moved = [blocks for _, blocks in skips(dimension.size)]
    return sum(step_ps(dimension, costs, blocks * size, touches) for blocks in moved)


def tree_ps(dimension: Dimension, costs: Costs, size: int, directions: int) -> float:
    """Up and down a binary tree (directions: 2), or down alone (1), among N = 2**k ranks: k levels, the root with one child, others with two.

    On a mesh k q(s) a direction; through a switch both children's messages share the link of their parent, so (k - 1) (L + 2 s / B) + L + s / B. The
    two trees of an all_reduce carry half of the buffer each and get in each other's way nowhere: a rank has children in one of them alone (Sanders,
    Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009).
    """
    levels = dimension.size.bit_length() - 1
    if dimension.size != 1 << levels or dimension.kind == RING_OF_LINKS or not costs.is_free:
        raise inexact(
            "a tree needs a power of two of ranks on a mesh or a switch, and chips that pay nothing"
        )
    shared = 1 if dimension.kind == MESH else 2
    inner = step_ps(dimension, costs, size, 0.0, per_link=shared)
    return directions * ((levels - 1) * inner + step_ps(dimension, costs, size, 0.0))
