"""How is an XSpace (``.xplane.pb`` of XProf, JAX, TensorFlow, torch_xla) read?

See docs/formats/xprof.md. A file is read twice from disk, a line of a few MiB at a time (xplane_file.py, xplane_decode.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.files import writing
from trnprof.tracer.formats.json_render import KEY, WORD, Lifted, Tokens, Vocabulary
from trnprof.tracer.formats.protobuf_wire import Ints, WireFile
from trnprof.tracer.formats.xplane_decode import Events, line_events
from trnprof.tracer.formats.xplane_file import Line, Plane, Space, read_space
from trnprof.tracer.formats.xplane_links import CORRELATION, PRODUCER, Links, Steps
from trnprof.tracer.formats.xplane_metadata import (
    BYTES,
    FLOPS,
    EventTable,
    Operations,
    Words,
    event_table,
    from_table,
)
from trnprof.tracer.formats.xplane_names import device_category, memories
from trnprof.tracer.formats.xplane_places import (
    ASYNC,
    COUNTER,
    STEPS,
    THREAD,
    Device,
    collective_timeline,
    counter_timeline,
    devices,
    line_role,
    line_timeline,
)
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.schema import CATEGORIES, MEMORIES

_REPLACED: Final = b"\xef\xbf\xbd"
_PLANE: Final = re.compile(rb"/device:|/host:|#Chip|Task Environment|/virtualdevice:|Host CPUs")
_ABSOLUTE_NS: Final = 10**17
"""Times beyond this count from 1970, not from the start of the profile."""
_MEMCPY: Final = ("memcpy_details", "Memset_details", "memalloc_details")
_MARKER: Final = CATEGORIES.index("marker")
_COLLECTIVE: Final = CATEGORIES.index("collective")


def recognise(head: Head) -> int:
    """Whether a source begins as an XSpace does, or is named like one."""
    is_named = head.name.endswith(".xplane.pb") or head.name == "xplane.pb"
    if head.data[:1] == b"\x0a" and _first_plane(head.data):
        return 95
    if is_named and (head.data[:1] in b"\x0a\x12\x1a\x22" or not head.data):
        return 85
    return 0


def _first_plane(data: bytes) -> bool:
    """Whether the first message is a plane: an id, and a name that planes have."""
    length = re.match(rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f]", data)
    if length is None:
        return False
    body = data[length.end() : length.end() + 100]
    after_id = re.match(rb"(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12[\x00-\x7f]", body)
    return after_id is not None and _PLANE.match(body, after_id.end()) is not None


def read(source: Source, stage: Stage) -> None:
    """Read an XSpace into a stage.

    Raises:
        ProfileError: it holds no plane that can be read.
    """
    with _on_disk(source, stage) as path, path.open("rb") as opened:
        file = WireFile(opened.fileno())
        _refuse_text(file, source.label)
        space = read_space(file, stage.audit, source.label)
        if not space.planes and not (space.errors or space.hostnames):
            raise ProfileError(
                f"{source.label}: no plane of an XSpace in its {file.size:,} bytes; is it a file that jax.profiler or XProf wrote?"
            )
        _Reader(source.label, stage, file, space).read()


FORMAT: Final = Format(
    "xplane", "XSpace (.xplane.pb) of XProf, JAX, TensorFlow and torch_xla", recognise, read
)


@contextmanager
def _on_disk(source: Source, stage: Stage) -> Iterator[Path]:
    """The decompressed file; of one that is cut, what there is."""
    path = stage.directory / "decompressed"
    try:
        with source.on_disk() as whole:
            yield whole
        return
    except ProfileError:
        if stage.timelines or stage.audit.findings:
            raise
    try:
        stream = source.open()
        with writing(path), path.open("wb") as file:
            while data := stream.read(1 << 20):
                file.write(data)
        stream.close()
        yield path
    finally:
        path.unlink(missing_ok=True)


def _refuse_text(file: WireFile, label: str) -> None:
    """Binary data that went through a text converter cannot be mended."""
    start = file.read(0, min(file.size, 1 << 16))
    at = start.find(_REPLACED)
    if 0 <= at < 4096 and start.count(_REPLACED) > 8:
        raise ProfileError(
            f"{label}: its bytes were rewritten as text (U+FFFD at byte {at}), so the binary profile in it is lost; "
            "copy the original file again, as binary"
        )


class _Reader:
    """The reading of one file; what it gathers until all events are there."""

    def __init__(self, label: str, stage: Stage, file: WireFile, space: Space) -> None:
        self.label = label
        self.stage = stage
        self.file = file
        self.space = space
        self.operations = Operations()
        self.links = Links()
        self.steps = Steps()
        self.owner_of_timeline: dict[int, int] = {}
        self.damaged = 0
        self.aggregated = 0
        self.unnamed = 0

    def read(self) -> None:
        """Everything."""
        self._facts()
        for number, (plane, device) in enumerate(
            zip(self.space.planes, devices(self.space.planes), strict=True)
        ):
            if any(line.events for line in plane.lines):
                self._plane(number, plane, device)
        if self.operations.numbers:
            self.stage.add_ops(self.operations.rows)
        edges = self.links.edges(self.stage)
        if len(edges[0]):
            self.stage.add_flows(*edges, "launch")
        owners = np.full(max(len(self.stage.timelines), 1), -2, np.int64)
        for timeline, owner in self.owner_of_timeline.items():
            owners[timeline] = owner
        self.steps.finish(self.stage, owners, edges)
        self._findings()

    def _facts(self) -> None:
        facts, audit = self.stage.facts, self.stage.audit
        facts.host = next((h for h in self.space.hostnames if h), "")
        for severity, texts in (("error", self.space.errors), ("warning", self.space.warnings)):
            for text in texts:
                message = f"the profiler itself reported: {text[:300]}"
                audit.add(f"profiler_{severity}", severity, self.label, message, unreliable="what it names")
        environment: dict[str, Any] = {}
        for plane in self.space.planes:
            if plane.name in ("Task Environment", "/host:metadata"):
                environment |= plane.stats
        start = environment.get("profile_start_time")
        times = [line.timestamp_ns for p in self.space.planes for line in p.lines if line.events]
        if times and min(times) >= _ABSOLUTE_NS:
            facts.base_unix_ns = 0
        elif isinstance(start, int) and _ABSOLUTE_NS <= start < 2**63:
            facts.base_unix_ns = start
        plain = {k: v for k, v in environment.items() if not isinstance(v, bytes)}
        if plain:
            facts.metadata["environment"] = plain
        self._system()

    def _system(self) -> None:
        found = [
            plane
            for plane, device in zip(self.space.planes, devices(self.space.planes), strict=True)
            if device is not None and not device.part and plane.stats
        ]
        if not found:
            return
        chip = {k: v for k, v in found[0].stats.items() if not isinstance(v, bytes)}
        name = chip.get("device_type_string") or chip.get("device_vendor") or "unknown device"
        self.stage.facts.system = {"name": name, "chip": chip}

    def _plane(self, number: int, plane: Plane, device: Device | None) -> None:
        table = event_table(plane, self.operations, is_device=device is not None)
        words = Words(plane.words)
        if any(line.events for line in plane.lines) and not plane.metadata:
            self.unnamed += 1
        for order, line in enumerate(plane.lines):
            role = line_role(line, device, plane)
            for events in line_events(self.file, line):
                self.damaged += events.damaged
                block = _Block(self, number, plane, device, line, role, order, table, words, events)
                block.stage()

    def _findings(self) -> None:
        audit = self.stage.audit
        audit.add(
            "malformed_events",
            "error",
            self.label,
            "events whose bytes are damaged were left out",
            unreliable="totals",
            count=self.damaged,
        )
        audit.add(
            "aggregated_events",
            "note",
            self.label,
            "events that only count occurrences, without a time, were left out",
            count=self.aggregated,
        )
        audit.add(
            "names_missing",
            "error",
            self.label,
            "the metadata of planes are missing, which stand behind their events: these are named by number",
            unreliable="names and categories",
            count=self.unnamed,
        )


class _Block:
    """Some events of one line on their way into the stage."""

    def __init__(
        self,
        reader: _Reader,
        number: int,
        plane: Plane,
        device: Device | None,
        line: Line,
        role: int,
        order: int,
        table: EventTable,
        words: Words,
        events: Events,
    ) -> None:
        self.reader = reader
        self.number = number
        self.plane = plane
        self.device = device
        self.line = line
        self.role = role
        self.order = order
        self.table = table
        self.words = words
        self.events = events
        self.tokens = _dense(events.tokens, words)
        self.rows = table.rows(events.metadata_id)

    def stage(self) -> None:
        """Put the events where they belong."""
        if self.role == COUNTER:
            self._counters()
        elif self.role == STEPS:
            events = self.events
            self.reader.steps.note(
                self.device.ordinal if self.device else -1,
                self._names().to_pylist(),
                events.start_ns,
                events.end_ns,
            )
        else:
            self._events()

    def _lift(self, name: str, *, keep: bool = False) -> Lifted:
        return self.tokens.lift(self.words.number(name), keep=keep)

    def _names(self) -> pa.DictionaryArray:
        unknown = self.rows == len(self.table.ids)
        if not unknown.any():
            return from_table(self.table.names, self.rows)
        names = list(self.table.names)
        ids, index = np.unique(self.events.metadata_id[unknown], return_inverse=True)
        rows = self.rows.copy()
        rows[unknown] = len(names) + index
        return from_table(names + [f"event {i}" for i in ids.tolist()], rows)

    def _counters(self) -> None:
        value = self._lift("counter_value")
        rows, values = value.floats()
        names = np.array(self._names().to_pylist(), object)[rows]
        for name in np.unique(names.astype(str)).tolist():
            mine = names == name
            timeline = counter_timeline(self.reader.stage, self.plane, self.device, name, "1")
            self.reader.stage.add_counters(
                timeline=timeline,
                timestamp_ns=self.events.start_ns[rows[mine]],
                value=values[mine],
            )

    def _events(self) -> None:
        """Everything that has a time and a duration."""
        reader, events, table, rows = self.reader, self.events, self.table, self.rows
        timeline = line_timeline(
            reader.stage, self.plane, self.line, self.role, self.device, self.order
        )
        owner = self.device.ordinal if self.device else -1
        reader.owner_of_timeline[timeline] = owner
        timelines = np.full(len(rows), timeline, np.int32)
        category = table.category[rows].copy()
        columns = self._figures(category)
        if self.role == ASYNC and self.device is not None:
            beside = collective_timeline(
                reader.stage, self.plane, self.line, self.device, self.order
            )
            reader.owner_of_timeline[beside] = owner
            timelines[category == _COLLECTIVE] = beside
        if self.role == THREAD:
            category[(events.duration_ps == 0) & (category == CATEGORIES.index("host"))] = _MARKER
            self._host_steps()
            self._allocator()
        links = self._links()
        names = self._names()
        reader.aggregated += int((events.occurrences > 0).sum())
        first = reader.stage.add_events(
            timeline=timelines,
            start_ns=events.start_ns,
            end_ns=events.end_ns,
            name=names,
            category=_words(CATEGORIES, category),
            fingerprint=events.fingerprint,
            attributes=self._attributes(),
            **columns,
        )
        for note in links:
            note(first)

    def _figures(self, category: Ints) -> dict[str, Any]:
        """Columns of numbers; the categories of GPU activities are set on the way."""
        table, rows, count = self.table, self.rows, len(self.rows)
        flops, size, op = table.flops[rows], table.bytes[rows], table.op[rows]
        source, target = table.source_memory[rows].copy(), table.target_memory[rows].copy()
        if self.device is not None:
            for name in FLOPS:
                at, values = self._lift(name).floats()
                flops[at] = values
            for name in BYTES:
                at, values = self._lift(name).integers()
                size[at] = values
            self._memcpy(category, size, source, target)
            op = self._kernel_ops(op, category)
        return {
            "flops": pa.array(flops, mask=np.isnan(flops)),
            "bytes": pa.array(size, mask=size < 0),
            "op_id": pa.array(op, pa.uint32(), mask=op < 0) if count else pa.array([], pa.uint32()),
            "dtype": from_table(table.dtype, rows),
            "source_memory": _words(MEMORIES, source),
            "target_memory": _words(MEMORIES, target),
        }

    def _memcpy(self, category: Ints, size: Ints, source: Ints, target: Ints) -> None:
        """``kind:H2D size:655360 dest:0 async:1``."""
        for name in _MEMCPY:
            at, text = self.tokens.strings(self._lift(name, keep=True), self.words.words)
            if not len(at):
                continue
            details = pl.Series(text)
            given = details.str.extract(r"(?:size|num_bytes):(\d{1,18})\b").cast(pl.Int64)
            size[at] = given.fill_null(-1).to_numpy()
            if name != "memalloc_details":
                category[at] = CATEGORIES.index("dma")
            kinds = details.str.extract(r"(kind(?:_src)?:\S+)").fill_null("")
            for kind in kinds.unique().to_list():
                mine = at[(kinds == kind).to_numpy()]
                for places, place in zip((source, target), memories(kind), strict=True):
                    if place is not None:
                        places[mine] = MEMORIES.index(place)

    def _kernel_ops(self, op: Ints, category: Ints) -> Ints:
        """The HLO instruction that each GPU kernel says it implements."""
        lifted = self._lift("hlo_op", keep=True)
        is_word = lifted.kind == WORD
        at, words = lifted.rows[is_word], lifted.a[is_word]
        if not len(at):
            return op
        parts = [words] + [self._word_of(name, at) for name in ("hlo_module", "tf_op", "name")]
        frame = pl.DataFrame(dict(zip(("op", "module", "path", "scope"), parts, strict=True)))
        distinct = frame.with_columns(
            kernel=self.rows[at], category=category[at].astype(np.int64)
        ).unique(maintain_order=True)
        numbers, categories = [], []
        for row in distinct.iter_rows(named=True):
            number, new = self._kernel_op(row)
            numbers.append(number)
            categories.append(new)
        joined = frame.with_columns(
            kernel=self.rows[at], category=category[at].astype(np.int64)
        ).join(
            distinct.with_columns(number=pl.Series(numbers), new=pl.Series(categories)),
            on=distinct.columns,
            how="left",
            maintain_order="left",
        )
        op, category[at] = op.copy(), joined["new"].to_numpy()
        op[at] = joined["number"].to_numpy()
        return op

    def _kernel_op(self, row: dict[str, int]) -> tuple[int, int]:
        """``op_id`` and category of a kernel, by words of the plane."""

        def word(number: int) -> str:
            return self.words.words[number] if number >= 0 else ""

        name, module, path = word(row["op"]), word(row["module"]), word(row["path"])
        if path in ("", "XlaModule:"):
            path = word(row["scope"])
        category = CATEGORIES[row["category"]]
        if category == "compute":
            category = device_category(self.table.names[row["kernel"]], hlo_op=name)
        kind = "collective" if category == "collective" else "kernel"
        number = self.reader.operations.number(
            (module, name, path), {"kind": kind, "name": name, "module_path": path or None}
        )
        return number, CATEGORIES.index(category)

    def _word_of(self, name: str, at: Ints) -> Ints:
        """The word that each of some rows has for a key, -1 for none."""
        lifted = self._lift(name, keep=True)
        values = np.full(len(self.rows), -1, np.int64)
        is_word = lifted.kind == WORD
        values[lifted.rows[is_word]] = lifted.a[is_word]
        return values[at]

    def _host_steps(self) -> None:
        rows, numbers = self._lift("step_num", keep=True).integers()
        if len(rows):
            names = self._names().take(pa.array(rows)).to_pylist()
            labels = [f"{n} {i}" for n, i in zip(names, numbers.tolist(), strict=True)]
            self.reader.steps.note(-1, labels, self.events.start_ns[rows], self.events.end_ns[rows])

    def _allocator(self) -> None:
        """What an allocator says it holds, as a counter."""
        at, names = self.tokens.strings(
            self._lift("allocator_name", keep=True), self.words.words
        )
        rows, values = self._lift("bytes_allocated", keep=True).integers()
        both = np.intersect1d(at, rows)
        if not len(both):
            return
        name = pl.Series(names).gather(np.searchsorted(at, both))
        held = values[np.searchsorted(rows, both)]
        for each in name.unique().to_list():
            mine = (name == each).to_numpy()
            timeline = counter_timeline(
                self.reader.stage, self.plane, self.device, f"{each} bytes allocated", "B"
            )
            self.reader.stage.add_counters(
                timeline=timeline, timestamp_ns=self.events.start_ns[both[mine]], value=held[mine]
            )

    def _links(self) -> list[Any]:
        """What is to be noted when the row of the first event is known."""
        links, is_device = self.reader.links, self.device is not None
        correlation = self._lift("correlation_id", keep=True)
        producer, producer_type = self._lift("_p", keep=True), self._lift("_pt", keep=True)
        consumer, consumer_type = self._lift("_c", keep=True), self._lift("_ct", keep=True)
        flow = self._lift("flow", keep=True)
        if self.role not in (THREAD,) and not is_device:
            return []
        return [
            lambda first: links.note(CORRELATION, first, correlation, None, is_source=not is_device),
            lambda first: links.note(PRODUCER, first, producer, producer_type, is_source=True),
            lambda first: links.note(PRODUCER, first, consumer, consumer_type, is_source=False),
            lambda first: links.note_flow(first, flow),
        ]

    def _attributes(self) -> pa.Array:
        text = pl.Series(self.tokens.render(Vocabulary.of(self.words.words)))
        if not any(self.table.fragment):
            return text.to_arrow()
        fragment = pl.Series(self.table.fragment, dtype=pl.String).gather(self.rows)
        frame = pl.DataFrame({"own": text, "shared": fragment})
        return (
            frame.select(
                pl.when(pl.col("shared").is_null())
                .then("own")
                .when(pl.col("own").is_null())
                .then(pl.format("{{}}", "shared") if False else "{" + pl.col("shared") + "}")
                .otherwise("{" + pl.col("shared") + "," + pl.col("own").str.slice(1))
            )
            .to_series()
            .to_arrow()
        )


def _dense(tokens: Tokens, words: Words) -> Tokens:
    """Tokens whose words and keys are numbers in the vocabulary of the plane."""
    a = tokens.a.copy()
    for kind, what in ((KEY, "stat"), (WORD, "string")):
        words.dense(a[tokens.kind == kind], what)
    for kind, what in ((KEY, "stat"), (WORD, "string")):
        chosen = tokens.kind == kind
        a[chosen] = words.dense(a[chosen], what)
    return Tokens(tokens.data, tokens.starts, tokens.kind, a, tokens.b)


def _words(vocabulary: tuple[str, ...], numbers: Any) -> pa.DictionaryArray:
    """A column of words of a closed vocabulary; null for -1."""
    missing = numbers < 0
    indices = pa.array(numbers.astype(np.int8), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, pa.array(vocabulary))
