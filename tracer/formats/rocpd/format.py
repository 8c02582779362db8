"""How does an AMD ROCm profiler database (SQLite) become a trace?

Two tools write such databases: rocprofv3 (``--output-format rocpd``; ROCm Systems Profiler writes the same), and the older rpd tracer of rocmProfileData.
"""

from __future__ import annotations

from typing import Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.rocpd.facts import assign_ranks, describe_gpus, tell_missing
from trnprof.tracer.formats.rocpd.rpd import RPD_EXPECTED, RPD_PASSED_OVER, RPD_TABLES, read_rpd
from trnprof.tracer.formats.rocpd.sdk import EXPECTED, PASSED_OVER, read_sessions
from trnprof.tracer.formats.rocpd.session import session_suffixes
from trnprof.tracer.formats.rocpd.state import State
from trnprof.tracer.formats.sqlite.format import sqlite_format
from trnprof.tracer.formats.step_ranges import stage_steps
from trnprof.tracer.formats.tables import Tables
from trnprof.tracer.ingest.stage import Stage

_MARKS: Final = (
    *(b"rocpd_kernel_dispatch", b"rocpd_info_", b"rocpd_region", b"rocpd_memory_copy"),
    *(b"rocpd_api", b"rocpd_op", b"rocpd_kernelapi", b"rocpd_metadata", b"rocpd_string"),
)


def read_tables(tables: Tables, stage: Stage) -> None:
    """Fill a stage from the tables of a database.

    Raises:
        ProfileError: none of the tables of an AMD profiler is there.
    """
    names = tables.names()
    suffixes = session_suffixes(names)
    has_rpd = bool(set(names) & set(RPD_TABLES))
    if not suffixes and not has_rpd:
        some = ", ".join(sorted(names)[:5]) or "no tables at all"
        raise ProfileError(
            f"{tables.label}: no table of rocprofv3 or rpd is in it (it has {some}); record with rocprofv3 --output-format rocpd"
        )
    state = State(tables, stage)
    if suffixes:
        read_sessions(state, suffixes)
    else:
        read_rpd(state)
    state.name_apart()
    assign_ranks(state)
    describe_gpus(state)
    ranks = {i: p.rank for i, p in enumerate(state.processes) if p.rank is not None}
    stage_steps(stage, state.steps, state.owners, ranks, state.launched)
    tell_missing(
        state, EXPECTED if suffixes else RPD_EXPECTED, PASSED_OVER if suffixes else RPD_PASSED_OVER
    )


FORMAT: Final = sqlite_format(
    "rocpd", "AMD ROCm profiler database (rocprofv3, rpd)", _MARKS, read_tables
)
