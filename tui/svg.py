"""How does a frame look as a picture? Blocks become rectangles, so that no font can leave seams between cells."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from trnprof.tui.frame import Frame
from trnprof.tui.palette import BACKGROUND, FOREGROUND

_CELL_WIDTH, _CELL_HEIGHT, _FONT_SIZE = 8.4, 18.0, 14.0
_BASELINE, _MARGIN, _BAR = 13.5, 12.0, 30.0
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"
_BLOCKS = {
    **{c: (0.0, 1 - n / 8, 1.0, n / 8) for n, c in enumerate("▁▂▃▄▅▆▇█", 1)},
    **{c: (0.0, 0.0, n / 8, 1.0) for n, c in enumerate("▏▎▍▌▋▊▉", 1)},
    "▐": (0.5, 0.0, 0.5, 1.0),
    "▕": (0.875, 0.0, 0.125, 1.0),
    "■": (0.05, 0.22, 0.9, 0.42),
    "─": (0.0, 0.48, 1.0, 0.06),
}
"""Left, top, width, height in cells."""


def to_svg(frame: Frame, title: str) -> str:
    """A frame as an SVG document that needs nothing else: no font, no style sheet, no script."""
    width = frame.layout.width * _CELL_WIDTH + 2 * _MARGIN
    height = frame.layout.height * _CELL_HEIGHT + _BAR + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{_FONTS}" font-size="{_FONT_SIZE:g}" shape-rendering="crispEdges">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACKGROUND}"/>',
    ]
    for x, colour in ((18, "#ff5f57"), (36, "#febc2e"), (54, "#28c840")):
        parts.append(f'<circle cx="{x}" cy="15" r="5.5" fill="{colour}" shape-rendering="auto"/>')
    parts.append(
        f'<text x="{width / 2:g}" y="19.5" text-anchor="middle" fill="#8b98a8">{escape(title)}</text>'
    )
    texts: list[str] = []
    for y, row in enumerate(frame.rows):
        _row(row, _BAR + y * _CELL_HEIGHT, parts, texts)
    return "\n".join([*parts, *texts, "</svg>", ""])


def _row(row: list[Segment], y: float, boxes: list[str], texts: list[str]) -> None:
    x = _MARGIN
    for run in row:
        style = run.style or Style.null()
        front, back = _colours(style)
        width = cell_len(run.text) * _CELL_WIDTH
        if back != BACKGROUND and run.text:
            boxes.append(_rect(x, y, width, _CELL_HEIGHT, back))
        for block, group in groupby(run.text, key=lambda c: c if c in _BLOCKS else ""):
            part = "".join(group)
            if block:
                boxes += _boxes(part, x, y, front)
            else:
                texts += _texts(part, x, y, front, bool(style.bold))
            x += cell_len(part) * _CELL_WIDTH


def _boxes(blocks: str, x: float, y: float, colour: str) -> list[str]:
    """Equal blocks; those as wide as a cell are one rectangle."""
    left, top, wide, high = _BLOCKS[blocks[0]]
    y, height = y + top * _CELL_HEIGHT, high * _CELL_HEIGHT
    if wide == 1.0:
        return [_rect(x, y, len(blocks) * _CELL_WIDTH, height, colour)]
    return [
        _rect(x + (i + left) * _CELL_WIDTH, y, wide * _CELL_WIDTH, height, colour)
        for i in range(len(blocks))
    ]


def _texts(text: str, x: float, y: float, colour: str, bold: bool) -> list[str]:
    """Words that single spaces part, each group with its exact width."""
    weight = ' font-weight="bold"' if bold else ""
    return [
        f'<text x="{x + cell_len(text[: m.start()]) * _CELL_WIDTH:.1f}" y="{y + _BASELINE:.1f}" '
        f'textLength="{cell_len(m[0]) * _CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" '
        f'fill="{colour}"{weight}>{escape(m[0])}</text>'
        for m in re.finditer(r"\S+(?: \S+)*", text)
    ]


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{colour}"/>'
    )


def _colours(style: Style) -> tuple[str, str]:
    front = style.color.name if style.color else FOREGROUND
    back = style.bgcolor.name if style.bgcolor else BACKGROUND
    return (back, front) if style.reverse else (front, back)
