"""What does a file of a Chakra execution trace hold, and is it whole?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.decode_kernel import (
    ABSENT,
    NodeColumns,
    empty_columns,
    find_messages,
    read_nodes,
)
from trnprof.emulator.capture.chakra.order_kernel import find_cycle, order_nodes
from trnprof.emulator.fabric.fabric import I64
from trnprof.tracer.compiled import compiled
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.protobuf_wire import LENGTH, MALFORMED, Bytes, read_field
from trnprof.tracer.units import printable

_AGAIN: Final = "copy or write it anew"
_GZIP: Final = b"\x1f\x8b"
_SHOWN: Final = 6


@dataclass(frozen=True)
class ExecutionTrace:
    """The nodes of one rank.

    Attributes:
        label: what errors call it: its path.
        data: the file.
        columns: of its n nodes, in the order of the file.
        dependencies: int64[d], indices of nodes, by ``columns.dependency_offsets``; each node has one once at most.
        order: int64[n], a topological order, by id where there is a choice.
    """

    label: str
    data: Bytes
    columns: NodeColumns
    dependencies: I64
    order: I64

    def __len__(self) -> int:
        return len(self.columns.id)

    def name(self, node: int) -> str:
        """Of a node."""
        return self._text(self.columns.names[node])

    def group_name(self, node: int) -> str:
        """What it calls its group; "" for all ranks."""
        number = int(self.columns.values[node, schema.PG_NAME])
        return self._text(self.columns.texts[node]) if number == ABSENT else str(number)

    def input_values(self, node: int) -> str:
        """What its inputs are, as text."""
        return self._text(self.columns.inputs[node])

    def value(self, node: int, attribute: int, default: int = 0) -> int:
        """An attribute of a node, by its number in ``schema``."""
        value = int(self.columns.values[node, attribute])
        return default if value == ABSENT else value

    def fail(self, node: int, what: str) -> ProfileError:
        """The error about a node."""
        name = printable(self.name(node))
        return ProfileError(f"{self.label}: node {self.columns.id[node]} ({name!r}) {what}")

    def _text(self, span: I64) -> str:
        return self.data[span[0] : span[1]].tobytes().decode("utf-8", "replace")


def read_trace(path: Path) -> ExecutionTrace:
    """Read and check one file.

    Raises:
        ProfileError: it cannot be read, is cut off, no execution trace, of an older schema, or its nodes wait for each other or for some
            that are not there.
    """
    label = str(path)
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ProfileError(f"cannot read {label}: {error.strerror}") from None
    spans = _node_spans(label, data)
    columns = empty_columns(len(spans))
    count, bad = read_nodes(data, spans, columns, np.empty(0, np.uint64))
    if bad != -1:
        raise _bad_node(label, spans, bad)
    ids = np.empty(count, np.uint64)
    read_nodes(data, spans, columns, ids)
    bare = ExecutionTrace(label, data, columns, np.empty(0, np.int64), np.empty(0, np.int64))
    columns, dependencies = _resolved(bare, ids)
    order = order_nodes(columns.id, columns.dependency_offsets, dependencies)
    if len(order) < len(columns.id):
        cycle = find_cycle(columns.dependency_offsets, dependencies, order)
        raise _cycle(bare, cycle)
    trace = ExecutionTrace(label, data, columns, dependencies, order)
    _check_types(trace)
    return trace


def _node_spans(label: str, data: Bytes) -> I64:
    """int64[n, 2], of the nodes: all messages but the first, which is of the whole."""
    if not data.size:
        raise ProfileError(f"{label} is empty (0 bytes)")
    if data[:2].tobytes() == _GZIP:
        raise ProfileError(f"{label} is compressed; decompress it first: gunzip")
    count, end, problem = find_messages(data, np.empty((0, 2), np.int64))
    if problem:
        raise _torn(label, data, count, end, problem)
    spans = np.empty((count, 2), np.int64)
    find_messages(data, spans)
    if not _is_metadata(data, *spans[0]):
        raise ProfileError(
            f"{label} is no Chakra execution trace: it does not begin with a GlobalMetadata"
        )
    if count == 1:
        raise ProfileError(f"{label} is an execution trace without a node")
    return spans[1:]


@compiled
def _is_metadata(data: Bytes, first: int, end: int) -> bool:
    """Whether a message holds nothing but texts and attributes."""
    at = first
    while at < end:
        number, wire, _, after = read_field(data, at, end)
        if after < 0 or wire != LENGTH or number > 2:
            return False
        at = after
    return True


def _torn(label: str, data: Bytes, count: int, end: int, problem: int) -> ProfileError:
    """What is wrong behind the last whole message."""
    spans = np.empty((count, 2), np.int64)
    find_messages(data[:end], spans)
    if problem == MALFORMED or not count or not _is_metadata(data, *spans[0]):
        where = f"at byte {end} (message {count})"
        return ProfileError(
            f"{label} is no Chakra execution trace, or damaged: {where} is no length of a message; {_AGAIN}"
        )
    return ProfileError(
        f"{label} is cut off in message {count} at byte {end} of {data.size}; {_AGAIN}"
    )


def _bad_node(label: str, spans: I64, bad: int) -> ProfileError:
    if bad < -1:
        return ProfileError(
            f"{label} is of a Chakra schema before {schema.VERSION} (October 2023), whose fields have other numbers; "
            "write it anew with a current converter"
        )
    return ProfileError(f"{label}: message {bad + 1} at byte {spans[bad, 0]} is no node; {_AGAIN}")


def _resolved(trace: ExecutionTrace, ids: np.ndarray) -> tuple[NodeColumns, I64]:
    """Dependencies as indices, without repetitions, and the columns with their offsets."""
    columns = trace.columns
    by_id = np.argsort(columns.id, kind="stable")
    ordered = columns.id[by_id]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise trace.fail(int(by_id[twice[0] + 1]), "is there twice: each needs an id of its own")
    owner = np.repeat(np.arange(len(ordered)), np.diff(columns.dependency_offsets))
    places = np.searchsorted(ordered, ids)
    missing = np.flatnonzero(ordered[np.minimum(places, len(ordered) - 1)] != ids)
    if len(missing):
        first = missing[0]
        raise trace.fail(
            int(owner[first]),
            f"waits for node {ids[first]}, which is not there ({len(missing)} such dependencies)",
        )
    pairs = np.sort(owner * len(ordered) + by_id[places]) if len(ids) else owner
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    owner, dependencies = np.divmod(pairs, len(ordered))
    counts = np.bincount(owner, minlength=len(ordered))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return columns._replace(dependency_offsets=offsets), dependencies.astype(np.int64)


def _cycle(trace: ExecutionTrace, cycle: list[int]) -> ProfileError:
    shown = [str(trace.columns.id[node]) for node in cycle[:_SHOWN]]
    rest = [f"… {len(cycle) - _SHOWN} more"] if len(cycle) > _SHOWN else []
    names = " → ".join([*shown, *rest, shown[0]])
    return ProfileError(f"{trace.label}: nodes wait for each other and never run: {names}")


def _check_types(trace: ExecutionTrace) -> None:
    known = trace.columns.type
    wrong = np.flatnonzero((known < 0) | (known > schema.COMM_COLL))
    if len(wrong):
        node = int(wrong[0])
        raise trace.fail(
            node,
            f"has the type {known[node]}, which is not known ({len(wrong)} such nodes); known are 0 to {schema.COMM_COLL}",
        )
