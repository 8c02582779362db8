"""How much of a workload was lowered by rules for its operators, and how much by the stated roofline fallback?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnprof.emulator.lowering.step import LoweredStep
from trnprof.emulator.taskgraph import TaskGraph
from trnprof.emulator.workload import Operation


@dataclass
class Coverage:
    """Counted step by step; views and what else the device does nothing for are left out.

    Attributes:
        exact_operations: operations lowered by a rule.
        fallbacks: by operator, how many were lowered by the fallback.
        fallback_ps: by operator, time of engines and DMA of those.
        work_ps: time of engines and DMA of all operations, collectives left aside.
    """

    exact_operations: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    fallback_ps: Counter[str] = field(default_factory=Counter)
    work_ps: int = 0

    def add(
        self,
        operations: Sequence[Operation],
        lowered: LoweredStep,
        graph: TaskGraph,
        first_position: int,
    ) -> None:
        """One step of one class of ranks.

        Args:
            operations: of the step.
            lowered: their plans and tasks.
            graph: the tasks with their durations in ps.
            first_position: of the first operation in the workload.
        """
        work = [plan for plan in lowered.plans if plan.form != "none"]
        self.exact_operations += sum(plan.exact for plan in work)
        places = [i for i, plan in enumerate(lowered.plans) if not plan.exact]
        self.fallbacks.update(operations[i].name for i in places)
        if not len(lowered.tasks):
            return
        owner = np.array([label.op for label in lowered.tasks.labels], np.int64)
        duration = graph.duration_ps.astype(np.float64)
        duration[list(lowered.collectives)] = 0
        by_operation = np.bincount(
            owner[lowered.tasks.label_ids] - first_position, duration, len(operations)
        )
        self.work_ps += int(by_operation.sum())
        for i in places:
            self.fallback_ps[operations[i].name] += int(by_operation[i])

    def told(self) -> dict[str, Any]:
        """What the manifest says: counts, and shares of time from 0 to 1, of all and by operator."""
        work = max(1, self.work_ps)
        shares = {name: ps / work for name, ps in self.fallback_ps.most_common()}
        return {
            "exact_ops": self.exact_operations,
            "fallback_ops": self.fallbacks.total(),
            "fallback_names": dict(sorted(self.fallbacks.items())),
            "fallback_time_percent": self.fallback_ps.total() / work,
            "fallback_shares": shares,
        }
