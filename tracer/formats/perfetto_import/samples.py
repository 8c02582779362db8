"""On which counters do the values lie that events carry, and what do they amount to?"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.perfetto_import.bodies import OWN_TRACK, Lists
from trnprof.tracer.formats.perfetto_import.heads import BY_UUID, SAMPLE
from trnprof.tracer.formats.perfetto_import.state import Defaults, Sequences
from trnprof.tracer.formats.perfetto_import.timing import Timing
from trnprof.tracer.formats.perfetto_import.tracks import Tracks
from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.ingest.stage import Stage

_MANY_SUMS: Final = 100_000


class Samples:
    """Counter samples of a file; increments are summed from one block to the next."""

    def __init__(self, stage: Stage, timing: Timing, tracks: Tracks, sequences: Sequences) -> None:
        self._stage = stage
        self._sequences = sequences
        self._timing = timing
        self._tracks = tracks
        self._sums: dict[tuple[int, int], float] = {}

    def add(
        self,
        samples: Lists,
        numbers: Ints,
        scopes: Ints,
        defaults: Ints,
    ) -> None:
        """Put the samples of a block into the stage.

        Args:
            samples: the values; ``event`` is the index in the following arrays.
            numbers: of the events in ``Timing``.
            scopes: of the events.
            defaults: index into those of the sequences, -1 for none.
        """
        if not len(samples.event):
            return
        timing, event = self._timing, samples.event
        uuid, has_track = _track_of(samples, timing, numbers, defaults, self._sequences.defaults)
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
        if described.multiplier > 0:
            value = value * described.multiplier
        if described.is_incremental:
            value = self._summed(uuid, value, scopes)
        finite = np.isfinite(value)
        self._stage.add_counters(
            timeline=self._tracks.counter_timeline(self._stage, (BY_UUID, uuid)),
            timestamp_ns=time[finite],
            value=value[finite],
        )

    def _summed(self, uuid: int, value: NDArray[np.float64], scopes: Ints) -> NDArray[np.float64]:
        """Sums of increments: each scope has its own, which begins at 0."""
        sums = np.zeros(len(value))
        order = np.argsort(scopes, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(scopes[order])) + 1):
            key = (uuid, int(scopes[part[0]]))
            sums[part] = np.cumsum(np.append(self._sums.get(key, 0.0), value[part]))[1:]
            self._sums[key] = float(sums[part[-1]])
        if len(self._sums) > _MANY_SUMS:
            live = self._sequences.live_scopes()
            self._sums = {key: total for key, total in self._sums.items() if key[1] in live}
        return sums


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
