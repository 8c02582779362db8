"""What do columns of a table become in the events of a stage: names by group, integers with nulls, attributes, fingerprints?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.attribute_text import Text, json_objects
from trnprof.tracer.formats.tables import Ints, Rows


def spread(words: Sequence[str | None], groups: Ints) -> pa.DictionaryArray:
    """``words[groups]`` as a dictionary array; None becomes null.

    Args:
        words: one a group.
        groups: int64[rows], the group of each row.

    >>> spread(["b", None, "a"], np.array([2, 1, 0, 0])).to_pylist()
    ['a', None, 'b', 'b']
    """
    chosen = sorted({w for w in words if w is not None})
    index = {w: i for i, w in enumerate(chosen)}
    codes = np.array([-1 if w is None else index[w] for w in words], np.int32)[groups]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, mask=codes < 0), pa.array(chosen, pa.string())
    )


def per_group(groups: Ints, values: Sequence[int]) -> Ints:
    """``values[groups]`` as an array."""
    return np.asarray(values, np.int64)[groups]


def nullable(block: Rows, name: str) -> pa.Array:
    """An integer column with its nulls."""
    return pa.array(block.ints(name), mask=~block.has(name))


def attributes(
    block: Rows,
    names: Sequence[str],
    arrays: Mapping[str, Sequence[str]] | None = None,
    texts: Sequence[Text] = (),
) -> pa.Array:
    """What has no column, as JSON: integers that are not 0, integers that belong together, and texts.

    Args:
        block: rows.
        names: columns of integers; those that were not read are passed over.
        arrays: name of a member → the columns of its elements.
        texts: further members.
    """
    members = [(n, *block.numbers[n]) for n in names if n in block.numbers]
    shown = [(n, values, ok & (values != 0)) for n, values, ok in members]
    together = [
        (name, [block.ints(c) for c in columns], block.has(columns[0]))
        for name, columns in (arrays or {}).items()
    ]
    return json_objects(block.count, shown, texts, together)


def fingerprint(
    block: Rows, names: Sequence[str], words: pl.Series | None = None
) -> NDArray[np.uint64]:
    """A hash of these integers of each row, and of a text of it; never 0, which would mean that a row repeats nothing."""
    state = np.full(block.count, 0x9E3779B97F4A7C15, np.uint64)
    for name in names:
        state ^= block.ints(name).view(np.uint64)
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(31)
    if words is not None:
        state ^= words.hash(1).to_numpy()
    return state | np.uint64(1)
