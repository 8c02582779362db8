"""What do collectives do to links? One event a collective and link that carries something, as long as it is busy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.lowering.tasks import TaskList
from trnprof.emulator.ranks.costs import CollectiveCost
from trnprof.emulator.taskgraph import Schedule
from trnprof.emulator.trace_rows import to_ns


def link_columns(
    first_link: int,
    tasks: TaskList,
    costs: Mapping[int, CollectiveCost],
    schedule: Schedule,
    first_op_id: int,
    step: int,
) -> dict[str, Any]:
    """Columns of ``events`` on links, without ids; each begins with its collective, for which the links were free.

    Args:
        first_link: track of link 0.
        tasks: of one step.
        costs: of those that are collectives.
        schedule: of the step.
        first_op_id: op_id of the operation at position 0 of the workload.
        step: ordinal.
    """
    index = np.array(list(costs), np.int64)
    counts = np.array([len(cost.links) for cost in costs.values()], np.int64)
    labels = list(tasks.labels)
    of_task = [labels[tasks.label_ids[task]] for task in index]
    links = _joined([cost.links for cost in costs.values()])
    start_ps = np.repeat(schedule.start_ps[index], counts)
    busy_ps = _joined([cost.link_busy_ps for cost in costs.values()])
    start = to_ns(start_ps)
    return {
        "track_id": first_link + links,
        "start_ns": start,
        "duration_ns": to_ns(start_ps + busy_ps) - start,
        "name": np.repeat(np.array([label.name for label in of_task], object), counts),
        "category": ["collective"] * len(links),
        "op_id": np.repeat([first_op_id + label.op for label in of_task], counts),
        "step": np.full(len(links), step, np.int32),
        "bytes": _joined([cost.link_bytes for cost in costs.values()]),
    }


def used_links(costs: Mapping[int, CollectiveCost]) -> I64:
    """int64[...], ids of the links that some collectives use, ascending."""
    return np.unique(_joined([cost.links for cost in costs.values()]))


def _joined(arrays: Sequence[I64]) -> I64:
    return np.concatenate([np.empty(0, np.int64), *arrays])
