"""Do these columns fit their table, and what record batch do they make?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng import zlib_ng as zlib

from trnprof.tracer.errors import TraceError
from trnprof.tracer.schema import Column, Table


class ColumnError(TraceError, ValueError):
    """Columns that do not fit their table: unknown, missing, of another type or length, null where none may be."""


def to_batch(table: Table, columns: Mapping[str, Any], *, copy: bool = False) -> pa.RecordBatch:
    """The record batch of ``table`` with these columns.

    Args:
        table: whose columns these are.
        columns: column name → numpy array, sequence, Arrow array or polars Series, all of one length; nullable columns
            may be missing (all null).
        copy: copy numpy arrays, so that the caller may change them afterwards.

    Raises:
        ColumnError: an unknown or missing column, another length, a type that loses values, a null where none may be, or
            a value outside a closed vocabulary.
    """
    _check_names(table, columns)
    lengths = {name: len(values) for name, values in columns.items()}
    rows = next(iter(lengths.values()))
    for name, length in lengths.items():
        if length != rows:
            raise ColumnError(
                f"{table.name}.{name}: {length} values, but {next(iter(lengths))} has {rows}"
            )
    arrays = [
        _column(table, column, columns[column.name], copy)
        if column.name in columns
        else _nulls(column.type, rows)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=table.arrow)


def join_batches(table: Table, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all, one unified dictionary a column, no offsets.

    Raises:
        ColumnError: more distinct values than the dictionary's keys can number.
    """
    if len(batches) == 1:
        return normalized(batches[0])
    parts = one_table(table, batches).combine_chunks().to_batches()
    if len(parts) > 1:
        raise ColumnError(
            f"{table.name}: more than 2 GiB of text at once; append fewer rows at a time"
        )
    return normalized(parts[0]) if parts else to_batch(table, {c.name: [] for c in table.columns})


