"""Did the device limit itself? Throttling, where the trace has the limits that it set."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.findings.case import Case, quoted
from trnprof.analysis.findings.finding import Finding
from trnprof.tracer.units import format_ns, format_percent

KEY: Final = "throttling"
COUNTER: Final = "utilization limit"
"""What the importer of Neuron's profiles calls limits, 0 to 1; each holds until the next one."""


def find(case: Case) -> list[Finding]:
    """Any throttling is worth naming (Neuron Explorer's rule); a limit u loses no more than 1 - u of the time that it holds."""
    tracks = case.trace.tracks.filter(
        (pl.col("kind").cast(pl.String) == "counter") & pl.col("name").str.starts_with(COUNTER)
    ).unique("track_id", keep="first")
    if not tracks.height:
        return []
    windows = case.times.own.windows
    first, last = windows["window_start_ns"].min(), windows["window_end_ns"].max()
    until = pl.col("timestamp_ns").shift(-1).over("track_id").fill_null(last)
    held = pl.min_horizontal(until, pl.lit(last)) - pl.max_horizontal("timestamp_ns", pl.lit(first))
    rows = (
        case.trace.counters.join(tracks.lazy().select("track_id", "name"), on="track_id")
        .sort("track_id", "timestamp_ns")
        .with_columns(held_ns=held.clip(0))
        .filter((pl.col("value") < 1) & (pl.col("held_ns") > 0))
        .group_by("track_id", "name")
        .agg(
            lost_ns=(pl.col("held_ns") * (1 - pl.col("value"))).sum(),
            held_ns=pl.col("held_ns").sum(),
            least=pl.col("value").min(),
        )
        .sort("lost_ns", "name", descending=[True, False])
        .collect()
    )
    if not rows.height:
        return []
    row = rows.row(0, named=True)
    name = quoted(row["name"])
    return [
        Finding(
            key=KEY,
            title=f"the device is throttled for {format_ns(row['held_ns'], 3)} of a step ({row['name']})",
            evidence=f"down to {format_percent(row['least'])} of its rate; power, temperature, or work that comes in bursts",
            where=str(row["name"]),
            query=f"SELECT t.name, c.timestamp_ns, c.value FROM counters c JOIN tracks t ON c.track_id = t.track_id WHERE t.name = '{name}' AND c.value < 1 ORDER BY c.timestamp_ns",
            command=case.report("utilization"),
            touched_ns=float(row["held_ns"]),
            gain_ns=float(row["lost_ns"]),
            step_ns=case.step_ns,
            is_upper_bound=True,
        )
    ]
