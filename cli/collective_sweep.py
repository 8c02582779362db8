"""How does a sweep look: a table like that of nccl-tests, and a plot of bandwidth by size in plain characters or blocks?"""

from __future__ import annotations

import os
import shutil
import sys
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
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.tracer.units import format_rate

ELEMENT_BYTES: Final = 4
"""nccl-tests counts floats unless told otherwise; here the type changes no time."""
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
    parts = [f"# {head}, {first.fidelity}", *table_lines(outcomes)]
    parts += [f"#{line[1:]}" for text in common_lines(setting) for line in text.split("\n")]
    plot = plot_lines(
        [outcome.request.bytes for outcome in outcomes],
        [bus_bandwidth(outcome) for outcome in outcomes],
        columns=min(shutil.get_terminal_size().columns, 100),
        has_blocks=_shows_blocks(),
    )
    return printable_lines("\n".join([*parts, "", *plot]))


def table_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A row a size: bytes, elements, type, µs, GB/s (1e9), algorithm, bound."""
    names = [algorithm_name(outcome) for outcome in outcomes]
    width = max(map(len, ("algorithm", *names)))
    lines = [
        f"#       size         count    type        time   algbw   busbw  {'algorithm':<{width}}  bound",
        "#        (B)    (elements)                (us)  (GB/s)  (GB/s)",
    ]
    for outcome, name in zip(outcomes, names, strict=True):
        size = outcome.request.bytes
        lines.append(
            f"{size:>12}  {size // ELEMENT_BYTES:>12}  {'float':>6}  {_figure(outcome.time_ps / 1e6, 10)}  "
            f"{_figure(outcome.algorithm_bandwidth_bytes_per_s / 1e9, 6)}  "
            f"{_figure(bus_bandwidth(outcome) / 1e9, 6)}  {name:<{width}}  "
            f"{bound_text(outcome)}"
        )
    return lines


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
