"""Which rank keeps the others waiting, by how much, and since when? A chronic straggler told apart from jitter.

A rank's *lateness* in a call is its arrival after the median of the others' there; who arrives last made them wait. It is *chronic* from the
call on from which it was last in MOST of its calls, if there are MIN_CALLS of them, if chance would rarely do that (SIGMAS standard
deviations beyond its share of the ranks), and if it was later than arrivals vary. Everything else is jitter.
"""

from __future__ import annotations

from typing import Final

import polars as pl

MOST: Final = 0.75
MIN_CALLS: Final = 5
SIGMAS: Final = 3.0
"""Ours, all three: late in three of four calls, five or more, by more than chance."""


def with_lateness(parts: pl.DataFrame) -> pl.DataFrame:
    """The parts of calls that several ranks have, with lateness.

    Args:
        parts: of ``collective_parts``.

    Returns:
        Its rows of matched calls with late_ns (after the median of the others), is_last (alone), made_wait_ns (how much earlier the call could have
        begun, had it come with the next to last; 0 unless it is last), chance (of being last, if all ranks were alike).
    """
    place, count = pl.int_range(pl.len()).over("call"), pl.len().over("call").cast(pl.Int64)
    arrivals = pl.col("arrival_ns").over("call", mapping_strategy="join")
    ordered = (
        parts.filter("is_matched")
        .sort("call", "arrival_ns", "rank")
        .with_columns(place=place, count=count, arrivals=arrivals)
    )
    lower, upper = (
        (pl.col("count") - 2) // 2,
        (pl.col("count") - 1) // 2,
    )  # of count - 1 others
    of_others = [
        pl.col("arrivals").list.get(
            pl.min_horizontal(i + (i >= pl.col("place")), pl.col("count") - 1)
        )
        for i in (lower, upper)
    ]
    before = pl.col("arrivals").list.get(pl.col("count") - 2)
    leads = pl.col("place") == pl.col("count") - 1
    wait = pl.when(leads).then(pl.col("arrival_ns") - before).otherwise(0)
    weight = pl.col("replica_count")
    return ordered.with_columns(
        late_ns=pl.col("arrival_ns") - (of_others[0] + of_others[1]) / 2,
        made_wait_ns=wait,
        is_last=wait > 0,
        chance=weight / weight.sum().over("call"),
    ).drop("place", "count", "arrivals")


def stragglers(parts: pl.DataFrame) -> pl.DataFrame:
    """How late each rank was.

    Args:
        parts: of ``collective_parts``.

    Returns:
        One row a rank, the one that made the others wait longest first: rank, replica_count, calls, times_last, late_ns (median; of a chronic
        straggler since it began), jitter_ns (median distance from its median lateness), worst_ns, made_wait_ns (sum), is_chronic, and of chronic ones
        since_call (ordinal among the rank's calls), since_ns, since_step.
    """
    late = with_lateness(parts).sort("rank", "arrival_ns", "call")
    if not late.height:
        return _nobody()
    seen = late.with_columns(nth=pl.int_range(pl.len()).over("rank"))
    ahead = (pl.col("is_last").cast(pl.Float64) - MOST).reverse().cum_sum().reverse()
    scored = seen.with_columns(score=ahead.over("rank"))
    best = scored.sort("score", "nth", descending=[True, False]).group_by("rank").first()
    since = best.select("rank", since_call="nth", since_ns="arrival_ns", since_step="step")
    spread = (late["late_ns"].filter(~late["is_last"]).abs().median()) or 0.0
    tail = seen.join(since, on="rank").filter(pl.col("nth") >= pl.col("since_call"))
    chance = pl.col("chance").sum()
    deviation = (pl.col("chance") * (1 - pl.col("chance"))).sum().sqrt()
    hits = pl.col("is_last").sum()
    chronic = (
        tail.group_by("rank")
        .agg(
            tail_late_ns=pl.col("late_ns").median(),
            is_chronic=(hits >= MOST * pl.len())
            & (pl.len() >= MIN_CALLS)
            & (hits - chance >= SIGMAS * deviation)
            & (deviation > 0)
            & (pl.col("late_ns").median() > spread),
        )
        .join(since, on="rank")
    )
    middle = pl.col("late_ns").median()
    rows = seen.group_by("rank").agg(
        pl.col("replica_count").max(),
        calls=pl.len(),
        times_last=hits,
        late_ns=middle,
        jitter_ns=(pl.col("late_ns") - middle).abs().median(),
        worst_ns=pl.col("late_ns").max(),
        made_wait_ns=pl.col("made_wait_ns").sum(),
    )
    told = [
        pl.when("is_chronic").then(n).alias(n) for n in ("since_call", "since_ns", "since_step")
    ]
    return (
        rows.join(chronic, on="rank", nulls_equal=True)
        .with_columns(
            *told, late_ns=pl.when("is_chronic").then("tail_late_ns").otherwise("late_ns")
        )
        .drop("tail_late_ns")
        .sort("is_chronic", "made_wait_ns", "rank", descending=[True, True, False])
    )


def _nobody() -> pl.DataFrame:
    schema = {
        "rank": pl.Int32, "replica_count": pl.Int32, "calls": pl.UInt32, "times_last": pl.UInt32, "late_ns": pl.Float64,
        "jitter_ns": pl.Float64, "worst_ns": pl.Float64, "made_wait_ns": pl.Int64, "is_chronic": pl.Boolean,
        "since_call": pl.Int64, "since_ns": pl.Int64, "since_step": pl.Int32,
    }  # fmt: skip
    return pl.DataFrame(schema=schema)
