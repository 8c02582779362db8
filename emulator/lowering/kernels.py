"""How does a kernel (a group of operations) become tasks? Tiles, double buffered: load, compute, store.

A kernel's physical tiles are gathered into at most MACRO_TILES macro tiles of growing and shrinking size, so that the
pipeline fills and drains as finely as the hardware's would. Tasks are issued in software-pipelined order: in slot i the
loads of tile i, then stage s of tile i - s, older tiles first. The load of a tile waits until the tile two before it
has been consumed (two buffers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trnprof.emulator.core import Core
from trnprof.emulator.cost import to_ps
from trnprof.emulator.lowering.plan import SCALAR, TENSOR, Access, Stage
from trnprof.emulator.lowering.residency import Location, Ready
from trnprof.emulator.lowering.state import CoreState, Member
from trnprof.emulator.lowering.tasks import (
    BUFFER,
    SERVER_ID,
    Dependency,
    TaskLabel,
    engine_latency_ps,
)
from trnprof.emulator.lowering.transfers import (
    SMALLEST_PIECE_BYTES,
    data,
    load_piece,
    overwrites,
    spill,
    store,
)

MACRO_TILES = 8
BUFFERS = 2


def emit_kernel(state: CoreState, members: Sequence[Member]) -> None:
    """Append the tasks of one kernel and note where its results lie."""
    members = _without_needless_evacuation(state, members)
    inputs = _outside_reads(members)
    stages = [(m, s) for m in members for s in m.plan.stages]
    kernel = _Kernel(
        members=members,
        inputs=inputs,
        loads=[(m, a) for m, a in inputs if a.nbytes and not _on_chip(state, a)],
        stages=stages,
        waits_for=_inputs_of_stages(members),
        reached=_cumulative(tile_shares(max(1, *(m.plan.tiles for m in members)))),
        transferred=_last_transfers(state, members),
    )
    _pipeline(state, kernel)
    stored = _settle_outputs(state, kernel)
    _keep_loaded(state, kernel)
    _drop_dead_inputs(state, kernel)
    if state.eager:
        state.barrier = _end_of_kernel(state, kernel, stored) or state.barrier
    engines = {s.engine for _, s in stages}
    state.tensor_warm = TENSOR in engines and not state.eager
    state.issued = _issued(kernel, state.issued)
    functions = frozenset(s.name for _, s in stages if s.engine == SCALAR)
    state.tables = functions or state.tables


@dataclass
class _Kernel:
    """One kernel under construction.

    Attributes:
        members: its operations.
        inputs: what it reads and does not make, and which member reads it first.
        loads: those of them that must come from HBM.
        stages: engine work, in order.
        waits_for: positions of the members whose inputs a stage needs, by index of the stage.
        reached: share of the rows done after each macro tile.
        transferred: last transfer of each storage it writes, by the kernels before it.
        loaded: readiness of each loaded input, by storage.
        staged: tasks of each tile, one a stage.
    """

    members: Sequence[Member]
    inputs: list[tuple[Member, Access]]
    loads: list[tuple[Member, Access]]
    stages: list[tuple[Member, Stage]]
    waits_for: dict[int, frozenset[int]]
    reached: list[float]
    transferred: dict[int, int]
    loaded: dict[int, list[Ready]] = field(default_factory=dict)
    staged: list[list[int]] = field(default_factory=list)

    @property
    def last_position(self) -> int:
        """Position of its last operation."""
        return self.members[-1].position


def tile_shares(tiles: int) -> list[float]:
    """Shares of the macro tiles: up to MACRO_TILES, doubling from one physical tile and halving again at the end."""
    if tiles <= MACRO_TILES:
        return [1.0 / tiles] * tiles
    half = [2.0**i for i in range(MACRO_TILES // 2)]
    weights = half + half[::-1]
    total = sum(weights)
    return [w / total for w in weights]


def _pipeline(state: CoreState, kernel: _Kernel) -> None:
    """Loads and stages of every tile."""
    kernel.staged = [[] for _ in kernel.reached]
    tiles, stages = len(kernel.reached), kernel.stages
    cold = _cold_starts(state, stages)
    for slot in range(tiles + max(0, len(stages) - 1)):
        if slot < tiles:
            _load_tile(state, kernel, slot)
        for index in range(min(slot, len(stages) - 1), -1, -1):
            tile = slot - index
            if tile >= tiles:
                continue
            member, stage = stages[index]
            after = _stage_inputs(
                state, kernel, kernel.waits_for.get(index, frozenset()), kernel.reached[tile]
            )
            if index:
                after.append(_after_stage(state, kernel, index, tile))
            elif not kernel.loads:
                after += state.barrier
            share = kernel.reached[tile] - (kernel.reached[tile - 1] if tile else 0.0)
            extra = cold.get(index, 0) if tile == 0 else 0
            kernel.staged[tile].append(_stage_task(state, member, stage, share, extra, after))
    if stages:
        buffers = [[Dependency(tile[-1])] for tile in kernel.staged[-BUFFERS:]]
        state.recent = (state.recent + buffers)[-BUFFERS:]


def _load_tile(state: CoreState, kernel: _Kernel, tile: int) -> None:
    """Trigger and transfer what one tile needs of every streamed input, beyond what earlier tiles brought."""
    for stream, (member, access) in enumerate(kernel.loads):
        storage = access.ref.tensor
        pieces = kernel.loaded.setdefault(storage, [])
        before = pieces[-1].share if pieces else 0.0
        share = _share_needed(access, kernel.reached[tile])
        if share <= before:
            continue
        after = list(state.barrier)
        if tile >= BUFFERS:
            after += [Dependency(task, 0, BUFFER) for task in kernel.staged[tile - BUFFERS][-1:]]
        elif len(state.recent) == BUFFERS:
            after += [Dependency(d.task, 0, BUFFER) for d in state.recent[tile]]
        where = state.residency.find(storage)
        if where is not None and where.in_hbm:
            after.append(_reach(where.in_hbm, share if access.by_row else 1.0))
        nbytes = max(1, round(access.nbytes * share) - round(access.nbytes * before))
        name = member.op.name
        piece = load_piece(state, member.position, name, access, nbytes, stream, after)
        pieces.append(replace(piece, share=share))


def _share_needed(access: Access, reached: float) -> float:
    """Share of an input that a kernel needs before it has done ``reached`` of its rows; a small one comes whole."""
    share = access.share_at(reached)
    return 1.0 if share > 0 and access.nbytes <= SMALLEST_PIECE_BYTES else share


def _stage_inputs(
    state: CoreState, kernel: _Kernel, readers: frozenset[int], reached: float
) -> list[Dependency]:
    """What some members need before they have done a share of their rows: loads, and tensors kept in SBUF."""
    after = []
    for reader, access in kernel.inputs:
        share = access.share_at(reached)
        if reader.position not in readers or share <= 0:
            continue
        storage = access.ref.tensor
        if storage in kernel.loaded:
            after.append(_reach(tuple(kernel.loaded[storage]), share))
            continue
        where = state.residency.find(storage)
        if where is not None and (where.on_chip or where.in_hbm):
            after.append(_reach(where.on_chip or where.in_hbm, share if access.by_row else 1.0))
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


def _after_stage(state: CoreState, kernel: _Kernel, index: int, tile: int) -> Dependency:
    """The result of the stage before it: its latency, and a semaphore if the engine changes."""
    before, stage = kernel.stages[index - 1][1], kernel.stages[index][1]
    lag = engine_latency_ps(state.core, before.engine)
    if before.engine != stage.engine:
        lag += to_ps(state.core.semaphore_ns)
    return Dependency(kernel.staged[tile][-1], lag)


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
    if full == 0 or start >= 1 or work_ps == 0:
        return 0
    slope = (1 - start) / full
    if work_ps >= full * (1 + start) / 2:
        return round(full * (1 - start) / 2)
    took = 2 * work_ps / (start + math.sqrt(start * start + 2 * slope * work_ps))
    return round(took - work_ps)


def _settle_outputs(state: CoreState, kernel: _Kernel) -> list[Ready]:
    """Keep, store or drop every tensor the kernel made; returns the last piece of each that was stored."""
    last = kernel.last_position
    stored = []
    writes = {a.ref.tensor: (m, a) for m in kernel.members for a in m.plan.writes if a.nbytes}
    for storage, (member, access) in writes.items():
        if not state.lifetimes.needed_after(storage, last):
            state.residency.drop(storage)
            continue
        ready = _made(state, kernel, member, access)
        known = state.residency.find(storage)
        keep = _stays(state, member, access, known, last)
        must_store = not keep or state.lifetimes.outlives(storage) or storage in state.sent
        if not keep and known is not None and known.dirty and not _covers(access):
            # the rest of the tensor is in SBUF only
            spill(state, storage, known, last)
        location = Location(
            access.ref.storage_nbytes,
            access.ref.dtype,
            tuple(ready),
            dirty=not must_store,
            op=member.position,
        )
        if must_store:
            after = overwrites(state, kernel.transferred, storage)
            if not ready:
                inputs = _stage_inputs(state, kernel, frozenset({member.position}), 1.0)
                after += inputs or state.barrier
            name = member.op.name
            location.in_hbm = tuple(store(state, member.position, name, access, ready, after))
            stored.append(location.in_hbm[-1])
        if keep:
            for victim, where in state.residency.keep(storage, location):
                spill(state, victim, where, last)
        else:
            location.on_chip = ()
            state.residency.note_in_hbm(storage, location)
    return stored


def _stays(
    state: CoreState, member: Member, access: Access, known: Location | None, last: int
) -> bool:
    """Whether SBUF keeps a result: it is read again, and all of the tensor is there."""
    on_chip = known is not None and bool(known.on_chip) and not access.software
    return (
        not state.eager
        and access.ref.tensor not in state.mixed
        and bool(member.plan.stages)
        and access.ref.storage_nbytes <= state.residency.capacity_bytes // 2
        and state.lifetimes.read_after(access.ref.tensor, last)
        and (_covers(access) or on_chip)
    )


def _covers(access: Access) -> bool:
    """Whether an access, made in SBUF, touches all of its storage."""
    return access.ref.nbytes >= access.ref.storage_nbytes and not access.software


def _made(state: CoreState, kernel: _Kernel, member: Member, access: Access) -> list[Ready]:
    """When each share of an output is there: after the member's last stage; empty if no engine works on it."""
    indices = [i for i, (m, _) in enumerate(kernel.stages) if m.position == member.position]
    if not indices:
        return []
    index = indices[-1]
    lag = engine_latency_ps(state.core, kernel.stages[index][1].engine)
    lag += to_ps(state.core.semaphore_ns)
    ready: list[Ready] = []
    for tile, reached in enumerate(kernel.reached):
        share = access.share_at(reached)
        if share > (ready[-1].share if ready else 0.0):
            ready.append(Ready(share, kernel.staged[tile][index], lag))
    return ready if access.by_row else ready[-1:]


