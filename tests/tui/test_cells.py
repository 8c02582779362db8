"""Cells never paint over a gap, never hide an event, and stay within the budget of colour runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tui.bands import draw_bands
from trnprof.tui.cells import RUN_BUDGET, Look, lane_cells, levels, narrow, run_count
from trnprof.tui.columns import column_edges, column_pass
from trnprof.tui.palette import REVERSED, SELECTED, cell_style, hue_of
from trnprof.tui.scene import open_scene
from trnprof.tui.state import first_view

LEFT = " ▏▎▍▌▋▊▉█"


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1))
def test_a_full_block_means_fifteen_sixteenths(fraction: float) -> None:
    for ascii, full in ((False, "█"), (True, "@")):
        glyph = chr(int(levels(np.array([fraction]), ascii)[0]))
        assert (glyph == full) == (fraction >= 15 / 16)
        assert (glyph == " ") == (fraction == 0)


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("colour", [False, True])
def test_no_cell_hides_an_event_or_paints_over_a_gap(
    make_trace: Callable[..., Any], ascii: bool, colour: bool
) -> None:
    rng = np.random.default_rng(1)
    lengths, gaps = rng.integers(0, 60, 400), rng.integers(0, 60, 400)
    starts = np.cumsum(lengths + gaps) - lengths
    spans = [(0, int(s), int(d), "x", "compute") for s, d in zip(starts, lengths, strict=True)]
    scene = open_scene(make_trace(spans))
    for t0, t1, width in ((0, 20_000, 100), (500, 900, 100), (100, 3000, 77), (0, 160, 80)):
        columns = column_pass(scene.store, np.array([0]), column_edges(t0, t1, width))
        fraction = (columns.busy / np.diff(columns.edges))[0]
        cells = lane_cells(scene.store, scene.hues, columns, Look(ascii, colour))
        reverse = cells.codes[0] & REVERSED > 0
        two_hues = cells.codes[0] >> 8 & 0xFF > 0
        for c, glyph in enumerate("".join(map(chr, cells.glyphs[0].tolist()))):
            assert (glyph == " ") == (columns.dominant[0, c] < 0)
            if glyph in "█▓@%" and not reverse[c]:
                assert fraction[c] >= 15 / 16
            if glyph in LEFT[1:8] and not two_hues[c]:
                drawn = LEFT.index(glyph) / 8
                drawn = 1 - drawn if reverse[c] else drawn
                assert abs(drawn - fraction[c]) <= 1 / 8


def test_edges_are_drawn_to_an_eighth(make_trace: Callable[..., Any]) -> None:
    spans = [
        (0, 1000 + 375, 2000, "a", "compute"),
        (0, 6000, 1500, "b", "dma"),
        (0, 7500, 2500, "c", "dma"),
    ]
    scene = open_scene(make_trace([(1, 0, 1, "first", "dma"), *spans]))
    columns = column_pass(scene.store, np.array([0]), column_edges(0, 10_000, 10))
    cells = lane_cells(scene.store, scene.hues, columns, Look())
    text = "".join(map(chr, cells.glyphs[0].tolist()))
    assert text == " ▍█▍  █▌██"
    assert bool(cells.codes[0, 1] & REVERSED)
    assert not cells.codes[0, 3] & REVERSED
    assert cells.codes[0, 7] >> 8  # b ends and c begins in one cell: two hues, no gap
    plain = lane_cells(scene.store, scene.hues, columns, Look(colour=False))
    assert "".join(map(chr, plain.glyphs[0].tolist())).replace("▓", "█") == " ▐█▍  ████"


def test_instants_are_seen(make_trace: Callable[..., Any]) -> None:
    scene = open_scene(
        make_trace([(0, 0, 10, "a", "dma"), (0, 50, 0, "mark", "marker"), (0, 90, 10, "b", "dma")])
    )
    columns = column_pass(scene.store, np.array([0]), column_edges(0, 100, 10))
    text = "".join(
        map(chr, lane_cells(scene.store, scene.hues, columns, Look()).glyphs[0].tolist())
    )
    assert text == "█    ╷   █"


def test_runs_stay_within_the_budget(make_trace: Callable[..., Any]) -> None:
    rng = np.random.default_rng(2)
    spans = [
        (track, int(t), 3, f"{'abcdefgh'[rng.integers(8)]}op", "compute")
        for track in range(58)
        for t in np.sort(rng.choice(20_000, 2000, replace=False)) * 4
    ]
    scene = open_scene(make_trace(spans))
    view, rows = first_view(scene), scene.tree.rows(frozenset())
    bands, coarseness = draw_bands(scene, view, rows, 180, False, True, 0)
    assert coarseness == 1
    assert sum(run_count(b.codes) for b in bands) <= RUN_BUDGET
    spans = [
        (k, 20 * i + k % 7, 15, f"{'abcdefgh'[i * k % 8]}op", "compute")
        for k in range(58)
        for i in range(55)
    ]
    sparse = open_scene(make_trace(spans))
    bands, coarseness = draw_bands(sparse, first_view(sparse), rows, 180, False, True, 0)
    assert coarseness == 2
    assert sum(run_count(b.codes) for b in bands) <= RUN_BUDGET
    _, without_colour = draw_bands(scene, view, rows, 180, False, False, 0)
    assert without_colour == 0


def test_selection_and_names(make_trace: Callable[..., Any]) -> None:
    scene = open_scene(
        make_trace([(0, 0, 50, "字matmul\x1b[0m", "compute"), (0, 50, 50, "b", "dma")])
    )
    columns = column_pass(scene.store, np.array([0]), column_edges(0, 100, 40))
    cells = lane_cells(scene.store, scene.hues, columns, Look(selected=0))
    text = "".join(map(chr, cells.glyphs[0].tolist()))
    assert "?matmul␛[0m" in text
    assert (cells.codes[0, :20] & 0xFF == SELECTED).all()
    assert not (cells.codes[0, 20:] & 0xFF == SELECTED).any()


def test_hues_are_the_same_in_every_trace() -> None:
    assert hue_of("dma", "anything") == hue_of("dma", "else") == 2
    assert hue_of("compute", "matmul_17") == hue_of("compute", "matmul_4096[bf16]")
    hues = {
        hue_of("compute", n)
        for n in ("matmul", "softmax", "gelu", "add", "layer_norm", "exp", "mul", "copy")
    }
    assert len(hues) >= 3
    assert hues <= {1, 3, 4, 5, 6}


def test_styles_without_colour_have_none() -> None:
    for code in (0, 1, 17, 3 | 5 << 8, 2 | REVERSED):
        style = cell_style(code, False)
        assert style.color is None
        assert style.bgcolor is None


def test_narrow() -> None:
    assert narrow("a\x1b[31m字e\u0301") == "a␛[31m?e?"
