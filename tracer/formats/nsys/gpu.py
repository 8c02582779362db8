"""What did the GPUs of an Nsight Systems profile do: kernels, copies, memsets, graphs, and waits on streams?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from trnprof.tracer.formats.nsys.api import Launches
from trnprof.tracer.formats.nsys.collectives import Kernels
from trnprof.tracer.formats.nsys.names import enum_labels, process_of
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.table_columns import (
    attributes,
    fingerprint,
    nullable,
    per_group,
    spread,
)
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows

_PLACE: Final = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_SHAPE: Final = {"grid": ("gridX", "gridY", "gridZ"), "block": ("blockX", "blockY", "blockZ")}
_KERNEL_KEPT: Final = (
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"),
    *("graphNodeId", "graphId", "clusterX", "clusterY", "clusterZ", "greenContextId"),
)
"""Launch configuration, kept in attributes where it is not 0."""
_KERNEL_LEFT: Final = frozenset(
    (
        *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "gridId"),
        *("localMemoryTotal", "sharedMemoryExecuted", "sharedMemoryLimitConfig"),
        *("qmdBulkReleaseDone", "qmdPreexitDone", "qmdLastCtaDone", "clusterSchedulingPolicy"),
        *("maxPotentialClusterSize", "maxActiveClusters", "sharedMemoryRequestedPercentage"),
        *("tensorSizeMinusOneElements", "sharedMemoryConfig"),
    )
)
"""Columns of kernels that are not kept: derived from the others, or the same on every row; docs/formats/nsys.md lists them."""
COPY_KINDS: Final = {
    0: "Unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "UVM HtoD",
    12: "UVM DtoH",
    13: "UVM DtoD",
}
"""CUPTI's kinds of copy."""
_MEMORY_KINDS: Final = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
    7: "Unknown",
}
_SYNC_KINDS: Final = {
    0: "Unknown",
    1: "Event sync",
    2: "Stream wait sync",
    3: "Stream sync",
    4: "Context sync",
}


@dataclass
class Device:
    """What is gathered while device events are read.

    Attributes:
        contexts: timeline of a stream → GPU, process, context.
        devices: (process, context) → CUDA ordinal, as kernels and copies have it: on waits it is not reliable.
        unlinked: device events without a call that launched them.
        linked: those with one.
    """

    state: State
    launches: Launches
    kernels: Kernels
    contexts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    devices: dict[tuple[int, int], int] = field(default_factory=dict)
    unlinked: int = 0
    linked: int = 0


@dataclass(frozen=True)
class _Placed:
    """Where the rows of a block lie: ``timeline`` and ``process`` of each, and rows of the calls that launched them (-1: none)."""

    timeline: Ints
    process: Ints
    launch: Ints


def read_device(state: State, launches: Launches, kernels: Kernels) -> Device:
    """Stage everything that GPUs did.

    Args:
        state: the profile.
        launches: CUDA calls by process and correlation.
        kernels: gets the kernels of collectives.
    """
    device = Device(state, launches, kernels)
    _read_kernels(device)
    _read_copies(device)
    _read_sets(device)
    _read_graphs(device)
    _read_waits(device)
    state.name_streams(device.contexts)
    _tell_unlinked(device)
    return device


def _read_kernels(device: Device) -> None:
    state, table = device.state, "CUPTI_ACTIVITY_KIND_KERNEL"
    shape = [c for columns in _SHAPE.values() for c in columns]
    known = frozenset((*_PLACE, *shape, *_KERNEL_KEPT)) | _KERNEL_LEFT
    other = [c for c in state.tables.columns(table) if c not in known]
    name = "demangledName" if "demangledName" in state.tables.columns(table) else "shortName"
    is_collective = device.kernels.words
    ints = [*_PLACE, *shape, *_KERNEL_KEPT, name, *other]
    for block in state.tables.scan(table, ints=ints):
        placed = _place(device, block, "stream")
        codes = state.strings.codes(block.ints(name), block.has(name))
        of_collective = is_collective[codes]
        first = state.stage.rows
        extra = device.kernels.add(
            block, of_collective, codes, placed.process, placed.launch, first
        )
        state.stage.add_events(
            timeline=placed.timeline,
            start_ns=block.ints("start"),
            end_ns=block.ints("end"),
            name=state.strings.pick(codes),
            category=_either(of_collective, "collective", "compute"),
            attributes=attributes(block, [*_KERNEL_KEPT, *other, "correlationId"], _SHAPE),
            fingerprint=fingerprint(block, ["correlationId", name, *shape]),
            **extra,
        )
        _link(device, placed, first)


