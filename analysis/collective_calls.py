"""When did each rank come to each collective, how long did it take from then on, and at what bandwidth?

A *part* is one rank's share in a *call*. Where the trace has the ordinal of a call in its group (``group_seq``), parts of equal group and
ordinal are one call. Where it has not, the n-th call of a name on each rank is taken for one, and marked as inferred; it is believed only
if its parts overlap and end within END_NS of each other. A rank *arrives* when its part starts; emulated parts start when the last rank is
there, and arrive when what they wait for on their own rank has ended.

Bandwidths are those of nccl-tests (its doc/PERFORMANCE.md): algorithm bandwidth is size / time, bus bandwidth that times

    2 (n - 1) / n   all_reduce
    (n - 1) / n     all_gather, reduce_scatter, all_to_all, gather, scatter
    1               broadcast, reduce, send_recv and the others

where the size is that of the larger of a rank's buffers, and the time, as there, begins when the last rank has come.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.collective_names import SYMMETRIC, with_collective
from trnprof.analysis.metrics import IS_COLLECTIVE, ratio
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

END_NS: Final = 100_000
"""Ours: NCCL's ranks end a call within some µs of each other on one host; what ends further apart was not one call."""
CLOCK_NS: Final = 10_000
"""Ours: a rank whose calls end that much before or after the others' has another clock; less is the network."""
CLOCK_CALLS: Final = 5
"""Ours: with fewer calls nobody can tell a clock from a network."""
POINT_TO_POINT: Final = ("send", "recv", "send_recv", "permute")
_PART: Final = ["rank_key", "group_id", "group_seq", "own"]


def collective_parts(trace: Trace, scope: Scope) -> pl.DataFrame:
    """What each rank did in each call.

    Args:
        trace: the trace.
        scope: all of it: calls are counted from the first one.

    Returns:
        One row a part, in order of arrival: call (ordinal), collective, group, group_id, group_ranks, algorithm, size_bytes, step, rank, unit_id,
        op_id, replica_count, arrival_ns, start_ns, end_ns, parts (of the call), is_matched (its parts were found on several ranks),
        is_inferred (and found by counting), clock_offset_ns (taken off the three times, because its calls end that much later than the others').
    """
    found = _parts(trace, scope)
    counted = _numbered(found, trace.is_simulation)
    aligned = counted if trace.is_simulation else _aligned(counted)
    checked = _checked(aligned)
    return checked.sort("arrival_ns", "call", "rank_key").drop("rank_key", "own")


def collective_calls(trace: Trace, parts: pl.DataFrame) -> pl.DataFrame:
    """What each call took.

    Args:
        trace: the trace, for its links.
        parts: as ``collective_parts`` returns them, any of its calls.

    Returns:
        One row a call in order of time: call, collective, group, group_id, group_ranks (of an inferred call the ranks seen), algorithm,
        size_bytes, step, parts, is_matched, is_inferred, first_ns and last_ns (arrivals), end_ns, skew_ns (between them; null of a lone part),
        last_rank (null without skew), time_ns (last start to last end), algorithm_bytes_per_s, bus_bytes_per_s, link (the busiest one) and
        link_share (of what it could carry in that time; null without links).
    """
    last = pl.col("rank").sort_by("arrival_ns", "rank").last()
    skew = pl.col("arrival_ns").max() - pl.col("arrival_ns").min()
    several = pl.col("parts").first() > 1
    rows = parts.group_by("call").agg(
        *(pl.col(n).first() for n in ("collective", "group", "group_id", "algorithm")),
        *(pl.col(n).max() for n in ("group_ranks", "size_bytes", "step")),
        *(pl.col(n).first() for n in ("parts", "is_matched", "is_inferred")),
        first_ns=pl.col("arrival_ns").min(),
        last_ns=pl.col("arrival_ns").max(),
        end_ns=pl.col("end_ns").max(),
        skew_ns=pl.when(several).then(skew),
        last_rank=pl.when(several & (skew > 0)).then(last),
        time_ns=(pl.col("end_ns").max() - pl.col("start_ns").max()).clip(0),
    )
    known = rows.with_columns(
        group_ranks=pl.coalesce("group_ranks", pl.when(pl.col("parts") > 1).then("parts"))
    )
    rate = ratio(pl.col("size_bytes") * 1e9, pl.col("time_ns"))
    factor = bus_factor(pl.col("collective"), pl.col("group_ranks"))
    return (
        known.with_columns(algorithm_bytes_per_s=rate, bus_bytes_per_s=rate * factor)
        .join(_busiest_links(trace, parts), on="call", how="left")
        .with_columns(link_share=ratio(pl.col("link_ns"), pl.col("time_ns").cast(pl.Float64)))
        .drop("link_ns")
        .sort("first_ns", "call")
    )


