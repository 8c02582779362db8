"""Which row of a table of an AMD database has this id, and what is its text?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.tracer.files import writing
from trnprof.tracer.formats.table_groups import picked
from trnprof.tracer.formats.tables import Bools, Ints, Tables, read_small

UNNAMED: Final = "[unnamed]"


class Lookup:
    """The place of each id among ids in any order; of several that are equal, the first."""

    def __init__(self, ids: Ints) -> None:
        is_sorted = bool((np.diff(ids) >= 0).all())
        self._places = None if is_sorted else np.argsort(ids, kind="stable")
        self._ids = ids if self._places is None else ids[self._places]
        self._is_dense = bool((np.diff(self._ids) == 1).all())

    def find(self, ids: Ints, has: Bools | None = None) -> Ints:
        """Place of each id, -1 where there is none or ``has`` is false.

        >>> Lookup(np.array([7, 3, 7])).find(np.array([3, 7, 5])).tolist()
        [1, 0, -1]
        """
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        if self._is_dense:
            at = ids - self._ids[0]
            found = (at >= 0) & (at < len(self._ids))
        else:
            at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            found = self._ids[at] == ids
        if has is not None:
            found &= has
        if self._places is not None:
            at = self._places[np.where(found, at, 0)]
        return np.where(found, at, -1)


class Words:
    """Texts of a small table by id. The code of an id that it does not have stands for UNNAMED, the last word."""

    def __init__(self, ids: Ints, texts: pa.Array) -> None:
        self._lookup = Lookup(ids)
        self.words: pa.Array = pa.concat_arrays(
            [texts.fill_null(UNNAMED).cast(pa.string()), pa.array([UNNAMED])]
        )
        self._scratch = np.full(len(self.words), -1, np.int32)

    @classmethod
    def read(cls, tables: Tables, table: str, *columns: str) -> Words:
        """The words of a table; of several columns the first that is neither null nor empty."""
        rows = read_small(tables, table, ints=["id"], texts=columns)
        texts = [pl.Series(rows.text(c)).cast(pl.String).replace("", None) for c in columns]
        words = pl.select(pl.coalesce(*(pl.lit(t) for t in texts))).to_series()
        return cls(rows.ints("id"), words.to_arrow().cast(pa.string()))

    def codes(self, ids: Ints, has: Bools | None = None) -> Ints:
        """Index in ``words`` of each id."""
        found = self._lookup.find(ids, has)
        return np.where(found < 0, len(self.words) - 1, found)

    def pick(self, codes: Ints) -> pa.DictionaryArray:
        """The words with these codes."""
        return picked(self.words, codes, self._scratch)

    def matching(self, pattern: str) -> Bools:
        """Which words a regular expression is found in."""
        found: Bools = pl.Series(self.words).str.contains(pattern).to_numpy()
        return found

    def word(self, id: int | None) -> str:
        """One word, empty if there is none with this id."""
        code = -1 if id is None else int(self._lookup.find(np.array([id]))[0])
        return "" if code < 0 else str(self.words[code].as_py())


class TextStore:
    """Texts by id, too many for the memory: they lie in a file, and are read back where they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._schema = pa.schema([("text", pa.large_string())])
        self._ids: list[Ints] = []
        self._lookup = Lookup(np.zeros(0, np.int64))
        with writing(path):
            self._sink = pa.OSFile(str(path), "wb")
            self._stream = ipc.new_file(self._sink, self._schema)
        self._texts = pa.chunked_array([], pa.large_string())

    def add(self, ids: Ints, texts: pl.Series) -> None:
        """Append texts; before ``finish``."""
        if not len(ids):
            return
        self._ids.append(ids)
        text = texts.to_arrow().cast(pa.large_string())
        with writing(self._path):
            self._stream.write_batch(pa.RecordBatch.from_arrays([text], schema=self._schema))

    def finish(self) -> None:
        """Make the index, and map the file."""
        with writing(self._path):
            self._stream.close()
            self._sink.close()
        if self._ids:
            self._lookup = Lookup(np.concatenate(self._ids))
            self._ids = []
            self._texts = ipc.open_file(pa.memory_map(str(self._path))).read_all()["text"]

    def take(self, ids: Ints, has: Bools | None = None) -> pl.Series | None:
        """The texts of these ids, null where there is none; None if none of them has any."""
        at = self._lookup.find(ids, has)
        missing = at < 0
        if missing.all():
            return None
        return pl.Series(self._texts.take(pa.array(at, mask=missing)))

    def close(self) -> None:
        """Remove the file."""
        self._texts = pa.chunked_array([], pa.large_string())
        self._path.unlink(missing_ok=True)
