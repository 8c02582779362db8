"""What does the viewer know about a trace that never changes while browsing? Index, tree, hues, counters, minimap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from trnprof.tui.cells import Codes
from trnprof.tui.columns import busy_before, column_edges
from trnprof.tui.index import build_store
from trnprof.tui.palette import hues_of
from trnprof.tui.store import Int, Store
from trnprof.tui.tree import Tree, build_tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trnprof.tracer.reader import Trace


@dataclass(frozen=True, eq=False)
class Counter:
    """Samples of one counter track: times in ns since the start of its clock, values, unit."""

    times: Int
    values: NDArray[np.float64]
    unit: str

    def columns(self, edges: Int) -> NDArray[np.float64]:
        """The largest value in each column, a value holding until the next; NaN before the first sample."""
        if not len(self.times):
            return np.full(len(edges) - 1, np.nan)
        held = np.searchsorted(self.times, edges[:-1], "right") - 1
        last = np.searchsorted(self.times, edges[1:], "left")
        value = np.where(held >= 0, self.values[np.maximum(held, 0)], np.nan)
        some = np.flatnonzero(last > held + 1)
        if len(some):
            pairs = np.stack([held[some] + 1, last[some]], axis=1).ravel()
            padded = np.append(self.values, -np.inf)
            value[some] = np.fmax(value[some], np.maximum.reduceat(padded, pairs)[::2])
        return value


@dataclass(frozen=True, eq=False)
class Scene:
    """A trace, ready to be drawn.

    Attributes:
        store: the indexed events.
        tree: tracks and groups.
        hues: hue of each label of the store.
        counters: by track position.
    """

    store: Store
    tree: Tree
    hues: Codes
    counters: dict[int, Counter]
    _minimaps: dict[tuple[int, int], NDArray[np.float64]] = field(default_factory=dict, repr=False)

    def minimap(self, band: int, columns: int) -> NDArray[np.float64]:
        """Busy time of all tracks of a clock by column of the whole time, relative to the busiest column; kept."""
        kept = self._minimaps.get((band, columns))
        if kept is None:
            store, clock = self.store, self.store.clocks[band]
            tracks = np.flatnonzero((store.bands == band) & (np.diff(store.offsets) > 0))
            edges = column_edges(0, max(clock.hi - clock.lo, columns), columns)
            total, _ = busy_before(store, tracks, edges)
            busy = np.diff(total, axis=1).sum(axis=0, dtype=np.float64)
            rate = busy / np.diff(edges)
            kept = rate / max(float(rate.max(initial=0.0)), 1e-300)
            self._minimaps[band, columns] = kept
        return kept


def open_scene(trace: Trace) -> Scene:
    """Index a trace.

    Raises:
        TraceError: times that cannot be drawn on one axis.
    """
    store = build_store(trace)
    counters = _counters(trace, store)
    labels = pl.Series(store.names, dtype=pl.String)
    return Scene(
        store, build_tree(store, tuple(counters)), hues_of(labels, store.categories), counters
    )


def _counters(trace: Trace, store: Store) -> dict[int, Counter]:
    frame = trace.counters.select("track_id", "timestamp_ns", "value").collect()
    units = dict(trace.tracks.select("track_id", "unit").iter_rows())
    counters = {}
    for (track_id,), part in frame.sort("timestamp_ns", maintain_order=True).group_by("track_id"):
        place = int(np.searchsorted(store.track_ids, track_id))
        if place == len(store.track_ids) or store.track_ids[place] != track_id:
            continue
        lo = store.clocks[int(store.bands[place])].lo
        times = part["timestamp_ns"].to_numpy() - lo
        counters[place] = Counter(times, part["value"].to_numpy(), units[track_id] or "")
    return counters
