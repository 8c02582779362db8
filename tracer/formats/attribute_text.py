"""What is the JSON text of the attributes of many events, from columns?

One object an event, members in the order given, nulls left out; written by compiled loops, because one Python object an event costs more
than reading the whole profile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

Number = tuple[str, Ints, Bools]
"""A member whose values are integers: its name, the values, and where there is one."""
Triple = tuple[str, Sequence[Ints], Bools]
"""A member whose values are arrays of integers: its name, the columns of their elements, and where there is one."""
Text = tuple[str, pa.Array]
"""A member whose values are JSON texts already: its name and an Arrow string array."""


def json_objects(
    rows: int,
    numbers: Sequence[Number] = (),
    texts: Sequence[Text] = (),
    arrays: Sequence[Triple] = (),
) -> pa.Array:
    """JSON objects as an Arrow string array, null where an object would be empty.

    Args:
        rows: how many.
        numbers: members that are integers.
        texts: members that are JSON texts; they come last.
        arrays: members that are arrays of integers; they come first.

    >>> values, given = np.array([7, -3]), np.array([True, False])
    >>> json_objects(2, [("size", values, given)], arrays=[("grid", [values, values], given)]).to_pylist()
    ['{"grid":[7,7],"size":7}', None]
    """
    texts = [t for t in texts if t[1].null_count < len(t[1])]
    columns = _columns(arrays, numbers)
    if not rows or not (columns or texts):
        return pa.nulls(rows, pa.string())
    leads = [c[0] for c in columns] + [f",{json.dumps(name)}:" for name, _ in texts]
    lead = np.frombuffer("".join(leads).encode(), np.uint8)
    ends = np.cumsum([0, *(len(h.encode()) for h in leads)]).astype(np.int64)
    closes = np.array([c[1] for c in columns] + [False] * len(texts), np.bool_)
    values = np.empty((len(columns), rows), np.int64)
    given = np.zeros((len(leads), rows), np.bool_)
    for i, (_, _, column, has) in enumerate(columns):
        values[i], given[i] = column, has
    starts = np.zeros((len(texts), rows + 1), np.int64)
    parts = []
    shift = 0
    for i, (_, array) in enumerate(texts):
        given[len(columns) + i] = np.asarray(array.is_valid())
        offsets, data = _buffers(array)
        starts[i] = offsets + shift
        shift += len(data)
        parts.append(data)
    pool = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    offsets = np.zeros(rows + 1, np.int64)
    _measure(values, given, starts, ends, closes, offsets)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("attributes of one block exceed 2 GiB; give fewer rows at a time")
    out = np.empty(int(offsets[-1]), np.uint8)
    _write(values, given, starts, pool, lead, ends, closes, offsets, out)
    is_any = given.any(axis=0)
    bits = None if is_any.all() else pa.array(is_any).buffers()[1]
    buffers = [bits, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def quoted(texts: pl.Series) -> pa.Array:
    r"""Texts as JSON strings, nulls as they are: values for ``json_objects``.

    >>> quoted(pl.Series(['a "b"', None])).to_pylist()
    ['"a \\"b\\""', None]
    """
    encoded = pl.select(
        pl.when(texts.is_not_null()).then(
            pl.struct(v=pl.lit(texts)).struct.json_encode().str.slice(5).str.strip_suffix("}")
        )
    )
    return encoded.to_series().to_arrow().cast(pa.string())


def _columns(
    arrays: Sequence[Triple], numbers: Sequence[Number]
) -> list[tuple[str, bool, Ints, Bools]]:
    """What stands before each integer, whether it ends an array, the values, and where there is one."""
    found: list[tuple[str, bool, Ints, Bools]] = []
    for name, elements, has in arrays:
        if has.any():
            leads = [f",{json.dumps(name)}:["] + [","] * (len(elements) - 1)
            closes = [False] * (len(elements) - 1) + [True]
            found += [(*z, has) for z in zip(leads, closes, elements, strict=True)]
    found += [(f",{json.dumps(n)}:", False, v, has) for n, v, has in numbers if has.any()]
    return found


def _buffers(array: pa.Array) -> tuple[Ints, Bytes]:
    """Offsets from 0, and bytes, of a string array."""
    array = array.cast(pa.string()) if array.type != pa.string() else array
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, array.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    data = (
        np.frombuffer(data_buffer, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    )
    return offsets.astype(np.int64) - first, data


@compiled
def _digits(value: int) -> int:
    size = 1
    magnitude = np.uint64(value)
    if value < 0:
        size = 2
        magnitude = np.uint64(0) - magnitude
    while magnitude >= np.uint64(1000):
        magnitude //= np.uint64(1000)
        size += 3
    if magnitude >= np.uint64(100):
        return size + 2
    return size + 1 if magnitude >= np.uint64(10) else size


@compiled
def _measure(
    values: NDArray[np.int64],
    given: NDArray[np.bool_],
    starts: NDArray[np.int64],
    ends: Ints,
    closes: Bools,
    offsets: Ints,
) -> None:
    numbers = len(values)
    for row in range(given.shape[1]):
        size = 0
        for i in range(given.shape[0]):
            if given[i, row]:
                size += ends[i + 1] - ends[i]
                if i < numbers:
                    size += _digits(values[i, row])
                    if closes[i]:
                        size += 1
                else:
                    size += starts[i - numbers, row + 1] - starts[i - numbers, row]
        offsets[row + 1] = offsets[row] + (size + 1 if size else 0)


@compiled
def _write(
    values: NDArray[np.int64],
    given: NDArray[np.bool_],
    starts: NDArray[np.int64],
    pool: Bytes,
    lead: Bytes,
    ends: Ints,
    closes: Bools,
    offsets: Ints,
    out: Bytes,
) -> None:
    numbers = len(values)
    for row in range(given.shape[1]):
        at = offsets[row]
        if offsets[row + 1] == at:
            continue
        for i in range(given.shape[0]):
            if not given[i, row]:
                continue
            for j in range(ends[i], ends[i + 1]):
                out[at] = lead[j]
                at += 1
            if i < numbers:
                at = _put_number(out, at, values[i, row])
                if closes[i]:
                    out[at] = 93  # ]
                    at += 1
            else:
                for j in range(starts[i - numbers, row], starts[i - numbers, row + 1]):
                    out[at] = pool[j]
                    at += 1
        out[at] = 125  # }
        out[offsets[row]] = 123  # { in place of the first comma


@compiled
def _put_number(out: Bytes, at: int, value: int) -> int:
    """Write digits at ``at``; where they end."""
    end = at + _digits(value)
    magnitude = np.uint64(value)
    if value < 0:
        out[at] = 45
        magnitude = np.uint64(0) - magnitude
    place = end - 1
    while True:
        rest = magnitude // np.uint64(10)
        out[place] = np.uint8(48) + np.uint8(magnitude - rest * np.uint64(10))
        magnitude = rest
        place -= 1
        if magnitude == np.uint64(0):
            return end
