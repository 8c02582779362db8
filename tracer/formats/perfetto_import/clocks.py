"""What time of the trace is a timestamp on any of its clocks?

Clock snapshots say what several clocks showed at one moment. A time is moved from its clock to the trace's by the last snapshot at or before
it (by the first one if there is none before), through further clocks where no snapshot has both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.protobuf_wire import Ints

BOOTTIME: Final = int(pb.BUILTIN_CLOCK_BOOTTIME)
REALTIME: Final = int(pb.BUILTIN_CLOCK_REALTIME)
FIRST_SEQUENCE_CLOCK: Final = 64
LAST_SEQUENCE_CLOCK: Final = 127


def clock_key(clock: int, sequence: int) -> int:
    """One number for a clock: its id, or a negative one for a clock of a packet sequence (by its dense number)."""
    if FIRST_SEQUENCE_CLOCK <= clock <= LAST_SEQUENCE_CLOCK:
        return -(sequence * 64 + clock - FIRST_SEQUENCE_CLOCK) - 1
    return clock


@dataclass
class Clocks:
    """All snapshots of a trace.

    Attributes:
        snapshots: what the clocks showed, in ns, by ``clock_key``.
        primary: clock of the trace's own times.
    """

    snapshots: list[dict[int, int]] = field(default_factory=list)
    primary: int = BOOTTIME
    _having: dict[int, list[dict[int, int]]] = field(default_factory=dict)

    def trace_clock(self, used: Mapping[int, int]) -> int:
        """The clock that times are moved to.

        Args:
            used: number of times by clock; 0 for "the trace's own".
        """
        others = [key for key in used if key != 0]
        known = any(self.primary in snapshot for snapshot in self.snapshots)
        if not known and self.primary not in used and 0 not in used and len(others) == 1:
            return others[0]
        return self.primary

    def unix_offset_ns(self, clock: int) -> int | None:
        """What is added to a time of a clock to make it Unix time; None if nobody knows."""
        if clock == REALTIME:
            return 0
        for snapshot in self.snapshots:
            if clock in snapshot and REALTIME in snapshot:
                return snapshot[REALTIME] - snapshot[clock]
        return None

    def moved(self, times: Ints, source: int, target: int) -> Ints | None:
        """Times of one clock on another; None if no snapshots relate the two."""
        path = self._path(source, target)
        if path is None:
            return None
        for here, there in pairwise(path):
            times = self._step(times, here, there)
        return times

    def index(self) -> None:
        """Look at all snapshots, once they are there."""
        self._having = {}
        for snapshot in self.snapshots:
            for key in snapshot:
                self._having.setdefault(key, []).append(snapshot)

    def _path(self, source: int, target: int) -> list[int] | None:
        before: dict[int, int] = {source: source}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            if here == target:
                path = [target]
                while path[-1] != source:
                    path.append(before[path[-1]])
                return path[::-1]
            beside = {key for snapshot in self._having.get(here, ()) for key in snapshot}
            for there in sorted(beside, key=lambda k: (k != target, k)):
                if there not in before:
                    before[there] = here
                    waiting.append(there)
        return None

    def _step(self, times: Ints, source: int, target: int) -> Ints:
        both = [(s[source], s[target]) for s in self._having[source] if target in s]
        shown = np.array([b[0] for b in both], np.int64)
        offset = np.array([b[1] for b in both], np.int64) - shown
        order = np.argsort(shown, kind="stable")
        at = np.maximum(np.searchsorted(shown[order], times, side="right") - 1, 0)
        moved: Ints = times + offset[order][at]
        return moved


def trace_times(
    clocks: Clocks, keys: NDArray[np.int32], values: Ints, used: Mapping[int, int]
) -> tuple[NDArray[np.bool_], int]:
    """Move n timestamps to the trace's clock, in place.

    Args:
        clocks: all snapshots.
        keys: clock of each, as ``clock_key``; 0 for the trace's own.
        values: what each clock showed, ns; changed to the trace's time.
        used: how many are on each clock.

    Returns:
        Which times are known, and the trace's clock.
    """
    clocks.index()
    target = clocks.trace_clock(used)
    known = np.ones(len(values), np.bool_)
    for key in used:
        if key in (0, target):
            continue
        mine = np.flatnonzero(keys == key)
        moved = clocks.moved(values[mine], key, target)
        if moved is None:
            known[mine] = False
        else:
            values[mine] = moved
    return known, target
