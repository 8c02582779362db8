"""Every key and the mouse, in the real application without a terminal, at three sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trnprof.tui.app import TimelineApp
from trnprof.tui.widgets.timeline import Timeline

SIZES = [(40, 10), (80, 24), (200, 60)]


@pytest.fixture
def trace(make_trace: Callable[..., Any]) -> Any:
    """Two engines under one core, with gaps and events of 1 µs; a host thread on a clock of its own."""
    tracks = [
        {"track_id": 0, "kind": "host", "name": "host0"},
        {"track_id": 1, "kind": "core", "name": "core 0", "parent_id": 0},
        {"track_id": 2, "kind": "engine", "name": "Tensor", "parent_id": 1},
        {"track_id": 3, "kind": "engine", "name": "Vector", "parent_id": 1},
        {"track_id": 4, "kind": "thread", "name": "MainThread", "parent_id": 0, "clock_id": 1},
    ]
    spans = [(2, 2000 * i, 1000, "matmul", "compute") for i in range(50)]
    spans += [(3, 2000 * i + 1000, 500, "gelu", "compute") for i in range(50)]
    spans += [(4, 10**15, 80_000, "step", "host")]
    return make_trace(spans, tracks)


def screen(app: TimelineApp) -> list[str]:
    """The lines on the screen, from the strips of the widget."""
    widget = app.query_one(Timeline)
    return [widget.render_line(y).text for y in range(widget.size.height)]


def state(app: TimelineApp) -> Any:
    widget = app.query_one(Timeline)
    return widget.frame.view


@pytest.mark.parametrize("size", SIZES)
async def test_the_screen_has_all_its_panes(trace: Any, size: tuple[int, int]) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=size):
        lines = screen(app)
        assert [len(line) for line in lines] == [size[0]] * size[1]
        assert lines[0].startswith(" small.trnprof")
        assert "▼0 µs" in lines[2]  # the cursor stands at the start
        assert any("Tensor" in line and ("50.3 %" in line or size[0] < 60) for line in lines)
        assert size[1] == 10 or any("MainThread" in line for line in lines)
        assert "q quit" in lines[-1]


async def test_zoom_keeps_the_cursor_and_the_stack_goes_back(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(*["right"] * 20)
        columns = app.query_one(Timeline).frame.layout.columns
        before = state(app).viewports[0]
        at = before.t0 + before.span * 41 // (2 * columns)
        await pilot.press("w")
        zoomed = state(app).viewports[0]
        assert zoomed.span == before.span * 2 // 3
        assert abs(zoomed.t0 + zoomed.span * 41 // (2 * columns) - at) <= 1
        await pilot.press("W")
        assert state(app).viewports[0].span == zoomed.span // 5
        await pilot.press("z", "z")
        assert state(app).viewports[0].span == before.span
        await pilot.press("Z")
        assert state(app).viewports[0].span == zoomed.span
        await pilot.press("s")
        assert state(app).viewports[0].is_whole
        await pilot.press("W", "0")
        assert state(app).viewports[0].is_whole
        assert state(app).viewports[1].is_whole  # the other clock was never touched


async def test_pan(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("W")
        start = state(app).viewports[0]
        await pilot.press("d")
        assert state(app).viewports[0].t0 == start.t0 + start.span // 4
        await pilot.press("a", "D")
        assert state(app).viewports[0].t0 == start.t0 + start.span
        await pilot.press("A", "A")
        assert state(app).viewports[0].t0 == 0  # never before the trace


async def test_select_step_and_fit(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("enter")
        assert "matmul" in "\n".join(screen(app)[-10:])
        assert app.scene.store.start_ns(state(app).selected) == 0
        await pilot.press("full_stop")
        assert app.scene.store.start_ns(state(app).selected) == 2000
        text = "\n".join(screen(app))
        assert "1 µs (p100 of 50 of this name)" in text
        assert "1 µs before, 1 µs after" in text
        await pilot.press("f")
        if not state(app).viewports[0].span < 5000:
            await pilot.press("f")
        assert state(app).viewports[0].span == 1200
        assert any("matmul" in line for line in screen(app) if "Tensor" in line)
        await pilot.press("comma", "comma")
        assert "the first event of its track" in screen(app)[-2]
        await pilot.press("escape")
        assert state(app).selected == -1


async def test_rows_and_groups(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        assert state(app).row == 1
        await pilot.press("j")
        assert state(app).row == 2
        await pilot.press("up")
        assert state(app).row == 1
        await pilot.press("minus")
        group = next(line for line in screen(app) if "▸ host0 / core 0" in line)
        assert "37.7 %" in group  # mean of 50.3 % and 25.1 %
        await pilot.press("space")
        assert any("Tensor" in line for line in screen(app))
        await pilot.press("E")
        assert sum("▸" in line for line in screen(app)) == 2
        await pilot.press("e", "plus")
        assert sum("▾" in line for line in screen(app)) == 2
        await pilot.press("pagedown")
        assert state(app).row == 5
        await pilot.press("pageup")
        assert state(app).row == 0


async def test_help_and_quit(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        assert "fit the whole trace" in "\n".join(screen(app))
        await pilot.press("q")
        assert "fit the whole trace" not in "\n".join(screen(app))
        assert app.is_running
        await pilot.press("q")
        await pilot.pause()
        assert app.return_code == 0


async def test_control_q_quits(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark", "ctrl+q")
        await pilot.pause()
        assert app.return_code == 0


async def test_mouse(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        layout = app.query_one(Timeline).frame.layout
        await pilot.click("#timeline", offset=(layout.gutter, 4))
        assert app.scene.store.name(state(app).selected) == "matmul"
        await pilot.hover("#timeline", offset=(layout.gutter + 5, 5))
        assert "hover" in screen(app)[-2]
        assert "Vector" in screen(app)[-2]
        await pilot.click("#timeline", offset=(2, 3))
        assert any("▸ host0 / core 0" in line for line in screen(app))
        await pilot.click("#timeline", offset=(2, 3))
        await pilot.press("W")
        centre = layout.gutter + layout.columns // 2
        await pilot.click("#timeline", offset=(centre, 1))
        viewport = state(app).viewports[0]
        assert (
            abs(viewport.t0 + viewport.span // 2 - (viewport.lo + viewport.hi) // 2)
            < viewport.hi // 50
        )
        row = state(app).row
        await pilot.mouse_down("#timeline", offset=(centre, 4))
        await pilot.hover("#timeline", offset=(centre + 4, 4))
        await pilot.mouse_up("#timeline", offset=(centre + 4, 4))
        assert state(app).row == row


async def test_double_click_fits(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        layout = app.query_one(Timeline).frame.layout
        await pilot.click("#timeline", offset=(layout.gutter + 30, 4), times=2)
        assert state(app).selected >= 0


async def test_wheel_scrolls_rows_and_zooms_with_control(make_trace: Callable[..., Any]) -> None:
    from textual.events import MouseScrollDown, MouseScrollUp

    trace = make_trace([(i, 0, 10_000, "e", "compute") for i in range(100)])
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(80, 24)) as pilot:
        widget = app.query_one(Timeline)
        at = widget.frame.layout.gutter + 10

        def wheel(kind: Any, ctrl: bool) -> Any:
            return kind(widget, at, 8, 0, 1, 0, False, False, ctrl, at, 8)

        widget.post_message(wheel(MouseScrollDown, False))
        await pilot.pause()
        assert state(app).top == 3
        widget.post_message(wheel(MouseScrollUp, True))
        await pilot.pause()
        assert state(app).viewports[0].span == 10_000 * 2 // 3


async def test_resize_at_any_moment(trace: Any) -> None:
    app = TimelineApp(trace, colour=True)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("enter", *["right"] * 30, "W")
        for width, height in ((40, 10), (39, 9), (5, 2), (90, 24), (250, 80)):
            await pilot.resize_terminal(width, height)
            lines = screen(app)
            assert [len(line) for line in lines] == [width] * height
        await pilot.resize_terminal(30, 8)
        assert screen(app)[0].startswith("too small: needs 40×10")
        await pilot.press("d", "enter", "j", "f")


@pytest.mark.parametrize("size", SIZES)
async def test_ascii_screen_is_ascii(trace: Any, size: tuple[int, int]) -> None:
    app = TimelineApp(trace, ascii=True, colour=True)
    async with app.run_test(size=size) as pilot:
        for key in ("enter", "f", "f", "question_mark"):
            await pilot.press(key)
            assert "".join(screen(app)).isascii()


async def test_without_colour_no_cell_has_one(trace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = TimelineApp(trace)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("enter")
        rows = app.query_one(Timeline).frame.rows
        styles = [run.style for row in rows for run in row if run.style]
        assert all(s.color is None and s.bgcolor is None for s in styles)
