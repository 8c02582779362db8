"""How does one step of a workload become tasks? Plan each operation, group, emit kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnprof.emulator.lowering.collectives import emit_collective
from trnprof.emulator.lowering.fusion import group_operations
from trnprof.emulator.lowering.given import emit_given
from trnprof.emulator.lowering.kernels import emit_kernel, flush
from trnprof.emulator.lowering.logical import divide
from trnprof.emulator.lowering.matmul import WORKING_FRACTION
from trnprof.emulator.lowering.plan import COLLECTIVE_FORM, GIVEN_FORM, OpPlan
from trnprof.emulator.lowering.registry import plan_operation
from trnprof.emulator.lowering.residency import Lifetimes, Residency
from trnprof.emulator.lowering.state import CoreState, Member
from trnprof.emulator.lowering.take_up import order_taken_up
from trnprof.emulator.lowering.tasks import TaskList
from trnprof.emulator.ranks.costs import CollectiveCost
from trnprof.emulator.ranks.ranks import Ranks, lone_rank
from trnprof.emulator.system import System
from trnprof.emulator.workload import Operation

EXECUTIONS = ("fused", "eager")


@dataclass(frozen=True)
class LoweredStep:
    """One step, ready to be scheduled.

    Attributes:
        tasks: the task list; labels name operations by their position in the workload.
        plans: one an operation of the step.
        hbm_storages: storages that lie in HBM during this step, with sizes in bytes.
        first_task: first task that moves a storage to or from HBM.
        collectives: cost of each task that is a collective.
        exchanged: last collective that reads or writes a storage.
        kept_in_sbuf: (tasks so far, bytes) after each kernel: what SBUF keeps of tensors beyond it.
    """

    tasks: TaskList
    plans: tuple[OpPlan, ...]
    hbm_storages: dict[int, int]
    first_task: dict[int, int]
    collectives: dict[int, CollectiveCost]
    exchanged: dict[int, int]
    kept_in_sbuf: tuple[tuple[int, int], ...] = ()


def lower_step(
    system: System,
    operations: Sequence[Operation],
    first_position: int,
    lifetimes: Lifetimes,
    execution: str,
    ranks: Ranks | None = None,
) -> LoweredStep:
    """Lower the operations of one step for one core.

    Args:
        system: the described machine.
        operations: of this step, in issue order.
        first_position: position of the first of them in the workload.
        lifetimes: of the whole workload.
        execution: ``fused`` or ``eager``.
        ranks: those that this one exchanges with; None: it is alone.
    """
    core = system.core
    plans = tuple(plan_operation(core, op) for op in operations)
    usable = core.sbuf_usable_bytes_per_partition * core.sbuf_partitions
    ranks = ranks or lone_rank(system)
    cores = ranks.placement.lnc
    groups = group_operations(core, operations, plans, fuse=execution == "fused")
    if ranks.runs_as_astra_sim:
        groups = order_taken_up(operations, ranks)
    mixed: frozenset[int] = frozenset()
    if cores > 1:
        plans, mixed = divide(plans, groups, cores)
    state = CoreState(
        system=system,
        lifetimes=lifetimes,
        eager=execution == "eager",
        residency=Residency(round(usable * (1 - WORKING_FRACTION))),
        ranks=ranks,
        tasks=TaskList(shared=ranks.servers(), in_order=ranks.in_order),
        sent=frozenset(r.tensor for op in operations if op.collective for r in op.inputs),
        mixed=mixed,
    )
    passed = 0
    kept_in_sbuf: list[tuple[int, int]] = []
    for group in groups:
        for op in operations[passed : group[0] + 1]:
            for storage in op.freed:
                state.residency.drop(storage)
        passed = group[0] + 1
        members = [Member(first_position + i, operations[i], plans[i]) for i in group]
        if members[0].plan.form == COLLECTIVE_FORM:
            emit_collective(state, members[0])
        elif members[0].plan.form == GIVEN_FORM:
            emit_given(state, members[0])
        else:
            emit_kernel(state, members)
        kept_in_sbuf.append((len(state.tasks), state.residency.used_bytes))
    flush(state, first_position + len(operations) - 1)
    return LoweredStep(
        state.tasks,
        plans,
        _of_all_cores(state.hbm_storages, operations) if cores > 1 else state.hbm_storages,
        state.first_task,
        state.collectives,
        state.exchanged,
        tuple(kept_in_sbuf),
    )


def _of_all_cores(sizes: dict[int, int], operations: Sequence[Operation]) -> dict[int, int]:
    """Whole sizes of storages of which one core has its part."""
    whole = {r.tensor: r.storage_nbytes for op in operations for r in (*op.inputs, *op.outputs)}
    return {storage: whole.get(storage, nbytes) for storage, nbytes in sizes.items()}
