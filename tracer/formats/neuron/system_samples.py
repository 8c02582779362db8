"""How did host memory, CPU and device memory go in a Neuron system profile? Samples as counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from trnprof.tracer.formats.neuron.counters import PERCENT_ABOVE, fraction_scale
from trnprof.tracer.formats.neuron.rows import nanoseconds, real
from trnprof.tracer.formats.neuron.tables import ProfileTables
from trnprof.tracer.ingest.stage import Stage, Timeline

_ORDER: Final = 8_000
_NEW_NAMES: Final = {"usage": "used_bytes", "percent_usage": "used_percent", "util": "util_percent"}


class Samples:
    """Samples of a JSON profile, held until it is known whether its percents are percents (some hundred bytes a second of recording)."""

    def __init__(self) -> None:
        """None yet."""
        self._parts: dict[str, list[pl.DataFrame]] = {}

    def add(self, kind: str, rows: pl.DataFrame) -> None:
        """Take a block.

        Args:
            kind: ``mem_usage``, ``cpu_util`` or ``device_mem_usage``.
            rows: members as text.
        """
        if "timestamp" not in rows.columns:
            return
        units = rows["timestamp_unit"][0] if "timestamp_unit" in rows.columns else None
        typed = rows.with_columns(timestamp=nanoseconds(pl.col("timestamp"), str(units or "ns")))
        sizes = [name for name in typed.columns if name.endswith("_bytes")]
        typed = _as_reals(typed, ("usage", "percent_usage", "util", *sizes))
        self._parts.setdefault(kind, []).append(typed.rename(_NEW_NAMES, strict=False))

    def write(self, stage: Stage) -> None:
        """Append all to the stage."""
        for kind, parts in self._parts.items():
            rows = pl.concat(parts, how="diagonal_relaxed")
            if kind == "device_mem_usage":
                add_device_memory(rows, stage)
                continue
            take, column = (
                (add_cpu, "util_percent")
                if kind == "cpu_util"
                else (add_host_memory, "used_percent")
            )
            top = rows[column].max() if column in rows.columns else None
            take(rows, stage, 0.01 if isinstance(top, float) and top > PERCENT_ABOVE else 1.0)


def add_system_tables(tables: ProfileTables, stage: Stage, shift_ns: int) -> None:
    """Append the tables CpuUsage, HostMemUsage and SystemProfileHbmUsage; ``shift_ns`` is added to their times."""
    takers: dict[str, tuple[Callable[[pl.DataFrame, Stage, float], None], list[str]]] = {
        "CpuUsage": (add_cpu, ["util_percent"]),
        "HostMemUsage": (add_host_memory, ["used_percent"]),
        "SystemProfileHbmUsage": (add_device_memory, []),
    }
    for table, (take, percents) in takers.items():
        scale = fraction_scale(tables, table, percents) if percents and tables.has(table) else 1.0
        for frame in tables.batches(table):
            take(frame.with_columns(pl.col("timestamp") + shift_ns), stage, scale)


def add_cpu(rows: pl.DataFrame, stage: Stage, scale: float = 1.0) -> None:
    """Utilization of each CPU: timestamp, util_percent, cpu_id, instance_id."""
    _add(rows, "util_percent", pl.lit("CPU ") + _text(rows, "cpu_id"), "fraction", stage, scale)


def add_host_memory(rows: pl.DataFrame, stage: Stage, scale: float = 1.0) -> None:
    """Memory of the host: timestamp, used_bytes, used_percent, instance_id."""
    _add(rows, "used_bytes", pl.lit("host memory"), "B", stage)
    _add(rows, "used_percent", pl.lit("host memory share"), "fraction", stage, scale)


def add_device_memory(rows: pl.DataFrame, stage: Stage, scale: float = 1.0) -> None:
    """Memory of each HBM by what it is used for: timestamp, ``*_bytes``, device_idx, hbm_idx, instance_id."""
    device = (
        pl.lit("device ") + _text(rows, "device_idx") + ", "
        if "device_idx" in rows.columns
        else pl.lit("")
    )
    where = device + pl.lit("HBM ") + _text(rows, "hbm_idx")
    for name in rows.columns:
        if name.endswith("_bytes"):
            use = name.removesuffix("_bytes").replace("_", " ")
            _add(rows, name, where + f": {use}", "B", stage, scale)


def _add(
    rows: pl.DataFrame, column: str, name: pl.Expr, unit: str, stage: Stage, scale: float = 1.0
) -> None:
    if column not in rows.columns:
        return
    value = pl.col(column).cast(pl.Float64, strict=False)
    instance = _text(rows, "instance_id")
    named = rows.select(
        at="timestamp",
        value=value,
        name=pl.when(instance != "").then(instance + " " + name).otherwise(name),
    ).filter(pl.col("at").is_not_null() & pl.col("value").is_finite())
    if not named.height:
        return
    values = named["value"].to_numpy() * scale
    unique = named["name"].unique(maintain_order=True)
    numbers = {
        text: stage.timeline(
            ("sample", text),
            Timeline("counter", text, sort_order=_ORDER, unit=unit, is_unranked=True),
        )
        for text in unique.to_list()
    }
    timelines = named["name"].replace_strict(numbers, return_dtype=pl.Int32).to_numpy()
    stage.add_counters(timeline=timelines, timestamp_ns=named["at"].to_numpy(), value=values)


def _text(rows: pl.DataFrame, column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).fill_null("") if column in rows.columns else pl.lit("")


def _as_reals(rows: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    return rows.with_columns(real(pl.col(c)).alias(c) for c in columns if c in rows.columns)
