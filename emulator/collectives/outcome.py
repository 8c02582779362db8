"""What is answered: time, bandwidths, what bounds it, what the links did, and, event by event, who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.collectives.messages import Messages
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.fabric.fabric import I32, I64, Fabric
from trnprof.emulator.taskgraph import Schedule, TaskGraph


@dataclass(frozen=True)
class Bound:
    """What the time is made of most.

    Attributes:
        kind: "link", "latency" (of steps and hops), "hbm", "dma", "post" or "peer" (a late rank).
        resource: as people call it: "link 3-7", "HBM of chip 4", "rank 5".
        step: the algorithm's step that takes longest, from 0; None where none stands out.
    """

    kind: str
    resource: str
    step: int | None = None


@dataclass(frozen=True)
class Events:
    """The chunked run, one task a (message, hop, chunk); a hop is a link or a server of an endpoint.

    Attributes:
        graph: what was scheduled.
        schedule: when each task ran, and what bound it.
        first_message: int64[collectives + 1], where the messages of each begin among those of all that were in flight at once; 0 and their number
            for one alone.
        message: int32[tasks], among those of all.
        chunk: int32[tasks].
        bytes: int64[tasks], of the chunk.
        link: int32[tasks], the directed link, -1 for a server of an endpoint (its id is the graph's server id; see ``servers.Servers``).
    """

    graph: TaskGraph
    schedule: Schedule
    first_message: I64
    message: I32
    chunk: I32
    bytes: I64
    link: I32


@dataclass(frozen=True)
class Outcome:
    """One collective's run.

    Attributes:
        request: what was asked.
        fabric: it ran on, faults included.
        algorithms: that it ran by (one a dimension, or one).
        chosen_because: in words, where the policy chose; empty where the caller did.
        fidelity: that it ran in.
        time_ps: from 0 (the first rank's call) to the last arrival.
        rank_end_ps: int64[ranks], when each position has all that it needs.
        link_bytes: int64[links].
        link_busy_ps: int64[links].
        bound: what bounds the time.
        messages: None for the closed form.
        events: of the chunked fidelity alone; of all collectives that were in flight at once.
        part: which of those this is, from 0.
        formula_chunks: of the closed form alone: into how many chunks it cuts a message.
    """

    request: Request
    fabric: Fabric
    algorithms: tuple[str, ...]
    chosen_because: str
    fidelity: str
    time_ps: int
    rank_end_ps: I64
    link_bytes: I64
    link_busy_ps: I64
    bound: Bound
    messages: Messages | None = None
    events: Events | None = None
    part: int = 0
    formula_chunks: int | None = None

    @property
    def algorithm_bandwidth_bytes_per_s(self) -> float:
        """Buffer bytes over time (nccl-tests: algbw)."""
        return self.request.bytes / (self.time_ps / 1e12) if self.time_ps else 0.0

    @property
    def link_utilization(self) -> NDArray[np.float64]:
        """float64[links], fraction of the time in which each link was busy."""
        return self.link_busy_ps / max(self.time_ps, 1)
