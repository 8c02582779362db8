"""What do the parts of the importer of AMD databases share while one profile is read?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from trnprof.tracer.formats.rocpd.lookup import Lookup
from trnprof.tracer.formats.tables import Bools, Ints, Tables
from trnprof.tracer.ingest.stage import Stage, Timeline


@dataclass(frozen=True)
class Process:
    """A process: its ``pid``, the ``node`` (host) it ran on, and its ``rank`` if it says so."""

    pid: int
    node: str
    rank: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU as a profile has it.

    Attributes:
        number: among those of the profile; on its host if there is only one host.
        name: for people, with the host where there are several.
        model: as its driver names it; empty if unknown.
        memory_bytes, units: memory and compute units, None if unknown.
    """

    number: int
    name: str
    model: str = ""
    memory_bytes: int | None = None
    units: int | None = None


class Launches:
    """Calls that launch device work, by process and correlation."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[Ints, Ints]]] = {}
        self._tables: dict[int, tuple[Lookup, Ints]] = {}

    def add(self, process: Ints, key: Ints, rows: Ints) -> None:
        """Calls: their process, correlation, and row of the stage."""
        for owner in np.unique(process).tolist():
            chosen = process == owner
            self._parts.setdefault(owner, []).append((key[chosen], rows[chosen]))

    def finish(self) -> None:
        """Make the index; nothing may be added afterwards."""
        for owner, parts in self._parts.items():
            keys, rows = (np.concatenate(p) for p in zip(*parts, strict=True))
            self._tables[owner] = (Lookup(keys), rows)
        self._parts = {}

    def rows_of(self, process: Ints, key: Ints, has: Bools) -> Ints:
        """Row of the call with each correlation, -1 where there is none."""
        found = np.full(len(process), -1, np.int64)
        for owner in np.unique(process).tolist():
            if owner in self._tables:
                lookup, rows = self._tables[owner]
                chosen = np.flatnonzero(process == owner)
                at = lookup.find(key[chosen], has[chosen])
                found[chosen] = np.where(at < 0, -1, rows[at])
        return found


@dataclass
class State:
    """One profile being read.

    Attributes:
        tables: what is read.
        stage: what is filled.
        processes: all processes; a process is known by its place here.
        owners: timeline → the process whose rank it has.
        unit_rows: (process, number of a GPU) → device events, which ranks are told by.
        gpus: number → GPU that was used.
        gpu_numbers: host and index of a GPU on it → its number.
        steps: blocks of ranges that are steps (``step_ranges``).
        launched: first row of a block of device events, and the rows of the calls that launched them (-1: none).
    """

    tables: Tables
    stage: Stage
    processes: list[Process] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)
    unit_rows: dict[tuple[int, int], int] = field(default_factory=dict)
    gpus: dict[int, Gpu] = field(default_factory=dict)
    gpu_numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    steps: list[pl.DataFrame] = field(default_factory=list)
    launched: list[tuple[int, Ints]] = field(default_factory=list)

    def where(self, table: str) -> str:
        """A table, for findings."""
        return f"{self.tables.label}: {table}"

    def thread(self, process: int, thread: int, name: str = "") -> int:
        """The timeline of a thread, where its calls lie."""
        owner = self.processes[process]
        title = f"process {owner.pid}: thread {thread}" + (f" ({name})" if name else "")
        return self._owned(
            ("thread", process, thread), Timeline("thread", title, sort_order=1000), process
        )

    def beside_thread(self, process: int, thread: int, what: str, name: str = "") -> int:
        """A timeline under a thread, for one kind of event."""
        parent = self.thread(process, thread, name)
        timeline = Timeline("thread", what, parent=parent)
        return self._owned(("thread", process, thread, what), timeline, process)

    def gpu_number(self, host: str, index: int) -> tuple[int, str]:
        """Number and name of a GPU: its index on the first host that is met; further hosts' GPUs are numbered after these."""
        numbers = self.gpu_numbers
        is_first = host == next(iter(numbers), (host, 0))[0]
        taken = set(numbers.values()) - {numbers.get((host, index))}
        free = index if is_first and index not in taken else max(taken, default=-1) + 1
        number = numbers.setdefault((host, index), free)
        return number, f"GPU {index}" if is_first else f"{host} GPU {index}"

    def chip(self, gpu: Gpu) -> int:
        """The timeline of a GPU."""
        self.gpus.setdefault(gpu.number, gpu)
        timeline = Timeline("chip", gpu.name, chip=gpu.number, sort_order=gpu.number)
        return self.stage.timeline(("chip", gpu.number), timeline)

    def under_chip(
        self, process: int, gpu: Gpu, name: str, sort_order: int, kind: str, *, exclusive: bool
    ) -> int:
        """A timeline of one process on a GPU: a stream (kind ``stream``), or what stands beside (``module``)."""
        timeline = Timeline(
            kind,
            name,
            parent=self.chip(gpu),
            sort_order=sort_order,
            exclusive=exclusive,
            chip=gpu.number,
        )
        return self._owned((kind, process, gpu.number, name), timeline, process)

    def counter(self, gpu: Gpu | None, name: str, unit: str) -> int:
        """The timeline of a counter of a GPU, or of the host."""
        parent = None if gpu is None else self.chip(gpu)
        chip = None if gpu is None else gpu.number
        return self.stage.timeline(
            ("counter", chip, name),
            Timeline("counter", name, parent, 1 << 20, chip=chip, unit=unit),
        )

    def link(self, launch: Ints, first: int) -> None:
        """Stage the flows from calls to the device events that they launched, which begin at row ``first``."""
        self.launched.append((first, launch))
        linked = np.flatnonzero(launch >= 0)
        if len(linked):
            self.stage.add_flows(launch[linked], first + linked, "launch")

    def name_apart(self) -> None:
        """Tell streams of one name on one GPU apart by process."""
        seen: dict[tuple[int | None, str], set[int]] = {}
        streams = [n for n in self.owners if self.stage.timelines[n].kind == "stream"]
        for number in streams:
            timeline = self.stage.timelines[number]
            seen.setdefault((timeline.chip, timeline.name), set()).add(self.owners[number])
        for number in streams:
            timeline = self.stage.timelines[number]
            if len(seen[timeline.chip, timeline.name]) > 1:
                pid = self.processes[self.owners[number]].pid
                self.stage.timelines[number] = replace(
                    timeline, name=f"{timeline.name} (process {pid})"
                )

    def _owned(self, key: tuple[object, ...], timeline: Timeline, process: int) -> int:
        number = self.stage.timeline(key, timeline)
        self.owners[number] = process
        return number


def tell_unlinked(state: State, linked: int, unlinked: int) -> None:
    """Note device events that nobody is known to have launched."""
    state.stage.audit.add(
        "unlinked_kernels",
        "note" if linked else "warning",
        state.tables.label,
        "device events have no recorded call that launched them; they count in full, but have no launch and no step",
        unreliable="launch delays and steps",
        count=unlinked,
        of=linked + unlinked,
    )
