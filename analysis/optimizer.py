"""How does the optimizer update the parameters: tensor by tensor, by lists of tensors, or fused? And in how many kernels?

The form is read off the operators of phase optimizer: *fused* if any is named ``_fused_*``; *foreach* if ``_foreach_*`` take
more than half of their summed event time; else *single* (single-tensor). A kernel is an execution of one operation; those that
only create the optimizer's state (STATE), once in a run, are not counted.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from trnprof.analysis.scope import Scope

STATE: Final = ("zeros_like", "zeros", "lift_fresh")


def optimizer_forms(scope: Scope, ops: pl.LazyFrame) -> dict[int, dict[str, Any]]:
    """What the optimizer is made of, by window.

    Args:
        scope: events and windows.
        ops: the trace's table.

    Returns:
        form (fused, foreach, single) and kernel_count (of the core that runs most) of each window in which phase optimizer has
        events beyond STATE.
    """
    update = (
        ops.select("op_id", op_name="name", phase=pl.col("phase").cast(pl.String))
        .filter((pl.col("phase") == "optimizer") & ~pl.col("op_name").is_in(STATE))
        .unique("op_id", keep="first")
    )
    length, name = pl.col("end_ns") - pl.col("start_ns"), pl.col("op_name")
    is_foreach = name.str.starts_with("_foreach_")
    rows = (
        scope.inside()
        .join(update, on="op_id")
        .group_by("window", "unit_id")
        .agg(
            kernel_count=pl.struct("op_id", "step").n_unique(),
            is_fused=name.str.starts_with("_fused_").any(),
            foreach_ns=length.filter(is_foreach).sum(),
            total_ns=length.sum(),
        )
        .group_by("window")
        .agg(
            pl.col("kernel_count").max(),
            pl.col("is_fused").any(),
            is_foreach=2 * pl.col("foreach_ns").sum() > pl.col("total_ns").sum(),
        )
        .with_columns(
            form=pl.when("is_fused")
            .then(pl.lit("fused"))
            .when("is_foreach")
            .then(pl.lit("foreach"))
            .otherwise(pl.lit("single"))
        )
        .collect()
    )
    return {r["window"]: {k: r[k] for k in ("form", "kernel_count")} for r in rows.to_dicts()}
