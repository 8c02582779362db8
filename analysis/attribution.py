"""Which operator, layer and source line does an event belong to?"""

from __future__ import annotations

import polars as pl

from trnprof.analysis.operators import operator_labels


def with_attribution(events: pl.DataFrame, ops: pl.LazyFrame) -> pl.DataFrame:
    """Say what each event implements.

    Args:
        events: columns op_id and name, any others.
        ops: the trace's table.

    Returns:
        The same rows in the same order with operator (name of the operation, else of the event), layer (module path; numbers that differ
        between equal operators are ``*``), module_path (as it is), phase and source (``file:line``); null where the trace does not say.
    """
    used = events.lazy().select("op_id").unique().drop_nulls()
    labels, numbers = operator_labels(ops)
    line = pl.format("{}:{}", "source_file", "source_line")
    of_op = (
        ops.join(used, on="op_id", how="semi")
        .select("op_id", "module_path", source=line)
        .join(numbers, on="op_id", how="left")
        .join(labels.lazy().rename({"name": "label"}), on="operator", how="left")
        .select("op_id", "label", "module_path", "phase", "source", layer="module")
        .collect(engine="streaming")
        .unique("op_id", keep="first")
    )
    joined = events.join(of_op, on="op_id", how="left", maintain_order="left")
    return joined.with_columns(operator=pl.coalesce("label", pl.col("name").cast(pl.String))).drop(
        "label"
    )
