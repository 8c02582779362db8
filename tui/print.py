"""What does the timeline look like, written as text or as a picture, without a terminal?"""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from rich.console import Console
from rich.segment import Segment, Segments

from trnprof.tracer.errors import TrnprofError
from trnprof.tui.frame import Frame, Options, compose
from trnprof.tui.layout import MIN_HEIGHT, MIN_WIDTH
from trnprof.tui.scene import Scene, open_scene
from trnprof.tui.state import View, band_of, first_view, layout_of
from trnprof.tui.state import select as select_event
from trnprof.tui.svg import to_svg

if TYPE_CHECKING:
    from trnprof.tracer.reader import Trace


def render(
    trace: Trace,
    width: int = 100,
    height: int = 30,
    *,
    at: tuple[int, int] | None = None,
    select: str | int | None = None,
    ascii: bool = False,
    color: bool = False,
) -> str:
    """One frame of the timeline as text, the same as on a terminal of that size.

    Args:
        trace: what to draw.
        width: columns, at least 40.
        height: lines, at least 10.
        at: window in ns as the ruler shows it; None: the whole trace.
        select: event id, or a name: the longest event of that name.
        ascii: only ASCII characters.
        color: with ANSI colour codes.

    Raises:
        TrnprofError: the size is too small, the window is empty, or there is no such event.
    """
    frame = _frame(trace, width, height, at, select, Options(ascii, color, cursor=False))
    if not color:
        return frame.text
    console = Console(
        file=StringIO(), width=width, force_terminal=True, color_system="truecolor", legacy_windows=False, no_color=False
    )  # fmt: skip
    with console.capture() as capture:
        console.print(_joined(frame), end="")
    return capture.get().rstrip("\n")


def svg(
    trace: Trace,
    width: int = 100,
    height: int = 30,
    *,
    at: tuple[int, int] | None = None,
    select: str | int | None = None,
    title: str = "trnprof view",
) -> str:
    """One frame as an SVG picture; arguments and errors as for ``render``."""
    frame = _frame(trace, width, height, at, select, Options(cursor=False))
    return to_svg(frame, title)


def _joined(frame: Frame) -> Segments:
    return Segments([run for row in frame.rows for run in (*row, Segment.line())])


def _frame(
    trace: Trace,
    width: int,
    height: int,
    at: tuple[int, int] | None,
    chosen: str | int | None,
    options: Options,
) -> Frame:
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        raise TrnprofError(
            f"size {width}x{height} is too small: the timeline needs {MIN_WIDTH}x{MIN_HEIGHT}"
        )
    scene = open_scene(trace)
    view = first_view(scene)
    if at is not None:
        view = _at(scene, view, at)
    if chosen is not None:
        event = find_event(scene, chosen)
        view = select_event(scene, view, event, layout_of(scene, view, width, height).columns)
    return compose(scene, view, width, height, options)


def _at(scene: Scene, view: View, at: tuple[int, int]) -> View:
    if at[1] <= at[0]:
        raise TrnprofError(f"window {at[0]}..{at[1]} ns: its end must lie after its start")
    if not scene.store.clocks:
        return view
    band = band_of(scene, view)
    clock = scene.store.clocks[band]
    t0, t1 = at[0] + clock.zero, at[1] + clock.zero
    if t1 <= clock.lo or t0 >= clock.hi:
        first, last = clock.lo - clock.zero, clock.hi - clock.zero
        raise TrnprofError(
            f"window {at[0]}..{at[1]} ns lies outside the trace, which spans {first}..{last} ns"
        )
    window = replace(view.viewports[band], t0=max(t0, clock.lo), t1=min(t1, clock.hi))
    return replace(view, viewports=(*view.viewports[:band], window, *view.viewports[band + 1 :]))


def find_event(scene: Scene, chosen: str | int) -> int:
    """The index of an event by id, or of the longest by name.

    Raises:
        TrnprofError: there is none.
    """
    store = scene.store
    rows = store.trace.events.select("event_id", "name").with_row_index("row")
    if isinstance(chosen, int):
        found = rows.filter(pl.col("event_id") == chosen)
    else:
        found = rows.filter(pl.col("name").cast(pl.String) == chosen)
    wanted = found.collect()["row"].to_numpy()
    if store.rows is None:
        events = wanted.astype(np.int64)
    else:
        events = np.flatnonzero(np.isin(store.rows, wanted))
    if not len(events):
        raise TrnprofError(
            f"no event {'with id ' if isinstance(chosen, int) else 'named '}{chosen!r} in {store.trace.path}"
        )
    return int(events[int(store.durations_of(events).argmax())])
