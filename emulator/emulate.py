"""How long does a captured workload take on a machine? Lower, schedule and write it, step by step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnprof.emulator.hbm_peak import overflow_notes, peak_of
from trnprof.emulator.prepare import Prepared, prepare
from trnprof.emulator.ranks.faults import NO_FAULTS, Faults
from trnprof.emulator.ranks.meetings import named_ranks
from trnprof.emulator.ranks.placement import PACKED, can_join_cores
from trnprof.emulator.run_step import (
    Emulated,
    Progress,
    Stage,
    count_hbm,
    finish,
    run_step,
    steps,
    to_whole_ns,
)
from trnprof.emulator.system import System
from trnprof.emulator.trace_tracks import DEVICE_CLOCK, peak_rows, use_rows
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import CaptureError, WriteError
from trnprof.tracer.manifest import Clock
from trnprof.tracer.units import format_bytes
from trnprof.tracer.writer import TraceWriter

COST_MODEL = "2026.12"
"""Version of the lowering and its constants; runs of different versions are not comparable."""

EVENT_BYTES, FLOW_BYTES = 110, 30
"""Measured size of one raw row with its share of indexes; the forecast uses them."""

ALL_EDGES_LIMIT = 20_000_000
"""Up to this many events all dependencies are written, beyond it only those that bound a start."""


@dataclass(frozen=True)
class Forecast:
    """What will be written, told before it is.

    Attributes:
        events: number of events.
        nbytes: about so many bytes on disk.
        free_bytes: room on that disk.
    """

    events: int
    nbytes: int
    free_bytes: int


@dataclass(frozen=True)
class Emulation:
    """What came out, for the manifest and the last line on screen."""

    steps: int
    events: int
    device_ns: int
    details: dict[str, Any]


def emulate(
    workload: Workload,
    system: System,
    trace_path: Path,
    *,
    execution: str = "fused",
    edges: str | None = None,
    reproducible: bool = False,
    on_forecast: Callable[[Forecast], None] = lambda _: None,
    placement: str = PACKED,
    lnc: int | None = None,
    faults: Faults = NO_FAULTS,
    fold: bool = True,
) -> Emulation:
    """Time a workload on a system and write the events into a trace directory.

    Ranks that are equal are emulated once; the others are written as replicas of that one.

    Args:
        workload: what was captured.
        system: the machine.
        trace_path: an existing trace directory; this adds the writer ``emulator`` to it.
        execution: ``fused`` or ``eager``.
        edges: which dependencies to write: all, binding or none; by default all up to ALL_EDGES_LIMIT events.
        reproducible: leave out what differs between two runs.
        on_forecast: told how much will be written, after the first step was lowered.
        placement: of ranks: packed, spread or a table (see ``ranks.placement``).
        lnc: physical cores a rank; None: 1 for a single rank, else 2 where the cores can be joined.
        faults: ranks, chips and links that are not as they should be.
        fold: emulate equal ranks once; False: each of them, at so many times the cost.

    Raises:
        CaptureError: the workload holds no device operation, groups of ranks that it does not have, or ranks that wait for each other.
        SystemDescriptionError: the ranks cannot be placed so, or a fault of a rank that is not there.
        CollectiveError: a collective that makes no sense.
        FabricError: a fault of a link or chip that is not there, or chips that nothing joins.
        WriteError: it will not fit the disk, or writing failed.
    """
    if not workload.operations:
        raise CaptureError("the workload holds no device operation: nothing to emulate")
    ready = prepare(workload, system, execution, placement, lnc, faults, fold)
    progress = ready.progress
    clocks = [Clock(DEVICE_CLOCK, "device")]
    with TraceWriter(
        trace_path, writer="emulator", clocks=clocks, reproducible=reproducible
    ) as writer:
        _write_tables(writer, ready)
        for number, stages in enumerate(steps(progress)):
            if number == 0:
                forecast = _forecast(stages, trace_path)
                on_forecast(forecast)
                edges = edges or ("all" if forecast.events <= ALL_EDGES_LIMIT else "binding")
            run_step(writer, stages, progress, edges or "all")
        finish(writer, progress)
    return Emulation(
        steps=len(workload.steps),
        events=progress.events,
        device_ns=to_whole_ns(progress.end_ps),
        details=_details(workload, execution, progress),
    )


def _write_tables(writer: TraceWriter, ready: Prepared) -> None:
    """What is known before the first step."""
    progress = ready.progress
    writer.add_tracks(progress.plan.rows)
    if ready.groups:
        writer.add_groups(ready.groups)
    writer.set_peaks(peak_rows(progress.system))
    writer.add_ops(ready.modules)
    for each in progress.classes:
        uses = list(each.hbm.by_use)
        writer.add_tracks(use_rows(progress.plan.rows, each.counter, uses))
        count_hbm(writer, each.counter, each.hbm.at_start())


def _forecast(stages: Sequence[Stage], path: Path) -> Forecast:
    """Events and bytes of the whole from those of the first step."""
    events = flows = 0
    for stage in stages:
        lowered = stage.lowered
        scale = len(stage.of.source.program.operations) / max(1, len(stage.operations))
        on_links = sum(len(cost.links) for cost in lowered.collectives.values())
        events += round((len(lowered.tasks) + on_links) * scale)
        flows += round(len(lowered.tasks.edge_kinds) * scale)
    nbytes = events * EVENT_BYTES + flows * FLOW_BYTES
    free = shutil.disk_usage(path).free
    # recording streams and their sealed copies exist side by side for a moment
    if 2 * nbytes > free:
        raise WriteError(
            f"{path}: about {format_bytes(2 * nbytes)} are needed while writing, {format_bytes(free)} are free; "
            "record fewer steps (--steps A..B), or choose another disk with -o"
        )
    return Forecast(events, nbytes, free)


def _details(workload: Workload, execution: str, progress: Progress) -> dict[str, Any]:
    """What the manifest says of the emulation."""
    classes = progress.classes
    first, system = classes[0].ranks, progress.system
    placement = first.placement
    capacity = system.hbm_bytes_per_core * placement.lnc
    fullest = max(classes, key=lambda each: each.hbm.peak_bytes)
    peak = peak_of(fullest.source.program, fullest.hbm.at_peak)
    programs = (workload, *workload.others)
    notes = list(dict.fromkeys(note for program in programs for note in program.notes))
    notes += _overflow(classes, capacity)
    if not all(program.complete for program in programs):
        notes.append("the program ended before its capture was complete; what ran is here")
    count = len(placement.chips)
    ranks = {"world_size": count, "placement": placement.name}
    told = [_told(each) for each in classes]
    return {
        "execution": execution,
        "detail": "operator",
        "lnc": placement.lnc,
        **(ranks if count > 1 else {}),
        **({"rank_classes": told} if len(classes) > 1 else {}),
        **({"faults": faults.told()} if (faults := first.costs.faults) else {}),
        "cost_model": COST_MODEL,
        "estimates": system.estimates,
        "operations": sum(len(program.operations) for program in programs),
        "hbm_sharers": placement.hbm_sharers,
        **progress.coverage.told(),
        "hbm": {"capacity_bytes": capacity, **peak.told()},
        "notes": notes,
    }


def _told(each: Emulated) -> dict[str, Any]:
    """What the manifest says of one class of several."""
    source = each.source
    return {
        "rank": source.rank,
        "members": list(source.members),
        **({"label": label} if (label := source.program.world.label) else {}),
        "operations": len(source.program.operations),
        "hbm_peak_bytes": each.hbm.peak_bytes,
        "speed": source.speed,
        "late_ns": source.late_ns,
        "end_ns": to_whole_ns(each.end_ps),
    }


def _overflow(classes: Sequence[Emulated], capacity: int) -> list[str]:
    """Notes, if what a class keeps does not fit its memory: all of the first that exceeds it, how many others do."""
    over = [each for each in classes if each.hbm.peak_bytes > capacity]
    if not over:
        return []
    first, placement = over[0], over[0].ranks.placement
    system = first.ranks.system
    core = "one core" if placement.lnc == 1 else f"a logical core (LNC {placement.lnc})"
    whose = f" of {named_ranks(first.source.members)}" if len(classes) > 1 else ""
    can_double = placement.lnc == 1 and can_join_cores(system)
    more = "--lnc 2, which gives a rank the HBM of two cores" if can_double else ""
    peak = peak_of(first.source.program, first.hbm.at_peak)
    notes = overflow_notes(peak, capacity, whose, f"{core} of {system.name}", more)
    if over[1:]:
        members = sorted(rank for each in over[1:] for rank in each.source.members)
        most = max(each.hbm.peak_bytes for each in over[1:])
        notes.append(
            f"nor does that of {named_ranks(members)} fit: up to {format_bytes(most)} at the peak"
        )
    return notes
