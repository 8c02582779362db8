"""How do the transfers of a collective become rows of ``events`` and ``flows``, shard by shard and in their final order?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.emulator.collectives.trace.kernel import (
    DMA,
    HBM,
    LINK,
    NO_EVENT,
    NO_GAP,
    REASONS,
    Columns,
    Transfers,
    empty_columns,
    fill_columns,
    order_by_server,
)
from trnprof.emulator.fabric.fabric import I32, I64
from trnprof.emulator.taskgraph import TaskGraph
from trnprof.tracer.schema import MAX_SHARD_ROWS, SEQUENCE_BITS, WRITER_SHARD_BITS

U64 = NDArray[np.uint64]
_CATEGORIES: Final = ("collective", "dma")
_MEMORIES: Final = ("hbm", "remote")


@dataclass(frozen=True)
class MessageLabels:
    """What the events of a message have in common.

    Attributes:
        op_id: uint32[messages], the algorithm's step.
        name: int32[messages], position in ``names``.
        names: such as ``3>7``: from chip to chip.
    """

    op_id: NDArray[np.uint32]
    name: I32
    names: pa.Array


@dataclass(frozen=True)
class Placed:
    """Where each task goes: in which order, into which shard, under which id.

    Attributes:
        order: int32[tasks], by shard, server and start.
        starts_ps: int64[tasks], in this order.
        ends: int64[shards * servers + 1], where the tasks of each server of each shard begin in it.
        shard_ends: where each shard begins in it, and the end.
        id: uint64[tasks].
    """

    order: I32
    starts_ps: I64
    ends: I64
    shard_ends: tuple[int, ...]
    id: U64

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.shard_ends) - 1

    def ids_behind(self, writer_number: int, rows: int) -> U64:
        """uint64[rows], the ids of events that come behind the transfers of the last shard."""
        base = _first_id(writer_number, self.shards - 1)
        first = base + self.shard_ends[-1] - self.shard_ends[-2]
        return np.arange(first, first + rows, dtype=np.uint64)


def place(transfers: Transfers, writer_number: int, room: int = 0) -> Placed:
    """Order, shards and ids of all tasks.

    Args:
        transfers: the tasks.
        writer_number: of the writer that will have no other events before them.
        room: rows that each shard leaves free.
    """
    shard, shards = _shards(transfers.end_ps, MAX_SHARD_ROWS - room)
    order, starts_ps, ends = order_by_server(transfers, shard, shards)
    shard_ends = tuple(ends[:: len(transfers.kind)].tolist())
    ids = np.empty(len(order), np.uint64)
    for number, (first, end) in enumerate(pairwise(shard_ends)):
        base = _first_id(writer_number, number)
        ids[order[first:end]] = np.arange(base, base + end - first, dtype=np.uint64)
    return Placed(order, starts_ps, ends, shard_ends, ids)


def event_columns(
    transfers: Transfers, placed: Placed, labels: MessageLabels, late: U64
) -> Iterator[dict[str, Any]]:
    """Columns of ``events`` of one shard after the other, without ids: those are ``placed.id`` in this order.

    Args:
        transfers: the tasks.
        placed: their order and ids.
        labels: of their messages.
        late: uint64[messages], the event by which the sender of each came late, else NO_EVENT.
    """
    servers = len(transfers.kind)
    free_ns = np.zeros(servers, np.int64)
    for number, (first, end) in enumerate(pairwise(placed.shard_ends)):
        columns = empty_columns(end - first)
        fill_columns(
            transfers,
            placed.order[first:end],
            placed.starts_ps[first:end],
            placed.ends[number * servers : (number + 1) * servers + 1],
            placed.id,
            late,
            free_ns,
            columns,
        )
        yield _columns(columns, transfers.kind[columns.track], labels)


def flow_columns(
    transfers: Transfers, graph: TaskGraph, placed: Placed, edges: str
) -> dict[str, Any]:
    """Columns of ``flows``: every dependency, or those that bound a start (``edges``: all, binding).

    A dependency on another message is of kind ``collective``: somebody waited for somebody; within a message it is ``data``.
    """
    target = np.repeat(np.arange(len(graph), dtype=np.int64), np.diff(graph.dependency_offsets))
    source, lag_ps = graph.dependencies, graph.lag_ps
    if edges == "binding":
        kept = transfers.blocker[target] == source
        target, source, lag_ps = target[kept], source[kept], lag_ps[kept]
    is_same = transfers.message[source] == transfers.message[target]
    return {
        "source_event": placed.id[source],
        "target_event": placed.id[target],
        "kind": _words(is_same.astype(np.int8), ("collective", "data")),
        "lag_ns": (lag_ps + 500) // 1000,
    }


def _first_id(writer_number: int, shard: int) -> int:
    """Of the events of a writer's shard."""
    return ((writer_number << WRITER_SHARD_BITS) + shard) << SEQUENCE_BITS


def _shards(end_ps: I64, most: int) -> tuple[NDArray[np.int8], int]:
    """The shard of each task by its end, at most so many a shard, and how many there are."""
    tasks = len(end_ps)
    shard = np.zeros(tasks, np.int8)
    shards = max(1, -(-tasks // most))
    for number in range(1, shards):
        cut = np.partition(end_ps, number * most)[number * most]
        shard[end_ps > cut] = number
        ties = np.flatnonzero(end_ps == cut)
        shard[ties[number * most - int((end_ps < cut).sum()) :]] = number
    return shard, shards


def _columns(columns: Columns, kind: NDArray[np.int8], labels: MessageLabels) -> dict[str, Any]:
    rows = {
        "track_id": columns.track,
        "start_ns": columns.start_ns,
        "duration_ns": columns.duration_ns,
        "name": pa.DictionaryArray.from_arrays(labels.name[columns.message], labels.names),
        "category": _words((kind >= DMA).astype(np.int8), _CATEGORIES),
        "op_id": labels.op_id[columns.message],
        "step": np.zeros(len(columns.track), np.int32),
        "bytes": columns.bytes,
        "ready_ns": columns.ready_ns,
        "blocked_by": _masked(columns.blocked_by, pa.uint64(), columns.blocked_by != NO_EVENT),
        "wait_reason": _words(columns.reason, REASONS, columns.reason != NO_GAP),
    }
    if (kind != LINK).any():
        at_hbm = kind == HBM
        hbm = np.zeros(len(at_hbm), np.int8)
        rows["target_memory"] = _words(hbm, _MEMORIES, at_hbm)
    return rows


def _words(
    codes: NDArray[np.int8], words: tuple[str, ...], is_valid: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    """A dictionary column; a code below 0 is allowed only where there is no value."""
    if is_valid is not None:
        codes = np.maximum(codes, 0)
    return pa.DictionaryArray.from_arrays(_masked(codes, pa.int8(), is_valid), pa.array(words))


def _masked(
    values: NDArray[Any], type_: pa.DataType, is_valid: NDArray[np.bool_] | None
) -> pa.Array:
    """An Arrow array over the values as they are, with nulls where they are not valid."""
    bits = None if is_valid is None else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(type_, len(values), [bits, pa.py_buffer(values)])
