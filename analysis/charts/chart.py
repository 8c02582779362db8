"""What is a chart of a report? Rows, what lies on which axis, and what was left out of them; drawn by ``vega``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from trnprof.analysis.sections.section import Column, table

Kind = Literal["bars", "heat_map", "scatter", "area", "timeline"]
"""How the rows are drawn.

bars       a bar of length x on the row y, stacked by colour
heat_map   a cell from x to x_end on the row y, as dark as its colour column is large
scatter    a point at x and y, as large as ``size``; ``lines`` bound the points
area       y from x on, until the next x of its colour
timeline   a bar from x to x_end on the row y
"""

MAX_ROWS: Final = 2_000
"""Of a chart: what more there is, is put together or left out, and its notes say so."""


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        key: its name, also of its files.
        title: what people read.
        kind: how it is drawn.
        x: what lies across.
        y: what lies upward, or which row.
        rows: with the keys of the columns.
        color: what the colour stands for; None: nothing.
        x_end: where a cell or bar ends.
        size: what the size of a point stands for.
        more: what a person sees of a row who points at it, beside the others.
        lines: of a scatter: label, and the keys of x and y; in order along the line.
        is_logarithmic: both axes.
        notes: what was left out or put together, and of what the figures are.
        nothing_to_say: "because …", where there is nothing to draw.
    """

    key: str
    title: str
    kind: Kind
    x: Column
    y: Column
    rows: tuple[Mapping[str, Any], ...] = ()
    color: Column | None = None
    x_end: Column | None = None
    size: Column | None = None
    more: tuple[Column, ...] = ()
    lines: tuple[Mapping[str, Any], ...] = ()
    is_logarithmic: bool = False
    notes: tuple[str, ...] = ()
    nothing_to_say: str | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the rows, each once."""
        named = (self.y, self.color, self.x, self.x_end, self.size, *self.more)
        return tuple({c.key: c for c in named if c is not None}.values())


def plain_rows(frame: pl.DataFrame, columns: Sequence[Column]) -> tuple[Mapping[str, Any], ...]:
    """The rows of a frame as a chart keeps them: only its columns, as tables keep their values."""
    return table("", "", columns, frame.select([c.key for c in columns])).rows


def with_rows(chart: Chart, frame: pl.DataFrame, notes: Sequence[str] = ()) -> Chart:
    """A chart with rows, or silent if the frame has none."""
    from dataclasses import replace

    if not frame.height:
        return replace(chart, nothing_to_say=chart.nothing_to_say or "because there is no such row")
    rows = plain_rows(frame, chart.columns)
    return replace(chart, rows=rows, notes=(*chart.notes, *notes), nothing_to_say=None)
