"""How is one step of all emulated ranks lowered, scheduled and written?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.coverage import Coverage
from trnprof.emulator.hbm import HbmOccupancy, Samples, sbuf_samples
from trnprof.emulator.lowering.residency import Lifetimes
from trnprof.emulator.lowering.step import LoweredStep, lower_step
from trnprof.emulator.op_rows import operation_rows
from trnprof.emulator.ranks.classes import RankClass
from trnprof.emulator.ranks.joint import (
    JointGraph,
    Part,
    join,
    part_of,
    places_of,
    slowed,
    stuck,
)
from trnprof.emulator.ranks.links import link_columns, used_links
from trnprof.emulator.ranks.meetings import describe
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.ranks.tracks import TrackPlan, link_tracks
from trnprof.emulator.scheduler import carry_state, schedule
from trnprof.emulator.system import System
from trnprof.emulator.taskgraph import I64, Schedule, ServerState, TaskGraph
from trnprof.emulator.trace_rows import event_columns, flow_columns, meeting_flows
from trnprof.emulator.trace_tracks import DEVICE_CLOCK, FIRST_USE, HBM_COUNTER, SBUF_COUNTER
from trnprof.emulator.workload import Operation, WorkloadStep
from trnprof.tracer.errors import CaptureError, GraphError
from trnprof.tracer.schema import MAX_SHARD_ROWS
from trnprof.tracer.writer import TraceWriter


@dataclass
class Emulated:
    """One class of ranks on its way through the steps.

    Attributes:
        ranks: whom it exchanges with.
        source: what it does, and for whom it stands.
        lifetimes: of its storages.
        first_op_id: of its operations.
        servers: int64[...], its servers in the graph of all.
        places: by group, where it meets others.
        counter: track of its HBM occupancy.
        tracks: of its servers.
        step: its last one.
        start_ps, end_ps: of that.
        delay_ps: how much later than at its beginning its next step begins to run.
        last_event: the one that ended last.
    """

    ranks: Ranks
    source: RankClass
    lifetimes: Lifetimes
    first_op_id: int
    servers: I64
    places: tuple[int, ...]
    counter: int
    tracks: NDArray[np.uint32]
    hbm: HbmOccupancy = field(default_factory=HbmOccupancy)
    step: WorkloadStep | None = None
    start_ps: int = 0
    end_ps: int = 0
    delay_ps: int = 0
    last_event: int = -1


@dataclass
class Progress:
    """What one step leaves to the next.

    Attributes:
        system: the machine.
        execution: ``fused`` or ``eager``.
        classes: by the rank that is emulated.
        plan: tracks.
        server_count: of all servers.
        module_ids: op_id by module path.
        links: those that have a track.
        servers: what the last step left of them.
        events: how many were written.
        coverage: what was lowered exactly, and what by the fallback.
    """

    system: System
    execution: str
    classes: tuple[Emulated, ...]
    plan: TrackPlan
    server_count: int
    module_ids: dict[str, int]
    links: set[int] = field(default_factory=set)
    servers: ServerState | None = None
    events: int = 0
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def end_ps(self) -> int:
        """When the last class has ended its step."""
        return max(each.end_ps for each in self.classes)


@dataclass(frozen=True)
class Stage:
    """One class's part of a step: the step, the position of its first operation, its operations and their tasks."""

    of: Emulated
    step: WorkloadStep
    first: int
    operations: Sequence[Operation]
    lowered: LoweredStep


def steps(progress: Progress) -> Iterator[list[Stage]]:
    """Each step of all classes that have one, lowered; once for ranks that are equal."""
    heads = []
    for each in progress.classes:
        rest = _steps(each)
        heads.append((each, rest, next(rest, None)))
    while any(head for *_, head in heads):
        number = min(head[0].step for *_, head in heads if head)
        stages: list[Stage] = []
        following = []
        lowered: dict[int, LoweredStep] = {}
        for each, rest, head in heads:
            if head and head[0].step == number:
                step, first, operations = head
                kind = each.source.kind
                if kind not in lowered:
                    lowered[kind] = _lower(progress, each, first, operations)
                stages.append(Stage(each, step, first, operations, lowered[kind]))
                head = next(rest, None)
            following.append((each, rest, head))
        heads = following
        yield stages


def _lower(
    progress: Progress, each: Emulated, first: int, operations: Sequence[Operation]
) -> LoweredStep:
    return lower_step(
        progress.system, operations, first, each.lifetimes, progress.execution, each.ranks
    )


