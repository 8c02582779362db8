"""How do lowered kernels become a task graph that still knows its operations? A list of tasks with typed edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trnprof.emulator.core import Core
from trnprof.emulator.graph_builder import GraphBuilder
from trnprof.emulator.lowering.plan import ENGINES
from trnprof.emulator.taskgraph import TaskGraph

LOAD_QUEUES = ("DMA q0", "DMA q1")
STORE_QUEUE = "DMA q2"
GATHER_QUEUE = "DMA q3"
QUEUES = (*LOAD_QUEUES, STORE_QUEUE, GATHER_QUEUE)
SERVERS = (*ENGINES, *QUEUES, "DMA engines", "HBM")
"""Servers of one core. Engines and queues run in order; the DMA engines and the HBM stack are shared."""

SERVER_ID = {name: index for index, name in enumerate(SERVERS)}

EDGE_KINDS = ("data", "buffer", "queue", "semaphore", "launch", "collective")
DATA, BUFFER, QUEUE, SEMAPHORE, LAUNCH, COLLECTIVE = range(6)


@dataclass(frozen=True, slots=True)
class Dependency:
    """An edge to an earlier task: its index, the lag beyond its end, and what it stands for."""

    task: int
    lag_ps: int = 0
    kind: int = DATA


@dataclass(frozen=True, slots=True)
class TaskLabel:
    """What the trace says of the tasks of one stage or stream (see tracer.schema EVENTS)."""

    name: str
    category: str
    op: int
    dtype: str | None = None
    is_transpose: bool | None = None
    source: str | None = None
    target: str | None = None
    descriptor_bytes: int | None = None


@dataclass
class TaskList:
    """Tasks in issue order; dependencies point backwards only, so the order is a topological one.

    Attributes:
        labels: each label with its number.
        label_ids: number of each task's label.
        flops: hardware FLOPs of each task, negative where the notion does not apply.
        nbytes: payload of each task, negative where the notion does not apply.
        edge_kinds: what each dependency stands for, in the order of the graph's dependencies.
        durations_ps: of each task.
        latest: last task of each server whose track tasks are drawn on.
        shared: servers beyond those of the core, by name, and whether they run in order; they come behind SERVERS.
        in_order: whether engines and queues run in order; else whichever task is ready first.
    """

    labels: dict[TaskLabel, int] = field(default_factory=dict)
    label_ids: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    edge_kinds: list[int] = field(default_factory=list)
    durations_ps: list[int] = field(default_factory=list)
    latest: dict[int, int] = field(default_factory=dict)
    shared: tuple[tuple[str, bool], ...] = ()
    in_order: bool = True
    _builder: GraphBuilder = field(init=False)

    def __post_init__(self) -> None:
        self._builder = _core_builder(self.in_order)
        for name, in_order in self.shared:
            self._builder.server(name, in_order)

    def __len__(self) -> int:
        return len(self.label_ids)

    def add(
        self,
        label: TaskLabel,
        duration_ps: int,
        servers: tuple[tuple[int, int], ...],
        after: Sequence[Dependency],
        *,
        flops: float = -1.0,
        nbytes: int = -1,
    ) -> int:
        """Append a task.

        Args:
            label: what the trace says of it.
            duration_ps: its own duration.
            servers: (server, occupancy in ps); the first is the track it is drawn on.
            after: what it waits for.
            flops: hardware FLOPs, negative where the notion does not apply.
            nbytes: payload, negative where the notion does not apply.

        Returns:
            Its index.
        """
        self.label_ids.append(self.labels.setdefault(label, len(self.labels)))
        self.flops.append(flops)
        self.nbytes.append(nbytes)
        self.edge_kinds.extend(dependency.kind for dependency in after)
        self.durations_ps.append(duration_ps)
        self.latest[servers[0][0]] = len(self.label_ids) - 1
        edges = [(dependency.task, dependency.lag_ps) for dependency in after]
        return self._builder.add_task(duration_ps, servers, edges)

    def graph(self, release_ps: int = 0, release_blocker: int = -1) -> TaskGraph:
        """The arrays that the scheduler takes; nothing starts before ``release_ps``."""
        return replace(
            self._builder.build(),
            release_ps=np.full(len(self), release_ps, np.int64),
            release_blocker=np.full(len(self), release_blocker, np.int64),
        )


def _core_builder(in_order: bool) -> GraphBuilder:
    """A builder that knows the servers of one core by their SERVER_ID."""
    builder = GraphBuilder()
    for name in SERVERS:
        builder.server(name, in_order and (name in ENGINES or name in QUEUES))
    return builder


def engine_latency_ps(core: Core, engine: str) -> int:
    """Time from the end of an instruction's issue slot to its result."""
    latency = {
        "Tensor": core.tensor.latency_ns,
        "Vector": core.vector.latency_ns,
        "Scalar": core.scalar.latency_ns,
        "GpSimd": core.gpsimd.latency_ns,
    }
    return round(latency.get(engine, 0.0) * 1000)
