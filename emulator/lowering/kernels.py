"""How does a kernel (a group of operations) become tasks? Tiles, double buffered: load, compute, store.

A kernel's physical tiles are gathered into at most MACRO_TILES macro tiles of growing and shrinking size, so that the
pipeline fills and drains as finely as the hardware's would. Tasks are issued in software-pipelined order: in slot i the
loads of tile i, then stage s of tile i - s, older tiles first. The load of a tile waits until the tile two before it
has been consumed (two buffers). Loads are triggered by the Sync engine, stores and gathers by GpSimd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trnprof.emulator.cost import DmaCost, dma_cost, to_ps
from trnprof.emulator.lowering.plan import (
    GPSIMD,
    SCALAR,
    SYNC,
    TENSOR,
    Access,
    OpPlan,
    Stage,
)
from trnprof.emulator.lowering.residency import Lifetimes, Location, Ready, Residency
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
    TaskList,
    engine_latency_ps,
)
from trnprof.emulator.system import Core, System
from trnprof.emulator.workload import Operation

MACRO_TILES = 8
BUFFERS = 2

SMALLEST_PIECE_BYTES = 32 * 1024
"""A tensor up to this size crosses in one transfer (the NKI DMA guides advise at least 32 KiB each)."""


@dataclass(frozen=True, slots=True)
class Member:
    """One operation of a kernel: its position in the workload, itself, its plan."""

    position: int
    op: Operation
    plan: OpPlan


@dataclass
class CoreState:
    """What lowering carries from kernel to kernel within a step.

    Attributes:
        system: the described machine.
        lifetimes: uses of every storage.
        eager: one kernel an operation, everything through HBM, kernels one after the other.
        residency: SBUF between kernels.
        tasks: the task list under construction.
        recent: last consumers of the two latest tiles (their buffers are in use until then).
        barrier: what the next kernel waits for (eager only).
        tables: activation functions loaded by the kernel before.
        tensor_warm: the kernel before used the tensor engine.
        hbm_storages: storages that lie in HBM, with their sizes.
        first_task, last_task: first and last task that move a storage to or from HBM.
    """

    system: System
    lifetimes: Lifetimes
    eager: bool
    residency: Residency
    tasks: TaskList = field(default_factory=TaskList)
    recent: list[list[Dependency]] = field(default_factory=list)
    barrier: list[Dependency] = field(default_factory=list)
    tables: frozenset[str] = frozenset()
    tensor_warm: bool = False
    hbm_storages: dict[int, int] = field(default_factory=dict)
    first_task: dict[int, int] = field(default_factory=dict)
    last_task: dict[int, int] = field(default_factory=dict)

    @property
    def core(self) -> Core:
        """The described core."""
        return self.system.core


def emit_kernel(state: CoreState, members: Sequence[Member]) -> None:
    """Append the tasks of one kernel and note where its results lie."""
    members = _without_needless_evacuation(members)
    shares = tile_shares(max(m.plan.tiles for m in members))
    inputs = _outside_reads(members)
    loads = [(m, a) for m, a in inputs if not _on_chip(state, a)]
    stages = [(m, s) for m in members for s in m.plan.stages]
    done = _pipeline(state, members, inputs, loads, stages, shares)
    _settle_outputs(state, members, stages, done, shares)
    _keep_loaded(state, loads, done, shares)
    engines = {s.engine for _, s in stages}
    state.tensor_warm = TENSOR in engines and not state.eager
    functions = frozenset(s.name for _, s in stages if s.engine == SCALAR)
    state.tables = functions or state.tables


@dataclass
class _Done:
    """Tasks of each tile: loads by storage (all, and what each tile needs of them), and one a stage."""

    loaded: dict[int, list[Ready]] = field(default_factory=dict)
    needed: dict[int, list[Ready | None]] = field(default_factory=dict)
    staged: list[list[Dependency]] = field(default_factory=list)


def tile_shares(tiles: int) -> list[float]:
    """Shares of the macro tiles: up to MACRO_TILES, doubling from one physical tile and halving again at the end."""
    if tiles <= MACRO_TILES:
        return [1.0 / tiles] * max(1, tiles)
    half = [2.0**i for i in range(MACRO_TILES // 2)]
    weights = half + half[::-1]
    total = sum(weights)
    return [w / total for w in weights]


def _pipeline(
    state: CoreState,
    members: Sequence[Member],
    inputs: list[tuple[Member, Access]],
    loads: list[tuple[Member, Access]],
    stages: list[tuple[Member, Stage]],
    shares: list[float],
) -> _Done:
    done = _Done(staged=[[] for _ in shares])
    cumulative = _cumulative(shares)
    first_stage = {m.position: i for i, (m, _) in reversed(list(enumerate(stages)))}
    first_of_engine = _cold_starts(state, stages)
    depth = max(1, len(stages))
    for slot in range(len(shares) + depth - 1):
        if slot < len(shares):
            _load_tile(state, loads, done, slot, cumulative[slot])
        for index in range(min(slot, len(stages) - 1), -1, -1):
            tile = slot - index
            if tile >= len(shares):
                continue
            member, stage = stages[index]
            after = _stage_inputs(state, inputs, done, member, tile, cumulative[tile])
            if first_stage[member.position] != index:
                after = []
            if index:
                after.append(_after_stage(state, stages[index - 1][1], stage, done, tile))
            elif not loads:
                after += state.barrier
            extra = first_of_engine.get(index, 0) if tile == 0 else 0
            done.staged[tile].append(
                Dependency(_stage_task(state, member, stage, shares[tile], extra, after))
            )
    tail = done.staged[-1][-1:] if stages else []
    buffers = [tile[-1:] for tile in done.staged[-BUFFERS:]] if stages else []
    state.recent = (state.recent + buffers)[-BUFFERS:]
    if state.eager:
        state.barrier = tail
    return done


def _load_tile(
    state: CoreState,
    loads: list[tuple[Member, Access]],
    done: _Done,
    tile: int,
    reached: float,
) -> None:
    """Trigger and transfer what one tile needs of every streamed input, beyond what earlier tiles brought."""
    for stream, (member, access) in enumerate(loads):
        storage = access.ref.tensor
        needed = done.needed.setdefault(storage, [])
        share_before = done.loaded[storage][-1].share if storage in done.loaded else 0.0
        share_now = access.share_at(reached)
        if share_now > 0 and access.nbytes <= SMALLEST_PIECE_BYTES:
            share_now = 1.0
        if share_now <= share_before:
            needed.append(done.loaded[storage][-1] if share_before else None)
            continue
        after = list(state.barrier)
        if tile >= BUFFERS:
            consumed = done.staged[tile - BUFFERS]
            after += [Dependency(d.task, 0, BUFFER) for d in consumed[-1:]]
        elif len(state.recent) == BUFFERS:
            after += [Dependency(d.task, 0, BUFFER) for d in state.recent[tile]]
        where = state.residency.find(storage)
        if where is not None and where.in_hbm:
            after.append(_reach(where.in_hbm, share_now if access.by_row else 1.0))
        nbytes = max(1, round(access.nbytes * (share_now - share_before)))
        cost = dma_cost(
            state.core,
            nbytes,
            access.row_bytes,
            write=False,
            software=access.software,
            efficiency=access.efficiency,
        )
        queue = GATHER_QUEUE if access.software else LOAD_QUEUES[stream % len(LOAD_QUEUES)]
        engine = GPSIMD if access.software else SYNC
        task = _transfer(state, member, access, nbytes, cost, engine, queue, after, write=False)
        ready = Ready(share_now, task, cost.done_ps)
        done.loaded.setdefault(storage, []).append(ready)
        needed.append(ready)
        _note_transfer(state, storage, access.ref.storage_nbytes, task)


def _transfer(
    state: CoreState,
    member: Member,
    access: Access,
    nbytes: int,
    cost: DmaCost,
    engine: str,
    queue: str,
    after: list[Dependency],
    *,
    write: bool,
) -> int:
    """The trigger (or triggers) on an engine, then the transfer on its queue; returns the transfer."""
    tasks = state.tasks
    trigger = TaskLabel("dma_trigger", "sync", member.position)
    server = SERVER_ID[engine]
    first = tasks.add(trigger, cost.issue_ps, ((server, cost.issue_ps),), after)
    if cost.instructions > 1:
        rest = cost.issue_ps * (cost.instructions - 1)
        tasks.add(trigger, rest, ((server, rest),), [])
    hbm_ps = round(nbytes / state.system.hbm_bytes_per_s_per_core * 1e12)
    label = TaskLabel(
        ("store " if write else "load ") + member.op.name,
        "dma",
        member.position,
        dtype=access.ref.dtype,
        source="sbuf" if write else "hbm",
        target="hbm" if write else "sbuf",
        descriptor_bytes=min(access.row_bytes, state.core.dma.maximum_packet_bytes, nbytes),
    )
    servers = (
        (SERVER_ID[queue], cost.slot_ps),
        (SERVER_ID["DMA engines"], cost.engines_ps),
        (SERVER_ID["HBM"], hbm_ps),
    )
    lag = max(0, cost.start_ps - cost.issue_ps)
    return tasks.add(
        label, cost.transfer_ps, servers, [Dependency(first, lag, QUEUE)], nbytes=nbytes
    )


def _note_transfer(state: CoreState, storage: int, nbytes: int, task: int) -> None:
    """A storage lies in HBM from its first transfer on."""
    state.hbm_storages.setdefault(storage, nbytes)
    state.first_task.setdefault(storage, task)
    state.last_task[storage] = task


def _stage_inputs(
    state: CoreState,
    inputs: list[tuple[Member, Access]],
    done: _Done,
    member: Member,
    tile: int,
    reached: float,
) -> list[Dependency]:
    """What the first stage of a member waits for besides the stage before it: its loads and tensors kept in SBUF."""
    after = []
    for reader, access in inputs:
        if reader.position != member.position:
            continue
        storage = access.ref.tensor
        if storage in done.loaded:
            ready = done.needed[storage][tile]
            if ready is not None:
                after.append(Dependency(ready.task, ready.lag_ps))
            continue
        where = state.residency.find(storage)
        if where is not None and where.on_chip:
            share = access.share_at(reached)
            if share > 0:
                after.append(_reach(where.on_chip, share if access.by_row else 1.0))
    return after


def _stage_task(
    state: CoreState,
    member: Member,
    stage: Stage,
    share: float,
    extra_ps: int,
    after: list[Dependency],
) -> int:
    work = round(stage.work_ps * share) + extra_ps + _exposed_latency_ps(state.core, stage, share)
    label = TaskLabel(
        stage.name,
        "compute",
        member.position,
        dtype=stage.dtype,
        is_transpose=stage.is_transpose if stage.engine == TENSOR else None,
    )
    work = max(1, work)
    flops = stage.flops * share if stage.engine == TENSOR else -1.0
    return state.tasks.add(label, work, ((SERVER_ID[stage.engine], work),), after, flops=flops)


def _exposed_latency_ps(core: Core, stage: Stage, share: float) -> int:
    """Latency of a chain of dependent instructions that other tiles are too few to hide."""
    tiles = max(1.0, stage.instructions * share / stage.chain)
    interval = stage.work_ps / max(1, stage.instructions)
    hidden = (tiles - 1) * interval
    return round((stage.chain - 1) * max(0.0, engine_latency_ps(core, stage.engine) - hidden))


def _after_stage(
    state: CoreState, before: Stage, stage: Stage, done: _Done, tile: int
) -> Dependency:
    """The result of the stage before it: its latency, and a semaphore if the engine changes."""
    lag = engine_latency_ps(state.core, before.engine)
    if before.engine != stage.engine:
        lag += to_ps(state.core.semaphore_ns)
    return Dependency(done.staged[tile][-1].task, lag)


def _cold_starts(state: CoreState, stages: list[tuple[Member, Stage]]) -> dict[int, int]:
    """Extra time of a stage's first tile: the tensor engine's ramp after idling, activation tables not yet loaded."""
    extra: dict[int, int] = {}
    tensor, scalar = state.core.tensor, state.core.scalar
    tables = set(state.tables)
    warm = state.tensor_warm
    for index, (_, stage) in enumerate(stages):
        if stage.engine == TENSOR and not warm:
            warm = True
            extra[index] = ramp_ps(tensor.ramp_ns, tensor.ramp_start, stage.work_ps)
        if stage.engine == SCALAR and stage.name not in tables:
            tables.add(stage.name)
            extra[index] = to_ps(scalar.table_load_ns)
    return extra


def ramp_ps(ramp_ns: float, start: float, work_ps: int) -> int:
    """Time lost by a throughput that rises linearly from ``start`` to 1 over ``ramp_ns`` of activity."""
    full = to_ps(ramp_ns)
    if full == 0 or start >= 1:
        return 0
    slope = (1 - start) / full
    if work_ps >= full * (1 + start) / 2:
        return round(full * (1 - start) / 2)
    took = (math.sqrt(start * start + 2 * slope * work_ps) - start) / slope
    return round(took - work_ps)


def _settle_outputs(
    state: CoreState,
    members: Sequence[Member],
    stages: list[tuple[Member, Stage]],
    done: _Done,
    shares: list[float],
) -> None:
    """Keep, store or drop every tensor the kernel made."""
    last = members[-1].position
    cumulative = _cumulative(shares)
    writes = {a.ref.tensor: (m, a) for m in members for a in m.plan.writes}
    for storage, (member, access) in writes.items():
        if not state.lifetimes.needed_after(storage, last):
            state.residency.drop(storage)
            continue
        ready = _made(state, member, access, stages, done, cumulative)
        size = access.ref.storage_nbytes
        keep = (
            not state.eager
            and bool(member.plan.stages)
            and size <= state.residency.capacity_bytes // 2
            and state.lifetimes.read_after(storage, last)
        )
        must_store = not keep or state.lifetimes.outlives(storage)
        location = Location(size, on_chip=tuple(ready), dirty=not must_store, op=member.position)
        if must_store:
            location.in_hbm = tuple(_store(state, member, access, ready, shares))
        if keep:
            for victim, where in state.residency.keep(storage, location):
                _spill(state, victim, where, last)
        else:
            location.on_chip = ()
            state.residency.note_in_hbm(storage, location)


def _made(
    state: CoreState,
    member: Member,
    access: Access,
    stages: list[tuple[Member, Stage]],
    done: _Done,
    cumulative: list[float],
) -> list[Ready]:
    """When each share of an output is there: after the member's last stage, or its loads if no engine works on it."""
    indices = [i for i, (m, _) in enumerate(stages) if m.position == member.position]
    if indices:
        index = indices[-1]
        lag = engine_latency_ps(state.core, stages[index][1].engine) + to_ps(
            state.core.semaphore_ns
        )
        ready = [
            Ready(access.share_at(c), done.staged[t][index].task, lag)
            for t, c in enumerate(cumulative)
        ]
        ready = [
            r
            for r, before in zip(ready, [0.0, *(r.share for r in ready)], strict=False)
            if r.share > before
        ]
        if access.nbytes <= SMALLEST_PIECE_BYTES:
            ready = ready[-1:]
    else:
        ready = [tiles[-1] for tiles in done.loaded.values()]
        ready = [Ready(1.0, r.task, r.lag_ps) for r in ready]
    return ready if access.by_row and indices else ready[-1:]


