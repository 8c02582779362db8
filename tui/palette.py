"""Which colour has what? Okabe and Ito's hues, which colour-blind people tell apart, by category and name.

A cell's colour is a code: foreground | background << 8 | flags. Codes 1 to 8 are hues, 9 to 16 the same hues darker (every other event
of a lane, so that neighbours of one name stay apart), 17 the selection.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.style import Style

BACKGROUND: Final = "#10141a"
PANEL: Final = "#1b222c"
FOREGROUND: Final = "#dfe5ec"

_HUES: Final = {
    1: "#e69f00",  # orange
    2: "#56b4e9",  # sky blue
    3: "#12a67c",  # bluish green, a little lighter than in the paper: the background is dark
    4: "#f0e442",  # yellow
    5: "#3b82c4",  # blue, lighter likewise
    6: "#e8702a",  # vermilion, lighter likewise
    7: "#cc79a7",  # reddish purple
    8: "#8d96a0",  # grey
}
SHADE: Final = 8
SELECTED: Final = 17
REVERSED: Final = 1 << 16
LABEL: Final = 1 << 17
CURSOR: Final = 1 << 18
MARKED: Final = 1 << 19
"""Flags: foreground and background swapped; text on the hue; the cell under the cursor; of the selected event."""

CATEGORY_HUES: Final = {"dma": 2, "collective": 7, "sync": 8, "marker": 8, "memory": 4}
COUNTER_HUE: Final = 16
NAME_HUES: Final = (1, 3, 5, 6, 4)
"""Hues of the other categories, by a hash of the name."""

_TEXT: Final = {
    "plain": Style(color=FOREGROUND),
    "bold": Style(color="#ffffff", bold=True),
    "dim": Style(color="#8b98a8"),
    "faint": Style(color="#4a5667"),
    "accent": Style(color="#56b4e9", bold=True),
    "warning": Style(color="#e69f00"),
    "bar": Style(color=FOREGROUND, bgcolor=PANEL),
    "bar_bold": Style(color="#ffffff", bgcolor=PANEL, bold=True),
    "bar_dim": Style(color="#8b98a8", bgcolor=PANEL),
    "bar_warning": Style(color="#e69f00", bgcolor=PANEL),
    "map": Style(color="#4f7396"),
    "map_window": Style(color="#8fd0ff", bgcolor="#22384d"),
    "cursor": Style(color="#ffffff", bgcolor="#2b3a4c", bold=True),
}
_COLOURLESS: Final = {"bold", "accent", "bar_bold", "cursor", "map_window"}


def text_style(name: str, colour: bool = True) -> Style:
    """The style of a kind of text; without colour only bold is left, and reverse for the cursor."""
    if colour:
        return _TEXT[name]
    return Style(bold=name in _COLOURLESS, reverse=name == "cursor")


@lru_cache(maxsize=4096)
def cell_style(code: int, colour: bool = True) -> Style:
    """The style of a cell's code."""
    flags = code >> 16 << 16
    reverse = bool(flags & REVERSED) != bool(flags & CURSOR)
    marked = bool(flags & MARKED)
    if not colour:
        label = bool(flags & LABEL)
        return Style(
            reverse=reverse or None, bold=marked or None, underline=(marked and label) or None
        )
    front, back = _hex(code & 0xFF), _hex(code >> 8 & 0xFF)
    if flags & LABEL:
        return Style(color=_contrast(front), bgcolor=front, bold=True, reverse=reverse or None)
    if flags & CURSOR and not code & 0xFFFF:
        return Style(bgcolor="#5b6b80")
    return Style(color=front, bgcolor=back, reverse=reverse or None)


def hue_of(category: str, name: str) -> int:
    """The hue of an event, 1 to 8: of its category, or else of its name's group, the same in every trace.

    >>> hue_of("dma", "load_w"), hue_of("compute", "matmul_1") == hue_of("compute", "matmul_27")
    (2, True)
    """
    return int(hues_of(pl.Series([name]), (category,))[0])


def hues_of(names: pl.Series, categories: tuple[str, ...]) -> NDArray[np.int32]:
    """The hue of each label; names are grouped by what stands before a digit or a bracket."""
    group = names.cast(pl.String).str.extract(r"^([^\d(\[<]+)").str.strip_chars_end(" _-.:#")
    group = group.fill_null("")
    unique = group.unique()
    hashed = pl.Series(
        [NAME_HUES[zlib.crc32(g.encode()) % len(NAME_HUES)] for g in unique], dtype=pl.Int32
    )
    by_name = group.replace_strict(unique, hashed, return_dtype=pl.Int32).to_numpy()
    fixed = np.array([CATEGORY_HUES.get(c, 0) for c in categories], np.int32)
    return np.where(fixed > 0, fixed, by_name).astype(np.int32)


def _hex(index: int) -> str | None:
    if index == 0:
        return None
    if index == SELECTED:
        return "#ffffff"
    colour = _HUES[(index - 1) % SHADE + 1]
    if index <= SHADE:
        return colour
    parts = [int(colour[i : i + 2], 16) * 78 // 100 for i in (1, 3, 5)]
    return "#" + "".join(f"{p:02x}" for p in parts)


def _contrast(colour: str | None) -> str:
    if colour is None:
        return FOREGROUND
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#0b0e12" if red * 299 + green * 587 + blue * 114 > 95_000 else "#ffffff"
