"""How does a sweep look: a table like that of nccl-tests, and a plot of bandwidth by size in plain characters or blocks?"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

from trnprof.cli.collective_document import algorithm_name, bus_bandwidth
from trnprof.cli.collective_text import (
    bound_text,
    common_lines,
    exact_bytes,
    heading,
    printable_lines,
)
from trnprof.cli.collectives import Setting
from trnprof.cli.narrow import columns, kept_columns
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.tracer.units import format_rate

ELEMENT_BYTES: Final = 4
"""nccl-tests counts floats unless told otherwise; here the type changes no time."""
_HEADS: Final = (
    "#       size",
    "         count",
    "    type",
    "        time",
    "   algbw",
    "   busbw",
    "  algorithm",
    "  bound",
)
_UNITS: Final = (
    "#        (B)",
    "    (elements)",
    "",
    "        (us)",
    "  (GB/s)",
    "  (GB/s)",
    "",
    "",
)
_WORDS: Final = (6, 7)
"""Columns that are as wide as what stands in them."""
_FIRST_OUT: Final = (2, 1, 4, 7, 6, 3)
"""Which columns to leave out, one after the other, where there is no room for all."""
_WIDEST: Final = 10_000
"""Of a table that no terminal limits."""
PLOT_ROWS: Final = 10
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_PLAIN: Final = " #"
_AXIS: Final = 11
"""Columns before the plot: a rate and the axis."""


def sweep_text(setting: Setting, rows: Sequence[Sequence[Outcome]]) -> str:
    """Head, table, what is estimated, and the plot."""
    outcomes = [row[0] for row in rows]
    first = outcomes[0]
    head = heading(setting, first).replace(f" of {exact_bytes(first.request.bytes)}", "", 1)
    room = columns(_WIDEST)
    parts = [*_folded(f"# {head}, {first.fidelity}", room), *table_lines(outcomes, room)]
    parts += [f"#{line[1:]}" for text in common_lines(setting) for line in text.split("\n")]
    plot = plot_lines(
        [outcome.request.bytes for outcome in outcomes],
        [bus_bandwidth(outcome) for outcome in outcomes],
        columns=columns(100, 80),
        has_blocks=_shows_blocks(),
    )
    return printable_lines("\n".join([*parts, "", *plot]))


def table_lines(outcomes: Sequence[Outcome], room: int = _WIDEST) -> list[str]:
    """A row a size: bytes, elements, type, µs, GB/s (1e9), algorithm, bound; where there is no room for all, fewer columns.

    Args:
        outcomes: of all sizes.
        room: columns of the terminal.
    """
    rows = [_row(outcome) for outcome in outcomes]
    widths = [len(head) for head in _HEADS]
    for column in _WORDS:
        widths[column] = max(len(row[column]) for row in (_HEADS, *rows))
    kept = kept_columns(widths, room, _FIRST_OUT)
    lines = []
    for row in (_HEADS, _UNITS, *rows):
        cells = [row[column].ljust(widths[column]) for column in kept]
        lines.append("".join(cells).rstrip())
    left_out = [_HEADS[column].strip() for column in _FIRST_OUT if column not in kept]
    if left_out:
        lines += _folded(f"# no room for {', '.join(left_out)}", room)
    return lines


def _row(outcome: Outcome) -> tuple[str, ...]:
    size = outcome.request.bytes
    rates = (outcome.algorithm_bandwidth_bytes_per_s, bus_bandwidth(outcome))
    return (
        f"{size:>12}",
        f"{size // ELEMENT_BYTES:>14}",
        f"{'float':>8}",
        f"  {_figure(outcome.time_ps / 1e6, 10)}",
        *(f"  {_figure(rate / 1e9, 6)}" for rate in rates),
        f"  {algorithm_name(outcome)}",
        f"  {bound_text(outcome)}",
    )


def _folded(text: str, room: int) -> list[str]:
    """Lines of a comment."""
    return textwrap.wrap(text, room, subsequent_indent="#   ", break_on_hyphens=False)


def plot_lines(
    sizes: Sequence[int], rates: Sequence[float], *, columns: int, has_blocks: bool
) -> list[str]:
    """A bar a size, its height the rate.

    Args:
        sizes: bytes.
        rates: bytes a second.
        columns: of the terminal.
        has_blocks: eighths of a character are at hand; else ``#``.
    """
    glyphs = _BLOCKS if has_blocks else _PLAIN
    top = max(rates, default=0.0)
    if top <= 0:
        return []
    width = max(1, min(4, (columns - _AXIS) // len(sizes)))
    shown = max(1, (columns - _AXIS) // width)
    sizes, rates = sizes[-shown:], rates[-shown:]
    levels = [round(rate / top * PLOT_ROWS * (len(glyphs) - 1)) for rate in rates]
    bar, gap = max(1, width - 1), " " * (width > 1)
    lines = ["bus bandwidth by size"]
    for row in range(PLOT_ROWS - 1, -1, -1):
        filled = [min(max(level - row * (len(glyphs) - 1), 0), len(glyphs) - 1) for level in levels]
        cells = "".join(glyphs[fill] * bar + gap for fill in filled)
        label = format_rate(top * (row + 1) / PLOT_ROWS, "B/s", 3) if row % 3 == 0 else ""
        lines.append(f"{label:>{_AXIS - 1}}{'│' if has_blocks else '|'}{cells}".rstrip())
    corner, dash = ("└", "─") if has_blocks else ("+", "-")
    lines.append(f"{'':>{_AXIS - 1}}{corner}{dash * (width * len(sizes))}")
    first, last = exact_bytes(sizes[0]), exact_bytes(sizes[-1])
    room = max(width * len(sizes) - len(first), len(last) + 1)
    lines.append(f"{'':>{_AXIS}}{first}{last:>{room}}")
    return lines


def _figure(value: float, width: int) -> str:
    """A number with two decimals where that fits."""
    text = f"{value:.2f}"
    return f"{text if len(text) <= width else f'{value:.0f}':>{width}}"


def _shows_blocks() -> bool:
    """Whether stdout is a terminal that shows UTF-8."""
    stream = sys.stdout
    if stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