def _keep_loaded(state: CoreState, kernel: _Kernel) -> None:
    """Inputs that fit and are read again stay in SBUF."""
    if state.eager:
        return
    last = kernel.last_position
    made = {a.ref.tensor for m in kernel.members for a in m.plan.writes}
    for member, access in kernel.loads:
        storage = access.ref.tensor
        small = access.ref.nbytes <= state.residency.capacity_bytes // 4
        read_again = state.lifetimes.read_after(storage, last)
        if (
            storage in made
            or storage in state.mixed
            or not (small and _covers(access) and read_again)
        ):
            continue
        known = state.residency.find(storage)
        location = Location(
            access.ref.storage_nbytes,
            access.ref.dtype,
            on_chip=tuple(kernel.loaded[storage]),
            in_hbm=known.in_hbm if known else (),
            op=member.position,
        )
        for victim, where in state.residency.keep(storage, location):
            spill(state, victim, where, last)


def _drop_dead_inputs(state: CoreState, kernel: _Kernel) -> None:
    """What nobody reads again makes room."""
    for _, access in kernel.inputs:
        if not state.lifetimes.needed_after(access.ref.tensor, kernel.last_position):
            state.residency.drop(access.ref.tensor)


def _end_of_kernel(state: CoreState, kernel: _Kernel, stored: Sequence[Ready]) -> list[Dependency]:
    """What the next kernel of an eager run waits for: results, stores, and loads that nothing waited for."""
    ends = [data(piece) for piece in stored]
    if kernel.stages:
        lag = engine_latency_ps(state.core, kernel.stages[-1][1].engine)
        ends.append(Dependency(kernel.staged[-1][-1], lag))
    else:
        ends += [data(pieces[-1]) for pieces in kernel.loaded.values()]
    return ends


