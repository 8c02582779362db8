"""What do the events of a Perfetto file become: rows, counter samples, flows, operations, steps?

The second of two passes over the file; times and ends of slices are known from the first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.perfetto_import.blocks import Events, numbered_events
from trnprof.tracer.formats.perfetto_import.bodies import Bodies
from trnprof.tracer.formats.perfetto_import.columns import (
    Operations,
    chosen_of,
    event_columns,
    joined_objects,
    rendered,
    resolved,
    split_categories,
    wrapped,
)
from trnprof.tracer.formats.perfetto_import.flows import FlowMarks, flow_edges
from trnprof.tracer.formats.perfetto_import.heads import BEGIN, COMPLETE, END, INSTANT
from trnprof.tracer.formats.perfetto_import.labels import categories as event_categories
from trnprof.tracer.formats.perfetto_import.labels import names as event_names
from trnprof.tracer.formats.perfetto_import.samples import Samples
from trnprof.tracer.formats.perfetto_import.state import Sequences, Strings
from trnprof.tracer.formats.perfetto_import.timing import Timing
from trnprof.tracer.formats.perfetto_import.tracks import Tracks
from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.formats.trace_json.value_tokens import Tokens
from trnprof.tracer.ingest.source import ByteStream
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.schema import DEVICE_KINDS, STEP_SOURCES

_STEP_CATEGORY: Final = "step"
_INT32: Final = 2**31 - 1
_UNNAMED: Final = "(unnamed)"


class Rows:
    """The second pass."""

    def __init__(self, stage: Stage, timing: Timing, tracks: Tracks) -> None:
        self._stage = stage
        self._timing = timing
        self._tracks = tracks
        self._strings = Strings()
        self._sequences = Sequences(stage.label)
        self._samples = Samples(stage, timing, tracks, self._sequences)
        self._operations = Operations()
        self._marks = FlowMarks()
        self._end_ns = timing.end_ns(UNFINISHED)
        self._row = np.full(len(timing.kind), -1, np.int64)
        self._timelines = np.full(len(timing.tracks), -1, np.int32)
        self._late = (np.zeros(0, np.int64), pl.Series([], dtype=pl.String))
        self._steps: list[pl.DataFrame] = []

    def gather_ends(self, stream: ByteStream, label: str) -> None:
        """What the ENDs say, in a pass of its own: it belongs to slices whose rows are written before them."""
        numbers: list[Ints] = []
        found: list[pl.Series] = []
        strings = Strings()
        for events in numbered_events(stream, label, Sequences(label), strings):
            partner = self._timing.partner[events.numbers]
            is_end = (self._timing.kind[events.numbers] == END) & (partner >= 0)
            tokens = events.bodies(is_end).tokens
            text = rendered(resolved(tokens, events.scopes, strings), strings)
            has = text.is_not_null()
            numbers.append(partner[has.to_numpy()])
            found.append(text.filter(has))
        if found:
            order = np.argsort(np.concatenate(numbers), kind="stable")
            self._late = np.concatenate(numbers)[order], pl.concat(found).gather(order)

    def run(self, stream: ByteStream, label: str) -> None:
        """Read the file and fill the stage."""
        for events in numbered_events(stream, label, self._sequences, self._strings):
            self._add(events.without_bare_ends())
        self._finish()

    def _add(self, events: Events) -> None:
        kind, timed = self._timing.kind[events.numbers], self._timing.is_timed[events.numbers]
        is_row = timed & np.isin(kind, (BEGIN, INSTANT, COMPLETE))
        bodies = events.bodies(is_row)
        defaults = events.block.placed.defaults[events.packets]
        self._samples.add(bodies.samples, events.numbers, events.scopes, defaults)
        self._marks.add(bodies.flows, events.numbers, timed)
        if is_row.any():
            self._add_rows(events, bodies, is_row)

    def _add_rows(self, events: Events, bodies: Bodies, is_row: NDArray[np.bool_]) -> None:
        tokens = resolved(bodies.tokens, events.scopes, self._strings)
        names = event_names(events, bodies, self._strings).fill_null(_UNNAMED)
        categories = event_categories(events, bodies, self._strings)
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

    def _take_steps(
        self,
        events: Events,
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
        track = self._timing.track[events.numbers]
        is_steps = np.array([self._tracks.is_steps(t) for t in self._timing.tracks], np.bool_)
        possible &= is_steps[track] & (self._end_ns[events.numbers] != UNFINISHED)
        key = self._strings.number
        row, step = tokens.lift(key("step"), keep=True).integers()
        rank_row, rank = tokens.lift(key("rank"), keep=True).integers()
        sources = tokens.lift(key("source"), keep=True)
        source_row, source = tokens.strings(sources, self._strings.words)
        frame = (
            pl.DataFrame({"row": row, "step": step})
            .join(pl.DataFrame({"row": rank_row, "rank": rank}), on="row")
            .join(pl.DataFrame({"row": source_row, "source": pl.Series(source)}), on="row")
            .join(pl.DataFrame({"row": np.flatnonzero(possible)}), on="row", how="semi")
            .filter(
                pl.col("source").is_in(STEP_SOURCES)
                & pl.col("step").is_between(0, _INT32)
                & pl.col("rank").is_between(0, _INT32)
            )
        )
        at = frame["row"].to_numpy()
        numbers = events.numbers[at]
        times = {"start_ns": self._timing.time_ns[numbers], "end_ns": self._end_ns[numbers]}
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
        if self._steps:
            steps = pl.concat(self._steps).sort("rank", "start_ns", maintain_order=True)
            self._stage.add_steps({c: steps[c].to_list() for c in steps.columns})
            ranks = steps["rank"].unique()
            self._stage.facts.rank = ranks.item() if len(ranks) == 1 else None

    def _edges(self) -> None:
        """Edges between the slices that flows pass, in order of time."""
        timing = self._timing
        ids, event, role = self._marks.joined()
        slice_ = np.where(timing.kind[event] == END, timing.partner[event], event)
        row = np.where(slice_ >= 0, self._row[slice_], -1)
        order = np.lexsort((role, event, timing.time_ns[event], ids))
        order = order[row[order] >= 0]
        source, target = flow_edges(ids[order], role[order], row[order])
        if not len(source):
            return
        timeline = self._stage.times("timeline")
        is_hardware = np.array([t.kind in DEVICE_KINDS for t in self._stage.timelines], np.bool_)
        on_device = is_hardware[timeline[source]] & is_hardware[timeline[target]]
        self._stage.add_flows(source[on_device], target[on_device], "data")
        self._stage.add_flows(source[~on_device], target[~on_device], "launch")
