"""How do ``record`` and ``emulate`` go, from the command to the sealed trace?"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from trnprof.cli.diagnostics import ExitCode, say
from trnprof.cli.strict import NO_CHECKS, Checks, failed, tell_coverage
from trnprof.cli.workloads import workload_at
from trnprof.emulator.capture.launcher import CaptureResult, check_command, run_captured
from trnprof.emulator.capture.moe_load import ROUTING_NOTE, UNIFORM, read_moe_load
from trnprof.emulator.capture.store import holds_workload, load_workload, save_workload
from trnprof.emulator.capture.torchrun import RankCommand, rank_command
from trnprof.emulator.emulate import Emulation, Forecast, emulate
from trnprof.emulator.ranks.faults import NO_FAULTS, Faults
from trnprof.emulator.ranks.meetings import named_ranks
from trnprof.emulator.ranks.placement import place_ranks
from trnprof.emulator.ranks.ranks import check_engines
from trnprof.emulator.system import System
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import CaptureError, TrnprofError
from trnprof.tracer.manifest import create_trace_directory, trace_beside, write_manifest
from trnprof.tracer.stopping import undone
from trnprof.tracer.units import format_bytes, format_count, format_ns

_SIGNALLED: Final = 128
"""A shell's exit code for a command that signal n ended is this plus n."""


@dataclass(frozen=True)
class Timing:
    """How a workload is timed and written.

    Attributes:
        execution: execution model of the lowering.
        edges: dependencies to keep, None for what its size allows.
        reproducible: leave out what differs between two runs.
        placement: of ranks: packed, spread or a table.
        lnc: physical cores a rank, None for the system's own.
        faults: ranks, chips and links that are not as they should be.
        fold: emulate equal ranks once.
        checks: what makes the command fail.
    """

    execution: str
    edges: str | None
    reproducible: bool
    placement: str
    lnc: int | None
    faults: Faults = NO_FAULTS
    fold: bool = True
    checks: Checks = NO_CHECKS


def record_command(
    command: Sequence[str],
    system: System,
    output: Path,
    timing: Timing,
    *,
    world_size: int | None,
    fake: bool | None,
    steps: tuple[int, int] | None,
    force: bool,
    moe_load: str | None = None,
) -> int:
    """Run a command under capture and emulate what it did.

    Returns:
        The command's own exit code, or 1 if that is 0 and a check failed; 2 if there was nothing to capture, unless a signal ended the command.

    Raises:
        CaptureError: nothing can be run, several ranks are to be run for real, what was captured cannot be emulated, or a machine without engines.
        SystemDescriptionError: the ranks cannot be placed on the system, or a fault of a rank that is not there.
        FabricError: a fault of a link or chip that is not there.
    """
    check_engines(system)
    rank = rank_command(command, world_size)
    check_command(rank.command)
    is_fake = _is_fake(rank, fake)
    if moe_load is not None:
        _check_moe_load(moe_load, is_fake)
    place_ranks(system, rank.world_size or 1, timing.placement, timing.lnc)
    timing.faults.check_before(rank.world_size, system.topology)
    directory = create_trace_directory(output, force=force).resolve()
    _tell_world(rank)
    with undone(partial(_remove_if_nothing, directory)):
        result = run_captured(
            rank,
            directory,
            fake=is_fake,
            steps=steps,
            host_spans=not timing.reproducible,
            on_ranks=_tell_ranks,
            moe_load=moe_load or UNIFORM,
        )
    workload = load_workload(directory) if result.captured else None
    if workload is None or not workload.operations:
        shutil.rmtree(directory, ignore_errors=True)
        say(_why_nothing(rank.command, result, steps, workload))
        return result.exit_code or int(ExitCode.BAD_INPUT)
    if result.exit_code:
        say(f"the command ended with code {result.exit_code}; what ran until then is recorded")
    if timing.reproducible:
        workload = without_paths(workload)
        save_workload(directory, workload)
    if moe_load is not None and not any(n.startswith(ROUTING_NOTE) for n in workload.notes):
        say(f"--moe-load {moe_load} changed nothing: no size follows from where tokens are routed")
    try:
        found = _emulate_into(directory, output, workload, system, list(command), timing)
    except TrnprofError as error:
        kept = f"trnprof emulate {shlex.quote(str(output))} --system SYSTEM -o OTHER.trnprof"
        raise CaptureError(
            f"{error}; what the command did is recorded all the same: {kept}"
        ) from error
    return result.exit_code or int(found)


def _is_fake(rank: RankCommand, fake: bool | None) -> bool:
    """Whether the program runs on fake tensors: by default where there are several ranks.

    Raises:
        CaptureError: several are to run for real.
    """
    has_others = (rank.world_size or 1) > 1
    if has_others and fake is False:
        raise CaptureError(
            f"--real runs one rank, not {rank.world_size}: what the others would send does not exist; leave out --real"
        )
    return has_others if fake is None else fake


