"""What does a slice say about itself when it is selected?

Columns become typed debug annotations: integers, doubles, truth values and interned strings. What comes from the operation is
encoded once an operation and shared by its events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.perfetto_export.encode import (
    Arguments,
    Pieces,
    Texts,
    annotation_prefix,
    encode_annotations,
    no_pieces,
    no_texts,
)
from trnprof.tracer.formats.perfetto_export.intern import (
    ARGUMENT_NAMES,
    ARGUMENT_STRINGS,
    Interning,
)

EVENT_ARGUMENTS: Final = (
    "step",
    "dtype",
    "flops",
    "is_transpose",
    "bytes",
    "source_memory",
    "target_memory",
    "descriptor_bytes",
    "ready_ns",
    "wait_reason",
)
"""Columns of ``events`` that become arguments of the same name; ``ready_ns`` is on the axis of the file."""

TEXT: Final = "attributes"
"""Column of ``events`` that is text of its own on every row."""


class OperationArguments:
    """Arguments that come from the operation of an event: op, module, phase, shapes, source."""

    def __init__(self, ops: pl.LazyFrame, interning: Interning) -> None:
        rows = ops.sort("op_id").collect()
        self._op_id = rows["op_id"].to_numpy()
        line = pl.lit(":") + pl.col("source_line").cast(pl.String)
        columns = rows.select(
            op="name",
            module="module_path",
            phase="phase",
            shapes="input_shapes",
            source=pl.col("source_file") + line.fill_null(""),
        )
        self._pieces = argument_pieces(columns.to_dict(as_series=True), interning)

    def of(self, op_ids: pl.Series) -> Pieces:
        """The arguments of each of n events; none where its op_id is null or unknown."""
        if not self._op_id.size:
            return no_pieces(op_ids.len())
        wanted = op_ids.fill_null(0).to_numpy()
        row = np.minimum(np.searchsorted(self._op_id, wanted), self._op_id.size - 1)
        known = (self._op_id[row] == wanted) & op_ids.is_not_null().to_numpy()
        low, high = self._pieces.low[row], self._pieces.high[row]
        return Pieces(self._pieces.data, np.where(known, low, 0), np.where(known, high, 0))


def argument_pieces(
    columns: Mapping[str, pl.Series], interning: Interning, texts: Texts | None = None
) -> Pieces:
    """Debug annotations of n rows.

    Args:
        columns: argument name to n values; nulls are left out.
        interning: takes the names and strings.
        texts: one more argument, not interned.
    """
    used = {name: c for name, c in columns.items() if c.null_count() < c.len()}
    rows = max((c.len() for c in columns.values()), default=0)
    if not used and texts is None:
        return no_pieces(rows)
    prefixes, fixed = [], np.zeros(len(used), np.bool_)
    values = np.zeros((len(used), rows), np.uint64)
    present = np.zeros((len(used), rows), np.bool_)
    names = interning.iids(ARGUMENT_NAMES, list(used))
    for row, (name, column) in enumerate(zip(names, used.values(), strict=True)):
        field, values[row], present[row] = _bits(column, interning)
        prefixes.append(annotation_prefix(name, field))
        fixed[row] = field == "double_value"
    starts = np.cumsum([0, *map(len, prefixes)])
    data = np.frombuffer(b"".join(prefixes), np.uint8)
    return encode_annotations(
        Arguments(data, starts, fixed, values, present), texts or no_texts(rows)
    )


def text_argument(name: str, column: pl.Series, interning: Interning) -> Texts | None:
    """One argument of n rows that holds text; None if all are null or empty."""
    if column.null_count() == column.len():
        return None
    text = column.fill_null("").str.replace_all("\0", "␀", literal=True).rechunk()
    array = text.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    prefix = annotation_prefix(interning.iids(ARGUMENT_NAMES, [name])[0], "string_value")
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Texts(np.frombuffer(prefix, np.uint8), content, starts)


def _bits(
    column: pl.Series, interning: Interning
) -> tuple[str, NDArray[np.uint64], NDArray[np.bool_]]:
    """Field of DebugAnnotation, 64 bits of each value, and whether it is not null."""
    present = column.is_not_null().to_numpy()
    if column.dtype == pl.Boolean:
        return "bool_value", column.fill_null(False).cast(pl.UInt64).to_numpy(), present
    if column.dtype.is_integer():
        integers = column.cast(pl.Int64).fill_null(0).to_numpy()
        return "int_value", integers.view(np.uint64), present
    if column.dtype.is_float():
        doubles = column.cast(pl.Float64).fill_null(0).to_numpy()
        return "double_value", doubles.view(np.uint64), present
    return "string_value_iid", *interning.column(ARGUMENT_STRINGS, column)
