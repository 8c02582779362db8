"""How does an SQLite export of Nsight Systems become a trace?

``nsys export --type sqlite REPORT.nsys-rep``. Columns come and go from version to version (2019 to 2026 differ in many): what is not there
reads as empty.
"""

from __future__ import annotations

from typing import Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.nsys.api import Launches, read_calls, read_ranges
from trnprof.tracer.formats.nsys.collectives import Calls, Kernels, Matches, match_launches
from trnprof.tracer.formats.nsys.counters import read_counters
from trnprof.tracer.formats.nsys.facts import assign_ranks, read_facts, tell_missing
from trnprof.tracer.formats.nsys.gpu import read_device
from trnprof.tracer.formats.nsys.names import People, Strings
from trnprof.tracer.formats.nsys.nvtx import read_annotations
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.sqlite.format import sqlite_format
from trnprof.tracer.formats.step_ranges import stage_steps
from trnprof.tracer.formats.tables import Tables
from trnprof.tracer.ingest.stage import Stage

EVENT_TABLES: Final = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
    "OSRT_API",
    "GPU_METRICS",
)
_MARKS: Final = (
    *(name.encode() for name in EVENT_TABLES),
    b"ENUM_NSYS_EVENT_TYPE",
    b"TARGET_INFO_SESSION_START_TIME",
    b"META_DATA_EXPORT",
    b"CREATE TABLE StringIds",
)


def read_tables(tables: Tables, stage: Stage) -> None:
    """Fill a stage from the tables of one profile.

    Raises:
        ProfileError: none of the tables of Nsight Systems is there.
    """
    names = set(tables.names())
    if not names & set(EVENT_TABLES) and "StringIds" not in names:
        some = ", ".join(sorted(names)[:5]) or "no tables at all"
        raise ProfileError(
            f"{tables.label}: no table of Nsight Systems is in it (it has {some}); export with nsys export --type sqlite"
        )
    strings = Strings(tables)
    state = State(tables, stage, strings, People(tables, strings))
    pw_gpu = read_facts(state)
    notes = read_annotations(state)
    launches = Launches()
    read_calls(state, launches)
    calls = notes.calls()
    kernels = Kernels(state, calls, _matches(stage, calls, launches))
    read_device(state, launches, kernels)
    read_ranges(state)
    read_counters(state, pw_gpu)
    assign_ranks(state, calls)
    stage.facts.collectives = kernels.finish()
    stage_steps(stage, notes.steps, state.owners, state.ranks(), launches.launched)
    tell_missing(state)


def _matches(stage: Stage, calls: Calls, launches: Launches) -> Matches:
    thread, rows = launches.threads, launches.rows
    start_ns = stage.times("start_ns")[rows] if len(calls.name) else rows
    return match_launches(calls, thread, start_ns, rows)


FORMAT: Final = sqlite_format("nsys", "Nsight Systems, SQLite export", _MARKS, read_tables)
