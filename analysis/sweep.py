"""What do the events of a piece of a trace add up to? The sums and unions of the first screen, by cell: the map step of a report.

``sweep`` reads a piece and walks through it once (``sweep_kernel``). Its frames are small, and those of all pieces, one below the other, are
what ``screen`` makes the report's figures of.
"""

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
COUNTERS: Final = (
    "hardware_flops", "transpose_flops", "adjusted_hardware_flops", "adjusted_transpose_flops", "hbm_read_bytes",
    "hbm_write_bytes", "dma_transfer_count", "dma_transfer_total_bytes", "dma_transfer_ns", "cc_op_count", "cc_op_ns",
)  # fmt: skip
COVERED: Final = (
    "compute_ns", "with_collectives_ns", "active_ns", "dma_active_ns", "cc_op_active_ns",
    *(f"phase_{number}_ns" for number in range(kernel.PHASE_LEVELS)),
)  # fmt: skip
OPERATOR_SUMS: Final = ("event_count", "adjusted_flops", "hbm_bytes", "dma_bytes", "dma_count", "time_ns", "length_ns")  # fmt: skip
_CODED: Final = ("category", "dtype", "source_memory", "target_memory", "wait_reason")
LEVELS: Final = ("compute", "collective", "move")


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


def sweep(piece: Piece, facts: Facts) -> dict[str, pl.DataFrame]:
    """Add up a piece.

    Returns:
        cells: cell, COUNTERS, COVERED, host_ns (where nothing runs and an engine waits for the host), length_ns (summed).
        resources: cell, resource, instruction_count, instruction_ns, active_ns.
        idle: cell, resource, reason, idle_ns.
        operators: cell, operator (null: events without operation), own_name (theirs), OPERATOR_SUMS.
        busy: cell, operator, own_name, worker, busy_ns.
        executions: cell, op_id, step.
        ranks: cell (of the grid of ranks), compute_ns, with_collectives_ns, active_ns, communication_ns, and LEVELS: how many events start.
        counts: unit_id (of ranks), step, label (compute, collective, move), events.
    """
    lanes = _lanes(piece)
    events = _events(_read(piece, lanes), lanes, piece.grid, facts)
    in_order = _order(events.column["unit"], events.column["start_ns"], events.column["end_ns"])
    found = _of_units(piece.grid, events, in_order, facts)
    same = lanes["unit"].equals(lanes["rank_unit"]) and piece.grid.cells["start_ns"].equals(
        piece.ranks.cells["start_ns"]
    )
    if not same:
        rank_units = lanes["rank_unit"].to_numpy()[events.kinds["lane"]][events.column["kind"]]
        in_order = _order(rank_units, events.column["start_ns"], events.column["end_ns"])
    return found | _of_ranks(piece.ranks, lanes, events, in_order)


@dataclass(frozen=True)
class _Events:
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


def _lanes(piece: Piece) -> pl.DataFrame:
    """The lanes of the piece in order of track: track_id, kind, resource, and the ordinals lane, unit, rank_unit, resource_number."""
    return (
        piece.grid.lanes.select("track_id", "kind", "resource")
        .join(_numbered(piece.grid).rename({"number": "unit"}), on="track_id")
        .join(_numbered(piece.ranks).rename({"number": "rank_unit"}), on="track_id")
        .join(_resource_numbers(piece.grid), on=["track_id"])
        .sort("track_id")
        .with_row_index("lane")
    )


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


def _events(read: pl.DataFrame, lanes: pl.DataFrame, grid: Grid, facts: Facts) -> _Events:
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
    kinds = {s.name: s.to_numpy() for s in _kinds(lanes, categories.texts, _workers(grid))}
    factors = codes["dtype"].values(lambda t: facts.flops_factors.get((t or "").lower(), 1.0), np.float64)  # fmt: skip
    reasons = codes["wait_reason"].values(lambda t: numbers.get(t or "", unknown), np.int8)
    return _Events(column, kinds, factors, reasons, read["name"])


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
    """What an event of each category is on each lane, lane by lane: as ``_Events.kinds`` has it."""
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


