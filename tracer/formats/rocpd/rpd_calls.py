"""Which call of an rpd profile launched an operation, and what else is known of that call?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.rocpd.lookup import Lookup
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows, Tables

_NONE: Final = np.zeros(0, np.int64)


class Calls:
    """Calls by id: their process, and their rows of the stage, which follow each other from ``first`` on."""

    def __init__(self, ids: Ints, process: Ints, first: int) -> None:
        self._lookup = Lookup(ids)
        self._process = process
        self._first = first

    def find(self, ids: Ints, has: Bools) -> tuple[Ints, Ints]:
        """Row and process of each call, -1 where there is none."""
        at = self._lookup.find(ids, has)
        if not len(self._process):
            return at, at
        return np.where(at < 0, -1, at + self._first), np.where(at < 0, -1, self._process[at])


class Links:
    """Which call each operation is of (``rocpd_api_ops``)."""

    def __init__(self, tables: Tables) -> None:
        blocks = tables.scan("rocpd_api_ops", ints=["api_id", "op_id"])
        parts = [(block.ints("api_id"), block.ints("op_id")) for block in blocks]
        self._calls: Ints = np.concatenate([_NONE, *(calls for calls, _ in parts)])
        self._ops = Lookup(np.concatenate([_NONE, *(ops for _, ops in parts)]))
        groups = distinct([self._calls])[0] if parts else _NONE
        self._is_shared = np.bincount(groups)[groups] > 1 if parts else np.zeros(0, np.bool_)

    def find(self, ids: Ints) -> tuple[Ints, Bools, Bools]:
        """The call of each operation, where there is one, and where that has further operations."""
        at = self._ops.find(ids)
        has = at >= 0
        if not len(self._calls):
            return at, has, has
        return self._calls[at], has, has & self._is_shared[at]


@dataclass(frozen=True)
class Details:
    """What a table says of calls beside ``rocpd_api``: integers from 0 to 2³¹, and the code of the stream; -1 where there is none."""

    columns: dict[str, NDArray[np.int32]]
    lookup: Lookup

    @classmethod
    def read(
        cls, tables: Tables, table: str, names: Sequence[str], streams: dict[str, int]
    ) -> Details:
        """Read a table of which each row belongs to a call.

        Args:
            tables: of the profile.
            table: name of the table.
            names: its columns of integers.
            streams: code of each stream; those that are new are added.
        """
        ids: list[Ints] = [_NONE]
        parts: list[list[NDArray[np.int32]]] = []
        for block in tables.scan(table, ints=["api_ptr_id", *names], texts=["stream"]):
            words = pl.Series(block.text("stream")).cast(pl.String).fill_null("")
            for word in words.unique(maintain_order=True):
                streams.setdefault(word, len(streams))
            codes = words.replace_strict(streams, return_dtype=pl.Int32).to_numpy()
            ids.append(block.ints("api_ptr_id"))
            parts.append([codes, *(_narrow(block, name) for name in names)])
        columns = [np.concatenate(p) for p in zip(*parts, strict=True)]
        return cls(
            dict(zip(("stream", *names), columns, strict=False)), Lookup(np.concatenate(ids))
        )

    def rows(self, ids: Ints, has: Bools) -> Rows:
        """The columns for these calls."""
        at = self.lookup.find(ids, has)
        found: dict[str, tuple[Ints, Bools]] = {}
        for name, column in self.columns.items():
            values = column[at].astype(np.int64)
            found[name] = values, (at >= 0) & (values >= 0)
        return Rows(len(ids), found)


def _narrow(block: Rows, name: str) -> NDArray[np.int32]:
    values = block.ints(name, -1)
    fits = (values >= 0) & (values <= np.iinfo(np.int32).max)
    return np.where(fits, values, -1).astype(np.int32)
