"""What do the events of XProf's JSON become, line by line?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.formats.trace_json.block import EventBlock
from trnprof.tracer.formats.xplane.file import Line, Plane
from trnprof.tracer.formats.xplane.links import CORRELATION, ENQUEUES, RUN, Links, Steps
from trnprof.tracer.formats.xplane.metadata import MEGASCALE, Operations
from trnprof.tracer.formats.xplane.places import (
    MODULE_LINES,
    STEPS,
    THREAD,
    Device,
    Spot,
    devices,
    line_role,
)
from trnprof.tracer.formats.xprof_json.ops import SAID, Operation, operation
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.schema import CATEGORIES, MEMORIES

ARGUMENTS: Final = (
    *SAID,
    "flops",
    "step_num",
    "correlation_id",
    "run_id",
    "device_ordinal",
    "sort_index",
)
"""Arguments that are looked at."""
_TITLES: Final = ("process_name", "thread_name", "process_sort_index", "thread_sort_index")
_INSTANT_US: Final = 1.5e-6
"""An instant is written as an event of one picosecond."""
_HOST: Final = CATEGORIES.index("host")
_MARKER: Final = CATEGORIES.index("marker")
_COLLECTIVE: Final = CATEGORIES.index("collective")


@dataclass
class _Thread:
    """A line of a plane, as far as its names are known."""

    name: str = ""
    order: int = 0


@dataclass
class _Process:
    """A plane, as far as its name is known."""

    name: str = ""
    threads: dict[str, _Thread] = field(default_factory=dict)


class Lines:
    """The lines of one file.

    Attributes:
        events: staged so far, steps included.
        last_ns: start of the last of them.
        untimed, untimed_name: events without a time, and the name of the first.
        others: events of other phases, by phase.
    """

    def __init__(self, stage: Stage) -> None:
        self.events = 0
        self.last_ns = 0
        self.untimed = 0
        self.untimed_name = ""
        self.others: dict[str, int] = {}
        self._stage = stage
        self._processes: dict[str, _Process] = {}
        self._operations = Operations()
        self._known: dict[tuple[str | None, ...], Operation] = {}
        self._links = Links()
        self._steps = Steps()
        self._owner_of_timeline: dict[int, int] = {}

    def add(self, block: EventBlock) -> None:
        """Some more events."""
        phase = pl.Series(block.texts("ph").cast(pa.string()))
        self._titles(block.take((phase == "M").fill_null(False).to_numpy()))
        is_event = (phase == "X").fill_null(False).to_numpy()
        for name, count in phase.filter(~pl.Series(is_event)).value_counts().iter_rows():
            if name not in (None, "M"):
                self.others[name] = self.others.get(name, 0) + count
        events = block.take(is_event)
        if not events.rows:
            return
        self.events += events.rows
        codes, lines = events.keys("pid", "tid")
        planes, found = self._planes(lines[code] for code in np.unique(codes).tolist())
        for code in np.unique(codes).tolist():
            process, thread = (str(part) for part in lines[code])
            number = list(self._processes).index(process)
            place = self._place(process, thread, planes[number], found[number])
            self._line(place, events.take(codes == code))

    def finish(self) -> None:
        """What is known when all events are there."""
        if self._operations.numbers:
            self._stage.add_ops(self._operations.rows)
        edges = self._links.edges(self._stage)
        if len(edges[0]):
            self._stage.add_flows(*edges, "launch")
        owners = np.full(max(len(self._stage.timelines), 1), -2, np.int64)
        for timeline, owner in self._owner_of_timeline.items():
            owners[timeline] = owner
        self._steps.finish(self._stage, owners, edges)

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

    def _planes(self, lines: Any) -> tuple[list[Plane], list[Device | None]]:
        """All processes as planes, those of some (pid, tid) included."""
        for process, thread in lines:
            threads = self._processes.setdefault(str(process), _Process()).threads
            threads.setdefault(str(thread), _Thread())
        planes = [
            Plane(p.name, lines=[Line(0, 0, name=t.name, events=1) for t in p.threads.values()])
            for p in self._processes.values()
        ]
        return planes, devices(planes)

    def _place(self, process: str, thread: str, plane: Plane, device: Device | None) -> Spot:
        threads = self._processes[process].threads
        known = threads[thread]
        number = list(self._processes).index(process) << 32 | list(threads).index(thread)
        line = Line(0, 0, id=number, name=known.name)
        line.display_name = known.name or f"thread {thread}"
        role = line_role(line, device, plane) if known.name or device else THREAD
        return Spot(plane, line, device, role, known.order)

    def _line(self, place: Spot, events: EventBlock) -> None:
        """Stage the events of one line."""
        start, end, has_ts, has_dur = events.times_ns()
        names = pl.Series(events.texts("name").cast(pa.string())).fill_null("(unnamed)")
        self.last_ns = max(self.last_ns, int(start.max()))
        if not has_ts.all():
            self.untimed += int((~has_ts).sum())
            self.untimed_name = self.untimed_name or names[int(has_ts.argmin())][:80]
        if place.role == STEPS:
            self._steps.note(place.owner, names.to_list(), start, end)
            return
        columns, category, encloses = self._columns(events, names, place)
        is_instant = ~has_dur | ~(events.floats("dur") > _INSTANT_US)
        category[is_instant & (category == _HOST)] = _MARKER
        timelines = place.timelines(self._stage, category == _COLLECTIVE, encloses)
        for number in np.unique(timelines).tolist():
            self._owner_of_timeline[number] = place.owner
        self._host_steps(events, names, start, end)
        first = self._stage.add_events(
            timeline=timelines,
            start_ns=start,
            end_ns=end,
            name=names,
            category=_words(CATEGORIES, category),
            fingerprint=np.where(is_instant, np.uint64(0), events.fingerprints()),
            attributes=events.attributes(),
            **columns,
        )
        self._note_links(place, events, names, first)

    def _columns(
        self, events: EventBlock, names: pl.Series, place: Spot
    ) -> tuple[dict[str, Any], NDArray[np.int8], NDArray[np.bool_]]:
        """Columns that follow from names and arguments, looked at once a combination of them; categories; what encloses others."""
        if place.device is None:
            category = _COLLECTIVE if MEGASCALE in place.plane.name else _HOST
            return {}, np.full(events.rows, category, np.int8), np.zeros(events.rows, np.bool_)
        said = {name: pl.Series(events.texts(f"args.{name}").cast(pa.string())) for name in SAID}
        frame = pl.DataFrame({"event": names}).with_columns(**said)
        distinct = frame.unique(maintain_order=True)
        found = [self._operation(row) for row in distinct.iter_rows()]
        known = distinct.with_columns(number=pl.Series(range(len(found)), dtype=pl.Int64))
        rows = frame.join(
            known, on=frame.columns, how="left", nulls_equal=True, maintain_order="left"
        )["number"].to_numpy()

        def column(name: str) -> NDArray[Any]:
            values: NDArray[Any] = np.array([getattr(each, name) for each in found])[rows]
            return values

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
        return columns, column("category").astype(np.int8), column("encloses")

    def _operation(self, row: tuple[str | None, ...]) -> Operation:
        if row not in self._known:
            event, *said = row
            self._known[row] = operation(
                event or "", dict(zip(SAID, said, strict=True)), self._operations
            )
        return self._known[row]

    def _host_steps(self, events: EventBlock, names: pl.Series, start: Ints, end: Ints) -> None:
        numbers, has = events.integers("args.step_num")
        at = np.flatnonzero(has)
        if len(at):
            labels = [
                f"{n} {i}" for n, i in zip(names.gather(at), numbers[at].tolist(), strict=True)
            ]
            self._steps.note(-1, labels, start[at], end[at])

    def _note_links(self, place: Spot, events: EventBlock, names: pl.Series, first: int) -> None:
        """Ends of launches, by the keys that the JSON still has."""
        device = place.device
        if device is None and place.role != THREAD:
            return
        ids, has = events.integers("args.correlation_id")
        self._note(CORRELATION, first, ids, np.zeros(events.rows, np.int64), has, device)
        runs, has = events.integers("args.run_id")
        if device is None:
            ordinals, _ = events.integers("args.device_ordinal")
            has = has & names.is_in(ENQUEUES).to_numpy()
        else:
            ordinals = np.full(events.rows, device.ordinal, np.int64)
            has = has & (place.line.name in MODULE_LINES)
        self._note(RUN, first, runs, ordinals, has, device)

    def _note(
        self,
        family: int,
        first: int,
        ids: Ints,
        types: Ints,
        has: NDArray[np.bool_],
        device: Device | None,
    ) -> None:
        at = np.flatnonzero(has)
        kinds, keys = types[at].view(np.uint64), ids[at].view(np.uint64)
        self._links.add(family, first + at, kinds, keys, is_source=device is None)


def _words(vocabulary: tuple[str, ...], numbers: NDArray[Any]) -> pa.DictionaryArray:
    indices = pa.array(numbers.astype(np.int8), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(vocabulary))
