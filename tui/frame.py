"""What does the whole screen look like? Rows of styled runs, a pure function of scene, view and size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from polars.exceptions import PolarsError
from rich.segment import Segment

from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.units import format_count, format_ns, format_percent
from trnprof.tui.bands import Band, draw_bands
from trnprof.tui.cells import LEVELS_OF_DETAIL, levels, narrow
from trnprof.tui.details import Details, describe
from trnprof.tui.layout import MIN_HEIGHT, MIN_WIDTH, Layout
from trnprof.tui.line import Line, to_ascii
from trnprof.tui.palette import CURSOR, cell_style
from trnprof.tui.scene import Scene
from trnprof.tui.state import View, band_of, column_of, layout_of, settle, status_of
from trnprof.tui.ticks import format_moment, tick_step, ticks
from trnprof.tui.tree import Row

Runs = list[Segment]

KEYS = (
    ("w s  W S", "zoom in, out at the cursor; capitals: further"),
    ("a d  A D", "earlier, later by a quarter; capitals: a whole window"),
    ("← →  ↑ ↓", "cursor by a column, by a row (also j k, PgUp PgDn)"),
    ("0", "fit the whole trace"),
    ("f", "centre the selected event; again: fit it"),
    ("z Z", "earlier view, later view"),
    ("Enter Space", "select the event under the cursor; open or close a group"),
    (". ,", "next, previous event of the track"),
    ("- +  e E", "close, open a group; open all, close all"),
    ("Esc", "deselect"),
    ("mouse", "click: select; double click: fit; wheel: rows; Ctrl+wheel: zoom; drag: pan"),
    ("? q", "this page; quit (also Ctrl+Q)"),
)
_HINTS = (
    ("w/s", "zoom"), ("a/d", "pan"), ("0", "all"), ("f", "fit"), ("Enter", "select"), (". ,", "next, previous"),
    ("z/Z", "back, forward"), ("-/+", "groups"), ("?", "help"), ("q", "quit"),
)  # fmt: skip
_KEPT = 2
"""Hints at the end that stay on a narrow screen."""


@dataclass(frozen=True)
class Options:
    """How to draw: ASCII glyphs only, with colour, with the cursor (a printed frame has none)."""

    ascii: bool = False
    colour: bool = True
    cursor: bool = True


@dataclass(frozen=True)
class Frame:
    """A drawn screen.

    Attributes:
        rows: one list of runs a line, each as wide as the screen.
        view: the view that was drawn, settled to the size.
        layout: where what is.
        coarseness: index into LEVELS_OF_DETAIL.
    """

    rows: list[Runs]
    view: View
    layout: Layout
    coarseness: int

    @property
    def text(self) -> str:
        """The lines without their styles."""
        return "\n".join("".join(run.text for run in row).rstrip() for row in self.rows)


class Painter:
    """Draws frames of one scene; keeps the last bands and details, so that moving the mouse costs nothing."""

    def __init__(self, scene: Scene, options: Options) -> None:
        self.scene = scene
        self.options = options
        self._bands: tuple[object, list[Band]] = (None, [])
        self._details: tuple[int, Details | None] = (-1, None)
        self._coarseness = 0

    def frame(self, view: View, width: int, height: int) -> Frame:
        """The screen for a view."""
        layout = layout_of(self.scene, view, width, height)
        if not layout.fits:
            return Frame(_too_small(width, height, self.options.colour), view, layout, 0)
        view = settle(self.scene, view, layout)
        bands = self._drawn(view, layout)
        rows = [
            self._header(view, layout),
            self._minimap(view, layout),
            self._ruler(view, layout, self._top_band(view)),
            *(self._help(layout) if view.is_help else self._tracks(view, layout, bands)),
            *self._drawer(view, layout, bands),
            self._status(view, layout),
            self._footer(layout),
        ]
        if self.options.ascii:
            rows = [to_ascii(row) for row in rows]
        return Frame(rows, view, layout, self._coarseness)

    def status_row(self, view: View, layout: Layout) -> Runs:
        """The status line alone, for what only moves the mouse."""
        row = self._status(view, layout)
        return to_ascii(row) if self.options.ascii else row

    def _line(self, layout: Layout) -> Line:
        return Line(layout.width, self.options.colour)

    def _drawn(self, view: View, layout: Layout) -> list[Band]:
        key = (view.viewports, view.top, view.closed, view.selected, layout)
        if self._bands[0] != key:
            rows = self.scene.tree.rows(view.closed)[view.top : view.top + layout.tracks]
            bands, self._coarseness = draw_bands(
                self.scene, view, rows, layout.columns, self.options.ascii, self.options.colour, self._coarseness
            )  # fmt: skip
            self._bands = (key, bands)
        return self._bands[1]

    def _top_band(self, view: View) -> int:
        rows = self.scene.tree.rows(view.closed)
        return rows[view.top].node.band if rows else 0

    def _header(self, view: View, layout: Layout) -> Runs:
        store, band = self.scene.store, band_of(self.scene, view)
        clock = store.clocks[band] if store.clocks else None
        line = self._line(layout).add(f" {store.trace.path.name} ", "bar_bold")
        facts = []
        system = store.trace.system.get("name")
        if system or store.trace.is_simulation:
            facts.append(
                f"{system or ''}{' emulated' if store.trace.is_simulation else ''}".strip()
            )
        facts.append(f"{format_count(store.event_count)} events")
        facts.append(f"{int((np.diff(store.offsets) > 0).sum())} tracks")
        window = ""
        if clock is not None:
            viewport = view.viewports[band]
            if len(store.clocks) > 1:
                facts.append(f"{len(store.clocks)} separate clocks")
            facts.append(format_ns(clock.hi - clock.lo))
            window = f"{_window_text(viewport.t0 - clock.zero, viewport.t1 - clock.zero)} "
        room = layout.width - line.used - len(window)
        text = ""
        for fact in facts:
            more = f" · {fact}" if text else f" {fact}"
            if len(text) + len(more) < room:
                text += more
        line.add(text, "bar_dim").add("", "bar", max(layout.width - line.used - len(window), 0))
        return line.add(window, "bar_bold").end("bar")

    def _minimap(self, view: View, layout: Layout) -> Runs:
        line = self._line(layout)
        line.add(" whole trace", "faint", layout.gutter)
        if not self.scene.store.clocks:
            return line.end()
        band, columns = self._top_band(view), layout.columns
        clock = self.scene.store.clocks[band]
        glyphs = levels(self.scene.minimap(band, columns), self.options.ascii)
        text = glyphs.tobytes().decode("utf-32-le")
        whole = replace(view.viewports[band], t0=clock.lo, t1=max(clock.hi, clock.lo + columns))
        first = min(max(column_of(whole, view.viewports[band].t0, columns), 0), columns - 1)
        last = min(max(column_of(whole, view.viewports[band].t1 - 1, columns), first), columns - 1)
        line.add(text[:first], "map").add(text[first : last + 1], "map_window").add(
            text[last + 1 :], "map"
        )
        span, all_of = view.viewports[band].span, max(clock.hi - clock.lo, 1)
        if layout.figures:
            line.add("").add(
                f"{format_percent(min(span / all_of, 1.0)):>{layout.figures}}", "faint"
            )
        return line.end()

    def _ruler(self, view: View, layout: Layout, band: int) -> Runs:
        line = self._line(layout)
        store = self.scene.store
        if not store.clocks:
            return line.end()
        clock, viewport = store.clocks[band], view.viewports[band]
        line.add(f" {clock.label} time", "dim", layout.gutter)
        t0, t1 = viewport.t0 - clock.zero, viewport.t1 - clock.zero
        step = tick_step(viewport.span, max(layout.columns // 12, 2))
        text = [" "] * layout.columns
        scale = max(abs(t0), abs(t1))
        for tick in ticks(t0, t1, step):
            at = column_of(viewport, tick + clock.zero, layout.columns)
            label = f"╷{format_moment(tick, step, scale)}"
            if at + len(label) <= layout.columns:
                text[at : at + len(label)] = label
        if self.options.cursor and band == band_of(self.scene, view) and not view.is_help:
            text[view.column] = "▼"
            line.add("".join(text[: view.column]), "dim").add("▼", "accent")
            line.add("".join(text[view.column + 1 :]), "dim")
        else:
            line.add("".join(text), "dim")
        return line.add(f"{'busy':>{layout.figures}}" if layout.figures else "", "faint").end()

    def _tracks(self, view: View, layout: Layout, bands: list[Band]) -> list[Runs]:
        lines: dict[int, Runs] = {}
        for band in bands:
            for place, row in enumerate(band.rows):
                lines[band.places[place]] = self._track(view, layout, band, place, row)
        rows = self.scene.tree.rows(view.closed)[view.top : view.top + layout.tracks]
        for place, row in enumerate(rows):
            if row.kind == "ruler":
                lines[place] = self._ruler(view, layout, row.node.band)
            elif row.kind == "header":
                lines[place] = self._group_title(view, layout, view.top + place, row)
        blank = self._line(layout).end()
        if not rows:
            lines[0] = self._line(layout).add(" this trace has no events to show", "dim").end()
        return [lines.get(place, blank) for place in range(layout.tracks)]

    def _is_cursor(self, view: View, row: int) -> bool:
        return self.options.cursor and row == view.row

    def _group_title(self, view: View, layout: Layout, at: int, row: Row) -> Runs:
        style = "cursor" if self._is_cursor(view, at) else "bold"
        line = self._line(layout).add(f" {'  ' * row.node.depth}▾ {row.node.label} ", style)
        return line.add("─" * (layout.width - line.used - 1), "faint").end()

    def _track(self, view: View, layout: Layout, band: Band, place: int, row: Row) -> Runs:
        at = view.top + band.places[place]
        is_cursor = self._is_cursor(view, at)
        indent = "  " * row.node.depth if layout.width >= 60 else ""
        sign = "▸ " if row.kind == "group" else ""
        label = row.node.label if row.node.lane == 0 else f"· lane {row.node.lane}"
        line = self._line(layout)
        style = "cursor" if is_cursor else "bold" if row.kind == "group" else "plain"
        line.add(f" {indent}{sign}{label}", style, layout.gutter - 1).add(
            " ", style if is_cursor else "plain"
        )
        codes = band.codes[place]
        if is_cursor:
            codes = codes.copy()
            codes[view.column] |= CURSOR
        cells = band.glyphs[place].tobytes().decode("utf-32-le")
        line.extend(_runs(cells, codes, self.options.colour), layout.columns)
        if layout.figures:
            line.add(f"{band.figures[place]:>{layout.figures}}", "cursor" if is_cursor else "dim")
        return line.end()

    def _drawer(self, view: View, layout: Layout, bands: list[Band]) -> list[Runs]:
        if layout.drawer == 0:
            return []
        if view.selected < 0:
            return self._legend(layout, bands)
        if self._details[0] != view.selected:
            self._details = (view.selected, self._describe(view.selected))
        details = self._details[1]
        assert details is not None
        hue = int(self.scene.hues[self.scene.store.labels[view.selected]])
        line = self._line(layout).add("─ ", "faint")
        if self.options.colour:
            line.extend([Segment("■ ", cell_style(hue))], 2)
        line.add(f"{details.title} ", "bold")
        lines = [line.add("─" * (layout.width - line.used), "faint").end()]
        lines += self._fields(layout, details)
        blank = self._line(layout).end()
        return (lines + [blank] * layout.drawer)[: layout.drawer]

    def _describe(self, event: int) -> Details:
        """The details, or why they cannot be had: the trace may vanish while it is being looked at."""
        try:
            return describe(self.scene.store, event)
        except (OSError, PolarsError, TrnprofError) as error:
            return Details(self.scene.store.name(event), (("unreadable", str(error)),))

    def _fields(self, layout: Layout, details: Details) -> list[Runs]:
        """Pairs in two columns, down the left one first; a value that needs more room takes the whole width."""
        room = layout.drawer - 1
        fields = [f for f in details.fields if f[0] != "attributes"]
        fields += [f for f in details.fields if f[0] == "attributes"]
        two = layout.width >= 80 and len(fields) > room
        half = layout.width // 2 if two else layout.width
        count = -(-len(fields) // 2) if two else len(fields)
        lines = []
        for left in range(min(count, room)):
            line = self._line(layout)
            for label, value in fields[left::count] if count else ():
                line.add(f" {label}", "dim", 13).add(value, "plain", half - 13)
            lines.append(line.end())
        hidden = len(fields) - room * (2 if two else 1)
        if hidden > 0 and lines:
            names = ", ".join(label for label, _ in fields[-hidden:])
            lines[-1] = self._line(layout).add(f" more on a taller screen: {names}", "faint").end()
        return lines

    def _legend(self, layout: Layout, bands: list[Band]) -> list[Runs]:
        title = self._line(layout).add("─ In view ", "faint")
        lines = [title.add("─" * (layout.width - title.used), "faint").end()]
        names = [n for b in bands for n in b.names]
        width = 26 if layout.width >= 60 else 19
        each = max((layout.width - 1) // width, 1)
        for first in range(0, len(names), each):
            line = self._line(layout).add(" ")
            for name, hue in names[first : first + each]:
                if self.options.colour:
                    line.extend([Segment("■", cell_style(hue))], 1)
                line.add(f" {narrow(name)}", "plain", min(width - 2, layout.width - line.used)).add(
                    " "
                )
            lines.append(line.end())
        if not names:
            lines.append(self._line(layout).add(" nothing in view", "dim").end())
        blank = self._line(layout).end()
        return (lines + [blank] * layout.drawer)[: layout.drawer]

    def _status(self, view: View, layout: Layout) -> Runs:
        line = self._line(layout)
        notes = self._notes()
        text = view.message or (status_of(self.scene, view, layout) if self.options.cursor else "")
        least = layout.width // 2 if text else 0
        room = max(layout.width - len(notes) - 2, least)
        line.add(f" {text}", "bar_warning" if view.message else "bar", room)
        return line.add(f" {notes} ", "bar_dim").end("bar")

    def _notes(self) -> str:
        """What is approximate, cut or missing, said on every frame."""
        store = self.scene.store
        notes = [f"hues {LEVELS_OF_DETAIL[self._coarseness]}"]
        if store.open_events:
            notes.insert(0, f"{store.open_events:,} unfinished, drawn to the end")
        if store.overlaps:
            notes.insert(0, f"{_count(store.overlaps, 'overlap')}, drawn as a union")
        if store.dangling:
            notes.insert(0, f"{_count(store.dangling, 'event')} without a track, left out")
        if store.trace.problems:
            notes.insert(0, f"{_count(len(store.trace.problems), 'problem')}: see trnprof validate")
        return " · ".join(notes)

    def _footer(self, layout: Layout) -> Runs:
        hints = list(_HINTS)
        while len(hints) > _KEPT and sum(len(k) + len(w) + 3 for k, w in hints) > layout.width:
            hints.pop(-1 - _KEPT)
        line = self._line(layout)
        for key, what in hints:
            line.add(f" {key}", "bold").add(f" {what} ", "dim")
        return line.end()

    def _help(self, layout: Layout) -> list[Runs]:
        lines = [self._line(layout).add(" Keys", "bold").end()]
        for key, what in KEYS:
            lines.append(self._line(layout).add(f"  {key}", "accent", 15).add(what).end())
        blank = self._line(layout).end()
        return (lines + [blank] * layout.tracks)[: layout.tracks]


def compose(
    scene: Scene, view: View, width: int, height: int, options: Options | None = None
) -> Frame:
    """One frame.

    Args:
        scene: the trace.
        view: what to show of it.
        width: columns of the screen, at least 40.
        height: lines, at least 10.
        options: how to draw; by default in colour, with the cursor.
    """
    return Painter(scene, options or Options()).frame(view, width, height)


def _runs(text: str, codes: np.typing.NDArray[np.int32], colour: bool) -> Runs:
    """Text cut where the code changes."""
    cuts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    begins = [0, *cuts.tolist()]
    ends = [*cuts.tolist(), len(codes)]
    values = codes[begins].tolist()
    return [
        Segment(text[a:b], cell_style(v, colour))
        for a, b, v in zip(begins, ends, values, strict=True)
    ]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def _window_text(t0: int, t1: int) -> str:
    resolution = max((t1 - t0) // 200, 1)
    scale = max(abs(t0), abs(t1))
    first = format_moment(t0, resolution, scale).rsplit(" ", 1)[0]
    return f"{first} – {format_moment(t1, resolution, scale)}  ({format_ns(t1 - t0)})"


def _too_small(width: int, height: int, colour: bool) -> list[Runs]:
    text = f"too small: needs {MIN_WIDTH}×{MIN_HEIGHT}"
    return [Line(width, colour).add(text if y == 0 else "", "plain").end() for y in range(height)]
