"""How do lines of text fit a terminal? Width, cut names, wrapped sentences, one unit for a column of times."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from trnprof.tracer.units import printable

WIDTH: Final = 80
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_TIE: Final = "\0"
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=%|[nµm]?s\b|[kMGTP]?B\b)")


def time_unit(longest_ns: float) -> tuple[float, str, int]:
    """One unit for a column: its scale in ns, its name, decimals."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if longest_ns >= scale:
            return scale, unit, 2
    return 1.0, "ns", 0


def fit(text: str, width: int) -> str:
    """At most ``width`` columns, cut in the middle."""
    text = printable(text)
    if len(text) <= width:
        return text
    left = (width - 1) // 2
    return f"{text[:left]}…{text[len(text) - (width - 1 - left) :]}"


def wrapped(text: str, first: str, then: str | None = None, width: int = WIDTH) -> list[str]:
    """Wrapped to a width; a number stays with its unit."""
    rest = first if then is None else then
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_TIE, text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]


def bar(share: float, width: int) -> str:
    """A bar of ``width`` columns at 1, in eighths of a column.

    >>> bar(0.5, 4), bar(0.28125, 4), bar(0.0, 4)
    ('██', '█▏', '')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
