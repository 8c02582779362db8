"""How does the answer of a query look? As a table of text, CSV or JSON."""

from __future__ import annotations

import json
from typing import Final

import polars as pl

from trnprof.analysis.text_layout import fit
from trnprof.tracer.units import printable

CELL: Final = 60
"""Characters of a cell of a table; longer ones are cut in the middle, never in CSV or JSON."""
MAX_ROWS: Final = 200
"""Of a table; the other formats have all."""


def as_table(answer: pl.DataFrame) -> str:
    """Columns side by side, numbers to the right, null as –; the first MAX_ROWS rows."""
    shown = answer.head(MAX_ROWS)
    columns = [[printable(c.name), *map(_cell, c.to_list())] for c in shown.get_columns()]
    widths = [max(map(len, column)) for column in columns]
    is_number = [dtype.is_numeric() for dtype in answer.dtypes]
    lines = [
        "  ".join(
            cell.rjust(w) if right else cell.ljust(w)
            for cell, w, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]
    more = answer.height - shown.height
    return "\n".join([*lines, *([f"… {more:,} more rows: --format csv has all"] if more else [])])


def as_csv(answer: pl.DataFrame) -> str:
    """With a header; lists and structs as JSON."""
    nested = [n for n, t in answer.schema.items() if t.is_nested()]
    flat = answer.with_columns(
        pl.Series(n, [None if v is None else json.dumps(v) for v in answer[n].to_list()], pl.String)
        for n in nested
    )
    return flat.write_csv()


def as_json(answer: pl.DataFrame) -> str:
    """A list of objects, a row each; what is no number in JSON is null."""
    finite = answer.with_columns(
        pl.when(pl.selectors.float().is_finite()).then(pl.selectors.float()).name.keep()
    )
    return json.dumps(finite.to_dicts(), default=str, indent=None, ensure_ascii=False)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.9g}"
    return fit(printable(str(value)), CELL)
