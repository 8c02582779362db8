"""How does a trace become a Store? Vectorised throughout; at most one sort, and none when the shards are in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.errors import TraceError
from trnprof.tui.store import BLOCK, Clock, Int, Store

if TYPE_CHECKING:
    from trnprof.tracer.reader import Trace

_MAX = 2**63 - 1


def build_store(trace: Trace) -> Store:
    """Index the events of a trace for drawing.

    Raises:
        TraceError: times of one clock lie more than 2^63 ns apart.
    """
    tracks = trace.tracks.sort("track_id")
    frame = trace.events.select("track_id", "start_ns", "duration_ns", "name", "category").collect()
    ids = tracks["track_id"].to_numpy().astype(np.int64)
    track = _positions(ids, frame["track_id"].to_numpy())
    rows: Int | None = None
    dangling = 0
    if len(track) and int(track.min()) < 0:
        rows = np.flatnonzero(track >= 0)
        dangling = len(track) - len(rows)
        frame, track = frame[rows], track[rows]
    clock_ids = tracks["clock_id"].to_numpy().astype(np.int64)
    kinds = {c["clock_id"]: str(c["kind"]) for f in trace.fragments for c in f.get("clocks", ())}
    known, bands = _bands(clock_ids, kinds)
    start = frame["start_ns"].to_numpy()
    duration, is_open = _durations(frame["duration_ns"], start)
    band = bands[track] if len(known) > 1 else None
    clocks = _clocks(kinds, known, band, start, duration)
    key, end, stride = _keys(clocks, len(ids), track, band, start, duration, is_open)
    order = _order(key, track, stride)
    labels, names, categories = _labels(frame["name"], frame["category"])
    if order is not None:
        key, end, track, labels = key[order], end[order], track[order], labels[order]
        rows = order if rows is None else rows[order]
    offsets = np.searchsorted(track, np.arange(len(ids) + 1)).astype(np.int64)
    lengths = end - key
    cum, reach, overlaps = _union(key, end, offsets, stride, lengths)
    block_max, block_at = _blocks(lengths)
    if rows is not None and len(start) + dangling < 2**32:
        rows = rows.astype(np.uint32)
    return Store(
        trace=trace, clocks=clocks, track_ids=ids, bands=bands, offsets=offsets, key=key,
        stride=stride, cum=cum, reach=reach, durations=lengths if reach is not None else None, labels=labels,
        names=names, categories=categories, rows=rows, block_max=block_max, block_at=block_at,
        open_events=0 if is_open is None else int(is_open.sum()), overlaps=overlaps, dangling=dangling,
    )  # fmt: skip


def _positions(ids: Int, wanted: NDArray[Any]) -> NDArray[Any]:
    """Position of each wanted id in the sorted ids, -1 where it is missing."""
    if len(ids) == 0:
        return np.full(len(wanted), -1, np.int64)
    if ids[0] == 0 and ids[-1] == len(ids) - 1 and (len(wanted) == 0 or wanted.max() <= ids[-1]):
        return wanted.astype(np.int64)
    found = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[found] == wanted, found, -1)


def _durations(column: pl.Series, start: Int) -> tuple[Int, NDArray[np.bool_] | None]:
    """Durations ≥ 0 whose ends stay within int64, and which of them are open."""
    is_open = column.is_null().to_numpy() if column.null_count() else None
    duration = column.fill_null(0).to_numpy() if is_open is not None else column.to_numpy()
    if len(duration) and int(duration.min()) < 0:
        duration = np.maximum(duration, 0)
    if len(start) and int(start.max()) > _MAX - int(duration.max()):
        duration = np.minimum(duration, _MAX - np.maximum(start, 0))
    return duration, is_open


def _bands(clock_ids: Int, kinds: Mapping[int, str]) -> tuple[list[int], Int]:
    """Clocks in order of display, the device's first, and the position of each track's clock."""
    known = sorted(set(clock_ids.tolist()), key=lambda c: (kinds.get(c) != "device", c))
    place = {clock: position for position, clock in enumerate(known)}
    return known, np.array([place[c] for c in clock_ids.tolist()], np.int64)


def _clocks(
    kinds: Mapping[int, str], known: list[int], band: Int | None, start: Int, duration: Int
) -> tuple[Clock, ...]:
    clocks = []
    for position, clock_id in enumerate(known):
        mine = slice(None) if band is None else band == position
        starts = start[mine]
        lo, hi = (
            (int(starts.min()), int((starts + duration[mine]).max())) if len(starts) else (0, 1)
        )
        if hi - lo > _MAX:
            raise TraceError(
                f"clock {clock_id}: its times lie more than 292 years apart ({lo} to {hi} ns)"
            )
        instant_last = len(starts) > 0 and int(starts.max()) == hi
        hi = max(hi + int(instant_last and hi < _MAX), lo + 1)
        kind = kinds.get(clock_id, "")
        near_zero = kind == "device" or (kind != "host" and 0 <= lo <= hi - lo)
        clocks.append(Clock(clock_id, kind or f"clock {clock_id}", lo, hi, 0 if near_zero else lo))
    return tuple(clocks)


def _keys(
    clocks: tuple[Clock, ...],
    track_count: int,
    track: Int,
    band: Int | None,
    start: Int,
    duration: Int,
    is_open: NDArray[np.bool_] | None,
) -> tuple[Int, Int, int]:
    """Rebased starts and ends plus track * stride, and the stride (0 if that would overflow)."""
    stride = max((c.hi - c.lo for c in clocks), default=0) + 2
    if stride * max(track_count, 1) > _MAX:
        stride = 0
    lows = np.array([c.lo for c in clocks] or [0], np.int64)
    key = start - (lows[band] if band is not None else lows[0])
    end = key + duration
    if is_open is not None:
        spans = np.array([c.hi - c.lo for c in clocks], np.int64)
        end[is_open] = spans[band[is_open]] if band is not None else spans[0]
    if stride:
        base = track * np.int64(stride)
        key += base
        end += base
    return key, end, stride


def _order(key: Int, track: Int, stride: int) -> Int | None:
    """The permutation that sorts by (track, start); None when they are sorted."""
    if stride:
        return None if bool((key[1:] >= key[:-1]).all()) else np.argsort(key, kind="stable")
    step = np.diff(track)
    if bool(((step > 0) | ((step == 0) & (key[1:] >= key[:-1]))).all()):
        return None
    return np.lexsort((key, track))


def _union(
    key: Int, end: Int, offsets: Int, stride: int, lengths: Int
) -> tuple[Int, Int | None, int]:
    """Cumulative union of the busy time, running maximum of the ends, number of overlaps."""
    cum = np.zeros(len(key) + 1, np.int64)
    reach = np.maximum.accumulate(end) if stride else end.copy()
    if not stride:
        for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            np.maximum.accumulate(end[first:last], out=reach[first:last])
    before = np.empty_like(reach)
    before[1:] = reach[:-1]
    before[offsets[:-1][offsets[:-1] < len(key)]] = 0
    late = before > key
    overlaps = int(late.sum())
    if overlaps == 0:
        np.cumsum(lengths, out=cum[1:])
        return cum, None, 0
    np.cumsum(np.maximum(end - np.maximum(key, before), 0), out=cum[1:])
    return cum, reach, overlaps


def _labels(
    name: pl.Series, category: pl.Series
) -> tuple[NDArray[np.int32], tuple[str, ...], tuple[str, ...]]:
    """Dense codes of the (name, category) pairs in use, and their texts."""
    names, texts = _codes(name)
    kinds, categories = _codes(category)
    width = max(len(categories), 1)
    pair = names.astype(np.int64) * width
    pair += kinds
    used = np.zeros(max(len(texts), 1) * width, bool)
    used[pair] = True
    dense = (np.cumsum(used) - 1).astype(np.int32)
    pairs = np.flatnonzero(used)
    return (
        dense[pair],
        tuple(texts.gather(pairs // width).to_list()),
        tuple(categories.gather(pairs % width).to_list()),
    )


def _codes(column: pl.Series) -> tuple[NDArray[Any], pl.Series]:
    """Dense codes of a column, in order of first use in the process, and their texts (``?`` for null)."""
    if column.dtype != pl.Categorical:
        column = column.cast(pl.String).cast(pl.Categorical)
    column = column.fill_null("?") if column.null_count() else column
    unique = column.unique()
    physical = unique.to_physical().to_numpy()
    dense = np.zeros(int(physical.max(initial=0)) + 1, np.int32)
    dense[physical] = np.arange(len(physical))
    return dense[column.to_physical().to_numpy()], unique.cast(pl.String)


def _blocks(lengths: Int) -> tuple[Int, NDArray[np.uint8]]:
    full = lengths[: len(lengths) // BLOCK * BLOCK].reshape(-1, BLOCK)
    at = full.argmax(axis=1).astype(np.uint8)
    return full[np.arange(len(full)), at] if len(full) else np.zeros(0, np.int64), at
