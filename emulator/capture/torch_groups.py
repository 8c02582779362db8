"""Which ranks communicate, and who does the same elsewhere at the same time? The process groups of the program.

Groups are numbered when they are first used, and those without a name called by the order in which they were made. Every rank of a program makes the same groups in the same order, also those it is not
in; so the others that partition the world together with a group are those of its size made around it that share no rank with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from trnprof.emulator.workload import ProcessGroup

_MESH_PREFIX: Final = "mesh_"
_UNNAMED: Final = ("", "undefined")


class Groups:
    """The groups of this process.

    Attributes:
        made: ranks of every group that was made, whoever is in it, in order.
    """

    def __init__(self, sink: Callable[[int, ProcessGroup], object]) -> None:
        self.made: list[tuple[int, ...]] = []
        self._numbers: dict[str, int] = {}
        self._made_as: dict[str, int] = {}
        self._sink = sink

    def watch(self) -> None:
        """From now on see each group that is made."""
        make = c10d._new_group_with_tag

        @functools.wraps(make)
        def reported_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
            group = make(ranks, *args, **kwargs)
            if hasattr(group, "group_name"):  # this rank is in it
                self._made_as[group.group_name] = len(self.made)
            whole = range(dist.get_world_size())
            self.made.append(tuple(whole if ranks is None else sorted(ranks)))
            return group

        c10d._new_group_with_tag = reported_group

    def number(self, group: Any) -> int:
        """Number of a group; the first time it is told to the sink."""
        known = self._numbers.get(group.group_name)
        if known is None:
            known = self._numbers[group.group_name] = len(self._numbers)
            ranks = tuple(dist.get_process_group_ranks(group))
            name = _name(group, ranks, self._made_as.get(group.group_name, known))
            self._sink(known, ProcessGroup(name, ranks, siblings(self.made, ranks)))
        return known


def siblings(
    made: Sequence[tuple[int, ...]], ranks: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """The groups that partition the world together with one; itself alone if none do.

    Args:
        made: ranks of all groups, in the order in which they were made.
        ranks: those of the group, sorted.
    """
    size = dist.get_world_size()
    for position in (i for i, other in enumerate(made) if other == ranks):
        chosen, covered = [ranks], set(ranks)
        for other in _around(made, position):
            if len(other) == len(ranks) and covered.isdisjoint(other):
                chosen.append(other)
                covered.update(other)
        if len(covered) == size:
            return tuple(sorted(chosen))
    return (ranks,)


def _around(made: Sequence[tuple[int, ...]], position: int) -> Iterator[tuple[int, ...]]:
    """The groups made after one, then those made before it, nearest first."""
    yield from made[position + 1 :]
    yield from reversed(made[:position])


def _name(group: Any, ranks: tuple[int, ...], number: int) -> str:
    if len(ranks) == dist.get_world_size() and group.group_desc == "default_pg":
        return "world"
    name = group.group_desc.removeprefix(_MESH_PREFIX)
    return f"group {number}" if name in _UNNAMED else name
