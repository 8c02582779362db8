"""How do the tables of rocprofv3 and ROCm Systems Profiler become events?"""

from __future__ import annotations

from typing import Final

from trnprof.tracer.formats.collective_names import is_collective_kernel
from trnprof.tracer.formats.rocpd.collectives import Collectives
from trnprof.tracer.formats.rocpd.counters import read_counters
from trnprof.tracer.formats.rocpd.device import (
    Device,
    read_allocations,
    read_copies,
    read_graphs,
    read_kernels,
)
from trnprof.tracer.formats.rocpd.events import read_events
from trnprof.tracer.formats.rocpd.host import read_marks, read_regions
from trnprof.tracer.formats.rocpd.lookup import Words
from trnprof.tracer.formats.rocpd.session import Session, read_session
from trnprof.tracer.formats.rocpd.state import Launches, State, tell_unlinked

EXPECTED: Final = {
    "rocpd_kernel_dispatch": "no kernels: was anything run on a GPU, and recorded with --kernel-trace?",
    "rocpd_region": "no calls: nothing is linked to what launched it; record with --hip-trace or --sys-trace",
}
PASSED_OVER: Final = {
    "rocpd_event_operation": "waits and signals of events",
    "rocpd_hip_event": "HIP events",
    "rocpd_pc_sample_event": "samples of program counters",
    "rocpd_call_stack": "call stacks",
    "rocpd_line_info": "places in the source",
}


def read_sessions(state: State, suffixes: list[str]) -> None:
    """Stage the events of each set of tables."""
    sessions = [read_session(state, suffix) for suffix in suffixes]
    collectives = Collectives(state)
    for session in sessions:
        _read_session(session, collectives)
    collectives.finish()


def _read_session(session: Session, collectives: Collectives) -> None:
    launches = Launches()
    table = session.table("rocpd_info_kernel_symbol")
    kernels = Words.read(session.state.tables, table, "display_name", "kernel_name")
    events = read_events(session)
    try:
        read_regions(session, events, launches)
        launches.finish()
        is_collective = is_collective_kernel(kernels.words)
        device = Device(session, events, launches, collectives, is_collective, kernels, [])
        read_kernels(device)
        read_copies(device)
        read_graphs(device)
        read_allocations(device)
        tell_unlinked(session.state, device.linked, device.unlinked)
        read_marks(session, events, read_counters(session, events, device.dispatched))
    finally:
        events.close()
