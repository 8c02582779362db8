"""Occupancy and the dominant event against brute force, at every zoom."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.errors import TraceError
from trnprof.tui.columns import busy_before, column_edges, column_pass
from trnprof.tui.index import build_store
from trnprof.tui.store import Store

Span = tuple[int, int, int, str, str]
MODEST = settings(max_examples=60, deadline=None)


@st.composite
def lanes(draw: st.DrawFn, overlap: bool = False) -> tuple[int, list[Span]]:
    """Spans on up to five tracks: abutting, apart or of no length; some tracks empty; from 0 or close to 2^63."""
    spans: list[Span] = []
    count = draw(st.integers(1, 5))
    for track in range(count):
        t = draw(st.integers(0, 40))
        for _ in range(draw(st.integers(0, 60 if track == 0 else 12))):
            length = draw(st.sampled_from([0, 0, 1, 2, 3, 7, 30]))
            spans.append((track, t, length, draw(st.sampled_from("abc")), "compute"))
            t += (
                draw(st.sampled_from([0, 1, 5]))
                if overlap
                else length + draw(st.sampled_from([0, 0, 1, 9]))
            )
    if not spans:
        spans.append((0, 0, 1, "a", "compute"))
    if draw(st.booleans()):
        shift = 2**63 - 2 - max(s[1] + s[2] for s in spans)
        spans = [(s[0], s[1] + shift, *s[2:]) for s in spans]
        if draw(st.booleans()):  # spread over all of int64: too long for one composite key
            spans.insert(0, (count, 0, 5, "first", "dma"))
    return draw(st.integers(1, 24)), spans


def windows(store: Store, columns: int, data: st.DataObject) -> tuple[int, int]:
    clock = store.clocks[0]
    span = clock.hi - clock.lo
    t0 = data.draw(st.integers(0, span - 1))
    return t0, data.draw(st.integers(t0 + columns, t0 + columns + min(span, 200)))


def covered(spans: list[Span], track: int, t0: int, t1: int) -> int:
    """Length of the union of the track's spans within [t0, t1), point by point on its breakpoints."""
    mine = [(max(s, t0), min(s + d, t1)) for k, s, d, *_ in spans if k == track]
    total, reach = 0, t0
    for lo, hi in sorted(m for m in mine if m[1] > m[0]):
        total += max(0, hi - max(lo, reach))
        reach = max(reach, hi)
    return total


@pytest.mark.parametrize("overlap", [False, True])
def test_busy_and_dominant_equal_brute_force(make_trace: Callable[..., Any], overlap: bool) -> None:
    @MODEST
    @given(lanes(overlap), st.data())
    def check(case: tuple[int, list[Span]], data: st.DataObject) -> None:
        columns, spans = case
        store = build_store(make_trace(spans))
        lo = store.clocks[0].lo
        t0, t1 = windows(store, columns, data)
        if t1 > 2**63 - 1:  # no column edge lies beyond int64
            return
        edges = column_edges(t0, t1, columns)
        tracks = np.arange(len(store.track_ids))
        got = column_pass(store, tracks, edges)
        for track in tracks.tolist():
            for c in range(columns):
                e0, e1 = lo + int(edges[c]), lo + int(edges[c + 1])
                busy = covered(spans, track, e0, e1)
                assert got.busy[track, c] == busy
                assert store.busy_ns(track, e0, e1) == busy
                if overlap:
                    continue
                shares = [
                    min(s + d, e1) - max(s, e0)
                    for k, s, d, *_ in spans
                    if k == track and s < e1 and (s + d > e0 or s == e0 or (d == 0 and s >= e0))
                ]
                event = int(got.dominant[track, c])
                assert (event >= 0) == bool(shares)
                if shares:
                    s, e = store.start_ns(event), store.end_ns(event)
                    assert min(e, e1) - max(s, e0) == max(shares) == got.overlap[track, c]

    check()


def test_columns_add_up_to_all_busy_time(make_trace: Callable[..., Any]) -> None:
    @MODEST
    @given(lanes(), st.integers(1, 300))
    def check(case: tuple[int, list[Span]], columns: int) -> None:
        _, spans = case
        store = build_store(make_trace(spans))
        span = store.clocks[0].hi - store.clocks[0].lo
        edges = column_edges(0, max(span, columns), columns)
        got = column_pass(store, np.arange(len(store.track_ids)), edges)
        for track, busy in enumerate(got.busy.tolist()):
            assert sum(busy) == sum(d for k, _, d, *_ in spans if k == track)

    check()


