"""Which tables does a trace have, and what does each column mean?

Schema 1. Every column is declared once, here: Arrow type, whether it may be null, unit and meaning. Writers refuse
other columns, readers promise exactly these. Times are integer nanoseconds on the clock of the row's track, or of the
row itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1
"""Version written; readers accept it and the one before."""

SHARD_BITS: Final = 24
SEQUENCE_BITS: Final = 40
"""``event_id = shard << SEQUENCE_BITS | sequence``."""

WRITER_SHARD_BITS: Final = 12
"""A writer numbered w owns the shards ``w << WRITER_SHARD_BITS`` up to ``(w + 1) << WRITER_SHARD_BITS``."""

MAX_SHARD_ROWS: Final = 4_000_000
"""A shard rolls at this many rows at the latest."""

CATEGORIES: Final = ("compute", "dma", "collective", "sync", "host", "memory", "marker")
WAIT_REASONS: Final = (
    "data",  # waits for a result on the same core
    "buffer",  # waits for a buffer to become free
    "engine",  # waits for another task on the same engine
    "queue",  # waits for the issuing queue or the DMA ring
    "semaphore",  # waits for a synchronisation between engines
    "link",
    "peer",
    "collective",
    "host",
)
MEMORIES: Final = ("hbm", "sbuf", "psum", "host", "remote")
TRACK_KINDS: Final = (
    "host",
    "chip",
    "core",
    "engine",
    "dma_queue",
    "collective_stream",
    "link",
    "hbm",
    "thread",
    "stream",
    "counter",
    "fabric",
    "module",
)
DEVICE_KINDS: Final = ("engine", "dma_queue", "collective_stream", "stream")
"""Kinds of tracks whose events occupy a device."""
OP_KINDS: Final = ("module", "aten", "collective", "kernel", "source_line")
FLOW_KINDS: Final = ("data", "buffer", "queue", "semaphore", "collective", "launch")
STEP_SOURCES: Final = ("marker", "optimizer", "profiler", "forward", "generate", "loader")

NAME: Final = pa.dictionary(pa.int32(), pa.string())
KEY: Final = pa.dictionary(pa.int8(), pa.string())
"""Dictionary types: open vocabularies and closed ones (at most 127 values)."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: column name, with its unit where it has one.
        type: Arrow type.
        nullable: whether null is allowed.
        meaning: one line for people.
        domain: the closed vocabulary of a dictionary column, empty if open.
    """

    name: str
    type: pa.DataType
    nullable: bool
    meaning: str
    domain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table of the schema: its name and columns."""

    name: str
    columns: tuple[Column, ...]

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of this table, with the meaning of each column as field metadata."""
        return pa.schema(
            [
                pa.field(c.name, c.type, c.nullable, metadata={"meaning": c.meaning})
                for c in self.columns
            ],
            metadata={"trnprof_schema": str(SCHEMA_VERSION), "table": self.name},
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(c.name for c in self.columns)


def _required(name: str, type_: pa.DataType, meaning: str, domain: tuple[str, ...] = ()) -> Column:
    return Column(name, type_, False, meaning, domain)


def _optional(name: str, type_: pa.DataType, meaning: str, domain: tuple[str, ...] = ()) -> Column:
    return Column(name, type_, True, meaning, domain)


EVENTS: Final = Table(
    "events",
    (
        _required("event_id", pa.uint64(), "shard << 40 | sequence; never renumbered"),
        _required("track_id", pa.uint32(), "the lane it lies on"),
        _required("start_ns", pa.int64(), "start on the track's clock"),
        _optional("duration_ns", pa.int64(), "occupancy of the track; null: open at the end"),
        _required("name", NAME, "opcode, DMA or collective name, function, range"),
        _required("category", KEY, "what kind of work", CATEGORIES),
        _optional("op_id", pa.uint32(), "the operation of `ops` that it implements"),
        _optional("step", pa.int32(), "ordinal of the step that issued it"),
        _optional("dtype", KEY, "datatype that decides the peak"),
        _optional("is_transpose", pa.bool_(), "a matmul used to move data"),
        _optional("flops", pa.float64(), "hardware FLOPs, transposes included"),
        _optional("bytes", pa.int64(), "payload once through this resource"),
        _optional("source_memory", KEY, "where the bytes come from", MEMORIES),
        _optional("target_memory", KEY, "where the bytes go", MEMORIES),
        _optional("descriptor_bytes", pa.int32(), "size of one DMA descriptor"),
        _optional("ready_ns", pa.int64(), "all dependencies met, their lag included"),
        _optional("blocked_by", pa.uint64(), "event_id of what bound the start"),
        _optional("wait_reason", KEY, "why its track idled before it; null: no gap", WAIT_REASONS),
        _optional("attributes", pa.string(), "JSON; imports only: what has no column, verbatim"),
    ),
)

TRACKS: Final = Table(
    "tracks",
    (
        _required("track_id", pa.uint32(), "local to the writer; the reader adds its base"),
        _optional("parent_id", pa.uint32(), "the track it stands under"),
        _required("kind", KEY, "what it is", TRACK_KINDS),
        _required("name", pa.string(), "what people call it"),
        _required("sort_order", pa.int32(), "position among its siblings"),
        _required("lane", pa.int32(), "depth or colour of this lane, from 0"),
        _required("exclusive", pa.bool_(), "a resource that runs one thing at a time"),
        _required("clock_id", pa.int32(), "the clock of its times, as in the fragments"),
        _required("host", pa.string(), "host name"),
        _optional("rank", pa.int32(), "logical NeuronCore"),
        _optional("chip", pa.int32(), "physical chip"),
        _optional("core", pa.int32(), "physical core on the chip"),
        _optional("source_chip", pa.int32(), "links: where from"),
        _optional("target_chip", pa.int32(), "links: where to"),
        _optional("replica_of", pa.uint32(), "the representative track whose events it repeats"),
        _required("replica_count", pa.int32(), "ranks this track stands for, itself included"),
        _optional(
            "max_duration_ns", pa.int64(), "longest event, so that readers know how far to look"
        ),
        _optional("peak_flops", pa.float64(), "FLOP/s of the densest native datatype"),
        _optional("peak_bytes_per_s", pa.float64(), "bandwidth of this resource"),
        _optional("unit", pa.string(), "counters: unit of the value"),
    ),
)

PEAKS: Final = Table(
    "peaks",
    (
        _required("track_kind", KEY, "track kind the peak belongs to", TRACK_KINDS),
        _required("track_name", pa.string(), "track name, such as Tensor; empty: every such track"),
        _required("dtype", KEY, "datatype"),
        _required("sparsity", pa.string(), "dense, or a pattern such as 4:16"),
        _required("flops_per_s", pa.float64(), "peak of one such track"),
    ),
)

OPS: Final = Table(
    "ops",
    (
        _required("op_id", pa.uint32(), "local to the writer; the reader adds its base"),
        _optional("parent_id", pa.uint32(), "the operation or module it belongs to"),
        _required("kind", KEY, "what it is", OP_KINDS),
        _required("name", pa.string(), "operator or module name"),
        _optional("module_path", pa.string(), "dotted path in the module tree"),
        _optional("phase", KEY, "forward, backward, optimizer, …"),
        _optional("source_file", pa.string(), "file that called it"),
        _optional("source_line", pa.int32(), "line that called it"),
        _optional("input_shapes", pa.string(), "shapes of the inputs, such as [4, 8], [8, 2]"),
        _optional("dtypes", pa.string(), "datatypes of the inputs"),
        _optional("model_flops", pa.float64(), "FLOPs the model asks for"),
        _optional("logical_bytes", pa.int64(), "bytes of inputs and outputs, each once"),
        _optional("lowering", KEY, "exact or fallback", ("exact", "fallback")),
        _optional("group_id", pa.uint32(), "collectives: the replica group"),
        _optional("group_seq", pa.int64(), "collectives: ordinal within the group"),
        _optional("algorithm", KEY, "collectives: algorithm"),
        _optional("in_bytes", pa.int64(), "collectives: bytes in"),
        _optional("out_bytes", pa.int64(), "collectives: bytes out"),
    ),
)

GROUPS: Final = Table(
    "groups",
    (
        _required("group_id", pa.uint32(), "local to the writer; the reader adds its base"),
        _required("ranks", pa.list_(pa.int32()), "members, in group order"),
        _required("name", pa.string(), "what people call it"),
    ),
)

STEPS: Final = Table(
    "steps",
    (
        _required("step", pa.int32(), "ordinal from 0"),
        _required("rank", pa.int32(), "rank it belongs to"),
        _required("clock_id", pa.int32(), "the clock of its times, as in the fragments"),
        _required("start_ns", pa.int64(), "previous marker"),
        _required("end_ns", pa.int64(), "this marker"),
        _required("label", pa.string(), "original label"),
        _required("source", KEY, "what marked it", STEP_SOURCES),
    ),
)

FLOWS: Final = Table(
    "flows",
    (
        _required("source_event", pa.uint64(), "event_id that must end first"),
        _required("target_event", pa.uint64(), "event_id that waits"),
        _required("kind", KEY, "what the edge stands for", FLOW_KINDS),
        _required("lag_ns", pa.int64(), "time beyond the source's end before the target is ready"),
    ),
)

COUNTERS: Final = Table(
    "counters",
    (
        _required("track_id", pa.uint32(), "a track of kind counter"),
        _required("timestamp_ns", pa.int64(), "on the track's clock"),
        _required("value", pa.float64(), "holds until the next sample"),
    ),
)

TABLES: Final = {t.name: t for t in (EVENTS, TRACKS, PEAKS, OPS, GROUPS, STEPS, FLOWS, COUNTERS)}
STREAMED: Final = ("events", "flows", "counters")
"""Tables that come in shards; the others are one file a writer (peaks: one a trace)."""
