"""Section ``roofline``: how much of the machine is used, and where operators and layers stand under its roofs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import polars as pl

from trnprof.analysis.focus import focus, mean_note
from trnprof.analysis.metrics import combine_units, derive
from trnprof.analysis.roofline import datatypes, placements, throttles
from trnprof.analysis.scope import Scope
from trnprof.analysis.screen import screen_of
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.tracer.units import format_ns, format_percent, format_rate

KEY: Final = "roofline"
TITLE: Final = "Roofline"
TOP: Final = 20
_FIGURES: Final = (
    ("mfu_hlo_estimated_percent", "MFU by the model's FLOPs", "percent"),
    ("mfu_inst_estimated_percent", "MFU by instructions, no transposes", "percent"),
    ("hfu_estimated_percent", "HFU", "percent"),
    ("mfu_max_achievable_estimated_percent", "MFU that HBM would feed (not capped)", "percent"),
    ("mbu_estimated_percent", "MBU", "percent"),
    ("mm_arithmetic_intensity", "arithmetic intensity, FLOP/B", "number"),
    ("peak_flops_bandwidth_ratio", "ridge point, FLOP/B", "number"),
    ("peak_flops", "peak of all, BF16", "flops"),
    ("peak_bytes_per_s", "HBM bandwidth of all", "bytes"),
    ("roofline_s", "roof", "time"),
    ("total_time", "time", "time"),
)
"""Keys of ``metrics.derive``, in Neuron Explorer's definitions."""
_SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "tfloat32": "tf32", "float8": "fp8"}  # fmt: skip
_PHASES: Final = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
_PLACED: Final = (
    Column("time_ns", "time", "ns"),
    Column("short_dtype", "type"),
    Column("intensity", "FLOP/B", "number"),
    Column("achieved_tflops_per_s", "TFLOP/s", "number"),
    Column("attainable_tflops_per_s", "at most", "number"),
    Column("roofline_share", "of roof", "percent"),
    Column("limit", "roof is"),
)


def build(subject: Subject) -> Section:
    """Of the step and rank asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    operators = placements(scope, subject.trace, "operator")
    if not operators.height:
        return silent(KEY, TITLE, "because no event has FLOPs or HBM traffic in this window")
    types = datatypes(scope, subject.trace)
    tables = (
        _summary(scope, subject),
        _datatypes(types),
        _throttles(throttles(subject.trace, scope, subject.rank)),
        _placed(operators, "operator"),
        _placed(placements(scope, subject.trace, "layer"), "layer"),
    )
    notes = (*_notes(subject, scope, operators, types), *scope.notes)
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), notes)


def _summary(scope: Scope, subject: Subject) -> Table:
    whole = derive(combine_units(screen_of(subject.trace, scope).counters())).row(0, named=True)
    rows = [
        {"key": key, "figure": label, "shown": _shown(whole[key], form), "value": whole[key]}
        for key, label, form in _FIGURES
        if whole[key] is not None
    ]
    schema = {"key": pl.String, "figure": pl.String, "shown": pl.String, "value": pl.Float64}
    columns = (Column("figure", "figure"), Column("shown", "is"))
    return table("summary", "", columns, pl.DataFrame(rows, schema=schema))


def _shown(value: float, form: str) -> str:
    match form:
        case "percent":
            return format_percent(value)
        case "flops":
            return format_rate(value, "FLOP/s")
        case "bytes":
            return format_rate(value, "B/s")
        case "time":
            return format_ns(value * 1e9, 3)
    return f"{value:,.4g}"


def _datatypes(types: pl.DataFrame) -> Table:
    columns = (
        Column("dtype", "datatype"),
        Column("peak_flops_per_s", "peak", "flops_per_s"),
        Column("ridge", "ridge", "number"),
        Column("dma_ridge", "of DMA", "number"),
        Column("flops", "FLOPs", "flops"),
        Column("flops_share", "of all", "percent"),
    )
    return table("datatypes", "peaks of one unit, and what uses them", columns, types)


def _throttles(rows: pl.DataFrame) -> Table:
    columns = (
        Column("throttle", "throttle"),
        *([Column("rank", "rank", "number")] if rows["rank"].n_unique() > 1 else []),
        Column("mean_limit", "lets through", "percent"),
        Column("lowest_limit", "at least", "percent"),
        Column("limited_share", "of the time", "percent"),
    )
    return table("throttling", "throttling", columns, rows, TOP)


def _placed(rows: pl.DataFrame, by: Literal["operator", "layer"]) -> Table:
    label = {
        "operator": pl.concat_str(
            "name", pl.col("phase").replace(_PHASES), "module", separator=" ", ignore_nulls=True
        ),
        "layer": pl.col("module"),
    }[by]
    told = rows.with_columns(
        label.str.strip_chars().alias(by),
        pl.col("intensity").round_sig_figs(3),
        *(
            (pl.col(f"{n}_flops_per_s") / 1e12).round_sig_figs(3).alias(f"{n}_tflops_per_s")
            for n in ("achieved", "attainable")
        ),
        short_dtype=pl.col("dtype").replace(_SHORT),
    )
    columns = (Column(by, by), *_PLACED)
    return table(f"by_{by}", f"by {by}", columns, told, TOP)


def _notes(
    subject: Subject, scope: Scope, operators: pl.DataFrame, types: pl.DataFrame
) -> list[str]:
    emulation: Mapping[str, Any] = subject.trace.manifest.get("emulation") or {}
    lnc = emulation.get("lnc") or 1
    joined = f"; a rank has {lnc} cores (LNC {lnc}), so {lnc} times the peaks" if lnc > 1 else ""
    notes = [
        f"{mean_note(scope)}; peaks and places are those of one unit, in the datatypes of the FLOPs; time is the union of an operator's events, roof what "
        f"they need at least{joined}"
    ]
    if not operators["hbm_bytes"].is_not_null().any():
        notes.append("what kernels read and write in HBM is in no such profile: the roof is the peak alone")  # fmt: skip
    if operators["roofline_ns"].is_null().all():
        notes.append("the peaks of this device are not known, so nothing has a roof")
    if types.filter((pl.col("dtype") == "not known") & (pl.col("flops") > 0)).height:
        notes.append("FLOPs of an unknown datatype are held against the BF16 peak")
    return notes