def _read_copies(device: Device) -> None:
    state, table = device.state, "CUPTI_ACTIVITY_KIND_MEMCPY"
    memories = enum_labels(state.tables, "ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)
    ends_kept = ("srcDeviceId", "dstDeviceId", "srcContextId", "dstContextId")
    kept = (
        *ends_kept,
        *("migrationCause", "graphNodeId", "virtualAddress", "copyCount", "greenContextId"),
    )
    what = ("copyKind", "srcKind", "dstKind")
    for block in state.tables.scan(table, ints=[*_PLACE, *what, "bytes", *kept]):
        placed = _place(device, block, "stream")
        columns = [block.ints(c, -1) for c in what]
        own, source = block.ints("deviceId"), block.ints("srcDeviceId", -1)
        is_sender = (source < 0) | (source == own)
        groups, at = distinct([*columns, is_sender.astype(np.int64)])
        names, ends = [], []
        for row in at.tolist():
            kind, from_kind, to_kind = (int(c[row]) for c in columns)
            names.append(_copy_name(kind, memories.get(from_kind), memories.get(to_kind)))
            ends.append(_copy_memories(kind, from_kind, to_kind, bool(is_sender[row])))
        first = state.stage.add_events(
            timeline=placed.timeline,
            start_ns=block.ints("start"),
            end_ns=block.ints("end"),
            name=spread(names, groups),
            category="dma",
            bytes=nullable(block, "bytes"),
            source_memory=spread([a for a, _ in ends], groups),
            target_memory=spread([b for _, b in ends], groups),
            attributes=attributes(block, [*kept, "correlationId"]),
            fingerprint=fingerprint(block, ["correlationId", *what, "bytes"]),
        )
        _link(device, placed, first)


def _read_sets(device: Device) -> None:
    state = device.state
    for block in state.tables.scan(
        "CUPTI_ACTIVITY_KIND_MEMSET", ints=[*_PLACE, "value", "bytes", "memKind", "graphNodeId"]
    ):
        placed = _place(device, block, "stream")
        first = state.stage.add_events(
            timeline=placed.timeline,
            start_ns=block.ints("start"),
            end_ns=block.ints("end"),
            name="Memset",
            category="dma",
            bytes=nullable(block, "bytes"),
            target_memory=spread(["hbm", "host"], (block.ints("memKind", 2) < 2).astype(np.int64)),
            attributes=attributes(block, ["value", "memKind", "graphNodeId", "correlationId"]),
            fingerprint=fingerprint(block, ["correlationId", "value", "bytes"]),
        )
        _link(device, placed, first)


def _read_graphs(device: Device) -> None:
    """CUDA graphs recorded as a whole (``--cuda-graph-trace=graph``): they occupy their stream, and what is in them is not known."""
    state, table = device.state, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    kept = ("graphId", "graphExecId", "greenContextId", "endStreamId", "endDeviceId")
    count = 0
    for block in state.tables.scan(table, ints=[*_PLACE, *kept]):
        placed = _place(device, block, "stream")
        groups, at = distinct([block.ints("graphId", -1)])
        ids = block.list("graphId")
        names = [f"CUDA graph {ids[i]}" if ids[i] is not None else "CUDA graph" for i in at]
        first = state.stage.add_events(
            timeline=placed.timeline,
            start_ns=block.ints("start"),
            end_ns=block.ints("end"),
            name=spread(names, groups),
            category="compute",
            attributes=attributes(block, [*kept, "correlationId"]),
            fingerprint=fingerprint(block, ["correlationId", "graphId", "graphExecId"]),
        )
        _link(device, placed, first)
        count += block.count
    state.stage.audit.add(
        "opaque_graphs",
        "warning",
        state.where(table),
        "launches of CUDA graphs were recorded as a whole: they count as compute, whatever is in them; record with "
        "--cuda-graph-trace=node to see it",
        unreliable="compute and communication inside CUDA graphs",
        count=count,
    )


def _read_waits(device: Device) -> None:
    """Synchronisation: it occupies no GPU, and stands beside its stream."""
    state, table = device.state, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    kinds = enum_labels(state.tables, "ENUM_CUPTI_SYNC_TYPE", _SYNC_KINDS)
    kept = ("eventId", "eventSyncId")
    for block in state.tables.scan(table, ints=[*_PLACE, "syncType", "deprecatedSyncType", *kept]):
        placed = _place(device, block, "thread", " sync")
        sync = np.where(
            block.has("syncType"), block.ints("syncType"), block.ints("deprecatedSyncType")
        )
        groups, at = distinct([sync])
        names = [kinds.get(int(sync[i]), f"sync {int(sync[i])}") for i in at]
        state.stage.add_events(
            timeline=placed.timeline,
            start_ns=block.ints("start"),
            end_ns=block.ints("end"),
            name=spread(names, groups),
            category="sync",
            attributes=attributes(block, [*kept, "correlationId"]),
            fingerprint=fingerprint(block, ["correlationId", "syncType", "eventId"]),
        )


def _place(device: Device, block: Rows, kind: str, suffix: str = "") -> _Placed:
    state = device.state
    if block.has("globalPid").any():
        process = process_of(block.ints("globalPid"))
    else:
        process = np.full(block.count, device.launches.only_process, np.int64)
    columns = [process, *(block.ints(c, -1) for c in ("deviceId", "contextId", "streamId"))]
    groups, at = distinct(columns)
    numbers = []
    counts = np.bincount(groups, minlength=len(at)).tolist()
    for group, row in enumerate(at.tolist()):
        of_process, of_device, context, stream = (int(c[row]) for c in columns)
        if kind == "stream":
            device.devices.setdefault((of_process, context), of_device)
        else:
            of_device = device.devices.get((of_process, context), of_device)
        number = state.under_chip(of_process, of_device, context, stream, kind, suffix)
        numbers.append(number)
        gpu = state.gpu(of_process, of_device)
        device.contexts[number] = (gpu, of_process, context)
        if kind == "stream":
            unit = (of_process, gpu)
            state.unit_rows[unit] = state.unit_rows.get(unit, 0) + counts[group]
    launch = device.launches.rows_of(
        process, block.ints("correlationId"), block.has("correlationId")
    )
    return _Placed(per_group(groups, numbers), process, launch)


def _link(device: Device, placed: _Placed, first: int) -> None:
    linked = np.flatnonzero(placed.launch >= 0)
    device.linked += len(linked)
    device.unlinked += len(placed.launch) - len(linked)
    device.launches.note(placed.launch, first)
    if len(linked):
        device.state.stage.add_flows(placed.launch[linked], first + linked, "launch")


def _tell_unlinked(device: Device) -> None:
    if device.linked + device.unlinked:
        device.state.stage.audit.add(
            "unlinked_kernels",
            "note" if device.linked else "warning",
            device.state.tables.label,
            "device events have no recorded call that launched them; they count in full, but have no launch and no step",
            unreliable="launch delays and steps",
            count=device.unlinked,
            of=device.linked + device.unlinked,
        )


def _copy_name(kind: int, source: str | None, target: str | None) -> str:
    name = f"Memcpy {COPY_KINDS.get(kind, f'kind {kind}')}"
    return f"{name} ({source} -> {target})" if source and target else name


def _copy_memories(
    kind: int, source: int, target: int, is_sender: bool
) -> tuple[str | None, str | None]:
    """Source and target memory; a copy between GPUs is seen from the one that it is recorded on."""
    if kind == 10:
        return ("hbm", "remote") if is_sender else ("remote", "hbm")
    letters = {1: "HD", 2: "DH", 3: "HD", 4: "DH", 5: "DD", 6: "DD", 7: "DD", 8: "DD", 9: "HH"}
    letters |= {11: "HD", 12: "DH", 13: "DD"}
    place: Callable[[str], str] = {"H": "host", "D": "hbm"}.__getitem__
    if kind in letters:
        return place(letters[kind][0]), place(letters[kind][1])
    by_memory = {0: "host", 1: "host", 2: "hbm", 3: "hbm", 5: "hbm"}
    return by_memory.get(source), by_memory.get(target)


def _either(mask: Bools, yes: str, no: str) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(mask.astype(np.int8)), pa.array([no, yes]))