def test_dominant_over_many_events_is_the_longest(make_trace: Callable[..., Any]) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.permutation(np.arange(1, 5001))
    gaps = rng.integers(0, 9, 5000)
    starts = np.cumsum(lengths + gaps) - lengths
    spans = [(0, int(s), int(d), "e", "dma") for s, d in zip(starts, lengths, strict=True)]
    store = build_store(make_trace(spans))
    hi = store.clocks[0].hi
    for columns in (1, 3, 17, 120):
        edges = column_edges(0, hi, columns)
        got = column_pass(store, np.array([0]), edges)
        for c in range(columns):
            e0, e1 = int(edges[c]), int(edges[c + 1])
            share = np.minimum(starts + lengths, e1) - np.maximum(starts, e0)
            assert got.overlap[0, c] == share.max()
            assert int(got.dominant[0, c]) == int(share.argmax())


def test_edges_are_ascending_and_meet_both_ends_without_overflow() -> None:
    t0, t1 = 2**62, 2**63 - 1
    for columns in (1, 7, 120, 1000):
        edges = column_edges(t0, t1, columns).tolist()
        assert (edges[0], edges[-1]) == (t0, t1)
        widths = {b - a for a, b in pairwise(edges)}
        assert max(widths) - min(widths) <= 1


def test_track_by_track_search_equals_the_flat_one(make_trace: Callable[..., Any]) -> None:
    spans = [(k, 10 * i + k, 5, "a", "dma") for k in range(3) for i in range(50)]
    flat = build_store(make_trace(spans))
    far = build_store(make_trace([*spans, (3, 2**63 - 9, 8, "z", "dma")]))
    assert flat.stride > 0
    assert far.stride == 0
    edges = column_edges(0, 600, 37)
    tracks = np.arange(3)
    assert (column_pass(flat, tracks, edges).busy == column_pass(far, tracks, edges).busy).all()


def test_unsorted_shards_and_open_and_dangling_events(make_trace: Callable[..., Any]) -> None:
    spans = [
        (1, 50, 10, "late", "dma"), (0, 30, None, "open", "host"), (0, 0, 10, "early", "compute"),
        (9, 5, 5, "lost", "compute"), (1, 0, -7, "negative", "dma"),
    ]  # fmt: skip
    tracks = [{"track_id": i, "kind": "engine", "name": f"t{i}"} for i in (0, 1)]
    store = build_store(make_trace(spans, tracks))
    assert (store.open_events, store.dangling, store.overlaps) == (1, 1, 0)
    assert [store.name(i) for i in range(4)] == ["early", "open", "negative", "late"]
    assert [store.row(i) for i in range(4)] == [2, 1, 4, 0]
    assert (store.start_ns(1), store.end_ns(1)) == (30, 60)  # drawn to the end of the clock
    assert store.duration_ns(2) == 0


def test_events_by_time(make_trace: Callable[..., Any]) -> None:
    store = build_store(
        make_trace([(0, 10, 5, "a", "dma"), (0, 15, 5, "b", "dma"), (0, 30, 0, "i", "marker")])
    )
    assert [store.event_at(0, t) for t in (9, 10, 14, 15, 19, 20, 30, 31)] == [
        -1,
        0,
        0,
        1,
        1,
        -1,
        2,
        -1,
    ]
    assert store.events_in(0, 12, 16) == (0, 2)
    assert store.events_in(0, 20, 30) == (2, 2)
    assert (store.next_event(0), store.next_event(2), store.next_event(0, -1)) == (1, -1, -1)


def test_no_events_at_all(make_trace: Callable[..., Any]) -> None:
    store = build_store(make_trace([], [{"track_id": 0, "kind": "engine", "name": "t"}]))
    got = column_pass(store, np.array([0]), column_edges(0, 10, 10))
    assert got.busy.tolist() == [[0] * 10]
    assert (got.dominant == -1).all()
    empty, _ = busy_before(build_store(make_trace([], [])), np.zeros(0, np.int64), np.arange(3))
    assert empty.shape == (0, 3)


def test_times_further_apart_than_int64_are_refused(make_trace: Callable[..., Any]) -> None:
    with pytest.raises(TraceError, match="292 years"):
        build_store(make_trace([(0, -(2**62) - 9, 1, "a", "dma"), (0, 2**62 + 9, 1, "b", "dma")]))
