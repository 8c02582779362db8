"""What do collectives do to links? One event a collective and link that carries something, as long as it is busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.lowering.step import LoweredStep
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.ranks.tracks import first_link
from trnprof.emulator.taskgraph import Schedule
from trnprof.emulator.trace_rows import to_ns


def link_columns(
    ranks: Ranks, lowered: LoweredStep, schedule: Schedule, first_op_id: int, step: int
) -> dict[str, Any]:
    """Columns of ``events`` on links, without ids; each begins with its collective, for which the links were free.

    Args:
        ranks: of the program.
        lowered: one step.
        schedule: of it.
        first_op_id: op_id of the operation at position 0 of the workload.
        step: ordinal.
    """
    tasks = np.array(list(lowered.collectives), np.int64)
    costs = list(lowered.collectives.values())
    counts = np.array([len(cost.links) for cost in costs], np.int64)
    labels = list(lowered.tasks.labels)
    of_task = [labels[lowered.tasks.label_ids[task]] for task in tasks]
    links = _joined([cost.links for cost in costs])
    start_ps = np.repeat(schedule.start_ps[tasks], counts)
    start = to_ns(start_ps)
    return {
        "track_id": first_link(ranks) + links,
        "start_ns": start,
        "duration_ns": to_ns(start_ps + _joined([cost.link_busy_ps for cost in costs])) - start,
        "name": np.repeat(np.array([label.name for label in of_task], object), counts),
        "category": ["collective"] * len(links),
        "op_id": np.repeat([first_op_id + label.op for label in of_task], counts),
        "step": np.full(len(links), step, np.int32),
        "bytes": _joined([cost.link_bytes for cost in costs]),
    }


def used_links(lowered: LoweredStep) -> I64:
    """int64[...], ids of the links that a step uses, ascending."""
    return np.unique(_joined([cost.links for cost in lowered.collectives.values()]))


def _joined(arrays: Sequence[I64]) -> I64:
    return np.concatenate([np.empty(0, np.int64), *arrays])
