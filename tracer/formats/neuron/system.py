"""What does a Neuron system profile in JSON say? ``system_profile.json`` of the viewers, and what the runtime's live interface hands out.

The viewers' file has finished events (``trace_event``, or ``trace_events``) on the host's clock, with samples of memory and CPU. The
runtime's has starts and stops (``events``), those of hardware events on the device's clock: they are paired by core and tracking id, and
moved to the host's clock by the sync point of their execution, else by a line through all sync points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.json_text import Block, TopLevel, Value
from trnprof.tracer.formats.neuron.live import live_frames
from trnprof.tracer.formats.neuron.rows import UNITS_NS, nanoseconds, whole
from trnprof.tracer.formats.neuron.system_events import (
    HARDWARE,
    SystemTally,
    add_launches,
    add_system_events,
    check_system,
)
from trnprof.tracer.formats.neuron.system_samples import Samples
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

EVENTS: Final = ("trace_event", "trace_events")
SAMPLES: Final = ("mem_usage", "cpu_util", "device_mem_usage")
FRAMEWORK_TYPE: Final = 99_999
_INTS: Final = ("process_id", "nc_idx", "worker_gid", "size")
_MAPPED: Final = (
    *("name", "timestamp", "duration", "timestamp_unit", "instance_id", "process_id", "thread_id"),
    *("nc_idx", "lnc_idx", "device_core_idx", "worker_gid", "size", "type", "group", "exec_id"),
)
_LIVE: Final = re.compile(rb'"(event_type|tracking_id|nc_timestamp_ns|timestamp_ns)"\s*:')
_VIEWED: Final = re.compile(rb'"(trace_events?)"\s*:\s*\[')
_FIELDS: Final = re.compile(
    rb'"(instance_id|process_id|nc_idx|lnc_idx|timestamp_unit|device_core_idx|exec_id)"\s*:'
)


def recognise(head: Head) -> int:
    """By its member ``trace_event`` or ``trace_events``, or by starts and stops with tracking ids."""
    data = head.data
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
        return 0
    if {m.group(1) for m in _LIVE.finditer(data)} >= {
        b"event_type",
        b"tracking_id",
    } and b'"events"' in data:
        return 90
    fields = {m.group(1) for m in _FIELDS.finditer(data)}
    if _VIEWED.search(data) is not None:
        return 90 if len(fields) >= 2 or head.name.startswith("system_profile") else 40
    has_samples = sum(b'"%s"' % name.encode() in data for name in SAMPLES)
    return 85 if has_samples and len(fields) >= 1 and b'"traceEvents"' not in data else 0


def read(source: Source, stage: Stage) -> None:
    """Read a system profile.

    Raises:
        ProfileError: there is neither an event nor a sample in it.
    """
    stage.facts.base_unix_ns = 0
    tally, samples = SystemTally(), Samples()
    kinds: dict[str, int] = {}
    for item in _items(source, stage):
        if isinstance(item, Value):
            _take_value(item, stage)
            continue
        kinds[item.key] = kinds.get(item.key, 0) + item.rows.height
        if item.key in EVENTS:
            _merge(tally, add_system_events([_viewed(item.rows, stage)], stage, is_beside=False))
        elif item.key in SAMPLES:
            samples.add(item.key, item.rows)
        elif item.key != "events":
            stage.audit.add(
                "unknown_member",
                "note",
                source.label,
                "arrays of the file that are not known were left out",
                example=item.key,
            )
    samples.write(stage)
    if "events" in kinds:
        for frame in live_frames(source, stage):
            _merge(tally, add_system_events([frame], stage, is_beside=False))
    if not tally.rows and not any(key in kinds for key in SAMPLES):
        wanted = " or ".join((*EVENTS, "events"))
        raise ProfileError(f"{source.label}: no event in its {wanted}; was anything recorded?")
    finish(tally, stage)


def finish(tally: SystemTally, stage: Stage) -> None:
    """What is known when all events are read: launches, rank, host, findings."""
    stage.facts.metadata["launches"] = add_launches(tally, stage)
    if len(tally.workers) == 1:
        stage.facts.rank = next(iter(tally.workers))
    if len(tally.instances) == 1:
        stage.facts.host = next(iter(tally.instances))
    check_system(tally, stage.label, stage.audit)


def _items(source: Source, stage: Stage) -> Iterator[Block | Value]:
    stream = source.open()
    try:
        yield from TopLevel(stream, source.label, stage.audit)
    finally:
        stream.close()


def _take_value(item: Value, stage: Stage) -> None:
    """Small members: kept, without the arrays that stand empty."""
    if item.value not in ([], None) and len(str(item.value)) < 4_096:
        stage.facts.metadata.setdefault("neuron_system", {})[item.key] = item.value


def _viewed(rows: pl.DataFrame, stage: Stage) -> pl.DataFrame:
    """Rows of ``trace_event`` as ``add_system_events`` takes them."""
    absent = [name for name in _MAPPED if name not in rows.columns]
    rows = rows.with_columns(pl.lit(None, pl.String).alias(name) for name in absent)
    units = rows["timestamp_unit"].drop_nulls().unique().to_list()
    foreign = [unit for unit in units if unit not in UNITS_NS]
    stage.audit.add(
        "unknown_time_unit",
        "warning",
        stage.label,
        "times in a unit that is not known were taken for ns",
        unreliable="all times",
        count=rows.filter(pl.col("timestamp_unit").is_in(foreign)).height if foreign else 0,
        example=str(foreign[0]) if foreign else "",
    )
    start, length = _in_ns(units, "timestamp"), _in_ns(units, "duration")
    name = pl.col("name").fill_null("unknown")
    group = pl.col("group").fill_null("")
    is_framework = (whole(pl.col("type")) == FRAMEWORK_TYPE).fill_null(
        False
    ) | group.str.starts_with("framework")
    kept = [c for c in rows.columns if c not in (*_MAPPED, "flow_id")]
    core = pl.coalesce(whole(pl.col("nc_idx")), whole(pl.col("lnc_idx")))
    execution = pl.when(pl.col("exec_id").is_not_null()).then(
        pl.concat_str(core.cast(pl.String), pl.lit("/"), pl.col("exec_id"), ignore_nulls=True)
    )
    flow = pl.col("flow_id") if "flow_id" in rows.columns else pl.lit(None, pl.String)
    return rows.select(
        *kept,
        *("type", "group", "exec_id"),
        name="name",
        start_ts=start,
        end_ts=pl.when(length.is_null() & name.is_in(HARDWARE[-4:]))
        .then(start)
        .otherwise(start + length),
        source=pl.when(is_framework)
        .then(pl.lit("framework"))
        .when(name.is_in(HARDWARE))
        .then(pl.lit("neuron_hw"))
        .otherwise(pl.lit("neuron_rt")),
        instance_id="instance_id",
        process_id=whole(pl.col("process_id")),
        thread_id=pl.coalesce(
            whole(pl.col("thread_id")), whole(group.str.extract(r"^framework-(\d+)$"))
        ),
        nc_idx=core,
        lnc_idx=whole(pl.col("lnc_idx")),
        pcore_idx=whole(pl.col("device_core_idx")),
        worker_gid=whole(pl.col("worker_gid")),
        size=whole(pl.col("size")),
        flow=pl.coalesce(flow, execution),
    )


def _in_ns(units: list[Any], column: str) -> pl.Expr:
    others = [unit for unit in units if unit in UNITS_NS and unit != "ns"]
    value = nanoseconds(pl.col(column))
    for unit in others:
        value = (
            pl.when(pl.col("timestamp_unit") == unit)
            .then(nanoseconds(pl.col(column), unit))
            .otherwise(value)
        )
    return value


def _merge(tally: SystemTally, part: SystemTally) -> None:
    tally.rows += part.rows
    for core, count in part.by_core.items():
        tally.by_core[core] = tally.by_core.get(core, 0) + count
    tally.workers |= part.workers
    tally.instances |= part.instances
    tally.numerical_errors += part.numerical_errors
    tally.executions += part.executions
    tally.links += part.links


FORMAT = Format("neuron-system", "Neuron system profile (JSON)", recognise, read)