def _check_moe_load(moe_load: str, is_fake: bool) -> None:
    """Refuse a load of experts that cannot be.

    Raises:
        CaptureError: an unknown form, or tensors that have values and so are routed by those.
    """
    read_moe_load(moe_load)
    if not is_fake:
        raise CaptureError(
            "--moe-load chooses where tokens of fake tensors are routed, real ones go by their values: add --fake, or leave it out"
        )


def _tell_world(rank: RankCommand) -> None:
    """Which world is played."""
    size = rank.world_size
    if size is None:
        return
    nodes = size // rank.local_size
    launcher = f"{rank.launcher} recognised ({nodes} x {rank.local_size} ranks), not run: "
    say(f"{launcher if rank.launcher else ''}the program runs once, as rank 0 of {size}")


def _tell_ranks(ranks: Sequence[int]) -> None:
    """Which further ones are run."""
    say(f"ranks differ (stages of a pipeline): the program runs for {named_ranks(ranks)} too")


def _remove_if_nothing(directory: Path) -> None:
    """Take a trace directory away into which nothing was captured."""
    if not holds_workload(directory):
        shutil.rmtree(directory, ignore_errors=True)


def without_paths(workload: Workload) -> Workload:
    """The same workload with source files named without their folders."""
    operations = tuple(
        replace(op, source_file=Path(op.source_file).name) for op in workload.operations
    )
    others = tuple(map(without_paths, workload.others))
    return replace(workload, operations=operations, others=others)


def _why_nothing(
    command: Sequence[str],
    result: CaptureResult,
    steps: tuple[int, int] | None,
    workload: Workload | None,
) -> str:
    code = result.exit_code
    if workload is not None and workload.others:
        return f"nothing was captured: the command ended with code {code} before all ranks had ended a step"
    if result.failure:
        return f"nothing was captured: {result.failure}"
    if not result.started:
        return f"the capture could not be started, the command ended with code {code}: {_why_not_started(command)}"
    if steps is not None and result.process is not None:
        return f"nothing to capture in steps {steps[0]}..{steps[1]}; the command ended with code {code}"
    if code > _SIGNALLED:
        return f"nothing was captured: {command[0]!r} was ended by signal {code - _SIGNALLED} before a step was over"
    if code:
        return f"nothing was captured: {command[0]!r} failed with code {code} before any PyTorch operation of a model or function that JAX compiled"
    return (
        f"nothing to capture: {command[0]!r} ran no PyTorch operation of a model and no function that JAX compiled "
        "(import torch, and call a module, backward or an optimizer; code without modules only in the thread that imports torch; "
        "or import jax, and call a jitted function)"
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
    traces: Sequence[Path],
    system: System,
    output: Path,
    timing: Timing,
    *,
    force: bool,
) -> int:
    """Time the workload saved in a trace, or that of execution traces, on another system, into a trace of its own; 1 if a check failed."""
    workload = workload_at(traces)
    with trace_beside(output, force=force) as directory:
        save_workload(directory, workload)
        return int(_emulate_into(directory, output, workload, system, None, timing))


def _emulate_into(
    directory: Path,
    shown: Path,
    workload: Workload,
    system: System,
    command: list[str] | None,
    timing: Timing,
) -> ExitCode:
    outcome = emulate(
        workload,
        system,
        directory,
        execution=timing.execution,
        edges=timing.edges,
        reproducible=timing.reproducible,
        on_forecast=_tell_forecast,
        placement=timing.placement,
        lnc=timing.lnc,
        faults=timing.faults,
        fold=timing.fold,
    )
    write_manifest(
        directory,
        is_simulation=True,
        command=command,
        system=system.describe(),
        emulation=outcome.details,
        reproducible=timing.reproducible,
    )
    _tell_outcome(shown, system, outcome)
    return failed(outcome.details, timing.checks)


def _where(details: Mapping[str, Any]) -> str:
    """The ranks, where there are several."""
    if "world_size" not in details:
        return ""
    return f", {details['world_size']} ranks {details['placement']}, LNC {details['lnc']}"


def _tell_forecast(forecast: Forecast) -> None:
    say(
        f"about {format_count(forecast.events)} events, {format_bytes(forecast.nbytes)} will be written "
        f"({format_bytes(forecast.free_bytes)} free)"
    )


def _tell_outcome(shown: Path, system: System, outcome: Emulation) -> None:
    details = outcome.details
    for note in details["notes"]:
        say(note)
    tell_coverage(details)
    per_step = format_ns(outcome.device_ns / max(1, outcome.steps))
    say(
        f"{shown}: {outcome.steps} step(s), {format_count(outcome.events)} events, {per_step} a step "
        f"on {system.name} ({details['execution']}{_where(details)})"
    )
    name = shlex.quote(str(shown))
    say(f"next: trnprof report {name} · trnprof view {name}")