def bus_factor(collective: pl.Expr, ranks: pl.Expr) -> pl.Expr:
    """Bus bandwidth over algorithm bandwidth; null where the number of ranks is not known and counts."""
    share = (ranks - 1) / ranks
    return (
        pl.when(collective == "all_reduce")
        .then(2 * share)
        .when(collective.is_in(["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"]))
        .then(share)
        .otherwise(1.0)
    )


def _parts(trace: Trace, scope: Scope) -> pl.DataFrame:
    """One row a part, all its events together; not yet matched."""
    units = scope.units.lazy().select("unit_id", "rank", "replica_count")
    events = with_collective(scope.events.filter(IS_COLLECTIVE), trace).join(units, on="unit_id")
    # of an operation that the emulator runs, or that has an ordinal, all events of a step are one part; else each event is one
    is_op = pl.col("op_id").is_not_null() & (
        pl.col("group_seq").is_not_null() | pl.lit(trace.is_simulation)
    )
    step = pl.col("step").fill_null(-1).cast(pl.Int64)
    alone = pl.col("event_id").cast(pl.Int64)
    own = pl.struct(
        pl.when(is_op).then(pl.col("op_id").cast(pl.Int64)).otherwise(alone).alias("of"),
        pl.when(is_op).then(step).otherwise(-2).alias("at"),
    )
    rank_key = pl.coalesce(pl.col("rank").cast(pl.Int64), -1 - pl.col("unit_id").cast(pl.Int64))
    firsts = ("collective", "group", "group_ranks", "algorithm", "step", "rank", "unit_id", "op_id", "replica_count")  # fmt: skip
    parts = (
        events.with_columns(rank_key=rank_key, own=own, size_bytes=_size_bytes())
        .group_by(_PART)
        .agg(
            *(pl.col(n).first() for n in firsts),
            pl.col("size_bytes").max(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            first_event=pl.col("event_id").min(),
        )
        .collect(engine="streaming")
    )
    arrivals = _emulated_arrivals(trace, parts)
    return (
        parts.join(arrivals, on="first_event", how="left")
        .with_columns(
            arrival_ns=pl.min_horizontal("start_ns", pl.coalesce("arrival_ns", "start_ns"))
        )
        .drop("first_event")
    )


def _size_bytes() -> pl.Expr:
    """nccl-tests' size of a call: of the larger buffer of a rank; what the operation says first, what the event has last."""
    ranks, given, got = pl.col("group_ranks"), pl.col("in_bytes"), pl.col("out_bytes")
    name = pl.col("collective")
    return (
        pl.when(name == "all_gather")
        .then(pl.coalesce(got, given * ranks, "bytes"))
        .when(name == "reduce_scatter")
        .then(pl.coalesce(given, got * ranks, "bytes"))
        .otherwise(pl.coalesce(given, got, "bytes"))
    )


def _emulated_arrivals(trace: Trace, parts: pl.DataFrame) -> pl.DataFrame:
    """When the last thing that a part waits for on its own rank had ended: first_event, arrival_ns."""
    wanted = parts.lazy().select("first_event", target_rank="rank")
    if not trace.is_simulation:
        return wanted.head(0).select("first_event", arrival_ns=pl.lit(None, pl.Int64)).collect()
    ranks = trace.tracks.lazy().unique("track_id").select("track_id", "rank")
    own = (
        trace.flows.join(wanted, left_on="target_event", right_on="first_event")
        .join(
            trace.events.select("event_id", "track_id", "start_ns", "duration_ns"),
            left_on="source_event",
            right_on="event_id",
        )
        .join(ranks, on="track_id")
        .filter(pl.col("rank").eq_missing(pl.col("target_rank")))
    )
    met = pl.col("start_ns") + pl.col("duration_ns") + pl.col("lag_ns")
    return (
        own.group_by(first_event="target_event").agg(arrival_ns=met.max())
        .collect(engine="streaming")
    )  # fmt: skip


def _numbered(parts: pl.DataFrame, has_steps: bool) -> pl.DataFrame:
    """Give parts of one call the same ``call``: by group and ordinal (and step, of emulated ones, which all have it), else by counting."""
    has_seq = pl.col("group_seq").is_not_null() & pl.col("group_id").is_not_null()
    nth = pl.int_range(pl.len())
    by_name = ["rank_key", "collective", "group_id"]
    at = pl.col("step").fill_null(-1) if has_steps else pl.lit(-1)
    counted = (
        parts.sort("start_ns", "end_ns")
        .with_columns(at=at)
        .with_columns(
            nth=pl.when(has_seq)
            .then(nth.over(*by_name, "group_seq", "at"))
            .otherwise(nth.over(*by_name, has_seq)),
            is_inferred=~has_seq,
            lone=pl.when(~has_seq & pl.col("collective").is_in(POINT_TO_POINT)).then("rank_key"),
        )
    )
    key = pl.struct("collective", "group_id", "group_seq", "is_inferred", "nth", "at", "lone")
    return counted.with_columns(call=key.rank("dense").cast(pl.Int64)).drop("nth", "at", "lone")


def _aligned(parts: pl.DataFrame) -> pl.DataFrame:
    """Take off what the clock of a rank is ahead: the median of how much later than the others' its parts end.

    Only where all end together (SYMMETRIC), in CLOCK_CALLS or more, where it is more than CLOCK_NS and does not itself vary as much.
    """
    ends = parts.filter(
        pl.col("collective").is_in(SYMMETRIC) & (pl.len().over("call") > 1)
    ).with_columns(late=pl.col("end_ns") - pl.col("end_ns").median().over("call"))
    offset = pl.col("late").median()
    offsets = ends.group_by("rank_key").agg(
        offset_ns=offset.round().cast(pl.Int64),
        spread_ns=(pl.col("late") - offset).abs().median(),
        calls=pl.len(),
    )
    is_clock = (
        (pl.col("offset_ns").abs() > CLOCK_NS)
        & (pl.col("spread_ns") <= CLOCK_NS)
        & (pl.col("calls") >= CLOCK_CALLS)
    )
    own = pl.when(is_clock).then("offset_ns").otherwise(0).fill_null(0)
    return (
        parts.join(offsets, on="rank_key", how="left")
        .with_columns(clock_offset_ns=own)
        .with_columns(pl.col("arrival_ns", "start_ns", "end_ns") - pl.col("clock_offset_ns"))
        .drop("offset_ns", "spread_ns", "calls")
    )


def _checked(parts: pl.DataFrame) -> pl.DataFrame:
    """Part calls that cannot have been one, and number all anew in order of time."""
    first, last = pl.col("end_ns").min(), pl.col("end_ns").max()
    together = pl.col("start_ns").max() <= first
    same_end = ~pl.col("collective").is_in(SYMMETRIC) | (last - first <= END_NS)
    one_each = pl.col("rank_key").is_unique().all()
    is_one = ~pl.col("is_inferred").any() | (together & same_end & one_each).all()
    split = parts.with_columns(
        part=pl.when(is_one.over("call")).then(-1).otherwise(pl.int_range(pl.len()).over("call"))
    )
    keys = ["call", "part"]
    numbered = split.with_columns(
        order=pl.struct(pl.col("arrival_ns").min().over(keys), *keys).rank("dense").cast(pl.Int64) - 1,
        parts=pl.len().over(keys).cast(pl.Int64),
    )  # fmt: skip
    if "clock_offset_ns" not in numbered.columns:
        numbered = numbered.with_columns(clock_offset_ns=pl.lit(0, pl.Int64))
    return numbered.with_columns(call="order", is_matched=pl.col("parts") > 1).drop("order", "part")


def _busiest_links(trace: Trace, parts: pl.DataFrame) -> pl.DataFrame:
    """The link that a call keeps busy longest at its peak: call, link (name), link_ns."""
    links = trace.tracks.lazy().filter(
        (pl.col("kind").cast(pl.String) == "link") & (pl.col("peak_bytes_per_s") > 0)
    )
    named = links.unique("track_id").select("track_id", "peak_bytes_per_s", link="name")
    calls = parts.lazy().select("call", "op_id", "step").drop_nulls("op_id").unique()
    needs = (pl.col("bytes") / pl.col("peak_bytes_per_s")).sum() * 1e9
    return (
        trace.events.filter(pl.col("op_id").is_not_null() & pl.col("bytes").is_not_null())
        .select("track_id", "op_id", "step", "bytes")
        .join(named, on="track_id")
        .join(calls, on=["op_id", "step"], nulls_equal=True)
        .group_by("call", "link")
        .agg(link_ns=needs)
        .sort("link_ns", "link", descending=[True, False])
        .group_by("call", maintain_order=True)
        .agg(pl.col("link", "link_ns").first())
        .collect(engine="streaming")
    )
