"""Which phase of training does the step's time go to? A partition by phase that sums to the step exactly.

Phases run side by side (the optimizer loads its state while backward computes), so each instant of a unit's window is
charged to one of them, the first that holds:

    the first of forward, backward, optimizer, other that an engine (or stream) computes for
    the first of them that a collective, a DMA or the issue of one runs for
    idle, if nothing runs

so that DMA hidden behind the compute of another phase costs its own phase nothing. A phase is that of the event's operation
in ``ops``; events without operation or phase, and phases of other names, are *other*. The phases sum to what the engines
and DMAs do in ``breakdown``, and idle here is its host and idle together.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.intervals import segments
from trnprof.analysis.metrics import IS_COLLECTIVE, IS_DMA
from trnprof.analysis.scope import Scope

NAMED_PHASES: Final = ("forward", "backward", "optimizer")
WORKING: Final = (*NAMED_PHASES, "other")
PHASES: Final = (*WORKING, "idle")
_LABELS: Final = tuple(f"{kind} {phase}" for kind in ("compute", "move") for phase in WORKING)


def step_phases(scope: Scope, ops: pl.LazyFrame) -> pl.DataFrame:
    """The partition of every window.

    Args:
        scope: events and windows.
        ops: the trace's table: op_id and phase.

    Returns:
        One row a window and unit: window, unit_id, total_ns and one int64 column (ns) a phase of PHASES, which sum to
        total_ns.
    """
    keys = ["window", "unit_id"]
    pieces = segments(_labelled(scope, ops), keys, "label", _LABELS)
    phase = pl.coalesce(pl.when(label).then(pl.lit(label.split()[1])) for label in _LABELS)
    length = pl.col("end_ns") - pl.col("start_ns")
    charged = pieces.with_columns(phase=phase, length=length).group_by(keys)
    sums = charged.agg(
        pl.col("length").filter(pl.col("phase") == name).sum().alias(name) for name in WORKING
    )
    joined = scope.window_lengths().join(sums.collect(), on=keys, how="left")
    return (
        joined.with_columns(pl.col(*WORKING).fill_null(0))
        .with_columns(idle=pl.col("total_ns") - pl.sum_horizontal(*WORKING))
        .sort(keys)
    )


def phase_of(ops: pl.LazyFrame) -> pl.LazyFrame:
    """The phase of each operation, unknown ones collapsed: op_id, phase (of WORKING)."""
    phase = pl.col("phase").cast(pl.String)
    known = pl.when(phase.is_in(NAMED_PHASES)).then(phase).otherwise(pl.lit("other"))
    return ops.select("op_id", phase=known).unique("op_id", keep="first", maintain_order=True)


def _labelled(scope: Scope, ops: pl.LazyFrame) -> pl.LazyFrame:
    """Everything that covers time, named by what it does and for which phase."""
    moves = IS_COLLECTIVE | IS_DMA | (pl.col("category").cast(pl.String) == "sync")
    kind = pl.when(moves).then(pl.lit("move")).otherwise(pl.lit("compute"))
    return (
        scope.inside()
        .join(phase_of(ops), on="op_id", how="left")
        .with_columns(
            label=pl.concat_str(kind, pl.col("phase").fill_null("other"), separator=" ").cast(
                pl.Enum(_LABELS)
            )
        )
        .select("window", "unit_id", "start_ns", "end_ns", "label")
    )