def _store(
    state: CoreState, member: Member, access: Access, ready: list[Ready], shares: list[float]
) -> list[Ready]:
    """Write an output to HBM tile by tile."""
    stored = []
    previous = 0.0
    for piece in ready or [Ready(1.0, -1, 0)]:
        nbytes = max(1, round(access.nbytes * (piece.share - previous)))
        previous = piece.share
        cost = dma_cost(
            state.core,
            nbytes,
            access.row_bytes,
            write=True,
            software=access.software,
            efficiency=access.efficiency,
        )
        after = [Dependency(piece.task, piece.lag_ps)] if piece.task >= 0 else list(state.barrier)
        task = _transfer(
            state, member, access, nbytes, cost, GPSIMD, STORE_QUEUE, after, write=True
        )
        stored.append(Ready(piece.share, task, cost.done_ps))
        _note_transfer(state, access.ref.tensor, access.ref.storage_nbytes, task)
    if state.eager:
        state.barrier = [*state.barrier, Dependency(stored[-1].task, stored[-1].lag_ps)]
    return stored


def _spill(state: CoreState, storage: int, where: Location, position: int) -> None:
    """A tensor leaves SBUF: written to HBM if it is the only copy and still needed."""
    if not state.lifetimes.needed_after(storage, position):
        return
    if where.dirty:
        where.in_hbm = tuple(_spill_store(state, storage, where))
    where.on_chip = ()
    where.dirty = False
    state.residency.note_in_hbm(storage, where)


