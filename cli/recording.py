"""How do ``record`` and ``emulate`` go, from the command to the sealed trace?"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from trnprof.cli.diagnostics import ExitCode, say
from trnprof.emulator.capture.launcher import CaptureResult, check_command, run_captured
from trnprof.emulator.capture.store import holds_workload, load_workload, save_workload
from trnprof.emulator.emulate import Emulation, Forecast, emulate
from trnprof.emulator.system import System
from trnprof.emulator.workload import Workload
from trnprof.tracer.manifest import create_trace_directory, trace_beside, write_manifest
from trnprof.tracer.reader import open_trace
from trnprof.tracer.stopping import undone
from trnprof.tracer.units import format_bytes, format_count, format_ns

_SIGNALLED: Final = 128
"""A shell's exit code for a command that signal n ended is this plus n."""


def record_command(
    command: Sequence[str],
    system: System,
    output: Path,
    *,
    fake: bool,
    steps: tuple[int, int] | None,
    execution: str,
    edges: str | None,
    reproducible: bool,
    force: bool,
) -> int:
    """Run a command under capture and emulate what it did.

    Returns:
        The command's own exit code; 2 if there was nothing to capture, unless a signal ended the command.
    """
    check_command(command)
    directory = create_trace_directory(output, force=force).resolve()
    with undone(partial(_remove_if_nothing, directory)):
        result = run_captured(
            command, directory, fake=fake, steps=steps, host_spans=not reproducible
        )
    workload = load_workload(directory) if result.captured else None
    if workload is None or not workload.operations:
        shutil.rmtree(directory, ignore_errors=True)
        say(_why_nothing(command, result, steps))
        is_stopped = result.exit_code > _SIGNALLED
        return result.exit_code if is_stopped else int(ExitCode.BAD_INPUT)
    if result.exit_code:
        say(f"the command ended with code {result.exit_code}; what ran until then is recorded")
    if reproducible:
        workload = without_paths(workload)
        save_workload(directory, workload)
    _emulate_into(
        directory, output, workload, system, list(command), execution, edges, reproducible
    )
    return result.exit_code


def _remove_if_nothing(directory: Path) -> None:
    """Take a trace directory away into which nothing was captured."""
    if not holds_workload(directory):
        shutil.rmtree(directory, ignore_errors=True)


def without_paths(workload: Workload) -> Workload:
    """The same workload with source files named without their folders."""
    operations = tuple(
        replace(op, source_file=Path(op.source_file).name) for op in workload.operations
    )
    return replace(workload, operations=operations)


def _why_nothing(
    command: Sequence[str], result: CaptureResult, steps: tuple[int, int] | None
) -> str:
    code = result.exit_code
    if result.failure:
        return f"nothing was captured: {result.failure}"
    if not result.started:
        return f"the capture could not be started, the command ended with code {code}: {_why_not_started(command)}"
    if steps is not None and result.process is not None:
        return f"nothing to capture in steps {steps[0]}..{steps[1]}; the command ended with code {code}"
    if code > _SIGNALLED:
        return f"nothing was captured: {command[0]!r} was ended by signal {code - _SIGNALLED} before a step was over"
    return (
        f"nothing to capture: {command[0]!r} ended with code {code} and ran no PyTorch operation of a model "
        "(import torch, and call a module, backward or an optimizer; code without modules only in the thread that imports torch)"
    )


def _why_not_started(command: Sequence[str]) -> str:
    """Python's options that keep the capture out: it comes in by PYTHONPATH and sitecustomize."""
    if Path(command[0]).name.startswith(("python", "pypy")):
        for option in command[1:]:
            if not option.startswith("-") or option.startswith(("-c", "-m")):
                break
            letters = "" if option.startswith("--") else option.partition("c")[0].partition("m")[0]
            found = next((letter for letter in letters if letter in "IES"), None)
            if found is not None:
                reason = "skips sitecustomize" if found == "S" else "ignores PYTHONPATH"
                return f"{command[0]} {option} {reason}, by which it enters; leave out -{found}"
    return (
        f"{command[0]!r} started no Python that reads PYTHONPATH and sitecustomize, by which it enters "
        "(not python -I, -E, -S, and not with an emptied environment)"
    )


def emulate_trace(
    trace: Path,
    system: System,
    output: Path,
    *,
    execution: str,
    edges: str | None,
    reproducible: bool,
    force: bool,
) -> None:
    """Time the workload saved in a trace on another system, into a trace of its own."""
    open_trace(trace)
    workload = load_workload(trace)
    with trace_beside(output, force=force) as directory:
        save_workload(directory, workload)
        _emulate_into(directory, output, workload, system, None, execution, edges, reproducible)


def _emulate_into(
    directory: Path,
    shown: Path,
    workload: Workload,
    system: System,
    command: list[str] | None,
    execution: str,
    edges: str | None,
    reproducible: bool,
) -> None:
    outcome = emulate(
        workload,
        system,
        directory,
        execution=execution,
        edges=edges,
        reproducible=reproducible,
        on_forecast=_tell_forecast,
    )
    write_manifest(
        directory,
        is_simulation=True,
        command=command,
        system=system.describe(),
        emulation=outcome.details,
        reproducible=reproducible,
    )
    _tell_outcome(shown, system, outcome)


def _tell_forecast(forecast: Forecast) -> None:
    say(
        f"about {format_count(forecast.events)} events, {format_bytes(forecast.nbytes)} will be written "
        f"({format_bytes(forecast.free_bytes)} free)"
    )


def _tell_outcome(shown: Path, system: System, outcome: Emulation) -> None:
    details = outcome.details
    for note in details["notes"]:
        say(note)
    if details["fallback_ops"]:
        names = ", ".join(f"{name} ({count})" for name, count in details["fallback_names"].items())
        share = details["fallback_time_percent"]
        say(f"lowered by the roofline fallback, {share:.1%} of busy time: {names}")
    per_step = format_ns(outcome.device_ns / max(1, outcome.steps))
    say(
        f"{shown}: {outcome.steps} step(s), {format_count(outcome.events)} events, {per_step} a step "
        f"on {system.name} ({details['execution']})"
    )
    name = shlex.quote(str(shown))
    say(f"next: trnprof report {name} · trnprof view {name}")
