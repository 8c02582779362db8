"""In which order are the events of a track written, so that each END closes its own BEGIN?

Perfetto's END closes the innermost open slice, and equal times keep the order of the file; a wrong order gives wrong slices without
a word. Here the packets of each track are in order of time, each END follows its BEGIN, and no two events of a track
overlap. Different tracks may come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from trnprof.tracer.errors import TraceError
from trnprof.tracer.formats.perfetto_export.clocks import Placement
from trnprof.tracer.reader import Trace

BATCH_ROWS: Final = 1 << 17
_BUSY = "_busy_until_ns"


class UnorderedError(Exception):
    """The events of a track do not come in order; sort them all and begin again."""


def batches(rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """All rows, ``BATCH_ROWS`` at a time and in order; no more than one batch is held (collect_batches would read ahead)."""
    at, height = 0, BATCH_ROWS
    while height == BATCH_ROWS:
        batch = rows.slice(at, BATCH_ROWS).collect()
        at, height = at + BATCH_ROWS, batch.height
        yield batch


def event_batches(
    trace: Trace, columns: list[str], placement: Placement, *, sort: bool
) -> Iterator[pl.DataFrame]:
    """All events in batches, those of a track in order of time.

    Args:
        trace: whose events.
        columns: of each batch; ``track_id``, ``start_ns`` and ``duration_ns`` are among them.
        placement: of their tracks.
        sort: sort all events at once, in memory, for traces whose files are not in order.

    Raises:
        UnorderedError: they are not in order, and ``sort`` was not asked for.
        TraceError: events of one track overlap.
    """
    busy = (pl.col("start_ns") + pl.col("duration_ns").fill_null(0)).alias(_BUSY)
    events = trace.events.select(*columns, busy)
    order = ["track_id", "start_ns", _BUSY]
    if sort:
        events = events.sort(order).collect().lazy()
    busy_until = np.full(placement.track_id.size, np.iinfo(np.int64).min)
    for unsorted in batches(events):
        batch = unsorted if sort else unsorted.sort(order)
        _check(trace, batch, placement, busy_until, is_sorted=sort)
        yield batch.drop(_BUSY)


def _check(
    trace: Trace,
    batch: pl.DataFrame,
    placement: Placement,
    busy_until: np.ndarray[tuple[int], np.dtype[np.int64]],
    *,
    is_sorted: bool,
) -> None:
    """Look for overlap in a sorted batch, and with what came before; remember how far each track is busy.

    Events of no length may lie anywhere. An open event is never closed, so that others may begin in it.
    """
    lasting = batch.filter(pl.col("duration_ns").is_null() | (pl.col("duration_ns") > 0))
    if not lasting.height:
        return
    row = placement.rows(lasting["track_id"].to_numpy())
    start, busy = lasting["start_ns"].to_numpy(), lasting[_BUSY].to_numpy()
    is_first = np.diff(row, prepend=-1) != 0
    within = np.flatnonzero(~is_first[1:] & (start[1:] < busy[:-1])) + 1
    if within.size:
        raise _overlap(trace, lasting, int(within[0]))
    across = np.flatnonzero(is_first & (start < busy_until[row]))
    if across.size:
        raise _overlap(trace, lasting, int(across[0])) if is_sorted else UnorderedError
    is_last = np.append(is_first[1:], True)
    busy_until[row[is_last]] = busy[is_last]


def _overlap(trace: Trace, lasting: pl.DataFrame, row: int) -> TraceError:
    event = lasting.row(row, named=True)
    tracks = trace.tracks.filter(pl.col("track_id") == event["track_id"])
    return TraceError(
        f"{trace.path}: events: {event['name']!r} at {event['start_ns']} ns overlaps the event before it on track "
        f"{event['track_id']} ({tracks['name'][0]}), where nothing may overlap; run trnprof validate {trace.path}"
    )
