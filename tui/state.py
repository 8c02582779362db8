"""What is the person looking at, and what does each action make of it? Plain data and pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from rich.cells import cell_len

from trnprof.tracer.units import format_ns, printable
from trnprof.tui.columns import column_edges, column_pass
from trnprof.tui.layout import Layout, lay_out
from trnprof.tui.scene import Scene
from trnprof.tui.ticks import format_moment
from trnprof.tui.tree import Row
from trnprof.tui.viewport import Viewport


@dataclass(frozen=True)
class View:
    """State of the timeline.

    Attributes:
        viewports: the window of each clock.
        row: cursor, among the visible rows.
        column: cursor, among the columns of time.
        top: first row on the screen.
        closed: closed groups.
        selected: index of the selected event, -1 if none.
        hover: row and column under the mouse.
        is_help: whether the keys are shown in place of the tracks.
        message: of the last action, for the status line.
    """

    viewports: tuple[Viewport, ...]
    row: int = 0
    column: int = 0
    top: int = 0
    closed: frozenset[int] = frozenset()
    selected: int = -1
    hover: tuple[int, int] | None = None
    is_help: bool = False
    message: str = ""


def first_view(scene: Scene) -> View:
    """Everything in view, the cursor on the first lane."""
    windows = tuple(Viewport.whole(c.lo, c.hi) for c in scene.store.clocks)
    rows = scene.tree.rows(scene.tree.closed)
    row = next((i for i, r in enumerate(rows) if r.kind == "lane"), 0)
    return View(windows, row=row, closed=scene.tree.closed)


def layout_of(scene: Scene, view: View, width: int, height: int) -> Layout:
    """The layout of the screen for this view."""
    rows = scene.tree.rows(view.closed)
    widths = (
        cell_len(r.node.label) + 2 * r.node.depth + 2 * r.node.is_group
        for r in rows
        if r.kind not in ("header", "ruler")
    )
    return lay_out(width, height, max(widths, default=0), len(rows), view.selected >= 0)


def settle(scene: Scene, view: View, layout: Layout) -> View:
    """The view made to fit a screen: at least 1 ns a column, cursor and scroll inside."""
    count = len(scene.tree.rows(view.closed))
    row = min(max(view.row, 0), max(count - 1, 0))
    lowest = max(count - layout.tracks, 0)
    top = min(max(view.top, row - layout.tracks + 1, 0), lowest, row)
    return replace(
        view,
        viewports=tuple(v.at_least(layout.columns) for v in view.viewports),
        row=row,
        top=top,
        column=min(max(view.column, 0), layout.columns - 1),
    )


def row_at(scene: Scene, view: View, row: int) -> Row | None:
    """The visible row at a position."""
    rows = scene.tree.rows(view.closed)
    return rows[row] if 0 <= row < len(rows) else None


def band_of(scene: Scene, view: View) -> int:
    """The clock of the cursor's row; it is the one that zooms and pans."""
    row = row_at(scene, view, view.row)
    return row.node.band if row else 0


def moment(viewport: Viewport, column: int, columns: int) -> int:
    """The time in the middle of a column."""
    return viewport.t0 + viewport.span * (2 * column + 1) // (2 * columns)


def column_of(viewport: Viewport, t_ns: int, columns: int) -> int:
    """The column that a moment lies in (outside the window: beyond its ends)."""
    column = (t_ns - viewport.t0) * columns // viewport.span
    wide, rest = divmod(viewport.span, columns)
    while t_ns >= viewport.t0 + (column + 1) * wide + (column + 1) * rest // columns:
        column += 1
    while t_ns < viewport.t0 + column * wide + column * rest // columns:
        column -= 1
    return column


def event_under(scene: Scene, view: View, row: int, column: int, columns: int) -> int:
    """The event that dominates a cell, -1 if it is empty or its row is no lane."""
    shown = row_at(scene, view, row)
    if shown is None or shown.kind not in ("lane", "group") or not len(shown.node.tracks):
        return -1
    viewport = view.viewports[shown.node.band].at_least(columns)
    lo = scene.store.clocks[shown.node.band].lo
    edges = column_edges(viewport.t0 - lo, viewport.t1 - lo, columns)[column : column + 2]
    cell = column_pass(scene.store, shown.node.tracks, edges)
    return int(cell.dominant[int(np.argmax(cell.overlap[:, 0])), 0])


