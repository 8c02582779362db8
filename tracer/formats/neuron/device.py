"""What does a device profile in neuron-profile's older JSON say? ``ntff.json``: instructions, DMA, collectives and throttling of one core.

Its arrays have the rows of today's tables under older names; they are renamed and read as those. Times are nanoseconds in files of the
viewers and picoseconds in some of neuron-profile's: the summary's total time tells which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.checks import (
    check_dma,
    check_flows,
    check_instructions,
    dma_facts,
)
from trnprof.tracer.formats.neuron.collectives import add_collectives
from trnprof.tracer.formats.neuron.counters import add_throttle
from trnprof.tracer.formats.neuron.dma import DmaTally, add_packets, add_transfers
from trnprof.tracer.formats.neuron.flows import Rows, add_flows
from trnprof.tracer.formats.neuron.instructions import InstructionTally, add_instructions
from trnprof.tracer.formats.neuron.json_text import Block, TopLevel, Value
from trnprof.tracer.formats.neuron.machine import machine_of
from trnprof.tracer.formats.neuron.metrics import metric_table
from trnprof.tracer.formats.neuron.ops import Operations
from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.rows import as_table
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

_TIMES: Final = {"timestamp": "start_ts", "duration": "duration_ns"}
_INSTRUCTION: Final = {
    **_TIMES,
    "label": "timeline_track",
    "subgroup": "engine",
    "instruction_type": "tensor_instruction_type",
    "evt_wait_time": "evt_wait_time_ns",
    "dma_wait_time": "dma_wait_time_ns",
    "nc_idx": "pcore_idx",
}
_DMA: Final = {
    **_TIMES,
    "dma_queue": "queue_name",
    "read_size": "read_bytes",
    "write_size": "write_bytes",
    "transfer_size": "transfer_bytes",
    "source_sb_partitions": "read_sbuf_partitions",
    "source_num_sb_partitions": "read_num_sbuf_partitions",
    "source_offset": "read_offset",
    "source_steps": "read_steps",
    "dest_sb_partitions": "write_sbuf_partitions",
    "dest_num_sb_partitions": "write_num_sbuf_partitions",
    "dest_offset": "write_offset",
    "dest_steps": "write_steps",
    "nc_idx": "pcore_idx",
}
_COLLECTIVE: Final = {**_TIMES, "stream": "stream_id"}
_THROTTLE: Final = {"nc_idx": "pcore_idx"}
ARRAYS: Final = {
    "instruction": "instruction",
    "dma": "dma",
    "cc_ops": "cc",
    "cc_op": "cc",
    "ham": "throttle",
    "throttle": "throttle",
}
_SMALL: Final = ("metadata", "instruction_usage", "cc_stream", "warning", "warnings", "neff_header")
_ARRAY: Final = re.compile(
    rb'"(instruction|dma|ham|cc_ops|instruction_usage|stack_frame_function_name)"\s*:\s*\['
)
_MEMBER: Final = re.compile(
    rb'"(compiler_opcode|compiler_pc|instruction_type|raw_bir_id|bir_instruction_name|nki_source_location|'
    rb'dma_queue|queue_type|semaphore_id|subgroup|read_size|operands)"\s*:'
)
_PS_ABOVE: Final = 1.5


@dataclass
class _Seen:
    """What has been read of one file."""

    instructions: InstructionTally = field(default_factory=InstructionTally)
    transfers: DmaTally = field(default_factory=DmaTally)
    packets: DmaTally = field(default_factory=DmaTally)
    collectives: list[pl.DataFrame] = field(default_factory=list)
    throttle: list[pl.DataFrame] = field(default_factory=list)
    edges: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)


def recognise(head: Head) -> int:
    """By its arrays ``instruction``, ``dma`` or ``ham`` with Neuron's members."""
    data = head.data
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{" or b'"traceEvents"' in data:
        return 0
    arrays = {m.group(1) for m in _ARRAY.finditer(data)}
    members = {m.group(1) for m in _MEMBER.finditer(data)}
    if arrays and len(members) >= 2:
        return 95
    if b'"hfu_estimated_percent"' in data and re.search(rb'"summary"\s*:\s*\[', data):
        return 95 if arrays else 50
    return 60 if head.name.startswith(("ntff", "device_profile_model")) and arrays else 0


def read(source: Source, stage: Stage) -> None:
    """Read a device profile.

    Raises:
        ProfileError: there is neither an instruction nor a DMA transfer in it.
    """
    stage.facts.clock_kind = "device"
    first = _first_pass(source, stage)
    summary, metadata = first["summary"], first["metadata"]
    machine = machine_of({**_versions(summary), **metadata})
    places = Places(stage, machine)
    operations = Operations(stage)
    seen = _Seen()
    for item in _items(source, stage):
        if isinstance(item, Value):
            continue
        _take(item, first["unit"], places, operations, seen)
    if not seen.instructions.rows and not seen.transfers.rows and not seen.packets.rows:
        raise ProfileError(
            f"{source.label}: neither an instruction nor a DMA transfer in it; export the profile again"
        )
    if seen.collectives:
        rows = pl.concat(seen.collectives, how="diagonal_relaxed")
        add_collectives(
            [
                rows.with_columns(
                    end_ts=pl.coalesce("end_ts", pl.col("start_ts") + pl.col("duration_ns"))
                )
            ],
            places,
            operations,
        )
    if seen.throttle:
        add_throttle(
            pl.concat(seen.throttle, how="diagonal_relaxed"), places, stage.audit, source.label
        )
    _finish(source, stage, seen, summary)
    stage.facts.system = machine.system()
    stage.facts.peaks = machine.peaks()
    if summary:
        stage.facts.metrics = metric_table(
            {"": summary}, "summary of ntff.json", source.label, stage.audit
        )


def _items(source: Source, stage: Stage, only: bytes = b"") -> Iterator[Block | Value]:
    stream = source.open()
    try:
        yield from TopLevel(stream, source.label, stage.audit, only=only)
    finally:
        stream.close()


def _first_pass(source: Source, stage: Stage) -> dict[str, Any]:
    """Summary, metadata and unit of time, wherever in the file they stand; of instructions only the first block is parsed."""
    found: dict[str, Any] = {"summary": {}, "metadata": {}, "unit": ""}
    stream = source.open()
    latest = 0
    passed_over = {key for key in ARRAYS if key != "instruction"}
    try:
        for item in TopLevel(stream, source.label, Audit(), passed_over=passed_over):
            if isinstance(item, Value):
                if item.key in ("metadata", "summary") and isinstance(item.value, dict):
                    found[item.key] = item.value
            elif item.key in ("summary", "metadata"):
                found[item.key] = _numbers(item.rows)
            elif item.key == "instruction":
                latest = _latest(item.rows)
                passed_over.add("instruction")
            if found["summary"] and found["metadata"] and latest:
                break
    finally:
        stream.close()
    found["unit"] = _unit(found["summary"], latest, stage)
    return found


def _numbers(rows: pl.DataFrame) -> dict[str, Any]:
    """The first row, its numbers as numbers."""
    row: dict[str, Any] = {}
    for name, text in rows.row(0, named=True).items():
        if text is None:
            continue
        try:
            row[name] = int(text)
        except ValueError:
            try:
                row[name] = float(text)
            except ValueError:
                row[name] = text
    return row


def _latest(rows: pl.DataFrame) -> int:
    columns = [c for c in ("timestamp", "start_ts") if c in rows.columns]
    if not columns:
        return 0
    value = rows.select(pl.col(columns[0]).cast(pl.Float64, strict=False).max()).item()
    return int(value or 0)


def _unit(summary: dict[str, Any], latest: int, stage: Stage) -> str:
    total = summary.get("total_time")
    if isinstance(total, (int, float)) and total > 0:
        is_ps = latest > _PS_ABOVE * total * 1e9
        stage.audit.add(
            "picoseconds",
            "note",
            stage.label,
            "times are picoseconds, as the summary's total time shows; they were rounded to nanoseconds",
            unreliable="differences below 1 ns",
            count=int(is_ps),
        )
        return "ps" if is_ps else "ns"
    stage.audit.add(
        "assumed_time_unit",
        "note",
        stage.label,
        "there is no summary with a total time to tell the unit of times: they were taken for nanoseconds (some versions write ps)",
        unreliable="all times, if they are picoseconds",
    )
    return "ns"


def _versions(summary: dict[str, Any]) -> dict[str, Any]:
    """What of a machine the summary tells: its instance type, and its base clock as cycles over time."""
    cycles, total = summary.get("neuroncore_cycle_count"), summary.get("total_time")
    known: dict[str, Any] = {
        k: v for k, v in summary.items() if k.endswith(("version", "instance_type"))
    }
    if isinstance(cycles, (int, float)) and isinstance(total, (int, float)) and total > 0:
        known["neuroncore_clock_freq"] = round(cycles / total / 1e9, 2)
    return known


def _take(item: Block, unit: str, places: Places, operations: Operations, seen: _Seen) -> None:
    kind = ARRAYS.get(item.key)
    if kind == "instruction":
        rows = as_table(item.rows, "Instruction", _INSTRUCTION, unit)
        rows = rows.with_columns(engine=pl.coalesce("engine", "timeline_track"))
        tally = add_instructions([rows], places, operations)
        _join_instructions(seen.instructions, tally)
        if "predecessors" in item.rows.columns:
            seen.edges.append(_predecessors(rows))
    elif kind == "dma":
        _take_dma(item.rows, unit, places, seen)
    elif kind == "cc":
        seen.collectives.append(as_table(item.rows, "CcOp", _COLLECTIVE, unit))
    elif kind == "throttle":
        seen.throttle.append(as_table(item.rows, "Throttle", _THROTTLE, unit))
    elif item.key not in ("summary", *_SMALL):
        seen.unknown[item.key] = seen.unknown.get(item.key, 0) + item.rows.height


def _take_dma(rows: pl.DataFrame, unit: str, places: Places, seen: _Seen) -> None:
    """Rows that are marked as aggregated are transfers, others packets; without the mark, those that name their ends are."""
    if "aggregated" in rows.columns:
        is_whole = (pl.col("aggregated").str.to_lowercase().is_in(["yes", "true", "1"])).fill_null(
            False
        )
    else:
        is_whole = pl.lit("source" in rows.columns)
    marked = rows.with_columns(is_whole.alias("_is_whole"))
    whole, pieces = (
        marked.filter("_is_whole").drop("_is_whole"),
        marked.filter(~pl.col("_is_whole")).drop("_is_whole"),
    )
    if whole.height:
        tally = add_transfers([as_table(whole, "DmaPacketAggregated", _DMA, unit)], places)
        _join_dma(seen.transfers, tally)
    if pieces.height:
        is_beside = seen.transfers.rows > 0
        tally = add_packets(
            [as_table(pieces, "DmaPacket", _DMA, unit)], places, is_beside=is_beside
        )
        _join_dma(seen.packets, tally)


def _predecessors(rows: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids of what each instruction had to wait for, and of the instruction."""
    edges = (
        rows.select("id", before=pl.col("predecessors").str.extract_all(r'"id":\s*"?\d+'))
        .explode("before", empty_as_null=False)
        .select("id", before=pl.col("before").str.extract(r"(\d+)$").cast(pl.Int64, strict=False))
        .drop_nulls()
    )
    return edges["before"].to_numpy(), edges["id"].to_numpy()


def _join_instructions(total: InstructionTally, part: InstructionTally) -> None:
    for name in (
        "rows",
        "has_debug",
        "with_flops",
        "estimated_flops",
        "partly_transposed",
        "raw_flops",
        "adjusted_flops",
    ):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    total.ids += part.ids
    for name, opcode_rows in part.unknown_opcodes.items():
        total.unknown_opcodes[name] = total.unknown_opcodes.get(name, 0) + opcode_rows


def _join_dma(total: DmaTally, part: DmaTally) -> None:
    for name in ("rows", "unnamed", "total_bytes", "sbuf_to_sbuf", "summed_ns"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    total.intervals += part.intervals
    total.ids += part.ids


def _finish(source: Source, stage: Stage, seen: _Seen, summary: dict[str, Any]) -> None:
    label, audit = source.label, stage.audit
    rows = {"instruction": Rows(seen.instructions.ids), "dma": Rows(seen.transfers.ids)}
    frames = [
        pl.DataFrame({"in_id": before, "out_id": after}).with_columns(
            in_table=pl.lit("instruction"),
            out_table=pl.lit("instruction"),
            dependency_type=pl.lit("flow"),
            gap_time=pl.lit(None, pl.Int64),
        )
        for before, after in seen.edges
    ]
    flows = add_flows(frames, rows, stage)
    check_flows(flows, rows["instruction"].repeated if flows.kept else 0, label, audit)
    check_instructions(seen.instructions, summary, label, audit)
    check_dma(seen.transfers, seen.packets, summary, seen.instructions.rows, label, audit)
    dma_facts(seen.transfers, seen.packets, stage.facts)
    audit.add(
        "unknown_member",
        "note",
        label,
        "arrays of the file that are not known were left out",
        count=len(seen.unknown),
        example=next(iter(seen.unknown), ""),
    )


FORMAT = Format("neuron-device", "Neuron device profile (older JSON, ntff.json)", recognise, read)
