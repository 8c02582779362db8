"""How does a schedule become rows of a trace? Arrays in, columns out, no object an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.emulator.lowering.plan import ENGINES
from trnprof.emulator.lowering.tasks import (
    BUFFER,
    COLLECTIVE,
    DATA,
    EDGE_KINDS,
    LAUNCH,
    QUEUE,
    SEMAPHORE,
    SERVERS,
    TaskLabel,
    TaskList,
)
from trnprof.emulator.ranks.joint import JointGraph
from trnprof.emulator.taskgraph import Schedule, TaskGraph

I64 = NDArray[np.int64]
_IS_ENGINE = np.array([name in ENGINES for name in SERVERS])
_REASONS = np.array(
    ["", "data", "buffer", "queue", "semaphore", "engine", "link", "collective", "peer"]
)
_NONE, _DATA, _BUFFER, _QUEUE, _SEMAPHORE, _ENGINE, _LINK, _COLLECTIVE, _PEER = range(9)


def to_ns(ps: I64) -> I64:
    """Picoseconds to the nearest nanosecond; start and end are each rounded, so neighbours never overlap."""
    return (ps + 500) // 1000


def event_columns(
    tasks: TaskList,
    graph: TaskGraph,
    schedule: Schedule,
    ids: NDArray[np.uint64],
    is_met: NDArray[np.bool_],
    tracks: NDArray[np.uint32],
    first_op_id: int,
    step: int,
    step_start_ps: int,
) -> dict[str, Any]:
    """Columns of ``events`` for the tasks of one step of one class of ranks.

    Args:
        tasks: the task list.
        graph: its graph.
        schedule: its outcome; what blocks a task and is not among them is given as -2 - event_id.
        ids: event_id of each task.
        is_met: which of them are collectives that other classes take part in.
        tracks: uint32[servers], by server of the graph; there may be others behind, on which no event is drawn.
        first_op_id: op_id of the operation at position 0 of the workload.
        step: ordinal.
        step_start_ps: nothing starts before it.
    """
    start, end = to_ns(schedule.start_ps), to_ns(schedule.end_ps)
    labels = _label_frame(tasks)[np.array(tasks.label_ids, np.int64)]
    flops, nbytes = np.array(tasks.flops), np.array(tasks.nbytes, np.int64)
    return {
        "event_id": ids,
        "track_id": tracks[first_servers(graph)],
        "start_ns": start,
        "duration_ns": end - start,
        "name": labels["name"],
        "category": labels["category"],
        "op_id": labels["op"].cast(pl.UInt32) + first_op_id,
        "step": np.full(len(tasks), step, np.int32),
        "dtype": labels["dtype"],
        "is_transpose": labels["is_transpose"],
        "flops": _masked(flops, flops >= 0),
        "bytes": _masked(nbytes, nbytes >= 0),
        "source_memory": labels["source"],
        "target_memory": labels["target"],
        "descriptor_bytes": labels["descriptor_bytes"],
        "ready_ns": to_ns(schedule.ready_ps),
        "blocked_by": _blockers(schedule.blocker, ids),
        "wait_reason": _wait_reasons(tasks, graph, schedule, is_met, step_start_ps),
    }


def flow_columns(
    tasks: TaskList, graph: TaskGraph, schedule: Schedule, ids: NDArray[np.uint64], edges: str
) -> dict[str, Any]:
    """Columns of ``flows``: every dependency, or those that bound a start (``edges``: all, binding or none)."""
    targets, sources = dependency_pairs(graph)
    kinds = _edge_kinds(tasks, sources)
    if edges == "none":
        keep = np.zeros(len(targets), bool)
    elif edges == "binding":
        keep = schedule.blocker[targets] == sources
    else:
        keep = np.ones(len(targets), bool)
    return {
        "source_event": ids[sources[keep]],
        "target_event": ids[targets[keep]],
        "kind": pl.Series(np.array(EDGE_KINDS)[kinds[keep]], dtype=pl.String),
        "lag_ns": to_ns(graph.lag_ps[keep]),
    }


def meeting_flows(
    joint: JointGraph,
    graphs: Sequence[TaskGraph],
    outcome: Schedule,
    schedules: Sequence[Schedule],
    ids: Sequence[NDArray[np.uint64]],
    edges: str,
) -> dict[str, Any]:
    """Rows of ``flows`` between classes: a collective of several waits for what each of them waits for (``edges`` as above).

    Args:
        joint: the graph of all.
        graphs: of each class.
        outcome: of the graph of all.
        schedules: of each class.
        ids: event_id of each task, by class.
        edges: all, binding or none.
    """
    waits, comers = [], []
    for number, (graph, tasks) in enumerate(zip(graphs, joint.tasks, strict=True)):
        targets, sources = dependency_pairs(graph)
        kept = np.flatnonzero(joint.is_met[number][targets])
        task, source = tasks[targets[kept]], tasks[sources[kept]]
        wait = {
            "task": task,
            "of": np.full(len(kept), number),
            "source_event": ids[number][sources[kept]],
            "lag_ns": to_ns(graph.lag_ps[kept]),
            "is_binding": outcome.blocker[task] == source,
        }
        met = np.flatnonzero(joint.is_met[number])
        comer = {
            "task": tasks[met],
            "who": np.full(len(met), number),
            "target_event": ids[number][met],
            "is_held": schedules[number].blocker[met] < 0,
        }
        waits.append(pl.DataFrame(wait))
        comers.append(pl.DataFrame(comer))
    pairs = pl.concat(waits).join(pl.concat(comers), on="task", maintain_order="left_right")
    is_wanted = {
        "all": pl.lit(True),
        "binding": pl.col("is_binding") & pl.col("is_held"),
        "none": pl.lit(False),
    }
    rows = pairs.filter((pl.col("of") != pl.col("who")) & is_wanted[edges])
    return {
        "source_event": rows["source_event"],
        "target_event": rows["target_event"],
        "kind": [EDGE_KINDS[COLLECTIVE]] * len(rows),
        "lag_ns": rows["lag_ns"],
    }


def first_servers(graph: TaskGraph) -> I64:
    """int64[n]: the server whose track each task is drawn on."""
    return graph.server_ids[graph.server_offsets[:-1]].astype(np.int64)


def dependency_pairs(graph: TaskGraph) -> tuple[I64, I64]:
    """(target, source) task indices of every edge."""
    targets = np.repeat(np.arange(len(graph), dtype=np.int64), np.diff(graph.dependency_offsets))
    return targets, graph.dependencies


def _edge_kinds(tasks: TaskList, sources: I64) -> I64:
    """int64[e], what each edge stands for: whoever waits for the result of a collective, or to overwrite it, waits for the collective."""
    kinds = np.array(tasks.edge_kinds, np.int64)
    if not tasks.shared:
        return kinds
    is_collective = np.array([label.category == "collective" for label in tasks.labels], bool)
    behind = is_collective[np.array(tasks.label_ids, np.int64)[sources]]
    return np.where(behind & np.isin(kinds, (DATA, BUFFER)), COLLECTIVE, kinds)


def _label_frame(tasks: TaskList) -> pl.DataFrame:
    schema = {
        "name": pl.String,
        "category": pl.String,
        "op": pl.Int64,
        "dtype": pl.String,
        "is_transpose": pl.Boolean,
        "source": pl.String,
        "target": pl.String,
        "descriptor_bytes": pl.Int32,
    }
    labels: list[TaskLabel] = list(tasks.labels)
    return pl.DataFrame(
        {name: [getattr(label, name) for label in labels] for name in schema}, schema=schema
    )


def _blockers(blocker: I64, ids: NDArray[np.uint64]) -> pl.Series:
    """event_id of what bound each start: of this step, or of an earlier one (kept by its id as -2 - id)."""
    here = ids[np.maximum(blocker, 0)]
    earlier = np.maximum(-2 - blocker, 0).astype(np.uint64)
    return _masked(np.where(blocker >= 0, here, earlier), blocker != -1)


def _wait_reasons(
    tasks: TaskList,
    graph: TaskGraph,
    schedule: Schedule,
    is_met: NDArray[np.bool_],
    step_start_ps: int,
) -> pl.Series:
    """Class of the idle gap before each task on its own track, null where there is none.

    A data dependency whose source had ended before the gap began leaves only latency and synchronisation: that gap is
    ``semaphore``. One whose source ended within the gap is ``data``. A DMA that waits for its trigger, its ring or the
    shared DMA engines waits for its ``queue``, a collective for its ``queue`` until it is issued, for a ``peer`` that comes later, and for
    the ``link`` while another is on it.
    """
    servers = first_servers(graph)
    start, end, blocker = schedule.start_ps, schedule.end_ps, schedule.blocker
    order = np.lexsort((np.arange(len(tasks)), start, servers))
    previous_end = np.full(len(tasks), step_start_ps, np.int64)
    same = servers[order][1:] == servers[order][:-1]
    previous_end[order[1:]] = np.where(same, end[order][:-1], step_start_ps)
    gap = to_ns(start) > to_ns(previous_end)
    targets, sources = dependency_pairs(graph)
    binding = sources == blocker[targets]
    kind = np.full(len(tasks), -1, np.int64)
    kind[targets[binding]] = _edge_kinds(tasks, sources)[binding]
    is_bound = np.zeros(len(tasks), bool)
    is_bound[targets[binding]] = True
    for_peer = is_met & ~is_bound & (start == schedule.ready_ps)
    late_source = end[np.maximum(blocker, 0)] > previous_end
    reason = np.select(
        [
            ~gap,
            for_peer,
            kind == DATA,
            kind == BUFFER,
            (kind == QUEUE) | (kind == LAUNCH),
            kind == SEMAPHORE,
            kind == COLLECTIVE,
            servers >= len(SERVERS),
            _IS_ENGINE[np.minimum(servers, len(SERVERS) - 1)],
        ],
        [
            _NONE,
            _PEER,
            np.where(late_source, _DATA, _SEMAPHORE),
            _BUFFER,
            _QUEUE,
            _SEMAPHORE,
            _COLLECTIVE,
            _LINK,
            _ENGINE,
        ],
        _QUEUE,
    )
    return pl.Series(_REASONS[reason], dtype=pl.String).replace("", None)


def _masked(values: NDArray[Any], valid: NDArray[np.bool_]) -> pl.Series:
    return pl.select(pl.when(pl.Series(valid)).then(pl.Series(values)).alias("v"))["v"]
