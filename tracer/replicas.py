"""What would a trace hold if folded ranks had been written? The rows of their representatives, once more for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from trnprof.tracer.reader import Trace


def expanded(trace: Trace) -> Trace:
    """The trace with rows for every replica; no track stands for others any more.

    A replica's events have the ids, and the blockers, of the events that they repeat: a join by id must be one by track too. Flows and counters
    are left as they are.
    """
    tracks = trace.tracks
    replicas = tracks.filter(pl.col("replica_of").is_not_null())
    own = tracks.with_columns(
        replica_of=pl.lit(None, tracks.schema["replica_of"]),
        replica_count=pl.lit(1, tracks.schema["replica_count"]),
    )
    return replace(
        trace,
        tracks=own,
        events=_repeated_events(trace.events, replicas),
        steps=_repeated_steps(trace.steps, tracks, replicas),
        shards=(),
    )


def _repeated_events(events: pl.LazyFrame, replicas: pl.DataFrame) -> pl.LazyFrame:
    places = replicas.lazy().select(track_id="replica_of", replica="track_id")
    again = events.join(places, on="track_id").with_columns(track_id="replica").drop("replica")
    return pl.concat([events, again])


def _repeated_steps(
    steps: pl.DataFrame, tracks: pl.DataFrame, replicas: pl.DataFrame
) -> pl.DataFrame:
    """Those of the ranks whose cores are replicas of other ranks' cores."""
    cores = replicas.filter(pl.col("kind").cast(pl.String) == "core")
    ranks = (
        cores.select("replica_of", replica="rank")
        .join(tracks.select(replica_of="track_id", rank="rank"), on="replica_of")
        .filter(pl.col("replica") != pl.col("rank"))
        .select("rank", "replica")
        .unique(maintain_order=True)
    )
    again = steps.join(ranks, on="rank", maintain_order="left_right").with_columns(rank="replica")
    return pl.concat([steps, again.select(steps.columns)])
