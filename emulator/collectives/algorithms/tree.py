"""Along which trees does a buffer go up and down in a logarithmic number of steps?

An all_reduce uses two trees with half of the buffer each, built so that (of an even number of ranks) each rank has children in one of
them alone: Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009). A broadcast uses one.
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.collectives.algorithms.binary_tree import Tree, make_tree
from trnprof.emulator.collectives.algorithms.multi_ring import split
from trnprof.emulator.collectives.algorithms.steps import Steps, merge
from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.fabric.fabric import I64


def tree_all_reduce(ranks: int, bytes: int) -> Messages:
    """Sums go up to the root, then the total comes down; both trees at once."""
    parts: list[Steps] = []
    tree = make_tree(ranks)
    for number, share in enumerate(split(bytes, [1.0, 1.0])):
        if share:
            positions = ((np.arange(ranks) + number) % ranks).astype(np.int32)
            steps = Steps(positions, share, is_whole=True)
            total = _go_up(steps, tree)
            _come_down(steps, tree, tree.levels, total)
            parts.append(steps)
    return merge(parts)


def tree_broadcast(ranks: int, bytes: int, root: int) -> Messages:
    """The buffer comes down from a position that is made the root."""
    tree = make_tree(ranks)
    positions = ((np.arange(ranks) + root - tree.root) % ranks).astype(np.int32)
    steps = Steps(positions, bytes, is_whole=True)
    _come_down(steps, tree, 0, np.zeros(0, np.int64))
    return merge([steps])


def _go_up(steps: Steps, tree: Tree) -> I64:
    """Each rank but the root sends its parent the sum of its subtree, once its children's have come.

    Returns:
        int64[1 or 2], the messages that bring the root its total.
    """
    counts = (tree.children >= 0).sum(axis=1)
    below = -np.sort(-tree.children, axis=1)
    order = np.argsort(counts, kind="stable")
    order = order[order != tree.root]
    sent = np.zeros(len(counts), np.int64)
    sent[order] = steps.count + np.arange(len(order))
    for count in range(3):
        ranks = order[counts[order] == count]
        needed = sent[below[ranks, :count]]
        step = tree.levels - tree.depth[ranks]
        steps.add(step, ranks, tree.parent[ranks], 0, needed, is_reduced=True)
    return sent[below[tree.root, : counts[tree.root]]]


def _come_down(steps: Steps, tree: Tree, step: int, total: I64) -> None:
    """Each rank sends both children what has come from its parent; the root what the messages of ``total`` have made."""
    order = np.argsort(tree.depth, kind="stable")[1:]
    got = np.zeros(len(tree.depth), np.int64)
    got[order] = steps.count + np.arange(len(order))
    parent = tree.parent[order]
    of_root, others = order[parent == tree.root], order[parent != tree.root]
    steps.add(step, tree.parent[of_root], of_root, 0, total)
    parent = tree.parent[others]
    steps.add(step + tree.depth[parent], parent, others, 0, got[parent, None])