def _numbered(grid: Grid) -> pl.DataFrame:
    """The ordinal of the unit of each track: track_id, number."""
    units = _unit_ids(grid).with_row_index("number").with_columns(pl.col("number").cast(pl.Int32))
    return grid.lanes.select("track_id", "unit_id").join(units, on="unit_id").drop("unit_id")


def _unit_ids(grid: Grid) -> pl.DataFrame:
    return grid.lanes.select("unit_id").unique().sort("unit_id")


def _resources(grid: Grid) -> pl.DataFrame:
    """The resources of each unit in order: unit_id, resource, resource_number."""
    number = pl.int_range(pl.len(), dtype=pl.Int32).over("unit_id")
    return (
        grid.lanes.select("unit_id", "resource").unique().sort("unit_id", "resource").with_columns(resource_number=number)
    )  # fmt: skip


def _resource_numbers(grid: Grid) -> pl.DataFrame:
    lanes = grid.lanes.select("track_id", "unit_id", "resource")
    joined = lanes.join(_resources(grid), on=["unit_id", "resource"])
    return joined.select("track_id", "resource_number")


def _workers(grid: Grid) -> list[str]:
    own = grid.lanes["resource"].unique().sort().to_list()
    return list(dict.fromkeys(["Issue", "Collective", COPY, "DMA", KERNEL, *own]))


@dataclass(frozen=True)
class _Order:
    """Rows by unit, start and end, and where those of each unit begin."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


def _order(units: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> _Order:
    """One integer key where unit and time fit into it: rows lie in runs, which a stable sort of integers merges."""
    if not len(units):
        return _Order(np.empty(0, np.int64), np.zeros(1, np.int64))
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
    return _Order(rows, np.searchsorted(units[rows], np.arange(top + 2)).astype(np.int64))


def _unit_events(order: _Order, units: int) -> NDArray[np.int64]:
    """int64[units + 1]: where the rows of each unit begin; the last ones may have none."""
    missing = units + 1 - len(order.offsets)
    return np.append(order.offsets, np.full(max(0, missing), len(order.rows), np.int64))


def _cell_arrays(grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the cells of each unit begin, their starts and their ends."""
    ids = _unit_ids(grid)["unit_id"].to_numpy()
    units = grid.cells["unit_id"].to_numpy()
    offsets = np.append(np.searchsorted(units, ids), len(units)).astype(np.int64)
    return offsets, *(
        np.ascontiguousarray(grid.cells[n].to_numpy()) for n in ("start_ns", "end_ns")
    )  # type: ignore[return-value]


def _of_units(grid: Grid, events: _Events, order: _Order, facts: Facts) -> dict[str, pl.DataFrame]:
    column, kinds = events.column, events.kinds
    ids = _unit_ids(grid)
    unit_events = _unit_events(order, ids.height)
    unit_cells, cell_starts, cell_ends = _cell_arrays(grid)
    own, own_names = _own_operators(column["op"], events.names, facts)
    resources = _resources(grid)
    resource_count = int(resources["resource_number"].max()) + 1  # type: ignore[arg-type]
    workers = _workers(grid)
    op_count = int(column["op"].max()) + 1 if len(order.rows) else 0
    counters, by_resource, covered, keys, busy, sums, runs, summed = kernel.unit_sums(
        order.rows, column["start_ns"], column["end_ns"], column["kind"], column["flag"], column["flops"], column["bytes"],
        column["dtype"], column["op"], own, column["step"], kinds["level"], kinds["worker"], kinds["resource_number"],
        kinds["is_dma"], kinds["is_collective"], kinds["is_matmul"], events.factors, facts.operators, facts.phases,
        unit_events, unit_cells, cell_starts, cell_ends,
        resource_count, facts.operator_count + len(own_names), len(workers), op_count,
    )  # fmt: skip
    idle, host_gaps = _idle(grid, ids, order.rows, events, unit_events, resource_count)
    cell = grid.cells["cell"].to_numpy()
    host_ns = _host_ns(events, host_gaps, ids.height, (unit_cells, cell_starts, cell_ends))
    cells = pl.DataFrame(
        {"cell": cell}
        | {n: counters[:, i] for i, n in enumerate(COUNTERS)}
        | {n: covered[:, i] for i, n in enumerate(COVERED)}
        | {"host_ns": host_ns, "length_ns": summed}
    )
    placing = (grid.cells["unit_id"].to_numpy(), resources)
    return {
        "cells": cells,
        "resources": _of_resources(cell, by_resource, placing),
        "idle": _of_idle(cell, idle, placing),
        **_of_operators(cell, keys, sums, busy, workers, facts.operator_count, own_names),
        "executions": _executions(cell, runs),
    }