def select(scene: Scene, view: View, event: int, columns: int) -> View:
    """The view with an event selected: its groups opened, its row under the cursor, its start in sight."""
    store = scene.store
    node = scene.tree.node_of(store.track_of(event))
    if node is None:
        return replace(view, message="that event's track is not shown")
    closed, parent = view.closed, node.parent
    while parent >= 0:
        closed -= {parent}
        parent = scene.tree.nodes[parent].parent
    rows = scene.tree.rows(closed)
    row = next(i for i, r in enumerate(rows) if r.node.key == node.key and r.kind == "lane")
    viewport, start = view.viewports[node.band].at_least(columns), store.start_ns(event)
    if not viewport.t0 <= start < viewport.t1 and not start <= viewport.t0 < store.end_ns(event):
        viewport = viewport.centre(start, store.end_ns(event))
    column = min(max(column_of(viewport, start, columns), 0), columns - 1)
    view = _with_viewport(view, node.band, viewport)
    return replace(view, selected=event, closed=closed, row=row, column=column, message="")


def act(scene: Scene, view: View, action: str, layout: Layout) -> View:
    """What an action makes of a view. Actions are the keys of ``ACTIONS``."""
    view = replace(settle(scene, view, layout), message="")
    return settle(scene, ACTIONS[action](scene, view, layout), layout)


def zoom_at(scene: Scene, view: View, layout: Layout, column: int, ratio: tuple[int, int]) -> View:
    """The window of the cursor's clock times ratio[0]/ratio[1], around a column."""
    band = band_of(scene, view)
    viewport = view.viewports[band]
    zoomed = viewport.zoom(*ratio, moment(viewport, column, layout.columns))
    return _with_viewport(view, band, zoomed)


def _with_viewport(view: View, band: int, viewport: Viewport) -> View:
    windows = (*view.viewports[:band], viewport, *view.viewports[band + 1 :])
    return replace(view, viewports=windows)


Action = Callable[[Scene, View, Layout], View]


def _zoom(numerator: int, denominator: int) -> Action:
    return lambda scene, view, layout: zoom_at(
        scene, view, layout, view.column, (numerator, denominator)
    )


def _window(change: Callable[[Viewport], Viewport], nothing: str = "") -> Action:
    def run(scene: Scene, view: View, layout: Layout) -> View:
        band = band_of(scene, view)
        changed = change(view.viewports[band])
        message = nothing if changed == view.viewports[band] else ""
        return replace(_with_viewport(view, band, changed), message=message)

    return run


def _pan(numerator: int, denominator: int) -> Action:
    return _window(lambda v: v.pan(numerator, denominator))


def _move(rows: int, columns: int) -> Action:
    def run(scene: Scene, view: View, layout: Layout) -> View:
        row, column = view.row + rows, view.column + columns
        if column < 0 or column >= layout.columns:  # a step beyond the edge moves the window
            band = band_of(scene, view)
            view = _with_viewport(view, band, view.viewports[band].pan(columns, layout.columns))
        return replace(view, row=row, column=column)

    return run


def _page(direction: int) -> Action:
    return lambda scene, view, layout: replace(
        view,
        row=view.row + direction * max(layout.tracks - 1, 1),
        top=view.top + direction * max(layout.tracks - 1, 1),
    )


def _scroll(rows: int) -> Action:
    def run(scene: Scene, view: View, layout: Layout) -> View:
        count = len(scene.tree.rows(view.closed))
        top = min(max(view.top + rows, 0), max(count - layout.tracks, 0))
        return replace(view, top=top, row=min(max(view.row, top), top + layout.tracks - 1))

    return run


def _choose(scene: Scene, view: View, layout: Layout) -> View:
    row = row_at(scene, view, view.row)
    if row is not None and row.kind in ("header", "group"):
        return replace(view, closed=view.closed ^ {row.node.key})
    event = event_under(scene, view, view.row, view.column, layout.columns)
    if event < 0:
        return replace(view, message="no event here")
    chosen = select(scene, view, event, layout.columns)
    return replace(chosen, column=view.column)


def _step(direction: int) -> Action:
    def run(scene: Scene, view: View, layout: Layout) -> View:
        where = "last" if direction > 0 else "first"
        if view.selected >= 0:
            event = scene.store.next_event(view.selected, direction)
            if event < 0:
                return replace(view, message=f"the {where} event of its track")
            return select(scene, view, event, layout.columns)
        row = row_at(scene, view, view.row)
        if row is None or row.kind != "lane":
            return replace(view, message="no track here")
        track = int(row.node.tracks[0])
        viewport = view.viewports[row.node.band]
        index = scene.store.starts_before(track, moment(viewport, view.column, layout.columns))
        index -= 0 if direction > 0 else 1
        if not scene.store.offsets[track] <= index < scene.store.offsets[track + 1]:
            return replace(view, message="no event on this side")
        return select(scene, view, index, layout.columns)

    return run


