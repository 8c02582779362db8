"""How does a section read in a terminal? Its tables in 80 columns, no boxes, numbers right-aligned, one unit a column of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trnprof.analysis.sections.section import Column, Section, Table
from trnprof.analysis.text_layout import WIDTH, fit, time_unit, wrapped
from trnprof.tracer.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    printable,
)

UNKNOWN: Final = "–"
_NARROWEST: Final = 8


def section_lines(section: Section) -> list[str]:
    """A section as lines of at most WIDTH columns."""
    if section.nothing_to_say is not None:
        return wrapped(f"{section.title}: nothing to say, {section.nothing_to_say}", " ", "   ")
    lines = [f" {section.title}"]
    for shown in section.tables:
        lines += ["", *table_lines(shown)]
    for note in section.notes:
        lines += wrapped(note, " ", "   ")
    return lines


def table_lines(shown: Table) -> list[str]:
    """A table as lines: its title, a heading, its rows, and how many more there are."""
    cells = [cell_texts(column, shown.rows) for column in shown.columns]
    heads = [column.label for column in shown.columns]
    is_text = [column.form == "text" for column in shown.columns]
    widths = _widths(heads, cells, is_text)
    lines = [f" {shown.title}"] if shown.title else []
    for row in [heads, *(list(r) for r in zip(*cells, strict=True))]:
        placed = [
            fit(text, width).ljust(width) if left else text.rjust(width)
            for text, width, left in zip(row, widths, is_text, strict=True)
        ]
        lines.append((" " + "  ".join(placed)).rstrip())
    if shown.total_rows > len(shown.rows):
        lines.append(f" … {shown.total_rows - len(shown.rows):,} more")
    return lines


def cell_texts(column: Column, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values of a column as people read them, with their unit."""
    values = [row.get(column.key) for row in rows]
    if column.form == "ns":
        scale, unit, decimals = time_unit(max((abs(v) for v in values if v is not None), default=0))
        return [UNKNOWN if v is None else f"{v / scale:,.{decimals}f} {unit}" for v in values]
    return [UNKNOWN if v is None else _shown(column.form, v) for v in values]


def _shown(form: str, value: Any) -> str:
    match form:
        case "percent":
            return format_percent(value)
        case "bytes":
            return format_bytes(value)
        case "bytes_per_s":
            return format_rate(value, "B/s")
        case "flops_per_s":
            return format_rate(value, "FLOP/s")
        case "flops":
            return format_count(value)
        case "count":
            return f"{value:,.0f}"
        case "number":
            return f"{value:,.6g}"
    return printable(str(value))


def _widths(
    heads: Sequence[str], cells: Sequence[Sequence[str]], is_text: Sequence[bool]
) -> list[int]:
    """Numbers get what they need, texts share what is left."""
    widths = [max(map(len, [head, *column])) for head, column in zip(heads, cells, strict=True)]
    spare = (
        WIDTH
        - 1
        - 2 * (len(widths) - 1)
        - sum(w for w, left in zip(widths, is_text, strict=True) if not left)
    )
    texts = sorted((i for i, left in enumerate(is_text) if left), key=lambda i: widths[i])
    for done, index in enumerate(texts):
        share = max(_NARROWEST, spare // (len(texts) - done))
        widths[index] = min(widths[index], share)
        spare -= widths[index]
    return widths
