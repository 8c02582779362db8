"""Which tracks share a time axis in the exported file, and what is added to their times?

Clocks with a known wall-clock epoch share one axis. Every other clock is an axis of its own: nothing was measured that would
relate it to the others, so its tracks stand in a group of their own that begins at 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.errors import TraceError
from trnprof.tracer.reader import Trace

MAX_NS = 2**63 - 1


@dataclass(frozen=True)
class Axis:
    """One time axis of the exported file.

    Attributes:
        name: of its group of tracks.
        description: what a person should know of it.
    """

    name: str
    description: str


@dataclass(frozen=True)
class Axes:
    """The time axes of a trace.

    Attributes:
        axes: one a group of related clocks; one in all if every clock is related.
        axis_of_clock: index into ``axes`` by clock id.
        epoch_ns_of_clock: by clock id: its zero relative to that of the axis, before any shift.
    """

    axes: tuple[Axis, ...]
    axis_of_clock: Mapping[int, int]
    epoch_ns_of_clock: Mapping[int, int]


@dataclass(frozen=True)
class Placement:
    """Where the events of each track go; arrays in order of ``track_id``.

    Attributes:
        track_id: those with events or counter samples.
        uuid: track of the Perfetto file.
        axis: index of the time axis.
        offset_ns: added to times of the trace; gives times that are not negative.
    """

    track_id: NDArray[np.uint32]
    uuid: NDArray[np.uint64]
    axis: NDArray[np.int64]
    offset_ns: NDArray[np.int64]

    def rows(self, track_ids: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The place of each of n tracks in the arrays; every one must be there."""
        return np.searchsorted(self.track_id, track_ids)


def time_axes(trace: Trace, clocks: Collection[int]) -> Axes:
    """Group clocks of a trace by what is known of their relation.

    Args:
        trace: its fragments describe the clocks; one that none describes is taken for a device's.
        clocks: ids of the clocks that events, counter samples or steps are on.
    """
    known: dict[int, Mapping[str, Any]] = {
        clock["clock_id"]: clock for f in trace.fragments for clock in f.get("clocks", ())
    }
    stated = {c: known.get(c, {}).get("epoch_unix_ns") for c in sorted(clocks)}
    epochs = {c: epoch for c, epoch in stated.items() if epoch is not None}
    lone = [c for c in stated if c not in epochs]
    axes = [_lone_axis(c, known.get(c, {}), trace.is_simulation, len(lone)) for c in lone]
    axis_of_clock = {clock: index for index, clock in enumerate(lone)}
    if epochs:
        axis_of_clock |= dict.fromkeys(epochs, len(axes))
        plural = (
            "clocks of several processes, aligned by wall clock" if len(epochs) > 1 else "clock"
        )
        axes.append(Axis("host time", f"times on the host's {plural}"))
    first = min(epochs.values(), default=0)
    return Axes(tuple(axes), axis_of_clock, {c: epochs.get(c, first) - first for c in stated})


def shifts_ns(ranges: Sequence[tuple[int, int, int]], axes: Axes) -> list[int]:
    """What is added to all times of each axis, beyond the epochs of its clocks.

    Perfetto's times are not negative. With one axis nothing is added unless a time is negative; of several, each begins
    at 0.

    Args:
        ranges: clock id, first and last time of each track in ns.
        axes: time axes of the clocks.

    Raises:
        TraceError: times do not fit into 63 bits.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for clock_id, begin, end in ranges:
        axis, epoch = axes.axis_of_clock[clock_id], axes.epoch_ns_of_clock[clock_id]
        first[axis] = min(first.get(axis, MAX_NS), begin + epoch)
        last[axis] = max(last.get(axis, 0), end + epoch)
    if len(axes.axes) == 1:
        first = {axis: min(begin, 0) for axis, begin in first.items()}
    for axis, end in last.items():
        if end > MAX_NS or end - first[axis] > MAX_NS:
            raise TraceError("times beyond 2^63 ns cannot be exported; run trnprof validate")
    return [-first.get(axis, 0) for axis in range(len(axes.axes))]


def _lone_axis(clock_id: int, clock: Mapping[str, Any], is_simulation: bool, count: int) -> Axis:
    kind = clock.get("kind", "device")
    emulated = kind == "device" and is_simulation
    name = f"{kind} time (emulated)" if emulated else f"{kind} time"
    number = f", clock {clock_id}" if count > 1 else ""
    text = f"times on clock {clock_id} of kind {kind}, from 0; no relation to the other groups was measured"
    return Axis(name + number, text)
