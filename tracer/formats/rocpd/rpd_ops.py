"""What did the GPUs of an rpd profile do, and which call launched each operation?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.collective_names import is_collective_kernel
from trnprof.tracer.formats.copy_names import Memories, memories_of_copy
from trnprof.tracer.formats.rocpd.collectives import Collectives
from trnprof.tracer.formats.rocpd.counters import Counter, stage_of_rows
from trnprof.tracer.formats.rocpd.lookup import UNNAMED, Lookup, Words
from trnprof.tracer.formats.rocpd.rpd_calls import Calls, Details, Links
from trnprof.tracer.formats.rocpd.state import Gpu, Process, State, tell_unlinked
from trnprof.tracer.formats.table_columns import attributes, fingerprint, spread
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows
from trnprof.tracer.ingest.stage import UNFINISHED

_KERNEL, _COLLECTIVE, _COPY, _SET, _SYNC = range(5)
_CATEGORIES: Final = ("compute", "collective", "dma", "dma", "sync")
_PATTERNS: Final = {
    _COPY: r"(?i)copy|^[HD]to[HD]",
    _SET: r"(?i)^(?:fillbuffer|memset)",
    _SYNC: r"(?i)^(?:barrier|marker)",
}
_SHAPE: Final = {
    "grid": ("gridX", "gridY", "gridZ"),
    "workgroup": ("workgroupX", "workgroupY", "workgroupZ"),
}
_KERNEL_KEPT: Final = ("groupSegmentSize", "privateSegmentSize")
_COPY_KEPT: Final = ("kind", "srcDevice", "dstDevice", "sync", "pinned")
_BY_KIND: Final[tuple[Memories, ...]] = (
    ("host", "host"),
    ("host", "hbm"),
    ("hbm", "host"),
    ("hbm", "hbm"),
)
"""Memories by hipMemcpyKind."""


@dataclass
class Ops:
    """Device operations as they are met, and what is needed to stage them.

    Attributes:
        kinds: _KERNEL, … of each word, as the type of an operation or the name of a kernel.
        is_empty: which words say nothing.
        streams: code of each stream.
        owners: number of a GPU → the process that uses it.
        ids, rows, gpu: of operations, in parts.
        unlinked, split: operations without a call; copies that are one of several of their call.
    """

    state: State
    words: Words
    calls: Calls
    links: Links
    kernels: Details
    copies: Details
    kinds: Ints
    is_empty: Bools
    streams: dict[str, int]
    stride: int
    owners: dict[int, int] = field(default_factory=dict)
    ids: list[Ints] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    gpu: list[Ints] = field(default_factory=list)
    unlinked: int = 0
    split: int = 0


@dataclass(frozen=True)
class _Known:
    """What is known of the operations of a block: codes of their types and names, kind, call, and what is said of the call."""

    type_codes: Ints
    codes: Ints
    kind: Ints
    call: Ints
    launch: Ints
    process: Ints
    is_shared: Bools
    kernel: Rows
    copy: Rows

    @property
    def is_dma(self) -> Bools:
        found: Bools = (self.kind == _COPY) | (self.kind == _SET)
        return found


def read_ops(state: State, words: Words, calls: Calls, stride: int) -> Ops:
    """Stage device operations.

    Args:
        state: the profile.
        words: its strings.
        calls: by id.
        stride: by how much the numbers of GPUs of each further host are shifted, 0 if not.
    """
    tables, streams = state.tables, {"": 0}
    shape = [c for columns in _SHAPE.values() for c in columns]
    kinds = np.where(is_collective_kernel(words.words), _COLLECTIVE, _KERNEL)
    for kind, pattern in _PATTERNS.items():
        kinds[words.matching(pattern)] = kind
    ops = Ops(
        state,
        words,
        calls,
        Links(tables),
        Details.read(tables, "rocpd_kernelapi", [*shape, *_KERNEL_KEPT], streams),
        Details.read(tables, "rocpd_copyapi", ["size", *_COPY_KEPT], streams),
        kinds,
        words.matching(f"^{re.escape(UNNAMED)}$"),
        streams,
        stride,
    )
    if stride:
        state.gpu_number("", 0)  # the first host's GPUs keep their numbers, whoever is met first
    collectives = Collectives(state)
    columns = [
        "id",
        "gpuId",
        "queueId",
        "sequenceId",
        "start",
        "end",
        "description_id",
        "opType_id",
    ]
    for block in tables.scan("rocpd_op", ints=columns):
        _read_block(ops, block, collectives)
    collectives.finish()
    total = sum(len(ids) for ids in ops.ids)
    tell_unlinked(state, total - ops.unlinked, ops.unlinked)
    state.stage.audit.add(
        "split_copies",
        "note",
        state.where("rocpd_copyapi"),
        "copies are one of several operations of their call, whose size is not known of each; they have no bytes",
        unreliable="bytes and bandwidth of copies",
        count=ops.split,
    )
    return ops


def read_op_counters(ops: Ops) -> None:
    """Stage hardware counters of operations (schema 3)."""
    state, words = ops.state, ops.words
    parts: list[pl.DataFrame] = []
    if not ops.ids:
        return
    ids, rows, gpu = (np.concatenate(p) for p in (ops.ids, ops.rows, ops.gpu))
    lookup = Lookup(ids)
    for block in state.tables.scan("rocpd_counter", ints=["op_id", "name_id"], reals=["value"]):
        at, value = lookup.find(block.ints("op_id"), block.has("op_id")), block.reals("value")
        known = np.flatnonzero((at >= 0) & np.isfinite(value))
        name = words.codes(block.ints("name_id"), block.has("name_id"))[known]
        part = {"row": rows[at[known]], "gpu": gpu[at[known]], "name": name, "value": value[known]}
        parts.append(pl.DataFrame(part))
    if not parts:
        return
    keys = ("row", "gpu", "name")
    frame = pl.concat(parts).group_by(keys, maintain_order=True).agg(pl.col("value").sum())
    groups, at = distinct([frame["gpu"].to_numpy(), frame["name"].to_numpy()])
    counters = {
        number: Counter(
            _gpu(ops, frame["gpu"][row]), str(words.words[frame["name"][row]]), "1", 1.0
        )
        for number, row in enumerate(at.tolist())
    }
    values = frame.select("value", pmc=pl.Series(groups))
    stage_of_rows(state, counters, values, frame["row"].to_numpy())


def _read_block(ops: Ops, block: Rows, collectives: Collectives) -> None:
    state, words = ops.state, ops.words
    known = _known(ops, block)
    start, end = block.ints("start"), block.ints("end", UNFINISHED)
    is_sized = known.copy.has("size") & known.is_dma
    source, target = _memories(ops, known)
    first = state.stage.add_events(
        timeline=_timelines(ops, block, known),
        start_ns=start,
        end_ns=end,
        name=words.pick(known.codes),
        category=spread(_CATEGORIES, known.kind),
        bytes=pa.array(known.copy.ints("size"), mask=~(is_sized & ~known.is_shared)),
        source_memory=source,
        target_memory=target,
        attributes=_attributes(block, known),
        fingerprint=fingerprint(block, ["opType_id", "description_id", "sequenceId"])
        ^ known.call.view(np.uint64),
        **collectives.add(words, known.codes, known.kind == _COLLECTIVE, known.process, start, end),
    )
    state.link(known.launch, first)
    ops.unlinked += int((known.launch < 0).sum())
    ops.split += int((is_sized & known.is_shared).sum())
    ops.ids.append(block.ints("id"))
    ops.rows.append(first + np.arange(block.count))
    ops.gpu.append(block.ints("gpuId"))


def _known(ops: Ops, block: Rows) -> _Known:
    words = ops.words
    description = words.codes(block.ints("description_id"), block.has("description_id"))
    types = words.codes(block.ints("opType_id"), block.has("opType_id"))
    codes = np.where(ops.is_empty[description], types, description)
    by_type = ops.kinds[types]
    by_name = np.where(ops.kinds[codes] == _COLLECTIVE, _COLLECTIVE, _KERNEL)
    call, has_call, is_shared = ops.links.find(block.ints("id"))
    launch, process = ops.calls.find(call, has_call)
    return _Known(
        types,
        codes,
        np.where(by_type > _COLLECTIVE, by_type, by_name),
        call,
        launch,
        _owners(ops, process, block.ints("gpuId")),
        is_shared,
        ops.kernels.rows(call, has_call),
        ops.copies.rows(call, has_call),
    )


def _owners(ops: Ops, process: Ints, gpu: Ints) -> Ints:
    """The process of each operation: that of its call, else the one that is known to use the GPU, else the first."""
    linked = np.flatnonzero(process >= 0)
    groups, at = distinct([gpu[linked]]) if len(linked) else (linked, linked)
    for row in at.tolist():
        ops.owners.setdefault(int(gpu[linked[row]]), int(process[linked[row]]))
    if len(linked) == len(process):
        return process
    if not ops.state.processes:
        ops.state.processes.append(Process(0, ""))
    groups, at = distinct([gpu])
    otherwise = np.array([ops.owners.get(int(gpu[row]), 0) for row in at], np.int64)[groups]
    return np.where(process < 0, otherwise, process)


def _timelines(ops: Ops, block: Rows, known: _Known) -> Ints:
    state = ops.state
    stream = np.maximum(known.kernel.ints("stream"), known.copy.ints("stream"))
    names = list(ops.streams)
    columns = [known.process, block.ints("gpuId"), block.ints("queueId"), stream]
    columns.append((known.kind == _COPY).astype(np.int64))
    groups, at = distinct(columns)
    counts = np.bincount(groups, minlength=len(at)).tolist()
    timelines = []
    for group, row in enumerate(at.tolist()):
        process, number, queue, code, is_copy = (int(c[row]) for c in columns)
        gpu = _gpu(ops, number)
        name = ", ".join(([f"stream {names[code]}"] if code > 0 else []) + [f"queue {queue}"])
        name += " copies" if is_copy else ""
        timelines.append(
            state.under_chip(process, gpu, name, queue, "stream", exclusive=not is_copy)
        )
        unit = (process, gpu.number)
        state.unit_rows[unit] = state.unit_rows.get(unit, 0) + counts[group]
    return np.array(timelines, np.int64)[groups]


def _gpu(ops: Ops, number: int) -> Gpu:
    node, own = divmod(number, ops.stride) if ops.stride else (0, number)
    return Gpu(*ops.state.gpu_number(f"node {node}" if node else "", own))


def _memories(ops: Ops, known: _Known) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
    words = ops.words.words
    kind, source, target = (known.copy.ints(c, -1) for c in ("kind", "srcDevice", "dstDevice"))
    between = ((source != target) & (source >= 0) & (target >= 0)).astype(np.int64)
    groups, at = distinct([known.kind, known.type_codes, known.codes, kind, between])
    ends: list[Memories] = []
    for row in at.tolist():
        if known.kind[row] == _SET:
            ends.append((None, "hbm"))
        elif known.kind[row] == _COPY:
            told = (known.type_codes[row], known.codes[row])
            by_name = next((m for c in told if (m := memories_of_copy(str(words[c])))[0]), None)
            found = by_name or _by_kind(int(kind[row]))
            ends.append(("hbm", "remote") if between[row] and found == ("hbm", "hbm") else found)
        else:
            ends.append((None, None))
    return spread([a for a, _ in ends], groups), spread([b for _, b in ends], groups)


def _by_kind(kind: int) -> Memories:
    return _BY_KIND[kind] if 0 <= kind < len(_BY_KIND) else (None, None)


def _attributes(block: Rows, known: _Known) -> pa.Array:
    numbers = {"sequenceId": (block.ints("sequenceId"), block.has("sequenceId"))}
    for rows, kept, chosen in (
        (known.kernel, [c for columns in _SHAPE.values() for c in columns], ~known.is_dma),
        (known.kernel, _KERNEL_KEPT, ~known.is_dma),
        (known.copy, _COPY_KEPT, known.is_dma),
    ):
        for name in kept:
            numbers[name] = rows.ints(name), rows.has(name) & chosen
    names: Sequence[str] = ("sequenceId", *_KERNEL_KEPT, *_COPY_KEPT)
    return attributes(Rows(block.count, numbers), names, _SHAPE)
