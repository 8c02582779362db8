"""Which rows of Neuron's schema are those of a JSON export, where names, units and types are older ones?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from trnprof.tracer.formats.neuron.schema import packaged_schema

UNITS_NS: Final = {
    "ps": (1, 1_000),
    "ns": (1, 1),
    "us": (1_000, 1),
    "µs": (1_000, 1),
    "ms": (1_000_000, 1),
    "s": (1_000_000_000, 1),
}
"""Nanoseconds in a unit, as a fraction."""


def whole(column: pl.Expr) -> pl.Expr:
    """The integer that a text says; what has a fraction is rounded."""
    text = column.str.strip_chars()
    exact = text.cast(pl.Int64, strict=False)
    real = text.cast(pl.Float64, strict=False)
    rounded = pl.when(real.is_finite() & (real.abs() < 9.2e18)).then(real).round()
    return pl.coalesce(exact, rounded.cast(pl.Int64, strict=False))


def real(column: pl.Expr) -> pl.Expr:
    """The number that a text says, null for none and for what is not finite."""
    number = column.str.strip_chars().cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def nanoseconds(column: pl.Expr, unit: str = "ns") -> pl.Expr:
    """Nanoseconds of a text in some unit, exact to the digits it has; null where it says no number.

    Args:
        column: text.
        unit: a key of UNITS_NS; another one is taken for ns.
    """
    many, part = UNITS_NS.get(unit, (1, 1))
    text = column.str.strip_chars()
    exact = text.cast(pl.Int64, strict=False)
    if part > 1:
        return (
            pl.when(exact.is_not_null())
            .then(_divided(exact, part))
            .otherwise(_divided(whole(column), part))
        )
    if many == 1:
        return whole(column)
    split = text.str.extract_groups(r"^(-?)(\d+)(?:\.(\d+))?$")
    before = split.struct.field("2").cast(pl.Int64, strict=False)
    after = (pl.lit("0.") + split.struct.field("3")).cast(pl.Float64, strict=False).fill_null(0.0)
    size = before * many + (after * many).round().cast(pl.Int64)
    signed = pl.when(split.struct.field("1") == "-").then(-size).otherwise(size)
    far = (real(column) * many).round().cast(pl.Int64, strict=False)
    return pl.coalesce(signed, far)


def _divided(value: pl.Expr, by: int) -> pl.Expr:
    """Rounded to the nearest, halves up."""
    return (value + by // 2).floordiv(by)


def as_table(rows: pl.DataFrame, table: str, names: Mapping[str, str], unit: str) -> pl.DataFrame:
    """Rows of a JSON export with the columns of a table of the schema.

    Args:
        rows: members as text.
        table: of the schema.
        names: older name → name in the schema; a row's own new name has precedence. Of several older names of one field, each row
            has the first that it names.
        unit: of times.

    Returns:
        Every column of the table, typed, null where the export has none; other members as they were.
    """
    fields = packaged_schema()[table]
    sources: dict[str, list[str]] = {name: [name] for name in fields if name in rows.columns}
    for old, new in names.items():
        if old in rows.columns and old != new:
            sources.setdefault(new, []).append(old)
    columns: list[pl.Expr] = []
    for name, field in fields.items():
        text = pl.coalesce(sources[name]) if name in sources else pl.lit(None, pl.String)
        if field.unit == "ns":
            value = nanoseconds(text, unit)
        elif field.dtype == pl.Int64():
            value = whole(text)
        elif field.dtype == pl.Float64():
            value = real(text)
        elif field.dtype == pl.Boolean():
            value = text.str.to_lowercase() == "true"
        else:
            value = text
        columns.append(value.alias(name))
    used = {old for olds in sources.values() for old in olds} | set(fields)
    return rows.select(*columns, *(name for name in rows.columns if name not in used))
