"""What ran at once? The time of a step by what ran in it: compute, DMA, collectives, in every combination.

Compute, DMA and collectives are told apart as in ``breakdown``: issuing a DMA is DMA. The combinations sum to the step.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.intervals import segments
from trnprof.analysis.metrics import IS_COLLECTIVE, IS_DMA
from trnprof.analysis.scope import Scope

KINDS: Final = ("compute", "dma", "collective")
_INSIDE: Final = "inside"


def work_kind() -> pl.Expr:
    """Of KINDS, what an event does: columns kind and category."""
    issues = pl.col("category").cast(pl.String) == "sync"
    return (
        pl.when(IS_COLLECTIVE)
        .then(pl.lit("collective"))
        .when(IS_DMA | issues)
        .then(pl.lit("dma"))
        .otherwise(pl.lit("compute"))
    )


def kind_segments(scope: Scope) -> pl.LazyFrame:
    """Cut every window of every unit wherever something begins or ends.

    Returns:
        window, unit_id, start_ns, end_ns and a boolean column a kind of KINDS; all pieces of a window, idle ones too.
    """
    labels = (_INSIDE, *KINDS)
    columns = ["window", "unit_id", "start_ns", "end_ns", "label"]
    label = pl.col("label").cast(pl.Enum(labels))
    events = scope.inside().with_columns(label=work_kind()).select(columns)
    windows = scope.windows.lazy().select(
        "window",
        "unit_id",
        start_ns="window_start_ns",
        end_ns="window_end_ns",
        label=pl.lit(_INSIDE),
    )
    both = pl.concat([f.with_columns(label) for f in (events, windows)], how="vertical_relaxed")
    return segments(both, ["window", "unit_id"], "label", labels).filter(_INSIDE).drop(_INSIDE)


def overlap_matrix(scope: Scope) -> pl.DataFrame:
    """The time of each combination, of every unit in every window.

    Returns:
        One row a window, unit and combination that occurs: window, unit_id, compute, dma, collective (booleans), time_ns. They sum to
        the window's length; nothing at all is the row of three times false.
    """
    length = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time_ns")
    keys = ["window", "unit_id", *KINDS]
    found = kind_segments(scope).group_by(keys).agg(length).collect(engine="streaming")
    return found.sort(keys)
