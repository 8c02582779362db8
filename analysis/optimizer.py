"""How does the optimizer update the parameters: tensor by tensor, by lists of tensors, or fused? And in how many kernels?

The form is read off the operators of phase optimizer: *fused* if any is named ``_fused_*``; *foreach* if ``_foreach_*`` take
more than half of their summed event time; else *single* (single-tensor). A kernel is an execution of one operation; those that
only create the optimizer's state (STATE), once in a run, are not counted.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

STATE: Final = ("zeros_like", "zeros", "lift_fresh")


def forms_of(units: pl.DataFrame) -> dict[int, dict[str, Any]]:
    """What the optimizer is made of, by window.

    Args:
        units: of phase optimizer without STATE, one row a window and unit: window, kernel_count, is_fused (an operator is named so), foreach_ns and
            total_ns (summed event time of those named so, of all).

    Returns:
        form (fused, foreach, single) and kernel_count (of the core that runs most) of each window.
    """
    rows = (
        units.group_by("window")
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
    )
    return {r["window"]: {k: r[k] for k in ("form", "kernel_count")} for r in rows.to_dicts()}
