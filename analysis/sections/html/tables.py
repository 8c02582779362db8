"""How does a section look in HTML? Headings, tables whose cells carry what they are sorted by, notes; every text escaped."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from trnprof.analysis.sections.section import Column, Section, Table
from trnprof.analysis.sections.text import cell_texts
from trnprof.analysis.text_layout import fit
from trnprof.tracer.units import printable

LONGEST: Final = 160
"""Characters of a cell; longer ones are cut in the middle."""


def section_html(section: Section, charts: str) -> str:
    """A section with the charts that belong to it.

    Args:
        section: what it says.
        charts: their places, as HTML.
    """
    head = f'<section id="{_id(section.key)}"><h2>{text(section.title)}</h2>'
    if section.nothing_to_say is not None:
        said = f'<p class="quiet">Nothing to say, {text(section.nothing_to_say)}.</p>'
        return f"{head}{said}{charts}</section>"
    first, rest = section.tables[:1], section.tables[1:]
    is_led = bool(first) and len(first[0].rows) == 1 and not first[0].title
    lead = _tiles(first[0]) if is_led else ""
    tables = "".join(table_html(t) for t in (rest if is_led else section.tables))
    notes = "".join(f"<li>{text(note)}</li>" for note in section.notes)
    tail = f'<ul class="notes">{notes}</ul>' if notes else ""
    return f"{head}{lead}{charts}{tables}{tail}</section>"


def table_html(shown: Table) -> str:
    """A table; one of sentences alone is a list."""
    title = f"<h3>{text(shown.title)}</h3>" if shown.title else ""
    cells = [cell_texts(column, shown.rows) for column in shown.columns]
    if len(cells) == 1 and shown.columns[0].form == "text":
        items = "".join(f"<li>{text(cell, 10 * LONGEST)}</li>" for cell in cells[0])
        return f"{title}<ol>{items}</ol>"
    heads = "".join(_head(column) for column in shown.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(c, row.get(c.key), t) for c, t in zip(shown.columns, line, strict=True))}</tr>"
        for row, line in zip(shown.rows, zip(*cells, strict=True), strict=True)
    )
    more = shown.total_rows - len(shown.rows)
    rest = f'<p class="quiet">… {more:,} more</p>' if more > 0 else ""
    return (
        f'{title}<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{rest}"
    )


def text(value: str, longest: int = 20 * LONGEST) -> str:
    r"""Text as HTML, without control characters.

    >>> text("<b>&\x1b")
    '&lt;b&gt;&amp;␛'
    """
    return escape(fit(printable(value), longest))


def _tiles(shown: Table) -> str:
    """The one row of a table, large."""
    row = shown.rows[0]
    tiles = "".join(
        f"<div><dt>{text(c.label)}</dt><dd>{text(cell_texts(c, [row])[0])}</dd></div>"
        for c in shown.columns
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _head(column: Column) -> str:
    kind = "" if column.form == "text" else ' class="n"'
    return (
        f'<th scope="col"{kind}><button type="button">{text(column.label, LONGEST)}</button></th>'
    )


def _cell(column: Column, value: Any, shown: str) -> str:
    if column.form == "text":
        full = f' title="{text(str(value), 4 * LONGEST)}"' if len(shown) > LONGEST else ""
        return f"<td{full}>{text(shown, LONGEST)}</td>"
    by = "" if value is None else f' data-v="{value}"'
    return f'<td class="n"{by}>{text(shown, LONGEST)}</td>'


def _id(key: str) -> str:
    return escape(f"section-{key}")
