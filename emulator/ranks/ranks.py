"""Whom does an emulated rank exchange with, over which servers, and what do rows of ``ops`` say of it?"""

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
        alike: the groups with all siblings, which are the same for all ranks of the program; empty: as they are.
        label: what it is among ranks that differ ("stage 1"), "" where that is not known.
        in_order: whether it issues operations and collectives of a group in the order of the program; else whichever is ready first.
        has_host: whether operations of the host are emulated too.
    """

    system: System
    placement: Placement
    rank: int = 0
    groups: tuple[ProcessGroup, ...] = ()
    members: tuple[int, ...] = ()
    shared: CollectiveCosts | None = None
    group_ids: tuple[int, ...] = ()
    alike: tuple[ProcessGroup, ...] = ()
    label: str = ""
    in_order: bool = True
    has_host: bool = False
    _seen: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many ranks it stands for."""
        return len(self.members or self.placement.chips)

    def core_name(self, core: int) -> str:
        """Name of the track of a core that one of its ranks has."""
        return f"core {core} ({self.label})" if self.label else f"core {core}"

    @cached_property
    def costs(self) -> CollectiveCosts:
        """Of collectives on the machine."""
        return self.shared or CollectiveCosts(self.system.machine, self.placement.chips)

    def servers(self) -> tuple[tuple[str, bool], ...]:
        """Servers beyond those of a core: its own, and behind them the parts of the fabric, first come first served."""
        parts = self.costs.part_names if self.groups else ()
        return (*self._own_servers, *((f"fabric {name}", False) for name in parts))

    @property
    def own_count(self) -> int:
        """How many servers are the rank's alone, those of its core among them; the parts of the fabric come behind."""
        return len(SERVERS) + len(self._own_servers)

    @property
    def _own_servers(self) -> tuple[tuple[str, bool], ...]:
        """A stream for each group, the host, and what all collectives share where it runs as ASTRA-sim."""
        streams = [
            (f"CC {index} {group.name}", self.in_order) for index, group in enumerate(self.groups)
        ]
        host = [("host", self.in_order)] if self.has_host else []
        together = [("communication", True)] if self.runs_as_astra_sim and self.groups else []
        return (*streams, *host, *together)

    def stream(self, group: int) -> int:
        """Server of a group's stream."""
        return len(SERVERS) + group

    def host(self) -> int:
        """Server of the host's operations."""
        return len(SERVERS) + len(self.groups)

    def communication(self) -> int:
        """Server of all collectives, where it runs as ASTRA-sim."""
        return self.own_count - 1

    @property
    def runs_as_astra_sim(self) -> bool:
        """Whether only one operation and one collective run at a time, of those that could the one of the least id."""
        return self.system.machine.ways is not None

    def link_servers(self, cost: CollectiveCost) -> list[tuple[int, int]]:
        """The parts of the fabric that a collective uses, and how long in ps."""
        return [
            (self.own_count + part, busy) for part, busy in cost.busy_ps(self.costs.parts).items()
        ]

    def cost(self, call: CollectiveCall) -> CollectiveCost:
        """What a collective costs that the group and all its siblings do."""
        group = self.groups[call.group]
        return self.costs.cost(call, group.siblings or (group.ranks,))

    def common_cost(self, call: CollectiveCall) -> CollectiveCost:
        """What it would cost if all ranks of the program were at it at once: the same for all of them."""
        group = (self.alike or self.groups)[call.group]
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


def ranks_for(
    operations: Sequence[Operation], system: System, placement: Placement, **own: Any
) -> Ranks:
    """Ranks that issue operations as these have to be.

    Args:
        operations: of their program.
        system: the machine.
        placement: of all ranks.
        own: other attributes of Ranks.
    """
    costs = [given_cost(op) for op in operations]
    return Ranks(
        system,
        placement,
        in_order=system.machine.ways is not None or not any(costs),
        has_host=any(cost is not None and cost.what == ON_HOST for cost in costs),
        **own,
    )


def check_costs(operations: Sequence[Operation], system: System) -> None:
    """Refuse a machine of which no engines are known, unless the front end gave all costs.

    Raises:
        CaptureError: it did not.
    """
    if any(given_cost(op) is None for op in operations):
        check_engines(system)


def check_engines(system: System) -> None:
    """Refuse a machine of which no engines are known.

    Raises:
        CaptureError: it is ASTRA-sim's.
    """
    if system.machine.ways is not None:
        raise CaptureError(
            f"{system.name}: ASTRA-sim's inputs describe no engines, so only Chakra execution traces (.et) run on it "
            "(trnprof emulate); record on a system such as trn2, and trnprof export --to chakra makes such traces of it"
        )


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
        for parts in (call.sent_bytes, call.received_bytes):
            if len(parts) not in (0, size):
                wrong = f"bytes for {len(parts)} ranks in a group of {size}"
    if wrong:
        raise CaptureError(f"{name}: {wrong}: the workload is broken; record it anew")
