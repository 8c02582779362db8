"""Lanes and repeats against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.ingest.lanes import Order, first_fit, in_order, repeats

Event = tuple[int, int, int]

EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), min_size=0, max_size=60
)


def _arrays(events: list[Event]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(events, np.int64).reshape(-1, 3)
    return table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 1] + table[:, 2]


def _order(events: list[Event]) -> Order:
    timeline, start, end = _arrays(events)
    return in_order(timeline, start, end, 3)


@settings(deadline=None, max_examples=150)
@given(EVENTS)
def test_order_is_that_of_python(events: list[Event]) -> None:
    expected = sorted(
        range(len(events)), key=lambda i: (events[i][0], events[i][1], -events[i][2], i)
    )
    assert _order(events).rows.tolist() == expected


def test_long_runs_of_one_start_are_in_order_too() -> None:
    events = [(0, 5, length % 50) for length in range(500)]
    expected = sorted(range(len(events)), key=lambda i: (-events[i][2], i))
    assert _order(events).rows.tolist() == expected


@settings(deadline=None, max_examples=150)
@given(EVENTS)
def test_every_event_has_the_lowest_lane_free_at_its_start(events: list[Event]) -> None:
    _, start, end = _arrays(events)
    lane, lanes = first_fit(_order(events), start, end, np.zeros(len(events), np.bool_))
    for timeline in range(3):
        free_at: list[int] = []
        for row in _order(events).rows.tolist():
            if events[row][0] != timeline:
                continue
            wanted = next((i for i, t in enumerate(free_at) if t <= start[row]), len(free_at))
            if wanted == len(free_at):
                free_at.append(0)
            assert lane[row] == wanted
            free_at[wanted] = int(end[row])
        assert lanes[timeline] == len(free_at)


@st.composite
def _nested(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Ranges that nest, as (start, end, depth), all of some length."""
    found: list[tuple[int, int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and depth < 5:
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            if end <= start:
                return
            found.append((start, end, depth))
            fill(start, end, depth + 1)
            at = end

    fill(0, 40, 0)
    return found


@settings(deadline=None, max_examples=60)
@given(_nested(), st.randoms())
def test_the_lane_of_a_nested_range_is_its_depth(
    ranges: list[tuple[int, int, int]], random: object
) -> None:
    random.shuffle(ranges)  # type: ignore[attr-defined]
    start = np.array([r[0] for r in ranges], np.int64)
    end = np.array([r[1] for r in ranges], np.int64)
    order = in_order(np.zeros(len(ranges), np.int32), start, end, 1)
    lane, _ = first_fit(order, start, end, np.zeros(len(ranges), np.bool_))
    # ranges alike in start and end are each other's parent: their depths are a set
    by_range: dict[tuple[int, int], set[int]] = {}
    for first, last, depth in ranges:
        by_range.setdefault((first, last), set()).add(depth)
    found: dict[tuple[int, int], set[int]] = {}
    for row, (first, last, _) in enumerate(ranges):
        found.setdefault((first, last), set()).add(int(lane[row]))
    assert found == by_range


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)),
        max_size=40,
    )
)
def test_a_repeat_names_the_first_alike(events: list[tuple[int, int, int, int]]) -> None:
    timeline, start, end = _arrays([e[:3] for e in events])
    fingerprint = np.array([e[3] for e in events], np.uint64)
    found = repeats(in_order(timeline, start, end, 2), start, end, fingerprint)
    seen: dict[tuple[int, int, int, int], int] = {}
    for row, event in enumerate(events):
        expected = -1 if event[3] == 0 else seen.setdefault(event, row)
        assert found[row] == (-1 if expected == row else expected)
