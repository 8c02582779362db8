"""How does a section read in Markdown? Headings, and tables with numbers to the right; names cannot break out of their cell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trnprof.analysis.sections.section import Section, Table
from trnprof.analysis.sections.text import cell_texts
from trnprof.analysis.text_layout import fit

LONGEST: Final = 200
"""Characters of a cell; longer ones are cut in the middle."""
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]|#~!])")


def markdown(title: str, sections: Iterable[Section]) -> str:
    """A document: its title, and sections under headings."""
    parts = [f"# {escaped(title)}", *("\n\n".join(_section(s)) for s in sections)]
    return "\n\n".join(parts) + "\n"


def escaped(text: str, longest: int = 10 * LONGEST) -> str:
    r"""Text that Markdown shows as it is.

    >>> escaped("_foreach_add_ <b> a|b")
    '\\_foreach\\_add\\_ &lt;b&gt; a\\|b'
    """
    plain = " ".join(fit(text, longest).split())
    safe = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", safe)


def _section(section: Section) -> list[str]:
    lines = [f"## {escaped(section.title)}"]
    if section.nothing_to_say is not None:
        return [*lines, f"Nothing to say, {escaped(section.nothing_to_say)}."]
    for shown in section.tables:
        lines += [*([f"### {escaped(shown.title)}"] if shown.title else []), _table(shown)]
    notes = "\n".join(f"- {escaped(note)}" for note in section.notes)
    return [*lines, notes] if notes else lines


def _table(shown: Table) -> str:
    cells = [cell_texts(column, shown.rows) for column in shown.columns]
    rows = [
        [column.label for column in shown.columns],
        *(list(row) for row in zip(*cells, strict=True)),
    ]
    lines = [f"| {' | '.join(escaped(cell, LONGEST) for cell in row)} |" for row in rows]
    rule = ["---" if column.form == "text" else "---:" for column in shown.columns]
    lines.insert(1, f"| {' | '.join(rule)} |")
    more = shown.total_rows - len(shown.rows)
    return "\n".join(lines) + (f"\n\n… {more:,} more" if more > 0 else "")
