"""How full is HBM over time, and does the workload fit? From the lifetimes of the tensors that lie in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.lowering.step import LoweredStep
from trnprof.emulator.taskgraph import Schedule
from trnprof.emulator.trace_rows import to_ns
from trnprof.emulator.workload import Operation, TensorRef

_Change = tuple[int, int, int]
"""When in ps, by how many bytes, which storage."""


@dataclass
class HbmOccupancy:
    """Occupancy carried from step to step.

    Attributes:
        live: bytes of every storage in HBM.
        occupied_bytes: their sum now.
        peak_bytes: the highest it has been.
        at_peak: bytes of every storage that lay there then.
    """

    live: dict[int, int] = field(default_factory=dict)
    occupied_bytes: int = 0
    peak_bytes: int = 0
    at_peak: dict[int, int] = field(default_factory=dict)

    def start(self, resident: Sequence[TensorRef]) -> None:
        """What lies there before the first operation."""
        for ref in resident:
            self.live[ref.tensor] = ref.storage_nbytes
        self.occupied_bytes = self.peak_bytes = sum(self.live.values())
        self.at_peak = dict(self.live)

    def advance(
        self,
        operations: Sequence[Operation],
        first_position: int,
        lowered: LoweredStep,
        schedule: Schedule,
        step_start_ps: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Samples of one step: (timestamp_ns, bytes), in time order, one a distinct time.

        A storage counts from the first transfer that touches it until everything issued before it was freed has ended: memory
        is handed back in program order, as PyTorch's allocator does on a stream. For a collective, which runs beside the program, wait
        only the storages that it reads and writes.
        """
        before = dict(self.live)
        changes: list[_Change] = []
        for storage, nbytes in lowered.hbm_storages.items():
            if storage not in self.live:
                self.live[storage] = nbytes
                task = lowered.first_task.get(storage)
                when = step_start_ps if task is None else int(schedule.start_ps[task])
                changes.append((when, nbytes, storage))
        finished = _finished_ps(lowered, schedule, first_position, len(operations), step_start_ps)
        for offset, op in enumerate(operations):
            for storage in op.freed:
                when = int(finished[offset])
                if storage in lowered.exchanged:
                    when = max(when, int(schedule.end_ps[lowered.exchanged[storage]]))
                changes.append((when, -self.live.pop(storage, 0), storage))
        if not changes:
            return np.empty(0, np.int64), np.empty(0, np.float64)
        # allocations come before frees at one instant, so that the peak is not understated
        changes.sort(key=lambda c: (c[0], -c[1]))
        times = to_ns(np.array([c[0] for c in changes], np.int64))
        levels = self.occupied_bytes + np.cumsum([c[1] for c in changes])
        if int(levels.max()) > self.peak_bytes:
            self.peak_bytes = int(levels.max())
            self.at_peak = _after(before, changes[: int(levels.argmax()) + 1])
        self.occupied_bytes = int(levels[-1])
        last = np.append(times[1:] != times[:-1], True)
        return times[last], levels[last].astype(np.float64)


def _after(before: Mapping[int, int], changes: Sequence[_Change]) -> dict[int, int]:
    """What lies there once these changes were made to what lay there before."""
    held = dict(before)
    for _, nbytes, storage in changes:
        held[storage] = held.get(storage, 0) + nbytes
    return {storage: nbytes for storage, nbytes in held.items() if nbytes}


def _finished_ps(
    lowered: LoweredStep, schedule: Schedule, first_position: int, count: int, step_start_ps: int
) -> NDArray[np.int64]:
    """int64[count + 1]: when all tasks of the operations before each one have ended, collectives left aside."""
    latest = np.full(count + 1, step_start_ps, np.int64)
    tasks = lowered.tasks
    if len(tasks):
        owner = np.array([label.op for label in tasks.labels], np.int64)[tasks.label_ids]
        ends = schedule.end_ps.copy()
        ends[list(lowered.collectives)] = step_start_ps
        np.maximum.at(latest, owner - first_position + 1, ends)
    return np.maximum.accumulate(latest)
