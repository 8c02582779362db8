"""How do CPU operators of a PyTorch profile become rows of ``ops``, when what encloses them is only known at the end?

Their names, shapes and datatypes go to a file of the stage's directory, and come back when the rest is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from trnprof.tracer.files import writing
from trnprof.tracer.formats.kineto.messages import dtype_name
from trnprof.tracer.ingest.stage import Stage

_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_SCHEMA: Final = pa.schema([("name", _WORD), ("input_shapes", _WORD), ("dtypes", _WORD)])
_KINDS: Final = pa.array(["aten"])
_PHASES: Final = pa.array(["backward", "optimizer"])
_FILE: Final = "kineto_ops.arrows"
_MOST_TEXT: Final = 1 << 12
"""Longer lists of shapes are cut: operators on lists of thousands of tensors."""


@dataclass(frozen=True)
class Surroundings:
    """What encloses each operator.

    Attributes:
        parent: operator, -1: none.
        module: number of its module's path in ``paths``, -1: none.
        source: number of the line that called it in ``lines``, -1: none.
        is_backward: whether the autograd engine called it.
        is_optimizer: whether an optimizer did.
        paths: of modules.
        lines: (file, line).
    """

    parent: NDArray[np.int32]
    module: NDArray[np.int32]
    source: NDArray[np.int32]
    is_backward: NDArray[np.bool_]
    is_optimizer: NDArray[np.bool_]
    paths: list[str]
    lines: list[tuple[str | None, int | None]]


class OpSpool:
    """Operators on their way."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._path = stage.directory / _FILE
        self._sink: pa.OSFile | None = None
        self._stream: ipc.RecordBatchStreamWriter | None = None

    def add(
        self, names: pa.DictionaryArray, shapes: pa.DictionaryArray, dtypes: pa.DictionaryArray
    ) -> None:
        """Append operators."""
        with writing(self._stage.directory):
            if self._stream is None:
                self._sink = pa.OSFile(str(self._path), "wb")
                self._stream = ipc.new_stream(self._sink, _SCHEMA)
            columns = [_compacted(names), _rewritten(shapes, _shapes), _rewritten(dtypes, _dtypes)]
            self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

    def finish(self, around: Surroundings) -> None:
        """Add all of them to the stage.

        Args:
            around: one entry an operator, in the order in which they were added.
        """
        if self._stream is None or self._sink is None:
            return
        with writing(self._stage.directory):
            self._stream.close()
            self._sink.close()
        paths, lines = pa.array(around.paths, pa.string()), around.lines
        files = pa.array([file for file, _ in lines], pa.string())
        numbers = pa.array([line for _, line in lines], pa.int32())
        first = 0
        for batch in self._batches():
            rows = slice(first, first + batch.num_rows)
            source = _taken(around.source[rows])
            phase = np.where(
                around.is_backward[rows], 0, np.where(around.is_optimizer[rows], 1, -1)
            ).astype(np.int8)
            self._stage.add_ops(
                {
                    "op_id": np.arange(rows.start, rows.stop, dtype=np.uint32),
                    "parent_id": _optional(around.parent[rows]),
                    "kind": pa.DictionaryArray.from_arrays(
                        pa.array(np.zeros(batch.num_rows, np.int8)), _KINDS
                    ),
                    "name": batch["name"].cast(pa.string()),
                    "input_shapes": batch["input_shapes"].cast(pa.string()),
                    "dtypes": batch["dtypes"].cast(pa.string()),
                    "module_path": paths.take(_taken(around.module[rows])),
                    "source_file": files.take(source),
                    "source_line": numbers.take(source),
                    "phase": pa.DictionaryArray.from_arrays(
                        pa.array(phase, mask=phase < 0), _PHASES
                    ),
                }
            )
            first = rows.stop
        self._path.unlink()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self._path)) as file:
            yield from ipc.open_stream(file)


def _compacted(words: pa.DictionaryArray) -> pa.DictionaryArray:
    """With only those words in the dictionary that rows have."""
    codes = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    is_used = np.zeros(len(words.dictionary) + 1, np.bool_)
    is_used[codes] = True  # the last one stands for null
    number = np.cumsum(is_used, dtype=np.int32) - 1
    kept = words.dictionary.filter(pa.array(is_used[:-1]))
    return pa.DictionaryArray.from_arrays(pa.array(number[codes], mask=codes < 0), kept)


def _rewritten(words: pa.DictionaryArray, rewrite: Callable[[str], str]) -> pa.DictionaryArray:
    compact = _compacted(words)
    texts = [rewrite(text) for text in compact.dictionary.to_pylist()]
    unique = list(dict.fromkeys(texts))
    if len(unique) == len(texts):
        return pa.DictionaryArray.from_arrays(compact.indices, pa.array(texts, pa.string()))
    number = {text: i for i, text in enumerate(unique)}
    mapping = pa.array([number[text] for text in texts], pa.int32())
    return pa.DictionaryArray.from_arrays(
        mapping.take(compact.indices), pa.array(unique, pa.string())
    )


@lru_cache(maxsize=1 << 14)
def _shapes(text: str) -> str:
    """Shapes as ``ops`` has them.

    >>> _shapes("[[4, 8], [], [ 8,2 ]]")
    '[4, 8], [], [8, 2]'
    """
    inner = re.sub(r"\s*,\s*", ", ", re.sub(r"\s+", " ", text.strip())[1:-1].strip())
    return _cut(inner.replace("[ ", "[").replace(" ]", "]"))


@lru_cache(maxsize=1 << 14)
def _dtypes(text: str) -> str:
    """Datatypes as ``ops`` has them.

    >>> _dtypes('["c10::BFloat16", "Scalar", ""]')
    'bfloat16, Scalar, '
    """
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list):
        return _cut(text)
    return _cut(", ".join(dtype_name(str(word)) for word in words))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " …"


def _optional(numbers: NDArray[np.int32]) -> pa.Array:
    return pa.array(numbers.astype(np.uint32), mask=numbers < 0)


def _taken(numbers: NDArray[np.int32]) -> pa.Array:
    return pa.array(numbers, mask=numbers < 0)
