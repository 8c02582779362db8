"""Where does the workload come from that is to be emulated? From a trace that holds one, or from Chakra execution traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnprof.cli.diagnostics import say
from trnprof.emulator.capture.store import load_workload
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import TraceError
from trnprof.tracer.reader import open_trace
from trnprof.tracer.units import counted, format_bytes


def workload_at(paths: Sequence[Path]) -> Workload:
    """The workload that paths name.

    Raises:
        TraceError: several traces, none, or one without a workload.
        ProfileError: execution traces that cannot be read, or differ.
    """
    if are_execution_traces(paths):
        from trnprof.emulator.capture.chakra.workload import read_workload

        return read_workload(paths)
    if len(paths) > 1:
        raise TraceError(
            f"{paths[0]} and {paths[1]}: one trace at a time; only Chakra execution traces (.et) are taken together"
        )
    open_trace(paths[0])
    return load_workload(paths[0])


def emulate_execution_traces(
    paths: Sequence[Path], system: str, output: Path, *, force: bool
) -> None:
    """Emulate execution traces that somebody wants to import."""
    from trnprof.cli.recording import Timing, emulate_trace
    from trnprof.emulator.ranks.placement import PACKED
    from trnprof.emulator.system import load_system

    machine = load_system(system)
    say(f"execution traces say what is to run: emulating it on {machine.name} (--system)")
    emulate_trace(
        paths,
        machine,
        output,
        Timing("fused", edges=None, reproducible=False, placement=PACKED, lnc=None),
        force=force,
    )


def export_execution_traces(trace: Path, output: Path, *, force: bool) -> None:
    """Write the workload of a trace as execution traces."""
    from trnprof.emulator.capture.chakra.export import export_chakra

    open_trace(trace)
    summary = export_chakra(load_workload(trace), output, force=force)
    groups = f", {counted(summary.groups, 'group')} in groups.json" if summary.groups else ""
    say(
        f"{output}: {counted(summary.ranks, 'rank')} of {counted(summary.nodes, 'node')}{groups}, "
        f"{format_bytes(summary.nbytes)}; run it in ASTRA-sim with --workload-configuration={output}/workload"
    )
    if summary.ragged:
        say(
            f"{counted(summary.ragged, 'collective')} whose ranks send each other different amounts: execution traces have the sum alone"
        )


def are_execution_traces(paths: Sequence[Path]) -> bool:
    """Whether all paths are files of Chakra execution traces, or JSON files of groups beside some."""
    endings = [path.suffix.lower() for path in paths if not path.is_dir()]
    return len(endings) == len(paths) and ".et" in endings and set(endings) <= {".et", ".json"}
