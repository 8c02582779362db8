"""What do the visible tracks of each clock look like? One data pass a clock, within the frame's budget of colour runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trnprof.tracer.units import format_bytes, format_percent
from trnprof.tui.cells import (
    LEVELS_OF_DETAIL,
    RUN_BUDGET,
    Cells,
    Codes,
    Glyphs,
    Look,
    group_cells,
    lane_cells,
    levels,
    run_count,
)
from trnprof.tui.columns import Columns, column_edges, column_pass
from trnprof.tui.palette import COUNTER_HUE
from trnprof.tui.scene import Scene
from trnprof.tui.state import View
from trnprof.tui.store import Int
from trnprof.tui.tree import Row


@dataclass(frozen=True)
class Band:
    """The drawn rows of one clock.

    Attributes:
        rows: lanes, closed groups and counters.
        places: screen row of each, from the first visible one.
        glyphs: code points, (rows, columns).
        codes: colours, (rows, columns).
        figures: busy percentage of each row in the window, or a counter's largest value.
        names: names in view with their hues, the most frequent first.
    """

    rows: list[Row]
    places: list[int]
    glyphs: Glyphs
    codes: Codes
    figures: list[str]
    names: list[tuple[str, int]]


@dataclass(frozen=True)
class _Passed:
    """A data pass and which of its tracks belong to which row."""

    rows: list[Row]
    places: list[int]
    columns: Columns
    lanes: Int
    members: list[slice]


def draw_bands(
    scene: Scene, view: View, rows: list[Row], columns: int, ascii: bool, colour: bool, before: int
) -> tuple[list[Band], int]:
    """The visible rows of every clock, and how coarse their hues had to be.

    Args:
        scene: the trace.
        view: windows and selection.
        rows: the visible rows, as on the screen.
        columns: cells of time.
        ascii: ASCII glyphs only.
        colour: whether hues are shown at all; without, they need no budget.
        before: coarseness of the last frame. Hues get finer only well below the budget, so that they do not flicker.
    """
    passes = [_pass(scene, view, rows, band, columns) for band in range(len(scene.store.clocks))]
    passes = [p for p in passes if p.rows]
    for coarseness in range(len(LEVELS_OF_DETAIL)):
        look = Look(ascii, colour, view.selected, coarseness)
        cells = [_cells(scene, p, look) for p in passes]
        runs = sum(run_count(c.codes) for c in cells)
        if not colour or runs <= RUN_BUDGET * (0.8 if coarseness < before else 1.0):
            break
    bands = [
        Band(p.rows, p.places, c.glyphs, c.codes, _figures(scene, p), _names(scene, p))
        for p, c in zip(passes, cells, strict=True)
    ]
    return bands, coarseness


def _pass(scene: Scene, view: View, rows: list[Row], band: int, columns: int) -> _Passed:
    mine = [
        (i, r)
        for i, r in enumerate(rows)
        if r.node.band == band and r.kind in ("lane", "group", "counter")
    ]
    lo = scene.store.clocks[band].lo
    viewport = view.viewports[band]
    edges = column_edges(viewport.t0 - lo, viewport.t1 - lo, columns)
    counts = [0 if r.kind == "counter" else len(r.node.tracks) for _, r in mine]
    ends = np.cumsum([0, *counts]).tolist()
    members = [slice(a, b) for a, b in pairwise(ends)]
    tracks = [r.node.tracks for _, r in mine if r.kind != "counter"]
    flat = np.concatenate(tracks) if tracks else np.zeros(0, np.int64)
    lanes = np.array([i for i, (_, r) in enumerate(mine) if r.kind == "lane"], np.int64)
    return _Passed(
        [r for _, r in mine],
        [i for i, _ in mine],
        column_pass(scene.store, flat, edges),
        lanes,
        members,
    )


def _cells(scene: Scene, passed: _Passed, look: Look) -> Cells:
    width = len(passed.columns.edges) - 1
    glyphs = np.full((len(passed.rows), width), ord(" "), np.uint32)
    codes = np.zeros(glyphs.shape, np.int32)
    if len(passed.lanes):
        first = np.array([passed.members[i].start for i in passed.lanes.tolist()])
        drawn = lane_cells(scene.store, scene.hues, _take(passed.columns, first), look)
        glyphs[passed.lanes], codes[passed.lanes] = drawn.glyphs, drawn.codes
    groups = [i for i, r in enumerate(passed.rows) if r.kind == "group"]
    if groups:
        parts = [passed.members[i] for i in groups]
        drawn = group_cells(scene.store, scene.hues, passed.columns, parts, look)
        glyphs[groups], codes[groups] = drawn.glyphs, drawn.codes
    for i, row in enumerate(passed.rows):
        if row.kind == "counter":
            counter = scene.counters[int(row.node.tracks[0])]
            most = float(np.nanmax(counter.values, initial=0.0)) or 1.0
            share = np.nan_to_num(counter.columns(passed.columns.edges) / most)
            glyphs[i] = levels(np.clip(share, 0, 1), look.ascii)
            codes[i] = np.where(share > 0, COUNTER_HUE, 0)
    return Cells(glyphs, codes)


def _take(columns: Columns, rows: Int) -> Columns:
    parts = {k: v if k == "edges" else v[rows] for k, v in vars(columns).items()}
    return Columns(**parts)


def _figures(scene: Scene, passed: _Passed) -> list[str]:
    span = float(passed.columns.edges[-1] - passed.columns.edges[0])
    busy = passed.columns.busy.sum(axis=1, dtype=np.float64)
    figures = []
    for row, part in zip(passed.rows, passed.members, strict=True):
        if row.kind == "counter":
            counter = scene.counters[int(row.node.tracks[0])]
            values = counter.columns(passed.columns.edges)
            most = float(np.nanmax(values, initial=0.0))
            figures.append(
                format_bytes(most, 3) if counter.unit == "B" else f"{most:.3g} {counter.unit}"
            )
            continue
        fraction = float(busy[part].sum()) / (span * max(part.stop - part.start, 1))
        figures.append("<0.1 %" if 0 < fraction < 0.0005 else format_percent(fraction))
    return figures


def _names(scene: Scene, passed: _Passed) -> list[tuple[str, int]]:
    """The names that dominate most cells, with their hues."""
    store = scene.store
    events = passed.columns.dominant[passed.columns.dominant >= 0]
    found, counts = np.unique(store.labels[events], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:40]
    return [(store.names[i], int(scene.hues[i])) for i in found[order].tolist()]
