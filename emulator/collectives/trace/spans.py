"""What is each stream busy with? A chip's part in a collective, its coming late before it, and what it gets last at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.trace.kernel import NO_EVENT, Transfers, last_received
from trnprof.emulator.collectives.trace.rows import U64
from trnprof.emulator.collectives.trace.tracks import Numbers
from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.trace_rows import to_ns

LATE: Final = "late"
LAST_ARRIVAL: Final = "last arrival"
_LATE, _SPAN, _ARRIVAL = range(3)
"""Kinds of rows, in the order in which a stream has them."""
_SHOWN: Final = ("track_id", "start_ns", "duration_ns", "ready_ns", "op_id", "bytes")


def stream_spans(
    outcomes: Sequence[Outcome], numbers: Numbers, transfers: Transfers, first_ops: Sequence[int]
) -> pl.DataFrame:
    """Rows of all streams in their final order: by track and time.

    A stream has one span, from its rank's call until the last bytes that it needs have left their last server; behind it an event from
    then until they are there. The stream of a rank that comes late has a marker from the first rank's call to its own before them.

    Args:
        outcomes: of all collectives in flight at once.
        numbers: of tracks.
        transfers: the tasks.
        first_ops: op_id of each collective.

    Returns:
        Columns of ``events`` without ids and blockers, with ``what`` (the kind of row), ``rank`` (int64, counted over all outcomes) and
        ``task`` (int64, what comes last; -1 where nothing does).
    """
    task = _last_received(outcomes, transfers)
    at, parts = 0, []
    for part, (first_op, outcome) in enumerate(zip(first_ops, outcomes, strict=True)):
        ranks = len(outcome.request.ranks)
        parts.append(
            _of_outcome(outcome, numbers.first_stream(part), transfers, task[at : at + ranks])
            .with_columns(
                pl.col("rank") + at,
                op_id=pl.lit(first_op, pl.UInt32),
                name=_name(outcome.request.collective),
                bytes=pl.when(pl.col("what") == _SPAN).then(
                    pl.lit(outcome.request.bytes, pl.Int64)
                ),
            )
            .sort("track_id", "what")
        )
        at += ranks
    return pl.concat(parts)


def late_ids(spans: pl.DataFrame, ids: U64, outcomes: Sequence[Outcome]) -> U64:
    """uint64[messages], the event by which the sender of each message came late; NO_EVENT where it did not.

    Args:
        spans: of all streams.
        ids: uint64[rows], theirs.
        outcomes: of all collectives in flight at once.
    """
    is_late = (spans["what"] == _LATE).to_numpy()
    of_rank = np.full(int(spans["rank"].max()) + 1, NO_EVENT, np.uint64)  # type: ignore[arg-type]
    of_rank[spans["rank"].to_numpy()[is_late]] = ids[is_late]
    return of_rank[_positions(outcomes, "source")]


def span_columns(spans: pl.DataFrame, ids: U64, task_ids: U64) -> dict[str, Any]:
    """Columns of ``events`` of all streams.

    What comes last is blocked by the transfer that brings it, the part of a late rank by its coming late.

    Args:
        spans: of all streams.
        ids: uint64[rows], theirs.
        task_ids: uint64[tasks], those of the transfers.
    """
    what, task = spans["what"].to_numpy(), spans["task"].to_numpy()
    blocker = np.full(len(spans), NO_EVENT, np.uint64)
    arrives = what == _ARRIVAL
    blocker[arrives] = task_ids[task[arrives]]
    after_late = np.flatnonzero(what[:-1] == _LATE)
    blocker[after_late + 1] = ids[after_late]
    has_waited = np.zeros(len(spans), np.bool_)
    has_waited[after_late + 1] = True
    is_marker = pl.col("what") == _LATE
    whole = spans.select(
        *_SHOWN,
        "name",
        category=pl.when(is_marker).then(pl.lit("marker")).otherwise(pl.lit("collective")),
        step=pl.lit(0, pl.Int32),
        blocked_by=pl.Series(blocker).set(pl.Series(blocker == NO_EVENT), None),
        wait_reason=pl.when(pl.Series(has_waited)).then(pl.lit("host")),
    )
    return {name: whole[name] for name in whole.columns}


def _of_outcome(
    outcome: Outcome, first_track: int, transfers: Transfers, task: I64
) -> pl.DataFrame:
    request = outcome.request
    ranks = np.array(request.ranks, np.int64)
    release = np.zeros(len(ranks), np.int64)
    release[list(request.release_ps)] = list(request.release_ps.values())
    start = to_ns(release)
    end = np.maximum(to_ns(outcome.rank_end_ps), start)
    sent = np.full(len(ranks), -1, np.int64)
    sent[task >= 0] = to_ns(transfers.end_ps[task[task >= 0]])
    # what was there before a late rank came was nothing to wait for
    waits = sent > start
    split = np.where(waits, np.minimum(sent, end), end)
    frame = pl.DataFrame({"track_id": first_track + ranks, "rank": np.arange(len(ranks))})
    rows = []
    for what, begin, past, chosen in (
        (_LATE, np.zeros_like(start), start, start > 0),
        (_SPAN, start, split, np.ones(len(ranks), np.bool_)),
        (_ARRIVAL, split, end, waits),
    ):
        times = {"start_ns": begin, "duration_ns": past - begin, "ready_ns": begin, "task": task}
        row = frame.with_columns(**{name: pl.Series(value) for name, value in times.items()})
        rows.append(row.filter(pl.Series(chosen)).with_columns(what=pl.lit(what)))
    return pl.concat(rows).with_columns(pl.col("track_id").cast(pl.UInt32))


def _name(collective: str) -> pl.Expr:
    return (
        pl.when(pl.col("what") == _LATE)
        .then(pl.lit(LATE))
        .when(pl.col("what") == _ARRIVAL)
        .then(pl.lit(LAST_ARRIVAL))
        .otherwise(pl.lit(collective))
    )


def _positions(outcomes: Sequence[Outcome], end: str) -> I64:
    """int64[messages of all], the rank at one end (source, target), counted over all outcomes."""
    first = np.cumsum([0, *(len(outcome.request.ranks) for outcome in outcomes)])
    return np.concatenate(
        [
            getattr(outcome.messages, end).astype(np.int64) + at
            for at, outcome in zip(first[:-1], outcomes, strict=True)
        ]
    )


def _last_received(outcomes: Sequence[Outcome], transfers: Transfers) -> I64:
    """int64[ranks of all], the task that brings each the last that it needs; -1 where it needs nothing."""
    ranks = sum(len(outcome.request.ranks) for outcome in outcomes)
    return last_received(transfers, _positions(outcomes, "target").astype(np.int32), ranks)
