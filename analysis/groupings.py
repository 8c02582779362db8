"""Which operations are one operator? By name, by source line, by shape: what ``operators.top_operators`` can be asked for beside its own."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from trnprof.analysis.operators import Labels


def by_name(ops: pl.LazyFrame) -> Labels:
    """Operations of one name; events of none count under their own."""
    return _grouped(ops, {"name": pl.col("name")})


def by_source_line(ops: pl.LazyFrame) -> Labels:
    """Operations called on one line: name is ``file:line``. Those of which nobody knows it have numbers below 0."""
    return _grouped(ops, {"name": pl.format("{}:{}", "source_file", "source_line")})


def by_shape(ops: pl.LazyFrame) -> Labels:
    """Operations of one name on inputs of the same shapes (``shapes``) and datatypes (``dtypes``). Without shapes: numbers below 0."""
    known = ops.filter(pl.col("input_shapes").is_not_null())
    return _grouped(known, {"name": pl.col("name"), "shapes": pl.col("input_shapes"), "dtypes": pl.col("dtypes")})  # fmt: skip


def _grouped(ops: pl.LazyFrame, keys: Mapping[str, pl.Expr]) -> Labels:
    """Labels and numbers; operations whose name is null are left out."""
    names = list(keys)
    named = ops.select("op_id", **keys).filter(pl.col("name").is_not_null())
    labels = (
        named.select(names)
        .unique()
        .sort(names)
        .with_row_index("operator")
        .with_columns(pl.col("operator").cast(pl.Int64))
        .collect(engine="streaming")
    )
    numbers = named.join(labels.lazy(), on=names, nulls_equal=True).select("op_id", "operator")
    return labels, numbers.unique("op_id")
