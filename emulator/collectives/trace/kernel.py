"""How do millions of transfers become sorted columns? Compiled passes to order them and to fill the columns."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.tracer.compiled import compiled, inlined

LINK, POST, DMA, HBM = range(4)
"""What a server is."""
NO_EVENT: Final = 2**64 - 1
"""No event has this id."""
NO_GAP, BY_LINK, BY_PEER, BY_QUEUE, BY_DATA, BY_COLLECTIVE = range(-1, 5)
"""Why a track stood idle before an event; those from 0 on are positions in REASONS."""
REASONS: Final = ("link", "peer", "queue", "data", "collective")


class Transfers(NamedTuple):
    """What was scheduled, a row a task.

    Attributes:
        server: int32[tasks].
        message: int32[tasks].
        bytes: int64[tasks].
        start_ps: int64[tasks].
        end_ps: int64[tasks].
        ready_ps: int64[tasks].
        blocker: int64[tasks], the task that bound the start; -1: the call of the collective; below: a rank that came late to it.
        kind: int8[servers], LINK, POST, DMA or HBM.
    """

    server: I32
    message: I32
    bytes: I64
    start_ps: I64
    end_ps: I64
    ready_ps: I64
    blocker: I64
    kind: NDArray[np.int8]


class Columns(NamedTuple):
    """Columns of events in their order, to be filled."""

    track: NDArray[np.uint32]
    start_ns: I64
    duration_ns: I64
    message: I32
    bytes: I64
    ready_ns: I64
    blocked_by: NDArray[np.uint64]
    reason: NDArray[np.int8]


@compiled
def order_by_server(
    transfers: Transfers, shard: NDArray[np.int8], shards: int
) -> tuple[I32, I64, I64]:
    """Tasks by shard, server and start; of one start in ns the longest first.

    Returns:
        int32[tasks], the order; int64[tasks], their starts in ps in this order; int64[shards * servers + 1], where the tasks of each server of
        each shard begin in it.
    """
    servers = len(transfers.kind)
    tasks = len(transfers.server)
    ends = np.zeros(shards * servers + 1, np.int64)
    for task in range(tasks):
        ends[np.int64(shard[task]) * servers + transfers.server[task] + 1] += 1
    for bucket in range(shards * servers):
        ends[bucket + 1] += ends[bucket]
    place = ends[:-1].copy()
    grouped, starts = np.empty(tasks, np.int32), np.empty(tasks, np.int64)
    for task in range(tasks):
        bucket = np.int64(shard[task]) * servers + transfers.server[task]
        grouped[place[bucket]] = task
        starts[place[bucket]] = transfers.start_ps[task]
        place[bucket] += 1
    for bucket in range(shards * servers):
        first, end = ends[bucket], ends[bucket + 1]
        _sort_bucket(transfers, grouped[first:end], starts[first:end])
    return grouped, starts, ends


@compiled
def _sort_bucket(transfers: Transfers, tasks: I32, starts: I64) -> None:
    """Sort the tasks of one server, and their starts with them, in place."""
    for at in range(1, len(tasks)):
        if starts[at] < starts[at - 1]:
            order = np.argsort(starts, kind="mergesort")
            tasks[:] = tasks[order]
            starts[:] = starts[order]
            break
    for at in range(1, len(tasks)):
        # what rounds to no length lies behind what begins in the same ns and takes longer
        to = at
        while to and _to_ns(starts[to]) == _to_ns(starts[to - 1]):
            if _to_ns(transfers.end_ps[tasks[to]]) <= _to_ns(transfers.end_ps[tasks[to - 1]]):
                break
            tasks[to], tasks[to - 1] = tasks[to - 1], tasks[to]
            starts[to], starts[to - 1] = starts[to - 1], starts[to]
            to -= 1


@inlined
def _to_ns(ps: int) -> int:
    return (ps + 500) // 1000


@compiled
def fill_columns(
    transfers: Transfers,
    order: I32,
    starts_ps: I64,
    ends: I64,
    ids: NDArray[np.uint64],
    late: NDArray[np.uint64],
    free_ns: I64,
    columns: Columns,
) -> None:
    """Fill the columns of one shard.

    Args:
        transfers: the tasks.
        order: int32[rows], those of the shard, by server and start.
        starts_ps: int64[rows], their starts.
        ends: int64[servers + 1], where those of each server begin, up to a shift.
        ids: uint64[tasks], the event id of each task.
        late: uint64[messages], the event by which the sender of each came late, else NO_EVENT.
        free_ns: int64[servers], since when each server has been free; carried from shard to shard.
        columns: to be filled.
    """
    for server in range(len(ends) - 1):
        free = free_ns[server]
        for row in range(ends[server] - ends[0], ends[server + 1] - ends[0]):
            task = order[row]
            start, end = _to_ns(starts_ps[row]), _to_ns(transfers.end_ps[task])
            columns.track[row] = server
            columns.start_ns[row] = start
            columns.duration_ns[row] = end - start
            columns.message[row] = transfers.message[task]
            columns.bytes[row] = transfers.bytes[task]
            columns.ready_ns[row] = _to_ns(transfers.ready_ps[task])
            columns.blocked_by[row] = _blocked_by(transfers, task, start, ids, late)
            columns.reason[row] = _reason(transfers, task, 1000 * free) if start > free else NO_GAP
            free = max(free, end)
        free_ns[server] = free


@compiled
def _blocked_by(
    transfers: Transfers,
    task: int,
    start_ns: int,
    ids: NDArray[np.uint64],
    late: NDArray[np.uint64],
) -> np.uint64:
    """The last event that had to end before a task could start.

    A chunk that is passed on while it still comes in began together with what bounds it: the way back goes on to what bounded that.
    """
    blocker = transfers.blocker[task]
    while blocker >= 0 and _to_ns(transfers.end_ps[blocker]) > start_ns:
        task, blocker = blocker, transfers.blocker[blocker]
    if blocker >= 0:
        return np.uint64(ids[blocker])
    return np.uint64(late[transfers.message[task]] if blocker < -1 else NO_EVENT)


@compiled
def _reason(transfers: Transfers, task: int, free_ps: int) -> int:
    """Why the server of a task stood idle before it since ``free_ps``: what that time is made of most.

    The way of its chunk is walked back, stage by stage, to where it had to wait: for its turn on a link or at another server, for a message
    that had to arrive at its sender first, for a late rank, or for the call of the collective itself.
    """
    origin, blocker = task, transfers.blocker[task]
    longest, reason = np.int64(-1), BY_LINK
    while blocker >= 0 and transfers.message[blocker] == transfers.message[task]:
        if transfers.server[blocker] == transfers.server[origin]:
            break
        length = transfers.start_ps[origin] - max(transfers.start_ps[blocker], free_ps)
        if length > longest:
            longest, reason = length, _of_kind(transfers.kind[transfers.server[blocker]])
        origin, blocker = blocker, transfers.blocker[blocker]
    if longest >= transfers.start_ps[origin] - free_ps:
        return reason
    if blocker < 0:
        return BY_COLLECTIVE if blocker == -1 else BY_PEER
    if transfers.server[blocker] == transfers.server[origin]:
        return _of_kind(transfers.kind[transfers.server[origin]])
    return BY_PEER


@inlined
def _of_kind(kind: int) -> int:
    if kind == LINK:
        return BY_LINK
    return BY_DATA if kind == HBM else BY_QUEUE


@compiled
def last_received(transfers: Transfers, receiver: I32, receivers: int) -> I64:
    """The task that ends last of those that bring something to each receiver; -1 where nothing comes.

    Args:
        transfers: the tasks.
        receiver: int32[messages], from 0.
        receivers: how many there are.
    """
    last = np.full(receivers, -1, np.int64)
    for task in range(len(transfers.server)):
        to = receiver[transfers.message[task]]
        if last[to] < 0 or transfers.end_ps[task] > transfers.end_ps[last[to]]:
            last[to] = task
    return last


def empty_columns(rows: int) -> Columns:
    """Columns of so many rows, to be filled."""
    types: tuple[Any, ...] = (
        np.uint32,
        np.int64,
        np.int64,
        np.int32,
        np.int64,
        np.int64,
        np.uint64,
        np.int8,
    )
    return Columns(*(np.empty(rows, dtype) for dtype in types))
