"""How long does a captured workload take on a machine? Lower, schedule and write it, step by step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trnprof.emulator.hbm import HbmOccupancy
from trnprof.emulator.lowering.residency import lifetimes
from trnprof.emulator.lowering.step import LoweredStep, lower_step
from trnprof.emulator.lowering.tasks import TaskList
from trnprof.emulator.op_rows import module_rows, operation_rows
from trnprof.emulator.ranks.links import link_columns, used_links
from trnprof.emulator.ranks.placement import PACKED
from trnprof.emulator.ranks.ranks import Ranks, ranks_of
from trnprof.emulator.ranks.tracks import link_tracks, rank_tracks
from trnprof.emulator.scheduler import carry_state, schedule
from trnprof.emulator.system import System
from trnprof.emulator.taskgraph import Schedule, ServerState, TaskGraph
from trnprof.emulator.trace_rows import event_columns, flow_columns
from trnprof.emulator.trace_tracks import DEVICE_CLOCK, HBM_COUNTER, peak_rows
from trnprof.emulator.workload import Operation, Workload, WorkloadStep
from trnprof.tracer.errors import CaptureError, WriteError
from trnprof.tracer.manifest import Clock
from trnprof.tracer.schema import MAX_SHARD_ROWS
from trnprof.tracer.units import format_bytes
from trnprof.tracer.writer import TraceWriter

COST_MODEL = "2026.12"
"""Version of the lowering and its constants; runs of different versions are not comparable."""

EVENT_BYTES, FLOW_BYTES = 110, 30
"""Measured size of one raw row with its share of indexes; the forecast uses them."""

ALL_EDGES_LIMIT = 20_000_000
"""Up to this many events all dependencies are written, beyond it only those that bound a start."""


@dataclass(frozen=True)
class Forecast:
    """What will be written, told before it is.

    Attributes:
        events: number of events.
        nbytes: about so many bytes on disk.
        free_bytes: room on that disk.
    """

    events: int
    nbytes: int
    free_bytes: int


@dataclass(frozen=True)
class Emulation:
    """What came out, for the manifest and the last line on screen."""

    steps: int
    events: int
    device_ns: int
    details: dict[str, Any]


@dataclass
class _Progress:
    """What one step leaves to the next."""

    ranks: Ranks
    module_ids: dict[str, int]
    hbm: HbmOccupancy = field(default_factory=HbmOccupancy)
    links: set[int] = field(default_factory=set)
    end_ps: int = 0
    last_event: int = -1
    servers: ServerState | None = None
    events: int = 0
    fallback_ops: dict[str, int] = field(default_factory=dict)
    fallback_ps: int = 0
    work_ps: int = 0


def emulate(
    workload: Workload,
    system: System,
    trace_path: Path,
    *,
    execution: str = "fused",
    edges: str | None = None,
    reproducible: bool = False,
    on_forecast: Callable[[Forecast], None] = lambda _: None,
    placement: str = PACKED,
    lnc: int | None = None,
) -> Emulation:
    """Time a workload on a system and write the events into a trace directory.

    The captured rank is emulated; all others do the same, each in its groups, and are written as its replicas.

    Args:
        workload: what was captured.
        system: the machine.
        trace_path: an existing trace directory; this adds the writer ``emulator`` to it.
        execution: ``fused`` or ``eager``.
        edges: which dependencies to write: all, binding or none; by default all up to ALL_EDGES_LIMIT events.
        reproducible: leave out what differs between two runs.
        on_forecast: told how much will be written, after the first step was lowered.
        placement: of ranks: packed, spread or a table (see ``ranks.placement``).
        lnc: physical cores a rank; None: 1 for a single rank, else 2 where the cores can be joined.

    Raises:
        CaptureError: the workload holds no device operation, or groups of ranks that it does not have.
        SystemDescriptionError: the ranks cannot be placed so.
        CollectiveError: a collective that makes no sense.
        WriteError: it will not fit the disk, or writing failed.
    """
    if not workload.operations:
        raise CaptureError("the workload holds no device operation: nothing to emulate")
    ranks = ranks_of(workload, system, placement, lnc)
    modules, module_ids = module_rows(workload.operations)
    progress = _Progress(ranks, module_ids)
    progress.hbm.start(workload.resident)
    uses = lifetimes(workload.operations)
    clocks = [Clock(DEVICE_CLOCK, "device")]
    with TraceWriter(
        trace_path, writer="emulator", clocks=clocks, reproducible=reproducible
    ) as writer:
        writer.add_tracks(rank_tracks(ranks))
        if ranks.groups:
            writer.add_groups(ranks.group_rows())
        writer.set_peaks(peak_rows(system))
        writer.add_ops(modules)
        _count(writer, [0], [float(progress.hbm.occupied_bytes)])
        for step, first, operations in _steps(workload):
            lowered = lower_step(system, operations, first, uses, execution, ranks)
            if first == 0:
                forecast = _forecast(workload, operations, lowered, trace_path)
                on_forecast(forecast)
                edges = edges or ("all" if forecast.events <= ALL_EDGES_LIMIT else "binding")
            _run_step(writer, step, operations, first, lowered, progress, edges or "all")
    return Emulation(
        steps=len(workload.steps),
        events=progress.events,
        device_ns=_ns(progress.end_ps),
        details=_details(workload, execution, progress),
    )


def _run_step(
    writer: TraceWriter,
    step: WorkloadStep,
    operations: Sequence[Operation],
    first: int,
    lowered: LoweredStep,
    progress: _Progress,
    edges: str,
) -> None:
    """Schedule one step and write it."""
    first_op_id = len(progress.module_ids)
    of_collectives = progress.ranks.op_fields(operations)
    rows = operation_rows(
        operations, lowered.plans, first_op_id + first, progress.module_ids, of_collectives
    )
    writer.add_ops(rows)
    graph = lowered.tasks.graph(progress.end_ps, progress.last_event)
    outcome = schedule(graph, progress.servers)
    times, levels = progress.hbm.advance(operations, first, lowered, outcome, progress.end_ps)
    _count(writer, times, levels)
    _write_events(writer, step.step, lowered.tasks, graph, outcome, progress, edges)
    _write_links(writer, step.step, lowered, outcome, progress)
    _note_coverage(progress, operations, lowered, graph, first)
    _finish_step(writer, step, outcome, progress)


def _steps(workload: Workload) -> Iterator[tuple[WorkloadStep, int, Sequence[Operation]]]:
    """Each step with the position of its first operation and its operations."""
    known = {step.step: step for step in workload.steps}
    operations = workload.operations
    first = 0
    while first < len(operations):
        number = operations[first].step
        last = first
        while last < len(operations) and operations[last].step == number:
            last += 1
        step = known.get(number, WorkloadStep(number, f"step {number}", "forward"))
        yield step, first, operations[first:last]
        first = last


def _forecast(
    workload: Workload, operations: Sequence[Operation], lowered: LoweredStep, path: Path
) -> Forecast:
    """Events and bytes of the whole from those of the first step."""
    scale = len(workload.operations) / max(1, len(operations))
    on_links = sum(len(cost.links) for cost in lowered.collectives.values())
    events = round((len(lowered.tasks) + on_links) * scale)
    flows = round(len(lowered.tasks.edge_kinds) * scale)
    nbytes = events * EVENT_BYTES + flows * FLOW_BYTES
    free = shutil.disk_usage(path).free
    # recording streams and their sealed copies exist side by side for a moment
    if 2 * nbytes > free:
        raise WriteError(
            f"{path}: about {format_bytes(2 * nbytes)} are needed while writing, {format_bytes(free)} are free; "
            "record fewer steps (--steps A..B), or choose another disk with -o"
        )
    return Forecast(events, nbytes, free)


def _write_events(
    writer: TraceWriter,
    step: int,
    tasks: TaskList,
    graph: TaskGraph,
    outcome: Schedule,
    progress: _Progress,
    edges: str,
) -> None:
    """Events and flows of one step; the servers and its last event are carried on."""
    if not len(tasks):
        return
    pieces = range(0, len(tasks), MAX_SHARD_ROWS)
    ids = np.concatenate([writer.reserve(min(MAX_SHARD_ROWS, len(tasks) - at)) for at in pieces])
    writer.append_events(
        event_columns(tasks, graph, outcome, ids, len(progress.module_ids), step, progress.end_ps)
    )
    writer.append_flows(flow_columns(tasks, graph, outcome, ids, edges))
    progress.last_event = int(ids[int(np.argmax(outcome.end_ps))])
    progress.servers = carry_state(outcome.state, ids.astype(np.int64))
    progress.events += len(tasks)


def _write_links(
    writer: TraceWriter,
    step: int,
    lowered: LoweredStep,
    outcome: Schedule,
    progress: _Progress,
) -> None:
    """Events of one step on links; a link has a track from its first event on."""
    if not lowered.collectives:
        return
    used = used_links(lowered)
    new = used[~np.isin(used, np.array(list(progress.links), np.int64))]
    if len(new):
        writer.add_tracks(link_tracks(progress.ranks, new))
        progress.links.update(new.tolist())
    columns = link_columns(progress.ranks, lowered, outcome, len(progress.module_ids), step)
    if len(columns["track_id"]):
        writer.append_events(columns)
        progress.events += len(columns["track_id"])


def _note_coverage(
    progress: _Progress,
    operations: Sequence[Operation],
    lowered: LoweredStep,
    graph: TaskGraph,
    first: int,
) -> None:
    """Which operators were lowered by the roofline fallback, and their share of engine and DMA time."""
    exact = np.array([plan.exact for plan in lowered.plans])
    for op, plan in zip(operations, lowered.plans, strict=True):
        if not plan.exact:
            progress.fallback_ops[op.name] = progress.fallback_ops.get(op.name, 0) + 1
    positions = np.array([label.op for label in lowered.tasks.labels], np.int64)
    duration = graph.duration_ps.copy()
    duration[list(lowered.collectives)] = 0
    by_fallback = ~exact[positions[lowered.tasks.label_ids] - first] if len(duration) else exact
    progress.work_ps += int(duration.sum())
    progress.fallback_ps += int(duration[by_fallback].sum()) if len(duration) else 0


def _finish_step(
    writer: TraceWriter, step: WorkloadStep, outcome: Schedule, progress: _Progress
) -> None:
    """The step's row; the clock moves on to its end."""
    start = progress.end_ps
    progress.end_ps = max(start, int(outcome.end_ps.max(initial=start)))
    writer.add_steps(
        {
            "step": [step.step],
            "rank": [progress.ranks.rank],
            "clock_id": [DEVICE_CLOCK],
            "start_ns": [_ns(start)],
            "end_ns": [_ns(progress.end_ps)],
            "label": [step.label],
            "source": [step.source],
        }
    )


