"""Are DMAs large enough, spread over the queues, and what of their time is their bytes? Sizes, balance, routes, and the cost of issuing.

Of each transfer (an event of a DMA queue, or a copy on a stream) that has bytes:

    time      as the trace has it
    held      how long its queue could take no other: its time, and no less than a slot for each of its instructions where the machine is known
    needed    its bytes at the rate of all DMA engines of the core (reads of HBM and the rest apart where the machine is known)
    overhead  held - needed, no less than 0: issue, start-up, sharing. A transfer is *issue-bound* if that is more than half of what it held

Neuron's rules (Neuron Explorer's bands and targets): 4 KiB or more a transfer, better 32 KiB or more; SMALL_DMA_BYTES on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from trnprof.analysis.dma_machine import engines_bytes_per_s, queue_slot_ns
from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.metrics import IS_DMA, ratio
from trnprof.analysis.operators import SMALL_DMA_BYTES
from trnprof.analysis.scope import Scope
from trnprof.analysis.size_classes import SizeClasses
from trnprof.tracer.reader import Trace

LEAST_BYTES: Final = 4096
"""Neuron Explorer's band of small DMAs: its advice is at least that much, better SMALL_DMA_BYTES."""
SIZES: Final = SizeClasses(
    (512, LEAST_BYTES, SMALL_DMA_BYTES, 256 << 10),
    ("< 512 B", "512 B–4 KiB", "4–32 KiB", "32–256 KiB", ">= 256 KiB"),
)
ROUTE: Final = ("source_memory", "target_memory")
_FIGURES: Final = ("transfers", "bytes", "time_ns", "held_ns", "needed_ns", "overhead_ns", "small", "issue_bound_ns")  # fmt: skip


def dma_transfers(trace: Trace, scope: Scope) -> pl.LazyFrame:
    """Every transfer with bytes, clipped to the windows.

    Returns:
        window, unit_id, track_id, queue (its name), op_id, name, source_memory, target_memory, size_bytes and descriptor_bytes (whole), size_class and
        descriptor_class (labels of SIZES), transfers (1 where it starts inside), bytes (part inside), time_ns, held_ns, needed_ns (null without a rate),
        overhead_ns, small (1 if it starts inside and is under LEAST_BYTES), issue_bound_ns (held_ns of issue-bound ones), start_ns, end_ns.
    """
    queues = trace.tracks.lazy().unique("track_id").select("track_id", queue="name", own="peak_bytes_per_s")  # fmt: skip
    units = scope.units.lazy().select("unit_id", "dma_peak_bytes_per_s")
    moved = scope.inside().filter(IS_DMA & pl.col("bytes").is_not_null())
    share, size = pl.col("share"), pl.col("size_bytes")
    time = pl.col("end_ns") - pl.col("start_ns")
    starts = pl.col("starts_inside").cast(pl.Int64)
    needed = pl.col("bytes") / _rate(trace) * 1e9
    over = (pl.col("held_ns") - pl.col("needed_ns")).clip(0)
    is_bound = pl.col("overhead_ns") > pl.col("held_ns") / 2
    return (
        moved.join(queues, on="track_id")
        .join(units, on="unit_id")
        .with_columns(
            *(pl.col(n).cast(pl.String) for n in (*ROUTE, "name")),
            size_bytes="bytes",
            bytes=pl.col("bytes") * share,
            time_ns=time,
            held_ns=pl.max_horizontal(time.cast(pl.Float64), queue_slot_ns(trace) * share),
            transfers=starts,
        )
        .with_columns(
            needed_ns=needed,
            small=starts * (size < LEAST_BYTES),
            size_class=SIZES.label(size),
            descriptor_class=SIZES.label(pl.col("descriptor_bytes")),
        )
        .with_columns(overhead_ns=over)
        .with_columns(issue_bound_ns=pl.when(is_bound).then("held_ns").otherwise(0.0))
        .select(
            *("window", "unit_id", "track_id", "queue", "op_id", "name", *ROUTE),
            *("size_bytes", "descriptor_bytes", "size_class", "descriptor_class"),
            *_FIGURES,
            *("start_ns", "end_ns"),
        )
    )


