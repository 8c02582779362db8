"""Which receive gets what which send sends, where all ranks do the same? A receive then waits for its own rank's send of that kind."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.alike import Meetings
from trnprof.emulator.capture.chakra.order_kernel import order_nodes
from trnprof.emulator.capture.chakra.trace import ExecutionTrace


def with_messages(
    trace: ExecutionTrace, meetings: Meetings, world: int
) -> tuple[ExecutionTrace, frozenset[int]]:
    """Let receives wait for the sends that are the same as those of the ranks they receive from.

    What goes as far, with the same tag and size, is received in the order in which it is sent.

    Args:
        trace: of one rank.
        meetings: of all.
        world: how many ranks.

    Returns:
        The trace with these dependencies, in an order that keeps them; the receives that have one.

    Raises:
        ProfileError: each rank would wait for what another sends only later.
    """
    received = _pairs(trace, meetings, world)
    if not received:
        return trace, frozenset()
    columns, count = trace.columns, len(trace)
    owner = np.repeat(np.arange(count), np.diff(columns.dependency_offsets))
    pairs = np.concatenate(
        (
            owner * count + trace.dependencies,
            np.array([receive * count + send for receive, send in received.items()], np.int64),
        )
    )
    owner, dependencies = np.divmod(np.unique(pairs), count)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count))))
    columns = columns._replace(dependency_offsets=offsets.astype(np.int64))
    order = order_nodes(columns.id, columns.dependency_offsets, dependencies)
    if len(order) < count:
        node = min(set(received) - set(order.tolist()))
        raise trace.fail(node, "never gets its message: every rank waits for another to send first")
    return replace(trace, columns=columns, dependencies=dependencies, order=order), frozenset(
        received
    )


def _pairs(trace: ExecutionTrace, meetings: Meetings, world: int) -> dict[int, int]:
    """Send by receive."""
    types = trace.columns.type
    sends: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for node in trace.order[types[trace.order] == schema.COMM_SEND].tolist():
        sends[_key(trace, meetings, node, world)].append(node)
    found = {}
    for node in trace.order[types[trace.order] == schema.COMM_RECV].tolist():
        alike = sends[_key(trace, meetings, node, world)]
        if alike and len(meetings.elsewhere[meetings.own[node]]) == world:
            found[node] = alike.pop(0)
    return found


def _key(trace: ExecutionTrace, meetings: Meetings, node: int, world: int) -> tuple[int, int, int]:
    """How far a message goes, its tag and size."""
    source, target = meetings.own[node]
    tag, size = (trace.value(node, which) for which in (schema.COMM_TAG, schema.COMM_SIZE))
    return (target - source) % world, tag, size
