"""How does an operation become a task whose front end gave its cost? By the roofline: the slower of its arithmetic and its bytes.

It runs at the peak of the tensor engine and the bandwidth of HBM, as in ASTRA-sim (``Workload::issue_comp``), one at a time on a core, as
soon as what it waits for has ended. A measured duration is kept as it is.
"""

from __future__ import annotations

from typing import Final

from trnprof.emulator.given import LOAD, ON_HOST, STORE, GivenCost, given_cost
from trnprof.emulator.lowering.plan import TENSOR
from trnprof.emulator.lowering.state import CoreState, Member
from trnprof.emulator.lowering.tasks import (
    LOAD_QUEUES,
    SERVER_ID,
    STORE_QUEUE,
    Dependency,
    TaskLabel,
)
from trnprof.emulator.ranks.ranks import Ranks
from trnprof.emulator.workload import Operation

DTYPE: Final = "bfloat16"
"""Whose peak counts: execution traces name no datatype."""

_SHORTEST_PS: Final = 1000
"""What ASTRA-sim lets a node take of which nothing was measured (``Workload::issue_replay``)."""


def emit_given(state: CoreState, member: Member) -> None:
    """Append the task of one such operation."""
    cost = given_cost(member.op)
    assert cost is not None
    after = wait_for_tokens(state, member.op)
    if cost.what == ON_HOST:
        task = _on_host(state, member, cost, after)
    elif cost.what in (LOAD, STORE):
        task = _transfer(state, member, cost, after)
    else:
        task = _compute(state, member, cost, after)
    note_tokens(state, member.op, task)


def wait_for_tokens(state: CoreState, op: Operation) -> list[Dependency]:
    """The ends of those that an operation waits for by tokens."""
    return [state.tokens[ref.tensor] for ref in op.inputs if ref.tensor in state.tokens]


def note_tokens(state: CoreState, op: Operation, task: int) -> None:
    """Whoever waits for a token of the operation waits for its task."""
    for ref in op.outputs:
        if not ref.nbytes:
            state.tokens[ref.tensor] = Dependency(task)


def duration_ps(ranks: Ranks, cost: GivenCost) -> int:
    """How long an operation takes that has its engines and memory to itself."""
    system, placement = ranks.system, ranks.placement
    if cost.what == ON_HOST:
        return cost.duration_ps
    moving_ps = hbm_ps(ranks, cost.nbytes)
    if cost.what in (LOAD, STORE):
        return cost.duration_ps or max(moving_ps, _dma_ps(ranks, cost))
    flops_ps = cost.flops / placement.lnc / system.core.tensor.peak_flops(DTYPE) * 1e12
    roofline_ps = max(round(flops_ps), moving_ps)
    ways = system.machine.ways
    if ways is None:
        return cost.duration_ps or roofline_ps
    if ways.has_roofline:
        return roofline_ps if cost.nbytes else 0
    return cost.duration_ps or _SHORTEST_PS


def hbm_ps(ranks: Ranks, nbytes: float) -> int:
    """How long the HBM of a rank's cores takes for so many bytes, when all ranks use theirs."""
    placement = ranks.placement
    rate = ranks.system.hbm_bytes_per_s_per_core * placement.lnc / placement.hbm_sharers
    return round(nbytes / rate * 1e12)


def _dma_ps(ranks: Ranks, cost: GivenCost) -> int:
    dma = ranks.system.core.dma
    rate = dma.write_bytes_per_s if cost.what == STORE else dma.read_bytes_per_s
    return round(cost.nbytes / ranks.placement.lnc / rate * 1e12)


def _compute(state: CoreState, member: Member, cost: GivenCost, after: list[Dependency]) -> int:
    """On the tensor engine of one core, which does its part of the rank's work."""
    cores, takes_ps = state.ranks.placement.lnc, duration_ps(state.ranks, cost)
    moving_ps = min(hbm_ps(state.ranks, cost.nbytes), takes_ps)
    label = TaskLabel(member.op.name, "compute", member.position, dtype=DTYPE, is_transpose=False)
    servers = ((SERVER_ID[TENSOR], takes_ps), (SERVER_ID["HBM"], moving_ps))
    return state.tasks.add(
        label, takes_ps, servers, after, flops=cost.flops / cores, nbytes=cost.nbytes // cores
    )


def _transfer(state: CoreState, member: Member, cost: GivenCost, after: list[Dependency]) -> int:
    """Between HBM and memory beyond it, by the core's DMA engines."""
    is_store, takes_ps = cost.what == STORE, duration_ps(state.ranks, cost)
    source, target = ("hbm", "remote") if is_store else ("remote", "hbm")
    label = TaskLabel(member.op.name, "dma", member.position, source=source, target=target)
    servers = (
        (SERVER_ID[STORE_QUEUE if is_store else LOAD_QUEUES[0]], takes_ps),
        (SERVER_ID["DMA engines"], min(_dma_ps(state.ranks, cost), takes_ps)),
        (SERVER_ID["HBM"], min(hbm_ps(state.ranks, cost.nbytes), takes_ps)),
    )
    nbytes = cost.nbytes // state.ranks.placement.lnc
    return state.tasks.add(label, takes_ps, servers, after, nbytes=nbytes)


def _on_host(state: CoreState, member: Member, cost: GivenCost, after: list[Dependency]) -> int:
    label = TaskLabel(member.op.name, "host", member.position)
    servers = ((state.ranks.host(), cost.duration_ps),)
    return state.tasks.add(label, cost.duration_ps, servers, after)
