"""Does the device wait for the host? Gaps that end with a launch, of devices that the host drives."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.findings.case import Case
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.idle_causes import HOST, idle_by_cause
from trnprof.tracer.units import format_ns, format_percent

KEY: Final = "host-bound"


def find(case: Case) -> list[Finding]:
    """What the device idles, by how much of the gaps of its streams is due to launches: as much is saved if none has to be waited for."""
    idle_ns = (case.parts["idle_ns"] + case.parts["host_ns"]) / case.steps
    if idle_ns < limit("host_share") * case.step_ns:
        return []
    causes = idle_by_cause(case.trace, case.times.own)
    total = float(causes["idle_ns"].sum())
    waits = causes.filter(pl.col("cause") == HOST)
    if not total or not waits.height:
        return []
    host_ns = idle_ns * float(waits["idle_ns"].sum()) / total
    if host_ns < limit("host_share") * case.step_ns:
        return []
    gaps = int(waits["gaps"].sum())
    kernels = int(case.times.inside.select(pl.len()).collect(engine="streaming").item())
    call = waits.group_by("blocker_name").agg(pl.col("idle_ns").sum()).sort("idle_ns", "blocker_name", descending=[True, False], nulls_last=True)["blocker_name"][0]  # fmt: skip
    behind = f", most behind {call}" if call else ""
    inferred = "~" if waits["is_inferred"].any() else ""
    return [
        Finding(
            key=KEY,
            title=f"the device waits for launches of the host: {format_percent(host_ns / case.step_ns)} of the step",
            evidence=f"{inferred}{gaps:,} gaps before {kernels:,} kernels and copies, {format_ns(float(waits['idle_ns'].sum()) / max(1, gaps), 3)} each on average{behind}; fewer, longer kernels, graphs that launch many at once, no waits of the host in between",
            where="host",
            query="SELECT name, count(*) AS calls, sum(duration_ns) AS time_ns, avg(duration_ns) AS mean_ns FROM named_events WHERE kind IN ('stream', 'engine') GROUP BY name ORDER BY calls DESC LIMIT 10",
            command=case.report("idle"),
            touched_ns=host_ns,
            gain_ns=host_ns,
            step_ns=case.step_ns,
            is_upper_bound=True,
        )
    ]
