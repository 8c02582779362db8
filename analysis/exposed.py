"""Which collectives and DMAs does nothing hide? The exposed time of ``breakdown``, by name and group, by queue and name.

A collective is exposed where nothing computes, a DMA where nothing computes and no collective runs, an engine's issue of a DMA counting
as DMA. Where several run at once the one that began first is charged, so that the parts sum to what ``breakdown`` has.
"""

from __future__ import annotations

import polars as pl

from trnprof.analysis.collective_names import with_collective
from trnprof.analysis.intervals import alone, with_covered_ns
from trnprof.analysis.overlap import kind_segments, work_kind
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

_KEYS = ["window", "unit_id"]


def exposed_collectives(scope: Scope, trace: Trace) -> pl.DataFrame:
    """Exposed communication of each unit in each window.

    Returns:
        One row a window, unit, collective and group: window, unit_id, collective (name), group (of its replica group; null: the trace does not
        say), group_ranks, calls (that start inside), running_ns (union with others charged to the first), exposed_ns.
    """
    events = with_collective(scope.inside().filter(work_kind() == "collective"), trace)
    bare = kind_segments(scope).filter(~pl.col("compute"))
    return _charged(events, bare, ["collective", "group", "group_ranks"])


def exposed_dmas(scope: Scope, trace: Trace) -> pl.DataFrame:
    """Exposed DMA of each unit in each window.

    Returns:
        One row a window, unit, queue and name: window, unit_id, queue (name of the queue, stream, or engine that issues), name, calls,
        running_ns, exposed_ns.
    """
    queues = trace.tracks.lazy().select("track_id", queue="name").unique("track_id")
    events = (
        scope.inside()
        .filter(work_kind() == "dma")
        .join(queues, on="track_id")
        .with_columns(pl.col("name").cast(pl.String))
    )
    bare = kind_segments(scope).filter(~pl.col("compute") & ~pl.col("collective"))
    return _charged(events, bare, ["queue", "name"])


def _charged(events: pl.LazyFrame, bare: pl.LazyFrame, names: list[str]) -> pl.DataFrame:
    kept = events.select(*_KEYS, *names, "start_ns", "end_ns", "starts_inside")
    counts = kept.group_by(*_KEYS, *names).agg(calls=pl.col("starts_inside").sum())
    cut = with_covered_ns(alone(kept, _KEYS), bare, _KEYS, "exposed_ns")
    times = cut.group_by(*_KEYS, *names).agg(
        running_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        exposed_ns=pl.col("exposed_ns").sum(),
    )
    count, time = (frame.collect(engine="streaming") for frame in (counts, times))
    keys = [*_KEYS, *names]
    joined = count.join(time, on=keys, how="left", nulls_equal=True)
    return joined.with_columns(pl.col("running_ns", "exposed_ns").fill_null(0)).sort(
        *_KEYS, "exposed_ns", *names, descending=[False, False, True, *(False for _ in names)]
    )
