"""What do some events of a line become: columns, attributes, counter samples, ends of edges, steps?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.formats.trace_json.value_tokens import KEY, WORD, Lifted, Tokens
from trnprof.tracer.formats.xplane.decode import Events
from trnprof.tracer.formats.xplane.links import CORRELATION, ENQUEUES, PRODUCER, RUN, Links, Steps
from trnprof.tracer.formats.xplane.metadata import (
    BYTES,
    FLOPS,
    EventTable,
    Operations,
    Words,
    from_table,
)
from trnprof.tracer.formats.xplane.names import device_category, memories
from trnprof.tracer.formats.xplane.places import (
    COUNTER,
    MODULE_LINES,
    STEPS,
    THREAD,
    Spot,
    aggregate_timeline,
    counter_timeline,
)
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.schema import CATEGORIES, MEMORIES

_MEMCPY: Final = ("memcpy_details", "Memset_details", "memalloc_details")
_HOST: Final = CATEGORIES.index("host")
_MARKER: Final = CATEGORIES.index("marker")
_COLLECTIVE: Final = CATEGORIES.index("collective")
_DMA: Final = CATEGORIES.index("dma")

Codes = NDArray[np.int8]


@dataclass
class Gathered:
    """What is known when all events are there.

    Attributes:
        operations: rows of ``ops``.
        links: ends of edges.
        steps: as the profile has them.
        owner_of_timeline: device whose steps are those of a timeline; -1 for the host's.
        aggregated: events that only count occurrences, by plane.
        damaged: events that were left out, by line.
        unnamed: events that nothing describes, by plane.
    """

    operations: Operations = field(default_factory=Operations)
    links: Links = field(default_factory=Links)
    steps: Steps = field(default_factory=Steps)
    owner_of_timeline: dict[int, int] = field(default_factory=dict)
    aggregated: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Place(Spot):
    """The line that events are of, with what its plane says of them."""

    table: EventTable
    words: Words


def stage_events(stage: Stage, gathered: Gathered, place: Place, events: Events) -> None:
    """Put some events of a line where they belong.

    Args:
        stage: takes them.
        gathered: takes what is finished later.
        place: their line.
        events: n of them.
    """
    gathered.damaged[f"{place.plane.name}, {place.line.name}"] += events.damaged
    if not len(events.start_ns):
        return
    block = _Block(stage, gathered, place, events)
    if place.role == COUNTER:
        block.counters()
    elif place.role == STEPS:
        labels = block.names().cast(pa.string()).to_pylist()
        gathered.steps.note(place.owner, labels, events.start_ns, events.end_ns)
    else:
        block.events()


class _Block:
    """Some events of one line on their way into the stage."""

    def __init__(self, stage: Stage, gathered: Gathered, place: Place, events: Events) -> None:
        self._stage = stage
        self._gathered = gathered
        self._place = place
        self._events = events
        self._words = place.words
        self._tokens = _dense(events.tokens, place.words)
        self._rows = place.table.rows(events.metadata_id)

    def names(self) -> pa.DictionaryArray:
        """Name of each event; by number where nothing describes it."""
        table = self._place.table
        unknown = self._rows == len(table.ids)
        if not unknown.any():
            return from_table(table.names, self._rows)
        ids, index = np.unique(self._events.metadata_id[unknown], return_inverse=True)
        rows = self._rows.copy()
        rows[unknown] = len(table.names) + index
        return from_table([*table.names, *(f"event {i}" for i in ids.tolist())], rows)

    def counters(self) -> None:
        """Samples of counters, each named like its event."""
        at, values = self._lift("counter_value").floats()
        at, values = at[np.isfinite(values)], values[np.isfinite(values)]
        names = pl.Series(self.names().cast(pa.string())).gather(at)
        self._sample(names, "1", at, values)

    def events(self) -> None:
        """Everything that has a time and a duration."""
        place, events = self._place, self._events
        category = place.table.category[self._rows].copy()
        columns = self._figures(category)
        timelines = self._timelines(category)
        if place.role == THREAD:
            category[(events.duration_ps == 0) & (category == _HOST)] = _MARKER
            self._host_steps()
            self._allocator()
        links = self._links()
        first = self._stage.add_events(
            timeline=timelines,
            start_ns=events.start_ns,
            end_ns=events.end_ns,
            name=self.names(),
            category=_words(CATEGORIES, category),
            fingerprint=events.fingerprint,
            attributes=self._attributes(),
            **columns,
        )
        for note in links:
            note(first)

    def _lift(self, name: str, *, keep: bool = False) -> Lifted:
        return self._tokens.lift(self._words.number(name), keep=keep)

    def _sample(self, names: pl.Series, unit: str, at: Ints, values: NDArray[Any]) -> None:
        for name in names.unique().to_list():
            mine = (names == name).to_numpy()
            self._stage.add_counters(
                timeline=counter_timeline(
                    self._stage, self._place.plane, self._place.device, name, unit
                ),
                timestamp_ns=self._events.start_ns[at[mine]],
                value=values[mine],
            )

    def _timelines(self, category: Codes) -> NDArray[np.int32]:
        place, stage = self._place, self._stage
        is_aggregated = self._events.occurrences > 0
        encloses = place.table.encloses[self._rows]
        timelines = place.timelines(stage, category == _COLLECTIVE, encloses)
        for number in np.unique(timelines).tolist():
            self._gathered.owner_of_timeline[number] = place.owner
        if is_aggregated.any():
            self._gathered.aggregated[place.plane.name] += int(is_aggregated.sum())
            timelines[is_aggregated] = aggregate_timeline(stage, place.plane)
        return timelines

    def _figures(self, category: Codes) -> dict[str, Any]:
        """Columns of figures; categories of GPU activities are set on the way."""
        table, rows = self._place.table, self._rows
        flops, size, op = table.flops[rows], table.bytes[rows], table.op[rows]
        source, target = table.source_memory[rows].copy(), table.target_memory[rows].copy()
        if self._place.device is not None:
            for name in FLOPS:
                at, number = self._lift(name).floats()
                flops[at] = number
            for name in BYTES:
                at, whole = self._lift(name).integers()
                size[at] = whole
            self._memcpy(category, size, source, target)
            op = self._kernel_ops(op, category)
        return {
            "flops": pa.array(flops, mask=np.isnan(flops)),
            "bytes": pa.array(size, mask=size < 0),
            "op_id": pa.array(np.maximum(op, 0), mask=op < 0).cast(pa.uint32()),
            "dtype": from_table(table.dtype, rows),
            "source_memory": _words(MEMORIES, source),
            "target_memory": _words(MEMORIES, target),
        }

    def _memcpy(self, category: Codes, size: Ints, source: Codes, target: Codes) -> None:
        """``kind:H2D size:655360 dest:0 async:1``."""
        for name in _MEMCPY:
            at, text = self._tokens.strings(self._lift(name, keep=True), self._words.words)
            if not len(at):
                continue
            details = pl.Series(text)
            given = details.str.extract(r"(?:size|num_bytes):(\d{1,18})\b").cast(pl.Int64)
            size[at] = given.fill_null(-1).to_numpy()
            if name != "memalloc_details":
                category[at] = _DMA
            kinds = details.str.extract(r"(kind(?:_src)?:\S+)").fill_null("")
            for kind in kinds.unique().to_list():
                mine = at[(kinds == kind).to_numpy()]
                for places, memory in zip((source, target), memories(kind), strict=True):
                    if memory is not None:
                        places[mine] = MEMORIES.index(memory)

    def _kernel_ops(self, op: Ints, category: Codes) -> Ints:
        """The HLO instruction that each GPU kernel says it implements."""
        instruction = self._word_of("hlo_op")
        at = np.flatnonzero(instruction >= 0)
        if not len(at):
            return op
        frame = pl.DataFrame(
            {
                "op": instruction[at],
                "module": self._word_of("hlo_module")[at],
                "path": self._word_of("tf_op")[at],
                "scope": self._word_of("name")[at],
                "kernel": self._rows[at],
                "category": category[at],
            }
        )
        distinct = frame.unique(maintain_order=True)
        found = [self._kernel_op(row) for row in distinct.iter_rows(named=True)]
        known = distinct.with_columns(
            number=pl.Series([f[0] for f in found]), new=pl.Series([f[1] for f in found])
        )
        joined = frame.join(known, on=distinct.columns, how="left", maintain_order="left")
        op, category[at] = op.copy(), joined["new"].to_numpy()
        op[at] = joined["number"].to_numpy()
        return op

    def _kernel_op(self, row: dict[str, int]) -> tuple[int, int]:
        """``op_id`` and category of a kernel, from words of the plane."""

        def word(number: int) -> str:
            return self._words.words[number] if number >= 0 else ""

        name, module, path = word(row["op"]), word(row["module"]), word(row["path"])
        if path in ("", "XlaModule:"):
            path = word(row["scope"])
        category = CATEGORIES[row["category"]]
        if category == "compute":
            category = device_category(self._place.table.names[row["kernel"]], hlo_op=name)
        kind = "collective" if category == "collective" else "kernel"
        columns = {"kind": kind, "name": name, "module_path": path or None}
        number = self._gathered.operations.number((module, name, path), columns)
        return number, CATEGORIES.index(category)

    def _word_of(self, name: str) -> Ints:
        """The word that each event has for a key, -1 for none."""
        lifted = self._lift(name, keep=True)
        values = np.full(len(self._rows), -1, np.int64)
        is_word = lifted.kind == WORD
        values[lifted.rows[is_word]] = lifted.a[is_word]
        return values

    def _host_steps(self) -> None:
        at, numbers = self._lift("step_num", keep=True).integers()
        if len(at):
            names = self.names().cast(pa.string()).take(pa.array(at)).to_pylist()
            labels = [f"{n} {i}" for n, i in zip(names, numbers.tolist(), strict=True)]
            start, end = self._events.start_ns[at], self._events.end_ns[at]
            self._gathered.steps.note(-1, labels, start, end)

    def _allocator(self) -> None:
        """What an allocator says it holds, as a counter."""
        lifted = self._lift("allocator_name", keep=True)
        at, names = self._tokens.strings(lifted, self._words.words)
        rows, values = self._lift("bytes_allocated", keep=True).integers()
        both = np.intersect1d(at, rows)
        if len(both):
            name = pl.Series(names).gather(np.searchsorted(at, both)) + " bytes allocated"
            self._sample(name, "B", both, values[np.searchsorted(rows, both)])

    def _links(self) -> list[Callable[[int], None]]:
        """What is to be noted when the row of the first event is known."""
        links, is_device = self._gathered.links, self._place.device is not None
        correlation = self._lift("correlation_id", keep=True)
        producer, producer_type = self._lift("_p", keep=True), self._lift("_pt", keep=True)
        consumer, consumer_type = self._lift("_c", keep=True), self._lift("_ct", keep=True)
        flow = self._lift("flow", keep=True)
        runs, run_type = self._runs()
        if self._place.role != THREAD and not is_device:
            return []
        return [
            lambda row: links.note(CORRELATION, row, correlation, is_source=not is_device),
            lambda row: links.note(RUN, row, runs, run_type, is_source=not is_device),
            lambda row: links.note(PRODUCER, row, producer, producer_type, is_source=True),
            lambda row: links.note(PRODUCER, row, consumer, consumer_type, is_source=False),
            lambda row: links.note_flow(row, flow),
        ]

    def _runs(self) -> tuple[Lifted, Lifted | int]:
        """Runs of programs that events of the host enqueue, or that events of a device are; and on which device."""
        runs, device = self._lift("run_id", keep=True), self._place.device
        if device is not None:
            is_run = np.full(len(runs.rows), self._place.line.name in MODULE_LINES)
        else:
            names = pl.Series(self.names().cast(pa.string())).gather(runs.rows)
            is_run = names.is_in(ENQUEUES).to_numpy()
        kept = Lifted(runs.rows[is_run], runs.kind[is_run], runs.a[is_run], runs.b[is_run])
        return kept, device.ordinal if device else self._lift("device_ordinal", keep=True)

    def _attributes(self) -> pa.Array:
        """What has no column: what events say themselves, and what their metadata say of all of them."""
        own = pl.Series(self._tokens.render(self._words.vocabulary))
        fragments = self._place.table.fragments
        if fragments is None:
            return own.to_arrow()
        shared = fragments.gather(self._rows)
        return (
            pl.select(
                pl.when(shared.is_null())
                .then(own)
                .when(own.is_null())
                .then("{" + shared + "}")
                .otherwise("{" + shared + "," + own.str.slice(1))
            )
            .to_series()
            .to_arrow()
        )


def _dense(tokens: Tokens, words: Words) -> Tokens:
    """Tokens whose words and keys are numbers in the vocabulary of the plane."""
    a = tokens.a.copy()
    kinds = ((KEY, "stat"), (WORD, "string"))
    for kind, what in kinds:
        # all must be known before the first is numbered: new ones change the order
        words.dense(a[tokens.kind == kind], what)
    for kind, what in kinds:
        chosen = tokens.kind == kind
        a[chosen] = words.dense(a[chosen], what)
    return Tokens(tokens.data, tokens.starts, tokens.kind, a, tokens.b)


def _words(vocabulary: tuple[str, ...], numbers: Codes) -> pa.DictionaryArray:
    """A column of words of a closed vocabulary; null for -1."""
    indices = pa.array(numbers.astype(np.int8), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(vocabulary))
