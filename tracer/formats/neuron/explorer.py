"""What does a profile of Neuron Explorer say? The Parquet tables of one profile, device and system, schema 7.x.

Device times are nanoseconds from the profile's start; system times are Unix time. With both in one profile they are laid over each
other by executions that lasted as long in both, and the error of that is told; system times are then moved to the device's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.checks import (
    check_dma,
    check_flows,
    check_instructions,
    dma_facts,
)
from trnprof.tracer.formats.neuron.clock import ClockFit, bind_by_duration
from trnprof.tracer.formats.neuron.collectives import add_cc_instructions, add_collectives
from trnprof.tracer.formats.neuron.counters import add_gauges, add_semaphores, add_throttle
from trnprof.tracer.formats.neuron.dma import DmaTally, add_packets, add_transfers
from trnprof.tracer.formats.neuron.facts import (
    add_messages,
    check_versions,
    fill_facts,
    metadata_row,
    summary_row,
)
from trnprof.tracer.formats.neuron.flows import Rows, add_flows
from trnprof.tracer.formats.neuron.instructions import InstructionTally, add_instructions
from trnprof.tracer.formats.neuron.machine import machine_of
from trnprof.tracer.formats.neuron.modules import add_barriers, add_modules
from trnprof.tracer.formats.neuron.ops import Operations
from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.schema import MARKS, packaged_schema
from trnprof.tracer.formats.neuron.source_places import source_places
from trnprof.tracer.formats.neuron.system import finish
from trnprof.tracer.formats.neuron.system_events import EXECUTION, add_system_events
from trnprof.tracer.formats.neuron.system_samples import add_system_tables
from trnprof.tracer.formats.neuron.tables import ProfileTables, table_of
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.units import counted

DEVICE_TABLES: Final = (
    *(
        "Instruction",
        "DmaPacket",
        "DmaPacketAggregated",
        "CcOp",
        "CcInstruction",
        "SemaphoreUpdate",
    ),
    *(
        "PendingDma",
        "HbmUsage",
        "DmaUsage",
        "SbufUsage",
        "PsumUsage",
        "Throttle",
        "ActiveTime",
        "CoreBarriers",
    ),
)
SYSTEM_TABLES: Final = ("SystemProfileEvents", "SystemProfileHbmUsage", "CpuUsage", "HostMemUsage")
_FEW: Final = 3


def recognise(head: Head) -> int:
    """By names of tables among the files of a directory."""
    found = {
        table[0] for name in head.files if (table := table_of(name.rpartition("/")[2])) is not None
    }
    known = found & set(packaged_schema())
    if not known:
        return 0
    if known & MARKS:
        return 95
    return 80 if len(known) >= _FEW else 0


def read(source: Source, stage: Stage) -> None:
    """Read a profile.

    Raises:
        ProfileError: it is no directory, or none of its tables says anything.
    """
    if not source.is_directory:
        raise ProfileError(
            f"{source.label}: one file; a Neuron Explorer profile is the directory of its Parquet tables: name that"
        )
    tables = ProfileTables(source.path, source.label, stage.audit)
    if not any(tables.has(table) for table in (*DEVICE_TABLES, *SYSTEM_TABLES, "Summary")):
        raise ProfileError(
            f"{source.label}: its tables have neither events nor a summary; was anything captured?"
        )
    metadata = metadata_row(tables)
    check_versions(metadata, tables)
    machine = machine_of(metadata)
    places = Places(stage, machine)
    fill_facts(tables, machine, stage.facts)
    has_device = any(tables.has(table) for table in DEVICE_TABLES)
    if has_device:
        _read_device(tables, places)
    add_messages(tables, places)
    _read_system(tables, stage, has_device=has_device)


def _read_device(tables: ProfileTables, places: Places) -> None:
    stage, label, audit = places.stage, tables.label, tables.audit
    stage.facts.clock_kind = "device"
    summary = summary_row(tables)
    operations = Operations(stage, source_places(tables))
    operations.load_ladder(tables)
    instructions = add_instructions(tables.batches("Instruction"), places, operations)
    transfers, packets = _read_dma(tables, places)
    collectives = add_collectives(tables.batches("CcOp"), places, operations)
    audit.add(
        "ambiguous_group",
        "note",
        f"{label}: CcOp",
        "the profile names several replica groups and not which of them its core is in: that of the group's id was taken",
        unreliable="alignment of ranks by collectives",
        count=collectives.open_groups,
    )
    add_cc_instructions(tables.batches("CcInstruction"), places, is_beside=collectives.rows > 0)
    add_barriers(tables.batches("CoreBarriers"), places)
    add_modules(tables, places, operations)
    add_gauges(tables, places)
    add_semaphores(tables, places)
    add_throttle(tables.frame("Throttle"), places, audit, label)
    rows = {"instruction": Rows(instructions.ids), "dma": Rows(transfers.ids)}
    flows = add_flows(tables.batches("Flow"), rows, stage)
    check_flows(flows, sum(r.repeated for r in rows.values()) if flows.kept else 0, label, audit)
    check_instructions(instructions, summary, label, audit)
    check_dma(transfers, packets, summary, instructions.rows, label, audit)
    dma_facts(transfers, packets, stage.facts)
    _check_active_time(tables, instructions, stage)


def _read_dma(tables: ProfileTables, places: Places) -> tuple[DmaTally, DmaTally]:
    transfers = add_transfers(tables.batches("DmaPacketAggregated"), places)
    queues = _with_queue_names(tables)
    return transfers, add_packets(queues, places, is_beside=transfers.rows > 0)


def _with_queue_names(tables: ProfileTables) -> Iterator[pl.DataFrame]:
    """Packets, with the names that DmaQueuesInfo gives their queues where they have none."""
    known = tables.frame("DmaQueuesInfo", ["name", "pcore_idx", "idx"]).unique(
        ["pcore_idx", "idx"], keep="first"
    )
    known = known.select(known_name="name", pcore_idx="pcore_idx", queue_idx="idx")
    for frame in tables.batches("DmaPacket"):
        named = frame.join(known, on=["pcore_idx", "queue_idx"], how="left", maintain_order="left")
        yield named.with_columns(queue_name=pl.coalesce("queue_name", "known_name")).drop(
            "known_name"
        )


def _check_active_time(tables: ProfileTables, seen: InstructionTally, stage: Stage) -> None:
    """Keep the tool's own union of each engine's activity beside the sums of the rows."""
    active: dict[str, int] = {}
    for frame in tables.batches("ActiveTime", ["engine", "start_ts", "end_ts"]):
        length = (pl.col("end_ts") - pl.col("start_ts")).sum()
        for engine, total in frame.group_by("engine").agg(length).iter_rows():
            active[str(engine)] = active.get(str(engine), 0) + int(total or 0)
    stage.facts.metadata["neuron_active_ns"] = active
    stage.facts.metadata["neuron_instruction_ns"] = dict(seen.instruction_ns)


def _read_system(tables: ProfileTables, stage: Stage, *, has_device: bool) -> None:
    if not any(tables.has(table) for table in SYSTEM_TABLES):
        return
    shift_ns = 0
    if has_device:
        shift_ns = -_bound(tables, stage)
    stage.facts.base_unix_ns = -shift_ns
    tally = add_system_events(
        _system_frames(tables), stage, is_beside=has_device, shift_ns=shift_ns
    )
    add_system_tables(tables, stage, shift_ns)
    finish(tally, stage)


def _system_frames(tables: ProfileTables) -> Iterator[pl.DataFrame]:
    for frame in tables.batches("SystemProfileEvents"):
        extra = pl.col("extra_attributes_json")
        size = extra.str.extract(r'"size(?:_bytes)?":\s*"?(\d+)').cast(pl.Int64, strict=False)
        yield frame.rename({"trace_event_source": "source", "flow_id": "flow"}).with_columns(
            size=size
        )


def _bound(tables: ProfileTables, stage: Stage) -> int:
    """Unix time of the device clock's zero, by executions that lasted as long in both profiles."""
    device = tables.frame("ExecutionInfo", ["execution_start_ts", "execution_end_ts"]).drop_nulls()
    runs: list[pl.DataFrame] = []
    first: int | None = None
    for frame in tables.batches("SystemProfileEvents", ["name", "start_ts", "end_ts"]):
        runs.append(frame.filter(pl.col("name").is_in(EXECUTION)).drop_nulls())
        start: Any = frame["start_ts"].min()
        first = start if first is None or (start is not None and start < first) else first
    host = (
        pl.concat(runs) if runs else pl.DataFrame(schema={"start_ts": pl.Int64, "end_ts": pl.Int64})
    )
    bound = bind_by_duration(
        device["execution_start_ts"].to_numpy(),
        device["execution_end_ts"].to_numpy(),
        host["start_ts"].to_numpy(),
        host["end_ts"].to_numpy(),
    )
    if bound is not None:
        _tell_bound(*bound, stage)
        return bound[0].offset_ns
    zero = int(host["start_ts"].to_numpy().min()) if host.height else (first or 0)
    stage.audit.add(
        "unbound_clocks",
        "warning",
        stage.label,
        "no execution lasts as long in the device's profile as in the system's: the device's zero was put at "
        + ("the first execution" if host.height else "the first event of the system"),
        unreliable="any relation of host and device times",
    )
    return zero


def _tell_bound(fit: ClockFit, alternatives: int, stage: Stage) -> None:
    stage.facts.metadata["clock_fit"] = {**fit.to_json(), "alternatives": alternatives}
    is_clear = alternatives == 1
    stage.audit.add(
        "clock_fit",
        "note" if is_clear else "warning",
        stage.label,
        f"device and system profile were laid over each other by {counted(fit.points, 'execution')} of equal duration: median error "
        f"{fit.median_error_ns:.0f} ns, largest {fit.max_error_ns:.0f} ns"
        + (
            ""
            if is_clear
            else f"; as good a fit elsewhere: {counted(alternatives, 'execution')}; the best one was taken"
        ),
        unreliable="gaps between host and device shorter than that"
        if is_clear
        else "which execution it is",
    )


FORMAT = Format("neuron-explorer", "Neuron Explorer (directory of Parquet tables)", recognise, read)
