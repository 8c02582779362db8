"""Which tracks does a program of many ranks have? One rank's own, replicas for the others, and links, which are nobody's.

A replica has no events: ``replica_of`` names the track whose events it repeats, and that one's ``replica_count`` how many it stands for,
itself included. With LNC 2 a rank's second core repeats its first; a rank has one stream for each group all the same.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.fabric.names import node_name
from trnprof.emulator.lowering.tasks import SERVERS
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.trace_tracks import (
    CHIP,
    CORE,
    DEVICE_CLOCK,
    FIRST_STREAM,
    HBM,
    HOST,
    TRACK_OF_SERVER,
    track_rows,
)

_FIRST_STREAM_ORDER: Final = len(SERVERS)

Row = dict[str, Any]


def rank_tracks(ranks: Ranks) -> dict[str, list[Any]]:
    """Rows of ``tracks`` but for links: the emulated rank, the streams of its collectives, the tiers of the fabric, and all replicas."""
    placement = ranks.placement
    chip, core = placement.chips[ranks.rank], placement.cores[ranks.rank]
    rows = track_rows(ranks.system, chip, core)
    rows += [_stream(ranks, group, rows[CORE]) for group in range(len(ranks.groups))]
    if ranks.has_host:
        rows.append(_host_thread(ranks, rows[CORE]))
    chips = len(set(placement.chips))
    for row in rows:
        if row["rank"] is not None:
            is_of_rank = row["kind"] in ("collective_stream", "counter", "thread")
            cores = 1 if is_of_rank else placement.lnc
            row |= {"rank": ranks.rank, "replica_count": ranks.count * cores}
        elif row["track_id"] in (CHIP, HBM):
            row["replica_count"] = chips
    if ranks.groups:
        rows += _fabric(ranks)
    rows += _replicas(ranks, {row["track_id"]: row for row in rows})
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def link_tracks(ranks: Ranks, links: I64) -> dict[str, Any]:
    """Rows of ``tracks`` for some links, which stand under their tier; at a switch there is no chip."""
    fabric = ranks.costs.fabric
    source, target = fabric.source[links], fabric.target[links]
    names = [
        f"{node_name(fabric, int(a))}>{node_name(fabric, int(b))}"
        for a, b in zip(source, target, strict=True)
    ]
    rows = len(links)
    return {
        "track_id": first_link(ranks) + links,
        "parent_id": _first_tier(ranks) + fabric.tier[links].astype(np.int64),
        "kind": ["link"] * rows,
        "name": names,
        "sort_order": links,
        "lane": [0] * rows,
        "exclusive": [True] * rows,
        "clock_id": [DEVICE_CLOCK] * rows,
        "host": ["host0"] * rows,
        "source_chip": [int(a) if a < fabric.chips else None for a in source],
        "target_chip": [int(b) if b < fabric.chips else None for b in target],
        "replica_count": [1] * rows,
        "peak_bytes_per_s": fabric.bytes_per_s[links],
    }


def _fabric_track(ranks: Ranks) -> int:
    return FIRST_STREAM + len(ranks.groups) + ranks.has_host


def _first_tier(ranks: Ranks) -> int:
    return _fabric_track(ranks) + 1


def first_link(ranks: Ranks) -> int:
    """Track of link 0."""
    return _first_tier(ranks) + len(ranks.system.topology.tiers)


def _first_replica(ranks: Ranks) -> int:
    return first_link(ranks) + (ranks.costs.fabric.links if ranks.groups else 0)


def _stream(ranks: Ranks, group: int, core: Row) -> Row:
    kind, name = "collective_stream", f"CC {ranks.groups[group].name}"
    return _lane(core, FIRST_STREAM + group, kind, name, _FIRST_STREAM_ORDER + group)


def _host_thread(ranks: Ranks, core: Row) -> Row:
    """Where the operations run of the host that feeds the core."""
    return _lane(core, FIRST_STREAM + len(ranks.groups), "thread", "host", -1)


def _lane(core: Row, track: int, kind: str, name: str, order: int) -> Row:
    return core | {
        "track_id": track,
        "parent_id": CORE,
        "kind": kind,
        "name": name,
        "sort_order": order,
        "exclusive": True,
        "peak_flops": None,
        "peak_bytes_per_s": None,
    }


def _fabric(ranks: Ranks) -> list[Row]:
    """Above all links, and above those of each tier."""
    top = _fabric_track(ranks)
    names = [tier.name for tier in ranks.system.topology.tiers]
    common = {
        "kind": "fabric",
        "lane": 0,
        "exclusive": False,
        "clock_id": DEVICE_CLOCK,
        "host": "host0",
        "replica_count": 1,
    }
    root = common | {"track_id": top, "parent_id": HOST, "name": "fabric", "sort_order": -1}
    tiers = [
        common | {"track_id": top + 1 + place, "parent_id": top, "name": name, "sort_order": place}
        for place, name in enumerate(names)
    ]
    return [root, *tiers]


def _replicas(ranks: Ranks, known: dict[int, Row]) -> list[Row]:
    """Tracks of all other cores of all ranks, under their chips."""
    placement = ranks.placement
    own_chip = placement.chips[ranks.rank]
    following = _first_replica(ranks)
    rows: list[Row] = []

    def repeat(track: int, **changed: Any) -> int:
        nonlocal following
        repeated = {"replica_of": track, "replica_count": 1} | changed
        rows.append(known[track] | repeated | {"track_id": following})
        following += 1
        return following - 1

    chip_tracks = {own_chip: CHIP}
    for chip in sorted(set(placement.chips) - {own_chip}):
        chip_tracks[chip] = repeat(CHIP, name=f"chip {chip}", chip=chip, sort_order=chip)
        repeat(HBM, chip=chip, parent_id=chip_tracks[chip])
    streams = [FIRST_STREAM + lane for lane in range(len(ranks.groups) + ranks.has_host)]
    for rank, chip in enumerate(placement.chips):
        for core in range(placement.cores[rank], placement.cores[rank] + placement.lnc):
            if rank == ranks.rank and core == placement.cores[rank]:
                continue
            place = {"rank": rank, "chip": chip, "core": core}
            parent = chip_tracks[chip]
            above = repeat(
                CORE, name=f"core {core}", sort_order=1 + core, parent_id=parent, **place
            )
            is_first = core == placement.cores[rank]
            for lane in (*TRACK_OF_SERVER.values(), *(streams if is_first else ())):
                repeat(lane, parent_id=above, **place)
    return rows
