"""Which GPUs and ranks does an AMD database tell of, and what is in it that is not imported?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trnprof.tracer.formats.gpu_peaks import find_gpu, peak_rows
from trnprof.tracer.formats.rocpd.state import State


def describe_gpus(state: State) -> None:
    """Give the GPUs that were used their peaks, and describe the machine."""
    found = {
        g.number: find_gpu(g.model, memory_bytes=g.memory_bytes, units=g.units)
        for g in state.gpus.values()
        if g.model
    }
    for number, timeline in enumerate(state.stage.timelines):
        if timeline.kind == "chip" and timeline.chip in found:
            told = found[timeline.chip]
            state.stage.timelines[number] = replace(
                timeline,
                peak_flops=told.matmul_flops_per_s,
                peak_bytes_per_s=told.bytes_per_s,
            )
    if not found:
        return
    number = min(found)
    gpu, known = state.gpus[number], found[number]
    chip: dict[str, Any] = {"name": gpu.model}
    if gpu.units:
        chip["compute_units"] = gpu.units
    if memory := gpu.memory_bytes or known.memory_bytes:
        chip["hbm_bytes"] = memory
    if known.bytes_per_s:
        chip["hbm_bytes_per_s"] = known.bytes_per_s
    state.stage.facts.system = {"name": gpu.model, "chip": chip}
    state.stage.facts.peaks = peak_rows({state.gpus[n].name: told for n, told in found.items()})


def assign_ranks(state: State) -> None:
    """Give the timelines of several ranks in one database their ranks: as processes say, else in the order of their GPUs.

    One process on one GPU is one rank: that of the source.
    """
    facts, stage = state.stage.facts, state.stage
    processes = sorted({process for process, _ in state.unit_rows})
    stated = {p: state.processes[p].rank for p in processes}
    main_gpu = {p: _main_gpu(state, p) for p in processes}
    if len(processes) < 2:
        known = [p.rank for p in state.processes if p.rank is not None]
        facts.rank = known[0] if len(known) == 1 else facts.rank
        gpus = sorted(gpu for _, gpu in state.unit_rows)
        if len(gpus) > 1:
            _rank_chips(state, {gpu: gpu for gpu in gpus})
        return
    ranks = {p: rank for p, rank in stated.items() if rank is not None}
    if len(set(ranks.values())) < len(processes):
        order = sorted(processes, key=lambda p: (main_gpu[p], p))
        ranks = {p: i for i, p in enumerate(order)}
        stage.audit.add(
            "merged_ranks",
            "warning",
            state.tables.label,
            f"{len(order)} processes used GPUs and do not say their ranks; they are ranks 0 to {len(order) - 1} in the order of their GPUs",
            unreliable="which rank is which",
            count=len(order),
            example=f"process {state.processes[order[0]].pid}",
        )
    facts.rank = min(ranks.values())
    for number, owner in state.owners.items():
        if owner in ranks:
            stage.timelines[number] = replace(stage.timelines[number], rank=ranks[owner])
    for process, rank in ranks.items():
        state.processes[process] = replace(state.processes[process], rank=rank)
    _rank_chips(state, {main_gpu[p]: ranks[p] for p in processes})


def tell_missing(state: State, expected: Mapping[str, str], passed_over: Mapping[str, str]) -> None:
    """Findings: what the database has nothing of, and which of its tables are not imported.

    Args:
        state: the profile.
        expected: beginning of the name of a table → what it means that no row of it is there.
        passed_over: beginning of the name of a table → what its rows are.
    """
    counts = {
        name: state.tables.rows(name)
        for name in state.tables.names()
        if name.startswith(("rocpd_", "ext_"))
    }
    for table, meaning in expected.items():
        if not any(count for name, count in counts.items() if name.startswith(table)):
            state.stage.audit.add("missing_table", "note", state.where(table), meaning)
    for table, what in passed_over.items():
        rows = sum(count for name, count in counts.items() if name.startswith(table))
        state.stage.audit.add(
            "not_imported", "note", state.where(table), f"{what} are not imported", count=rows
        )


def _main_gpu(state: State, process: int) -> int:
    return max((n, -g, g) for (p, g), n in state.unit_rows.items() if p == process)[2]


def _rank_chips(state: State, ranks: Mapping[int, int]) -> None:
    """Ranks of GPUs and of what stands under them and has none yet."""
    for number, timeline in enumerate(state.stage.timelines):
        rank = None if timeline.chip is None else ranks.get(timeline.chip)
        if rank is not None and timeline.rank is None:
            state.stage.timelines[number] = replace(timeline, rank=rank)
