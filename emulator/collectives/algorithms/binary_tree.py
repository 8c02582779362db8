"""Who is whose parent in a binary tree of so many ranks, in which most children are near their parents?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trnprof.emulator.fabric.fabric import I64


@dataclass(frozen=True)
class Tree:
    """A binary tree in which most children are near their parents.

    Attributes:
        parent: int64[ranks], -1 of the root.
        depth: int64[ranks], 0 of the root.
        children: int64[ranks, 2], the lower one first; -1 where there is none.
    """

    parent: I64
    depth: I64
    children: I64

    @property
    def root(self) -> int:
        """The rank that has no parent."""
        return int(self.depth.argmin())

    @property
    def levels(self) -> int:
        """Depth of the deepest rank."""
        return int(self.depth.max())


def make_tree(ranks: int) -> Tree:
    """The tree of so many ranks.

    Rank r is number r + 1 of an in-order numbering: a number's level is the count of its trailing zero bits, its parent is one level up.

    Where that parent would be past the last rank, the number without its lowest bit is the parent.
    """
    number = np.arange(1, ranks + 1)
    low = number & -number
    up = (number ^ low) | low << 1
    parent = np.where(up <= ranks, up, number ^ low) - 1
    depth = np.zeros(ranks, np.int64)
    above = parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    children = np.full((ranks, 2), -1)
    child = np.flatnonzero(parent >= 0)
    children[parent[child], (child > parent[child]).astype(int)] = child
    return Tree(parent, depth, children)
