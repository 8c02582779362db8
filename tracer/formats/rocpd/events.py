"""What does rocprofv3 keep of each event beside its place and time: correlation, category, message, arguments?

These lie in tables of their own (``rocpd_event``, ``rocpd_arg``), in another order than the events. Numbers are held in memory, 40 bytes an
event; texts in files beside the stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.attribute_text import quoted
from trnprof.tracer.formats.rocpd.lookup import Lookup, TextStore, Words
from trnprof.tracer.formats.rocpd.session import Session
from trnprof.tracer.formats.tables import Bools, Ints, Rows

_COLUMNS: Final = ("id", "stack_id", "parent_stack_id", "correlation_id", "category_id")


@dataclass
class Events:
    """The rows of ``rocpd_event`` of one set of tables, and their arguments. ``close`` it.

    Attributes:
        categories: names of categories.
    """

    categories: Words
    _ids: Lookup
    _columns: dict[str, Ints]
    _extdata: TextStore
    _arguments: TextStore

    @property
    def count(self) -> int:
        """How many events there are."""
        return len(self._columns["id"])

    def find(self, block: Rows) -> Ints:
        """Which event each row of a block belongs to, -1 where there is none."""
        return self._ids.find(block.ints("event_id"), block.has("event_id"))

    def numbers(self, events: Ints, name: str) -> tuple[Ints, Bools]:
        """A column of these events, and where it is given and not 0."""
        column = self._columns[name]
        if not len(column):
            return np.zeros(len(events), np.int64), np.zeros(len(events), np.bool_)
        values = column[events]
        return values, (events >= 0) & (values != 0)

    def category(self, events: Ints) -> Ints:
        """Code of the category of each event in ``categories``."""
        return self.categories.codes(*self.numbers(events, "category_id"))

    def messages(self, block: Rows) -> pl.Series | None:
        """What each row of a block was annotated with, null where it was not; None if none was."""
        extdata = self._extdata.take(block.ints("event_id"), block.has("event_id"))
        if extdata is None:
            return None
        if not extdata.str.contains('"message"', literal=True).any():
            return None
        return extdata.str.json_path_match("$.message")

    def extdata(self, block: Rows) -> pa.Array:
        """Further data of each row's event, as a JSON string, where it is no message."""
        extdata = self._extdata.take(block.ints("event_id"), block.has("event_id"))
        if extdata is None:
            return pa.nulls(block.count, pa.string())
        return quoted(extdata.set(extdata.str.contains(r'^\s*\{\s*"message"'), None))

    def arguments(self, block: Rows) -> pa.Array:
        """Arguments of each row's event, as a JSON object."""
        found = self._arguments.take(block.ints("event_id"), block.has("event_id"))
        return (
            pa.nulls(block.count, pa.string())
            if found is None
            else found.to_arrow().cast(pa.string())
        )

    def close(self) -> None:
        """Remove the files."""
        self._extdata.close()
        self._arguments.close()


def read_events(session: Session) -> Events:
    """Read ``rocpd_event`` and ``rocpd_arg``."""
    state = session.state
    extdata = TextStore(state.stage.directory / "rocpd-extdata.arrow")
    parts: list[list[Ints]] = []
    for block in state.tables.scan(session.table("rocpd_event"), ints=_COLUMNS, texts=["extdata"]):
        parts.append([block.ints(c) for c in _COLUMNS])
        texts = pl.Series(block.text("extdata"))
        told = (texts.str.len_bytes() > 2).fill_null(False)
        extdata.add(parts[-1][0][told.to_numpy()], texts.filter(told))
    extdata.finish()
    joined = (
        [np.concatenate(p) for p in zip(*parts, strict=True)]
        if parts
        else [np.zeros(0, np.int64)] * 5
    )
    columns = dict(zip(_COLUMNS, joined, strict=True))
    has_categories = bool(session.columns("rocpd_info_category"))
    table = session.table("rocpd_info_category")
    categories = Words.read(state.tables, table, "name") if has_categories else session.words
    return Events(categories, Lookup(columns["id"]), columns, extdata, _read_arguments(session))


def _read_arguments(session: Session) -> TextStore:
    store = TextStore(session.state.stage.directory / "rocpd-arguments.arrow")
    for frame in _whole_events(session):
        objects = frame.group_by("event", maintain_order=True).agg(pl.col("member").str.join(","))
        members = objects["member"]
        store.add(objects["event"].to_numpy(), "{" + members + "}")
    store.finish()
    return store


def _whole_events(session: Session) -> Iterator[pl.DataFrame]:
    """Arguments as members of JSON objects, in blocks; those of one event, which follow each other, are in one block."""
    kept: pl.DataFrame | None = None
    table = session.table("rocpd_arg")
    for block in session.state.tables.scan(table, ints=["event_id"], texts=["name", "value"]):
        name, value = (pl.Series(block.text(c)).cast(pl.String) for c in ("name", "value"))
        member = (
            pl.Series(quoted(name.fill_null(""))) + ":" + pl.Series(quoted(value)).fill_null("null")
        )
        frame = pl.DataFrame({"event": block.ints("event_id"), "member": member})
        frame = frame if kept is None else pl.concat([kept, frame])
        is_last = frame["event"] == frame["event"][-1]
        kept = frame.filter(is_last)
        yield frame.filter(~is_last)
    if kept is not None:
        yield kept
