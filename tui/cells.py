"""Which glyph and colour has each cell? From the columns of a pass, without painting over a gap.

Zoomed in, a cell that one event enters, leaves or fills is drawn to an eighth of a cell; every other cell shows the busy fraction as a
lower block, at least the smallest when anything is there, a full block only from 15/16 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from trnprof.tracer.units import printable
from trnprof.tui.columns import Columns
from trnprof.tui.palette import LABEL, MARKED, REVERSED, SELECTED, SHADE
from trnprof.tui.store import Int, Store

Codes = NDArray[np.int32]
Glyphs = NDArray[np.uint32]
RUN_BUDGET = 3000
"""Colour runs a frame; beyond it hues get coarser."""
TILE = 4
SPARSE = 3
"""Edges are drawn in rows with less than one event in this many columns; other rows show busy fractions throughout."""
LEVELS_OF_DETAIL = ("exact", "by 4 columns", "one a dense row", "one a row")
_COARSE_ABOVE = (np.inf, 1 / SPARSE, 1 / 8, 0.0)
"""From how many events a column on a row's hues are made coarser, by coarseness."""


def _points(text: str) -> Glyphs:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


_LEVELS = {False: _points(" ▁▂▃▄▅▆▇█"), True: _points(" .:-=+*#@")}
_LEFT = _points(" ▏▎▍▌▋▊▉█")
_RIGHT = _points("█▐▐▐▐▐▕▕▕")
"""By the eighth at which an event starts, where reversed colours cannot be had; never more than is busy, but for the last."""
_FULL, _OTHER, _CHOSEN, _INSTANT = (ord(c) for c in "█▓▒╷")
_ASCII_FULL, _ASCII_OTHER, _ASCII_CHOSEN, _ASCII_INSTANT = (ord(c) for c in "@%$|")


@dataclass(frozen=True)
class Cells:
    """Glyphs (code points) and colour codes (see palette), both (rows, columns)."""

    glyphs: Glyphs
    codes: Codes


@dataclass(frozen=True)
class Look:
    """How cells are drawn: ASCII only, with colour, which event is selected, how coarse the hues are (0 to 3, see LEVELS_OF_DETAIL)."""

    ascii: bool = False
    colour: bool = True
    selected: int = -1
    coarseness: int = 0


def levels(fraction: NDArray[np.float64], ascii: bool = False) -> Glyphs:
    """Glyphs of busy fractions: blank only for 0, full only from 15/16 on.

    >>> "".join(map(chr, levels(np.array([0.0, 1e-9, 0.5, 0.93, 0.94, 1.0]))))
    ' ▁▄▇██'
    """
    level = np.clip(np.floor(fraction * 8 + 0.5), 0, 8).astype(np.int64)
    level[(level == 0) & (fraction > 0)] = 1
    return _LEVELS[ascii][level]


def lane_cells(store: Store, hues: Codes, columns: Columns, look: Look) -> Cells:
    """The cells of tracks, one a row."""
    widths = np.diff(columns.edges)
    shown = columns.dominant >= 0
    label = (
        store.labels[np.maximum(columns.dominant, 0)]
        if store.event_count
        else np.zeros_like(columns.dominant)
    )
    hue = np.where(shown, hues[label] if len(hues) else 0, 0).astype(np.int32)
    starts = (columns.last - columns.first).sum(axis=1)
    coarse = starts >= len(widths) * _COARSE_ABOVE[look.coarseness]
    if coarse.any():
        hue[coarse] = _coarser(hue[coarse], columns.overlap[coarse], look.coarseness)
    fine = ~coarse[:, None]
    glyphs = levels(columns.busy / widths, look.ascii)
    glyphs[shown & (columns.busy == 0)] = _ASCII_INSTANT if look.ascii else _INSTANT
    full = (
        (columns.spill >= 0)
        & (columns.last == columns.first)
        & (columns.spill_end >= columns.edges[1:])
    )
    _paint_full(glyphs, hue, full, fine & (columns.dominant & 1 == 1), look)
    if not look.ascii:
        sparse = fine & (starts * SPARSE <= len(widths))[:, None]
        _paint_edges(glyphs, hue, store, hues, columns, sparse, look.colour)
    if look.selected >= 0:
        chosen = columns.dominant == look.selected
        chosen |= (columns.first <= look.selected) & (look.selected < columns.last)
        chosen |= columns.spill == look.selected
        right = chosen & (hue >> 8 & 0xFF > 0) & (columns.last - 1 == look.selected)
        hue[chosen & ~right] = (hue[chosen & ~right] & ~0xFF) | SELECTED | MARKED
        hue[right] = (hue[right] & 0xFF) | SELECTED << 8 | MARKED
        if not look.colour:
            glyphs[chosen & full] = _ASCII_CHOSEN if look.ascii else _CHOSEN
    _write_names(glyphs, hue, store, full & fine, columns.dominant)
    return Cells(glyphs, hue)


