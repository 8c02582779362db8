"""What has to be known before the first step? Who is emulated, where, with whom, at what costs, on which tracks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from trnprof.emulator.hbm_uses import use_places
from trnprof.emulator.lowering.residency import lifetimes
from trnprof.emulator.op_rows import module_rows
from trnprof.emulator.ranks.classes import RankClass, classes_of
from trnprof.emulator.ranks.costs import CollectiveCost, CollectiveCosts
from trnprof.emulator.ranks.faults import Faults
from trnprof.emulator.ranks.joint import server_maps
from trnprof.emulator.ranks.meetings import Meetings, meetings_of
from trnprof.emulator.ranks.placement import place_ranks
from trnprof.emulator.ranks.ranks import Ranks, check_costs, ranks_for
from trnprof.emulator.ranks.tracks import plan_tracks
from trnprof.emulator.run_step import Emulated, Progress
from trnprof.emulator.system import System
from trnprof.emulator.workload import Workload


@dataclass(frozen=True)
class Prepared:
    """What is written before the first step, and what the steps go on from.

    Attributes:
        progress: at the start.
        groups: rows of ``groups``, empty if there are none.
        modules: rows of ``ops``.
    """

    progress: Progress
    groups: dict[str, list[Any]]
    modules: dict[str, list[Any]]


def prepare(
    workload: Workload,
    system: System,
    execution: str,
    placement: str,
    lnc: int | None,
    faults: Faults,
    fold: bool,
) -> Prepared:
    """Find out everything that can be wrong, before anything is written.

    Raises:
        CaptureError, SystemDescriptionError, CollectiveError, FabricError: see ``emulate``.
    """
    placed = place_ranks(system, workload.world.size, placement, lnc)
    faults.check(workload.world.size, system.topology.chips)
    for program in (workload, *workload.others):
        check_costs(program.operations, system)
    costs = CollectiveCosts(system.machine, placed.chips, faults)
    classes = classes_of(workload, costs, fold=fold)
    meetings = meetings_of(classes)
    groups, group_ids = _group_rows(classes)
    ranks = [
        ranks_for(
            each.program.operations,
            system,
            placed,
            rank=each.rank,
            groups=each.program.groups,
            members=each.members,
            shared=costs,
            group_ids=ids,
            alike=each.alike,
            label=each.program.world.label,
        )
        for each, ids in zip(classes, group_ids, strict=True)
    ]
    _reckon(classes, ranks, meetings, costs)
    plan = plan_tracks(ranks)
    servers, server_count = server_maps(ranks, len(costs.part_names) if groups else 0)
    modules, module_ids = module_rows([op for c in classes for op in c.program.operations])
    first_ids = accumulate(
        (len(each.program.operations) for each in classes), initial=len(module_ids)
    )
    emulated = tuple(
        Emulated(
            ranks[i],
            each,
            lifetimes(each.program.operations),
            first_op_id,
            servers[i],
            meetings.places[i],
            plan.counters[i],
            plan.of_servers[i],
            delay_ps=each.late_ns * 1000,
        )
        for i, (each, first_op_id) in enumerate(zip(classes, first_ids, strict=False))
    )
    uses: dict[int, dict[int, int]] = {}
    for each in emulated:
        kind = each.source.kind
        if kind not in uses:
            uses[kind] = use_places(each.source.program)
        each.hbm.use_of = uses[kind]
        each.hbm.start(each.source.program.resident)
    progress = Progress(system, execution, emulated, plan, server_count, module_ids)
    return Prepared(progress, groups, modules)


def _group_rows(
    classes: Sequence[RankClass],
) -> tuple[dict[str, list[Any]], list[tuple[int, ...]]]:
    """Rows of ``groups``, and by class the row of each of its groups; what two classes share is one row."""
    rows: dict[object, int] = {}
    named: list[tuple[str, tuple[int, ...]]] = []
    ids = []
    for each in classes:
        own: list[int] = []
        for group in each.program.groups:
            key: tuple[object, ...] = (group.name, group.ranks)
            while rows.get(key) in own:  # a program may have several of the same name and ranks
                key = (*key, "again")
            if key not in rows:
                rows[key] = len(named)
                named.append((group.name, group.ranks))
            own.append(rows[key])
        ids.append(tuple(own))
    if not named:
        return {}, ids
    columns: dict[str, list[Any]] = {
        "group_id": list(range(len(named))),
        "ranks": [list(ranks) for _, ranks in named],
        "name": [name for name, _ in named],
    }
    return columns, ids


def _reckon(
    classes: Sequence[RankClass],
    ranks: Sequence[Ranks],
    meetings: Meetings,
    costs: CollectiveCosts,
) -> None:
    """Every collective's cost; with several kinds of ranks, which links those of each group share with those of others."""
    used: dict[object, list[CollectiveCost]] = {}
    for number, each in enumerate(classes):
        for op in each.program.operations:
            call = op.collective
            if call is not None:
                place = meetings.places[number][call.group]
                key = (number, call.group) if place < 0 else place
                used.setdefault(key, []).append(ranks[number].cost(call))
    if len({each.kind for each in classes}) > 1 and used:
        costs.part_links(
            [list({id(cost): cost for cost in each}.values()) for each in used.values()]
        )