def dma_by(transfers: pl.LazyFrame, scope: Scope, keys: Sequence[str]) -> pl.DataFrame:
    """Sum transfers, as the mean of the scope's units, replicas weighing.

    Args:
        transfers: of ``dma_transfers``, of one window.
        scope: they are of.
        keys: columns to group by; none sums all.

    Returns:
        One row a group, the longest held first: keys, transfers, bytes, time_ns, held_ns, needed_ns, overhead_ns (null where no transfer has a rate),
        small, issue_bound_ns, average_bytes, issue_share (overhead of held), issue_bound_share (held by issue-bound ones of held), bytes_share and
        held_share (of all groups).
    """
    weight, cores = pl.col("replica_count"), int(scope.units["replica_count"].sum())
    units = scope.units.lazy().select("unit_id", "replica_count")
    known = pl.col("needed_ns").is_not_null().any()
    sums = [
        pl.when(known).then((pl.col(n) * weight).sum() / cores).alias(n)
        if n in ("needed_ns", "overhead_ns", "issue_bound_ns")
        else (pl.col(n) * weight).sum().alias(n) / cores
        for n in _FIGURES
    ]
    grouped = transfers.join(units, on="unit_id").group_by(keys or pl.lit(0).alias("all"))
    found = grouped.agg(sums).collect(engine="streaming")
    rows = found.with_columns(
        average_bytes=ratio(pl.col("bytes"), pl.col("transfers")),
        issue_share=ratio(pl.col("overhead_ns"), pl.col("held_ns")),
        issue_bound_share=ratio(pl.col("issue_bound_ns"), pl.col("held_ns")),
        bytes_share=ratio(pl.col("bytes"), pl.col("bytes").sum()),
        held_share=ratio(pl.col("held_ns"), pl.col("held_ns").sum()),
    )
    return rows.sort("held_ns", *keys, descending=[True, *(False for _ in keys)])


def routes(transfers: pl.LazyFrame, scope: Scope) -> pl.DataFrame:
    """Bandwidth by source and target memory, mean of the units.

    Returns:
        ``dma_by`` of the two, with active_ns (mean union of the time in which any such transfer runs) and bytes_per_s (bytes over that).
    """
    keys = ["unit_id", *ROUTE]
    weight, cores = pl.col("replica_count"), int(scope.units["replica_count"].sum())
    labelled = transfers.with_columns(pl.col(ROUTE).fill_null("?"))
    active = (
        covered_ns(labelled, keys, "active_ns")
        .join(scope.units.lazy().select("unit_id", "replica_count"), on="unit_id")
        .group_by(*ROUTE)
        .agg(active_ns=(pl.col("active_ns") * weight).sum() / cores)
        .collect(engine="streaming")
    )
    found = dma_by(labelled, scope, ROUTE).join(active, on=ROUTE, how="left")
    return (
        found.with_columns(pl.col("active_ns").fill_null(0.0))
        .with_columns(
            bytes_per_s=ratio(pl.col("bytes") * 1e9, pl.col("active_ns").cast(pl.Float64))
        )
        .sort("bytes", *ROUTE, descending=[True, False, False])
    )


def queue_balance(transfers: pl.LazyFrame, scope: Scope) -> pl.DataFrame:
    """How evenly the queues of each unit are used; queues without transfers count.

    Returns:
        One row a unit with transfers: unit_id, queues, held_max_over_mean, bytes_max_over_mean (1: all alike), busiest (name of the queue held longest).
    """
    of_queue = (
        transfers.group_by("unit_id", "track_id", "queue")
        .agg(pl.col("held_ns", "bytes").sum())
        .collect(engine="streaming")
    )
    idle = scope.lanes.filter(pl.col("kind") == "dma_queue").group_by("unit_id").agg(lanes=pl.len())
    used = of_queue.join(idle, on="unit_id", how="left").sort("held_ns", "queue", descending=[True, False])  # fmt: skip
    queues = pl.max_horizontal(pl.col("lanes").first().fill_null(0), pl.len())
    return (
        used.group_by("unit_id", maintain_order=True)
        .agg(
            queues=queues.cast(pl.Int64),
            held_max_over_mean=ratio(pl.col("held_ns").max() * queues, pl.col("held_ns").sum()),
            bytes_max_over_mean=ratio(pl.col("bytes").max() * queues, pl.col("bytes").sum()),
            busiest=pl.col("queue").first(),
        )
        .sort("unit_id")
    )


def trigger_ns(scope: Scope) -> pl.DataFrame:
    """How long engines issue DMAs (events of category sync): window, unit_id, resource, triggers, trigger_ns."""
    issues = scope.inside().filter(pl.col("category").cast(pl.String) == "sync")
    length = pl.col("end_ns") - pl.col("start_ns")
    keys = ["window", "unit_id", "resource"]
    found = issues.group_by(keys).agg(triggers=pl.col("starts_inside").sum().cast(pl.Int64), trigger_ns=length.sum())  # fmt: skip
    return found.collect(engine="streaming").sort(keys)


def _rate(trace: Trace) -> pl.Expr:
    """B/s of all DMA engines of a core, for a transfer; null where nobody knows."""
    told = engines_bytes_per_s(trace)
    if told is not None:
        return told
    rate = pl.coalesce("own", "dma_peak_bytes_per_s")
    return pl.when(pl.col("kind") == "dma_queue").then(rate)
