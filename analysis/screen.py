"""What are the figures of the first screen, whatever the size of the trace? The combine step: what the sweeps of all pieces add up to.

Every figure is exact, and the same however the trace was cut: sums over cells add up to windows (``cells``), and what does not add up, how
often an operation ran, is counted from its executions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from trnprof.analysis.breakdown import PARTS
from trnprof.analysis.cells import PIECE_EVENTS, Grid, grid_of, pieces_of
from trnprof.analysis.mapping import Mapper, on_threads
from trnprof.analysis.metrics import counted_units, dtype_multipliers, known_of, model_flops
from trnprof.analysis.operators import operator_labels, ranked
from trnprof.analysis.optimizer import STATE, forms_of
from trnprof.analysis.phases import NAMED_PHASES, PHASES, WORKING
from trnprof.analysis.ranks import (
    RankBreakdown,
    breakdown_of,
    rank_breakdown,
    rank_lanes,
    rank_windows,
)
from trnprof.analysis.scope import Scope
from trnprof.analysis.sweep import COUNTERS, COVERED, LEVELS, OPERATOR_SUMS, sweep
from trnprof.analysis.sweep_events import Facts
from trnprof.analysis.utilization import of_resources
from trnprof.analysis.waits import of_reasons
from trnprof.tracer.reader import Trace

_UNIT: Final = ["window", "unit_id"]


@dataclass(frozen=True)
class Screen:
    """What all pieces of a trace add up to.

    Attributes:
        trace: what was swept.
        scope: its device tracks; may be cut to some of its units afterwards.
        grid: the cells of its units.
        ranks: the cells of its ranks; None: their device tracks are not those of the scope.
        rank_units: of ``ranks``, as ``ranks.RankBreakdown`` has them.
        labels: of operators.
        frames: as ``sweep.sweep`` returns them, of all pieces.
    """

    trace: Trace
    scope: Scope
    grid: Grid
    ranks: Grid | None
    rank_units: pl.DataFrame
    labels: pl.DataFrame
    frames: Mapping[str, pl.DataFrame]

    def of(self, scope: Scope) -> Screen:
        """The same of some of the units."""
        return replace(self, scope=scope)

    @cached_property
    def _cells(self) -> pl.LazyFrame:
        """cell, window, unit_id of the units looked at."""
        units = self.scope.units.lazy().select("unit_id")
        unit_of = self.grid.cells.lazy().select("cell", "unit_id").join(units, on="unit_id")
        return self.grid.windows.lazy().join(unit_of, on="cell").select("cell", *_UNIT)

    def _by_window(self, name: str, keys: Sequence[str], sums: Sequence[str]) -> pl.DataFrame:
        """The sums of a frame by window, unit and ``keys``."""
        found = self.frames[name].lazy().join(self._cells, on="cell")
        return found.group_by(*_UNIT, *keys).agg(pl.col(sums).sum()).collect()

    @cached_property
    def _units(self) -> pl.DataFrame:
        return self._by_window("cells", (), (*COUNTERS, *COVERED, "host_ns", "length_ns"))

    @cached_property
    def _executions(self) -> pl.LazyFrame:
        """window, unit_id, op_id, step: each once."""
        found = self.frames["executions"].lazy().join(self._cells, on="cell")
        return found.select(*_UNIT, "op_id", "step").unique().collect().lazy()

    def counters(self) -> pl.DataFrame:
        """Counters of each unit in each window: ``metrics.counted_units``."""
        lengths = self.scope.window_lengths()
        times = {"total_active_time": "active_ns", "dma_active_time": "dma_active_ns", "dma_transfer_time": "dma_transfer_ns",
                 "cc_op_active_time": "cc_op_active_ns", "cc_op_time": "cc_op_ns"}  # fmt: skip
        sums = self._units.select(
            *_UNIT,
            *(pl.col(n).cast(pl.Int64) if n.endswith("_count") else n for n in COUNTERS if not n.endswith("_ns")),
            **{name: pl.col(ns) / 1e9 for name, ns in times.items()},
        )  # fmt: skip
        flops = model_flops(self._executions, self.scope, self.trace).collect()
        wide = lengths.join(sums, on=_UNIT, how="left").join(flops, on=_UNIT, how="left")
        return counted_units(wide, self.scope, self.trace, self._measured())

    def _measured(self) -> pl.DataFrame:
        of_dma = pl.when(pl.col("kind") == "dma_queue").then("with_bytes").otherwise("dma_with_bytes")  # fmt: skip
        found = (
            self.trace.survey.join(self.scope.lanes, on="track_id")
            .group_by("unit_id")
            .agg(
                has_flops=(pl.col("with_flops").sum() > 0) | (pl.col("computing").sum() == 0),
                has_traffic=of_dma.sum() > 0,
            )
        )
        return known_of(found, self.scope, self.trace)

    def engines(self) -> pl.DataFrame:
        """As ``utilization.engine_utilization``."""
        sums = ("instruction_count", "instruction_ns", "active_ns")
        return of_resources(self._by_window("resources", ["resource"], sums), self.scope)

    def waits(self) -> pl.DataFrame:
        """Idle time of each resource in each window, by reason: ``waits.of_reasons``."""
        found = self._by_window("idle", ["resource", "reason"], ["idle_ns"])
        return of_reasons(found, self.scope)

    def breakdown(self) -> pl.DataFrame:
        """As ``breakdown.step_breakdown``."""
        parts = self._units.select(
            *_UNIT,
            compute="compute_ns",
            exposed_collective=pl.col("with_collectives_ns") - pl.col("compute_ns"),
            exposed_dma=pl.col("active_ns") - pl.col("with_collectives_ns"),
            host="host_ns",
        )
        joined = self._every_window(parts, PARTS[:-1])
        return joined.with_columns(idle=pl.col("total_ns") - pl.sum_horizontal(PARTS[:-1])).sort(_UNIT)  # fmt: skip

    def phases(self) -> pl.DataFrame:
        """The partition of each unit in each window by phase: window, unit_id, total_ns and an int64 column (ns) a phase of PHASES."""
        upto = [f"phase_{number}_ns" for number in range(2 * len(WORKING))]
        own = [
            pl.col(name) - (pl.col(before) if before else 0)
            for before, name in zip([None, *upto[:-1]], upto, strict=True)
        ]
        parts = self._units.select(
            *_UNIT,
            **{p: own[i] + own[i + len(WORKING)] for i, p in enumerate(WORKING)},
        )
        joined = self._every_window(parts, WORKING)
        return joined.with_columns((pl.col("total_ns") - pl.sum_horizontal(WORKING)).alias(PHASES[-1])).sort(_UNIT)  # fmt: skip

    def _every_window(self, parts: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
        lengths = self.scope.window_lengths()
        return lengths.join(parts, on=_UNIT, how="left").with_columns(pl.col(names).fill_null(0))

    def operators(self) -> pl.DataFrame:
        """As ``operators.top_operators``."""
        names = pl.concat([self.frames[n].select("own_name") for n in ("operators", "busy")])
        own = names.drop_nulls().unique().sort("own_name").with_row_index("_own")
        number = pl.coalesce("operator", -1 - pl.col("_own").cast(pl.Int64))
        keys = [*_UNIT, "operator"]
        sums = (
            self._by_window("operators", ["operator", "own_name"], OPERATOR_SUMS)
            .join(own, on="own_name", how="left")
            .with_columns(operator=number, event_name="own_name")
        )
        runs = self._counts_of_operators()
        rows = sums.join(runs, on=keys, how="left").with_columns(
            pl.col("event_count", "dma_count", "time_ns").cast(pl.Int64),
            count=pl.coalesce("count", pl.col("event_count").cast(pl.UInt32)),
        )
        busy = (
            self._by_window("busy", ["operator", "own_name", "worker"], ["busy_ns"])
            .join(own, on="own_name", how="left")
            .select(*_UNIT, "worker", "busy_ns", operator=number)
        )
        active = self._units.select(*_UNIT, "active_ns").filter(pl.col("active_ns") > 0)
        columns = [*keys, "event_name", "count", *OPERATOR_SUMS[:-1]]
        return ranked(rows.select(columns), busy, active, self.labels, self.scope, self.trace)

    def _counts_of_operators(self) -> pl.DataFrame:
        """How often the operations of each operator ran: window, unit_id, operator, count."""
        _, numbers = operator_labels(self.trace.ops)
        executions = self._executions.join(numbers, on="op_id")
        in_steps = pl.col("step").is_not_null().sum()
        counts = executions.group_by(*_UNIT, "operator").agg(
            count=pl.max_horizontal(pl.col("op_id").n_unique(), in_steps)
        )
        return counts.collect()

    def forms(self) -> dict[int, dict[str, Any]]:
        """What the optimizer is made of, by window: ``optimizer.forms_of``."""
        update = self.labels.filter(
            (pl.col("phase") == "optimizer") & ~pl.col("name").is_in(STATE)
        ).select("operator", op_name="name")
        _, numbers = operator_labels(self.trace.ops)
        kernels = (
            self._executions.join(numbers, on="op_id")
            .join(update.lazy().select("operator"), on="operator")
            .group_by(_UNIT)
            .agg(kernel_count=pl.len())
            .collect()
        )
        length, name = pl.col("length_ns"), pl.col("op_name")
        sums = (
            self._by_window("operators", ["operator"], ["length_ns"])
            .join(update, on="operator")
            .group_by(_UNIT)
            .agg(
                is_fused=name.str.starts_with("_fused_").any(),
                foreach_ns=length.filter(name.str.starts_with("_foreach_")).sum(),
                total_ns=length.sum(),
            )
        )
        return forms_of(kernels.join(sums, on=_UNIT))

    def ranks_broken_down(self) -> RankBreakdown:
        """As ``ranks.rank_breakdown``."""
        if self.ranks is None:
            return rank_breakdown(self.trace)
        units, lanes = self.rank_units, self.ranks.lanes.select("track_id", unit="unit_id")
        windows = rank_windows(self.trace.steps, units)
        counts = {f"{n}_events": label for n, label in zip(("compute", "communication", "copy"), LEVELS, strict=True)}  # fmt: skip
        sums = (
            self.frames["ranks"]
            .rename({label: name for name, label in counts.items()})
            .with_columns(device_events=pl.sum_horizontal(*counts))
        )
        unit_of = self.ranks.cells.select("cell", unit="unit_id")
        span = (
            self.trace.survey.join(lanes, on="track_id")
            .group_by("unit")
            .agg(start_ns=pl.col("done_first_ns").min(), last=pl.col("done_last_ns").max())
            .filter(pl.col("start_ns").is_not_null())
            .select("unit", "start_ns", span_ns=pl.col("last") - pl.col("start_ns"))
        )
        columns = [n for n in sums.columns if n != "cell"]
        whole = sums.join(unit_of, on="cell").group_by("unit").agg(pl.col(columns).sum())
        steps = (
            self.ranks.windows.join(sums, on="cell")
            .group_by("window")
            .agg(pl.col(columns).sum())
            .join(windows.with_row_index("window").select("window", "unit", "step"), on="window")
            .drop("window")
        )
        named = (
            self.frames["counts"]
            .filter(pl.col("step").is_not_null())
            .group_by("step", unit="unit_id")
            .agg(
                device_events=pl.col("events").sum(),
                **{n: pl.col("events").filter(pl.col("label") == label).sum() for n, label in counts.items()},
            )
        )  # fmt: skip
        return breakdown_of(units, windows, span.join(whole, on="unit"), steps, named)

    def length_inside(self) -> tuple[int, int]:
        """Event time in the window that holds all steps, and in all of the trace: ns."""
        last = self.scope.windows["window"].max()
        inside = self._units.filter(pl.col("window") == last)["length_ns"].sum()
        units = self.scope.units.select("unit_id")
        mine = self.grid.cells.join(units, on="unit_id", how="semi").select("cell")
        whole = self.frames["cells"].join(mine, on="cell", how="semi")["length_ns"].sum()
        return int(inside), int(whole)


def _rank_grid(lanes: pl.DataFrame, windows: pl.DataFrame) -> Grid:
    return grid_of(
        lanes.select("track_id", unit_id="unit"),
        windows.with_row_index("window").select(
            "window", "step", unit_id="unit", window_start_ns="start_ns", window_end_ns="end_ns"
        ),
    )


def screen_of(
    trace: Trace, scope: Scope, mapper: Mapper = on_threads, piece_events: int = PIECE_EVENTS
) -> Screen:
    """Sweep a trace.

    Args:
        trace: the trace.
        scope: its device tracks, all of their units.
        mapper: what runs the map step.
        piece_events: about how many events a piece has.
    """
    grid, ranks, events = grids_of(trace, scope)
    labels, facts = facts_of(trace)
    pieces = pieces_of(trace, grid, ranks or grid, events, piece_events)
    parts = list(mapper(sweep, pieces, facts))
    frames = {
        name: pl.concat([part[name] for part in parts]) for name in (parts[0] if parts else ())
    }
    _, units = rank_lanes(trace.tracks)
    return Screen(trace, scope, grid, ranks, units, labels, frames)


def grids_of(trace: Trace, scope: Scope) -> tuple[Grid, Grid | None, dict[int, int]]:
    """The cells of the scope's units, those of its ranks (None: they have other device tracks too), and how many events each track has."""
    grid = grid_of(scope.lanes, scope.windows)
    lanes, units = rank_lanes(trace.tracks)
    same = set(lanes["track_id"]) == set(scope.lanes["track_id"])
    ranks = _rank_grid(lanes, rank_windows(trace.steps, units)) if same else None
    return grid, ranks, dict(trace.survey.select("track_id", "work").iter_rows())


def facts_of(trace: Trace) -> tuple[pl.DataFrame, Facts]:
    """Labels of operators, and what a sweep needs to know of operations."""
    labels, numbers = operator_labels(trace.ops)
    of_op = numbers.join(trace.ops.select("op_id", pl.col("phase").cast(pl.String)).unique("op_id", keep="first"), on="op_id").collect()  # fmt: skip
    size = 0 if not of_op.height else int(of_op["op_id"].max()) + 1  # type: ignore[arg-type]
    operators = np.full(size, -1, np.int32)
    phases = np.full(size, len(WORKING) - 1, np.int8)
    at = of_op["op_id"].to_numpy()
    operators[at] = of_op["operator"].to_numpy()
    known = of_op["phase"].replace_strict(NAMED_PHASES, range(len(NAMED_PHASES)), default=len(WORKING) - 1, return_dtype=pl.Int8)  # fmt: skip
    phases[at] = known.fill_null(len(WORKING) - 1).to_numpy()
    return labels, Facts(operators, phases, labels.height, dtype_multipliers(trace))
