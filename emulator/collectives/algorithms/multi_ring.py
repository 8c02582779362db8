"""How do rings use every link of a torus at once? One ring a dimension and direction, each with its own part of the buffer.

Part p begins with dimension p and goes on to the ones after it, so at any time each dimension carries a part of its own; half of the parts go the
other way round. AWS runs several cycles over disjoint wires likewise (Neuron documents, intra-node collectives, Ring).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import grid_positions
from trnprof.emulator.collectives.algorithms.dimensions import run_dimensions
from trnprof.emulator.collectives.algorithms.names import RING
from trnprof.emulator.collectives.algorithms.steps import Steps, merge
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import Messages


def multi_ring(collective: str, group: Group, bytes: int) -> Messages:
    """all_reduce, all_gather or reduce_scatter over both directions of every dimension.

    Raises:
        CollectiveError: too many messages.
    """
    parts: list[Steps] = []
    for order, is_backward, share in rings(group.sizes, group.ring_bytes_per_s, bytes):
        positions = grid_positions(group.sizes, order, is_backward=is_backward)
        sizes = [group.sizes[dimension] for dimension in order]
        names = [RING] * len(sizes)
        parts.append(run_dimensions(collective, sizes, names, positions, share))
    return merge(parts)


def rings(
    sizes: Sequence[int], bytes_per_s: Sequence[float], bytes: int
) -> list[tuple[list[int], bool, int]]:
    """The order of dimensions, whether backward, and the bytes of each part that has any.

    Args:
        sizes: of the dimensions.
        bytes_per_s: what a rank can send along each.
        bytes: of the full buffer.
    """
    dimensions = len(sizes)
    orders = [
        [(first + turn) % dimensions for turn in range(dimensions)] for first in range(dimensions)
    ]
    weights = _weights(sizes, bytes_per_s, orders)
    shares = split(bytes, [weight for weight in weights for _ in range(2)])
    ways = [(order, is_backward) for order in orders for is_backward in (False, True)]
    return [(*way, share) for way, share in zip(ways, shares, strict=True) if share]


def _weights(
    sizes: Sequence[int], bytes_per_s: Sequence[float], orders: Sequence[Sequence[int]]
) -> list[float]:
    """How much of the buffer goes in each order so that all dimensions are busy for the same time (or nearly, where one would need less than none)."""
    busy = np.zeros((len(sizes), len(orders)))  # of a dimension, for each byte of a part
    for part, order in enumerate(orders):
        for turn, dimension in enumerate(order):
            left = prod(sizes[before] for before in order[:turn])
            busy[dimension, part] = (1 - 1 / sizes[dimension]) / left / bytes_per_s[dimension]
    weights: list[float] = np.linalg.solve(busy, np.ones(len(sizes))).clip(0).tolist()
    return weights


def split(bytes: int, weights: Sequence[float]) -> list[int]:
    """Bytes of each part in proportion to the weights, whole ones, which add up to all."""
    total = sum(weights)
    bounds = [round(bytes * (so_far / total)) for so_far in accumulate(weights, initial=0.0)]
    bounds[-1] = bytes
    return [end - start for start, end in pairwise(bounds)]
