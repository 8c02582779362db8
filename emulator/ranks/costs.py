"""How long does a collective of a captured program take, and what does it do to which links?

Its ranks on one chip exchange through HBM by the chip's DMA engines, chips exchange over the fabric (``collectives.run``), all groups that do
the same elsewhere in the world at once; one after the other, so a collective takes the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trnprof.emulator.collectives.algorithms.names import RING
from trnprof.emulator.collectives.algorithms.policy import choose
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.group import make_group
from trnprof.emulator.collectives.messages import ALL_GATHER, PERMUTE, SEND_RECV
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.request import STORE_AND_FORWARD, Request
from trnprof.emulator.collectives.run import run_many
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import I64, Fabric
from trnprof.emulator.machine import Machine
from trnprof.emulator.machine_parts import AstraSimWays
from trnprof.emulator.ranks.faults import NO_FAULTS, Faults
from trnprof.emulator.ranks.traffic import Exchange, LocalPhase, traffic_of
from trnprof.emulator.workload import CollectiveCall

WITHIN_CHIPS = "intra-chip"
"""What the algorithm is called by which ranks of one chip exchange."""


@dataclass(frozen=True)
class CollectiveCost:
    """What one collective costs, whichever of the groups does it.

    Attributes:
        duration_ps: from its start to the last arrival in the slowest of the groups.
        algorithm: within chips, between them, or both.
        links: int64[used], ids of the links that carry something.
        link_bytes: int64[used], over each, of all groups.
        link_busy_ps: int64[used].
    """

    duration_ps: int
    algorithm: str
    links: I64
    link_bytes: I64
    link_busy_ps: I64

    def busy_ps(self, parts: I64) -> dict[int, int]:
        """How long the busiest link of each part of the fabric is busy, by the parts that it uses, ascending.

        Args:
            parts: int64[links], which part each link of the fabric is in.
        """
        used = parts[self.links]
        return {int(part): int(self.link_busy_ps[used == part].max()) for part in np.unique(used)}


@dataclass
class CollectiveCosts:
    """Costs of collectives on one machine, each reckoned once.

    Attributes:
        machine: whose policy chooses algorithms.
        chip_of: by rank.
        faults: links that are slow or not there, and slow chips.
        fabric: its links.
        parts: int64[links], the part of the fabric that each is in: collectives that use one part take turns.
        part_names: what the parts are called.
    """

    machine: Machine
    chip_of: Sequence[int]
    faults: Faults = NO_FAULTS
    fabric: Fabric = field(init=False)
    parts: I64 = field(init=False)
    part_names: tuple[str, ...] = field(init=False)
    _known: dict[tuple[CollectiveCall, tuple[tuple[int, ...], ...]], CollectiveCost] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.fabric = self.faults.links_of(build_fabric(self.machine.topology))
        self.parts = self.fabric.tier.astype(np.int64)
        self.part_names = tuple(tier.name for tier in self.machine.topology.tiers)

    def part_links(self, users: Sequence[Sequence[CollectiveCost]]) -> None:
        """Part the links of each tier by who uses them, so that only those take turns who have links in common.

        Args:
            users: the collectives of each group of ranks.
        """
        uses = np.zeros((len(users), self.fabric.links), bool)
        for row, costs in zip(uses, users, strict=True):
            for cost in costs:
                row[cost.links] = True
        keys = np.vstack([self.fabric.tier, uses])
        kinds, parts = np.unique(keys, axis=1, return_inverse=True)
        self.parts = parts.reshape(-1).astype(np.int64)
        names = [tier.name for tier in self.machine.topology.tiers]
        self.part_names = tuple(f"{names[tier]} {part}" for part, tier in enumerate(kinds[0]))

    def cost(self, call: CollectiveCall, groups: tuple[tuple[int, ...], ...]) -> CollectiveCost:
        """What a collective costs that all of these groups of ranks do at once.

        Raises:
            CollectiveError: its algorithm cannot do it, or what is asked makes no sense.
            FabricError: chips that nothing joins.
        """
        key = (replace(call, group=0), groups)
        if key not in self._known:
            self._known[key] = self._reckon(call, groups)
        return self._known[key]

    def _reckon(self, call: CollectiveCall, groups: tuple[tuple[int, ...], ...]) -> CollectiveCost:
        endpoint = self.machine.endpoint()
        phases, exchanges = traffic_of(call, groups, self.chip_of)
        chips = {self.chip_of[rank] for ranks in groups for rank in ranks}
        speed = min(self.faults.slow_chips.get(chip, 1.0) for chip in chips)
        within_ps = round(sum(phase_ps(phase, endpoint) for phase in phases) / speed)
        requests = [self._request(exchange) for exchange in exchanges]
        outcomes = run_many(self.fabric, requests, endpoint, self.machine)
        between_ps = max((each.time_ps for each in outcomes), default=endpoint.start_ps)
        names = [WITHIN_CHIPS] * bool(phases) + [a for each in outcomes for a in each.algorithms]
        nbytes, busy_ps = self._over_links(outcomes)
        used = np.flatnonzero(nbytes)
        return CollectiveCost(
            within_ps + between_ps,
            ",".join(dict.fromkeys(names)),
            used,
            nbytes[used],
            busy_ps[used],
        )

    def _request(self, exchange: Exchange) -> Request:
        """By the algorithm that one of its groups would choose: several on the same chips are no larger collective."""
        group = make_group(self.fabric.topology, exchange.chips)
        algorithms, _ = choose(exchange.collective, exchange.group_bytes, group, self.machine)
        if self.machine.ways is not None:
            return self._as_astra_sim(self.machine.ways, exchange, algorithms)
        return Request(
            exchange.collective,
            max(1, exchange.nbytes),
            exchange.chips,
            algorithms,
            root=exchange.root,
            sent_bytes=exchange.sent_bytes,
            slow_chips=self.faults.slow_chips,
        )

    def _as_astra_sim(
        self, ways: AstraSimWays, exchange: Exchange, otherwise: tuple[str, ...]
    ) -> Request:
        """Groups of some ranks are rings of one dimension there, in the order of their ranks, where the network has several.

        What is cut into k chunks is cut into pieces of a k-th, rounded down; what is left over is one more piece of that size.
        """
        algorithms = ways.algorithms.get(exchange.collective, otherwise)
        if len(algorithms) > 1 and len(exchange.chips) < self.fabric.chips:
            algorithms = (RING,)
        if exchange.collective in (PERMUTE, SEND_RECV):
            ways = replace(ways, chunks=1)
        shards = len(exchange.chips) if exchange.collective == ALL_GATHER else 1
        nbytes = max(1, exchange.nbytes // shards)
        piece = max(1, nbytes // ways.chunks)
        chunks = -(-nbytes // piece)
        return Request(
            exchange.collective,
            chunks * piece * shards,
            exchange.chips,
            algorithms,
            chunks=chunks,
            forwarding=STORE_AND_FORWARD,
            root=exchange.root,
            slow_chips=self.faults.slow_chips,
            astra_sim=ways.ways,
        )

    def _over_links(self, outcomes: Sequence[Outcome]) -> tuple[I64, I64]:
        """int64[links] each: bytes, and how long they are busy, of all that run at once."""
        nothing = np.zeros(self.fabric.links, np.int64)
        nbytes = sum((each.link_bytes for each in outcomes), nothing)
        busy_ps = sum((each.link_busy_ps for each in outcomes), nothing)
        return nbytes, busy_ps


def phase_ps(phase: LocalPhase, endpoint: Endpoint) -> int:
    """How long ranks of one chip exchange.

    A rank posts its messages one after the other; then the bytes pass the chip's DMA engines once, and its HBM as they are read and written,
    or read, and added to what is there (``reduce_touches``): the slower of the two decides.
    """
    touches = 1 + (endpoint.reduce_touches if phase.is_reduced else 1)
    rates = ((1.0, endpoint.dma_bytes_per_s), (touches, endpoint.hbm_bytes_per_s))
    moving_s = max(phase.nbytes * times / rate if rate else 0.0 for times, rate in rates)
    posting_ps = phase.messages * endpoint.post_ps + endpoint.dma_start_ps + endpoint.dma_done_ps
    return posting_ps + round(moving_s * 1e12)
