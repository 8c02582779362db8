"""What had to happen before each event of a step could start? The step's events and the edges between them, as arrays.

Edges are the trace's ``flows``. What bound an event's start, its *blocker*, is its ``blocked_by`` where the trace has it (the emulator
knows); in imports it is inferred, and marked so: whichever came last, and not after the start, of

    the ends of the sources of the flows that arrive at it (of a launch its start: the device may begin before the call returns)
    the end of the event before it on its track

All times are on one clock: that of the device tracks. Host threads take part where they are on it (imports).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis.scope import Scope, ancestors
from trnprof.analysis.steps import median_step
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace

I64 = NDArray[np.int64]

KINDS: Final = ("engine", "dma_queue", "collective_stream", "link", "stream", "thread")
"""Kinds of tracks whose events take part; of links, those whose events wait for something (of a collective run alone)."""
NONE: Final = -1
LAUNCH: Final = "launch"
_COLUMNS: Final = (
    "event_id",
    "track_id",
    "start_ns",
    "name",
    "category",
    "op_id",
    "bytes",
    "descriptor_bytes",
    "source_memory",
    "blocked_by",
    "wait_reason",
)


@dataclass(frozen=True)
class Edges:
    """Who waits for whom.

    Attributes:
        targets, sources: int64[e], indices of events: the one that waits and the one waited for.
        lags_ns: int64[e], how long after the source's end the target may start; negative where it may start before.
        kinds: str[e], of the flows.
    """

    targets: I64
    sources: I64
    lags_ns: I64
    kinds: NDArray[np.str_]


@dataclass(frozen=True)
class StepGraph:
    """The events of a step, of all ranks that have events, and what they wait for.

    Attributes:
        step: its ordinal; None for the whole trace.
        start_ns, end_ns: when the first rank began and the last one ended it.
        events: one row an event in order of start, end and id; its row number is the index below. Columns of the table ``events``,
            with end_ns, rank, unit_id (core, chip or host above it), kind and resource (name) of its track, and ``track`` (ordinal of that).
        edges: the flows among them.
        blockers: int64[n], index of what bound each start, NONE where nothing in the step did.
        is_inferred: whether that was worked out from the times.
        has_all_edges: whether the trace has all dependencies (``--edges all``), not only those that bound a start.
    """

    step: int | None
    start_ns: int
    end_ns: int
    events: pl.DataFrame
    edges: Edges
    blockers: I64
    is_inferred: bool
    has_all_edges: bool

    def __len__(self) -> int:
        return self.events.height

    def column(self, name: str) -> I64:
        """int64[n]: a column of whole numbers without gaps."""
        return self.events[name].to_numpy().astype(np.int64)


def step_graph(trace: Trace, scope: Scope, step: int | None) -> StepGraph:
    """Gather a step.

    Args:
        trace: the trace.
        scope: of its device tracks (``scope.device_scope``).
        step: which; None takes the whole trace.

    Raises:
        TrnprofError: the trace has no such step.
    """
    wanted = pl.col("step").is_null() if step is None else pl.col("step") == step
    windows = scope.windows.filter(wanted)
    if not windows.height:
        raise TrnprofError(f"{trace.name}: no step {step}")
    bounds = windows.select(pl.col("window_start_ns").min(), pl.col("window_end_ns").max()).row(0)
    events = _events(trace, scope, step, *bounds)
    edges = _edges(trace, events)
    is_inferred = events["blocked_by"].null_count() == events.height
    if is_inferred:
        blockers = _inferred_blockers(events, edges)
    else:
        blockers = _indices(events, events["blocked_by"])
    return StepGraph(
        step,
        bounds[0],
        max(bounds[1], events.select(pl.col("end_ns").max()).item() or bounds[1]),
        events,
        edges,
        blockers,
        is_inferred,
        bool((blockers[edges.targets] != edges.sources).any()) and not is_inferred,
    )


def step_or_median_graph(trace: Trace, scope: Scope, step: int | None) -> StepGraph:
    """Gather the step asked for, else the median one, else (without steps) the whole trace; as ``step_graph`` does."""
    return step_graph(trace, scope, median_step(scope) if step is None else step)


def _events(
    trace: Trace, scope: Scope, step: int | None, start_ns: int, end_ns: int
) -> pl.DataFrame:
    tracks = _tracks(trace, scope.clock_id)
    start = pl.col("start_ns")
    in_window = (start >= start_ns) & (start < end_ns)
    is_in = pl.lit(True) if step is None else pl.coalesce(pl.col("step") == step, in_window)
    takes_part = (pl.col("kind") != "link") | pl.col("blocked_by").is_not_null()
    return (
        trace.events.filter(
            pl.col("track_id").is_in(tracks["track_id"].implode())
            & (pl.col("category") != "marker")
            & (pl.col("duration_ns") >= 0)
            & is_in
        )
        .select(*_COLUMNS, end_ns=start + pl.col("duration_ns"))
        .join(tracks.lazy(), on="track_id")
        .filter(takes_part)
        .sort("start_ns", "end_ns", "event_id")
        .collect(engine="streaming")
    )


def _tracks(trace: Trace, clock_id: int) -> pl.DataFrame:
    kind = pl.col("kind").cast(pl.String)
    placed = trace.tracks.with_columns(unit_id=ancestors(trace.tracks, ("core", "chip", "host")))
    return (
        placed.filter((pl.col("clock_id") == clock_id) & kind.is_in(KINDS))
        .unique("track_id", keep="first", maintain_order=True)
        .with_row_index("track")
        .select(
            "track_id",
            pl.col("track").cast(pl.Int64),
            "rank",
            unit_id=pl.coalesce("unit_id", "track_id"),
            kind=kind,
            resource="name",
        )
    )


def _edges(trace: Trace, events: pl.DataFrame) -> Edges:
    ids = events.lazy().select("event_id", "start_ns", "end_ns").with_row_index("index")
    index = pl.col("index").cast(pl.Int64)
    source = ids.select(
        source_event="event_id", source=index, source_start="start_ns", source_end="end_ns"
    )
    target = ids.select(target_event="event_id", target=index, target_start="start_ns")
    lag = pl.col("lag_ns")
    if not trace.is_simulation:  # measured: what happened was allowed to
        from_end = pl.col("target_start") - pl.col("source_end")
        lag = pl.min_horizontal(lag, from_end)
    found = (
        trace.flows.join(source, on="source_event")
        .join(target, on="target_event")
        .filter(pl.col("target") != pl.col("source"))
        .filter(pl.col("target_start") >= pl.col("source_start"))
        .select("target", "source", lag_ns=lag, kind=pl.col("kind").cast(pl.String))
        .sort("target", "source")
        .collect(engine="streaming")
    )
    return Edges(*(found[name].to_numpy() for name in ("target", "source", "lag_ns", "kind")))


def _indices(events: pl.DataFrame, ids: pl.Series) -> I64:
    """int64[n]: where the events of some ids are, NONE for those of none or elsewhere."""
    index = events.select("event_id").with_row_index("index")
    found = pl.DataFrame({"event_id": ids}).join(
        index, on="event_id", how="left", maintain_order="left"
    )
    return found["index"].cast(pl.Int64).fill_null(NONE).to_numpy()


def _inferred_blockers(events: pl.DataFrame, edges: Edges) -> I64:
    """The latest of the sources of flows and of the event before on the track; a flow wins a tie."""
    at = events.select("track", "start_ns", "end_ns").with_row_index("index")
    before = (
        at.select(
            target=pl.col("index").cast(pl.Int64),
            source=pl.col("index").cast(pl.Int64).shift(1).over("track"),
            is_launch=pl.lit(False),
            is_flow=pl.lit(False),
        )
        .drop_nulls("source")
    )  # fmt: skip
    flows = pl.DataFrame(
        {
            "target": edges.targets,
            "source": edges.sources,
            "is_launch": edges.kinds == LAUNCH,
            "is_flow": np.ones(len(edges.targets), bool),
        },
        schema=before.schema,
    )
    times = at.select("start_ns", "end_ns", pl.col("index").cast(pl.Int64))
    from_ns = pl.when("is_launch").then("source_start_ns").otherwise("source_end_ns")
    latest = (
        pl.concat([before, flows])
        .join(times.select(source="index", source_start_ns="start_ns", source_end_ns="end_ns"), on="source")
        .join(times.select(target="index", target_start_ns="start_ns"), on="target")
        .with_columns(from_ns=from_ns)
        .filter(pl.col("from_ns") <= pl.col("target_start_ns"))
        .sort("target", "from_ns", "is_flow", "source")
        .group_by("target")
        .agg(pl.col("source").last())
    )  # fmt: skip
    blockers = np.full(events.height, NONE, np.int64)
    blockers[latest["target"].to_numpy()] = latest["source"].to_numpy()
    return blockers
