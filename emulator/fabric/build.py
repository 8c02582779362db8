"""Which directed links does a topology have, from where to where, how fast?

The links of a tier are numbered in a row, chip by chip:

* ring: from each chip to the next, then to the one before; a ring of 2 has one link each way;
* mesh: from each chip to every other of its group, in the order of their places;
* switch: from each chip to its switch, then from the switch to each chip, then the trunks, from each switch to every other of its group.
"""

from __future__ import annotations

import numpy as np

from trnprof.emulator.csr import offsets_of
from trnprof.emulator.fabric.fabric import F64, I64, Fabric
from trnprof.emulator.fabric.layout import TierLayout, first_switches, lay_out
from trnprof.emulator.fabric.topology import MESH, RING, Tier, Topology
from trnprof.emulator.fabric.topology_check import check_topology

Ends = tuple[I64, I64]
"""int64[links] each: nodes that links come from, nodes that they go to."""


def build_fabric(topology: Topology) -> Fabric:
    """All links of a topology, sound ones.

    Raises:
        FabricError: the topology makes no sense or is too large.
    """
    check_topology(topology)
    switches = first_switches(topology)
    ends, rates, latencies = [], [], []
    for tier, first_switch in zip(topology.tiers, switches[:-1], strict=True):
        layout = lay_out(topology, tier)
        ends.append(_ends(topology, tier, layout, first_switch))
        rates.append(_rates(tier, layout, topology.chips, len(ends[-1][0])))
        ends_at_switch = ends[-1][1] >= topology.chips
        latencies.append(round(tier.link_ns * 1000) + round(tier.switch_ns * 1000) * ends_at_switch)
    counts = [len(source) for source, _ in ends]
    links = sum(counts)
    empty = np.empty(0, np.int64)
    return Fabric(
        topology=topology,
        nodes=switches[-1],
        source=np.concatenate([empty, *(source for source, _ in ends)]).astype(np.int32),
        target=np.concatenate([empty, *(target for _, target in ends)]).astype(np.int32),
        bytes_per_s=np.concatenate([np.empty(0), *rates]),
        latency_ps=np.concatenate([empty, *latencies]).astype(np.int64),
        tier=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        first_link=offsets_of(np.array(counts, np.int64)),
        is_failed=np.zeros(links, np.bool_),
    )


def _ends(topology: Topology, tier: Tier, layout: TierLayout, first_switch: int) -> Ends:
    chips = np.arange(topology.chips, dtype=np.int64)
    if layout.size == 1:
        return chips[:0], chips[:0]
    if tier.kind == RING:
        steps = (1, -1) if layout.size > 2 else (1,)
        return _to_places(
            chips, layout, np.stack([(layout.place + s) % layout.size for s in steps], axis=1)
        )
    if tier.kind == MESH:
        others = np.arange(layout.size - 1, dtype=np.int64)
        return _to_places(chips, layout, others + (others >= layout.place[:, None]))
    at = first_switch + layout.switch
    trunks = _trunks(layout, first_switch)
    return np.concatenate([chips, at, trunks[0]]), np.concatenate([at, chips, trunks[1]])


def _to_places(chips: I64, layout: TierLayout, places: I64) -> Ends:
    """Links from each chip to the chips at some places (a row a chip) of its group."""
    first = chips - layout.offset
    target = first[:, None] + layout.offset_of_place[places]
    return np.repeat(chips, places.shape[1]), target.ravel()


def _trunks(layout: TierLayout, first_switch: int) -> Ends:
    switches = np.arange(layout.switches, dtype=np.int64)
    own = switches % layout.leaves
    others = np.arange(layout.leaves - 1, dtype=np.int64)
    leaf = others + (others >= own[:, None])
    target = (switches - own)[:, None] + leaf
    return first_switch + np.repeat(switches, layout.leaves - 1), first_switch + target.ravel()


def _rates(tier: Tier, layout: TierLayout, chips: int, links: int) -> F64:
    rates = np.full(links, float(tier.link_bytes_per_s))
    if layout.leaves > 1:
        rates[2 * chips :] = tier.trunk_bytes_per_s
    return rates
