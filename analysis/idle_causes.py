"""What was an idle engine waiting for? Every gap charged to its causes, so that the causes of an engine sum to its idle time.

A gap is that of ``waits``: from the end of one event to the start of the next one on its track, cut where steps begin; without a later
event in its step it is ``nothing after``. What bound the start of the event that ends it, its *blocker*, and what bound that one, … are
followed back to where the gap begins, and each instant is charged to what the chain did then:

    data from DMA, data from engine, collective   it ran, and the next one waited for its data (wait reason data or collective, or none)
    engine busy, queue   it (no collective) ran on the track that the next one was to run on: that waited for its turn
    buffer, link         it ran, and held what the next one waited for
    semaphore            it had ended: latency and synchronisation until the next one
    peer                 the chain is on another rank: from there on, all of it
    host launch          the chain is on the host: from there on, all of it

Where the trace has no blocker the wait reason alone is told; where it has neither (imports) the cause is inferred and marked so: the
latest of these that lies within the gap,

    host launch   the call that launched the event ended within the gap, or later, and nothing else ended LAUNCH_NS or more after it
    the end of the source of another flow that arrives at the event
    the end of another event of the same core or device

and ``unknown`` if there is none of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis.scope import Scope
from trnprof.analysis.step_graph import NONE
from trnprof.analysis.waits import NONE_AFTER, UNKNOWN, idle_gaps
from trnprof.tracer.reader import Trace

KINDS: Final = ("engine", "stream")
LAUNCH_NS: Final = 10_000
"""Ours: a kernel starts within some µs of its launch; what ends later than that after the launch is what it waited for."""
DMA, ENGINE_DATA, COLLECTIVE = "data from DMA", "data from engine", "collective"
SEMAPHORE, BUFFER, QUEUE, PEER, LINK = "semaphore", "buffer", "queue", "peer", "link"
HOST, BUSY, AFTER = "host launch", "engine busy", "nothing after"
CAUSES: Final = (DMA, ENGINE_DATA, COLLECTIVE, SEMAPHORE, BUFFER, QUEUE, PEER, LINK, HOST, BUSY, AFTER, UNKNOWN)  # fmt: skip
_GAP: Final = ("window", "gap", "track_id", "unit_id", "resource", "start_ns", "end_ns")
_BLOCKER: Final = ("track_id", "name", "rank", "does", "start_ns", "end_ns", "wait_reason", "blocked_by")  # fmt: skip


def idle_causes(trace: Trace, scope: Scope) -> pl.LazyFrame:
    """Every gap of the engines and streams, cut into what it was for.

    Args:
        trace: the trace.
        scope: its windows say where gaps begin and end; only what lies in them is given.

    Returns:
        One row a piece of a gap, clipped to a window: window, gap (ordinal), track_id, unit_id, resource, start_ns, end_ns, cause (of CAUSES),
        blocker_track_id, blocker_name (of the event), peer_rank (``peer`` alone), is_inferred.
    """
    lanes = scope.lanes.filter(pl.col("kind").is_in(KINDS)).lazy().select("track_id")
    gaps = (
        scope.in_windows(
            idle_gaps(scope, ("event_id", "blocked_by")).join(lanes, on="track_id", how="semi")
        )
        .drop("share", "starts_inside")
        .with_row_index("gap")
        .with_columns(pl.col("gap").cast(pl.Int64))
    )
    others = _blockers(trace, scope)
    is_known = pl.col("blocked_by").is_not_null() | (pl.col("reason") != UNKNOWN).fill_null(True)
    found = gaps.collect(engine="streaming")
    known, unknown = (found.filter(e).lazy() for e in (is_known, ~is_known))
    parts = [_known(known, others)]
    if not found.select(is_known.all()).item():
        parts.append(_inferred(unknown, others, trace, scope))
    pieces = pl.concat(parts)
    return pieces.filter(pl.col("end_ns") > pl.col("start_ns"))


def idle_by_cause(trace: Trace, scope: Scope) -> pl.DataFrame:
    """Idle time by cause.

    Returns:
        One row a window, unit, resource, cause and blocker: window, unit_id, resource, cause, blocker_track (its name: a queue, an engine, a
        stream, a thread), blocker_name, peer_rank, is_inferred, idle_ns (summed over the resource's lanes), gaps (how many it has a part in),
        longest_ns (piece).
    """
    keys = ["window", "unit_id", "resource", *("cause", "blocker_track", "blocker_name", "peer_rank", "is_inferred")]  # fmt: skip
    names = trace.tracks.lazy().unique("track_id")
    length = pl.col("end_ns") - pl.col("start_ns")
    found = (
        idle_causes(trace, scope)
        .join(
            names.select(blocker_track_id="track_id", blocker_track="name"),
            on="blocker_track_id",
            how="left",
        )
        .group_by(keys)
        .agg(idle_ns=length.sum(), gaps=pl.col("gap").n_unique(), longest_ns=length.max())
        .filter(pl.col("idle_ns") > 0)
        .collect(engine="streaming")
    )
    named = found.with_columns(pl.col("blocker_name").cast(pl.String))
    return named.sort("window", "idle_ns", *keys[1:], descending=[False, True, *(False for _ in keys[1:])])  # fmt: skip


def _blockers(trace: Trace, scope: Scope) -> pl.LazyFrame:
    """Every event on the scope's clock that one in its windows may wait for: event_id and the columns of _BLOCKER; ``does`` is dma, collective, host or engine."""
    kind, category = pl.col("kind").cast(pl.String), pl.col("category").cast(pl.String)
    does = (
        pl.when((kind == "collective_stream") | (kind == "link") | (category == "collective"))
        .then(pl.lit("collective"))
        .when((kind == "dma_queue") | category.is_in(["dma", "memory"]))
        .then(pl.lit("dma"))
        .when((kind == "thread") | (category == "host"))
        .then(pl.lit("host"))
        .otherwise(pl.lit("engine"))
    )
    tracks = (
        trace.tracks.lazy()
        .filter(pl.col("clock_id") == scope.clock_id)
        .unique("track_id")
        .select("track_id", "kind", "rank")
    )
    first, last = scope.windows["window_start_ns"].min(), scope.windows["window_end_ns"].max()
    ends = pl.col("start_ns") + pl.col("duration_ns").fill_null(0)
    is_near = (ends >= first) & (pl.col("start_ns") <= last)
    near = trace.events.filter(is_near)
    blocking = near.select(event_id="blocked_by").drop_nulls().unique()
    far = trace.events.filter(~is_near).join(blocking, on="event_id", how="semi")
    return (
        pl.concat([near, far])
        .join(tracks, on="track_id")
        .select(
            "event_id",
            *("track_id", "name", "rank", "start_ns", "wait_reason", "blocked_by"),
            does=does,
            end_ns=ends,
        )
    )


def _with_blocker(frame: pl.LazyFrame, others: pl.LazyFrame, key: str, prefix: str) -> pl.LazyFrame:
    renamed = others.select(pl.col("event_id").alias(key), *(pl.col(n).alias(prefix + n) for n in _BLOCKER))  # fmt: skip
    return frame.join(renamed, on=key, how="left")


def _known(gaps: pl.LazyFrame, others: pl.LazyFrame) -> pl.LazyFrame:
    """Gaps with a blocker, a reason, or nothing after them."""
    has_blocker = pl.col("blocked_by").is_not_null()
    told = _without_blocker(gaps.filter(~has_blocker))
    return pl.concat([_chains(gaps.filter(has_blocker), others), told])


def _without_blocker(gaps: pl.LazyFrame) -> pl.LazyFrame:
    return gaps.select(
        *_GAP,
        cause=_cause(pl.col("reason"), pl.lit(None, pl.String)),
        blocker_track_id=pl.lit(None, pl.UInt32),
        blocker_name=pl.lit(None, pl.Categorical),
        peer_rank=pl.lit(None, pl.Int32),
        is_inferred=pl.lit(False),
    )


def _chains(gaps: pl.LazyFrame, others: pl.LazyFrame) -> pl.LazyFrame:
    from trnprof.analysis.idle_kernel import REST, chain_pieces

    waits = gaps.select(*_GAP, "event_id").collect(engine="streaming")
    if not waits.height:
        return _without_blocker(gaps)
    events = _linked(others)
    number = {n: events[n].fill_null(NONE).cast(pl.Int64).to_numpy() for n in ("rank", "blocker")}
    gap, source, waiter, start, end, part = chain_pieces(
        waits["start_ns"].to_numpy(),
        waits["end_ns"].to_numpy(),
        events["event_id"].search_sorted(waits["event_id"]).to_numpy().astype(np.int64),
        events["start_ns"].to_numpy(),
        events["end_ns"].to_numpy(),
        number["blocker"],
        number["rank"],
        (events["does"] == "host").to_numpy(),
    )
    kinds, kind_of = _kinds_of_events(events)
    count = kinds.height + 1  # the last one is of what is not known
    of_source = np.where(source < 0, count - 1, kind_of[source])
    code = (of_source * count + kind_of[waiter]) * (REST + 1) + part
    places = pl.DataFrame({"code": code}).lazy().with_columns(start_ns=pl.lit(pl.Series(start)), end_ns=pl.lit(pl.Series(end)))  # fmt: skip
    lanes = waits.drop("start_ns", "end_ns", "event_id")[gap]
    return (
        pl.concat([lanes.lazy(), places], how="horizontal")
        .join(_described_codes(np.unique(code), kinds, count).lazy(), on="code")
        .select(
            *_GAP,
            "cause",
            "blocker_track_id",
            "blocker_name",
            "peer_rank",
            is_inferred=pl.lit(False),
        )
    )


def _kinds_of_events(events: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """The events that are alike in all that decides how a wait is called: those kinds, and int64[n], which each event is of."""
    keys = ["track_id", "name", "rank", "does", "wait_reason"]
    kinds = events.select(keys).unique().sort(keys).with_row_index("kind")
    found = events.select(keys).join(kinds, on=keys, how="left", nulls_equal=True, maintain_order="left")  # fmt: skip
    return kinds, found["kind"].to_numpy().astype(np.int64)


def _described_codes(codes: NDArray[np.int64], kinds: pl.DataFrame, count: int) -> pl.DataFrame:
    """How a wait is called, by code: (kind of what was waited for, kind of what waits, part of the chain) as one number."""
    from trnprof.analysis.idle_kernel import REST, WAIT

    pairs, part = np.divmod(codes, REST + 1)
    source, waiter = np.divmod(pairs, count)
    ran = kinds.select(pl.col("kind").cast(pl.Int64), "name", "rank", "does", by="track_id")
    held = kinds.select(waiter=pl.col("kind").cast(pl.Int64), reason=pl.col("wait_reason").cast(pl.String), to="track_id", to_rank="rank")  # fmt: skip
    reason = _turn(pl.col("reason"))
    is_peer = (pl.col("part") == REST) & (pl.col("rank") != pl.col("to_rank"))
    cause = (
        pl.when(is_peer)
        .then(pl.lit(PEER))
        .when((pl.col("part") == WAIT) & reason.is_in(["data", "collective"]))
        .then(pl.lit(SEMAPHORE))
        .otherwise(_cause(reason, pl.col("does")))
    )
    return (
        pl.DataFrame({"code": codes, "kind": source, "waiter": waiter, "part": part})
        .join(ran, on="kind", how="left")
        .join(held, on="waiter", how="left")
        .select(
            "code",
            cause=cause,
            blocker_track_id="by",
            blocker_name="name",
            peer_rank=pl.when(cause == PEER).then("rank"),
        )
    )


def _linked(others: pl.LazyFrame) -> pl.DataFrame:
    """The events in order of id, with the index of what blocked each."""
    events = others.sort("event_id").collect(engine="streaming")
    at = events["event_id"].search_sorted(events["blocked_by"].fill_null(0)).cast(pl.Int64)
    if not events.height:
        return events.with_columns(blocker=at)
    place = at.clip(0, events.height - 1)
    is_there = events["event_id"].gather(place) == events["blocked_by"]
    return events.with_columns(blocker=pl.when(is_there).then(place))


def _turn(reason: pl.Expr) -> pl.Expr:
    """An event without wait reason had to wait for the one before it on its track, which bound it."""
    same = pl.col("by") == pl.col("to")
    turn = (
        pl.when(pl.col("does") == "dma")
        .then(pl.lit(QUEUE))
        .when(pl.col("does") == "collective")
        .then(pl.lit(COLLECTIVE))
        .otherwise(pl.lit("engine"))
    )
    return pl.when(reason.is_null() & same).then(turn).otherwise(reason.fill_null("data"))


def _cause(reason: pl.Expr, does: pl.Expr) -> pl.Expr:
    """What a wait reason is called, by what was waited for."""
    by_what = does.replace_strict(
        {"dma": DMA, "collective": COLLECTIVE, "host": HOST, "engine": ENGINE_DATA},
        default=None,
        return_dtype=pl.String,
    )
    named = reason.replace({NONE_AFTER: AFTER, "host": HOST, "engine": BUSY})
    return (
        pl.when(reason.is_in(["data", UNKNOWN]))
        .then(pl.coalesce(by_what, pl.when(reason == "data").then(pl.lit(ENGINE_DATA)), named))
        .when((does == "host").fill_null(False))
        .then(pl.lit(HOST))
        .otherwise(named)
    )


def _described(cause: pl.Expr) -> list[pl.Expr]:
    peer = pl.when(cause == PEER).then(pl.col("b_rank"))
    return [
        cause.alias("cause"),
        pl.col("b_track_id").alias("blocker_track_id"),
        pl.col("b_name").alias("blocker_name"),
        peer.alias("peer_rank"),
    ]


def _inferred(gaps: pl.LazyFrame, others: pl.LazyFrame, trace: Trace, scope: Scope) -> pl.LazyFrame:
    """Gaps without blocker and reason: the latest candidate that lies in the gap."""
    open_gaps = gaps.select(*_GAP, "event_id")
    candidates = pl.concat([_ended(open_gaps, scope), _arrived(open_gaps, trace)])
    chosen = (
        candidates.sort("at_ns", "rank_of_kind", "source")
        .group_by("gap")
        .agg(pl.col("source", "is_launch").last())
    )
    found = open_gaps.join(chosen, on="gap", how="left")
    described = _with_blocker(found, others, "source", "b_").unique("gap")  # ids may repeat
    does = pl.when("is_launch").then(pl.lit("host")).otherwise("b_does")
    return described.select(
        *_GAP, *_described(_cause(pl.lit(UNKNOWN), does)), is_inferred=pl.lit(True)
    )


def _ended(gaps: pl.LazyFrame, scope: Scope) -> pl.LazyFrame:
    """What ended last on another lane of the unit: gap, source (event_id), at_ns, rank_of_kind, is_launch."""
    ends = scope.events.select(
        "unit_id", ended_ns="end_ns", source="event_id", other="track_id"
    ).sort("ended_ns", "source")
    return (
        gaps.sort("end_ns")
        .join_asof(ends, left_on="end_ns", right_on="ended_ns", by="unit_id", check_sortedness=False)
        .filter((pl.col("ended_ns") > pl.col("start_ns")) & (pl.col("other") != pl.col("track_id")))
        .select("gap", "source", at_ns="ended_ns", rank_of_kind=pl.lit(0), is_launch=pl.lit(False))
    )  # fmt: skip


def _arrived(gaps: pl.LazyFrame, trace: Trace) -> pl.LazyFrame:
    """Sources of the flows that arrive at the event that ends a gap; a launch counts as if it had ended LAUNCH_NS later."""
    events = trace.events.select(
        source_event="event_id",
        call_ns="start_ns",
        ended_ns=pl.col("start_ns") + pl.col("duration_ns").fill_null(0),
    )
    is_launch = pl.col("kind").cast(pl.String) == "launch"
    at = pl.when("is_launch").then(pl.col("ended_ns") + LAUNCH_NS).otherwise("ended_ns")
    until = pl.col("end_ns")
    in_gap = (pl.col("ended_ns") > pl.col("start_ns")) & pl.when("is_launch").then(
        pl.col("call_ns") <= until
    ).otherwise(pl.col("ended_ns") <= until)
    return (
        gaps.join(trace.flows, left_on="event_id", right_on="target_event")
        .join(events, on="source_event")
        .with_columns(is_launch=is_launch)
        .filter(in_gap)
        .select(
            "gap",
            source="source_event",
            at_ns=at.clip(upper_bound=until),
            rank_of_kind=pl.when("is_launch").then(1).otherwise(2),
            is_launch="is_launch",
        )
    )
