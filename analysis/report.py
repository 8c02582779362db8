"""What does a trace say, all of it? The report as one JSON-ready dict; renderers only format it.

Keys that Neuron Explorer has bear its names and units (seconds, fractions 0–1); ours carry a unit suffix. A section that
has nothing to say is ``{"nothing_to_say": "because …"}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from trnprof.analysis.breakdown import PARTS
from trnprof.analysis.findings.rank import findings_of
from trnprof.analysis.focus import of_rank
from trnprof.analysis.host import host_activity
from trnprof.analysis.late_ranks import late_ranks
from trnprof.analysis.mapping import Mapper, on_threads
from trnprof.analysis.metrics import combine_units, derive, engine_metrics
from trnprof.analysis.phases import PHASES
from trnprof.analysis.ranks import rank_rows
from trnprof.analysis.scope import Scope, device_scope
from trnprof.analysis.unknowns import outside_note, unit_noun, unknown_notes
from trnprof.analysis.verdict import verdict
from trnprof.analysis.verdict_streams import runs_on_streams, stream_verdict
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace
from trnprof.tracer.units import counted
from trnprof.tracer.version import __version__

if TYPE_CHECKING:
    from trnprof.analysis.screen import Screen

REPORT_SCHEMA: Final = 1
METRIC_DEFINITIONS: Final = "neuron-7.4.0"
SIGNIFICANT_DIGITS: Final = 12
_IMPORT_NOTES: Final = 3
NO_DEVICE: Final = "because the trace has no device tracks: only the host was recorded"
MFU_ABOVE_HFU: Final = (
    "MFU is above HFU: the model's FLOPs count more than the device runs; torch counts causal attention whole, the device "
    "skips the blocks above the diagonal"
)

Row = dict[str, Any]


def build_report(
    trace: Trace, step: int | None = None, rank: int | None = None, mapper: Mapper = on_threads
) -> Row:
    """Analyze a trace.

    Args:
        trace: an opened trace.
        step: look at this step first (``focus``); everything otherwise.
        rank: only the cores of this rank, but for what compares ranks; it must not repeat another one.
        mapper: what adds up the pieces of a large trace.

    Returns:
        schema, tool_version, metric_definitions, trace, system, is_simulation, is_imported, execution, clocks, cores, core_count
        (of ``unit``), unit (core, chip, GPU or host), overall, steps
        (each with metrics, engines, breakdown, phases, optimizer (form, kernel_count,
        is_merged: emulated with its kernels fused already; null: none seen),
        operators, verdict), findings (of the focus: ``Finding.as_row``), ranks (``ranks.rank_rows``), late_ranks (``late_ranks.late_ranks``), focus ("overall" or the step), rank (null: all), host, notes, problems.

    Raises:
        TrnprofError: the trace has no such step.
    """
    screen = _screen(trace, rank, mapper)
    scope = None if screen is None else screen.scope
    host_steps, host_notes = _host_steps(trace)
    windows = _device_windows(screen) if screen is not None else _host_windows(host_steps)
    steps = [w for w in windows if w["step"] is not None]
    if step is not None and step not in [w["step"] for w in steps]:
        raise TrnprofError(f"{trace.name}: no step {step}; {_known_steps(steps)}")
    focused = windows[-1] if step is None else next(w for w in steps if w["step"] == step)
    return {
        "schema": REPORT_SCHEMA,
        "tool_version": __version__,
        "metric_definitions": METRIC_DEFINITIONS,
        "trace": trace.path.name,
        "system": _system(trace),
        "is_simulation": trace.is_simulation,
        "is_imported": "imported" in trace.manifest,
        "execution": dict(trace.manifest.get("emulation") or {}) or None,
        "clocks": _clocks(trace),
        "core_count": 0 if scope is None else int(scope.units["replica_count"].sum()),
        "unit": unit_noun(scope),
        "focus": "overall" if step is None else step,
        "rank": rank,
        "overall": windows[-1],
        "steps": steps,
        "findings": []
        if scope is None
        else [f.as_row() for f in findings_of(trace, scope, focused)],
        "ranks": _ranks(screen) if screen is not None else {"nothing_to_say": NO_DEVICE},
        "late_ranks": late_ranks(trace),
        "host": host_activity(trace),
        "notes": [
            *(scope.notes if scope else host_notes),
            *_kept_notes(trace),
            *_metric_notes(windows[-1]["metrics"]),
            *_outside(screen, trace),
            *unknown_notes(windows[-1], trace),
        ],
        "problems": [
            {"severity": p.severity, "kind": p.kind, "where": p.where, "message": p.message}
            for p in trace.problems
        ],
    }


def _screen(trace: Trace, rank: int | None, mapper: Mapper) -> Screen | None:
    scope = device_scope(trace)
    if scope is None:
        return None
    from trnprof.analysis.screen import screen_of  # here: what it compiles takes time to load

    screen = screen_of(trace, scope, mapper)
    return screen if rank is None else screen.of(of_rank(scope, rank))


def _kept_notes(trace: Trace) -> list[str]:
    """What the trace says of itself; of an import, that has a line for the clock of each rank, only so much."""
    notes = list(trace.manifest.get("notes", ()))
    if "imported" not in trace.manifest or len(notes) <= _IMPORT_NOTES + 1:
        return notes
    more = counted(len(notes) - _IMPORT_NOTES, "line")
    return [*notes[:_IMPORT_NOTES], f"… {more} more about the import (in its manifest.json)"]


def focused_window(report: Mapping[str, Any]) -> Row:
    """The window that a report is about: its focus."""
    focus = report["focus"]
    found: Row = next((w for w in report["steps"] if w["step"] == focus), report["overall"])
    return found


def _device_windows(screen: Screen) -> list[Row]:
    """What there is to say of each window."""
    scope, trace = screen.scope, screen.trace
    clock_ghz = (trace.system.get("core") or {}).get("base_clock_ghz")
    counters = screen.counters()
    engines = screen.engines()
    by_unit = engine_metrics(engines)
    parts = _by_window(_mean_over_units(screen.breakdown(), scope, ["total_ns", *PARTS], ["window"]))  # fmt: skip
    phases = _by_window(_mean_over_units(screen.phases(), scope, ["total_ns", *PHASES], ["window"]))
    is_merged = (trace.manifest.get("emulation") or {}).get("execution") == "fused"
    forms = {w: {**f, "is_merged": is_merged} for w, f in screen.forms().items()}
    combined = _by_window(derive(combine_units(counters), clock_ghz))
    units = _by_window(
        derive(counters, clock_ghz).join(
            scope.units.select("unit_id", "name", "rank", "chip", "core"), on="unit_id"
        )
    )
    engine_rows = _by_window(_engine_rows(engines, screen.waits(), scope))
    operators = _by_window(screen.operators())
    frames = (parts, phases, combined, units, engine_rows, operators)
    return [
        _window({**row, "optimizer": forms.get(row["window"])}, frames, by_unit)
        for row in _window_rows(scope)
    ]


def _outside(screen: Screen | None, trace: Trace) -> list[str]:
    if screen is None or trace.is_simulation:
        return []
    has_steps = screen.scope.windows["step"].is_not_null().any()
    return outside_note(*screen.length_inside()) if has_steps else []


def _window(
    row: Row,
    frames: Sequence[Mapping[int, list[Row]]],
    by_unit: Mapping[tuple[int, int], Mapping[str, Any]],
) -> Row:
    parts, phases, combined, units, engine_rows, operators = frames
    number = row.pop("window")
    engines = engine_rows.get(number, [])
    cores = [
        _core(unit, by_unit.get((number, unit["unit_id"]), {})) for unit in units.get(number, [])
    ]
    metrics = _metrics(combined[number][0]) | _engine_means(engines)
    rows = [
        _rounded({k: v for k, v in o.items() if k not in ("window", "operator", "event_name")})
        for o in operators.get(number, [])
    ]
    window: Row = {
        **row,
        "metrics": metrics,
        "cores": cores,
        "engines": engines,
        "breakdown": _in_ns(parts[number][0]),
        "phases": _in_ns(phases[number][0]),
        "operators": rows
        or {"nothing_to_say": "because no event of the device lies in this window"},
    }
    said = stream_verdict(window) if runs_on_streams(window) else verdict(window)
    return {**window, "verdict": said}


def _metric_notes(metrics: Mapping[str, Any]) -> list[str]:
    mfu, hfu = metrics.get("mfu_estimated_percent"), metrics.get("hfu_estimated_percent")
    return [MFU_ABOVE_HFU] if mfu is not None and hfu is not None and mfu > hfu else []


def _ranks(screen: Screen) -> Row:
    found = rank_rows(screen.ranks_broken_down())
    return {k: [_rounded(r) for r in v] if isinstance(v, list) else v for k, v in found.items()}


def _in_ns(row: Row) -> Row:
    return {f"{k.removesuffix('_ns')}_ns": v for k, v in row.items() if k != "window"}


def _window_rows(scope: Scope) -> list[Row]:
    return (
        scope.windows.group_by("window")
        .agg(
            pl.col("step", "label").first(),
            pl.col("window_start_ns").min().alias("start_ns"),
            pl.col("window_end_ns").max().alias("end_ns"),
        )
        .sort("window")
        .with_columns(steps=pl.when(pl.col("step").is_null()).then(pl.len() - 1).otherwise(1))
        .to_dicts()
    )


def _host_steps(trace: Trace) -> tuple[pl.DataFrame, list[str]]:
    """The steps of the clock that has most of them, and what to say of the others."""
    counts = (
        trace.steps.group_by("clock_id").len().sort(["len", "clock_id"], descending=[True, False])
    )
    if counts.height < 2:
        return trace.steps, []
    clock_id = counts["clock_id"][0]
    note = f"steps are those of clock {clock_id}; {counts['len'][1:].sum()} of other clocks share no axis with it"
    return trace.steps.filter(pl.col("clock_id") == clock_id), [note]


def _host_windows(steps: pl.DataFrame) -> list[Row]:
    """Steps by their length only: nothing of a device is known."""
    silent = {
        k: {"nothing_to_say": NO_DEVICE} for k in ("metrics", "breakdown", "phases", "operators")
    }
    rows = (
        steps.group_by("step")
        .agg(pl.col("label").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("step")
        .to_dicts()
    )
    overall = {
        "step": None,
        "label": "all steps" if rows else "whole trace",
        "start_ns": rows[0]["start_ns"] if rows else 0,
        "end_ns": max(r["end_ns"] for r in rows) if rows else 0,
    }
    said = verdict({"metrics": silent["metrics"]})
    return [
        {
            **row,
            "steps": 1 if row["step"] is not None else len(rows),
            **silent,
            "optimizer": None,
            "cores": [],
            "engines": [],
            "verdict": said,
        }
        for row in (*rows, overall)
    ]


def _engine_rows(engines: pl.DataFrame, waits: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """Per window and resource, means over cores: active and idle time by reason of a mean lane."""
    keys = ["window", "resource"]
    lanes = waits.with_columns(idle_s=pl.col("idle_ns") / pl.col("tracks") / 1e9)
    cores = engines.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
    weights = cores.group_by(keys).agg(pl.col("replica_count").sum().alias("weight"))
    by_reason = (
        lanes.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
        .group_by(*keys, "reason")
        .agg((pl.col("idle_s") * pl.col("replica_count")).sum())
        .join(weights, on=keys)
        .sort("idle_s", "reason", descending=[True, False])
        .group_by(keys, maintain_order=True)
        .agg(pl.col("reason"), pl.col("idle_s") / pl.col("weight"))
    )
    means = ["active_ns", "instruction_ns", "total_ns", "active_percent"]
    active = _mean_over_units(engines, scope, means, keys)
    sums = cores.group_by(keys).agg(
        (pl.col("instruction_count") * pl.col("replica_count")).sum(),
        pl.col("tracks").max(),
        pl.col("sort_order").min(),
    )
    kinds = scope.lanes.group_by("resource").agg(pl.col("kind").first())
    joined = active.join(sums, on=keys).join(by_reason, on=keys, how="left")
    joined = joined.join(kinds, on="resource", how="left")
    return joined.sort("window", "sort_order", "resource")


def _mean_over_units(
    frame: pl.DataFrame, scope: Scope, names: Sequence[str], keys: Sequence[str]
) -> pl.DataFrame:
    """Means over cores, replicas weighed; of a single core the values themselves."""
    if scope.units.height == 1:
        return frame.select(*keys, *names)
    weight = pl.col("replica_count")
    weighed = frame.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
    means = [((pl.col(n) * weight).sum() / weight.sum()).alias(n) for n in names]
    return weighed.group_by(keys).agg(means).sort(keys)


def _by_window(frame: pl.DataFrame) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in frame.iter_rows(named=True):
        if "reason" in row:
            row = _engine(row)
        found.setdefault(row["window"], []).append(row)
    return found


def _engine(row: Row) -> Row:
    reasons = dict(zip(row["reason"] or (), row["idle_s"] or (), strict=True))
    return _rounded(
        {
            "window": row["window"],
            "name": row["resource"],
            "kind": row["kind"],
            "tracks": row["tracks"],
            "instruction_count": row["instruction_count"],
            "instruction_time": row["instruction_ns"] / 1e9,
            "active_time": row["active_ns"] / 1e9,
            "active_time_percent": row["active_percent"],
            "idle_by_reason_s": {k: _round(v) for k, v in reasons.items()},
        }
    )


def _core(unit: Row, engines: Mapping[str, Any]) -> Row:
    place = {k: unit[k] for k in ("name", "rank", "chip", "core", "replica_count")}
    hidden = (*place, "window", "unit_id")
    counters = {k: v for k, v in unit.items() if k not in hidden}
    return {**place, "metrics": _metrics(counters) | _rounded(dict(engines))}


def _metrics(row: Row) -> Row:
    skipped = ("window", "replica_count")
    return _rounded({k: v for k, v in row.items() if k not in skipped})


def _engine_means(engines: Sequence[Row]) -> Row:
    keys = ("instruction_time", "active_time", "active_time_percent", "instruction_count")
    names = ("tensor", "vector", "scalar", "gpsimd", "sync")
    return {
        f"{e['name'].lower()}_engine_{k}": e[k]
        for e in engines
        if e["name"].lower() in names
        for k in keys
    }


def _rounded(row: Row) -> Row:
    """Floats to SIGNIFICANT_DIGITS (below them is only the noise of divisions), byte counts to integers, no NaN."""
    return {
        k: round(v) if v is not None and k.endswith("_bytes") and "average" not in k else _round(v)
        for k, v in row.items()
    }


def _round(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None


def _system(trace: Trace) -> Row | None:
    system = trace.system
    if not system:
        return None
    core = system.get("core") or {}
    return {
        "name": system.get("name"),
        "description": system.get("description"),
        "core": core.get("name"),
        "estimates": list(system.get("estimates", ())),
    }


def _clocks(trace: Trace) -> list[Row]:
    """Each clock with its own span: clocks without a measured relation share no axis."""
    known = {c["clock_id"]: c for f in trace.fragments for c in f.get("clocks", ())}
    where = trace.tracks.select("track_id", "clock_id").unique("track_id")
    spans = (
        trace.survey.join(where, on="track_id")
        .group_by("clock_id")
        .agg(
            pl.col("events").sum(),
            (pl.col("last_ns").max() - pl.col("first_ns").min()).alias("span_ns"),
        )
    )
    tracks = trace.tracks.group_by("clock_id").agg(pl.len().alias("tracks"))
    rows = tracks.join(spans, on="clock_id", how="left").sort("clock_id")
    return [
        {**row, "events": row["events"] or 0, "kind": known.get(row["clock_id"], {}).get("kind")}
        for row in rows.to_dicts()
    ]


def _known_steps(steps: Sequence[Row]) -> str:
    if not steps:
        return "the trace has no steps"
    return f"it has steps {steps[0]['step']}..{steps[-1]['step']}"
