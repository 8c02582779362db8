"""Which JSON text keeps of each row what has no column of its own?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'


def attributes(frame: pl.DataFrame, columns: Iterable[str]) -> pl.Series:
    """One JSON object a row with the values of some columns that are not null, null for a row that has none.

    Args:
        frame: the rows.
        columns: those to keep; absent ones are skipped.
    """
    pieces = [
        _piece(name, frame[name])
        for name in columns
        if name in frame.columns and frame[name].null_count() < frame.height
    ]
    if not pieces:
        return pl.Series("attributes", [None], pl.String).new_from_index(0, frame.height)
    body = frame.select(pl.concat_str(pieces, separator=", ", ignore_nulls=True)).to_series()
    text = pl.when(body.str.len_bytes() > 0).then(pl.lit("{") + body + pl.lit("}"))
    return pl.select(text.alias("attributes")).to_series()


def beside(frame: pl.DataFrame, used: Sequence[str]) -> list[str]:
    """The columns of a frame that are not among those used."""
    taken = set(used)
    return [name for name in frame.columns if name not in taken]


def _piece(name: str, values: pl.Series) -> pl.Expr:
    """``"name": value`` for each row, null for null."""
    key = json.dumps(name)
    dtype = values.dtype
    if dtype == pl.Boolean or dtype.is_integer():
        value = pl.col(name).cast(pl.String)
    elif dtype.is_float():
        finite = pl.when(pl.col(name).is_finite()).then(pl.col(name))
        value = finite.cast(pl.String)
    elif dtype == pl.String and not values.str.contains(_NEEDS_ESCAPE).any():
        value = pl.lit('"') + pl.col(name) + pl.lit('"')
    else:
        known = (
            pl.col(name)
            if dtype == pl.String or dtype.is_nested()
            else pl.col(name).cast(pl.String)
        )
        encoded = pl.struct(known.alias("v")).struct.json_encode().str.slice(5).str.head(-1)
        value = pl.when(pl.col(name).is_not_null()).then(encoded)
    return pl.lit(f"{key}: ") + value