def _fit_selection(scene: Scene, view: View, layout: Layout) -> View:
    """Centre the selection; when it is in the centre already, fit it."""
    if view.selected < 0:
        return replace(view, message="nothing is selected")
    store = scene.store
    band = int(store.bands[store.track_of(view.selected)])
    start, end = store.start_ns(view.selected), store.end_ns(view.selected)
    viewport = view.viewports[band]
    centred = viewport.centre(start, end)
    if centred == viewport:
        centred = viewport.show(start, end).at_least(layout.columns)
    column = min(max(column_of(centred, start, layout.columns), 0), layout.columns - 1)
    return replace(_with_viewport(view, band, centred), column=column)


def _set_closed(close: bool) -> Action:
    def run(scene: Scene, view: View, layout: Layout) -> View:
        row = row_at(scene, view, view.row)
        if row is None:
            return view
        node = row.node
        if close and (not node.is_group or node.key in view.closed) and node.parent >= 0:
            node = scene.tree.nodes[node.parent]
        closed = view.closed | {node.key} if close and node.is_group else view.closed - {node.key}
        rows = scene.tree.rows(closed)
        at = next(
            (i for i, r in enumerate(rows) if r.node.key == node.key and r.kind != "ruler"), 0
        )
        return replace(view, closed=closed, row=at)

    return run


def _all_groups(close: bool) -> Action:
    def run(scene: Scene, view: View, layout: Layout) -> View:
        row = row_at(scene, view, view.row)
        node = row.node if row else None
        closed = scene.tree.groups() if close else frozenset()
        while close and node is not None and node.parent >= 0:
            node = scene.tree.nodes[node.parent]
        rows = scene.tree.rows(closed)
        at = next((i for i, r in enumerate(rows) if node and r.node.key == node.key and r.kind != "ruler"), 0)  # fmt: skip
        return replace(view, closed=closed, row=at)

    return run


def _escape(scene: Scene, view: View, layout: Layout) -> View:
    if view.is_help:
        return replace(view, is_help=False)
    return replace(view, selected=-1)


ACTIONS: Final[dict[str, Action]] = {
    "zoom_in": _zoom(2, 3),
    "zoom_out": _zoom(3, 2),
    "zoom_in_far": _zoom(1, 5),
    "zoom_out_far": _zoom(5, 1),
    "pan_left": _pan(-1, 4),
    "pan_right": _pan(1, 4),
    "pan_left_far": _pan(-1, 1),
    "pan_right_far": _pan(1, 1),
    "left": _move(0, -1),
    "right": _move(0, 1),
    "up": _move(-1, 0),
    "down": _move(1, 0),
    "page_up": _page(-1),
    "page_down": _page(1),
    "scroll_up": _scroll(-3),
    "scroll_down": _scroll(3),
    "fit": _window(Viewport.fit),
    "fit_selection": _fit_selection,
    "back": _window(Viewport.back, "no earlier view"),
    "forward": _window(Viewport.forward, "no later view"),
    "choose": _choose,
    "next": _step(1),
    "previous": _step(-1),
    "close": _set_closed(True),
    "open": _set_closed(False),
    "close_all": _all_groups(True),
    "open_all": _all_groups(False),
    "help": lambda scene, view, layout: replace(view, is_help=not view.is_help),
    "escape": _escape,
}


def status_of(scene: Scene, view: View, layout: Layout) -> str:
    """What lies under the mouse or, without one, under the cursor."""
    place, (row, column) = ("hover", view.hover) if view.hover else ("at", (view.row, view.column))
    shown = row_at(scene, view, row)
    if shown is None or shown.kind == "ruler":
        return ""
    store, band = scene.store, shown.node.band
    viewport = view.viewports[band]
    zero, t = store.clocks[band].zero, moment(viewport, column, layout.columns)
    resolution = max(viewport.span // layout.columns // 10, 1)
    text = f"{place} {format_moment(t - zero, resolution)}  {shown.node.label}"
    event = event_under(scene, view, row, column, layout.columns)
    if event >= 0:
        text += f"  {printable(store.name(event))} ({format_ns(store.duration_ns(event))})"
    elif shown.kind in ("lane", "group"):
        text += "  idle"
    return text