def _issued(kernel: _Kernel, before: int) -> int:
    """The first task of its last operation, or, where no engine works, of its loads; a kernel without tasks changes nothing."""
    if kernel.stages:
        last = kernel.stages[-1][0].position
        return kernel.staged[0][[m.position for m, _ in kernel.stages].index(last)]
    return min((pieces[0].task for pieces in kernel.loaded.values()), default=before)


def flush(state: CoreState, position: int) -> None:
    """End of a step: write what only SBUF has and the next step needs, then forget SBUF."""
    while state.residency.kept:
        storage, where = state.residency.kept.popitem(last=False)
        state.residency.used_bytes -= where.nbytes
        spill(state, storage, where, position)


def _outside_reads(members: Sequence[Member]) -> list[tuple[Member, Access]]:
    """Inputs that the kernel does not make itself: one access a storage, by the member that reads it first.

    An operation that reads a storage twice (two views, two operands) moves both; what a later member reads again is
    still there, unless it reads more of it.
    """
    made: set[int] = set()
    reads: dict[int, tuple[Member, Access]] = {}
    for member in members:
        own: dict[int, Access] = {}
        for access in member.plan.reads:
            storage = access.ref.tensor
            own[storage] = _together(own[storage], access) if storage in own else access
        for storage, access in own.items():
            if storage in made:
                continue
            if storage not in reads:
                reads[storage] = (member, access)
            elif access.nbytes > reads[storage][1].nbytes:
                reads[storage] = (reads[storage][0], access)
        made.update(a.ref.tensor for a in member.plan.writes)
    return list(reads.values())


