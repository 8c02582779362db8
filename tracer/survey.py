"""What lies on each track, in a few numbers? One pass over the events, shard by shard, before any question is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from trnprof.tracer.reader import Trace

_END = pl.col("start_ns") + pl.col("duration_ns")
_IS_WORK = pl.col("category") != "marker"
_IS_DMA = pl.col("category").is_in(["dma", "memory"])
_SUMS = ("events", "work", "unfinished", "negative", "computing", "with_flops", "dma_with_bytes", "with_bytes", "length_ns")  # fmt: skip


def survey(
    trace: Trace, mapper: Callable[..., Iterator[pl.DataFrame]] | None = None
) -> pl.DataFrame:
    """Counts and times of every track that has events.

    Args:
        trace: the trace.
        mapper: runs a function over the shards, elsewhere; None: here, one after the other.

    Returns:
        track_id; events; first_ns, last_ns (open events end where they start); and without markers: work (how many), unfinished, negative
        (of negative duration), computing (category compute), with_flops, with_bytes, dma_with_bytes (category dma or memory),
        work_first_ns, work_last_ns, length_ns (summed).
    """
    shards = [s.frame for s in trace.shards if s.table == "events"] or [trace.events]
    found = map(_of_shard, shards) if mapper is None else mapper(_of_shard, shards, None)
    return (
        pl.concat(found)
        .group_by("track_id")
        .agg(
            pl.col(*_SUMS).sum(),
            pl.col("first_ns", "work_first_ns", "done_first_ns").min(),
            pl.col("last_ns", "work_last_ns", "done_last_ns").max(),
        )
        .sort("track_id")
    )


def _of_shard(events: pl.LazyFrame, _: None = None) -> pl.DataFrame:
    return _of_events(events).collect(engine="streaming")


def _of_events(events: pl.LazyFrame) -> pl.LazyFrame:
    start, length, work = pl.col("start_ns"), pl.col("duration_ns"), pl.col("is_work")
    usable = work & (length >= 0)
    return (
        events.select(
            "track_id",
            "start_ns",
            "duration_ns",
            is_work=_IS_WORK,
            end_ns=pl.max_horizontal("start_ns", _END),
            is_compute=pl.col("category") == "compute",
            is_dma=_IS_DMA,
            has_flops=pl.col("flops").is_not_null(),
            has_bytes=pl.col("bytes").is_not_null(),
        )
        .group_by("track_id")
        .agg(
            events=pl.len().cast(pl.Int64),
            work=work.sum().cast(pl.Int64),
            unfinished=(work & length.is_null()).sum().cast(pl.Int64),
            negative=(work & (length < 0)).sum().cast(pl.Int64),
            computing=(usable & pl.col("is_compute")).sum().cast(pl.Int64),
            with_flops=(usable & pl.col("has_flops")).sum().cast(pl.Int64),
            with_bytes=(usable & pl.col("has_bytes")).sum().cast(pl.Int64),
            dma_with_bytes=(usable & pl.col("is_dma") & pl.col("has_bytes")).sum().cast(pl.Int64),
            length_ns=length.filter(usable).sum(),
            first_ns=start.min(),
            last_ns=(start + length.fill_null(0)).max(),
            work_first_ns=start.filter(work).min(),
            work_last_ns=pl.col("end_ns").filter(work).max(),
            done_first_ns=start.filter(usable).min(),
            done_last_ns=pl.col("end_ns").filter(usable).max(),
        )
    )
