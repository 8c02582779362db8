"""Which events are the starts and stops that the Neuron runtime's live interface hands out, and when on the host's clock?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from trnprof.tracer.formats.neuron.clock import ClockFit, fit_clock, host_by_execution
from trnprof.tracer.formats.neuron.json_text import Block, TopLevel
from trnprof.tracer.formats.neuron.rows import whole
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.source import Source
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.units import counted

_COLUMNS: Final = (
    *("event_type", "phase", "id", "nc_idx", "tracking_id", "thread_id", "worker_gid"),
    *("timestamp_ns", "data"),
)
_KEY: Final = ("nc_idx", "tracking_id", "event_type")
TOLERATED_NS: Final = 10_000
"""Median error of a clock fit up to which it is a note and no warning."""


def live_frames(source: Source, stage: Stage) -> Iterator[pl.DataFrame]:
    """Finished events, on the host's clock, as ``add_system_events`` takes them; unfinished ones last.

    Args:
        source: read twice: for its sync points, then for its events.
        stage: its facts get the clock fit, its audit the doubts.
    """
    sync = _sync_points(source)
    known = sync.filter(pl.col("device_ns").is_not_null() & pl.col("host_ns").is_not_null())
    fit = fit_clock(known["device_ns"].to_numpy(), known["host_ns"].to_numpy())
    tell_fit(fit, stage)
    waiting = pl.DataFrame()
    for block in _blocks(source, stage.audit):
        rows = _on_host_clock(_typed(block.rows), known, fit, stage)
        both = pl.concat([waiting, rows], how="diagonal_relaxed") if waiting.height else rows
        done, waiting = _paired(both, stage)
        if done.height:
            yield _as_events(done)
    if waiting.height:
        yield _as_events(waiting.with_columns(end_ns=pl.lit(None, pl.Int64)))


def tell_fit(fit: ClockFit | None, stage: Stage) -> None:
    """Put a fit into facts, and how far it can be trusted into the audit."""
    if fit is None:
        return
    stage.facts.metadata["clock_fit"] = fit.to_json()
    stage.audit.add(
        "clock_fit",
        "note" if fit.median_error_ns <= TOLERATED_NS else "warning",
        stage.label,
        f"device times lie on the host's clock by {counted(fit.points, 'sync point')}: median error {fit.median_error_ns:.0f} ns, "
        f"largest {fit.max_error_ns:.0f} ns, drift {fit.drift * 1e6:.2f} µs/s",
        unreliable="gaps between host and device shorter than that",
    )


def _blocks(source: Source, audit: Audit, only: bytes = b"") -> Iterator[Block]:
    stream = source.open()
    try:
        for item in TopLevel(stream, source.label, audit, only=only):
            if isinstance(item, Block) and item.key == "events":
                yield item
    finally:
        stream.close()


def _sync_points(source: Source) -> pl.DataFrame:
    found: list[pl.DataFrame] = []
    for block in _blocks(source, Audit(), b"timestamp_sync_point"):
        rows = _typed(block.rows).filter(pl.col("event_type") == "timestamp_sync_point")
        found.append(
            rows.select(
                device_ns="device_ns",
                host_ns=pl.coalesce(_member("cpu_timestamp_ns"), pl.col("at_ns")),
                execution="execution",
            )
        )
    empty = {"device_ns": pl.Int64, "host_ns": pl.Int64, "execution": pl.Int64}
    return pl.concat(found) if found else pl.DataFrame(schema=empty)


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    absent = [name for name in _COLUMNS if name not in rows.columns]
    rows = rows.with_columns(pl.lit(None, pl.String).alias(name) for name in absent)
    kept = [name for name in rows.columns if name not in _COLUMNS]
    return rows.select(
        *kept,
        "data",
        phase=pl.col("phase").str.to_lowercase(),
        event_type=pl.col("event_type").fill_null("unknown"),
        nc_idx=whole(pl.col("nc_idx")),
        tracking_id=pl.col("tracking_id"),
        event_id=pl.col("id"),
        thread_id=whole(pl.col("thread_id")),
        worker_gid=whole(pl.col("worker_gid")),
        at_ns=whole(pl.col("timestamp_ns")),
        device_ns=_member("nc_timestamp_ns"),
        execution=_member("exec_id"),
    )


def _member(name: str) -> pl.Expr:
    """An integer member of ``data``."""
    return pl.col("data").str.extract(rf'"{name}":\s*"?(-?\d+)').cast(pl.Int64, strict=False)


def _on_host_clock(
    rows: pl.DataFrame, sync: pl.DataFrame, fit: ClockFit | None, stage: Stage
) -> pl.DataFrame:
    """Replace the times of hardware events, which are the device's, by the host's."""
    is_device = rows["device_ns"].is_not_null() & (rows["event_type"] != "timestamp_sync_point")
    if not is_device.any():
        return rows
    device = rows["device_ns"].fill_null(0).to_numpy()
    execution = rows["execution"].fill_null(-1).to_numpy()
    own = sync.filter(pl.col("execution").is_not_null())
    moved, is_known = host_by_execution(
        device,
        execution,
        own["device_ns"].to_numpy(),
        own["host_ns"].to_numpy(),
        own["execution"].to_numpy(),
    )
    mask = is_device.to_numpy()
    rest = mask & ~is_known
    if fit is not None:
        moved = np.where(rest, fit.host_ns(device), moved)
    stage.audit.add(
        "unsynchronised_events",
        "note" if fit is not None else "warning",
        stage.label,
        "hardware events of executions without a sync point were put on the host's clock by the line through all of them"
        if fit is not None
        else "hardware events stand on the device's clock: there is no sync point to relate it to the host's",
        unreliable="order of host and device events",
        count=int(rest.sum()),
    )
    at = rows["at_ns"].fill_null(0).to_numpy()
    usable = mask if fit is not None else mask & is_known
    replaced = pl.Series("at_ns", np.where(usable, moved, at))
    return rows.with_columns(
        pl.when(pl.col("at_ns").is_not_null() | pl.Series(usable)).then(replaced).alias("at_ns")
    )


def _paired(rows: pl.DataFrame, stage: Stage) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Finished events, and the starts that wait for their stop.

    The n-th start of a core, tracking id and type belongs to the n-th stop of these.
    """
    rows = rows.filter(pl.col("at_ns").is_not_null())
    ordinal = pl.int_range(pl.len()).over(*_KEY)
    starts = rows.filter(pl.col("phase") == "start").with_columns(n=ordinal)
    stops = rows.filter(pl.col("phase") == "stop").with_columns(n=ordinal)
    points = rows.filter(~pl.col("phase").is_in(["start", "stop"]).fill_null(False))
    on = [*_KEY, "n"]
    ends = stops.select(*on, end_ns="at_ns", stop_data="data")
    joined = starts.join(ends, on=on, how="left", nulls_equal=True, maintain_order="left")
    orphans = stops.join(starts, on=on, how="anti", nulls_equal=True)
    stage.audit.add(
        "unmatched_ends",
        "warning",
        stage.label,
        "stops whose start is not there were left out: the ring buffer had overwritten it",
        unreliable="time at the beginning",
        count=orphans.height,
        example=str(orphans["event_type"][0]) if orphans.height else "",
    )
    done = joined.filter(pl.col("end_ns").is_not_null())
    waiting = joined.filter(pl.col("end_ns").is_null()).drop("end_ns", "stop_data", "n")
    instants = points.with_columns(end_ns="at_ns")
    return pl.concat([done, instants], how="diagonal_relaxed"), waiting


def _as_events(rows: pl.DataFrame) -> pl.DataFrame:
    drop = ("event_type", "at_ns", "end_ns", "execution", "device_ns", "n", "phase")
    kept = [
        name for name in rows.columns if name not in (*drop, "nc_idx", "thread_id", "worker_gid")
    ]
    text = pl.String()
    execution = pl.when(pl.col("execution").is_not_null()).then(
        pl.concat_str(
            pl.col("nc_idx").cast(text),
            pl.lit("/"),
            pl.col("execution").cast(text),
            ignore_nulls=True,
        )
    )
    return rows.select(
        *kept,
        name="event_type",
        start_ts="at_ns",
        end_ts="end_ns",
        source=pl.lit(None, text),
        instance_id=pl.lit(None, text),
        process_id=pl.lit(None, pl.Int64),
        thread_id="thread_id",
        nc_idx="nc_idx",
        pcore_idx=_member("device_core_idx"),
        worker_gid="worker_gid",
        size=_member("size"),
        flow=execution,
    )