def _together(one: Access, other: Access) -> Access:
    larger = one if one.nbytes >= other.nbytes else other
    first, last = zip(one.place, other.place, strict=True)
    return replace(
        larger,
        nbytes=one.nbytes + other.nbytes,
        by_row=one.by_row and other.by_row,
        place=(min(first), max(last)),
    )


def _inputs_of_stages(members: Sequence[Member]) -> dict[int, frozenset[int]]:
    """Members whose inputs a stage waits for: a member's first stage, for itself and those without stages before it."""
    waits: dict[int, frozenset[int]] = {}
    index, positions = 0, []
    for member in members:
        positions.append(member.position)
        if member.plan.stages:
            waits[index] = frozenset(positions)
            index, positions = index + len(member.plan.stages), []
    return waits


def _last_transfers(state: CoreState, members: Sequence[Member]) -> dict[int, int]:
    written = {a.ref.tensor for m in members for a in m.plan.writes}
    return {s: state.last_task[s] for s in written if s in state.last_task}


def _without_needless_evacuation(state: CoreState, members: Sequence[Member]) -> Sequence[Member]:
    """A fused consumer reads PSUM itself; the producer's copy falls away unless somebody after the kernel reads it."""
    head, *rest = members
    made = {a.ref.tensor for a in head.plan.writes}
    consumed = rest and any(a.ref.tensor in made for a in rest[0].plan.reads)
    last = members[-1].position
    if not consumed or any(state.lifetimes.needed_after(storage, last) for storage in made):
        return members
    return [Member(head.position, head.op, head.plan.without_evacuation()), *rest]


def _on_chip(state: CoreState, access: Access) -> bool:
    where = state.residency.find(access.ref.tensor)
    return where is not None and bool(where.on_chip)


def _reach(ready: tuple[Ready, ...], share: float) -> Dependency:
    """The piece that completes the first ``share`` of the rows."""
    return data(next((r for r in ready if r.share >= share - 1e-9), ready[-1]))


def _cumulative(shares: list[float]) -> list[float]:
    total, out = 0.0, []
    for share in shares:
        total += share
        out.append(total)
    out[-1] = 1.0
    return out