def group_cells(
    store: Store, hues: Codes, columns: Columns, members: list[slice], look: Look
) -> Cells:
    """The cells of closed groups, one a row: mean busy fraction, hue of the event with the largest share of a column."""
    widths = np.diff(columns.edges)
    glyphs = np.zeros((len(members), len(widths)), np.uint32)
    codes = np.zeros(glyphs.shape, np.int32)
    for row, part in enumerate(members):
        count = max(part.stop - part.start, 1)
        mean = columns.busy[part].sum(axis=0, dtype=np.float64) / (widths * float(count))
        glyphs[row] = levels(mean, look.ascii)
        if part.stop > part.start:
            winner = columns.overlap[part].argmax(axis=0)
            event = columns.dominant[part][winner, np.arange(len(widths))]
            share = columns.overlap[part].max(axis=0)
            hue = hues[store.labels[np.maximum(event, 0)]] if store.event_count else codes[row]
            codes[row] = np.where(mean > 0, hue, 0)
            if look.coarseness:
                codes[row] = _coarser(codes[row][None], share[None], look.coarseness)[0]
    return Cells(glyphs, codes)


def run_count(codes: Codes) -> int:
    """Colour runs of a block of cells."""
    return int((codes[:, 1:] != codes[:, :-1]).sum()) + len(codes)


def narrow(text: str) -> str:
    r"""Text of which every character takes one cell: control characters and wide or combining ones are replaced.

    >>> narrow("a字\x1b")
    'a?␛'
    """
    text = printable(text)
    return text if text.isascii() else "".join(c if cell_len(c) == 1 else "?" for c in text)


def _coarser(hue: Codes, overlap: Int, coarseness: int) -> Codes:
    """One hue for each tile of columns, or for each row: that of the largest share in it, blank cells included."""
    rows, width = hue.shape
    tile = TILE if coarseness == 1 else width
    tiles = -(-width // tile)
    padding = ((0, 0), (0, tiles * tile - width))
    share = np.pad(np.where(hue > 0, overlap, -1), padding, constant_values=-1)
    winner = share.reshape(rows, tiles, tile).argmax(axis=2)
    wide = np.pad(hue, padding).reshape(rows, tiles, tile)
    best = np.take_along_axis(wide, winner[:, :, None], axis=2)
    return np.broadcast_to(best, wide.shape).reshape(rows, -1)[:, :width].astype(np.int32)


def _paint_full(
    glyphs: Glyphs, hue: Codes, full: NDArray[np.bool_], odd: NDArray[np.bool_], look: Look
) -> None:
    odd = full & odd
    glyphs[full] = _ASCII_FULL if look.ascii else _FULL
    hue[odd] += SHADE
    if look.ascii or not look.colour:
        glyphs[odd] = _ASCII_OTHER if look.ascii else _OTHER


def _paint_edges(
    glyphs: Glyphs,
    hue: Codes,
    store: Store,
    hues: Codes,
    columns: Columns,
    sparse: NDArray[np.bool_],
    colour: bool,
) -> None:
    """Cells of sparse rows that exactly one event leaves, enters, or hands over to its neighbour."""
    begin, end = columns.edges[:-1], columns.edges[1:]
    widths = end - begin
    started = columns.last - columns.first
    leaves = sparse & (columns.spill >= 0) & (columns.spill_end < end)
    enters = sparse & (started == 1) & (columns.tail_end >= end)
    ends_at = np.clip(np.rint((columns.spill_end - begin) / widths * 8), 1, 7).astype(np.int64)
    starts_at = np.clip(np.rint((columns.tail_start - begin) / widths * 8), 0, 7).astype(np.int64)
    out = leaves & (started == 0)
    glyphs[out] = _LEFT[ends_at[out]]
    hue[out] += np.where(columns.spill[out] & 1, SHADE, 0).astype(np.int32)
    into = enters & (columns.spill < 0)
    glyphs[into] = _LEFT[starts_at[into]] if colour else _RIGHT[starts_at[into]]
    glyphs[into & (starts_at == 0)] = _FULL
    hue[into] += np.where((columns.last[into] - 1) & 1, SHADE, 0).astype(np.int32)
    if colour:
        hue[into & (starts_at > 0)] |= REVERSED
    meet = leaves & enters & (columns.spill_end == columns.tail_start)
    left, right = columns.spill[meet], columns.last[meet] - 1
    glyphs[meet] = _LEFT[ends_at[meet]] if colour else _FULL
    front = hues[store.labels[left]] + np.where(left & 1, SHADE, 0)
    back = hues[store.labels[right]] + np.where(right & 1, SHADE, 0)
    hue[meet] = (front | back << 8).astype(np.int32)


def _write_names(
    glyphs: Glyphs, hue: Codes, store: Store, full: NDArray[np.bool_], event: Int
) -> None:
    """Names into the events that are wide enough, a cell away from their left edge."""
    width = full.shape[1]
    owner = np.where(full, event, -1).ravel()
    begins = np.flatnonzero(
        np.append(True, owner[1:] != owner[:-1]) | (np.arange(owner.size) % width == 0)
    )
    lengths = np.diff(np.append(begins, owner.size))
    wide = (owner[begins] >= 0) & (lengths >= 5)
    flat_glyphs, flat_hue = glyphs.ravel(), hue.ravel()
    for begin, length in zip(begins[wide].tolist(), lengths[wide].tolist(), strict=True):
        points = _name_points(store.names[store.labels[owner[begin]]], length - 2)
        place = begin + 1 + max(0, length - 2 - len(points)) // 2
        flat_glyphs[place : place + len(points)] = points
        flat_hue[place : place + len(points)] |= LABEL


@lru_cache(maxsize=8192)
def _name_points(name: str, room: int) -> Glyphs:
    text = narrow(name)
    return _points(text if len(text) <= room else text[: room - 1] + "…")
