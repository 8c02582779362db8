"""Which tracks does a collective have: links under the fabric; streams, CC-cores, DMA engines and HBM under their chips?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.emulator.collectives import servers as kinds
from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.collectives.trace.kernel import DMA, HBM, LINK, POST
from trnprof.emulator.fabric.fabric import I64, Fabric
from trnprof.emulator.fabric.names import node_name

DEVICE_CLOCK: Final = 0
ALL_LINKS: Final = 16_384
"""Of a fabric with more links, only those have a track that carry something."""
_HOST, _FABRIC, _FIRST_TIER = range(3)


@dataclass(frozen=True)
class Numbers:
    """The ids of tracks: servers have their own, all else comes after them.

    Attributes:
        servers: of the run.
        tiers: of the fabric.
    """

    servers: Servers
    tiers: int

    @property
    def host(self) -> int:
        """The root."""
        return len(self.servers) + _HOST

    @property
    def fabric(self) -> int:
        """Above all links."""
        return len(self.servers) + _FABRIC

    @property
    def first_tier(self) -> int:
        """Above the links of the first tier."""
        return len(self.servers) + _FIRST_TIER

    @property
    def first_chip(self) -> int:
        """Chip 0."""
        return self.first_tier + self.tiers

    def first_stream(self, part: int) -> int:
        """Stream on chip 0 of one of the collectives in flight."""
        return self.first_chip + (1 + part) * self.servers.chips


def server_kinds(servers: Servers) -> NDArray[np.int8]:
    """int8[servers], LINK, POST, DMA or HBM."""
    codes = {kinds.LINK: LINK, kinds.DMA: DMA, kinds.HBM: HBM, kinds.POST: POST}
    numbers = servers.numbers()
    counts = [len(each) for each in numbers.values()]
    return np.repeat(np.array([codes[kind] for kind in numbers], np.int8), counts)


def track_columns(
    outcomes: Sequence[Outcome], numbers: Numbers, endpoint: Endpoint, is_used: NDArray[np.bool_]
) -> dict[str, Any]:
    """Columns of ``tracks``.

    Args:
        outcomes: of all collectives in flight at once.
        numbers: of their tracks.
        endpoint: rates of the chips' servers.
        is_used: bool[servers], those with events.
    """
    fabric = outcomes[0].fabric
    servers = numbers.servers
    links = np.arange(fabric.links)
    if fabric.links > ALL_LINKS:
        links = np.flatnonzero(is_used[: fabric.links])
    parts = [
        _structure(fabric, numbers, outcomes, is_used),
        _link_tracks(fabric, numbers, links),
        _chip_tracks(
            numbers, is_used, servers.first_dma, "DMA", "dma_queue", 90, endpoint.dma_bytes_per_s
        ),
        _chip_tracks(
            numbers, is_used, servers.first_hbm, "HBM", "hbm", 91, endpoint.hbm_bytes_per_s
        ),
    ]
    for part, outcome in enumerate(outcomes):
        chips = np.array(outcome.request.ranks, np.int64)
        ids = numbers.first_stream(part) + chips
        parts.append(
            _rows(
                ids,
                "collective_stream",
                f"CC stream {part}",
                2 * part,
                numbers.first_chip + chips,
                chip=chips,
                rank=chips,
            )
        )
        first = servers.first_post(part)
        parts.append(
            _chip_tracks(
                numbers, is_used, first, f"CC-core {part}", "collective_stream", 2 * part + 1, 0.0
            )
        )
    frame = pl.concat(parts, how="diagonal_relaxed")
    if (replicas := outcomes[0].request.replicas) > 1:
        stands_for_all = ~pl.col("kind").is_in(["host", "fabric"])
        frame = frame.with_columns(
            replica_count=pl.when(stands_for_all).then(replicas).otherwise(1).cast(pl.Int32)
        )
    return {name: frame[name] for name in frame.columns}


def _structure(
    fabric: Fabric, numbers: Numbers, outcomes: Sequence[Outcome], is_used: NDArray[np.bool_]
) -> pl.DataFrame:
    """Host, fabric, tiers, and the chips that take part."""
    busy = np.flatnonzero(is_used[fabric.links :]) % fabric.chips
    ranks = [rank for outcome in outcomes for rank in outcome.request.ranks]
    chips = np.unique(np.concatenate([busy, np.array(ranks, np.int64)]))
    tiers = np.arange(numbers.tiers)
    return pl.concat(
        [
            _rows(np.array([numbers.host]), "host", "host0", 0, None),
            _rows(np.array([numbers.fabric]), "fabric", "fabric", -1, np.array([numbers.host])),
            _rows(
                numbers.first_tier + tiers,
                "fabric",
                [t.name for t in fabric.topology.tiers],
                tiers,
                np.full(len(tiers), numbers.fabric),
            ),
            _rows(
                numbers.first_chip + chips,
                "chip",
                [f"chip {chip}" for chip in chips],
                chips,
                np.full(len(chips), numbers.host),
                chip=chips,
            ),
        ],
        how="diagonal_relaxed",
    )


def _link_tracks(fabric: Fabric, numbers: Numbers, links: I64) -> pl.DataFrame:
    """Links between chips have both as their ends; at a switch there is no chip."""
    nodes = pl.Series([node_name(fabric, node) for node in range(fabric.nodes)])
    source, target = fabric.source[links], fabric.target[links]
    frame = _rows(
        links,
        "link",
        nodes.gather(source) + ">" + nodes.gather(target),
        links,
        numbers.first_tier + fabric.tier[links].astype(np.int64),
        peak=fabric.bytes_per_s[links],
    )
    ends = pl.DataFrame({"source_chip": source, "target_chip": target})
    return frame.hstack(ends.with_columns(pl.when(pl.all() < fabric.chips).then(pl.all())))


def _chip_tracks(
    numbers: Numbers,
    is_used: NDArray[np.bool_],
    first: int,
    name: str,
    kind: str,
    order: int,
    bytes_per_s: float,
) -> pl.DataFrame:
    """A server that each chip has one of, where it is used."""
    chips = np.flatnonzero(is_used[first : first + numbers.servers.chips])
    peak = np.full(len(chips), bytes_per_s) if bytes_per_s else None
    return _rows(
        first + chips,
        kind,
        name,
        order,
        numbers.first_chip + chips,
        chip=chips,
        rank=chips,
        peak=peak,
    )


def _rows(
    ids: NDArray[Any],
    kind: str,
    name: str | Sequence[str] | pl.Series,
    order: int | NDArray[Any],
    parent: NDArray[Any] | None,
    *,
    chip: NDArray[Any] | None = None,
    rank: NDArray[Any] | None = None,
    peak: NDArray[Any] | None = None,
) -> pl.DataFrame:
    rows = len(ids)
    fixed = {
        "kind": pl.lit(kind),
        "lane": pl.lit(0, pl.Int32),
        "exclusive": pl.lit(kind in ("link", "dma_queue", "hbm", "collective_stream")),
        "clock_id": pl.lit(DEVICE_CLOCK, pl.Int32),
        "host": pl.lit("host0"),
        "replica_count": pl.lit(1, pl.Int32),
    }
    named = [name] * rows if isinstance(name, str) else name
    given = {
        "track_id": pl.Series(ids, dtype=pl.UInt32),
        "name": pl.Series(named, dtype=pl.String),
        "sort_order": pl.Series(np.broadcast_to(order, rows).copy(), dtype=pl.Int32),
    }
    for key, values, dtype in (
        ("parent_id", parent, pl.UInt32),
        ("chip", chip, pl.Int32),
        ("rank", rank, pl.Int32),
        ("peak_bytes_per_s", peak, pl.Float64),
    ):
        empty = pl.Series([None] * rows, dtype=dtype)
        given[key] = empty if values is None else pl.Series(values, dtype=dtype)
    return pl.DataFrame(given).with_columns(**fixed)
