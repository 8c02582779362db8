"""Which events has a piece, as arrays that compiled loops take, and in which order?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis import sweep_kernel as kernel
from trnprof.analysis.cells import Grid, Piece
from trnprof.analysis.metrics import IS_COLLECTIVE, IS_DMA, IS_MATMUL_ENGINE
from trnprof.analysis.operators import COPY, KERNEL
from trnprof.analysis.waits import NONE_AFTER, UNKNOWN
from trnprof.tracer.schema import WAIT_REASONS

REASONS: Final = (*WAIT_REASONS, UNKNOWN, NONE_AFTER)
_CODED: Final = ("category", "dtype", "source_memory", "target_memory", "wait_reason")


@dataclass(frozen=True)
class Facts:
    """What a sweep needs to know of operations and datatypes.

    Attributes:
        operators: int32[op ids], the operator of each operation; -1: none.
        phases: int8[op ids], ordinal in WORKING.
        operator_count: how many operators there are.
        flops_factors: BF16-equivalents of one FLOP, by datatype.
    """

    operators: NDArray[np.int32]
    phases: NDArray[np.int8]
    operator_count: int
    flops_factors: Mapping[str, float]


@dataclass(frozen=True)
class Events:
    """The events of a piece as arrays.

    Attributes:
        column: one array a column, int[n] or float[n], in order of rows: start_ns, end_ns, op, step, kind, unit, flag, flops, bytes, dtype, reason.
        kinds: by what an event can be on each lane: level, worker, is_dma, is_collective, is_matmul, lane, resource_number.
        factors: float64[dtypes], of ``dtype``.
        reasons: int8[codes], of ``reason``.
        names: of the events.
    """

    column: Mapping[str, NDArray[Any]]
    kinds: Mapping[str, NDArray[Any]]
    factors: NDArray[np.float64]
    reasons: NDArray[np.int8]
    names: pl.Series


def lanes_of(piece: Piece) -> pl.DataFrame:
    """The lanes of the piece in order of track: track_id, kind, resource, and the ordinals lane, unit, rank_unit, resource_number."""
    return (
        piece.grid.lanes.select("track_id", "kind", "resource")
        .join(numbered(piece.grid).rename({"number": "unit"}), on="track_id")
        .join(numbered(piece.ranks).rename({"number": "rank_unit"}), on="track_id")
        .join(resource_numbers(piece.grid), on=["track_id"])
        .sort("track_id")
        .with_row_index("lane")
    )


def events_of(piece: Piece, lanes: pl.DataFrame, facts: Facts) -> Events:
    """Read the events of a piece."""
    return _as_arrays(_read(piece, lanes), lanes, piece.grid, facts)


def _read(piece: Piece, lanes: pl.DataFrame) -> pl.DataFrame:
    """The finished events of the piece, categories as codes (0 is null's)."""
    start, length = pl.col("start_ns"), pl.col("duration_ns")
    on_lanes = pl.col("track_id").is_in(lanes["track_id"].implode())
    return (
        piece.events.filter(
            on_lanes
            & (length >= 0)
            & (start < piece.end_ns)
            & (start + length >= piece.start_ns)
            & (pl.col("category") != "marker")
        )
        .select(
            "track_id", "start_ns", "name", *_CODED,
            end_ns=start + length,
            op=pl.col("op_id").cast(pl.Int64).fill_null(-1),
            step=pl.col("step").cast(pl.Int32).fill_null(kernel.NO_STEP),
            is_transpose=pl.col("is_transpose").fill_null(False),
            flops=pl.col("flops").fill_null(0.0),
            bytes=pl.col("bytes").fill_null(0),
        )
        .collect(engine="streaming")
    )  # fmt: skip


def _as_arrays(read: pl.DataFrame, lanes: pl.DataFrame, grid: Grid, facts: Facts) -> Events:
    codes = {name: _Coded(read[name]) for name in _CODED}
    categories = codes["category"]
    tracks = lanes["track_id"].to_numpy()
    of_track = np.zeros(int(tracks.max()) + 1, np.int32)
    of_track[tracks] = np.arange(len(tracks))
    lane = of_track[read["track_id"].to_numpy()]
    flag = read["is_transpose"].to_numpy().astype(np.int8)
    for bit, name in ((2, "source_memory"), (4, "target_memory")):
        flag |= codes[name].values(lambda t: t == "hbm", np.int8)[codes[name].codes] * np.int8(bit)
    unknown = REASONS.index(UNKNOWN)
    numbers = {reason: number for number, reason in enumerate(REASONS)}
    column = {n: read[n].to_numpy() for n in ("start_ns", "end_ns", "op", "step", "flops", "bytes")}
    column |= {
        "kind": lane * np.int32(len(categories.texts)) + categories.codes,
        "unit": lanes["unit"].to_numpy()[lane],
        "flag": flag,
        "dtype": codes["dtype"].codes,
        "reason": codes["wait_reason"].codes,
    }
    kinds = {s.name: s.to_numpy() for s in _kinds(lanes, categories.texts, workers_of(grid))}
    factors = codes["dtype"].values(lambda t: facts.flops_factors.get((t or "").lower(), 1.0), np.float64)  # fmt: skip
    reasons = codes["wait_reason"].values(lambda t: numbers.get(t or "", unknown), np.int8)
    return Events(column, kinds, factors, reasons, read["name"])


class _Coded:
    """A column of few texts: ``codes`` are ordinals in ``texts``."""

    def __init__(self, column: pl.Series) -> None:
        distinct = column.unique()
        physical = distinct.to_physical().to_numpy(allow_copy=True)
        self.texts: list[str | None] = distinct.cast(pl.String).to_list()
        rows = column.to_physical()
        top = rows.max()
        table = np.zeros((int(top) if isinstance(top, int) else 0) + 2, np.int32)
        missing = len(table) - 1
        for ordinal, (code, text) in enumerate(zip(physical, self.texts, strict=True)):
            table[missing if text is None else int(code)] = ordinal
        self.codes: NDArray[np.int32] = table[rows.fill_null(missing).to_numpy()]

    def values(self, function: Callable[[str | None], Any], dtype: type) -> NDArray[Any]:
        """A value of each code, from its text."""
        found: NDArray[Any] = np.array([function(text) for text in self.texts], dtype)
        return found


def _kinds(
    lanes: pl.DataFrame, categories: Sequence[str | None], workers: Sequence[str]
) -> pl.DataFrame:
    """What an event of each category is on each lane, lane by lane: as ``Events.kinds`` has it."""
    category = pl.DataFrame({"category": categories}, schema={"category": pl.String})
    pairs = lanes.select("lane", "kind", "resource", "resource_number").join(
        category, how="cross", maintain_order="left_right"
    )
    moves = IS_DMA | (pl.col("category") == "sync")
    stream = pl.col("kind") == "stream"
    worker = (
        pl.when(pl.col("category") == "sync").then(pl.lit("Issue"))
        .when(IS_COLLECTIVE).then(pl.lit("Collective"))
        .when(IS_DMA).then(pl.when(stream).then(pl.lit(COPY)).otherwise(pl.lit("DMA")))
        .when(stream).then(pl.lit(KERNEL))
        .otherwise("resource")
    )  # fmt: skip
    small = pl.Int8
    return pairs.select(
        pl.col("lane", "resource_number").cast(pl.Int32),
        level=pl.when(IS_COLLECTIVE).then(1).when(moves).then(2).otherwise(0).cast(small),
        worker=worker.replace_strict(workers, range(len(workers)), return_dtype=small),
        is_dma=IS_DMA.fill_null(False).cast(small),
        is_collective=IS_COLLECTIVE.fill_null(False).cast(small),
        is_matmul=IS_MATMUL_ENGINE.cast(small),
    )


def numbered(grid: Grid) -> pl.DataFrame:
    """The ordinal of the unit of each track: track_id, number."""
    units = unit_ids(grid).with_row_index("number").with_columns(pl.col("number").cast(pl.Int32))
    return grid.lanes.select("track_id", "unit_id").join(units, on="unit_id").drop("unit_id")


def unit_ids(grid: Grid) -> pl.DataFrame:
    """The units in order: unit_id; where one stands is its ordinal."""
    return grid.lanes.select("unit_id").unique().sort("unit_id")


def resources_of(grid: Grid) -> pl.DataFrame:
    """The resources of each unit in order: unit_id, resource, resource_number."""
    number = pl.int_range(pl.len(), dtype=pl.Int32).over("unit_id")
    return (
        grid.lanes.select("unit_id", "resource").unique().sort("unit_id", "resource").with_columns(resource_number=number)
    )  # fmt: skip


def resource_numbers(grid: Grid) -> pl.DataFrame:
    """The ordinal of the resource of each track within its unit: track_id, resource_number."""
    lanes = grid.lanes.select("track_id", "unit_id", "resource")
    joined = lanes.join(resources_of(grid), on=["unit_id", "resource"])
    return joined.select("track_id", "resource_number")


def workers_of(grid: Grid) -> list[str]:
    """What operators can keep busy, as ``operators`` names it."""
    own = grid.lanes["resource"].unique().sort().to_list()
    return list(dict.fromkeys(["Issue", "Collective", COPY, "DMA", KERNEL, *own]))


@dataclass(frozen=True)
class Order:
    """Rows by unit, start and end, and where those of each unit begin."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


def order_of(units: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Order:
    """One integer key where unit and time fit into it: rows lie in runs, which a stable sort of integers merges."""
    if not len(units):
        return Order(np.empty(0, np.int64), np.zeros(1, np.int64))
    first, top = int(starts.min()), int(units.max())
    bits = (int(starts.max()) - first).bit_length()
    rows = None
    if bits + top.bit_length() < 63:
        key = (units.astype(np.int64) << bits) | (starts - first)
        rows = np.argsort(key, kind="stable")
        in_order, until = key[rows], ends[rows]
        if ((in_order[1:] == in_order[:-1]) & (until[1:] < until[:-1])).any():
            rows = None
    if rows is None:
        rows = np.lexsort((ends, starts, units))
    return Order(rows, np.searchsorted(units[rows], np.arange(top + 2)).astype(np.int64))


def events_by_unit(order: Order, units: int) -> NDArray[np.int64]:
    """int64[units + 1]: where the rows of each unit begin; the last ones may have none."""
    missing = units + 1 - len(order.offsets)
    return np.append(order.offsets, np.full(max(0, missing), len(order.rows), np.int64))


def cell_arrays(grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the cells of each unit begin, their starts and their ends."""
    ids = unit_ids(grid)["unit_id"].to_numpy()
    units = grid.cells["unit_id"].to_numpy()
    offsets = np.append(np.searchsorted(units, ids), len(units)).astype(np.int64)
    return offsets, *(
        np.ascontiguousarray(grid.cells[n].to_numpy()) for n in ("start_ns", "end_ns")
    )  # type: ignore[return-value]


def own_operators(
    ops: NDArray[np.int64], event_names: pl.Series, facts: Facts
) -> tuple[NDArray[np.int32], list[str]]:
    """The operator of each event whose operation has none, from ``operator_count`` on, one a name; empty if there are no such events."""
    known = (ops >= 0) & (ops < len(facts.operators))
    if len(facts.operators):
        known &= facts.operators[np.where(known, ops, 0)] >= 0
    without = np.flatnonzero(~known)
    if not len(without):
        return np.empty(0, np.int32), []
    names = event_names.gather(without).cast(pl.Categorical)
    codes = names.to_physical()
    distinct = codes.unique().sort()
    own = np.zeros(len(ops), np.int32)
    own[without] = facts.operator_count + np.searchsorted(distinct.to_numpy(), codes.to_numpy())
    texts = pl.DataFrame({"code": codes, "name": names}).unique("code").sort("code")["name"]
    return own, texts.cast(pl.String).to_list()