def _own_operators(
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


def _idle(
    grid: Grid,
    ids: pl.DataFrame,
    rows: NDArray[np.int64],
    events: _Events,
    unit_events: NDArray[np.int64],
    resource_count: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    steps = grid.steps.join(ids.with_row_index("number"), on="unit_id").sort("number", "start_ns", "end_ns")  # fmt: skip
    numbers = _numbered(grid).join(_resource_numbers(grid), on="track_id")
    lanes = grid.lanes.select("track_id").join(numbers, on="track_id").sort("track_id")
    step_offsets = np.searchsorted(steps["number"].to_numpy(), np.arange(ids.height + 1))
    column = events.column
    cells, cell_starts, cell_ends = _cell_arrays(grid)
    return kernel.idle_sums(
        rows, column["start_ns"], column["end_ns"], column["kind"], column["reason"], events.kinds["lane"], events.reasons,
        unit_events, cells, cell_starts, cell_ends,
        step_offsets, steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy(),
        lanes["number"].to_numpy(), lanes["resource_number"].to_numpy(),
        resource_count, len(REASONS), REASONS.index(NONE_AFTER), REASONS.index("host"),
    )  # fmt: skip


def _host_ns(
    events: _Events,
    gaps: NDArray[np.int64],
    units: int,
    cells: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """What gaps that wait for the host cover beyond all events, by cell."""
    if not len(gaps):
        return np.zeros(len(cells[1]), np.int64)
    unit, start, end = (
        np.concatenate([events.column[n], gaps[:, i]])
        for i, n in enumerate(("unit", "start_ns", "end_ns"))
    )
    kind = np.repeat(np.array([0, 1], np.int32), [len(events.names), len(gaps)])
    levels = np.array([0, 1], np.int8)
    order = _order(unit.astype(np.int32), start, end)
    found, _ = kernel.level_sums(
        order.rows, start, end, kind, levels, _unit_events(order, units), *cells, 2
    )
    difference: NDArray[np.int64] = found[:, 1] - found[:, 0]
    return difference


def _placed(
    cell: NDArray[np.int64], rows: NDArray[np.int64], numbers: NDArray[np.int64], names: tuple[NDArray[Any], pl.DataFrame]
) -> pl.DataFrame:  # fmt: skip
    unit_of, resources = names
    at = pl.DataFrame(
        {"cell": cell[rows], "unit_id": unit_of[rows], "resource_number": numbers.astype(np.int32)}
    )
    joined = at.join(resources, on=["unit_id", "resource_number"], how="left", maintain_order="left")  # fmt: skip
    return joined.select("cell", "resource")


def _of_resources(
    cell: NDArray[np.int64], sums: NDArray[np.int64], names: tuple[NDArray[Any], pl.DataFrame]
) -> pl.DataFrame:
    rows, numbers = np.nonzero(sums.any(axis=2))
    values = sums[rows, numbers]
    columns = ("instruction_count", "instruction_ns", "active_ns")
    return _placed(cell, rows, numbers, names).with_columns(
        pl.Series(n, values[:, i]) for i, n in enumerate(columns)
    )


def _of_idle(
    cell: NDArray[np.int64], idle: NDArray[np.int64], names: tuple[NDArray[Any], pl.DataFrame]
) -> pl.DataFrame:
    rows, numbers, reasons = np.nonzero(idle)
    texts = pl.Series("reason", list(REASONS)).gather(reasons)
    return _placed(cell, rows, numbers, names).with_columns(
        texts, idle_ns=pl.Series(idle[rows, numbers, reasons])
    )


def _of_operators(
    cell: NDArray[np.int64],
    keys: NDArray[np.int64],
    sums: NDArray[np.float64],
    busy: NDArray[np.int64],
    workers: Sequence[str],
    known: int,
    own_names: Sequence[str],
) -> dict[str, pl.DataFrame]:
    operator = keys[:, 1]
    is_own = operator >= known
    own = pl.Series("own_name", [*own_names, None], pl.String)
    place = pl.DataFrame(
        {"cell": cell[keys[:, 0]], "operator": operator, "is_own": is_own}
    ).with_columns(
        own.gather(np.where(is_own, operator - known, len(own_names))),
        operator=pl.when(~pl.col("is_own")).then("operator"),
    ).drop("is_own")  # fmt: skip
    values = [pl.Series(n, sums[:, i]) for i, n in enumerate(OPERATOR_SUMS)]
    rows, numbers = np.nonzero(busy)
    of_workers = place[rows].with_columns(
        pl.Series("worker", list(workers), pl.String).gather(numbers),
        busy_ns=pl.Series(busy[rows, numbers]),
    )
    return {"operators": place.with_columns(values), "busy": of_workers}


def _executions(cell: NDArray[np.int64], runs: NDArray[np.int64]) -> pl.DataFrame:
    step = pl.col("step")
    return (
        pl.DataFrame({"cell": cell[runs[:, 0]], "op_id": runs[:, 1], "step": runs[:, 2]})
        .unique()
        .select("cell", pl.col("op_id").cast(pl.UInt32), pl.when(step > kernel.NO_STEP).then(step).cast(pl.Int32))
    )  # fmt: skip


def _of_ranks(
    grid: Grid, lanes: pl.DataFrame, events: _Events, order: _Order
) -> dict[str, pl.DataFrame]:
    column = events.column
    ids = _unit_ids(grid)
    levels = events.kinds["level"]
    found, begun = kernel.level_sums(
        order.rows, column["start_ns"], column["end_ns"], column["kind"], levels, _unit_events(order, ids.height),
        *_cell_arrays(grid), kernel.LEVELS,
    )  # fmt: skip
    names = ("compute_ns", "with_collectives_ns", "active_ns", "communication_ns")
    rank_of = lanes["rank_unit"].to_numpy()[events.kinds["lane"]]
    # what begins in another piece is counted there
    span = grid.cells.group_by("unit_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    begin, until = (
        ids.join(span, on="unit_id", how="left", maintain_order="left")[n].to_numpy()
        for n in ("start_ns", "end_ns")
    )
    unit, starts = rank_of[column["kind"]], column["start_ns"]
    own = (starts >= begin[unit]) & (starts < until[unit])
    label = pl.Series("label", list(LEVELS)).gather(levels)
    of_kind = pl.DataFrame({"rank_unit": rank_of, "label": label}).with_row_index("kind").with_columns(pl.col("kind").cast(pl.Int32))  # fmt: skip
    counted = (
        pl.DataFrame({n: column[n][own] for n in ("kind", "step")})
        .group_by("kind", "step")
        .agg(events=pl.len().cast(pl.Int64))
        .join(of_kind, on="kind")
        .join(ids.with_row_index("rank_unit").with_columns(pl.col("rank_unit").cast(pl.Int32)), on="rank_unit")
        .group_by("unit_id", "step", "label")
        .agg(pl.col("events").sum())
        .with_columns(step=pl.when(pl.col("step") > kernel.NO_STEP).then("step"))
    )  # fmt: skip
    return {
        "ranks": pl.DataFrame(
            {"cell": grid.cells["cell"]}
            | {n: found[:, i] for i, n in enumerate(names)}
            | {n: begun[:, i] for i, n in enumerate(LEVELS)}
        ),
        "counts": counted,
    }
