"""How do lowered kernels become a task graph that still knows its operations? A list of tasks with typed edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.lowering.plan import ENGINES
from trnprof.emulator.system import Core
from trnprof.emulator.taskgraph import TaskGraph

LOAD_QUEUES = ("DMA q0", "DMA q1")
STORE_QUEUE = "DMA q2"
GATHER_QUEUE = "DMA q3"
QUEUES = (*LOAD_QUEUES, STORE_QUEUE, GATHER_QUEUE)
SERVERS = (*ENGINES, *QUEUES, "DMA engines", "HBM")
"""Servers of one core. Engines and queues run in order; the DMA engines and the HBM stack are shared."""

IN_ORDER = np.array([name in ENGINES or name in QUEUES for name in SERVERS])
SERVER_ID = {name: index for index, name in enumerate(SERVERS)}

EDGE_KINDS = ("data", "buffer", "queue", "semaphore")
DATA, BUFFER, QUEUE, SEMAPHORE = range(4)


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
    """Tasks in issue order; dependencies point backwards only, so the order is a topological one."""

    duration_ps: list[int] = field(default_factory=list)
    labels: dict[TaskLabel, int] = field(default_factory=dict)
    label_ids: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    server_offsets: list[int] = field(default_factory=lambda: [0])
    servers: list[int] = field(default_factory=list)
    occupancy_ps: list[int] = field(default_factory=list)
    dependency_offsets: list[int] = field(default_factory=lambda: [0])
    dependencies: list[int] = field(default_factory=list)
    lag_ps: list[int] = field(default_factory=list)
    edge_kinds: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.duration_ps)

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
        index = len(self.duration_ps)
        self.duration_ps.append(duration_ps)
        self.label_ids.append(self.labels.setdefault(label, len(self.labels)))
        self.flops.append(flops)
        self.nbytes.append(nbytes)
        for server, occupancy in servers:
            self.servers.append(server)
            self.occupancy_ps.append(occupancy)
        self.server_offsets.append(len(self.servers))
        for dependency in after:
            self.dependencies.append(dependency.task)
            self.lag_ps.append(dependency.lag_ps)
            self.edge_kinds.append(dependency.kind)
        self.dependency_offsets.append(len(self.dependencies))
        return index

    def graph(self, release_ps: int = 0, release_blocker: int = -1) -> TaskGraph:
        """The arrays that the scheduler takes; nothing starts before ``release_ps``."""
        count = len(self)
        return TaskGraph(
            duration_ps=np.array(self.duration_ps, np.int64),
            release_ps=np.full(count, release_ps, np.int64),
            release_blocker=np.full(count, release_blocker, np.int64),
            server_offsets=np.array(self.server_offsets, np.int64),
            server_ids=np.array(self.servers, np.int32),
            occupancy_ps=np.array(self.occupancy_ps, np.int64),
            dependency_offsets=np.array(self.dependency_offsets, np.int64),
            dependencies=np.array(self.dependencies, np.int64),
            lag_ps=np.array(self.lag_ps, np.int64),
            in_order=IN_ORDER,
        )

    def first_servers(self) -> NDArray[np.int64]:
        """int64[n]: the server whose track each task is drawn on."""
        return np.array(self.servers, np.int64)[np.array(self.server_offsets[:-1], np.int64)]


def engine_latency_ps(core: Core, engine: str) -> int:
    """Time from the end of an instruction's issue slot to its result."""
    latency = {
        "Tensor": core.tensor.latency_ns,
        "Vector": core.vector.latency_ns,
        "Scalar": core.scalar.latency_ns,
        "GpSimd": core.gpsimd.latency_ns,
    }
    return round(latency.get(engine, 0.0) * 1000)
