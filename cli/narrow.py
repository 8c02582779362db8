"""How do tables and lines of text fit a narrow terminal? Columns are left out, rows become lists, lines are folded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final

_NARROWEST: Final = 20


def columns(widest: int, unknown: int | None = None) -> int:
    """How wide lines may be.

    Args:
        widest: more is never used.
        unknown: what stands for the width where there is neither a terminal nor COLUMNS; the widest by default.
    """
    found = shutil.get_terminal_size((widest if unknown is None else unknown, 24)).columns
    return max(min(widest, found), _NARROWEST)


def kept_columns(widths: Sequence[int], room: int, first_out: Sequence[int]) -> list[int]:
    """The columns that stay where there is not room for all.

    Args:
        widths: of all columns.
        room: for those that stay.
        first_out: which to leave out, one after the other.

    >>> kept_columns([8, 4, 6, 5], 14, [1, 3, 2])
    [0, 2]
    """
    kept = list(range(len(widths)))
    for column in first_out:
        if sum(widths[each] for each in kept) <= room:
            break
        kept.remove(column)
    return kept


def as_lists(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lists: the first cell of each row, and below it what is known, by the head of its column.

    Args:
        rows: the first one holds the heads.

    >>> as_lists([("", "a chip", "all"), ("HBM", "96 GB", "")])
    ['HBM', '  a chip: 96 GB']
    """
    heads, *body = rows
    lines = []
    for row in body:
        lines.append(": ".join(part for part in (heads[0].strip(), row[0].strip()) if part))
        for head, cell in zip(heads[1:], row[1:], strict=True):
            if cell.strip():
                lines.append(f"  {head.strip()}: {cell.strip()}")
    return lines
