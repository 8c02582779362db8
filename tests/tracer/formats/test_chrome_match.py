"""Pairs, flows and counters of Chrome traces, against the same rules written down plainly in Python."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.formats.chrome.counters import numbers_of
from trnprof.tracer.formats.chrome.match import (
    FLOW_END,
    FLOW_START,
    bind,
    chain,
    dense,
    in_time,
    pair,
    step_times,
)
from trnprof.tracer.formats.chrome.phases import Phase
from trnprof.tracer.ingest.lanes import in_order
from trnprof.tracer.ingest.stage import UNFINISHED

BEGIN, END, ASYNC_BEGIN, ASYNC_END = Phase.BEGIN, Phase.END, Phase.ASYNC_BEGIN, Phase.ASYNC_END
Event = tuple[int, Phase, int, int]
"""Time, phase, group, label."""


def events_of(phases: list[Phase]) -> st.SearchStrategy[list[Event]]:
    one = st.tuples(
        st.integers(0, 8), st.sampled_from(phases), st.integers(1, 2), st.integers(0, 3)
    )
    return st.lists(one, max_size=30)


def by_time(events: list[Event]) -> list[int]:
    times = [e[0] for e in events]
    if times and times == sorted(times, reverse=True) and times != sorted(times):
        return list(range(len(events)))[::-1]
    return sorted(range(len(events)), key=lambda i: times[i])


def plain_pairs(events: list[Event]) -> tuple[list[int], list[int]]:
    partner, others = [-1] * len(events), []
    stacks: dict[int, list[int]] = {}
    for i in by_time(events):
        _, phase, group, label = events[i]
        stack = stacks.setdefault(group, [])
        if phase in (BEGIN, ASYNC_BEGIN):
            stack.append(i)
            continue
        same = [b for b in stack if label == 0 or events[b][3] == label]
        if not same and phase == END and stack:
            same = [stack[-1]]
            if events[stack[-1]][3] != 0:
                others.append(i)
        if same:
            stack.remove(same[-1])
            partner[i], partner[same[-1]] = same[-1], i
    return partner, sorted(others)


def arrays(events: list[Event]) -> dict[str, Any]:
    columns = list(zip(*events, strict=True)) or [()] * 4
    return {
        "ts": np.array(columns[0], np.int64),
        "phase": np.array(columns[1], np.int8),
        "group": np.array(columns[2], np.uint64) << np.uint64(60),
        "label": np.array(columns[3], np.uint64),
    }


@given(st.one_of(events_of([BEGIN, END]), events_of([ASYNC_BEGIN, ASYNC_END])))
@settings(max_examples=150, deadline=None)
def test_pairs(events: list[Event]) -> None:
    found = arrays(events)
    partner, others = pair(in_time(found["ts"]), found["phase"], found["group"], found["label"])
    assert (partner.tolist(), others.tolist()) == plain_pairs(events)


def test_many_open_beginnings_and_ends_of_nothing_take_no_time() -> None:
    """Would take 10^11 steps if each end looked through all that is open."""
    count = 300_000
    phase = np.repeat(np.array([ASYNC_BEGIN, ASYNC_END], np.int8), count)
    label = np.repeat(np.array([1, 2], np.uint64), count)
    group = np.ones(2 * count, np.uint64)
    partner, _ = pair(np.arange(2 * count), phase, group, label)
    assert (partner == -1).all()


@pytest.mark.parametrize("values", [[], [5], [7, 7, 0, 7, 1 << 63, 0]])
def test_dense(values: list[int]) -> None:
    codes, count = dense(np.array(values, np.uint64))
    known = list(dict.fromkeys(values))
    assert (codes.tolist(), count) == ([known.index(v) for v in values], len(known))


def test_steps() -> None:
    """S 0, T 1, T 3, F 7; then T without anything open; then S 10, p 12, p 15 and no end, T 16."""
    phases = [ASYNC_BEGIN, Phase.STEP_INTO, Phase.STEP_INTO, ASYNC_END, Phase.STEP_INTO]
    phases += [ASYNC_BEGIN, Phase.STEP_PAST, Phase.STEP_PAST, Phase.STEP_INTO]
    ts = np.array([0, 1, 3, 7, 8, 10, 12, 15, 16])
    phase, group = np.array(phases, np.int8), np.ones(9, np.uint64)
    partner = np.array([3, -1, -1, 0, -1, -1, -1, -1, -1])
    start, end = step_times(np.arange(9), phase, group, ts, partner)
    assert start.tolist() == [0, 1, 3, 7, 8, 10, 10, 12, 16]
    assert end[[1, 2, 4, 6, 7, 8]].tolist() == [3, 7, 8, 12, 15, UNFINISHED]


Slice = tuple[int, int, int]
"""Place, start, duration."""
Query = tuple[int, int, bool]
"""Place, time, wants the next slice."""


def plain_bound(slices: list[Slice], query: Query) -> set[int]:
    """The slices that a flow event may be bound to: of equal ones any."""
    place, ts, wants_next = query
    own = [(i, s, s + d) for i, (p, s, d) in enumerate(slices) if p == place]
    if wants_next:
        later = [(s, -e) for _, s, e in own if s >= ts]
        return {i for i, s, e in own if later and (s, -e) == min(later)}
    around = [(s, -e) for _, s, e in own if s <= ts < e or s == e == ts]
    around = around or [(s, -e) for _, s, e in own if e == ts]
    return {i for i, s, e in own if around and (s, -e) == max(around)}


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 5)), max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 14), st.booleans()), max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_flows_are_bound(slices: list[Slice], queries: list[Query]) -> None:
    place, start, length = (np.array([s[k] for s in slices], np.int64) for k in range(3))
    order = in_order(place.astype(np.int32), start, start + length, 2)
    found = bind(
        order.rows,
        order.first,
        start,
        start + length,
        np.ones(len(slices), np.bool_),
        np.array([q[0] for q in queries], np.int32),
        np.array([q[1] for q in queries], np.int64),
        np.array([q[2] for q in queries], np.bool_),
    )
    for row, query in zip(found.tolist(), queries, strict=True):
        allowed = plain_bound(slices, query)
        assert row in allowed if allowed else row == -1


Flow = tuple[int, int, int, int]
"""Time, kind, key, row."""


def plain_chain(events: list[Flow]) -> set[tuple[int, int]]:
    arrows = set()
    for i in by_time(events):  # type: ignore[arg-type]
        _, kind, key, row = events[i]
        before = [
            events[j]
            for j in by_time(events)  # type: ignore[arg-type]
            if events[j][2] == key and events[j][3] >= 0
        ]
        at = before.index(events[i]) if row >= 0 else -1
        if at < 0 or kind == FLOW_START:
            continue
        earlier = [e for e in before[:at] if e[1] != FLOW_END]
        starts = [e for e in before if e[1] == FLOW_START]
        origin = earlier[-1:] or (starts[:1] if kind == FLOW_END else [])
        if origin and origin[0][3] != row:
            arrows.add((origin[0][3], row))
    return arrows


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 2), st.integers(1, 2), st.integers(-1, 6)),
        max_size=12,
        unique_by=lambda e: e[0],
    )
)
@settings(max_examples=150, deadline=None)
def test_flows_are_chained(events: list[Flow]) -> None:
    ts, kind, key, row = (np.array([e[k] for e in events], np.int64) for k in range(4))
    source, target, _ = chain(in_time(ts), kind.astype(np.int8), key.astype(np.uint64), row)
    found = set(zip(row[source].tolist(), row[target].tolist(), strict=True))
    assert found == plain_chain(events)


values = st.one_of(
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=4),
    st.just("12.5"),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value) if isinstance(value, int | float) or value == "12.5" else None
    except ValueError:
        return None


@given(st.lists(st.none() | st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=6))
@settings(max_examples=100, deadline=None)
def test_series_of_counters(objects: list[dict[str, Any] | None]) -> None:
    texts = [None if o is None else json.dumps(o, indent=1) for o in objects]
    row, names, found = numbers_of(pa.array(texts, pa.string()))
    said = [
        (r, json.loads(f'"{n}"'), None if np.isnan(v) else v)
        for r, n, v in zip(row.tolist(), names.to_pylist(), found.tolist(), strict=True)
    ]
    wanted = [(r, n, number(v)) for r, o in enumerate(objects) for n, v in (o or {}).items()]
    numeric = {w[:2] for w in wanted if w[2] is not None}
    strings = {
        (r, n) for r, o in enumerate(objects) for n, v in (o or {}).items() if isinstance(v, str)
    }
    assert [s[:2] for s in said] == [w[:2] for w in wanted]
    for mine, plain in zip(said, wanted, strict=True):
        if mine[:2] in numeric or mine[:2] not in strings:
            assert mine[2] == plain[2]
