"""What is a column of a Neuron profile when it is stored with another type than its schema says?

Whole numbers come as text, reals or timestamps, flags as numbers, lists as lists or as their text. What can be read is read and told;
a column of which nothing can be read, and without which its table says nothing, is an error.
"""

from __future__ import annotations

from typing import Final

import polars as pl
import pyarrow as pa

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.schema import Field
from trnprof.tracer.ingest.audit import Audit

_EXACT_FLOAT: Final = 2.0**53
_NESTED: Final = (pl.List, pl.Array, pl.Struct)
_TRUE: Final = ("true", "1", "yes")
_FALSE: Final = ("false", "0", "no")


def coerced(column: pl.Series, field: Field, where: str, audit: Audit) -> pl.Series:
    """The column with the type that its field has.

    Args:
        column: as it is stored.
        field: what it should be.
        where: source, table and column, for findings.
        audit: where they go.

    Raises:
        ProfileError: it is a required time, and none of its values is a number.
    """
    wanted = field.dtype
    if column.dtype == wanted:
        return column
    if column.dtype == pl.Null:
        return column.cast(wanted)
    try:
        found = _read(column, wanted)
    except pl.exceptions.PolarsError:  # a type that polars converts to nothing, such as a map
        found = pl.Series(column.name, [None], wanted).new_from_index(0, len(column))
    lost = column.is_not_null() & found.is_null()
    count = int(lost.sum())
    if _is_foreign(column.dtype, wanted):
        audit.add(
            "foreign_type",
            "note",
            where,
            f"the column is stored as {column.dtype}, not as {wanted}; its values were converted",
            count=len(column) - column.null_count() - count,
            example=_first(column, ~lost & column.is_not_null()),
        )
    if count:
        example = _first(column, lost)
        if field.is_required and field.unit == "ns" and count == len(column):
            raise ProfileError(
                f"{where}: holds {column.dtype} such as {example!r}, not times in ns; export the profile again"
            )
        audit.add(
            "unreadable_values",
            "warning",
            where,
            f"values that are no {wanted} were left out",
            unreliable="figures that rest on this column",
            count=count,
            example=example,
        )
    if column.dtype.is_float() and wanted == pl.Int64:
        coarse = int((column.abs() > _EXACT_FLOAT).sum())
        audit.add(
            "rounded_times",
            "warning",
            where,
            "whole numbers beyond 2^53 are stored as reals: they were rounded when the file was made",
            unreliable="differences of such values, by up to some hundred units",
            count=coarse,
        )
    return found


def _is_foreign(stored: pl.DataType, wanted: pl.DataType) -> bool:
    """Whether a reader should be told: other widths of a number, and lists that are read as their text, are not worth it."""
    if wanted == pl.Int64:
        return not stored.is_integer()
    if wanted == pl.Float64:
        return not stored.is_numeric()
    return not (wanted == pl.String and isinstance(stored, (*_NESTED, pl.Categorical, pl.Enum)))


def _read(column: pl.Series, wanted: pl.DataType) -> pl.Series:
    if wanted == pl.String:
        return _as_text(column)
    if isinstance(column.dtype, (pl.Categorical, pl.Enum)):
        column = column.cast(pl.String)
    elif column.dtype == pl.Binary:
        column = _decoded(column)
    if wanted == pl.Boolean:
        return _as_flag(column)
    if wanted == pl.Float64:
        return _as_real(column)
    return _as_integer(column)


def _as_integer(column: pl.Series) -> pl.Series:
    stored = column.dtype
    if isinstance(stored, pl.Datetime) or stored == pl.Date:
        return column.cast(pl.Datetime("ns")).dt.epoch("ns")
    if isinstance(stored, pl.Duration):
        return column.dt.total_nanoseconds()
    if stored == pl.String:
        text = column.str.strip_chars()
        whole = text.cast(pl.Int64, strict=False)
        if (whole.is_null() & text.is_not_null()).any():
            real = _rounded(text.cast(pl.Float64, strict=False))
            return pl.select(pl.coalesce(whole, real)).to_series()
        return whole
    if stored.is_float():
        return _rounded(column)
    if isinstance(stored, _NESTED):
        return pl.Series(column.name, [None] * len(column), pl.Int64)
    return column.cast(pl.Int64, strict=False)


def _rounded(column: pl.Series) -> pl.Series:
    finite = pl.select(pl.when(column.is_finite()).then(column)).to_series()
    return finite.round().cast(pl.Int64, strict=False)


def _as_real(column: pl.Series) -> pl.Series:
    if isinstance(column.dtype, _NESTED) or column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), pl.Float64)
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    return column.cast(pl.Float64, strict=False)


def _as_flag(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        word = column.str.strip_chars().str.to_lowercase()
        known = word.is_in(_TRUE) | word.is_in(_FALSE)
        return pl.select(pl.when(known).then(word.is_in(_TRUE))).to_series()
    if column.dtype.is_numeric():
        return column != 0
    return pl.Series(column.name, [None] * len(column), pl.Boolean)


def _as_text(column: pl.Series) -> pl.Series:
    stored = column.dtype
    if isinstance(stored, pl.Struct):
        return column.struct.json_encode()
    if isinstance(stored, (pl.List, pl.Array)):
        wrapped = pl.DataFrame({"v": column}).to_struct("s").struct.json_encode()
        inner = wrapped.str.slice(5).str.head(-1)
        return pl.select(pl.when(column.is_not_null()).then(inner)).to_series()
    if stored == pl.Binary:
        return _decoded(column)
    if stored == pl.Boolean:
        return pl.select(
            pl.when(column).then(pl.lit("true")).when(~column).then(pl.lit("false"))
        ).to_series()
    return column.cast(pl.String, strict=False)


def _decoded(column: pl.Series) -> pl.Series:
    """Bytes as text, those that are no UTF-8 replaced."""
    encoded = column.to_arrow().cast(pa.binary()).dictionary_encode()
    words = [word.decode("utf-8", "replace") for word in encoded.dictionary.to_pylist()]
    text = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(words, pa.string()))
    return pl.Series(column.name, text.cast(pa.string()))


def _first(column: pl.Series, mask: pl.Series) -> str:
    values = column.filter(mask)
    return str(values[0])[:60] if len(values) else ""
