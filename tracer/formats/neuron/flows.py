"""Which instruction or transfer had to end before which other? The table Flow as edges between events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.ingest.stage import Stage

_KINDS: Final = (("anti", "buffer"), ("output", "buffer"), ("flow", "data"), ("data", "data"))
TABLES: Final = {
    "instruction": "instruction",
    "dma_block": "dma",
    "dma": "dma",
    "dmapacketaggregated": "dma",
    "dma_packet_aggregated": "dma",
}
"""Names of tables in edges (lower case), and what they mean here."""


class Rows:
    """Rows of the stage by the id that a table gives them."""

    def __init__(self, blocks: Sequence[tuple[int, NDArray[np.int64]]]) -> None:
        """Sort the ids.

        Args:
            blocks: (first row, ids) of consecutive rows; negative ids name nothing.
        """
        ids = np.concatenate([ids for _, ids in blocks]) if blocks else np.empty(0, np.int64)
        rows = (
            np.concatenate([first + np.arange(len(ids)) for first, ids in blocks])
            if blocks
            else np.empty(0, np.int64)
        )
        order = np.argsort(ids, kind="stable")
        self._ids, self._rows = ids[order], rows[order]
        self.repeated = int((np.diff(self._ids[self._ids >= 0]) == 0).sum())

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first row with each id, -1 for none."""
        if not len(self._ids):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where((self._ids[at] == ids) & (ids >= 0), self._rows[at], -1)


@dataclass
class FlowTally:
    """What became of edges: kept, without both ends in the trace, and turned (their two ends say the opposite of their order in time)."""

    kept: int = 0
    dangling: int = 0
    backward: int = 0
    unknown_tables: int = 0


def add_flows(frames: Iterable[pl.DataFrame], rows: Mapping[str, Rows], stage: Stage) -> FlowTally:
    """Append edges.

    The profile calls the ends ``in`` and ``out`` and documents no direction, so that the ends' times decide for all edges together:
    the end that nearly always ends before the other starts is the source.

    Args:
        frames: blocks of rows with the columns of Flow.
        rows: by ``instruction`` and ``dma``.
        stage: where they go.
    """
    tally = FlowTally()
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], pl.Series]] = []
    for frame in frames:
        ends = [_rows_of(frame, side, rows, tally) for side in ("in", "out")]
        is_known = (ends[0] >= 0) & (ends[1] >= 0) & (ends[0] != ends[1])
        tally.dangling += int((~is_known).sum())
        kinds = _kinds(frame).filter(pl.Series(is_known))
        lag = frame["gap_time"].fill_null(0).clip(0).to_numpy()[is_known]
        parts.append((ends[0][is_known], ends[1][is_known], lag, kinds))
    if not parts:
        return tally
    start, end = stage.times("start_ns"), stage.times("end_ns")
    source = np.concatenate([p[0] for p in parts])
    target = np.concatenate([p[1] for p in parts])
    forward = int((end[source] <= start[target]).sum())
    backward = int((end[target] <= start[source]).sum())
    if backward > forward:
        source, target = target, source
    tally.kept = len(source)
    tally.backward = min(forward, backward)
    lag = np.concatenate([p[2] for p in parts])
    kinds = pl.concat([p[3] for p in parts])
    for kind in ("data", "buffer", "semaphore"):
        chosen = (kinds == kind).to_numpy()
        if chosen.any():
            stage.add_flows(source[chosen], target[chosen], kind, lag[chosen])
    return tally


def _rows_of(
    frame: pl.DataFrame, side: str, rows: Mapping[str, Rows], tally: FlowTally
) -> NDArray[np.int64]:
    name = pl.col(f"{side}_table").str.to_lowercase().fill_null("instruction")
    tables = frame.select(
        name.replace_strict(TABLES, default="", return_dtype=pl.String)
    ).to_series()
    ids = frame[f"{side}_id"].fill_null(-1).to_numpy()
    found = np.full(frame.height, -1)
    for table, known in rows.items():
        mine = (tables == table).to_numpy()
        found[mine] = known.of(ids[mine])
    tally.unknown_tables += int((tables == "").sum())
    return found


def _kinds(frame: pl.DataFrame) -> pl.Series:
    said = pl.col("dependency_type").str.to_lowercase()
    kind = pl.lit(None, pl.String)
    for word, meant in reversed(_KINDS):
        kind = pl.when(said.str.contains(word)).then(pl.lit(meant)).otherwise(kind)
    return frame.select(kind.fill_null("semaphore").alias("kind")).to_series()
