"""What did the threads of an Nsight Systems profile call: CUDA, the operating system, libraries? And which call launched what?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.tracer.formats.attribute_text import json_objects
from trnprof.tracer.formats.nsys.names import process_of
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.table_columns import fingerprint, per_group
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints
from trnprof.tracer.ingest.stage import UNFINISHED

_CUDA_TABLES: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_RANGE_TITLES: Final = {
    "OSRT_API": "OS runtime",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "profiler overhead",
    "PROFILER_OVERHEAD": "profiler overhead",
    "CUDNN_EVENTS": "cuDNN",
    "CUBLAS_EVENTS": "cuBLAS",
    "MPI_COLLECTIVES_EVENTS": "MPI",
    "MPI_P2P_EVENTS": "MPI",
    "MPI_START_WAIT_EVENTS": "MPI",
    "MPI_OTHER_EVENTS": "MPI",
}
"""What the timeline beside a thread is called; other tables of ranges go by their own name."""
_NOT_RANGES: Final = frozenset((*_CUDA_TABLES, "NVTX_EVENTS", "SCHED_EVENTS", "COMPOSITE_EVENTS"))


class Launches:
    """CUDA calls, to be found by process and correlation.

    Attributes:
        only_process: the process of all calls if they are of one, -1 otherwise.
        threads, rows: of each call with a correlation: its globalTid, and its row of the stage.
        launched: first row of a block of events, and the rows of the calls that launched them.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[Ints, Ints, Ints]] = []
        self.threads: Ints = np.zeros(0, np.int64)
        self.rows: Ints = np.zeros(0, np.int64)
        self._tables: dict[int, tuple[int, Ints]] = {}
        self.launched: list[tuple[int, Ints]] = []
        self.only_process = -1

    def add(self, thread: Ints, correlation: Ints, rows: Ints) -> None:
        """Calls of some threads (globalTid), by row of the stage."""
        self._blocks.append((thread, correlation, rows))

    def finish(self) -> None:
        """Make the index; nothing may be added afterwards."""
        if not self._blocks:
            return
        thread, correlation, rows = (np.concatenate(p) for p in zip(*self._blocks, strict=True))
        self._blocks = []
        self.threads, self.rows = thread, rows
        process = process_of(thread)
        groups, at = distinct([process])
        self.only_process = int(process[0]) if len(at) == 1 else -1
        for group, row in enumerate(at.tolist()):
            chosen = groups == group if len(at) > 1 else slice(None)
            self._tables[int(process[row])] = _index(correlation[chosen], rows[chosen])

    def rows_of(self, process: Ints, correlation: Ints, has: Bools) -> Ints:
        """Rows of the calls with these correlations; -1 where there is none."""
        found = np.full(len(process), -1, np.int64)
        groups, at = distinct([process])
        for group, row in enumerate(at.tolist()):
            table = self._tables.get(int(process[row]))
            if table is None:
                continue
            chosen = np.flatnonzero((groups == group) & has)
            found[chosen] = _look_up(table, correlation[chosen])
        return found

    def note(self, launch: Ints, first: int) -> None:
        """Remember which calls launched the events from row ``first`` on, for their steps."""
        self.launched.append((first, launch))


def read_calls(state: State, launches: Launches) -> None:
    """Stage CUDA calls, and index them."""
    words = state.strings.api_words()
    for table in _CUDA_TABLES:
        ints = ["start", "end", "globalTid", "correlationId", "nameId", "returnValue"]
        for block in state.tables.scan(table, ints=ints):
            tid = block.ints("globalTid")
            groups, at = distinct([tid])
            codes = state.strings.codes(block.ints("nameId"), block.has("nameId"))
            correlation, has = block.ints("correlationId"), block.has("correlationId")
            failed = block.ints("returnValue")
            first = state.stage.add_events(
                timeline=per_group(groups, [state.thread(int(tid[i])) for i in at]),
                start_ns=block.ints("start"),
                end_ns=block.ints("end", UNFINISHED),
                name=state.strings.pick(codes, words),
                category="host",
                attributes=json_objects(
                    block.count,
                    [("returnValue", failed, failed != 0), ("correlationId", correlation, has)],
                ),
                fingerprint=fingerprint(block, ["nameId", "correlationId"]),
            )
            rows = first + np.flatnonzero(has)
            launches.add(tid[has], correlation[has], rows)
    launches.finish()


def read_ranges(state: State) -> None:
    """Stage every other table of ranges on threads: OS runtime, overhead of the profiler, MPI, cuDNN, cuBLAS and others."""
    for table in state.tables.names():
        columns = set(state.tables.columns(table))
        name = next((c for c in ("nameId", "textId", "name", "text") if c in columns), None)
        is_range = {"start", "end", "globalTid"} <= columns and table not in _NOT_RANGES
        if is_range and name is not None:
            _read_ranges(state, table, name)


def _read_ranges(state: State, table: str, name: str) -> None:
    title = _RANGE_TITLES.get(table, table)
    is_text = name in ("name", "text")
    left = {"start", "end", "globalTid", name, "eventClass", "globalVid"}
    kept = [c for c in state.tables.columns(table) if c not in left and not c.startswith("call")]
    ints = ["start", "end", "globalTid", *kept, *(() if is_text else (name,))]
    for block in state.tables.scan(table, ints=ints, texts=[name] if is_text else []):
        tid = block.ints("globalTid")
        groups, at = distinct([tid])
        codes = state.strings.codes(block.ints(name), block.has(name))
        words = block.text(name).fill_null(table) if is_text else None
        members = [(c, *block.numbers[c]) for c in kept if c in block.numbers]
        state.stage.add_events(
            timeline=per_group(groups, [state.beside_thread(int(tid[i]), title, 5) for i in at]),
            start_ns=block.ints("start"),
            end_ns=block.ints("end", UNFINISHED),
            name=state.strings.pick(codes) if words is None else words,
            category="host",
            attributes=json_objects(block.count, members),
            fingerprint=fingerprint(
                block,
                kept if is_text else [name, *kept],
                None if words is None else pl.Series(words),
            ),
        )


def _index(correlation: Ints, rows: Ints) -> tuple[int, Ints]:
    """First correlation and a table by correlation; or -1 and two sorted arrays in one where numbers are too sparse."""
    low, high = int(correlation.min()), int(correlation.max())
    if high - low > 16 * len(rows) + (1 << 20):
        order = np.argsort(correlation, kind="stable")
        return -1, np.stack([correlation[order], rows[order]])
    table = np.full(high - low + 1, -1, np.int64)
    table[correlation[::-1] - low] = rows[::-1]  # the first of several stands
    return low, table


def _look_up(index: tuple[int, Ints], correlation: Ints) -> Ints:
    low, table = index
    if table.ndim == 2:
        at = np.minimum(np.searchsorted(table[0], correlation), table.shape[1] - 1)
        return np.where(table[0][at] == correlation, table[1][at], -1)
    at = correlation - low
    fits = (at >= 0) & (at < len(table))
    return np.where(fits, table[np.where(fits, at, 0)], -1)
