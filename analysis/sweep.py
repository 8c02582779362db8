"""What do the events of a piece of a trace add up to? The sums and unions of the first screen, by cell: the map step of a report.

``sweep`` reads a piece and walks through it once (``sweep_kernel``). Its frames are small, and those of all pieces, one below the other, are
what ``screen`` makes the report's figures of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis import sweep_kernel as kernel
from trnprof.analysis.cells import Grid, Piece
from trnprof.analysis.sweep_events import (
    REASONS,
    Events,
    Facts,
    Order,
    cell_arrays,
    events_by_unit,
    events_of,
    lanes_of,
    numbered,
    order_of,
    own_operators,
    resource_numbers,
    resources_of,
    unit_ids,
    workers_of,
)
from trnprof.analysis.waits import NONE_AFTER

COUNTERS: Final = (
    "hardware_flops", "transpose_flops", "adjusted_hardware_flops", "adjusted_transpose_flops", "hbm_read_bytes",
    "hbm_write_bytes", "dma_transfer_count", "dma_transfer_total_bytes", "dma_transfer_ns", "cc_op_count", "cc_op_ns",
)  # fmt: skip
COVERED: Final = (
    "compute_ns", "with_collectives_ns", "active_ns", "dma_active_ns", "cc_op_active_ns",
    *(f"phase_{number}_ns" for number in range(kernel.PHASE_LEVELS)),
)  # fmt: skip
OPERATOR_SUMS: Final = ("event_count", "adjusted_flops", "hbm_bytes", "dma_bytes", "dma_count", "time_ns", "length_ns")  # fmt: skip
LEVELS: Final = ("compute", "collective", "move")


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
    lanes = lanes_of(piece)
    events = events_of(piece, lanes, facts)
    in_order = order_of(events.column["unit"], events.column["start_ns"], events.column["end_ns"])
    found = _of_units(piece.grid, events, in_order, facts)
    same = lanes["unit"].equals(lanes["rank_unit"]) and piece.grid.cells["start_ns"].equals(
        piece.ranks.cells["start_ns"]
    )
    if not same:
        rank_units = lanes["rank_unit"].to_numpy()[events.kinds["lane"]][events.column["kind"]]
        in_order = order_of(rank_units, events.column["start_ns"], events.column["end_ns"])
    return found | _of_ranks(piece.ranks, lanes, events, in_order)


def _of_units(grid: Grid, events: Events, order: Order, facts: Facts) -> dict[str, pl.DataFrame]:
    column, kinds = events.column, events.kinds
    ids = unit_ids(grid)
    unit_events = events_by_unit(order, ids.height)
    unit_cells, cell_starts, cell_ends = cell_arrays(grid)
    own, own_names = own_operators(column["op"], events.names, facts)
    resources = resources_of(grid)
    resource_count = int(resources["resource_number"].max()) + 1  # type: ignore[arg-type]
    workers = workers_of(grid)
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


def _idle(
    grid: Grid,
    ids: pl.DataFrame,
    rows: NDArray[np.int64],
    events: Events,
    unit_events: NDArray[np.int64],
    resource_count: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    steps = grid.steps.join(ids.with_row_index("number"), on="unit_id").sort("number", "start_ns", "end_ns")  # fmt: skip
    numbers = numbered(grid).join(resource_numbers(grid), on="track_id")
    lanes = grid.lanes.select("track_id").join(numbers, on="track_id").sort("track_id")
    step_offsets = np.searchsorted(steps["number"].to_numpy(), np.arange(ids.height + 1))
    column = events.column
    cells, cell_starts, cell_ends = cell_arrays(grid)
    return kernel.idle_sums(
        rows, column["start_ns"], column["end_ns"], column["kind"], column["reason"], events.kinds["lane"], events.reasons,
        unit_events, cells, cell_starts, cell_ends,
        step_offsets, steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy(),
        lanes["number"].to_numpy(), lanes["resource_number"].to_numpy(),
        resource_count, len(REASONS), REASONS.index(NONE_AFTER), REASONS.index("host"),
    )  # fmt: skip


def _host_ns(
    events: Events,
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
    order = order_of(unit.astype(np.int32), start, end)
    found, _ = kernel.level_sums(
        order.rows, start, end, kind, levels, events_by_unit(order, units), *cells, 2
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
    grid: Grid, lanes: pl.DataFrame, events: Events, order: Order
) -> dict[str, pl.DataFrame]:
    column = events.column
    ids = unit_ids(grid)
    levels = events.kinds["level"]
    found, begun = kernel.level_sums(
        order.rows, column["start_ns"], column["end_ns"], column["kind"], levels, events_by_unit(order, ids.height),
        *cell_arrays(grid), kernel.LEVELS,
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
