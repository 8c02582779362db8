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
from trnprof.emulator.collectives.trace.kernel import Transfers
from trnprof.emulator.collectives.trace.rows import (
    MessageLabels,
    event_columns,
    flow_columns,
    place,
)
from trnprof.emulator.collectives.trace.spans import late_ids, span_columns, stream_spans
from trnprof.emulator.collectives.trace.tracks import (
    DEVICE_CLOCK,
    Numbers,
    server_kinds,
    track_columns,
)
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
    spans = stream_spans(outcomes, numbers, transfers, _first_ops(outcomes))
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
        # spans of streams come last: their tracks have the highest numbers
        placed = place(transfers, writer.number, room=len(spans))
        ids = placed.ids_behind(writer.number, len(spans))
        late = late_ids(spans, ids, outcomes)
        columns = event_columns(transfers, placed, message_labels(outcomes), late)
        for number, part in enumerate(columns):
            is_last = number == placed.shards - 1
            writer.write_shard([part, *([span_columns(spans, ids, placed.id)] * is_last)])
        kept = edges or ("all" if len(transfers.server) <= ALL_EDGES_LIMIT else "binding")
        if kept != "none":
            writer.append_flows(flow_columns(transfers, events.graph, placed, kept))
    return len(transfers.server) + len(spans)


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
    names = dict.fromkeys((outcome.request.ranks, outcome.request.replicas) for outcome in outcomes)
    return {
        "group_id": list(groups.values()),
        "ranks": [list(ranks) for ranks in groups],
        "name": [f"{len(ranks) * replicas} ranks from {ranks[0]}" for ranks, replicas in names],
    }


def _op_columns(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A row a collective, with a row below it for each of its steps."""
    groups, seen = _groups(outcomes), dict.fromkeys(_groups(outcomes).values(), 0)
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        request, steps = outcome.request, _messages(outcome).steps
        group, parent = groups[request.ranks], len(rows)
        shard = -(-request.bytes // request.members)
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
