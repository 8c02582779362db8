"""How is a collective written as a trace? Tracks, operations, groups, every transfer, who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.emulator.collectives.endpoint import Endpoint
from trnprof.emulator.collectives.messages import ALL_GATHER, REDUCE_SCATTER, Messages
from trnprof.emulator.collectives.outcome import Events, Outcome
from trnprof.emulator.collectives.servers import Servers
from trnprof.emulator.collectives.trace.kernel import Transfers, last_received
from trnprof.emulator.collectives.trace.rows import (
    U64,
    MessageLabels,
    event_columns,
    flow_columns,
    place,
)
from trnprof.emulator.collectives.trace.tracks import (
    DEVICE_CLOCK,
    Numbers,
    server_kinds,
    track_columns,
)
from trnprof.emulator.fabric.fabric import I64
from trnprof.emulator.trace_rows import to_ns
from trnprof.tracer.errors import CollectiveError
from trnprof.tracer.manifest import Clock
from trnprof.tracer.writer import TraceWriter

ALL_EDGES_LIMIT: Final = 20_000_000
"""Up to this many events all dependencies are written, beyond it only those that bound a start."""


def write_collectives(
    directory: Path,
    outcomes: Sequence[Outcome],
    endpoint: Endpoint,
    *,
    edges: str | None = None,
    reproducible: bool = False,
) -> int:
    """Write collectives that were in flight at once, as writer ``emulator`` of a trace directory.

    Args:
        directory: the trace.
        outcomes: of one chunked run, in the order of their parts.
        endpoint: of the chips they ran on.
        edges: which dependencies to write: all, binding or none; by default all up to ALL_EDGES_LIMIT events.
        reproducible: leave out what differs between two runs.

    Returns:
        How many events.

    Raises:
        CollectiveError: there are no events: another fidelity than chunked.
        WriteError: it could not be written.
    """
    events = outcomes[0].events
    if events is None:
        raise CollectiveError(
            f"a trace needs the chunked fidelity; {outcomes[0].fidelity} has no events"
        )
    fabric = outcomes[0].fabric
    numbers = Numbers(
        Servers(fabric.links, fabric.chips, len(outcomes)), len(fabric.topology.tiers)
    )
    transfers = transfers_of(events, numbers.servers)
    is_used = np.bincount(transfers.server, minlength=len(numbers.servers)) > 0
    room = sum(len(outcome.request.ranks) for outcome in outcomes)
    with TraceWriter(
        directory,
        writer="emulator",
        clocks=[Clock(DEVICE_CLOCK, "device")],
        reproducible=reproducible,
    ) as writer:
        writer.add_tracks(track_columns(outcomes, numbers, endpoint, is_used))
        writer.add_groups(_group_columns(outcomes))
        writer.add_ops(_op_columns(outcomes))
        writer.add_steps(_step_columns(outcomes))
        placed = place(transfers, writer.number, room=room)
        spans = _span_columns(outcomes, numbers, placed.id, _last_received(outcomes, transfers))
        columns = event_columns(transfers, placed, message_labels(outcomes))
        for number, part in enumerate(columns):
            # spans of streams come last: their tracks have the highest numbers
            writer.write_shard([part, spans] if number == placed.shards - 1 else [part])
        kept = edges or ("all" if len(transfers.server) <= ALL_EDGES_LIMIT else "binding")
        if kept != "none":
            writer.append_flows(flow_columns(transfers, events.graph, placed, kept))
    return len(transfers.server) + room


def transfers_of(events: Events, servers: Servers) -> Transfers:
    """What the compiled passes look at."""
    schedule = events.schedule
    return Transfers(
        server=events.graph.server_ids,
        message=events.message,
        bytes=events.bytes,
        start_ps=schedule.start_ps,
        end_ps=schedule.end_ps,
        ready_ps=schedule.ready_ps,
        blocker=schedule.blocker,
        kind=server_kinds(servers),
    )


def message_labels(outcomes: Sequence[Outcome]) -> MessageLabels:
    """Operation (a step of a collective) and name (chip to chip) of every message of all collectives."""
    op_id, pairs = [], []
    chips = outcomes[0].fabric.chips
    for first, outcome in zip(_first_ops(outcomes), outcomes, strict=True):
        messages = _messages(outcome)
        ranks = np.array(outcome.request.ranks, np.int64)
        op_id.append((first + 1 + messages.step).astype(np.uint32))
        pairs.append(ranks[messages.source] * chips + ranks[messages.target])
    different, name = np.unique(np.concatenate(pairs), return_inverse=True)
    ends = pl.DataFrame({"source": different // chips, "target": different % chips})
    names = ends.select(pl.format("{}>{}", "source", "target"))["source"] if len(ends) else None
    words = pa.array([], pa.string()) if names is None else names.to_arrow().cast(pa.string())
    return MessageLabels(np.concatenate(op_id), name.astype(np.int32), words)


def _messages(outcome: Outcome) -> Messages:
    assert outcome.messages is not None, "of the chunked fidelity"
    return outcome.messages


def _first_ops(outcomes: Sequence[Outcome]) -> list[int]:
    """The op_id of each collective; those of its steps follow it."""
    counts = [1 + _messages(outcome).steps for outcome in outcomes]
    return [sum(counts[:part]) for part in range(len(counts))]


def _groups(outcomes: Sequence[Outcome]) -> dict[tuple[int, ...], int]:
    groups: dict[tuple[int, ...], int] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.request.ranks, len(groups))
    return groups


def _group_columns(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    groups = _groups(outcomes)
    return {
        "group_id": list(groups.values()),
        "ranks": [list(ranks) for ranks in groups],
        "name": [f"{len(ranks)} ranks from {ranks[0]}" for ranks in groups],
    }


def _op_columns(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A row a collective, with a row below it for each of its steps."""
    groups, seen = _groups(outcomes), dict.fromkeys(_groups(outcomes).values(), 0)
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        request, steps = outcome.request, _messages(outcome).steps
        group, parent = groups[request.ranks], len(rows)
        shard = -(-request.bytes // len(request.ranks))
        common = {
            "kind": "collective",
            "group_id": group,
            "group_seq": seen[group],
            "algorithm": ",".join(dict.fromkeys(outcome.algorithms)),
        }
        seen[group] += 1
        rows.append(
            {
                "op_id": parent,
                "parent_id": None,
                "name": request.collective,
                "logical_bytes": request.bytes,
                "in_bytes": shard if request.collective == ALL_GATHER else request.bytes,
                "out_bytes": shard if request.collective == REDUCE_SCATTER else request.bytes,
                **common,
            }
        )
        sizes = {"logical_bytes": None, "in_bytes": None, "out_bytes": None}
        rows += [
            {
                "op_id": parent + 1 + step,
                "parent_id": parent,
                "name": f"{request.collective} step {step}",
                **sizes,
                **common,
            }
            for step in range(steps)
        ]
    return {key: [row[key] for row in rows] for key in rows[0]}


def _step_columns(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One step, of every rank that takes part, as long as the longest collective."""
    ranks = sorted({rank for outcome in outcomes for rank in outcome.request.ranks})
    end = to_ns(np.array([outcome.time_ps for outcome in outcomes])).max()
    label = ", ".join(dict.fromkeys(outcome.request.collective for outcome in outcomes))
    rows = len(ranks)
    return {
        "step": [0] * rows,
        "rank": ranks,
        "clock_id": [DEVICE_CLOCK] * rows,
        "start_ns": [0] * rows,
        "end_ns": [int(end)] * rows,
        "label": [label] * rows,
        "source": ["marker"] * rows,
    }


def _last_received(outcomes: Sequence[Outcome], transfers: Transfers) -> I64:
    """int64[ranks of all], the task that brings each the last that it needs; -1 where it needs nothing."""
    first = np.cumsum([0, *(len(outcome.request.ranks) for outcome in outcomes)])
    receivers = [
        _messages(outcome).target + at for at, outcome in zip(first[:-1], outcomes, strict=True)
    ]
    return last_received(transfers, np.concatenate(receivers).astype(np.int32), int(first[-1]))


def _span_columns(
    outcomes: Sequence[Outcome], numbers: Numbers, ids: U64, last: I64
) -> dict[str, Any]:
    """What a stream is busy with: its chip's part in the collective, from its call until it has all that it needs.

    It is blocked by what its end waits for.
    """
    is_known = last >= 0
    known = np.zeros(len(last), np.uint64)
    known[is_known] = ids[last[is_known]]
    blocker = pl.Series(known).set(pl.Series(~is_known), None)
    parts, at = [], 0
    for part, (first_op, outcome) in enumerate(zip(_first_ops(outcomes), outcomes, strict=True)):
        request = outcome.request
        ranks = np.array(request.ranks, np.int64)
        release = np.zeros(len(ranks), np.int64)
        release[list(request.release_ps)] = list(request.release_ps.values())
        start = to_ns(release)
        frame = pl.DataFrame(
            {
                "track_id": numbers.first_stream(part) + ranks,
                "start_ns": start,
                "duration_ns": np.maximum(to_ns(outcome.rank_end_ps) - start, 0),
                "ready_ns": start,
                "blocked_by": blocker[at : at + len(ranks)],
            }
        ).sort("track_id")
        at += len(ranks)
        parts.append(
            frame.with_columns(
                name=pl.lit(request.collective),
                category=pl.lit("collective"),
                op_id=pl.lit(first_op, pl.UInt32),
                step=pl.lit(0, pl.Int32),
                bytes=pl.lit(request.bytes, pl.Int64),
                wait_reason=pl.when(pl.col("start_ns") > 0).then(pl.lit("host")),
            )
        )
    whole = pl.concat(parts).with_columns(pl.col("track_id").cast(pl.UInt32))
    return {name: whole[name] for name in whole.columns}
