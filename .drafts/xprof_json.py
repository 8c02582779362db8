"""How is the trace.json.gz of jax.profiler and of the TensorBoard profile plugin read?

Chrome JSON made from an XSpace: its processes are planes, its threads are lines, its arguments are statistics as strings. What they
mean is as in xplane.py; times lose the picoseconds, and at most 1,000,000 events are in it. See docs/formats/xprof.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.json_block import EventBlock
from trnprof.tracer.formats.json_scan import Fields, Scan
from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.formats.xplane_file import Line, Plane
from trnprof.tracer.formats.xplane_links import Steps
from trnprof.tracer.formats.xplane_metadata import Operations
from trnprof.tracer.formats.xplane_names import (
    device_category,
    is_control_flow,
    memories,
    operands,
    source_line,
)
from trnprof.tracer.formats.xplane_places import (
    ASYNC,
    STEPS,
    THREAD,
    Device,
    collective_timeline,
    devices,
    line_role,
    line_timeline,
)
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.schema import CATEGORIES, MEMORIES

_OPERATION: Final = (
    "hlo_op",
    "hlo_module",
    "hlo_category",
    "long_name",
    "tf_op",
    "name",
    "source",
    "program_id",
    "model_flops",
    "bytes_accessed",
)
_OTHERS: Final = ("flops", "step_num", "memcpy_details", "Memset_details")
_FIELDS: Final = Fields(
    ("ph", "pid", "tid", "ts", "dur", "name"),
    (*_OPERATION, *_OTHERS, "sort_index"),
)
_TITLES: Final = ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
_MOST_EVENTS: Final = 1_000_000
_INSTANT_US: Final = 1.5e-6
"""An instant is written as an event of one picosecond."""
_MARKS: Final = re.compile(
    rb'"(?:/device:(?:TPU|GPU|CUSTOM|[A-Z]+):|/host:(?:CPU|metadata|TPU-runtime|python-tracer|CUPTI|ROCTRACER))'
)
_HOST: Final = CATEGORIES.index("host")
_MARKER: Final = CATEGORIES.index("marker")
_COLLECTIVE: Final = CATEGORIES.index("collective")


def recognise(head: Head) -> int:
    """Whether a source is trace-event JSON whose processes are the planes of an XSpace."""
    start = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b"[") or b'"process_name"' not in head.data:
        return 0
    return 88 if _MARKS.search(head.data) else 0


def read(source: Source, stage: Stage) -> None:
    """Read a trace of XProf into a stage.

    Raises:
        ProfileError: it is no JSON.
    """
    stream = source.open()
    try:
        scan = Scan(stream, _FIELDS, stage.audit, source.label)
        reader = _Reader(source.label, stage)
        for block in scan:
            reader.add(block)
    finally:
        stream.close()
    if not scan.has_events:
        raise ProfileError(
            f"{source.label}: no traceEvents in its JSON, from byte 0 on; is it the trace.json.gz of a profile?"
        )
    reader.finish()


FORMAT: Final = Format(
    "xprof-json", "trace.json of jax.profiler, XProf and TensorBoard", recognise, read
)


@dataclass
class _Thread:
    """A line of a plane, as far as its names are known."""

    name: str = ""
    order: int = 0
    timeline: int = -1
    collectives: int = -1


@dataclass
class _Process:
    """A plane, as far as its name is known."""

    name: str = ""
    threads: dict[str, _Thread] = field(default_factory=dict)


@dataclass(frozen=True)
class _Operation:
    """What all events of one combination of name and operation share."""

    category: int
    op: int
    flops: float
    bytes: int
    dtype: str | None
    source_memory: int
    target_memory: int


class _Reader:
    """The reading of one file."""

    def __init__(self, label: str, stage: Stage) -> None:
        self._label = label
        self._stage = stage
        self._processes: dict[str, _Process] = {}
        self._operations = Operations()
        self._known: dict[tuple[str | None, ...], _Operation] = {}
        self._steps = Steps()
        self._owner_of_timeline: dict[int, int] = {}
        self._others: dict[str, int] = {}
        self._untimed = 0
        self._events = 0

    def add(self, block: EventBlock) -> None:
        """Some more events."""
        phase = pl.Series(block.texts("ph").cast(pa.string()))
        self._titles(block.take((phase == "M").fill_null(False).to_numpy()))
        is_event = (phase == "X").fill_null(False).to_numpy()
        for row in phase.filter(~pl.Series(is_event)).value_counts().iter_rows():
            if row[0] not in (None, "M"):
                self._others[row[0]] = self._others.get(row[0], 0) + row[1]
        events = block.take(is_event)
        if not events.rows:
            return
        self._events += events.rows
        codes, lines = events.keys("pid", "tid")
        for code in np.unique(codes).tolist():
            process, thread = (str(part) for part in lines[code])
            self._line(process, thread, events.take(codes == code))

    def _titles(self, block: EventBlock) -> None:
        """Names and places of processes and threads, which are few."""
        if not block.rows:
            return
        names, keys = block.texts("name").to_pylist(), block.texts("args.name").to_pylist()
        orders, has_order = block.integers("args.sort_index")
        pids, tids = block.texts("pid").to_pylist(), block.texts("tid").to_pylist()
        for row, name in enumerate(names):
            if name not in _TITLES:
                continue
            process = self._processes.setdefault(str(pids[row]), _Process())
            if name == "process_name":
                process.name = keys[row] or process.name
            elif name.startswith("thread"):
                thread = process.threads.setdefault(str(tids[row]), _Thread())
                if name == "thread_name":
                    thread.name = keys[row] or thread.name
                elif has_order[row]:
                    thread.order = int(np.clip(orders[row], -(2**31), 2**31 - 1))

    def _planes(self) -> tuple[list[Plane], list[Device | None]]:
        planes = [
            Plane(p.name, lines=[Line(0, 0, name=t.name, events=1) for t in p.threads.values()])
            for p in self._processes.values()
        ]
        return planes, devices(planes)

    def _line(self, process: str, thread: str, events: EventBlock) -> None:
        """Stage the events of one line."""
        self._processes.setdefault(process, _Process()).threads.setdefault(thread, _Thread())
        planes, found = self._planes()
        number = list(self._processes).index(process)
        plane, device = planes[number], found[number]
        known = self._processes[process].threads[thread]
        line = Line(0, 0, id=hash((process, thread)), name=known.name)
        line.display_name = known.name or f"thread {thread}"
        role = line_role(line, device, plane) if known.name or device else THREAD
        start, end, has_ts, has_dur = events.times_ns()
        self._untimed += int((~has_ts).sum())
        owner = -1 if device is None else device.ordinal
        names = pl.Series(events.texts("name").cast(pa.string())).fill_null("(unnamed)")
        if role == STEPS:
            self._steps.note(owner, names.to_list(), start, end)
            return
        if known.timeline < 0:
            known.timeline = line_timeline(self._stage, plane, line, role, device, known.order)
            self._owner_of_timeline[known.timeline] = owner
        columns, category = self._columns(events, names, device is not None)
        is_instant = ~has_dur | ~(events.floats("dur") > _INSTANT_US)
        category[is_instant & (category == _HOST)] = _MARKER
        timelines = np.full(events.rows, known.timeline, np.int32)
        if role == ASYNC and device is not None and (category == _COLLECTIVE).any():
            if known.collectives < 0:
                known.collectives = collective_timeline(
                    self._stage, plane, line, device, known.order
                )
                self._owner_of_timeline[known.collectives] = owner
            timelines[category == _COLLECTIVE] = known.collectives
        self._host_steps(events, names, start, end)
        prints = np.where(is_instant, np.uint64(0), events.fingerprints())
        self._stage.add_events(
            timeline=timelines,
            start_ns=start,
            end_ns=end,
            name=names,
            category=_words(CATEGORIES, category),
            fingerprint=prints,
            attributes=events.attributes(),
            **columns,
        )

    def _columns(
        self, events: EventBlock, names: pl.Series, is_device: bool
    ) -> tuple[dict[str, Any], NDArray[np.int8]]:
        """Columns that follow from names and arguments, looked at once a combination of them."""
        if not is_device:
            return {}, np.full(events.rows, _HOST, np.int8)
        frame = pl.DataFrame({"event": names}).with_columns(
            **{
                name: pl.Series(events.texts(f"args.{name}").cast(pa.string()))
                for name in (*_OPERATION, "memcpy_details", "Memset_details")
            }
        )
        distinct = frame.unique(maintain_order=True)
        found = [self._operation(row) for row in distinct.iter_rows()]
        known = distinct.with_columns(number=pl.Series(range(len(found)), dtype=pl.Int64))
        rows = frame.join(
            known, on=frame.columns, how="left", nulls_equal=True, maintain_order="left"
        )["number"].to_numpy()

        def column(name: str) -> NDArray[Any]:
            return np.array([getattr(each, name) for each in found])[rows]

        flops, size, op = column("flops"), column("bytes"), column("op")
        own = events.floats("args.flops")
        flops = np.where(np.isnan(own), flops, own)
        dtype = pl.Series([each.dtype for each in found], dtype=pl.String).gather(rows)
        columns = {
            "flops": pa.array(flops, mask=np.isnan(flops)),
            "bytes": pa.array(size, mask=size < 0),
            "op_id": pa.array(np.maximum(op, 0), mask=op < 0).cast(pa.uint32()),
            "dtype": dtype,
            "source_memory": _words(MEMORIES, column("source_memory")),
            "target_memory": _words(MEMORIES, column("target_memory")),
        }
        return columns, column("category").astype(np.int8)

    def _operation(self, row: tuple[str | None, ...]) -> _Operation:
        if row not in self._known:
            names = ("event", *_OPERATION, "memcpy_details", "Memset_details")
            self._known[row] = _operation(dict(zip(names, row, strict=True)), self._operations)
        return self._known[row]

    def _host_steps(self, events: EventBlock, names: pl.Series, start: Ints, end: Ints) -> None:
        numbers, has = events.integers("args.step_num")
        at = np.flatnonzero(has)
        if len(at):
            labels = [
                f"{n} {i}" for n, i in zip(names.gather(at), numbers[at].tolist(), strict=True)
            ]
            self._steps.note(-1, labels, start[at], end[at])

    def finish(self) -> None:
        """What is known when all events are there."""
        if self._operations.numbers:
            self._stage.add_ops(self._operations.rows)
        owners = np.full(max(len(self._stage.timelines), 1), -2, np.int64)
        for timeline, owner in self._owner_of_timeline.items():
            owners[timeline] = owner
        none = np.zeros(0, np.int64)
        self._steps.finish(self._stage, owners, (none, none))
        add = self._stage.audit.add
        if self._events == _MOST_EVENTS:
            add(
                "event_limit",
                "warning",
                self._label,
                f"has exactly {_MOST_EVENTS:,} events, where the exporter stops and keeps only the earliest; import the .xplane.pb beside it, which has all",
                unreliable="totals, and everything towards the end",
            )
        add(
            "events_without_time",
            "error",
            self._label,
            "events have no ts; they were taken for events at 0",
            unreliable="these events",
            count=self._untimed,
        )
        for phase, count in sorted(self._others.items()):
            add(
                "not_imported",
                "note",
                f"{self._label}, phase {phase[:8]!r}",
                "events of a phase that XProf does not write; --format chrome imports them",
                count=count,
            )


def _operation(row: dict[str, str | None], operations: Operations) -> _Operation:
    """What follows from a name and the arguments that say which operation it is."""
    name, hlo_category = row["event"] or "", row["hlo_category"] or ""
    category = device_category(name, hlo_category, row["hlo_op"] or "")
    details = row["memcpy_details"] or row["Memset_details"]
    if details:
        category = "dma"
    control = is_control_flow(name, hlo_category)
    copied = re.search(r"(?:size|num_bytes):(\d{1,18})\b", details or "")
    size = int(copied[1]) if copied else _number(row["bytes_accessed"])
    model_flops = _number(row["model_flops"])
    shapes = operands(row["long_name"] or "", hlo_category)
    places = memories(name)
    if places == (None, None) and details:
        places = memories(details)
    op = -1
    if row["hlo_op"] or hlo_category or row["hlo_module"]:
        path = row["tf_op"] if row["tf_op"] not in (None, "XlaModule:") else row["name"]
        instruction = row["hlo_op"] or name
        file, line = source_line(row["source"])
        key = (row["hlo_module"], row["program_id"], instruction, path)
        op = operations.number(
            key,
            {
                "kind": "collective" if category == "collective" else "kernel",
                "name": instruction,
                "module_path": path,
                "source_file": file,
                "source_line": line,
                "input_shapes": shapes.shapes,
                "dtypes": shapes.dtypes,
                "model_flops": model_flops,
                "logical_bytes": size,
                "out_bytes": size if category == "collective" else None,
            },
        )
    return _Operation(
        category=CATEGORIES.index(category),
        op=op,
        flops=float("nan") if control or model_flops is None else float(model_flops),
        bytes=-1 if control or size is None else size,
        dtype=shapes.dtype,
        source_memory=-1 if places[0] is None else MEMORIES.index(places[0]),
        target_memory=-1 if places[1] is None else MEMORIES.index(places[1]),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text) else None


def _words(vocabulary: tuple[str, ...], numbers: NDArray[Any]) -> pa.DictionaryArray:
    indices = pa.array(numbers.astype(np.int8), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(vocabulary))
