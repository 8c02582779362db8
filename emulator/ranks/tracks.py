"""Which tracks does a program of many ranks have? Those of emulated ranks, replicas for the others, and links, which are nobody's.

A replica has no events: ``replica_of`` names the track whose events it repeats, and that one's ``replica_count`` how many it stands for,
itself included. With LNC 2 a rank's second core repeats its first; a rank has one stream for each group all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import I64, Fabric
from trnprof.emulator.fabric.names import node_name
from trnprof.emulator.lowering.tasks import SERVERS
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.trace_tracks import (
    CHIP,
    CORE,
    DEVICE_CLOCK,
    FIRST_STREAM,
    HBM,
    HBM_COUNTER,
    HOST,
    TRACK_OF_SERVER,
    track_rows,
)

_FIRST_STREAM_ORDER: Final = len(SERVERS)

Row = dict[str, Any]


@dataclass(frozen=True)
class TrackPlan:
    """The tracks of a program.

    Attributes:
        rows: of ``tracks``, but for links.
        of_servers: by class, uint32[servers of a core, streams, and host]; 0 where no event is drawn on one.
        counters: by class, the track of its HBM occupancy.
        first_tier: track of the first tier of links.
        first_link: track of link 0.
    """

    rows: dict[str, list[Any]]
    of_servers: tuple[NDArray[np.uint32], ...]
    counters: tuple[int, ...]
    first_tier: int
    first_link: int


def plan_tracks(classes: Sequence[Ranks]) -> TrackPlan:
    """The tracks of emulated ranks, the streams of their collectives, their hosts' threads, the tiers of the fabric, and all replicas.

    Args:
        classes: of ranks that are emulated; each of them has its tracks behind those of the class before.
    """
    bases = [0]
    for ranks in classes:
        # a class has all but the machine's host to itself
        bases.append(bases[-1] + FIRST_STREAM - CHIP + len(_lanes(ranks)))
    fabric_track = CHIP + bases[-1]
    has_links = any(ranks.groups for ranks in classes)
    tiers = [tier.name for tier in classes[0].system.topology.tiers]
    first_link = fabric_track + 1 + len(tiers)
    rows: list[Row] = []
    chips: dict[int, int] = {}
    for ranks, base in zip(classes, bases, strict=False):
        rows += _own_rows(ranks, base, chips)
    known = {row["track_id"]: row for row in rows}
    if has_links:
        rows += _fabric(fabric_track, tiers)
    following = first_link + (classes[0].costs.fabric.links if has_links else 0)
    rows += _replicas(classes, bases, chips, known, following)
    _count_replicas(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return TrackPlan(
        {name: [row.get(name) for row in rows] for name in names},
        tuple(_tracks_of(ranks, base) for ranks, base in zip(classes, bases, strict=False)),
        tuple(base + HBM_COUNTER for base in bases[:-1]),
        fabric_track + 1,
        first_link,
    )


def link_tracks(plan: TrackPlan, fabric: Fabric, links: I64) -> dict[str, Any]:
    """Rows of ``tracks`` for some links, which stand under their tier; at a switch there is no chip."""
    source, target = fabric.source[links], fabric.target[links]
    names = [
        f"{node_name(fabric, int(a))}>{node_name(fabric, int(b))}"
        for a, b in zip(source, target, strict=True)
    ]
    rows = len(links)
    return {
        "track_id": plan.first_link + links,
        "parent_id": plan.first_tier + fabric.tier[links].astype(np.int64),
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


def _tracks_of(ranks: Ranks, base: int) -> NDArray[np.uint32]:
    core = [base + TRACK_OF_SERVER[s] if s in TRACK_OF_SERVER else 0 for s in SERVERS]
    return np.array([*core, *(base + lane for lane in _lanes(ranks))], np.uint32)


def _lanes(ranks: Ranks) -> range:
    """Tracks of a rank, not of one core of it: the streams of its collectives, and its host."""
    return range(FIRST_STREAM, FIRST_STREAM + len(ranks.groups) + ranks.has_host)


def _own_rows(ranks: Ranks, base: int, chips: dict[int, int]) -> list[Row]:
    """Host (of the first class), chip (if no class before is on it), core, engines, queues, counter, streams and host thread of one class."""
    placement = ranks.placement
    chip, core = placement.chips[ranks.rank], placement.cores[ranks.rank]
    rows = track_rows(ranks.system, chip, core)
    rows[CORE]["name"] = ranks.core_name(core)
    rows += [_stream(ranks, group, rows[CORE]) for group in range(len(ranks.groups))]
    if ranks.has_host:
        rows.append(_host_thread(ranks, rows[CORE]))
    is_new = chip not in chips
    chips.setdefault(chip, base + CHIP)
    kept = []
    for row in rows:
        track, parent = row["track_id"], row["parent_id"]
        if (track == HOST and base) or (track in (CHIP, HBM) and not is_new):
            continue
        place = {"rank": ranks.rank} if row["rank"] is not None else {}
        if row["kind"] == "counter":
            place["replica_count"] = ranks.count
        above = chips[chip] if parent == CHIP else parent + base if parent else parent
        moved = {"track_id": track + base if track else track, "parent_id": above}
        kept.append(row | place | moved)
    return kept


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


def _fabric(top: int, tiers: Sequence[str]) -> list[Row]:
    """Above all links, and above those of each tier."""
    common = {
        "kind": "fabric",
        "lane": 0,
        "exclusive": False,
        "clock_id": DEVICE_CLOCK,
        "host": "host0",
        "replica_count": 1,
    }
    root = common | {"track_id": top, "parent_id": HOST, "name": "fabric", "sort_order": -1}
    below = [
        common | {"track_id": top + 1 + place, "parent_id": top, "name": name, "sort_order": place}
        for place, name in enumerate(tiers)
    ]
    return [root, *below]


def _replicas(
    classes: Sequence[Ranks],
    bases: Sequence[int],
    chips: dict[int, int],
    known: dict[int, Row],
    following: int,
) -> list[Row]:
    """Tracks of all other cores of all ranks, under their chips."""
    placement = classes[0].placement
    of_rank = {r: i for i, ranks in enumerate(classes) for r in ranks.members}
    rows: list[Row] = []

    def repeat(track: int, **changed: Any) -> int:
        nonlocal following
        repeated = {"replica_of": track, "replica_count": 1} | changed
        rows.append(known[track] | repeated | {"track_id": following})
        following += 1
        return following - 1

    chip_tracks = dict(chips)
    for chip in sorted(set(placement.chips) - set(chips)):
        # as its first rank's class has it
        like = chips[placement.chips[classes[of_rank[placement.chips.index(chip)]].rank]]
        chip_tracks[chip] = repeat(like, name=f"chip {chip}", chip=chip, sort_order=chip)
        repeat(like + HBM - CHIP, chip=chip, parent_id=chip_tracks[chip])
    for rank, chip in enumerate(placement.chips):
        ranks, base = classes[of_rank[rank]], bases[of_rank[rank]]
        for core in range(placement.cores[rank], placement.cores[rank] + placement.lnc):
            is_first = core == placement.cores[rank]
            if rank == ranks.rank and is_first:
                continue
            place = {"rank": rank, "chip": chip, "core": core}
            names = {"name": ranks.core_name(core), "sort_order": 1 + core}
            above = repeat(base + CORE, parent_id=chip_tracks[chip], **names, **place)
            for lane in (*TRACK_OF_SERVER.values(), *(_lanes(ranks) if is_first else ())):
                repeat(base + lane, parent_id=above, **place)
    return rows


def _count_replicas(rows: Sequence[Row]) -> None:
    """How many tracks each stands for; of counters there are no others, though they stand for as many ranks."""
    counts = Counter(row.get("replica_of") for row in rows)
    for row in rows:
        if row.get("replica_of") is None and row["kind"] != "counter":
            row["replica_count"] = 1 + counts[row["track_id"]]
