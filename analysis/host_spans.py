"""Which host spans take the time themselves, and which only hold others? Inclusive and self time by name, of nested spans.

*Inclusive* time of a name: when a span of it is open on a thread (union: recursion counts once). *Self* time: when it is the innermost one, of
those open the one that began last. Self times of a thread sum to the time in which it has a span open.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trnprof.analysis.focus import focus
from trnprof.analysis.host import thread_lanes
from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.scope import Scope, scope_of
from trnprof.tracer.reader import Trace


def host_scope(trace: Trace, clock_id: int | None, step: int | None, rank: int | None) -> Scope | None:  # fmt: skip
    """The spans of host threads in a window.

    Args:
        trace: the trace.
        clock_id: of the device: its threads are preferred; else the clock that most threads have.
        step: only in this step, if the clock has it; None: all.
        rank: only of its threads, if threads have ranks; None: all.

    Returns:
        One window; None without threads.
    """
    threads = trace.tracks.filter(pl.col("kind").cast(pl.String) == "thread")
    if not threads.height:
        return None
    clocks = threads["clock_id"]
    most = clocks.value_counts(sort=True)["clock_id"][0]
    chosen = int(clock_id if clock_id is not None and (clocks == clock_id).any() else most)
    scope = scope_of(trace, chosen, ("thread",))
    has_step = step is not None and (scope.windows["step"] == step).any()
    scope = focus(scope, step if has_step else None)
    if rank is None or threads["rank"].null_count() == threads.height:
        return scope
    own = threads.filter(pl.col("rank") == rank)["track_id"].implode()
    keep = pl.col("track_id").is_in(own)
    return replace(scope, lanes=scope.lanes.filter(keep), events=scope.events.filter(keep))


def host_spans(scope: Scope, trace: Trace) -> pl.DataFrame:
    """What spans of each name take, over all threads.

    Args:
        scope: of ``host_scope``.
        trace: it is of.

    Returns:
        One row a name, most self time first: name, count (begun in the window), inclusive_ns, self_ns, share (self time of all threads' active time).
    """
    from trnprof.analysis.host_span_kernel import self_times

    lanes = thread_lanes(trace.tracks).lazy().select("track_id", pl.col("thread").cast(pl.Int64))
    spans = (
        scope.inside()
        .filter(pl.col("category").cast(pl.String) == "host")
        .join(lanes, on="track_id")
        .select("thread", "start_ns", "end_ns", "name", "starts_inside", "track_id")
        .collect(engine="streaming")
        .sort(
            "thread", "start_ns", "end_ns", "track_id", descending=[False, False, True, False]
        )
    )  # fmt: skip
    own = self_times(*(spans[n].to_numpy() for n in ("thread", "start_ns", "end_ns")))
    by_name = spans.with_columns(self_ns=own).group_by("name")
    sums = by_name.agg(count=pl.col("starts_inside").sum(), self_ns=pl.col("self_ns").sum())
    covered = covered_ns(spans.lazy(), ["thread", "name"], "inclusive_ns").collect()
    inclusive = covered.group_by("name").agg(pl.col("inclusive_ns").sum())
    return (
        sums.join(inclusive, on="name", how="left")
        .with_columns(
            pl.col("name").cast(pl.String),
            pl.col("inclusive_ns").fill_null(0),
            share=pl.when(pl.col("self_ns").sum() > 0).then(
                pl.col("self_ns") / pl.col("self_ns").sum()
            ),
        )
        .sort("self_ns", "inclusive_ns", "name", descending=[True, True, False])
        .select("name", "count", "inclusive_ns", "self_ns", "share")
    )
