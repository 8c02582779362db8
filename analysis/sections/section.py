"""What is a section of a report? Tables of rows with their units, which text, JSON, Markdown and HTML show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

Form = Literal[
    "text", "ns", "bytes", "percent", "count", "bytes_per_s", "flops", "flops_per_s", "number"
]
"""How a column is shown: ``percent`` is a fraction 0–1 of what the label says, ``ns`` a time in the unit of its column's longest."""

SIGNIFICANT_DIGITS: Final = 12


@dataclass(frozen=True)
class Subject:
    """What sections are asked about.

    Attributes:
        trace: the trace.
        scope: of its device tracks, all windows; None if only the host was recorded.
        step: the step to look at; None for all of them together.
        rank: the rank to look at; None for all.
        report: of these (``report.build_report``), where somebody has made it already.
    """

    trace: Trace
    scope: Scope | None
    step: int | None = None
    rank: int | None = None
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its values in JSON (with the unit), the heading people read, and how values are shown."""

    key: str
    label: str
    form: Form = "text"


@dataclass(frozen=True)
class Table:
    """Rows that belong together.

    Attributes:
        key: its name in JSON.
        title: what people read above it; empty if the section's title says it.
        columns: in order.
        rows: each with the keys of the columns, values null where not known; further keys are in JSON only.
        total_rows: how many there would be, if ``rows`` has only the first.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    total_rows: int


@dataclass(frozen=True)
class Section:
    """An answer.

    Attributes:
        key: its name in JSON and of ``--section``.
        title: what people read.
        tables: what is known.
        notes: what to know about it: what is inferred, what was left out.
        nothing_to_say: "because …", where there is no table.
    """

    key: str
    title: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    nothing_to_say: str | None = None


def silent(key: str, title: str, because: str) -> Section:
    """A section that has nothing to say, with the reason ("because …")."""
    return Section(key, title, nothing_to_say=because)


def table(
    key: str, title: str, columns: Sequence[Column], rows: pl.DataFrame, top: int | None = None
) -> Table:
    """The first rows of a frame as a table; floats to SIGNIFICANT_DIGITS, categories as text.

    Args:
        key: name in JSON.
        title: for people.
        columns: those that people see; the frame may have more.
        rows: in the order to show.
        top: at most so many of them.
    """
    shown = rows if top is None else rows.head(top)
    plain = shown.with_columns(pl.selectors.by_dtype(pl.Categorical, pl.Enum).cast(pl.String))
    rounded = tuple({k: _rounded(v) for k, v in row.items()} for row in plain.iter_rows(named=True))
    return Table(key, title, tuple(columns), rounded, rows.height)


def as_json(section: Section) -> dict[str, Any]:
    """A section as JSON has it: title, notes, and by key the rows of each table; or nothing_to_say."""
    if section.nothing_to_say is not None:
        return {"title": section.title, "nothing_to_say": section.nothing_to_say}
    tables = {t.key: [dict(row) for row in t.rows] for t in section.tables}
    return {"title": section.title, **tables, "notes": list(section.notes)}


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
