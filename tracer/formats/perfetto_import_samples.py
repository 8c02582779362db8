"""On which counters do the values lie that events carry, and what do they amount to?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.perfetto_import_bodies import OWN_TRACK, Lists
from trnprof.tracer.formats.perfetto_import_events import Timing
from trnprof.tracer.formats.perfetto_import_heads import BY_UUID, SAMPLE
from trnprof.tracer.formats.perfetto_import_state import Defaults
from trnprof.tracer.formats.perfetto_import_tracks import Tracks
from trnprof.tracer.formats.protobuf_wire import Ints, compiled
from trnprof.tracer.ingest.stage import Stage


class Samples:
    """Counter samples of a file; increments are summed from one block to the next."""

    def __init__(self, stage: Stage, timing: Timing, tracks: Tracks) -> None:
        self._stage = stage
        self._timing = timing
        self._tracks = tracks
        self._sums: dict[int, tuple[int, float]] = {}

    def add(
        self,
        samples: Lists,
        numbers: Ints,
        scopes: Ints,
        defaults: Ints,
        known: list[Defaults],
    ) -> None:
        """Put the samples of a block into the stage.

        Args:
            samples: the values; ``event`` is the index in the following arrays.
            numbers: of the events in ``Timing``.
            scopes: of the events.
            defaults: index into ``known``, -1 for none.
            known: all defaults.
        """
        if not len(samples.event):
            return
        timing, event = self._timing, samples.event
        uuid, has_track = _track_of(samples, timing, numbers, defaults, known)
        is_valid = has_track & timing.is_timed[numbers[event]]
        is_valid &= (samples.low != OWN_TRACK) | (timing.kind[numbers[event]] == SAMPLE)
        chosen = np.flatnonzero(is_valid)
        event, uuid, bits = event[chosen], uuid[chosen], samples.bits[chosen]
        signed = bits.view(np.int64).astype(np.float64)
        value = np.where(samples.mark[chosen] == 1, bits.view(np.float64), signed)
        time = timing.time_ns[numbers[event]]
        order = np.argsort(uuid, kind="stable")
        bounds = np.flatnonzero(np.diff(uuid[order])) + 1
        for part in np.split(order, bounds):
            if len(part):
                self._track(int(uuid[part[0]]), time[part], value[part], scopes[event[part]])

    def _track(self, uuid: int, time: Ints, value: NDArray[np.float64], scopes: Ints) -> None:
        described = self._tracks.described((BY_UUID, uuid))
        if described.multiplier:
            value = value * described.multiplier
        if described.is_incremental:
            scope, total = self._sums.get(uuid, (-1, 0.0))
            value = _running(value, scopes, scope, total)
            self._sums[uuid] = (int(scopes[-1]), float(value[-1]))
        finite = np.isfinite(value)
        self._stage.add_counters(
            timeline=self._tracks.counter_timeline(self._stage, (BY_UUID, uuid)),
            timestamp_ns=time[finite],
            value=value[finite],
        )


def _track_of(
    samples: Lists, timing: Timing, numbers: Ints, defaults: Ints, known: list[Defaults]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Uuid of the track of each sample, and whether it has one."""
    uuid, has = samples.uuid.copy(), np.ones(len(samples.event), np.bool_)
    own = np.flatnonzero(samples.low == OWN_TRACK)
    track = timing.track[numbers[samples.event[own]]]
    uuid[own] = np.array([t[1] for t in timing.tracks], np.uint64)[track]
    has[own] = np.array([t[0] == BY_UUID for t in timing.tracks], np.bool_)[track]
    default = np.flatnonzero((samples.low != OWN_TRACK) & (samples.high == 1))
    has[default] = False
    for is_double, lists in (
        (0, [d.counters for d in known]),
        (1, [d.double_counters for d in known]),
    ):
        starts = np.cumsum([0, *map(len, lists)])
        flat = np.array([u for some in lists for u in some], np.uint64)
        at = default[samples.mark[default] == is_double]
        row, order = defaults[samples.event[at]], samples.low[at]
        inside = row >= 0
        inside[inside] = order[inside] < np.diff(starts)[row[inside]]
        has[at] = inside
        uuid[at[inside]] = flat[starts[row[inside]] + order[inside]]
    return uuid, has


@compiled
def _running(
    values: NDArray[np.float64], scopes: Ints, scope: int, total: float
) -> NDArray[np.float64]:
    """Sums of increments, which begin anew with each scope."""
    sums = np.zeros(values.size)
    for i in range(values.size):
        if scopes[i] != scope:
            scope, total = scopes[i], 0.0
        total += values[i]
        sums[i] = total
    return sums
