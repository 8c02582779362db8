"""What do the events of a Perfetto file become: rows, counter samples, flows, operations, steps?

The second of two passes over the file; times and ends of slices are known from the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.value_tokens import Tokens
from trnprof.tracer.formats.perfetto_import_bodies import Bodies, Lists, read_bodies
from trnprof.tracer.formats.perfetto_import_columns import (
    Operations,
    chosen_of,
    event_columns,
    joined_objects,
    rendered,
    resolved,
    split_categories,
    words_of,
    wrapped,
)
from trnprof.tracer.formats.perfetto_import_events import (
    PlacedBlock,
    Timing,
    counted,
    placed_blocks,
)
from trnprof.tracer.formats.perfetto_import_heads import BEGIN, COMPLETE, END, INSTANT
from trnprof.tracer.formats.perfetto_import_samples import Samples
from trnprof.tracer.formats.perfetto_import_state import CATEGORIES, NAMES, Sequences, Strings
from trnprof.tracer.formats.perfetto_import_tracks import Tracks
from trnprof.tracer.formats.protobuf_wire import Ints, texts
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import ByteStream
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.schema import STEP_SOURCES

_STEP_CATEGORY: Final = "step"
_HARDWARE: Final = ("engine", "dma_queue", "collective_stream", "stream")
_MAX_NAME: Final = 10_000
_INT32: Final = 2**31 - 1
_UNNAMED: Final = "(unnamed)"


@dataclass(frozen=True)
class _Events:
    """The events of a block that have a number.

    Attributes:
        block: where they lie.
        kept: which of the block's events.
        numbers: in ``Timing``.
        scopes: of their sequences.
    """

    block: PlacedBlock
    kept: NDArray[np.bool_]
    numbers: Ints
    scopes: Ints

    def bodies(self, wants_tokens: NDArray[np.bool_]) -> Bodies:
        """Everything but what places them."""
        envelopes = self.block.block.envelopes
        packets = self.block.chosen[self.kept]
        low, high = envelopes.event_low[packets], envelopes.event_high[packets]
        return read_bodies(self.block.block.data, low, high, wants_tokens)


def _numbered(block: PlacedBlock, first: int) -> _Events:
    kept = counted(block.heads)
    numbers = np.arange(first, first + int(kept.sum()))
    return _Events(block, kept, numbers, block.placed.scope[block.chosen[kept]])


@dataclass
class _Marks:
    """Where flows pass: id, number of the event, whether it ends there."""

    id: list[NDArray[np.uint64]] = field(default_factory=list)
    event: list[Ints] = field(default_factory=list)
    ends: list[Ints] = field(default_factory=list)


class Rows:
    """The second pass."""

    def __init__(self, stage: Stage, timing: Timing, tracks: Tracks) -> None:
        self._stage = stage
        self._timing = timing
        self._tracks = tracks
        self._strings = Strings()
        self._sequences = Sequences()
        self._samples = Samples(stage, timing, tracks)
        self._operations = Operations()
        self._marks = _Marks()
        self._end_ns = timing.end_ns(UNFINISHED)
        self._row = np.full(len(timing.kind), -1, np.int64)
        self._timelines = np.full(len(timing.tracks), -1, np.int32)
        self._late = (np.zeros(0, np.int64), pl.Series([], dtype=pl.String))
        self._steps: list[pl.DataFrame] = []

    def gather_ends(self, stream: ByteStream, label: str) -> None:
        """What the ENDs say, in a pass of its own: it belongs to slices whose rows are written before them."""
        numbers: list[Ints] = []
        found: list[pl.Series] = []
        sequences, strings, first = Sequences(), Strings(), 0
        for block in placed_blocks(stream, Audit(), label, sequences, None):
            _take_strings(block, strings)
            events = _numbered(block, first)
            first += len(events.numbers)
            partner = self._timing.partner[events.numbers]
            is_end = (self._timing.kind[events.numbers] == END) & (partner >= 0)
            tokens = events.bodies(is_end).tokens
            text = rendered(resolved(tokens, events.scopes, strings), strings)
            has = text.is_not_null()
            numbers.append(partner[has.to_numpy()])
            found.append(text.filter(has))
            strings.forget(sequences.live_scopes())
        if found:
            order = np.argsort(np.concatenate(numbers), kind="stable")
            self._late = np.concatenate(numbers)[order], pl.concat(found).gather(order)

    def run(self, stream: ByteStream, label: str) -> None:
        """Read the file and fill the stage."""
        first = 0
        for block in placed_blocks(stream, Audit(), label, self._sequences, None):
            _take_strings(block, self._strings)
            events = _numbered(block, first)
            first += len(events.numbers)
            if len(events.numbers):
                self._add(events)
            self._strings.forget(self._sequences.live_scopes())
            if first >= len(self._timing.kind):
                break
        self._finish()

    def _add(self, events: _Events) -> None:
        kind, timed = self._timing.kind[events.numbers], self._timing.is_timed[events.numbers]
        is_row = timed & np.isin(kind, (BEGIN, INSTANT, COMPLETE))
        bodies = events.bodies(is_row)
        defaults = events.block.placed.defaults[events.block.chosen[events.kept]]
        self._samples.add(
            bodies.samples, events.numbers, events.scopes, defaults, self._sequences.defaults
        )
        passes = timed[bodies.flows.event]
        self._marks.id.append(bodies.flows.bits[passes])
        self._marks.event.append(events.numbers[bodies.flows.event[passes]])
        self._marks.ends.append(bodies.flows.mark[passes])
        if is_row.any():
            self._add_rows(events, bodies, is_row)

    def _add_rows(self, events: _Events, bodies: Bodies, is_row: NDArray[np.bool_]) -> None:
        tokens = resolved(bodies.tokens, events.scopes, self._strings)
        names = self._names(bodies, events.scopes)
        categories = self._categories(bodies.categories, events)
        is_row = is_row & ~self._take_steps(events, tokens, names, categories, is_row)
        rows = np.flatnonzero(is_row)
        if not len(rows):
            return
        count, chosen = len(events.numbers), events.numbers[rows]
        columns = event_columns(tokens, self._strings, count)
        columns["op_id"] = self._operations.column(tokens, self._strings, count)
        is_instant = self._timing.kind[chosen] == INSTANT
        category, own = split_categories(categories.gather(rows), is_instant)
        names = names.gather(rows)
        first = self._stage.add_events(
            timeline=self._timelines_of(chosen, names),
            start_ns=self._timing.time_ns[chosen],
            end_ns=self._end_ns[chosen],
            name=names,
            category=category,
            attributes=self._attributes(tokens, chosen, rows, own),
            **{name: values.take(pa.array(rows)) for name, values in columns.items()},
        )
        self._row[chosen] = first + np.arange(len(rows))

    def _timelines_of(self, events: Ints, names: pl.Series) -> NDArray[np.int32]:
        track = self._timing.track[events]
        codes, first = np.unique(track, return_index=True)
        new = self._timelines[codes] < 0
        for code, at in zip(codes[new].tolist(), first[new].tolist(), strict=True):
            self._timelines[code] = self._tracks.timeline(
                self._stage, self._timing.tracks[code], str(names[at])[:100]
            )
        found: NDArray[np.int32] = self._timelines[track]
        return found

    def _names(self, bodies: Bodies, scopes: Ints) -> pl.Series:
        words = self._strings.tables[NAMES].words(scopes, bodies.name_iid)
        known = words_of(self._strings, words)
        low, high = bodies.name_at
        at = np.flatnonzero(low >= 0)
        if not len(at):
            return known.fill_null(_UNNAMED)
        written = texts(bodies.tokens.data, low[at], np.minimum(high[at], low[at] + _MAX_NAME))
        index = np.full(len(words), -1, np.int64)
        index[at] = np.arange(len(at))
        given = chosen_of(pl.Series(written), index)
        return pl.select(pl.coalesce(given, known, pl.lit(_UNNAMED))).to_series()

    def _categories(self, categories: Lists, events: _Events) -> pl.Series:
        """Categories of each event, several with commas between; null for none."""
        scopes = events.scopes[categories.event]
        words = self._strings.tables[CATEGORIES].words(scopes, categories.bits)
        is_text = categories.high > 0
        data = events.block.block.data
        written = texts(data, categories.low[is_text], categories.high[is_text])
        index = np.full(len(words), -1, np.int64)
        index[is_text] = np.arange(int(is_text.sum()))
        given = chosen_of(pl.Series(written, dtype=pl.String), index)
        frame = pl.DataFrame(
            {"event": categories.event, "given": given, "known": words_of(self._strings, words)}
        )
        frame = frame.select("event", text=pl.coalesce("given", "known")).drop_nulls()
        if frame["event"].n_unique() < len(frame):
            frame = frame.group_by("event", maintain_order=True).agg(pl.col("text").str.join(","))
        index = np.full(len(events.numbers), -1, np.int64)
        index[frame["event"].to_numpy()] = np.arange(len(frame))
        return chosen_of(frame["text"], index)

    def _take_steps(
        self,
        events: _Events,
        tokens: Tokens,
        names: pl.Series,
        categories: pl.Series,
        is_row: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Which events are steps that trnprof's own export wrote; they are noted as such."""
        taken = np.zeros(len(events.numbers), np.bool_)
        possible = (categories == _STEP_CATEGORY).fill_null(False).to_numpy() & is_row
        if not possible.any():
            return taken
        key, timing = self._strings.number, self._timing
        row, step = tokens.lift(key("step"), keep=True).integers()
        sources = tokens.lift(key("source"), keep=True)
        source_row, source = tokens.strings(sources, self._strings.words)
        track = timing.track[events.numbers]
        possible &= np.array([self._tracks.is_steps(t) for t in timing.tracks], np.bool_)[track]
        frame = pl.DataFrame({"row": row, "step": step}).join(
            pl.DataFrame({"row": source_row, "source": pl.Series(source)}), on="row"
        )
        frame = frame.filter(
            pl.Series(possible[frame["row"].to_numpy()])
            & pl.col("source").is_in(STEP_SOURCES)
            & pl.col("step").is_between(0, _INT32)
        )
        at = frame["row"].to_numpy()
        numbers = events.numbers[at]
        times = {"start_ns": timing.time_ns[numbers], "end_ns": self._end_ns[numbers]}
        self._steps.append(frame.drop("row").with_columns(**times, label=names.gather(at)))
        taken[at] = True
        return taken

    def _attributes(self, tokens: Tokens, numbers: Ints, rows: Ints, own: pl.Series) -> pl.Series:
        at, inner = wrapped(tokens, self._strings)
        text = rendered(tokens, self._strings)
        text = (text.scatter(at, inner) if len(at) else text).gather(rows)
        events, late = self._late
        if len(events):
            index = np.minimum(np.searchsorted(events, numbers), len(events) - 1)
            index = np.where(events[index] == numbers, index, -1)
            text = joined_objects(text, chosen_of(late, index))
        return joined_objects(text, own)

    def _finish(self) -> None:
        self._edges()
        operations = self._operations.table()
        if operations:
            self._stage.add_ops(operations)
        steps = pl.concat(self._steps) if self._steps else pl.DataFrame()
        if len(steps):
            steps = steps.filter(pl.col("end_ns") != UNFINISHED)
            steps = steps.unique("step", keep="first", maintain_order=True).sort("start_ns")
            self._stage.add_steps({c: steps[c].to_list() for c in steps.columns})

    def _edges(self) -> None:
        """From each mark of a flow to the next in time, unless the flow ended there."""
        if not sum(map(len, self._marks.id)):
            return
        ids, event = np.concatenate(self._marks.id), np.concatenate(self._marks.event)
        ends, timing = np.concatenate(self._marks.ends), self._timing
        slice_ = np.where(timing.kind[event] == END, timing.partner[event], event)
        row = np.where(slice_ >= 0, self._row[slice_], -1)
        order = np.lexsort((event, timing.time_ns[event], ids))
        order = order[row[order] >= 0]
        ids, ends, row = ids[order], ends[order], row[order]
        goes_on = (ids[1:] == ids[:-1]) & (ends[:-1] == 0) & (row[1:] != row[:-1])
        source, target = row[:-1][goes_on], row[1:][goes_on]
        timeline = self._stage.times("timeline")
        is_hardware = np.array([t.kind in _HARDWARE for t in self._stage.timelines], np.bool_)
        on_device = is_hardware[timeline[source]] & is_hardware[timeline[target]]
        kinds: tuple[tuple[str, Any], ...] = (("data", on_device), ("launch", ~on_device))
        for kind, mine in kinds:
            if mine.any():
                self._stage.add_flows(source[mine], target[mine], kind)


def _take_strings(block: PlacedBlock, strings: Strings) -> None:
    for packet, message in block.messages:
        if message.HasField("interned_data"):
            strings.take(message, int(block.placed.scope[packet]))
