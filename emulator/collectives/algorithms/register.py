"""Which messages make up this collective, by this algorithm, in this group? The register of algorithms, and the one way to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnprof.emulator.collectives.algorithms.barrier import dissemination
from trnprof.emulator.collectives.algorithms.dimensions import run_dimensions
from trnprof.emulator.collectives.algorithms.hierarchical import hierarchical
from trnprof.emulator.collectives.algorithms.kangaring import kangaring
from trnprof.emulator.collectives.algorithms.multi_ring import multi_ring
from trnprof.emulator.collectives.algorithms.names import (
    ALGORITHMS,
    ALIASES,
    ALL_PAIRS,
    DIRECT,
    HIERARCHICAL,
    KANGARING,
    MULTI_RING,
    PER_DIMENSION,
    RAGGED,
    TREE,
    UNFOLDED,
)
from trnprof.emulator.collectives.algorithms.point_to_point import independent, permute, send_recv
from trnprof.emulator.collectives.algorithms.ragged import ragged_all_to_all
from trnprof.emulator.collectives.algorithms.steps import merge
from trnprof.emulator.collectives.algorithms.tree import tree_all_reduce, tree_broadcast
from trnprof.emulator.collectives.group import Group
from trnprof.emulator.collectives.messages import (
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    COLLECTIVES,
    PERMUTE,
    SEND_RECV,
    UNLIKE_RANKS,
    Messages,
)
from trnprof.tracer.errors import CollectiveError
from trnprof.tracer.nearest import nearest


def plan(
    collective: str,
    algorithms: Sequence[str],
    group: Group,
    bytes: int,
    root: int = 0,
    sent_bytes: Sequence[Sequence[int]] | None = None,
) -> Messages:
    """The messages of a collective; none where the group is one rank.

    Args:
        collective: a name of ``messages.COLLECTIVES``.
        algorithms: one name or alias, or one a dimension of the group.
        group: among whom.
        bytes: the full buffer (see ``Request``); a barrier, and an all_to_all with ``sent_bytes``, do not need it.
        root: position that broadcasts or sends.
        sent_bytes: for a ragged all_to_all, what each position (row) sends to each (column).

    Raises:
        CollectiveError: a name that is unknown, a collective that the algorithm cannot do among so many ranks, less than a byte, or a
            root outside the group.
    """
    if sent_bytes is not None and collective != ALL_TO_ALL:
        raise CollectiveError(f"what each rank sends to each is for all_to_all, not {collective}")
    names = resolve(collective, algorithms, group, is_ragged=sent_bytes is not None)
    ranks = len(group)
    if not 0 <= root < ranks:
        raise CollectiveError(f"root {root}: the group has positions 0 to {ranks - 1}")
    if sent_bytes is not None:
        return ragged_all_to_all(ranks, sent_bytes)
    if collective == BARRIER:
        return dissemination(ranks, group.replicas)
    if bytes < 1:
        raise CollectiveError(f"{collective} of {bytes} bytes: expected 1 or more")
    if ranks == 1:
        nobody = np.zeros(0, np.int64)
        return independent(nobody, nobody, nobody)
    if group.replicas > 1 and (collective in UNLIKE_RANKS or names[0] in UNFOLDED):
        raise CollectiveError(
            f"{collective} by {names[0]} is not folded: not all instances do the same in it"
        )
    if collective == PERMUTE:
        return permute(ranks, bytes, group.replicas)
    if collective == SEND_RECV:
        return send_recv(ranks, bytes, root)
    return _lower(collective, names, group, bytes, root)


def resolve(
    collective: str, algorithms: Sequence[str], group: Group, *, is_ragged: bool = False
) -> tuple[str, ...]:
    """The algorithms by their proper names, once each dimension where they run dimension by dimension.

    Args:
        collective: see ``plan``; so are the next two.
        algorithms: …
        group: …
        is_ragged: whether ranks send different amounts, which only those can do that send straight from rank to rank.

    Raises:
        CollectiveError: see ``plan``.
    """
    if collective not in COLLECTIVES:
        raise CollectiveError(
            f"unknown collective {collective!r}{_near(collective, COLLECTIVES)}: known are {', '.join(COLLECTIVES)}"
        )
    names = tuple(_proper(name) for name in algorithms)
    able = [name for name, can in ALGORITHMS.items() if collective in can]
    if is_ragged:
        able = [name for name in able if name in RAGGED]
    for name in names:
        if name not in able:
            what = f"a ragged {collective}" if is_ragged else collective
            raise CollectiveError(f"{name} cannot do {what}: choose {' or '.join(able)}")
    dimensions = len(group.sizes)
    if len(names) == 1:
        return names * dimensions if names[0] in PER_DIMENSION else names
    if len(names) != dimensions:
        raise CollectiveError(
            f"{len(names)} algorithms for a group of {_counted(dimensions)}: give one for all, or one each"
        )
    for name in names:
        if name not in PER_DIMENSION:
            raise CollectiveError(
                f"{name} is not for one dimension of several: in a list give {', '.join(PER_DIMENSION)}"
            )
    return names


def _lower(
    collective: str, names: tuple[str, ...], group: Group, bytes: int, root: int
) -> Messages:
    if names[0] == MULTI_RING:
        return multi_ring(collective, group, bytes)
    if names[0] == KANGARING:
        return kangaring(collective, group, bytes)
    if names[0] == HIERARCHICAL:
        return hierarchical(collective, group, bytes, root)
    if names[0] == TREE and collective == BROADCAST:
        return tree_broadcast(len(group), bytes, root)
    if names[0] == TREE:
        return tree_all_reduce(len(group), bytes)
    sizes = group.sizes
    if names[0] == ALL_PAIRS:
        sizes, names = (len(group),), (DIRECT,)
    positions = np.arange(len(group.ranks), dtype=np.int32)
    return merge([run_dimensions(collective, sizes, names, positions, bytes, root, group.replicas)])


def _proper(name: str) -> str:
    proper = ALIASES.get(name, name)
    if proper not in ALGORITHMS:
        raise CollectiveError(
            f"unknown algorithm {name!r}{_near(name, ALGORITHMS)}: known are {', '.join((*ALGORITHMS, *ALIASES))}"
        )
    return proper


def _near(name: str, known: Sequence[str] | dict[str, tuple[str, ...]]) -> str:
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def _counted(dimensions: int) -> str:
    return f"{dimensions} dimension{'s' * (dimensions != 1)}"