def one_table(table: Table, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """All rows, a chunk a batch and nothing copied, with one unified dictionary a column.

    Raises:
        ColumnError: more distinct values than the dictionary's keys can number.
    """
    rows = pa.Table.from_batches(batches, schema=table.arrow)
    try:
        return rows.unify_dictionaries()
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise ColumnError(
            f"{table.name}: more than 127 distinct values in a column of small dictionary keys ({reason})"
        ) from error


def normalized(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with every buffer starting at its first row, as it will be read back."""
    arrays = [_normalized(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def batch_crc32(batch: pa.RecordBatch) -> int:
    """CRC-32 over the rows, null counts and buffers (validity, data, dictionary) of a normalized batch."""
    crc = zlib.crc32(f"{batch.num_rows},{batch.num_columns}".encode())
    for column in batch.columns:
        crc = _crc(column, crc)
    return crc


def _check_names(table: Table, columns: Mapping[str, Any]) -> None:
    unknown = [name for name in columns if name not in table.names]
    if unknown:
        raise ColumnError(
            f"table {table.name} has no column {unknown[0]!r}; it has {', '.join(table.names)}"
        )
    missing = [c.name for c in table.columns if not c.nullable and c.name not in columns]
    if missing:
        raise ColumnError(f"table {table.name}: column {missing[0]!r} is missing")


def _column(table: Table, column: Column, values: Any, copy: bool) -> pa.Array:
    where = f"{table.name}.{column.name}"
    if isinstance(values, str | bytes):
        raise ColumnError(f"{where}: one string where a column of values is expected")
    try:
        array = _array(values, column.type, copy)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise ColumnError(f"{where}: values do not fit {column.type}: {reason}") from error
    if array.null_count and not column.nullable:
        row = pc.index(pc.is_null(array), True).as_py()
        raise ColumnError(f"{where}: null in row {row}, but this column may not be null")
    if column.domain:
        _check_domain(where, array, column.domain)
    return array


def _array(values: Any, type_: pa.DataType, copy: bool) -> pa.Array:
    if isinstance(values, pl.Series):
        values = values.to_arrow()
    elif isinstance(values, np.ndarray) and copy:
        values = values.copy()
    if isinstance(values, pa.ChunkedArray):
        values = values.unify_dictionaries().combine_chunks()
    if not isinstance(values, pa.Array):
        if isinstance(values, np.ndarray) and values.dtype.kind in "OUS":
            values = values.tolist()
        is_numeric = isinstance(values, np.ndarray)
        values = pa.array(values) if is_numeric else pa.array(values, type=type_)
    if pa.types.is_dictionary(type_):
        return _dictionary(values, type_)
    return values if values.type == type_ else values.cast(type_)


def _dictionary(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if not isinstance(array, pa.DictionaryArray):
        array = array.cast(type_.value_type).dictionary_encode()
    words = array.dictionary
    if words.null_count or pc.count_distinct(words).as_py() != len(words):
        array = array.cast(words.type).dictionary_encode()
        words = array.dictionary
    array = _without_negative_keys(array)
    if array.type == type_:
        return array
    return pa.DictionaryArray.from_arrays(
        array.indices.cast(type_.index_type), words.cast(type_.value_type)
    )


def _without_negative_keys(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Keys under nulls may be anything, but readers look at them."""
    keys = array.indices
    if not keys.null_count:
        return array
    type_ = keys.type.to_pandas_dtype()
    raw = np.frombuffer(keys.buffers()[1], type_)[keys.offset : keys.offset + len(keys)]
    if raw.min() >= 0:
        return array
    is_null = keys.is_null().to_numpy(zero_copy_only=False)
    safe = pa.array(np.where(is_null, 0, raw).astype(type_), mask=is_null)
    return pa.DictionaryArray.from_arrays(safe, array.dictionary)


def _check_domain(where: str, array: pa.DictionaryArray, domain: tuple[str, ...]) -> None:
    foreign = [i for i, word in enumerate(array.dictionary.to_pylist()) if word not in domain]
    if not foreign:
        return
    used = set(pc.unique(array.indices).to_pylist())
    for index in foreign:
        if index in used:
            word = array.dictionary[index].as_py()
            raise ColumnError(f"{where}: unknown value {word!r}; known are {', '.join(domain)}")


def _nulls(type_: pa.DataType, rows: int) -> pa.Array:
    if not pa.types.is_dictionary(type_):
        return pa.nulls(rows, type_)
    return pa.DictionaryArray.from_arrays(
        pa.nulls(rows, type_.index_type), pa.array([], type_.value_type)
    )


def _normalized(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        indices, words = _normalized(array.indices), _normalized(array.dictionary)
        if indices is array.indices and words is array.dictionary:
            return array
        return pa.DictionaryArray.from_arrays(indices, words)
    if array.offset == 0 and _first_offset(array) == 0:
        return array
    return pa.concat_arrays([array, array.slice(0, 0)])


def _first_offset(array: pa.Array) -> int:
    if not (pa.types.is_string(array.type) or pa.types.is_list(array.type)) or not len(array):
        return 0
    return int(np.frombuffer(array.buffers()[1], np.int32, 1)[0])


def _crc(array: pa.Array, crc: int) -> int:
    rows = len(array)
    crc = zlib.crc32(f"{rows},{array.null_count}".encode(), crc)
    if isinstance(array, pa.DictionaryArray):
        return _crc(array.dictionary, _crc(array.indices, crc))
    if not rows:
        return crc
    buffers = array.buffers()
    if array.null_count:
        crc = _crc_bytes(buffers[0], (rows + 7) // 8, crc)
    type_ = array.type
    if pa.types.is_string(type_) or pa.types.is_list(type_):
        crc = _crc_bytes(buffers[1], (rows + 1) * 4, crc)
        if pa.types.is_list(type_):
            first, last = np.frombuffer(buffers[1], np.int32, rows + 1)[[0, -1]].tolist()
            return _crc(_normalized(array.values.slice(first, last - first)), crc)
        return _crc_bytes(buffers[2], int(np.frombuffer(buffers[1], np.int32, rows + 1)[-1]), crc)
    return _crc_bytes(buffers[1], (rows * type_.bit_width + 7) // 8, crc)


def _crc_bytes(buffer: pa.Buffer | None, size: int, crc: int) -> int:
    return crc if buffer is None else zlib.crc32(memoryview(buffer)[: max(size, 0)], crc)
