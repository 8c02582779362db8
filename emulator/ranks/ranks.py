"""Whom does an emulated rank exchange with, over which servers, and what do rows of ``ops`` say of it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trnprof.emulator.collectives.messages import ALL_GATHER, COLLECTIVES, REDUCE_SCATTER
from trnprof.emulator.lowering.tasks import SERVERS
from trnprof.emulator.ranks.costs import CollectiveCost, CollectiveCosts
from trnprof.emulator.ranks.placement import Placement, place_ranks
from trnprof.emulator.system import System
from trnprof.emulator.workload import CollectiveCall, Operation, ProcessGroup
from trnprof.tracer.errors import CaptureError


@dataclass
class Ranks:
    """Ranks of a program that do the same; one of them is emulated and stands for all.

    Attributes:
        system: the machine.
        placement: of all ranks of the program.
        rank: the one that is emulated.
        groups: process groups of its collectives.
        members: ranks for which it stands; empty: all.
        shared: costs that it shares with other classes of ranks; None: its own.
        group_ids: row of ``groups`` of each group; empty: as they are.
    """

    system: System
    placement: Placement
    rank: int = 0
    groups: tuple[ProcessGroup, ...] = ()
    members: tuple[int, ...] = ()
    shared: CollectiveCosts | None = None
    group_ids: tuple[int, ...] = ()
    _seen: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many ranks it stands for."""
        return len(self.members or self.placement.chips)

    @cached_property
    def costs(self) -> CollectiveCosts:
        """Of collectives on the machine."""
        return self.shared or CollectiveCosts(self.system.machine, self.placement.chips)

    def servers(self) -> tuple[tuple[str, bool], ...]:
        """Servers beyond those of a core: a stream in order for each group, and the parts of the fabric, first come first served."""
        if not self.groups:
            return ()
        streams = [(f"CC {index} {group.name}", True) for index, group in enumerate(self.groups)]
        parts = [(f"fabric {name}", False) for name in self.costs.part_names]
        return (*streams, *parts)

    def stream(self, group: int) -> int:
        """Server of a group's stream."""
        return len(SERVERS) + group

    def link_servers(self, cost: CollectiveCost) -> list[tuple[int, int]]:
        """The parts of the fabric that a collective uses, and how long in ps."""
        first = len(SERVERS) + len(self.groups)
        return [(first + part, busy) for part, busy in cost.busy_ps(self.costs.parts).items()]

    def cost(self, call: CollectiveCall) -> CollectiveCost:
        """What a collective costs that the group and all its siblings do."""
        group = self.groups[call.group]
        return self.costs.cost(call, group.siblings or (group.ranks,))

    def op_fields(self, operations: Sequence[Operation]) -> dict[int, Mapping[str, Any]]:
        """What rows of ``ops`` say of the collectives among the next operations, by their place among these."""
        fields: dict[int, Mapping[str, Any]] = {}
        for place, op in enumerate(operations):
            call = op.collective
            if call is None:
                continue
            shard = -(-call.nbytes // len(self.groups[call.group].ranks))
            fields[place] = {
                "group_id": self.group_ids[call.group] if self.group_ids else call.group,
                "group_seq": self._seen[call.group],
                "algorithm": self.cost(call).algorithm or None,
                "in_bytes": shard if call.kind == ALL_GATHER else call.nbytes,
                "out_bytes": shard if call.kind == REDUCE_SCATTER else call.nbytes,
            }
            self._seen[call.group] += 1
        return fields


def lone_rank(system: System) -> Ranks:
    """A program of one rank on one core."""
    return Ranks(system, place_ranks(system, 1, lnc=1))


def check_call(name: str, call: CollectiveCall, groups: Sequence[ProcessGroup]) -> None:
    """Refuse what no front end makes, so that it is told of as such.

    Raises:
        CaptureError: an unknown collective, or a group or positions that are not there.
    """
    wrong = ""
    if call.kind not in COLLECTIVES:
        wrong = f"unknown collective {call.kind!r}"
    elif not 0 <= call.group < len(groups):
        wrong = f"group {call.group} of {len(groups)}"
    else:
        size = len(groups[call.group].ranks)
        if not (0 <= call.root < size and -1 <= call.target < size):
            wrong = f"root {call.root}, target {call.target} in a group of {size}"
        elif len(call.sent_bytes) not in (0, size):
            wrong = f"bytes for {len(call.sent_bytes)} ranks in a group of {size}"
    if wrong:
        raise CaptureError(f"{name}: {wrong}: the workload is broken; record it anew")
