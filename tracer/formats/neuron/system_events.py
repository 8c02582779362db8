"""Where does each event of a Neuron system profile lie? Runtime and framework calls on threads, executions on cores.

Executions (``nc_exec_running``) occupy their core and lie on a stream; collectives of the runtime (``cc_running``) on a collective stream.
With engine-level tables of the same core in the same profile they are drawn beside, so that no time counts twice. Copies between host
and device lie on the thread that makes them: they carry bytes and memories, but are the runtime's calls, not the device's work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.neuron.attributes import attributes, beside
from trnprof.tracer.formats.neuron.instructions import ends, fingerprints
from trnprof.tracer.formats.neuron.places import MOST_TIMELINES, index
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.stage import Stage, Timeline

EXECUTION: Final = ("nc_exec_running", "nc_exec", "device_exec")
COLLECTIVE: Final = ("cc_running", "cc_exec", "cc_op_exec")
BARRIER: Final = ("cc_exec_barrier",)
INSTANTS: Final = ("timestamp_sync_point", "hw_notify", "numerical_err")
HARDWARE: Final = (
    *EXECUTION,
    *COLLECTIVE,
    *BARRIER,
    *INSTANTS,
    "nrt_model_switch",
    "nc_model_switch",
)
COPY_IN: Final = ("dmem_buf_copyin", "nrt_tensor_write")
COPY_OUT: Final = ("dmem_buf_copyout", "nrt_tensor_read")
MEMORY: Final = (
    "nrt_tensor_allocate",
    "nrt_tensor_free",
    "nrt_dma_mem_alloc",
    "nrt_dma_mem_dealloc",
)
RING_EVENTS: Final = 1_000_000
"""Events a core that the runtime keeps unless told otherwise; older ones are overwritten."""
_MAPPED: Final = ("start_ts", "end_ts", "duration_ns", "name", "source", "bytes")


@dataclass
class SystemTally:
    """What was seen of a system profile.

    Attributes:
        rows: how many events.
        by_core: logical core → events.
        workers: global ids of workers.
        instances: ids of instances.
        numerical_errors: events of that name.
        executions: (logical core, start, end) arrays of nc_exec_running.
        links: (flow, row, start, is on the device) arrays, for launches.
    """

    rows: int = 0
    by_core: dict[int, int] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    instances: set[str] = field(default_factory=set)
    numerical_errors: int = 0
    executions: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=list
    )
    links: list[
        tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]
    ] = field(default_factory=list)


def add_system_events(
    frames: Iterable[pl.DataFrame], stage: Stage, *, is_beside: bool, shift_ns: int = 0
) -> SystemTally:
    """Append events of a system profile.

    Args:
        frames: blocks of rows: start_ts, end_ts, name, source (``neuron_rt``, ``neuron_hw``, ``framework`` or null), instance_id,
            process_id, thread_id, nc_idx, pcore_idx, worker_gid, size, flow (text that events of one launch share, or a JSON list of
            such); further columns are kept.
        stage: where they go.
        is_beside: the engines of their cores are in the profile too.
        shift_ns: added to all times.
    """
    tally = SystemTally()
    for frame in frames:
        usable = frame.filter(pl.col("start_ts").is_not_null()).with_columns(
            index(pl.col(name)).alias(name) for name in ("nc_idx", "pcore_idx", "worker_gid")
        )
        if not usable.height:
            continue
        rows = _with_meaning(usable)
        start = rows["start_ts"].to_numpy() + shift_ns
        end = ends(rows)
        end = np.where(end == np.iinfo(np.int64).min, end, end + shift_ns)
        first = stage.add_events(
            timeline=_timelines(rows, stage, is_beside=is_beside),
            start_ns=start,
            end_ns=end,
            name=rows["name"],
            category=rows["category"],
            fingerprint=fingerprints(rows, ["name", "text"]),
            bytes=rows["bytes"],
            source_memory=rows["source_memory"],
            target_memory=rows["target_memory"],
            attributes=rows["text"],
        )
        _count(tally, rows, start, end, first)
    return tally


def add_launches(tally: SystemTally, stage: Stage) -> int:
    """Edges from the last host event of each flow to what follows it in that flow; returns their number."""
    if not tally.links:
        return 0
    flow, row, start, is_device = (
        np.concatenate(parts) for parts in zip(*tally.links, strict=True)
    )
    order = np.lexsort((row, start, flow))
    flow, row, is_device = flow[order], row[order], is_device[order]
    place = np.arange(len(flow))
    is_first = np.concatenate([[True], flow[1:] != flow[:-1]])
    host = np.where(is_device, -1, place)
    # the last host event strictly before, within the flow
    last = np.concatenate([[-1], np.maximum.accumulate(host)[:-1]])
    begin = np.maximum.accumulate(np.where(is_first, place, 0))
    has_host = (last >= begin) & ~is_first
    stage.add_flows(row[last[has_host]], row[has_host], "launch")
    return int(has_host.sum())


def check_system(tally: SystemTally, label: str, audit: Audit) -> None:
    """Findings on a system profile."""
    full = {
        core: n for core, n in tally.by_core.items() if n >= RING_EVENTS and n % RING_EVENTS == 0
    }
    audit.add(
        "ring_buffer_full",
        "error",
        label,
        f"cores with exactly {RING_EVENTS:,} events or a multiple: the ring buffer was full and the oldest were overwritten; "
        "raise NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC",
        unreliable="everything at the beginning",
        count=len(full),
        example=f"core {next(iter(full), '')}",
    )
    audit.add(
        "numerical_errors",
        "warning",
        label,
        "the hardware reported numerical errors (NaN or infinity)",
        unreliable="nothing of the timing; the results",
        count=tally.numerical_errors,
    )
    audit.add(
        "several_instances",
        "note",
        label,
        "one profile of several instances: their clocks are only as equal as their hosts'",
        unreliable="order of events on different instances",
        count=len(tally.instances) if len(tally.instances) > 1 else 0,
    )


def _with_meaning(rows: pl.DataFrame) -> pl.DataFrame:
    name = pl.col("name").fill_null("unknown")
    source = pl.col("source").str.to_lowercase()
    is_device = (
        (source == "neuron_hw") | (source.is_null() & name.is_in(HARDWARE)) | name.is_in(HARDWARE)
    )
    is_in, is_out = name.is_in(COPY_IN), name.is_in(COPY_OUT)
    has_length = (pl.col("end_ts") > pl.col("start_ts")).fill_null(True)
    category = (
        pl.when(name.is_in(INSTANTS) & ~has_length)
        .then(pl.lit("marker"))
        .when(name.is_in(COLLECTIVE))
        .then(pl.lit("collective"))
        .when(name.is_in(EXECUTION))
        .then(pl.lit("compute"))
        .when(is_device)
        .then(pl.lit("sync"))
        .when(is_in | is_out)
        .then(pl.lit("dma"))
        .when(name.is_in(MEMORY))
        .then(pl.lit("memory"))
        .otherwise(pl.lit("host"))
    )
    size = pl.col("size")
    return rows.with_columns(
        attributes(rows, beside(rows, (*_MAPPED, "flow"))).alias("text"),
        name=name,
        is_device=is_device,
        category=category,
        bytes=pl.when((is_in | is_out) & (size >= 0)).then(size),
        source_memory=pl.when(is_in).then(pl.lit("host")).when(is_out).then(pl.lit("hbm")),
        target_memory=pl.when(is_in).then(pl.lit("hbm")).when(is_out).then(pl.lit("host")),
    )


def _timelines(rows: pl.DataFrame, stage: Stage, *, is_beside: bool) -> NDArray[np.int32]:
    """One a thread for the host's events; one a core and kind for the device's."""
    text = pl.String()
    place = rows.select(
        "is_device",
        instance=pl.col("instance_id").fill_null(""),
        process=pl.when(~pl.col("is_device")).then(pl.col("process_id").cast(text)),
        thread=pl.when(~pl.col("is_device")).then(pl.col("thread_id").cast(text)),
        is_framework=(pl.col("source").str.to_lowercase() == "framework").fill_null(False)
        & ~pl.col("is_device"),
        core=pl.when("is_device").then(pl.col("nc_idx")),
        pcore=pl.when("is_device").then(pl.col("pcore_idx")),
        worker=pl.when("is_device").then(pl.col("worker_gid")),
        kind=pl.when("is_device").then(
            pl.when(pl.col("name").is_in(EXECUTION))
            .then(pl.lit("executions"))
            .when(pl.col("name").is_in(COLLECTIVE))
            .then(pl.lit("collectives"))
            .when(pl.col("name").is_in(BARRIER))
            .then(pl.lit("barriers"))
            .otherwise(pl.lit("hardware events"))
        ),
    )
    unique = place.unique(maintain_order=True)
    numbers = [_timeline(stage, row, is_beside=is_beside) for row in unique.iter_rows(named=True)]
    placed = place.join(
        unique.with_columns(timeline=pl.Series(numbers, dtype=pl.Int32)),
        on=place.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    found: NDArray[np.int32] = placed["timeline"].to_numpy()
    return found


def _timeline(stage: Stage, at: dict[str, object], *, is_beside: bool) -> int:
    instance = str(at["instance"])
    if not at["is_device"]:
        is_full = len(stage.timelines) >= MOST_TIMELINES
        process, thread = (
            ("others", "others") if is_full else (at["process"] or "?", at["thread"] or "?")
        )
        what = "framework thread" if at["is_framework"] else "thread"
        where = f"{instance} " if instance else ""
        name = f"{where}process {process}, {what} {thread}"
        key = ("thread", instance, process, thread, at["is_framework"])
        return stage.timeline(key, Timeline("thread", name, sort_order=1_000))
    core = _core(stage, instance, at)
    kind = str(at["kind"])
    kinds = {"executions": "stream", "collectives": "collective_stream"}
    track = "module" if is_beside and kind in kinds else kinds.get(kind, "thread")
    own = stage.timelines[core]
    order = ("executions", "collectives", "barriers", "hardware events").index(kind)
    return stage.timeline(
        ("system", core, kind),
        Timeline(track, kind, core, order, rank=own.rank, chip=own.chip, core=own.core),
    )


def _core(stage: Stage, instance: str, at: dict[str, object]) -> int:
    """The core of a device event; with LNC 2 each of the two physical cores of a logical one."""
    core, pcore, worker = (
        int(v) if isinstance(v, int) else None for v in (at["core"], at["pcore"], at["worker"])
    )
    name = "core ?" if core is None else f"core {core}"
    name = name if pcore is None else f"{name}.{pcore}"
    return stage.timeline(
        ("system core", instance, core, pcore),
        Timeline(
            "core",
            f"{instance} {name}" if instance else name,
            None,
            (core or 0) * 4 + (pcore or 0),
            rank=worker if worker is not None and worker >= 0 else None,
            core=core,
        ),
    )


def _count(
    tally: SystemTally,
    rows: pl.DataFrame,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    first: int,
) -> None:
    tally.rows += rows.height
    for core, count in (
        rows.filter(pl.col("nc_idx").is_not_null()).group_by("nc_idx").len().iter_rows()
    ):
        tally.by_core[core] = tally.by_core.get(core, 0) + count
    workers = rows["worker_gid"].drop_nulls().unique().to_list()
    tally.workers |= {int(w) for w in workers if w >= 0}
    tally.instances |= set(rows["instance_id"].drop_nulls().unique().to_list())
    tally.numerical_errors += rows.select((pl.col("name") == "numerical_err").sum()).item()
    runs = (rows["name"].is_in(EXECUTION) & rows["end_ts"].is_not_null()).to_numpy()
    if runs.any():
        core = rows["nc_idx"].fill_null(-1).to_numpy()[runs]
        tally.executions.append((core, start[runs], end[runs]))
    numbered = rows.select(
        "flow", "is_device", row=pl.int_range(first, first + rows.height), start=pl.Series(start)
    )
    listed = numbered.filter(pl.col("flow").is_not_null()).with_columns(
        pl.when(pl.col("flow").str.starts_with("["))
        .then(pl.col("flow").str.extract_all(r'[^\[\]", ]+'))
        .otherwise(pl.concat_list("flow"))
        .alias("flow")
    )
    links = listed.explode("flow", empty_as_null=False).filter(pl.col("flow").is_not_null())
    if links.height:
        tally.links.append(
            (
                links["flow"].hash(seed=3).to_numpy(),
                links["row"].to_numpy(),
                links["start"].to_numpy(),
                links["is_device"].to_numpy(),
            )
        )
