"""How is one line of the screen put together? Styled runs of known width, fit for any terminal."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment

from trnprof.tracer.units import printable
from trnprof.tui.palette import text_style

_ASCII: Final = str.maketrans(
    {
        "▾": "v", "▸": ">", "µ": "u", "…": ".", "·": "|", "─": "-", "–": "-", "×": "x", "→": ">", "▼": "v", "╷": "|", "│": "|",
        "█": "#", "■": "#", "←": "<", "↑": "^", "↓": "v", "␛": "?",
    }
)  # fmt: skip


def fit(text: str, width: int) -> str:
    """Text in exactly ``width`` cells: padded, or cut with an ellipsis.

    >>> fit("tensor", 8), fit("tensor", 4)
    ('tensor  ', 'ten…')
    """
    if width <= 0:
        return ""
    text = printable(text)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def fit_end(text: str, width: int) -> str:
    """The same, but of a text that is too long the end is kept.

    >>> fit_end("host0 / core 0", 8)
    '… core 0'
    """
    text = printable(text)
    while cell_len(text) > width and len(text) > 1:
        text = "…" + text[2:]
    return fit(text, width)


class Line:
    """Runs of one line, at most ``width`` cells."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self.colour = colour
        self.used = 0
        self.runs: list[Segment] = []

    def add(self, text: str, style: str = "plain", width: int | None = None) -> Line:
        """Append text, in ``width`` cells if given, never beyond the line's end."""
        room = self.width - self.used
        text = fit(text, min(width, room)) if width is not None else printable(text)
        if cell_len(text) > room:
            text = fit(text, room)
        if text:
            self.runs.append(Segment(text, text_style(style, self.colour)))
            self.used += cell_len(text)
        return self

    def extend(self, runs: list[Segment], width: int) -> Line:
        """Append runs that are ``width`` cells wide."""
        self.runs += runs
        self.used += width
        return self

    def end(self, style: str = "plain") -> list[Segment]:
        """The runs, padded to the width."""
        return self.add("", style, self.width - self.used).runs


def to_ascii(runs: list[Segment]) -> list[Segment]:
    """The runs with ASCII characters only, as wide as before; what has no likeness becomes ``?``."""
    result = []
    for run in runs:
        if run.text.isascii():
            result.append(run)
            continue
        likeness = "".join(_one(c) for c in run.text)
        result.append(Segment(likeness, run.style))
    return result


def _one(character: str) -> str:
    if character.isascii():
        return character
    text = character.translate(_ASCII)
    return (text if text.isascii() else "?")[:1].ljust(cell_len(character), "?")[
        : cell_len(character)
    ]
