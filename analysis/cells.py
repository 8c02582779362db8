"""Into which pieces of time is a trace cut so that sums over them add up? Cells, and pieces of the trace that one worker adds up.

A *cell* is a piece of a unit's time that no step begins or ends in: sums over cells add up to any window. A *piece* is some units over some
cells in a row: few enough events to be in memory at once. Units are cut where one of their steps begins, so that a gap never needs the
event that ends it from the next piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from trnprof.tracer.reader import Trace

EARLIEST, LATEST = -(2**61), 2**61
PIECE_EVENTS: Final = 2_000_000
"""About so many events are in memory at once, for each worker: some 0.7 GB."""


@dataclass(frozen=True)
class Grid:
    """Units of time and their cells.

    Attributes:
        lanes: track_id, unit_id and others: what lies on which unit.
        cells: cell (ordinal), unit_id, start_ns, end_ns: of every unit from EARLIEST to LATEST without holes, sorted by unit and start.
        windows: cell, window: which cells make up each window.
        steps: unit_id, start_ns, end_ns, of windows that are steps, sorted.
    """

    lanes: pl.DataFrame
    cells: pl.DataFrame
    windows: pl.DataFrame
    steps: pl.DataFrame


def grid_of(lanes: pl.DataFrame, windows: pl.DataFrame) -> Grid:
    """Cut the time of every unit at all bounds of its windows.

    Args:
        lanes: track_id, unit_id, any others.
        windows: window, unit_id, step (null: not a step), window_start_ns, window_end_ns.
    """
    start, end = "window_start_ns", "window_end_ns"
    units = lanes.select("unit_id").unique()
    bounds = pl.concat(
        [
            windows.select("unit_id", start_ns=start),
            windows.select("unit_id", start_ns=end),
            units.select("unit_id", start_ns=pl.lit(EARLIEST, pl.Int64)),
        ]
    )
    cells = (
        bounds.join(units, on="unit_id", how="semi")
        .unique()
        .sort("unit_id", "start_ns")
        .with_columns(end_ns=pl.col("start_ns").shift(-1).over("unit_id").fill_null(LATEST))
        .with_row_index("cell")
        .with_columns(pl.col("cell").cast(pl.Int64))
    )
    at = cells.select("unit_id", "cell", "start_ns")
    members = (
        windows.filter(pl.col(end) > pl.col(start))
        .select("window", "unit_id", start, end)
        .join(
            at.rename({"cell": "_from"}),
            left_on=["unit_id", start],
            right_on=["unit_id", "start_ns"],
        )
        .join(
            at.rename({"cell": "_to"}), left_on=["unit_id", end], right_on=["unit_id", "start_ns"]
        )
        .select("window", cell=pl.int_ranges("_from", "_to"))
        .explode("cell", empty_as_null=False)
    )
    steps = windows.filter(pl.col("step").is_not_null())
    in_order = steps.select("unit_id", start_ns=start, end_ns=end).sort(pl.all())
    return Grid(lanes, cells, members, in_order)


@dataclass(frozen=True)
class Piece:
    """What one worker reads and adds up.

    Attributes:
        events: rows of the table ``events`` that hold those of the piece, and others.
        grid: the units of the piece (cores) and their cells.
        ranks: the ranks and their cells, for what is asked of all of a rank together.
        start_ns, end_ns: no event of the piece lies outside.
    """

    events: pl.LazyFrame
    grid: Grid
    ranks: Grid
    start_ns: int
    end_ns: int


def pieces_of(
    trace: Trace, grid: Grid, ranks: Grid, events_of: dict[int, int], most: int = PIECE_EVENTS
) -> Iterator[Piece]:
    """Cut a trace.

    Args:
        trace: to be read.
        grid: of all cores.
        ranks: of all ranks, with the same tracks.
        events_of: how many events lie on each track.
        most: about how many events a piece has; more where one unit has them between two of its steps.
    """
    steps = grid.steps.group_by("unit_id").len()["len"].max()
    rows = int(steps) if isinstance(steps, int) else 1
    for tracks in _groups(grid, ranks, events_of, most * rows):
        total = sum(events_of.get(track, 0) for track in tracks)
        count = min(rows, max(1, -(-total // most)))
        own = _of_tracks(grid, tracks), _of_tracks(ranks, tracks)
        for number in range(count):
            cores, of_ranks = (_slice(g, number, count) for g in own)
            cells = pl.concat([cores.cells, of_ranks.cells])
            if cells.height:
                start, end = (int(cells["start_ns"].min()), int(cells["end_ns"].max()))  # type: ignore[arg-type]
                yield Piece(events_between(trace, start, end), cores, of_ranks, start, end)


def events_between(trace: Trace, start_ns: int, end_ns: int) -> pl.LazyFrame:
    """The events of the files that have some between two times, and others of these files."""
    shards = [s for s in trace.shards if s.table == "events"]
    near = [
        s.frame
        for s in shards
        if s.entry is None
        or s.entry.get("start_ns") is None
        or (s.entry["start_ns"] < end_ns and s.entry["end_ns"] >= start_ns)
    ]
    if not shards:
        return trace.events
    return pl.concat(near) if near else shards[0].frame.clear()


def _groups(
    grid: Grid, ranks: Grid, events_of: dict[int, int], most: int
) -> Iterator[list[int]]:  # fmt: skip
    """Tracks of whole ranks, so many that they have about ``most`` events."""
    both = grid.lanes.select("track_id", "unit_id").join(
        ranks.lanes.select("track_id", rank_unit="unit_id"), on="track_id"
    )
    shared = both.group_by("unit_id").agg(pl.col("rank_unit").n_unique())["rank_unit"].max()
    if sum(events_of.values()) <= most or shared != 1:
        yield grid.lanes["track_id"].to_list()
        return
    group: list[int] = []
    count = 0
    for _, tracks in both.group_by("rank_unit", maintain_order=True).agg("track_id").iter_rows():
        size = sum(events_of.get(track, 0) for track in tracks)
        if group and count + size > most:
            yield group
            group, count = [], 0
        group += tracks
        count += size
    yield group


def _of_tracks(grid: Grid, tracks: list[int]) -> Grid:
    lanes = grid.lanes.filter(pl.col("track_id").is_in(tracks))
    own = pl.col("unit_id").is_in(lanes["unit_id"].unique().implode())
    return Grid(lanes, grid.cells.filter(own), grid.windows.clear(), grid.steps.filter(own))


def _slice(grid: Grid, number: int, count: int) -> Grid:
    """The cells of one of ``count`` parts, each with about as many steps of every unit."""
    if count == 1:
        return grid
    starts = grid.steps.group_by("unit_id").agg(pl.col("start_ns").sort())
    at = pl.col("start_ns").list
    bounds = starts.select(
        "unit_id",
        _first=pl.lit(EARLIEST, pl.Int64) if number == 0 else at.get(at.len() * number // count),
        _last=pl.lit(LATEST, pl.Int64) if number + 1 == count else at.get(at.len() * (number + 1) // count),
    )  # fmt: skip
    whole = [pl.col("_first").fill_null(LATEST if number else EARLIEST), pl.col("_last").fill_null(LATEST)]  # fmt: skip
    inside = (pl.col("start_ns") >= pl.col("_first")) & (pl.col("start_ns") < pl.col("_last"))

    def cut(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(bounds, on="unit_id", how="left", maintain_order="left").with_columns(whole).filter(inside).drop("_first", "_last")  # fmt: skip

    cells = cut(grid.cells)
    lanes = grid.lanes.filter(pl.col("unit_id").is_in(cells["unit_id"].unique().implode()))
    return Grid(lanes, cells, grid.windows, cut(grid.steps))
