"""How busy is each column of each track, and which event dominates it? One vectorised pass, exact at every zoom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trnprof.tui.store import BLOCK, Int, Store


@dataclass(frozen=True)
class Columns:
    """What every column of some tracks holds; arrays are (tracks, columns) unless said otherwise.

    Attributes:
        edges: column edges in ns since the start of the clock, (columns + 1,).
        busy: time covered by events, ns, exact.
        first: index of the first event that starts in the column.
        last: index after the last event that starts before the end of the column.
        dominant: the event that covers most of it (an instant if nothing else), -1 if there is none.
        overlap: ns of the column that it covers.
        spill: the event that reaches in from the left, -1 if none.
        spill_end: where that one ends, ns since the start of the clock.
        tail_start: start of the last event that starts in the column; undefined if there is none.
        tail_end: its end.
    """

    edges: Int
    busy: Int
    first: Int
    last: Int
    dominant: Int
    overlap: Int
    spill: Int
    spill_end: Int
    tail_start: Int
    tail_end: Int


def column_edges(t0: int, t1: int, columns: int) -> Int:
    """Edges of equally wide columns in integer ns; wants t1 - t0 ≥ columns. No product overflows."""
    wide, rest = divmod(t1 - t0, columns)
    k = np.arange(columns + 1, dtype=np.int64)
    return t0 + k * wide + k * rest // columns


@dataclass(frozen=True)
class _Cuts:
    """What lies before each edge; all (tracks, edges), times in ns since the start of the clock."""

    busy: Int
    index: Int
    start: Int
    end: Int


def busy_before(store: Store, tracks: Int, edges: Int) -> tuple[Int, Int]:
    """F(t) of each track at each edge, and the number of starts before it.

    Args:
        store: the events.
        tracks: track positions, of one clock.
        edges: ascending times in ns since the start of that clock.

    Returns:
        Busy ns before each edge (modulo a constant of the track) and indices, both (tracks, edges).
    """
    if store.event_count == 0 or len(tracks) == 0:
        zeros = np.zeros((len(tracks), len(edges)), np.int64)
        return zeros, zeros
    cuts = _cut(store, tracks, edges)
    return cuts.busy, cuts.index


def _cut(store: Store, tracks: Int, edges: Int) -> _Cuts:
    clock = store.clocks[int(store.bands[tracks[0]])]
    times = np.clip(edges, 0, min(clock.hi - clock.lo + 1, 2**63 - 1))
    base = (tracks * np.int64(store.stride))[:, None]
    if store.stride:
        index = np.searchsorted(store.key, times + base, "left")
    else:
        index = np.empty((len(tracks), len(edges)), np.int64)
        for row, track in enumerate(tracks.tolist()):
            lo, hi = store.offsets[track : track + 2].tolist()
            index[row] = lo + np.searchsorted(store.key[lo:hi], times, "left")
    before = np.maximum(index - 1, 0)
    total = store.cum[index]
    start = store.key[before] - base
    if store.reach is None or store.durations is None:
        end = reach = start + (total - store.cum[before])
    else:
        end, reach = start + store.durations[before], store.reach[before] - base
    over = np.maximum(reach - times, 0)
    over[index == store.offsets[tracks][:, None]] = 0
    return _Cuts(total - over, index, start, end)


def column_pass(store: Store, tracks: Int, edges: Int) -> Columns:
    """The pass for tracks of one clock; ``edges`` in ns since its start. See Columns."""
    shape = (len(tracks), len(edges) - 1)
    none = np.int64(-1)
    if store.event_count == 0 or len(tracks) == 0:
        blank, zero = np.full(shape, none), np.zeros(shape, np.int64)
        return Columns(edges, zero, zero, zero, blank, zero, blank, zero, zero, zero)
    cuts = _cut(store, tracks, edges)
    first, last = cuts.index[:, :-1], cuts.index[:, 1:]
    spill_end, tail_start, tail_end = cuts.end[:, :-1], cuts.start[:, 1:], cuts.end[:, 1:]
    spills = (first > store.offsets[tracks][:, None]) & (spill_end > edges[:-1])
    overlap = np.where(spills, np.minimum(spill_end, edges[1:]) - edges[:-1], none)
    spill = np.where(spills, first - 1, none)
    tail_cover = np.where(last > first, np.minimum(tail_end, edges[1:]) - tail_start, none)
    overlap, dominant = _larger(overlap, spill, tail_cover, last - 1)
    inner = np.flatnonzero((last - first).ravel() > 1)
    if len(inner):
        value, event = longest(store, first.ravel()[inner], last.ravel()[inner] - 1)
        flat_overlap, flat_event = overlap.ravel(), dominant.ravel()
        flat_overlap[inner], flat_event[inner] = _larger(
            flat_overlap[inner], flat_event[inner], value, event
        )
    busy = cuts.busy[:, 1:] - cuts.busy[:, :-1]
    return Columns(
        edges, busy, first, last, dominant, np.maximum(overlap, 0), spill, spill_end, tail_start, tail_end
    )  # fmt: skip


def longest(store: Store, lo: Int, hi: Int) -> tuple[Int, Int]:
    """Duration and index of the longest event of each non-empty range [lo, hi).

    Long ranges look at whole blocks through their stored maxima and at the events of both ends, so that a range costs at
    most 2 * BLOCK events and its length / BLOCK blocks.
    """
    left, right = -(-lo // BLOCK), hi // BLOCK
    by_block = np.flatnonzero(right > left)
    edge = np.where(right > left, left * BLOCK, hi)
    value, event = _longest_events(store, lo, edge)
    if len(by_block) == 0:
        return value, event
    at, length = _ragged(left[by_block], right[by_block])
    best, where = _segment_max(store.block_max[at], length)
    block = at[where]
    block_event = block * BLOCK + store.block_at[block]
    value[by_block], event[by_block] = _larger(value[by_block], event[by_block], best, block_event)
    tail_value, tail_event = _longest_events(store, right[by_block] * BLOCK, hi[by_block])
    value[by_block], event[by_block] = _larger(
        value[by_block], event[by_block], tail_value, tail_event
    )
    return value, event


def _longest_events(store: Store, lo: Int, hi: Int) -> tuple[Int, Int]:
    value = np.full(len(lo), -1, np.int64)
    event = value.copy()
    some = np.flatnonzero(hi > lo)
    if len(some):
        at, length = _ragged(lo[some], hi[some])
        value[some], where = _segment_max(store.durations_of(at), length)
        event[some] = at[where]
    return value, event


def _ragged(lo: Int, hi: Int) -> tuple[Int, Int]:
    """All indices of the ranges one behind the other, and the length of each range."""
    length = hi - lo
    ends = np.cumsum(length)
    at = np.arange(int(ends[-1]), dtype=np.int64)
    at += np.repeat(lo - (ends - length), length)
    return at, length


def _segment_max(values: Int, length: Int) -> tuple[Int, Int]:
    """Maximum of each segment, and its first position in ``values``; segments are not empty."""
    begin = np.cumsum(length) - length
    best = np.maximum.reduceat(values, begin)
    hits = np.flatnonzero(values == np.repeat(best, length))
    return best, hits[np.searchsorted(hits, begin)]


def _larger(value: Int, event: Int, other: Int, other_event: Int) -> tuple[Int, Int]:
    better: NDArray[np.bool_] = other > value
    return np.where(better, other, value), np.where(better, other_event, event)
