"""How does a collective become a task? On a stream of its group and the links it uses, from when it is issued and its inputs are in HBM.

It is issued once the operation before it in the program has begun. Its inputs are written to HBM first, its outputs are in HBM when it
ends; nobody waits for it but who reads or overwrites them, the next collective of its group, and those that need the same links. A
barrier waits for everything before it, and everything behind it for the barrier.
"""

from __future__ import annotations

from trnprof.emulator.collectives.messages import BARRIER
from trnprof.emulator.lowering.given import note_tokens, wait_for_tokens
from trnprof.emulator.lowering.residency import Location, Ready
from trnprof.emulator.lowering.state import CoreState, Member
from trnprof.emulator.lowering.tasks import (
    LAUNCH,
    SEMAPHORE,
    Dependency,
    TaskLabel,
)
from trnprof.emulator.lowering.transfers import data, note_transfer, overwrites, write_back
from trnprof.emulator.workload import TensorRef


def emit_collective(state: CoreState, member: Member) -> None:
    """Append the task of one collective and note where its results lie."""
    op, call = member.op, member.op.collective
    assert call is not None
    cost = state.ranks.cost(call)
    inputs, outputs = _by_storage(op.inputs), _by_storage(op.outputs)
    after = _issue(state) + list(state.fence) + wait_for_tokens(state, op)
    for storage in inputs:
        after += _in_hbm(state, storage)
    for storage, ref in outputs.items():
        after += _room_for(state, storage, ref)
    if call.kind == BARRIER:
        after += [Dependency(task, 0, SEMAPHORE) for task in state.tasks.latest.values()]
    dtype = next((r.dtype for r in (*op.inputs, *op.outputs)), None)
    label = TaskLabel(call.kind, "collective", member.position, dtype=dtype)
    servers = [(state.ranks.stream(call.group), cost.duration_ps), *state.ranks.link_servers(cost)]
    if state.ranks.runs_as_astra_sim:
        servers.append((state.ranks.communication(), cost.duration_ps))
    task = state.tasks.add(label, cost.duration_ps, tuple(servers), after, nbytes=call.nbytes)
    state.collectives[task] = cost
    note_tokens(state, op, task)
    if call.kind == BARRIER:
        state.fence = [Dependency(task, 0, SEMAPHORE)]
        state.barrier = list(state.fence)
    for storage, ref in (inputs | outputs).items():
        note_transfer(state, ref, task)
        state.exchanged[storage] = task
    for storage, ref in outputs.items():
        _settle(state, member.position, storage, ref, task)


def _by_storage(refs: tuple[TensorRef, ...]) -> dict[int, TensorRef]:
    return {ref.tensor: ref for ref in refs if ref.nbytes}


def _issue(state: CoreState) -> list[Dependency]:
    """The program comes to the collective when the kernel before it has begun."""
    if state.issued < 0:
        return []
    return [Dependency(state.issued, -state.tasks.durations_ps[state.issued], LAUNCH)]


def _in_hbm(state: CoreState, storage: int) -> list[Dependency]:
    """HBM has the whole storage: what SBUF alone has is written there first."""
    where = state.residency.find(storage)
    if where is None:
        return []
    write_back(state, storage, where)
    return [data(where.in_hbm[-1])] if where.in_hbm else []


def _room_for(state: CoreState, storage: int, ref: TensorRef) -> list[Dependency]:
    """What was there has been read; of a storage that is overwritten in part, the rest is in HBM."""
    kept = _in_hbm(state, storage) if ref.nbytes < ref.storage_nbytes else []
    return kept + overwrites(state, state.last_task, storage)


def _settle(state: CoreState, position: int, storage: int, ref: TensorRef, task: int) -> None:
    """The result lies in HBM alone."""
    if not state.lifetimes.needed_after(storage, position):
        state.residency.drop(storage)
        return
    location = Location(ref.storage_nbytes, ref.dtype, in_hbm=(Ready(1.0, task, 0),), op=position)
    state.residency.note_in_hbm(storage, location)
