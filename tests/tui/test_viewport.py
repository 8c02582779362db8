"""The window stays inside the trace, keeps its anchor, and remembers; at any size of integer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tui.state import column_of, moment
from trnprof.tui.ticks import format_moment, tick_step, ticks
from trnprof.tui.viewport import MAX_PAST, MIN_SPAN_NS, Viewport

times = st.integers(-(2**63), 2**63 - 1)
steps = st.lists(st.tuples(st.sampled_from("wsadcf0zZ"), st.integers(0, 1000)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(times, times, steps)
def test_every_walk_stays_inside(a: int, b: int, walk: list[tuple[str, int]]) -> None:
    lo, hi = min(a, b), max(a, b) + 1
    view = Viewport.whole(lo, hi)
    for key, amount in walk:
        at = view.t0 + view.span * amount // 1001
        view = {
            "w": lambda v, at=at: v.zoom(2, 3, at), "s": lambda v, at=at: v.zoom(5, 1, at),
            "a": lambda v, at=at: v.pan(-1, 4), "d": lambda v, at=at: v.pan(1, 4),
            "c": lambda v, at=at: v.centre(at, at), "f": lambda v, at=at: v.show(at, at + 5),
            "0": lambda v, at=at: v.fit(), "z": lambda v, at=at: v.back(), "Z": lambda v, at=at: v.forward(),
        }[key](view)  # fmt: skip
        assert view.t0 >= lo
        assert view.t1 <= max(hi, lo + MIN_SPAN_NS)
        assert view.span >= MIN_SPAN_NS
        assert len(view.past) <= MAX_PAST


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**62), st.integers(1000, 2**62), st.integers(1, 999))
def test_zoom_keeps_the_moment_under_the_cursor(lo: int, span: int, part: int) -> None:
    view = Viewport.whole(lo, lo + span)
    at = lo + span * part // 1000
    zoomed = view.zoom(1, 5, at)
    assert abs((at - view.t0) * zoomed.span - (at - zoomed.t0) * view.span) <= view.span


def test_pans_in_a_row_are_one_entry_of_the_stack() -> None:
    view = Viewport.whole(0, 10_000).zoom(1, 5, 5000)
    start = (view.t0, view.t1)
    for _ in range(3):
        view = view.pan(1, 4)
    assert (view.back().t0, view.back().t1) == start
    assert view.back().forward().t0 == view.t0
    assert view.back().back().is_whole


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**62), st.integers(1, 300), st.data())
def test_columns_and_moments_agree(lo: int, columns: int, data: st.DataObject) -> None:
    view = Viewport.whole(lo, lo + data.draw(st.integers(columns, 2**62))).at_least(columns)
    column = data.draw(st.integers(0, columns - 1))
    if view.span >= 2 * columns:
        assert column_of(view, moment(view, column, columns), columns) == column
    assert column_of(view, view.t0, columns) == 0
    assert column_of(view, view.t1, columns) == columns


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2**63), st.integers(2, 20))
def test_ticks_are_round_and_few(span: int, most: int) -> None:
    step = tick_step(span, most)
    assert str(step).rstrip("0") in ("1", "2", "5")
    assert len(ticks(0, span, step)) <= most + 1


def test_moments() -> None:
    assert format_moment(12_304_112, 1) == "12.304112 ms"
    assert format_moment(-1_500, 100) == "-1.5 µs"
    assert format_moment(315_360_000 * 10**9, 10**9) == "315,360,000 s"  # ten years
