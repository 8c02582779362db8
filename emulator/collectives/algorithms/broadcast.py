"""How does a buffer get from one rank to all, one axis of a grid after the other? By a chain, a tree, or one sender a line.

All add the messages of one axis. Before it, the ranks that have the buffer are those that agree with the root in this dimension and in those of
lower stride (axes are done from the last, slowest one down). ``brought`` is int64[ranks], the message that brought it to each; -1 of the root and
of those that lack it.
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.axis import Axis
from trnprof.emulator.collectives.algorithms.binary_tree import make_tree
from trnprof.emulator.collectives.algorithms.steps import Steps
from trnprof.emulator.fabric.fabric import I64


def along_chain(steps: Steps, axis: Axis, step: int, brought: I64, root: int) -> tuple[int, I64]:
    """Each sends it to the next rank, which sends it on: size - 1 steps."""
    brought = brought.copy()
    for heads, needed in _lines(axis, brought, root):
        places = _places(axis, heads, root)
        ids = steps.count + np.arange((axis.size - 1) * len(heads)).reshape(axis.size - 1, -1)
        turn = np.arange(axis.size - 1)[:, None]
        steps.add(step, heads, places[1], 0, needed)
        steps.add(step + turn[1:], places[1:-1], places[2:], 0, ids[:-1, :, None])
        brought[places[1:]] = ids
    return step + axis.size - 1, brought


def from_one(steps: Steps, axis: Axis, step: int, brought: I64, root: int) -> tuple[int, I64]:
    """The first of each line sends it to all others of the line at once: one step."""
    brought = brought.copy()
    for heads, needed in _lines(axis, brought, root):
        places = _places(axis, heads, root)
        brought[places[1:]] = steps.count + np.arange(places[1:].size).reshape(places[1:].shape)
        steps.add(step, heads, places[1:], 0, needed)
    return step + 1, brought


def along_tree(steps: Steps, axis: Axis, step: int, brought: I64, root: int) -> tuple[int, I64]:
    """Each sends it to two others, down a binary tree (see ``binary_tree``): about log2(size) steps."""
    brought, tree = brought.copy(), make_tree(axis.size)
    order = np.argsort(tree.depth, kind="stable")[1:]
    parent = tree.parent[order]
    for heads, needed in _lines(axis, brought, root):
        places = _places(axis, heads, root)
        line = places[(np.arange(axis.size) - tree.root) % axis.size]
        ids = np.full((axis.size, len(heads)), -1)
        ids[order] = steps.count + np.arange(len(order) * len(heads)).reshape(len(order), -1)
        of_root = parent == tree.root
        steps.add(step, line[parent[of_root]], line[order[of_root]], 0, needed)
        later, above = order[~of_root], parent[~of_root]
        turn = step + tree.depth[above][:, None]
        steps.add(turn, line[above], line[later], 0, ids[above][:, :, None])
        brought[line[order]] = ids[order]
    return step + tree.levels, brought


def _lines(axis: Axis, brought: I64, root: int) -> list[tuple[I64, I64]]:
    """The ranks that have the buffer, int64[lines], and what brought it, int64[lines, k]: the root for itself, and the others."""
    period = axis.stride * axis.size
    heads = axis.index[root % period :: period]
    others = heads[heads != root]
    return [
        (np.array([root]), np.zeros((1, 0), np.int64)),
        (others, brought[others, None]),
    ]


def _places(axis: Axis, heads: I64, root: int) -> I64:
    """int64[size, lines], the ranks of each line, from its head on upwards."""
    along = axis.coordinate[root] + np.arange(axis.size)[:, None]
    places: I64 = heads + (along % axis.size - axis.coordinate[root]) * axis.stride
    return places