def _details(workload: Workload, execution: str, progress: _Progress) -> dict[str, Any]:
    """What the manifest says of the emulation."""
    notes = list(workload.notes)
    system, placement = progress.ranks.system, progress.ranks.placement
    capacity, hbm = system.hbm_bytes_per_core * placement.lnc, progress.hbm
    if hbm.peak_bytes > capacity:
        core = "one core" if placement.lnc == 1 else f"a logical core (LNC {placement.lnc})"
        notes.append(
            f"does not fit: HBM peaks at {format_bytes(hbm.peak_bytes)}, {core} of {system.name} has "
            f"{format_bytes(capacity)} ({format_bytes(hbm.peak_bytes - capacity)} too much); timed all the same"
        )
    if not workload.complete:
        notes.append("the program ended before its capture was complete; what ran is here")
    ranks = {"world_size": progress.ranks.count, "placement": placement.name}
    return {
        "execution": execution,
        "detail": "operator",
        "lnc": placement.lnc,
        **(ranks if progress.ranks.count > 1 else {}),
        "cost_model": COST_MODEL,
        "estimates": system.estimates,
        "operations": len(workload.operations),
        "fallback_ops": sum(progress.fallback_ops.values()),
        "fallback_names": dict(sorted(progress.fallback_ops.items())),
        "fallback_time_percent": progress.fallback_ps / max(1, progress.work_ps),
        "hbm": {"capacity_bytes": capacity, "peak_bytes": hbm.peak_bytes},
        "notes": notes,
    }


def _ns(ps: int) -> int:
    return (ps + 500) // 1000


def _count(writer: TraceWriter, times: Any, levels: Any) -> None:
    """Samples of the HBM counter."""
    if len(times):
        writer.append_counters(
            {
                "track_id": np.full(len(times), HBM_COUNTER, np.uint32),
                "timestamp_ns": np.asarray(times, np.int64),
                "value": np.asarray(levels, np.float64),
            }
        )
