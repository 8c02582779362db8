"""Which rows of integer columns are alike? Dense codes by hashing, in one compiled pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

Ints = NDArray[np.int64]


def distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Number the different rows of some columns in the order in which they first come.

    Args:
        columns: int64[rows] each.

    Returns:
        int64[rows]: the number of each row; int64[numbers]: the first row that has it.

    >>> codes, first = distinct([np.array([5, 5, 7, 5]), np.array([1, 2, 1, 1])])
    >>> codes.tolist(), first.tolist()
    ([0, 1, 2, 0], [0, 1, 2])
    """
    rows = len(columns[0])
    table = np.ascontiguousarray(np.stack(columns), np.int64)
    slots = np.full(1 << max(4, (2 * rows).bit_length()), -1, np.int64)
    codes = np.empty(rows, np.int64)
    first = np.empty(rows, np.int64)
    count = _number_rows(table, slots, codes, first)
    return codes, first[:count].copy()


def picked(words: pa.Array, codes: Ints, scratch: NDArray[np.int32]) -> pa.DictionaryArray:
    """A dictionary array of ``words[codes]`` that has only the words that are used.

    Args:
        words: all words, not null.
        codes: int64[rows], each an index of ``words``.
        scratch: int32[len(words)], all -1; so again afterwards.
    """
    indices = np.empty(len(codes), np.int32)
    used = np.empty(len(codes), np.int64)
    count = _compact(codes, scratch, indices, used)
    chosen = words.take(pa.array(used[:count]))
    return pa.DictionaryArray.from_arrays(pa.array(indices), chosen)


@compiled
def _number_rows(table: NDArray[np.int64], slots: Ints, codes: Ints, first: Ints) -> int:
    columns, rows = table.shape
    mask = np.uint64(len(slots) - 1)
    count = 0
    for row in range(rows):
        if row > 0:
            same = True
            for i in range(columns):
                if table[i, row] != table[i, row - 1]:
                    same = False
                    break
            if same:
                codes[row] = codes[row - 1]
                continue
        state = np.uint64(0x9E3779B97F4A7C15)
        for i in range(columns):
            state = (state ^ np.uint64(table[i, row])) * np.uint64(0xBF58476D1CE4E5B9)
            state ^= state >> np.uint64(29)
        at = state & mask
        while True:
            code = slots[at]
            if code < 0:
                slots[at] = count
                first[count] = row
                codes[row] = count
                count += 1
                break
            same = True
            for i in range(columns):
                if table[i, row] != table[i, first[code]]:
                    same = False
                    break
            if same:
                codes[row] = code
                break
            at = (at + np.uint64(1)) & mask
    return count


@compiled
def _compact(
    codes: Ints, scratch: NDArray[np.int32], indices: NDArray[np.int32], used: Ints
) -> int:
    count = 0
    for row in range(len(codes)):
        code = codes[row]
        index = scratch[code]
        if index < 0:
            index = count
            scratch[code] = count
            used[count] = code
            count += 1
        indices[row] = index
    for i in range(count):
        scratch[used[i]] = -1
    return count
