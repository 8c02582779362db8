"""Which collective is an event, in which group? One name for what frameworks, kernels and profilers write in twenty ways."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.tracer.reader import Trace

_WRITTEN: Final = {
    "all_reduce": r"allreduce|crossdevicereduce",
    "reduce_scatter": r"reducescatter",
    "all_gather": r"allgather",
    "all_to_all": r"alltoall|deepep",
    "broadcast": r"broadcast|bcast",
    "barrier": r"barrier",
    "permute": r"collectivepermute|permute",
    "send_recv": r"sendrecv|batchisendirecv|sendreceive|pipelinesend",
    "send": r"isend|send",
    "recv": r"irecv|recv|receive",
    "reduce": r"reduce",
    "gather": r"gather",
    "scatter": r"scatter",
}
"""Canonical name, and what holds it, the letters of a name alone: the first that is found counts."""
COLLECTIVES: Final = tuple(_WRITTEN)
SYMMETRIC: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")
"""In these no rank can end before the last one has begun, and all end together."""


def canonical(name: pl.Expr) -> pl.Expr:
    """One of COLLECTIVES for a name of an operation or kernel; null where it holds none.

    >>> names = ["c10d::_allgather_base_", "_c10d_functional::all_reduce", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "gemm"]
    >>> pl.select(canonical(pl.lit(pl.Series(names)))).to_series().to_list()
    ['all_gather', 'all_reduce', 'send_recv', None]
    """
    letters = name.cast(pl.String).str.to_lowercase().str.replace_all("[^a-z0-9]", "")
    return pl.coalesce(
        *(
            pl.when(letters.str.contains(pattern)).then(pl.lit(found))
            for found, pattern in _WRITTEN.items()
        )
    )


def with_collective(events: pl.LazyFrame, trace: Trace) -> pl.LazyFrame:
    """Say of collectives' events what they are.

    Args:
        events: columns op_id and name, any others.
        trace: they are of.

    Returns:
        The same rows with collective (canonical name of the operation, else of the event, else the event's own), group (name; null: unknown),
        group_id, group_ranks (how many members), group_seq, algorithm, in_bytes, out_bytes (of the operation).
    """
    members = trace.groups.lazy().select(
        "group_id", group=_group_label(), group_ranks=pl.col("ranks").list.len().cast(pl.Int64)
    )
    is_collective = pl.col("kind").cast(pl.String) == "collective"
    ops = (
        trace.ops.select(
            *("op_id", "group_id", "group_seq", "in_bytes", "out_bytes"),
            algorithm=pl.col("algorithm").cast(pl.String),
            operation=pl.when(is_collective).then(canonical(pl.col("name"))),
        )
        .unique("op_id", keep="first")
        .join(members.unique("group_id", keep="first"), on="group_id", how="left")
    )
    return (
        events.join(ops, on="op_id", how="left")
        .with_columns(
            collective=pl.coalesce(
                "operation", canonical(pl.col("name")), pl.col("name").cast(pl.String)
            )
        )
        .drop("operation")
    )


def _group_label() -> pl.Expr:
    return pl.when(pl.col("name") != "").then(pl.col("name"))
