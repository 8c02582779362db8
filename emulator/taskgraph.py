"""What is scheduled: tasks, the servers they hold and the edges between them, as arrays.

Semantics, shared by ``scheduler`` (compiled) and ``reference`` (readable):

* A task becomes *ready* when every dependency has ended and the lag of that edge has passed (and not before its
  ``release_ps``).
* It starts at ``max(ready, free time of every server it needs)``, holds server k for ``occupancy_ps[k]`` from its
  start, and ends at ``start + duration_ps``. Dependents see ``end + lag``. A lag may be negative, down to the duration
  of the task waited for: a dependent may begin while it runs (cut-through: a link passes on what has come so far), but
  never before it starts, so that time does not run backwards.
* A server is *in order* (an engine queue: tasks start in the order of their index, so a task that is not ready blocks
  those behind it) or *shared* (first come, first served by the time a task is ready and its in-order servers are
  free; ties go to the lowest index of those that wait).
* A task reserves all its servers together, when its turn has come. A server that is free before the others of its
  task stays reserved: nothing that comes later is moved into the gap.
* A dependency may be given twice. A server may not be held twice by one task.
* Times are integer picoseconds. The outcome is a pure function of the graph and the carried state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class TaskGraph:
    """Structure of arrays over n tasks, e dependencies and s (task, server) pairs.

    Attributes:
        duration_ps: int64[n], the task's own duration: its event in the trace.
        release_ps: int64[n], earliest start (0 where free).
        release_blocker: int64[n], what set ``release_ps`` (an event of an earlier step), -1 for nothing.
        server_offsets: int64[n + 1], CSR offsets into the two arrays below. A task's first server is the one its event
            is drawn on.
        server_ids: int32[s], servers held.
        occupancy_ps: int64[s], how long each is held from the start of the task.
        dependency_offsets: int64[n + 1], CSR offsets into the two arrays below.
        dependencies: int64[e], index of the task waited for.
        lag_ps: int64[e], time beyond its end, at least minus its duration.
        in_order: bool[servers], which servers are queues.
    """

    duration_ps: I64
    release_ps: I64
    release_blocker: I64
    server_offsets: I64
    server_ids: I32
    occupancy_ps: I64
    dependency_offsets: I64
    dependencies: I64
    lag_ps: I64
    in_order: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.duration_ps)


@dataclass(frozen=True)
class ServerState:
    """What one step leaves to the next.

    Attributes:
        free_ps: int64[servers], when each becomes free.
        last_task: int64[servers], id of the task that held it last (in the caller's numbering, at least 0), -1 if none.
    """

    free_ps: I64
    last_task: I64


@dataclass(frozen=True)
class Schedule:
    """The outcome, one entry a task, all times in ps.

    Attributes:
        start_ps: int64[n].
        end_ps: int64[n], start + duration.
        ready_ps: int64[n], all dependencies met (with lag) and released.
        blocker: int64[n], what bound the start, the first there is of: the lowest dependency that made it ready just
            then; the blocker of its release, if it was released just then; the lowest previous holder of a server of
            its own that became free just then; the lowest such holder from an earlier graph. Releases and holders from
            earlier graphs are given as ``-2 - id`` of the carried state. -1: nothing did.
        state: the servers afterwards; ``last_task`` holds indices of this graph as they are (>= 0), untouched servers
            keep the carried id as ``-2 - id`` (``scheduler.carry_state`` makes both the caller's ids again).
    """

    start_ps: I64
    end_ps: I64
    ready_ps: I64
    blocker: I64
    state: ServerState
