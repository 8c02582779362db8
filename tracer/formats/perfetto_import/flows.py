"""Which slices does each flow of a Perfetto file connect?

An id stands for one flow at a time: the slices that carry it are passed one after another until one ends it. The older form says whether
a slice sends, passes on or receives; one that sends may be received by many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.perfetto_import.bodies import ENDS, FORWARDS, PASSES, SENDS, Lists
from trnprof.tracer.formats.protobuf_wire import Ints


@dataclass
class FlowMarks:
    """Where flows pass: id, number of the event, and its role."""

    id: list[NDArray[np.uint64]] = field(default_factory=list)
    event: list[Ints] = field(default_factory=list)
    role: list[Ints] = field(default_factory=list)

    def add(self, flows: Lists, numbers: Ints, is_timed: NDArray[np.bool_]) -> None:
        """Take the marks of a block's events, ``numbers``; those without a time are left out."""
        chosen = is_timed[flows.event]
        if chosen.any():
            self.id.append(flows.bits[chosen])
            self.event.append(numbers[flows.event[chosen]])
            self.role.append(flows.mark[chosen])

    def joined(self) -> tuple[NDArray[np.uint64], Ints, Ints]:
        """All ids, events and roles."""
        return (
            np.concatenate([np.zeros(0, np.uint64), *self.id]),
            np.concatenate([np.zeros(0, np.int64), *self.event]),
            np.concatenate([np.zeros(0, np.int64), *self.role]),
        )


def flow_edges(ids: NDArray[np.uint64], roles: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The edges of all flows.

    Args:
        ids: of n marks, equal ones together, each flow in order of time.
        roles: what each event does with the flow.
        rows: the events.

    Returns:
        Rows of sources and targets.
    """
    edges = np.empty((2, len(ids)), np.int64)
    count = _edges(ids, roles, rows, edges)
    return edges[0, :count], edges[1, :count]


@compiled
def _edges(ids: NDArray[np.uint64], roles: Ints, rows: Ints, edges: NDArray[np.int64]) -> int:
    count, open_at = 0, -1
    for i in range(ids.size):
        if i == 0 or ids[i] != ids[i - 1]:
            open_at = -1
        role, row = roles[i], rows[i]
        if open_at >= 0 and open_at != row and role != SENDS:
            edges[0, count], edges[1, count] = open_at, row
            count += 1
        if role == ENDS:
            open_at = -1
        elif (
            role == PASSES or (role == SENDS and open_at < 0) or (role == FORWARDS and open_at >= 0)
        ):
            open_at = row
    return count