def _steps(each: Emulated) -> Iterator[tuple[WorkloadStep, int, Sequence[Operation]]]:
    """Each step with the position of its first operation and its operations."""
    known = {step.step: step for step in each.source.program.steps}
    operations = each.source.program.operations
    first = 0
    while first < len(operations):
        number = operations[first].step
        last = first
        while last < len(operations) and operations[last].step == number:
            last += 1
        step = known.get(number, WorkloadStep(number, f"step {number}", "forward"))
        yield step, first, operations[first:last]
        first = last


def run_step(writer: TraceWriter, stages: Sequence[Stage], progress: Progress, edges: str) -> None:
    """Schedule one step and write it."""
    for stage in stages:
        _write_ops(writer, stage, progress)
    parts = [_part(stage) for stage in stages]
    joint = join(parts, progress.server_count)
    outcome = _schedule(joint, stages, progress)
    ids = [_reserve(writer, len(stage.lowered.tasks)) for stage in stages]
    event_of = np.zeros(len(joint.graph), np.uint64)
    for tasks, events in zip(reversed(joint.tasks), reversed(ids), strict=True):
        event_of[tasks] = events
    if len(joint.graph):
        progress.servers = carry_state(outcome.state, event_of.astype(np.int64))
    graphs = [part.graph for part in parts]
    schedules = [part_of(joint, i, graph, outcome, event_of) for i, graph in enumerate(graphs)]
    _write_memory(writer, stages, schedules)
    for number, stage in enumerate(stages):
        own = graphs[number], schedules[number], ids[number], joint.is_met[number]
        _write_events(writer, stage, *own, edges)
        progress.events += len(graphs[number])
        progress.coverage.add(stage.operations, stage.lowered, graphs[number], stage.first)
    if any(met.any() for met in joint.is_met):
        writer.append_flows(meeting_flows(joint, graphs, outcome, schedules, ids, edges))
    for number, stage in enumerate(stages):
        _write_links(writer, stage, schedules[number], joint.is_first[number], progress)
        _finish_step(writer, stage, schedules[number], ids[number])


def _write_memory(
    writer: TraceWriter, stages: Sequence[Stage], schedules: Sequence[Schedule]
) -> None:
    """Samples of what HBM and SBUF of each class hold."""
    for stage, own in zip(stages, schedules, strict=True):
        of = stage.of
        samples = of.hbm.advance(stage.operations, stage.first, stage.lowered, own, of.end_ps)
        count_hbm(writer, of.counter, samples)
        times, levels = sbuf_samples(stage.lowered, own, of.end_ps)
        _count(writer, of.counter + SBUF_COUNTER - HBM_COUNTER, times, levels)


def _part(stage: Stage) -> Part:
    own, lowered = stage.of, stage.lowered
    graph = lowered.tasks.graph(own.end_ps + own.delay_ps, own.last_event)
    return Part(
        lowered,
        slowed(graph, list(lowered.collectives), own.source.speed),
        own.servers,
        places_of(lowered, stage.operations, stage.first, own.places),
    )


def _schedule(joint: JointGraph, stages: Sequence[Stage], progress: Progress) -> Schedule:
    """The schedule of the step.

    Raises:
        CaptureError: ranks wait for each other.
    """
    try:
        return schedule(joint.graph, progress.servers)
    except GraphError:
        is_stuck = stuck(joint.graph)
        if not is_stuck.any():
            raise
    waiting = [
        _first_stuck(stage, is_stuck[tasks] & is_met)
        for stage, tasks, is_met in zip(stages, joint.tasks, joint.is_met, strict=True)
    ]
    raise CaptureError(
        f"ranks wait for each other, none can go on: {'; '.join(filter(None, waiting))}; check in which order these ranks send and receive"
    )


def _first_stuck(stage: Stage, is_stuck: NDArray[np.bool_]) -> str:
    """The first collective in which a class waits for ever, as errors call it; nothing if there is none."""
    tasks = np.flatnonzero(is_stuck)
    if not len(tasks):
        return ""
    labels = list(stage.lowered.tasks.labels)
    label = labels[stage.lowered.tasks.label_ids[int(tasks[0])]]
    return describe(stage.of.source, stage.operations[label.op - stage.first])


