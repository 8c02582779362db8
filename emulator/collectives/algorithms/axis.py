"""Who is whose neighbour along one dimension of a group, and which segments does a block along it hold?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import mul

import numpy as np

from trnprof.emulator.fabric.fabric import I32, I64


@dataclass(frozen=True)
class Axis:
    """One dimension of a grid of ranks, which are numbered first dimension fastest.

    A folded grid (see ``Group``) has the ranks of the first instance alone: those that come first. Ranks of others are still counted, as receivers.

    Attributes:
        size: of this dimension.
        stride: product of the sizes before it.
        ranks: of the grid; of a folded one, those that are there.
        replicas: so many times that are meant.
    """

    size: int
    stride: int
    ranks: int
    replicas: int = 1

    @cached_property
    def index(self) -> I64:
        """int64[ranks], 0 to ranks - 1."""
        return np.arange(self.ranks, dtype=np.int64)

    @cached_property
    def coordinate(self) -> I64:
        """int64[ranks], place of each rank along the axis."""
        return self.index // self.stride % self.size

    @property
    def block_segments(self) -> int:
        """Segments of a block: those that agree in all dimensions up to this one."""
        return self.ranks * self.replicas // (self.stride * self.size)

    @property
    def block_stride(self) -> int:
        """From one segment of a block to the next."""
        return self.stride * self.size

    def at(self, coordinate: I64) -> I64:
        """int64[..., ranks], the rank of each one's line at a coordinate (modulo the size); also the first segment of that block.

        Args:
            coordinate: int64[..., ranks] or broadcast to it.
        """
        return self.index + (coordinate % self.size - self.coordinate) * self.stride

    def same(self, ranks: I64) -> I64:
        """The ranks that are there and do the same as some, int64[...]: themselves, unless the grid is folded."""
        return ranks if self.replicas == 1 else ranks % self.ranks

    def block_at(self, coordinate: I64) -> I64:
        """int64[..., ranks], first segment of the block that has each rank's coordinates before this axis and one given along it."""
        return self.index % self.stride + coordinate % self.size * self.stride


def make_axes(sizes: Sequence[int], replicas: int = 1) -> list[Axis]:
    """One axis a dimension, fastest first; of a grid that is folded so many times."""
    strides = accumulate(sizes[:-1], mul, initial=1)
    ranks = prod(sizes) // replicas
    return [
        Axis(size, stride, ranks, replicas) for size, stride in zip(sizes, strides, strict=True)
    ]


def grid_positions(sizes: Sequence[int], order: Sequence[int], *, is_backward: bool) -> I32:
    """int32[ranks], the position in the group of each place of a grid that has the dimensions in another order.

    Args:
        sizes: of the group's dimensions, fastest first.
        order: of the dimensions in the new grid, fastest first.
        is_backward: count every coordinate the other way round (0, -1, -2, …), so that what goes up goes down.
    """
    axes = make_axes(sizes)
    positions = np.zeros(prod(sizes), np.int64)
    for new, old in zip(make_axes([sizes[d] for d in order]), order, strict=True):
        place = -new.coordinate % new.size if is_backward else new.coordinate
        positions += place * axes[old].stride
    return positions.astype(np.int32)
