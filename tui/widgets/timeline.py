"""How does the timeline live in a terminal? One widget that draws whole frames line by line and turns input into actions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from trnprof.tui.frame import Frame, Options, Painter
from trnprof.tui.layout import Layout
from trnprof.tui.scene import Scene
from trnprof.tui.state import View, act, band_of, event_under, first_view, row_at, select, zoom_at
from trnprof.tui.viewport import Viewport

_KEYS = {
    "zoom_in": "w", "zoom_out": "s", "zoom_in_far": "W", "zoom_out_far": "S",
    "pan_left": "a", "pan_right": "d", "pan_left_far": "A", "pan_right_far": "D",
    "left": "left", "right": "right", "up": "up,k", "down": "down,j", "page_up": "pageup", "page_down": "pagedown",
    "fit": "0", "fit_selection": "f", "back": "z", "forward": "Z", "choose": "enter,space",
    "next": "full_stop", "previous": "comma", "close": "minus", "open": "plus,equals_sign", "open_all": "e",
    "close_all": "E", "help": "question_mark", "escape": "escape",
}  # fmt: skip


class Timeline(Widget, can_focus=True):
    """The whole screen: header, minimap, ruler, tracks, details, status, keys."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            key, f"act('{action}')", action.replace("_", " "), id=f"timeline.{action}", show=False
        )
        for action, key in _KEYS.items()
    ]

    def __init__(self, scene: Scene, options: Options) -> None:
        super().__init__(id="timeline")
        self.scene = scene
        self.view = first_view(scene)
        self.painter = Painter(scene, options)
        self._frame: Frame | None = None
        self._key: tuple[View, int, int] | None = None
        self._drag: tuple[int, Viewport, int] | None = None
        self._is_dragged = False

    @property
    def frame(self) -> Frame:
        """The frame for the view and size of now; drawn at most once for each."""
        key = (replace(self.view, hover=None), self.size.width, self.size.height)
        if self._frame is None or self._key != key:
            self._frame = self.painter.frame(self.view, *key[1:])
            self._key = key
        return self._frame

    def render_line(self, y: int) -> Strip:
        """One line of the frame."""
        frame = self.frame
        if y >= len(frame.rows):
            return Strip.blank(self.size.width, RichStyle.null())
        row = frame.rows[y]
        if frame.layout.fits and y == frame.layout.height - 2:
            row = self.painter.status_row(replace(frame.view, hover=self.view.hover), frame.layout)
        return Strip(row, self.size.width)

    def action_act(self, action: str) -> None:
        """One of the actions of ``trnprof.tui.state.ACTIONS``."""
        self._show(act(self.scene, self.view, action, self._layout))

    def on_click(self, event: events.Click) -> None:
        """Select what lies there, or jump within the minimap; a double click fits the selection."""
        if self._is_dragged:
            self._is_dragged = False
            return
        frame, layout = self.frame, self._layout
        column = event.x - layout.gutter
        row = event.y - layout.tracks_y + frame.view.top
        if event.y == 1:
            self._show(self._jump(frame.view, column))
            return
        if not 0 <= event.y - layout.tracks_y < layout.tracks or frame.view.is_help:
            return
        shown = row_at(self.scene, frame.view, row)
        if shown is None:
            return
        view = replace(
            frame.view, row=row, column=min(max(column, 0), layout.columns - 1), message=""
        )
        if column < 0 or shown.kind == "header":
            self._show(act(self.scene, view, "choose", layout) if shown.node.is_group else view)
            return
        found = event_under(self.scene, view, row, view.column, layout.columns)
        if found < 0:
            self._show(replace(view, selected=-1))
            return
        chosen = select(self.scene, view, found, layout.columns)
        if event.chain == 2:
            chosen = act(self.scene, chosen, "fit_selection", layout)
        self._show(chosen)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """A drag over the tracks pans."""
        self._is_dragged = False
        if self._cell(event) is not None:
            band = band_of(self.scene, self.frame.view)
            self._drag = (event.x, self.frame.view.viewports[band], band)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """The drag ends."""
        self._drag = None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """What lies under the mouse goes to the status line, which alone is redrawn."""
        if self._drag is not None and event.button and event.x != self._drag[0]:
            self._is_dragged = True
            at, viewport, band = self._drag
            moved = viewport.pan(at - event.x, self._layout.columns)
            windows = self.frame.view.viewports
            self._show(
                replace(self.frame.view, viewports=(*windows[:band], moved, *windows[band + 1 :]))
            )
            return
        hover = self._cell(event)
        if hover != self.view.hover:
            self.view = replace(self.view, hover=hover)
            self.refresh(Region(0, max(self.size.height - 2, 0), self.size.width, 1))

    def on_leave(self, event: events.Leave) -> None:
        """Without a mouse the status line tells of the cursor."""
        self.view = replace(self.view, hover=None)
        self.refresh(Region(0, max(self.size.height - 2, 0), self.size.width, 1))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Rows up; with Ctrl zoom in at the pointer; with Shift earlier."""
        self._wheel(event, "scroll_up", "pan_left", (2, 3))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Rows down; with Ctrl zoom out at the pointer; with Shift later."""
        self._wheel(event, "scroll_down", "pan_right", (3, 2))

    @property
    def _layout(self) -> Layout:
        return self.frame.layout

    def _show(self, view: View) -> None:
        """Draw a view; where only the cursor moved, only the lines that it changed."""
        before, old = self._frame, self.view
        self.view = view
        calm = replace(view, row=old.row, column=old.column, message=old.message, hover=old.hover)
        if before is None or calm != old or before.layout != self.frame.layout:
            self.refresh()
            return
        for y, (was, now) in enumerate(zip(before.rows, self.frame.rows, strict=True)):
            if was != now:
                self.refresh(Region(0, y, self.size.width, 1))

    def _wheel(self, event: events.MouseEvent, rows: str, pan: str, ratio: tuple[int, int]) -> None:
        event.stop()
        if event.ctrl:
            layout, view = self._layout, self.frame.view
            cell = self._cell(event)
            if cell is not None:
                self._show(zoom_at(self.scene, replace(view, row=cell[0]), layout, cell[1], ratio))
        else:
            self.action_act(pan if event.shift else rows)

    def _cell(self, event: events.MouseEvent) -> tuple[int, int] | None:
        layout, view = self._layout, self.frame.view
        column, line = event.x - layout.gutter, event.y - layout.tracks_y
        if not (layout.fits and 0 <= column < layout.columns and 0 <= line < layout.tracks):
            return None
        row = line + view.top
        return (row, column) if row_at(self.scene, view, row) is not None else None

    def _jump(self, view: View, column: int) -> View:
        band = band_of(self.scene, view)
        viewport, columns = view.viewports[band], self._layout.columns
        if not 0 <= column < columns:
            return view
        at = viewport.lo + (viewport.hi - viewport.lo) * (2 * column + 1) // (2 * columns)
        windows = (*view.viewports[:band], viewport.centre(at, at), *view.viewports[band + 1 :])
        return replace(view, viewports=windows)