def _spill_store(state: CoreState, storage: int, where: Location) -> list[Ready]:
    cost = dma_cost(state.core, where.nbytes, max(1, where.nbytes // 128), write=True)
    ready = where.on_chip[-1]
    trigger = TaskLabel("dma_trigger", "sync", where.op)
    tasks = state.tasks
    issue = cost.issue_ps * cost.instructions
    server = SERVER_ID[GPSIMD]
    first = tasks.add(trigger, issue, ((server, issue),), [Dependency(ready.task, ready.lag_ps)])
    label = TaskLabel("spill", "dma", where.op, source="sbuf", target="hbm")
    servers = ((SERVER_ID[STORE_QUEUE], cost.slot_ps), (SERVER_ID["DMA engines"], cost.engines_ps))
    lag = max(0, cost.start_ps - cost.issue_ps)
    task = tasks.add(
        label, cost.transfer_ps, servers, [Dependency(first, lag, QUEUE)], nbytes=where.nbytes
    )
    _note_transfer(state, storage, where.nbytes, task)
    return [Ready(1.0, task, cost.done_ps)]


def flush(state: CoreState, position: int) -> None:
    """End of a step: write what only SBUF has and the next step needs, then forget SBUF."""
    while state.residency.kept:
        storage, where = state.residency.kept.popitem(last=False)
        state.residency.used_bytes -= where.nbytes
        _spill(state, storage, where, position)


def _keep_loaded(
    state: CoreState, loads: list[tuple[Member, Access]], done: _Done, shares: list[float]
) -> None:
    """Inputs that fit and are read again stay in SBUF."""
    if state.eager:
        return
    for member, access in loads:
        storage = access.ref.tensor
        small = access.ref.nbytes <= state.residency.capacity_bytes // 4
        whole = access.ref.nbytes == access.ref.storage_nbytes and not access.software
        if not (small and whole and state.lifetimes.read_after(storage, member.position)):
            continue
        known = state.residency.find(storage)
        if known is not None and known.on_chip:
            continue
        location = Location(
            access.ref.nbytes,
            on_chip=tuple(done.loaded[storage]),
            in_hbm=known.in_hbm if known else (),
            op=member.position,
        )
        for victim, where in state.residency.keep(storage, location):
            _spill(state, victim, where, member.position)


def _outside_reads(members: Sequence[Member]) -> list[tuple[Member, Access]]:
    """Inputs that the kernel does not make itself, each once."""
    made: set[int] = set()
    seen: set[int] = set()
    reads = []
    for member in members:
        for access in member.plan.reads:
            storage = access.ref.tensor
            if storage not in made and storage not in seen and access.nbytes > 0:
                seen.add(storage)
                reads.append((member, access))
        made.update(a.ref.tensor for a in member.plan.writes)
    return reads


def _without_needless_evacuation(members: Sequence[Member]) -> list[Member]:
    """A fused consumer reads PSUM itself, so the producer's copy out of it falls away."""
    head, *rest = members
    made = {a.ref.tensor for a in head.plan.writes}
    consumed = rest and any(a.ref.tensor in made for a in rest[0].plan.reads)
    plan = head.plan.without_evacuation() if consumed else head.plan
    return [Member(head.position, head.op, plan), *rest]


def _on_chip(state: CoreState, access: Access) -> bool:
    where = state.residency.find(access.ref.tensor)
    return where is not None and bool(where.on_chip)


def _reach(ready: tuple[Ready, ...], share: float) -> Dependency:
    """The piece that completes the first ``share`` of the rows."""
    piece = next((r for r in ready if r.share >= share - 1e-9), ready[-1])
    return Dependency(piece.task, piece.lag_ps, DATA)


def _cumulative(shares: list[float]) -> list[float]:
    total, out = 0.0, []
    for share in shares:
        total += share
        out.append(total)
    return out
