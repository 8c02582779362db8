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


def late_ranks(trace: Trace) -> list[dict[str, Any]]:
    """Follow ``blocked_by`` back from what each rank got last to where the waiting began.

    Returns:
        One row a late rank, the latest first: rank, collectives (names), late_ns (after the first rank's call), waiting_ranks (those whose
        last data had to wait for it), waited_ns (theirs in all, from their own calls to that of the late rank: no rank lost more).
    """
    if not trace.is_simulation:
        return []
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
        {**row, "waiting_ranks": row["waiting_ranks"] or [], "waited_ns": row["waited_ns"] or 0}
        for row in in_order.to_dicts()
    ]


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