def _write_ops(writer: TraceWriter, stage: Stage, progress: Progress) -> None:
    of_collectives = stage.of.ranks.op_fields(stage.operations)
    first_op_id = stage.of.first_op_id + stage.first
    rows = operation_rows(
        stage.operations, stage.lowered.plans, first_op_id, progress.module_ids, of_collectives
    )
    writer.add_ops(rows)


def _reserve(writer: TraceWriter, count: int) -> NDArray[np.uint64]:
    """Ids of so many events."""
    pieces = range(0, count, MAX_SHARD_ROWS)
    ids = [writer.reserve(min(MAX_SHARD_ROWS, count - at)) for at in pieces]
    return np.concatenate([np.empty(0, np.uint64), *ids])


def _write_events(
    writer: TraceWriter,
    stage: Stage,
    graph: TaskGraph,
    outcome: Schedule,
    ids: NDArray[np.uint64],
    is_met: NDArray[np.bool_],
    edges: str,
) -> None:
    """Events and flows of one class in one step."""
    tasks = stage.lowered.tasks
    if not len(tasks):
        return
    of = stage.of
    columns = event_columns(
        tasks,
        graph,
        outcome,
        ids,
        is_met,
        of.tracks,
        of.first_op_id,
        stage.step.step,
        of.end_ps,
    )
    writer.append_events(columns)
    writer.append_flows(flow_columns(tasks, graph, outcome, ids, edges))


def _write_links(
    writer: TraceWriter,
    stage: Stage,
    outcome: Schedule,
    is_first: NDArray[np.bool_],
    progress: Progress,
) -> None:
    """Events of one step on links; a link has a track from its first event on."""
    costs = {task: cost for task, cost in stage.lowered.collectives.items() if is_first[task]}
    if not costs:
        return
    used = used_links(costs)
    new = used[~np.isin(used, np.array(list(progress.links), np.int64))]
    if len(new):
        writer.add_tracks(link_tracks(progress.plan, stage.of.ranks.costs.fabric, new))
        progress.links.update(new.tolist())
    columns = link_columns(
        progress.plan.first_link,
        stage.lowered.tasks,
        costs,
        outcome,
        stage.of.first_op_id,
        stage.step.step,
    )
    if len(columns["track_id"]):
        writer.append_events(columns)
        progress.events += len(columns["track_id"])


def _finish_step(
    writer: TraceWriter, stage: Stage, outcome: Schedule, ids: NDArray[np.uint64]
) -> None:
    """The class's clock moves on to the end of its step, which gets a row unless it is its last."""
    of = stage.of
    of.step, of.start_ps = stage.step, of.end_ps
    of.end_ps = max(of.start_ps, int(outcome.end_ps.max(initial=of.start_ps)))
    of.delay_ps = 0
    if len(ids):
        of.last_event = int(ids[int(np.argmax(outcome.end_ps))])
    if stage.first + len(stage.operations) < len(of.source.program.operations):
        _add_step(writer, of, of.end_ps)


def finish(writer: TraceWriter, progress: Progress) -> None:
    """Rows of the last steps: the program ends for all ranks when the last one has ended."""
    for each in progress.classes:
        _add_step(writer, each, progress.end_ps)


def _add_step(writer: TraceWriter, of: Emulated, end_ps: int) -> None:
    if of.step is None:
        return
    writer.add_steps(
        {
            "step": [of.step.step],
            "rank": [of.ranks.rank],
            "clock_id": [DEVICE_CLOCK],
            "start_ns": [to_whole_ns(of.start_ps)],
            "end_ns": [to_whole_ns(end_ps)],
            "label": [of.step.label],
            "source": [of.step.source],
        }
    )


def to_whole_ns(ps: int) -> int:
    """Picoseconds to the nearest nanosecond."""
    return (ps + 500) // 1000


def count_hbm(writer: TraceWriter, counter: int, samples: Mapping[int | None, Samples]) -> None:
    """Samples of what lies in HBM, as ``HbmOccupancy.advance`` gives them; ``counter`` is the track of all bytes."""
    for use, (times, levels) in samples.items():
        track = counter if use is None else counter + FIRST_USE - HBM_COUNTER + use
        _count(writer, track, times, levels)


def _count(writer: TraceWriter, track: int, times: I64, levels: NDArray[np.float64]) -> None:
    if len(times):
        writer.append_counters(
            {
                "track_id": np.full(len(times), track, np.uint32),
                "timestamp_ns": times,
                "value": levels,
            }
        )
