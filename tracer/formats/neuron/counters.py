"""How did semaphores, pending DMAs, memories and the throttle of a NeuronCore go over time? Sample tables as counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.tables import ProfileTables
from trnprof.tracer.ingest.audit import Audit

MOST_SEMAPHORES: Final = 4_096
PERCENT_ABOVE: Final = 1.5
"""A utilization above it is told in percents."""


@dataclass(frozen=True)
class _Gauge:
    """A column of a table that is a counter: its name for people and unit (``fraction`` columns may be stored as percents)."""

    table: str
    column: str
    name: str
    unit: str


GAUGES: Final = (
    _Gauge("PendingDma", "value", "pending DMAs", "1"),
    _Gauge("DmaUsage", "current_throughput", "DMA throughput", "B/s"),
    _Gauge("DmaUsage", "total_transfer_bytes", "DMA bytes so far", "B"),
    _Gauge("HbmUsage", "current_throughput", "HBM throughput", "B/s"),
    _Gauge("HbmUsage", "total_transfer_bytes", "HBM bytes so far", "B"),
    _Gauge("SbufUsage", "avg_util_percent", "SBUF use", "fraction"),
    *(
        _Gauge("SbufUsage", f"partition_{p}_util_percent", f"SBUF use, partition {p}", "fraction")
        for p in (0, 32, 64, 96)
    ),
    _Gauge("PsumUsage", "avg_util_percent", "PSUM use", "fraction"),
    *(
        _Gauge("PsumUsage", f"bank_{b}_util_percent", f"PSUM use, bank {b}", "fraction")
        for b in range(8)
    ),
)


def add_gauges(tables: ProfileTables, places: Places) -> None:
    """Append the samples of the tables of GAUGES."""
    for table in dict.fromkeys(gauge.table for gauge in GAUGES):
        gauges = [g for g in GAUGES if g.table == table and g.column in tables.stored(table)]
        percents = [g.column for g in gauges if g.unit == "fraction"]
        scale = fraction_scale(tables, table, percents) if percents else 1.0
        if not gauges or not tables.has(table):
            continue
        for frame in tables.batches(table, ["timestamp", "pcore_idx", *(g.column for g in gauges)]):
            for order, gauge in enumerate(gauges):
                rows = frame.filter(
                    pl.col("timestamp").is_not_null() & pl.col(gauge.column).is_finite()
                )
                if rows.height:
                    values = rows[gauge.column].cast(pl.Float64).to_numpy()
                    values = values * scale if gauge.unit == "fraction" else values
                    _add(places, rows, gauge.name, gauge.unit, order, values)


def fraction_scale(tables: ProfileTables, table: str, columns: list[str]) -> float:
    """What turns columns called percent into fractions 0–1: by the maximum that the schema states, else by the values themselves."""
    limits = [tables.fields(table)[c].maximum for c in columns if c in tables.fields(table)]
    stated = [limit for limit in limits if limit is not None]
    if stated:
        return 0.01 if max(stated) > PERCENT_ABOVE else 1.0
    largest = 0.0
    for frame in tables.batches(table, columns):
        top = frame.select(
            pl.max_horizontal(pl.col(c).cast(pl.Float64).fill_nan(None).max() for c in columns)
        ).item()
        largest = max(largest, top or 0.0)
    if largest <= PERCENT_ABOVE:
        return 1.0
    tables.audit.add(
        "percent_scale",
        "note",
        f"{tables.label}: {table}",
        "values above 1 are taken for percents and stored as fractions; the schema does not say which they are",
        example=f"{largest:g}",
    )
    return 0.01


def add_semaphores(tables: ProfileTables, places: Places) -> None:
    """Append the values of semaphores, one counter each, at most MOST_SEMAPHORES."""
    known: set[str] = set()
    left_out = 0
    for frame in tables.batches("SemaphoreUpdate", ["timestamp", "id", "value", "pcore_idx"]):
        rows = frame.filter(pl.col("timestamp").is_not_null() & pl.col("value").is_not_null())
        for name in rows["id"].unique(maintain_order=True).to_list():
            if len(known) < MOST_SEMAPHORES:
                known.add(str(name))
        kept = rows.filter(pl.col("id").cast(pl.String).is_in(list(known)))
        left_out += rows.height - kept.height
        names = kept.select(pl.lit("semaphore ") + pl.col("id").cast(pl.String)).to_series()
        if kept.height:
            places.stage.add_counters(
                timeline=_counters_of(places, kept, names),
                timestamp_ns=kept["timestamp"].to_numpy(),
                value=kept["value"].to_numpy(),
            )
    tables.audit.add(
        "too_many_semaphores",
        "warning",
        f"{tables.label}: SemaphoreUpdate",
        f"updates of more than {MOST_SEMAPHORES} semaphores; those of later ones were left out",
        count=left_out,
    )


def add_throttle(rows: pl.DataFrame, places: Places, audit: Audit, label: str) -> None:
    """Append the utilization limit k/n that a throttle sets while it is active; 1 where it is not.

    Args:
        rows: timestamp, duration, k, n, type, pcore_idx.
        places: where they lie.
        audit: where doubts go.
        label: of the source.
    """
    usable = rows.filter(pl.col("timestamp").is_not_null() & (pl.col("n") > 0) & (pl.col("k") >= 0))
    audit.add(
        "unreadable_values",
        "warning",
        f"{label}: Throttle",
        "throttle rows without a limit k/n were left out",
        unreliable="throttling",
        count=rows.height - usable.height,
    )
    limit = pl.col("k") / pl.col("n")
    broken = usable.filter(limit > 1)
    audit.add(
        "impossible_metric",
        "warning",
        f"{label}: Throttle",
        "utilization limits above 1 were left out",
        unreliable="throttling",
        count=broken.height,
        example=f"k = {broken['k'][0]}, n = {broken['n'][0]}" if broken.height else "",
    )
    usable = usable.filter(limit <= 1).with_columns(
        limit=limit, kind=pl.col("type").cast(pl.String).fill_null("unknown")
    )
    if not usable.height:
        return
    end = pl.col("timestamp") + pl.col("duration").fill_null(0).clip(0)
    usable = usable.with_columns(end=end).sort("timestamp")
    following = pl.col("timestamp").shift(-1).over("kind", "pcore_idx")
    ends = usable.filter(following.is_null() | (following > pl.col("end")))
    both = pl.concat(
        [
            usable.select("timestamp", "limit", "kind", "pcore_idx"),
            ends.select(timestamp="end", limit=pl.lit(1.0), kind="kind", pcore_idx="pcore_idx"),
        ]
    )
    names = both.select(pl.lit("utilization limit, throttle ") + pl.col("kind")).to_series()
    places.stage.add_counters(
        timeline=_counters_of(places, both, names, "fraction"),
        timestamp_ns=both["timestamp"].to_numpy(),
        value=both["limit"].to_numpy(),
    )


def _add(
    places: Places,
    rows: pl.DataFrame,
    name: str,
    unit: str,
    order: int,
    values: NDArray[np.float64],
) -> None:
    names = pl.Series([name]).new_from_index(0, rows.height)
    places.stage.add_counters(
        timeline=_counters_of(places, rows, names, unit, order),
        timestamp_ns=rows["timestamp"].to_numpy(),
        value=values,
    )


def _counters_of(
    places: Places, rows: pl.DataFrame, names: pl.Series, unit: str = "1", order: int = 0
) -> NDArray[np.int32]:
    return places.by_row(rows, lambda core, name: places.counter(core, name, unit, order), names)
