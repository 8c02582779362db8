"""How long would a step take if its events took other times? Its graph, scheduled again; nothing is lowered anew.

What an event holds is read from the trace: its track, in the order of the trace (engines, queues and streams run in order), and what the
transfers of a core share, by the rates that the trace tells of its machine:

    a DMA holds its queue for at least a slot an instruction, the core's DMA engines for its bytes at the rate of its direction, and the
    core's share of the HBM stack for its bytes
    collectives on streams that have bound one another hold the links they share

Imports have neither rates nor all dependencies: there an event follows its blocker as late as it did, so that what waited for something
that the trace does not show still does. Nothing starts before its rank's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis.dma_machine import engines_bytes_per_s, queue_slot_ns
from trnprof.analysis.step_graph import I64, NONE, StepGraph
from trnprof.tracer.reader import Trace

F64 = NDArray[np.float64]
_PS: Final = 1000


@dataclass(frozen=True)
class Changes:
    """What is otherwise about the events of a step.

    Attributes:
        factors: float64[n], of each event's own time and of how long it holds what it shares.
        added_ns: float64[n], to its own time, before that.
        issue_factor: of the time that an engine takes to issue a DMA; the first byte comes as long after the call as before.
    """

    factors: F64
    added_ns: F64
    issue_factor: float = 1.0


@dataclass(frozen=True)
class Retimed:
    """When each event runs now.

    Attributes:
        starts_ns: int64[n].
        ends_ns: int64[n].
        blockers: int64[n], what bound each start, -1 for nothing.
        step_ns: how long the step takes, which ends as long after its last event as it did.
    """

    starts_ns: I64
    ends_ns: I64
    blockers: I64
    step_ns: int


@dataclass(frozen=True)
class _Held:
    """Pairs of an event and a server, and how long the one holds the other."""

    events: I64
    servers: I64
    ns: F64


def unchanged(graph: StepGraph) -> Changes:
    """Every event as it is."""
    return Changes(np.ones(len(graph)), np.zeros(len(graph)))


def retime(trace: Trace, graph: StepGraph, changes: Changes) -> Retimed:
    """Schedule a step again.

    Args:
        trace: it is of.
        graph: the step.
        changes: of its events.
    """
    # loads the compiler: only when something is timed
    from trnprof.emulator.scheduler import schedule
    from trnprof.emulator.taskgraph import TaskGraph

    lengths = (graph.column("end_ns") - graph.column("start_ns")).astype(np.float64)
    factors = changes.factors * np.where(_is_issue(graph), changes.issue_factor, 1.0)
    durations = np.maximum((lengths + changes.added_ns) * factors, 0.0)
    tracks = graph.column("track")
    least_ns = graph.events.select(queue_slot_ns(trace)).to_series().to_numpy()
    slots = np.maximum(durations, least_ns * factors)
    parts = [_Held(np.arange(len(graph)), tracks, slots)]
    in_order = [np.ones(int(tracks.max(initial=-1)) + 1, bool)]
    for shared in (_shared_by_dmas(trace, graph), _shared_links(graph, lengths)):
        first = sum(len(kinds) for kinds in in_order)
        ns = np.minimum(shared.ns * factors[shared.events], durations[shared.events])
        parts.append(_Held(shared.events, shared.servers + first, ns))
        in_order.append(np.zeros(int(shared.servers.max(initial=-1)) + 1, bool))
    targets, sources, lags = _waits(graph, lengths, durations, changes)
    held = _Held(
        *(np.concatenate([getattr(p, n) for p in parts]) for n in ("events", "servers", "ns"))
    )
    by_event = np.argsort(held.events, kind="stable")
    by_target = np.argsort(targets, kind="stable")
    count = len(graph)
    outcome = schedule(
        TaskGraph(
            duration_ps=_ps(durations),
            release_ps=np.zeros(count, np.int64),
            release_blocker=np.full(count, -1, np.int64),
            server_offsets=_offsets(np.bincount(held.events, minlength=count)),
            server_ids=held.servers[by_event].astype(np.int32),
            occupancy_ps=_ps(held.ns[by_event]),
            dependency_offsets=_offsets(np.bincount(targets, minlength=count)),
            dependencies=sources[by_target],
            lag_ps=np.maximum(_ps(lags[by_target]), -_ps(durations)[sources[by_target]]),
            in_order=np.concatenate(in_order),
        )
    )
    starts, ends = (
        (times + _PS // 2) // _PS + graph.start_ns for times in (outcome.start_ps, outcome.end_ps)
    )
    tail_ns = graph.end_ns - int(graph.column("end_ns").max(initial=graph.start_ns))
    last_ns = int(ends.max(initial=graph.start_ns))
    return Retimed(starts, ends, outcome.blocker, last_ns + tail_ns - graph.start_ns)


def _offsets(counts: I64) -> I64:
    return np.concatenate([[0], np.cumsum(counts)])


def _ps(ns: F64) -> I64:
    return np.rint(ns * _PS).astype(np.int64)


def _is_issue(graph: StepGraph) -> NDArray[np.bool_]:
    return (graph.events["category"] == "sync").fill_null(False).to_numpy()


def _waits(
    graph: StepGraph, lengths: F64, durations: F64, changes: Changes
) -> tuple[I64, I64, F64]:
    """Target, source and lag (ns) of everything that is waited for; of inferred edges the lag is what it was."""
    edges = graph.edges
    lags = edges.lags_ns.astype(np.float64)
    if changes.issue_factor != 1.0:
        is_issued = _is_issue(graph)[edges.sources] & (edges.kinds == "queue")
        saved = lengths[edges.sources] - durations[edges.sources]
        lags = np.where(is_issued, np.maximum(lags + saved, 0.0), lags)
    if not graph.is_inferred:
        return edges.targets, edges.sources, lags
    bound = np.flatnonzero(graph.blockers != NONE)
    binding = graph.blockers[bound]
    observed = (graph.column("start_ns")[bound] - graph.column("end_ns")[binding]).astype(
        np.float64
    )
    return (
        np.concatenate([edges.targets, bound]),
        np.concatenate([edges.sources, binding]),
        np.concatenate([lags, observed]),
    )


def _shared_by_dmas(trace: Trace, graph: StepGraph) -> _Held:
    """What the DMAs of a core share: its engines (even servers) and its part of the HBM stack (odd ones)."""
    rate = engines_bytes_per_s(trace)
    moves = (pl.col("kind") == "dma_queue") & (pl.col("bytes") > 0)
    known = moves if rate is not None else pl.lit(False)
    figures = graph.events.select(
        moves=known.fill_null(False), bytes=pl.col("bytes").cast(pl.Float64), rate=pl.lit(1.0) if rate is None else rate
    )  # fmt: skip
    at = np.flatnonzero(figures["moves"].to_numpy())
    moved, rates = (figures[name].to_numpy()[at] for name in ("bytes", "rate"))
    sharers = (trace.manifest.get("emulation") or {}).get("hbm_sharers", 1)
    stack = float((trace.system.get("core") or {}).get("hbm_bytes_per_s") or 1.0) / sharers
    _, units = np.unique(graph.column("unit_id")[at], return_inverse=True)
    return _Held(
        np.concatenate([at, at]),
        np.concatenate([2 * units, 2 * units + 1]),
        1e9 * np.concatenate([moved / rates, moved / stack]),
    )


def _shared_links(graph: StepGraph, lengths: F64) -> _Held:
    """Streams of collectives one of which bound the other, without an edge between them, share links: one server for all of them."""
    is_collective = (graph.events["kind"] == "collective_stream").to_numpy()
    bound = np.flatnonzero(is_collective & (graph.blockers != NONE))
    binding = graph.blockers[bound]
    tracks = graph.column("track")
    across = is_collective[binding] & (tracks[bound] != tracks[binding])
    pairs = bound[across], binding[across]
    count = len(graph)
    has_edge = np.isin(
        pairs[0] * count + pairs[1], graph.edges.targets * count + graph.edges.sources
    )
    sharing = np.unique(tracks[np.concatenate(pairs)[np.tile(~has_edge, 2)]])
    at = np.flatnonzero(is_collective & np.isin(tracks, sharing))
    return _Held(at, np.zeros(len(at), np.int64), lengths[at])
