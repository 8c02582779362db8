"""What are the events called, and which categories are they in?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.perfetto_import.blocks import Events, numbered_events
from trnprof.tracer.formats.perfetto_import.bodies import Bodies
from trnprof.tracer.formats.perfetto_import.columns import chosen_of, words_of
from trnprof.tracer.formats.perfetto_import.state import CATEGORIES, NAMES, Sequences, Strings
from trnprof.tracer.formats.protobuf_wire import texts
from trnprof.tracer.ingest.source import ByteStream

_MAX_NAME: Final = 10_000


@dataclass(frozen=True)
class Labels:
    """Hashes of the name and of the categories of each event of a file, 0 for none."""

    name: NDArray[np.uint64]
    category: NDArray[np.uint64]


def read_labels(stream: ByteStream, label: str) -> Labels:
    """The labels of all events, in a pass of its own: for files whose slices end by name, or are known by their categories."""
    sequences, strings = Sequences(label), Strings()
    found = [Labels(np.zeros(0, np.uint64), np.zeros(0, np.uint64))]
    for events in numbered_events(stream, label, sequences, strings):
        bodies = events.bodies(np.zeros(len(events.numbers), np.bool_))
        name, category = names(events, bodies, strings), categories(events, bodies, strings)
        found.append(Labels(_hashed(name), _hashed(category)))
    return Labels(*(np.concatenate(parts) for parts in zip(*map(_columns, found), strict=True)))


def _columns(labels: Labels) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return labels.name, labels.category


def _hashed(labels: pl.Series) -> NDArray[np.uint64]:
    hashes: NDArray[np.uint64] = labels.cast(pl.String).hash().to_numpy().copy()
    hashes[labels.is_null().to_numpy()] = 0
    return hashes


def names(events: Events, bodies: Bodies, strings: Strings) -> pl.Series:
    """Name of each event, null for none."""
    words = strings.tables[NAMES].words(events.scopes, bodies.name_iid)
    known = words_of(strings, words)
    low, high = bodies.name_at
    at = np.flatnonzero((low >= 0) & (bodies.name_iid == 0))
    if not len(at):
        return known
    written = texts(bodies.tokens.data, low[at], np.minimum(high[at], low[at] + _MAX_NAME))
    index = np.full(len(words), -1, np.int64)
    index[at] = np.arange(len(at))
    return pl.select(pl.coalesce(known, chosen_of(pl.Series(written), index))).to_series()


def categories(events: Events, bodies: Bodies, strings: Strings) -> pl.Series:
    """Categories of each event, several with commas between, interned ones first; null for none."""
    lists = bodies.categories
    words = strings.tables[CATEGORIES].words(events.scopes[lists.event], lists.bits)
    is_text = lists.high > 0
    written = texts(bodies.tokens.data, lists.low[is_text], lists.high[is_text])
    index = np.full(len(words), -1, np.int64)
    index[is_text] = np.arange(int(is_text.sum()))
    given = chosen_of(pl.Series(written, dtype=pl.String), index)
    frame = pl.DataFrame(
        {"event": lists.event, "given": given, "known": words_of(strings, words)}
    ).select("event", is_text=pl.Series(is_text), text=pl.coalesce("given", "known"))
    frame = frame.drop_nulls()
    if frame["event"].n_unique() < len(frame):
        frame = frame.sort("event", "is_text", maintain_order=True)
        frame = frame.group_by("event", maintain_order=True).agg(pl.col("text").str.join(","))
    index = np.full(len(events.numbers), -1, np.int64)
    index[frame["event"].to_numpy()] = np.arange(len(frame))
    return chosen_of(frame["text"], index)
