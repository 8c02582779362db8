"""How do bytes cross between HBM and SBUF? A trigger on an engine, then a transfer on a queue.

Loads are triggered by the Sync engine, stores and gathers by GpSimd. A tensor of at most SMALLEST_PIECE_BYTES crosses at once; a
larger one in the kernel's tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trnprof.emulator.cost import DmaCost, dma_cost
from trnprof.emulator.lowering.plan import GPSIMD, SYNC, Access
from trnprof.emulator.lowering.residency import Location, Ready
from trnprof.emulator.lowering.state import CoreState
from trnprof.emulator.lowering.tasks import (
    BUFFER,
    DATA,
    GATHER_QUEUE,
    LOAD_QUEUES,
    QUEUE,
    SERVER_ID,
    STORE_QUEUE,
    Dependency,
    TaskLabel,
)
from trnprof.emulator.workload import TensorRef

SMALLEST_PIECE_BYTES = 32 * 1024
"""A tensor up to this size crosses in one transfer (the NKI DMA guides advise at least 32 KiB each)."""


def load_piece(
    state: CoreState,
    position: int,
    name: str,
    access: Access,
    nbytes: int,
    stream: int,
    after: list[Dependency],
) -> Ready:
    """Load ``nbytes`` of an input; the share of the result is left to the caller.

    Args:
        state: of the core.
        position: of the operation that reads it.
        name: of that operation.
        access: what is read.
        nbytes: how much of it, at least 1.
        stream: ordinal among the kernel's loads; decides the queue.
        after: what the trigger waits for.
    """
    cost = _cost(state, access, nbytes, write=False)
    queue = GATHER_QUEUE if access.software else LOAD_QUEUES[stream % len(LOAD_QUEUES)]
    engine = GPSIMD if access.software else SYNC
    label = _label(state, f"load {name}", position, access.ref, access.row_bytes, nbytes)
    task = _transfer(state, label, nbytes, cost, engine, queue, after)
    note_transfer(state, access.ref, task)
    return Ready(1.0, task, cost.done_ps)


def store(
    state: CoreState,
    position: int,
    name: str,
    access: Access,
    ready: Sequence[Ready],
    after: Sequence[Dependency],
) -> list[Ready]:
    """Write an output to HBM, piece by piece as it is made.

    Args:
        state: of the core.
        position: of the operation that wrote it.
        name: of that operation.
        access: what is written.
        ready: when each share of it was made; empty if only ``after`` has to be waited for.
        after: what the first piece waits for besides.

    Returns:
        When each share can be read from HBM.
    """
    if access.nbytes <= SMALLEST_PIECE_BYTES:
        ready = ready[-1:]
    stored: list[Ready] = []
    sent = 0
    waits = list(after)
    for share, made in [(r.share, [data(r)]) for r in ready] or [(1.0, [])]:
        upto = round(access.nbytes * share)
        nbytes, sent = max(1, upto - sent), upto
        cost = _cost(state, access, nbytes, write=True)
        label = _label(state, f"store {name}", position, access.ref, access.row_bytes, nbytes, True)
        task = _transfer(state, label, nbytes, cost, GPSIMD, STORE_QUEUE, made + waits)
        waits = []
        stored.append(Ready(share, task, cost.done_ps))
        note_transfer(state, access.ref, task)
    return stored


def spill(state: CoreState, storage: int, where: Location, position: int) -> None:
    """A tensor leaves SBUF: written to HBM if SBUF has the only copy and it is still needed after ``position``."""
    if not state.lifetimes.needed_after(storage, position):
        return
    write_back(state, storage, where)
    where.on_chip = ()
    state.residency.note_in_hbm(storage, where)


def write_back(state: CoreState, storage: int, where: Location) -> None:
    """HBM gets what SBUF alone has; SBUF keeps it."""
    if where.dirty:
        ref = TensorRef(storage, (), where.dtype, where.nbytes, where.nbytes, "activation")
        access = Access(ref, where.nbytes, max(1, where.nbytes // 128))
        made = replace(where.on_chip[-1], share=1.0)
        where.in_hbm = tuple(store(state, where.op, "spilled tensor", access, [made], ()))
        where.dirty = False


def data(ready: Ready) -> Dependency:
    """The edge of whoever needs it."""
    return Dependency(ready.task, ready.lag_ps, DATA)


def overwrites(state: CoreState, last_transfers: dict[int, int], storage: int) -> list[Dependency]:
    """A store waits for the last transfer of the same storage by an earlier kernel: it must not overtake it."""
    task = last_transfers.get(storage)
    return [] if task is None else [Dependency(task, 0, BUFFER)]


def _label(
    state: CoreState,
    name: str,
    position: int,
    ref: TensorRef,
    row_bytes: int,
    nbytes: int,
    write: bool = False,
) -> TaskLabel:
    return TaskLabel(
        name,
        "dma",
        position,
        dtype=ref.dtype,
        source="sbuf" if write else "hbm",
        target="hbm" if write else "sbuf",
        descriptor_bytes=min(row_bytes, state.core.dma.maximum_packet_bytes, nbytes),
    )


def _transfer(
    state: CoreState,
    label: TaskLabel,
    nbytes: int,
    cost: DmaCost,
    engine: str,
    queue: str,
    after: list[Dependency],
) -> int:
    """The trigger (or triggers) on an engine, then the transfer on its queue; returns the transfer."""
    tasks = state.tasks
    trigger = TaskLabel("dma_trigger", "sync", label.op)
    server = SERVER_ID[engine]
    first = tasks.add(trigger, cost.issue_ps, ((server, cost.issue_ps),), after)
    if cost.instructions > 1:
        rest = cost.issue_ps * (cost.instructions - 1)
        tasks.add(trigger, rest, ((server, rest),), [])
    sharers = state.ranks.placement.hbm_sharers
    hbm_ps = round(nbytes * sharers / state.system.hbm_bytes_per_s_per_core * 1e12)
    servers = (
        (SERVER_ID[queue], cost.slot_ps),
        (SERVER_ID["DMA engines"], cost.engines_ps),
        (SERVER_ID["HBM"], hbm_ps),
    )
    lag = max(0, cost.start_ps - cost.issue_ps)
    return tasks.add(
        label, cost.transfer_ps, servers, [Dependency(first, lag, QUEUE)], nbytes=nbytes
    )


def _cost(state: CoreState, access: Access, nbytes: int, *, write: bool) -> DmaCost:
    """What moving so much of an access takes."""
    return dma_cost(
        state.core,
        nbytes,
        access.row_bytes,
        write=write,
        software=access.software,
        efficiency=access.efficiency,
    )


def note_transfer(state: CoreState, ref: TensorRef, task: int) -> None:
    """A storage lies in HBM from its first transfer on."""
    state.hbm_storages.setdefault(ref.tensor, ref.storage_nbytes)
    state.first_task.setdefault(ref.tensor, task)
    state.last_task[ref.tensor] = task
