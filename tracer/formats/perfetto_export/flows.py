"""Which dependencies are drawn as arrows, and on which packets do their ends stand?

Perfetto draws an arrow from the slice that first carries a flow's id to the next one in time. Each edge has an id of its own: the
source's BEGIN carries it, and the target's BEGIN ends it, or its END where the target did not begin after the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.perfetto_export.clocks import Placement
from trnprof.tracer.formats.perfetto_export.encode import Bytes, Pieces, tag
from trnprof.tracer.reader import Trace

FlowChoice = Literal["critical", "none", "collective", "all"]
FLOW_CHOICES: Final[tuple[str, ...]] = get_args(FlowChoice)

Ids = NDArray[np.uint64]


@dataclass(frozen=True)
class Edges:
    """Dependencies between events: event ids of both ends, as many of each."""

    source: Ids
    target: Ids


@dataclass(frozen=True)
class Marks:
    """Flow fields of events, encoded: those of ``events[i]``, sorted, are ``data[i * width : (i + 1) * width]``."""

    events: Ids
    data: Bytes
    width: int

    def of(self, event_ids: Ids) -> Pieces:
        """The fields of each of n events."""
        low = np.searchsorted(self.events, event_ids, "left")
        high = np.searchsorted(self.events, event_ids, "right")
        return Pieces(self.data, low * self.width, high * self.width)


@dataclass(frozen=True)
class Flows:
    """All arrows of the file.

    Attributes:
        begin: fields of the BEGIN packets.
        end: fields of the END packets.
        drawn: number of arrows.
        undrawn: edges that no arrow can show: an end is missing, on another time axis, or the target ends before the source
            begins.
    """

    begin: Marks
    end: Marks
    drawn: int
    undrawn: int


def chosen_edges(trace: Trace, flows: FlowChoice, placement: Placement) -> Edges:
    """The edges of the trace that ``flows`` asks for.

    ``critical`` walks ``blocked_by`` back from the event that ends last in each step; ``all`` and ``collective`` are rows of
    the flows table. Memory: 32 B an event that has ``blocked_by``, or 16 B a row.
    """
    if flows == "none":
        return Edges(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    if flows == "critical":
        return _critical_edges(trace, placement)
    rows = trace.flows
    if flows == "collective":
        rows = rows.filter(pl.col("kind") == "collective")
    ends = rows.select("source_event", "target_event").collect()
    return Edges(ends["source_event"].to_numpy(), ends["target_event"].to_numpy())


def place_flows(trace: Trace, edges: Edges, placement: Placement) -> Flows:
    """Put both ends of each edge on packets of their events."""
    if not edges.source.size:
        return Flows(_marks([]), _marks([]), 0, 0)
    ids = np.unique(np.concatenate([edges.source, edges.target]))
    start, end, axis = _times(trace, ids, placement)
    source, target = np.searchsorted(ids, edges.source), np.searchsorted(ids, edges.target)
    known = (axis[source] >= 0) & (axis[source] == axis[target])
    on_begin = known & (start[source] < start[target])
    on_end = known & ~on_begin & (start[source] < end[target])
    numbers = np.arange(1, edges.source.size + 1, dtype=np.uint64)
    drawn = on_begin | on_end
    begin = [
        ("flow_ids", edges.source[drawn], numbers[drawn]),
        ("terminating_flow_ids", edges.target[on_begin], numbers[on_begin]),
    ]
    ends = [("terminating_flow_ids", edges.target[on_end], numbers[on_end])]
    return Flows(_marks(begin), _marks(ends), int(drawn.sum()), int((~drawn).sum()))


def _critical_edges(trace: Trace, placement: Placement) -> Edges:
    blocked = (
        trace.events.filter(pl.col("blocked_by").is_not_null())
        .select("event_id", "blocked_by")
        .collect()
        .sort("event_id")
    )
    ids, blocker = blocked["event_id"].to_numpy(), blocked["blocked_by"].to_numpy()
    if not ids.size:
        return Edges(ids, blocker)
    last = _last_events(trace, placement)
    is_on_path = _walk(_rows_in(ids, blocker), _rows_in(ids, last))
    return Edges(blocker[is_on_path], ids[is_on_path])


def _last_events(trace: Trace, placement: Placement) -> Ids:
    """The event that ends last in each step, on each time axis by itself."""
    axes = pl.LazyFrame({"track_id": placement.track_id, "axis": placement.axis})
    end = pl.col("start_ns") + pl.col("duration_ns")
    last = (
        trace.events.filter(pl.col("duration_ns").is_not_null())
        .select("event_id", "track_id", "step", end.alias("end_ns"))
        .join(axes, on="track_id")
        .group_by("step", "axis")
        .agg(pl.col("event_id").filter(pl.col("end_ns") == pl.col("end_ns").max()).min())
        .collect()
    )
    return last["event_id"].to_numpy()


def _rows_in(ids: Ids, wanted: Ids) -> NDArray[np.int64]:
    """Where each wanted id is in sorted ids; -1 where it is not."""
    rows = np.minimum(np.searchsorted(ids, wanted), ids.size - 1)
    return np.where(ids[rows] == wanted, rows, -1)


@compiled
def _walk(blocker: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows lie on a chain of blockers from one of ``begins``."""
    is_on_path = np.zeros(blocker.size, dtype=np.bool_)
    for begin in begins:
        row = begin
        while row >= 0 and not is_on_path[row]:
            is_on_path[row] = True
            row = blocker[row]
    return is_on_path


def _times(
    trace: Trace, ids: Ids, placement: Placement
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Start, end and axis of each event on its axis; an open one ends at its start, a missing one has axis -1."""
    found = (
        trace.events.select("event_id", "track_id", "start_ns", "duration_ns")
        .join(pl.LazyFrame({"event_id": ids}), on="event_id", how="semi")
        .collect()
    )
    at = np.searchsorted(ids, found["event_id"].to_numpy())
    track = placement.rows(found["track_id"].to_numpy())
    start, end = np.zeros(ids.size, np.int64), np.zeros(ids.size, np.int64)
    axis = np.full(ids.size, -1, np.int64)
    start[at] = found["start_ns"].to_numpy() + placement.offset_ns[track]
    end[at] = start[at] + found["duration_ns"].fill_null(0).to_numpy()
    axis[at] = placement.axis[track]
    return start, end, axis


def _marks(parts: list[tuple[str, Ids, Ids]]) -> Marks:
    """Fields (name, events, flow ids) in order of their events."""
    rows, events = [], []
    for name, event, number in parts:
        key = np.frombuffer(tag(pb.TrackEvent, name), np.uint8)
        value = number.astype("<u8").view(np.uint8).reshape(-1, 8)
        rows.append(np.hstack([np.broadcast_to(key, (number.size, key.size)), value]))
        events.append(event)
    if not events:
        return Marks(np.zeros(0, np.uint64), np.zeros(0, np.uint8), 0)
    event = np.concatenate(events)
    order = np.argsort(event, kind="stable")
    data = np.concatenate(rows)[order]
    return Marks(event[order], data.reshape(-1), data.shape[1])
