"""How full are HBM and SBUF over time? From the lifetimes of the tensors that lie in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.lowering.step import LoweredStep
from trnprof.emulator.taskgraph import Schedule
from trnprof.emulator.trace_rows import to_ns
from trnprof.emulator.workload import Operation, TensorRef
from trnprof.tracer.memory_names import ACTIVATIONS, HBM_USES

_Change = tuple[int, int, int]
"""When in ps, by how many bytes, which storage."""
Samples = tuple[NDArray[np.int64], NDArray[np.float64]]
"""When in ns and how many bytes, in time order, one a distinct time."""
_USE_BY_DEFAULT = HBM_USES.index(ACTIVATIONS)


@dataclass
class HbmOccupancy:
    """Occupancy carried from step to step.

    Attributes:
        live: bytes of every storage in HBM.
        occupied_bytes: their sum now.
        peak_bytes: the highest it has been.
        at_peak: bytes of every storage that lay there then.
        use_of: place in HBM_USES of every storage.
        by_use: bytes now, by place in HBM_USES; of those places only that some storage has, and of activations.
    """

    use_of: Mapping[int, int] = field(default_factory=dict)
    by_use: dict[int, int] = field(default_factory=dict)
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
        self.by_use = dict.fromkeys(sorted({*self.use_of.values(), _USE_BY_DEFAULT}), 0)
        for storage, nbytes in self.live.items():
            self.by_use[self.use_of.get(storage, _USE_BY_DEFAULT)] += nbytes

    def at_start(self) -> dict[int | None, Samples]:
        """What lies there now as the first sample of each counter."""
        levels: dict[int | None, int] = {None: self.occupied_bytes}
        levels.update(self.by_use.items())
        zero = np.zeros(1, np.int64)
        return {use: (zero, np.array([nbytes], np.float64)) for use, nbytes in levels.items()}

    def advance(
        self,
        operations: Sequence[Operation],
        first_position: int,
        lowered: LoweredStep,
        schedule: Schedule,
        step_start_ps: int,
    ) -> dict[int | None, Samples]:
        """Samples of one step, of all bytes (None) and of those of each place in HBM_USES that changes.

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
        changes = [change for change in changes if change[1]]
        if not changes:
            return {}
        # allocations come before frees at one instant, so that the peak is not understated
        changes.sort(key=lambda c: (c[0], -c[1]))
        times = to_ns(np.array([c[0] for c in changes], np.int64))
        sizes = np.array([c[1] for c in changes], np.int64)
        uses = np.array([self.use_of.get(c[2], _USE_BY_DEFAULT) for c in changes], np.int64)
        levels = self.occupied_bytes + np.cumsum(sizes)
        if int(levels.max()) > self.peak_bytes:
            self.peak_bytes = int(levels.max())
            self.at_peak = _after(before, changes[: int(levels.argmax()) + 1])
        self.occupied_bytes = int(levels[-1])
        samples: dict[int | None, Samples] = {None: _one_a_time(times, levels)}
        for use in np.unique(uses).tolist():
            own = uses == use
            of_use = self.by_use[use] + np.cumsum(sizes[own])
            self.by_use[use] = int(of_use[-1])
            samples[use] = _one_a_time(times[own], of_use)
        return samples


def _one_a_time(times: NDArray[np.int64], levels: NDArray[np.int64]) -> Samples:
    """The last level of each distinct time."""
    last = np.append(times[1:] != times[:-1], True)
    return times[last], levels[last].astype(np.float64)


def _after(before: Mapping[int, int], changes: Sequence[_Change]) -> dict[int, int]:
    """What lies there once these changes were made to what lay there before."""
    held = dict(before)
    for _, nbytes, storage in changes:
        held[storage] = held.get(storage, 0) + nbytes
    return {storage: nbytes for storage, nbytes in held.items() if nbytes}


def sbuf_samples(lowered: LoweredStep, schedule: Schedule, step_start_ps: int) -> Samples:
    """What SBUF keeps between kernels in one step: empty at its start, then after each kernel that changes it.

    A kernel counts once it and everything issued before it has ended, collectives left aside.
    """
    if not lowered.kept_in_sbuf:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    ends = schedule.end_ps.copy()
    ends[list(lowered.collectives)] = step_start_ps
    latest = np.maximum.accumulate(np.append(step_start_ps, ends))
    tasks, levels = np.array([(0, 0), *lowered.kept_in_sbuf], np.int64).T
    times, held = _one_a_time(to_ns(latest[tasks]), levels)
    is_new = np.append(True, held[1:] != held[:-1])
    return times[is_new], held[is_new]


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
