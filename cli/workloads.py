"""Where does the workload come from that is to be emulated? From a trace that holds one, or from Chakra execution traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnprof.cli.diagnostics import say
from trnprof.emulator.capture.store import load_workload
from trnprof.emulator.workload import Workload
from trnprof.tracer.compiled import told_of_compiling
from trnprof.tracer.errors import TraceError
from trnprof.tracer.reader import open_trace


def workload_at(paths: Sequence[Path]) -> Workload:
    """The workload that paths name.

    Raises:
        TraceError: several traces, none, or one without a workload.
        ProfileError: execution traces that cannot be read, or differ.
    """
    if are_execution_traces(paths):
        from trnprof.emulator.capture.chakra.workload import read_workload

        with told_of_compiling(_say_compiling):
            return read_workload(paths)
    if len(paths) > 1:
        raise TraceError(
            f"{paths[0]} and {paths[1]}: one trace at a time; only Chakra execution traces (.et) are taken together"
        )
    open_trace(paths[0])
    return load_workload(paths[0])


def are_execution_traces(paths: Sequence[Path]) -> bool:
    """Whether all paths are files of Chakra execution traces, or JSON files of groups beside some."""
    endings = [path.suffix.lower() for path in paths if not path.is_dir()]
    return len(endings) == len(paths) and ".et" in endings and set(endings) <= {".et", ".json"}


def _say_compiling() -> None:
    say("compiling what reads execution traces, once on this machine (up to half a minute)")
