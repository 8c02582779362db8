"""Whom does the emulated rank exchange with, over which servers, and as which rows of ``groups`` and ``ops``?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trnprof.emulator.collectives.messages import ALL_GATHER, COLLECTIVES, REDUCE_SCATTER
from trnprof.emulator.given import ON_HOST, given_cost
from trnprof.emulator.lowering.tasks import SERVERS
from trnprof.emulator.ranks.costs import CollectiveCost, CollectiveCosts
from trnprof.emulator.ranks.placement import Placement, place_ranks
from trnprof.emulator.system import System
from trnprof.emulator.workload import CollectiveCall, Operation, ProcessGroup, Workload
from trnprof.tracer.errors import CaptureError


@dataclass
class Ranks:
    """All ranks of a program on a machine; one of them is emulated and stands for all.

    Attributes:
        system: the machine.
        placement: by rank.
        rank: the one that is emulated.
        groups: process groups of its collectives.
        in_order: whether it issues operations and collectives of a group in the order of the program; else whichever is ready first.
        has_host: whether operations of the host are emulated too.
    """

    system: System
    placement: Placement
    rank: int = 0
    groups: tuple[ProcessGroup, ...] = ()
    in_order: bool = True
    has_host: bool = False
    _seen: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many ranks."""
        return len(self.placement.chips)

    @cached_property
    def costs(self) -> CollectiveCosts:
        """Of collectives on the machine."""
        return CollectiveCosts(self.system.machine, self.placement.chips)

    def servers(self) -> tuple[tuple[str, bool], ...]:
        """Servers beyond those of a core: a stream for each group, the host, and the links of each tier, first come first served."""
        streams = [
            (f"CC {index} {group.name}", self.in_order) for index, group in enumerate(self.groups)
        ]
        host = [("host", self.in_order)] if self.has_host else []
        tiers = [(f"fabric {tier.name}", False) for tier in self.system.topology.tiers]
        together = [("communication", True)] if self.runs_as_astra_sim and self.groups else []
        return (*streams, *host, *(tiers if self.groups else ()), *together)

    def stream(self, group: int) -> int:
        """Server of a group's stream."""
        return len(SERVERS) + group

    def tier(self, tier: int) -> int:
        """Server of all links of a tier."""
        return len(SERVERS) + len(self.groups) + self.has_host + tier

    @property
    def runs_as_astra_sim(self) -> bool:
        """Whether only one operation and one collective run at a time, of those that could the one of the least id."""
        return self.system.machine.ways is not None

    def communication(self) -> int:
        """Server of all collectives, where it runs as ASTRA-sim."""
        return self.tier(len(self.system.topology.tiers))

    def host(self) -> int:
        """Server of the host's operations."""
        return len(SERVERS) + len(self.groups)

    def cost(self, call: CollectiveCall) -> CollectiveCost:
        """What a collective costs that the group and all its siblings do."""
        group = self.groups[call.group]
        return self.costs.cost(call, group.siblings or (group.ranks,))

    def group_rows(self) -> dict[str, list[Any]]:
        """Rows of ``groups``."""
        return {
            "group_id": list(range(len(self.groups))),
            "ranks": [list(group.ranks) for group in self.groups],
            "name": [group.name for group in self.groups],
        }

    def op_fields(self, operations: Sequence[Operation]) -> dict[int, Mapping[str, Any]]:
        """What rows of ``ops`` say of the collectives among the next operations, by their place among these."""
        fields: dict[int, Mapping[str, Any]] = {}
        for place, op in enumerate(operations):
            call = op.collective
            if call is None:
                continue
            shard = -(-call.nbytes // len(self.groups[call.group].ranks))
            fields[place] = {
                "group_id": call.group,
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


def ranks_of(workload: Workload, system: System, placement: str, lnc: int | None) -> Ranks:
    """The ranks of a captured program on a machine.

    Args:
        workload: the program.
        system: the machine.
        placement: see ``placement.parse_placement``.
        lnc: physical cores a rank; None: see ``placement.place_ranks``.

    Raises:
        SystemDescriptionError: they cannot be placed so.
        CaptureError: a group of the workload names ranks that the program does not have, or a collective a group.
        CollectiveError: a collective that cannot be done: each is reckoned here, before anything is written.
    """
    world = workload.world
    for group in workload.groups:
        for members in (group.ranks, *group.siblings):
            if not members or min(members) < 0 or max(members) >= world.size:
                raise CaptureError(
                    f"group {group.name!r} has ranks {list(members)}, the program has 0..{world.size - 1}: the workload is broken; "
                    "record it anew"
                )
    placed = place_ranks(system, world.size, placement, lnc)
    costs = [given_cost(op) for op in workload.operations]
    if system.machine.ways is not None and None in costs:
        raise CaptureError(
            f"{system.name}: ASTRA-sim's inputs describe no engines, so only Chakra execution traces (.et) run on it"
        )
    ranks = Ranks(
        system,
        placed,
        world.rank,
        workload.groups,
        in_order=system.machine.ways is not None or not any(costs),
        has_host=any(cost is not None and cost.what == ON_HOST for cost in costs),
    )
    for op in workload.operations:
        if op.collective is not None:
            _check_call(op.name, op.collective, workload.groups)
            ranks.cost(op.collective)
    return ranks


def _check_call(name: str, call: CollectiveCall, groups: Sequence[ProcessGroup]) -> None:
    """Refuse what no front end makes, so that it is told of as such."""
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
