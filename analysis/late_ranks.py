"""Which ranks came late to a collective, and who waited for them? Of emulated collectives, whose events say what they waited for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.reader import Trace

LATE: Final = "late"
LAST_ARRIVAL: Final = "last arrival"
"""Events of a rank's stream, as docs/collectives.md describes them."""

_ONE_TO_ONE: Final = "send_recv"
"""Stages of a pipeline wait for each other without any of them being late."""


def late_ranks(trace: Trace) -> list[dict[str, Any]]:
    """Follow ``blocked_by`` back from what each rank got last, or from a collective that waited for a peer, to where the waiting began.

    Returns:
        One row a late rank, the latest first: rank, collectives (names), late_ns (after the first rank's call; of a program, the most that
        another waited for it), waiting_ranks (those whose last data, or collectives, had to wait for it), waited_ns (theirs in all, from
        their own calls to that of the late rank: no rank lost more), equal_ranks (those that it stands for).
    """
    if not trace.is_simulation:
        return []
    return _of_collectives(trace) or _of_programs(trace)


def _of_collectives(trace: Trace) -> list[dict[str, Any]]:
    """Of collectives by themselves, whose events are markers and messages."""
    streams = trace.tracks.filter(pl.col("kind") == "collective_stream")
    events = (
        trace.events.filter(
            pl.col("track_id").is_in(streams["track_id"].implode())
            & pl.col("name").is_in([LATE, LAST_ARRIVAL])
        )
        .join(streams.lazy().select("track_id", "rank"), on="track_id")
        .select("event_id", "op_id", "rank", pl.col("name").cast(pl.String), "duration_ns")
        .collect()
    )
    late, arrivals = (events.filter(pl.col("name") == name) for name in (LATE, LAST_ARRIVAL))
    if not late.height:
        return []
    cause = _causes(trace, arrivals["event_id"].to_numpy())
    names = trace.ops.select("op_id", collective=pl.col("name").cast(pl.String)).collect()
    of_rank = (
        late.join(names, on="op_id", how="left")
        .group_by("rank")
        .agg(
            pl.col("collective").unique().sort().alias("collectives"),
            pl.col("duration_ns").max().alias("late_ns"),
        )
    )
    own = of_rank.select("rank", own_ns="late_ns")
    waits = (
        arrivals.select("rank", event_id=pl.Series(cause, dtype=pl.UInt64))
        .join(late.select("event_id", late_rank="rank", late_ns="duration_ns"), on="event_id")
        .filter(pl.col("rank") != pl.col("late_rank"))
        .join(own, on="rank", how="left")
        .select(
            "rank",
            "late_rank",
            waited_ns=(pl.col("late_ns") - pl.col("own_ns").fill_null(0)).clip(0),
        )
        .unique()
        .group_by("late_rank")
        .agg(pl.col("rank").sort().alias("waiting_ranks"), pl.col("waited_ns").sum())
    )
    rows = of_rank.join(waits, left_on="rank", right_on="late_rank", how="left")
    in_order = rows.sort("late_ns", "rank", descending=[True, False])
    return [
        {
            **row,
            "waiting_ranks": row["waiting_ranks"] or [],
            "waited_ns": row["waited_ns"] or 0,
            "equal_ranks": [],
        }
        for row in in_order.to_dicts()
    ]


def _of_programs(trace: Trace) -> list[dict[str, Any]]:
    """Of programs, whose collectives start when the last rank is there. A rank's own call is as late as its own dependencies, where they were kept."""
    rank_of = trace.tracks.filter(pl.col("rank").is_not_null()).select("track_id", "rank")
    streams = trace.tracks.filter(pl.col("kind") == "collective_stream")
    ended = pl.col("start_ns") + pl.col("duration_ns")
    on_streams = trace.events.filter(pl.col("track_id").is_in(streams["track_id"].implode()))
    held = (
        on_streams.sort("track_id", "start_ns")
        .with_columns(before_ns=ended.shift(1).over("track_id"))
        .filter((pl.col("wait_reason") == "peer") & (pl.col("name") != _ONE_TO_ONE))
        .select("event_id", "op_id", "track_id", "start_ns", "before_ns", "blocked_by")
        .join(rank_of.lazy(), on="track_id")
        .collect()
    )
    if not held.height:
        return []
    names = trace.ops.select("op_id", collective=pl.col("name").cast(pl.String))
    events = trace.events.select("event_id", "track_id", end_ns=ended).join(
        rank_of.lazy().rename({"rank": "of_rank"}), on="track_id"
    )
    repeated = streams.select("rank", track_id=pl.coalesce("replica_of", "track_id"))
    waits = (
        held.lazy()
        .join(
            events.select("event_id", late_rank="of_rank"),
            left_on="blocked_by",
            right_on="event_id",
        )
        .join(
            _own_calls(trace, events, held), left_on="event_id", right_on="target_event", how="left"
        )
        .join(names.lazy(), on="op_id")
        .with_columns(
            waited_ns=pl.col("start_ns") - pl.max_horizontal("before_ns", "called_ns").fill_null(0)
        )
        .drop("rank")
        .join(repeated.lazy(), on="track_id")
        .filter(pl.col("rank") != pl.col("late_rank"))
        .group_by(rank="late_rank")
        .agg(
            pl.col("collective").unique().sort().alias("collectives"),
            pl.col("waited_ns").max().alias("late_ns"),
            pl.col("rank").unique().sort().alias("waiting_ranks"),
            pl.col("waited_ns").sum(),
        )
        .sort("late_ns", "rank", descending=[True, False])
    )
    alike = _equal_ranks(streams)
    return [
        {**row, "equal_ranks": alike.get(row["rank"], [])} for row in waits.collect().to_dicts()
    ]


def _own_calls(trace: Trace, events: pl.LazyFrame, held: pl.DataFrame) -> pl.LazyFrame:
    """When a rank's own dependencies let each of its held collectives be called: target_event, called_ns."""
    return (
        trace.flows.filter(pl.col("target_event").is_in(held["event_id"].implode()))
        .join(events, left_on="source_event", right_on="event_id")
        .join(held.lazy().select("event_id", "rank"), left_on="target_event", right_on="event_id")
        .filter(pl.col("of_rank") == pl.col("rank"))
        .group_by("target_event")
        .agg((pl.col("end_ns") + pl.col("lag_ns")).max().alias("called_ns"))
    )


def _equal_ranks(streams: pl.DataFrame) -> dict[int, list[int]]:
    """By rank that was emulated, those that repeat it, in order."""
    stood_for = streams.filter(pl.col("replica_of").is_not_null()).join(
        streams.select("track_id", of="rank"), left_on="replica_of", right_on="track_id"
    )
    return dict(stood_for.group_by("of").agg(pl.col("rank").unique().sort()).iter_rows())


def _causes(trace: Trace, event_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64[n], where the chain of blockers of each event ends. Memory: 16 B an event that has one."""
    blocked = (
        trace.events.filter(pl.col("blocked_by").is_not_null())
        .select("event_id", "blocked_by")
        .collect()
        .sort("event_id")
    )
    ids, blocker = blocked["event_id"].to_numpy(), blocked["blocked_by"].to_numpy()
    at, moving = event_ids.copy(), np.arange(len(event_ids))
    for _ in range(len(ids)):  # no chain is longer, and one that goes round ends here
        rows = np.minimum(np.searchsorted(ids, at[moving]), max(len(ids) - 1, 0))
        is_blocked = ids[rows] == at[moving]
        moving = moving[is_blocked]
        if not len(moving):
            break
        at[moving] = blocker[rows[is_blocked]]
    return at
