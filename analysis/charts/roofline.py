"""Chart ``roofline``: how far is each operator from what the machine can do with its arithmetic intensity?"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.charts.chart import Chart, with_rows
from trnprof.analysis.focus import focus, focus_note
from trnprof.analysis.metrics import ratio, unit_peaks
from trnprof.analysis.operators import top_operators
from trnprof.analysis.sections.section import Column, Subject

TOP: Final = 100
CHART: Final = Chart(
    "roofline",
    "Operators under the roofline",
    "scatter",
    x=Column("intensity", "FLOP a byte of HBM traffic", "number"),
    y=Column("achieved_flops_per_s", "reached", "flops_per_s"),
    color=Column("bound_by", "bound by"),
    size=Column("time_ns", "time", "ns"),
    more=(Column("operator", "operator"), Column("roofline_share", "of its roofline", "percent")),
    is_logarithmic=True,
)


def build(subject: Subject) -> Chart:
    """A point an operator that has FLOPs (BF16-equivalent ones, against the BF16 peak) and HBM traffic; means over cores."""
    if subject.scope is None:
        return replace(CHART, nothing_to_say="because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    rows = (
        top_operators(scope, subject.trace, TOP)
        .with_columns(
            intensity=ratio(pl.col("adjusted_flops"), pl.col("hbm_bytes")),
            operator=pl.concat_str(
                pl.col("module"), pl.col("name"), pl.col("phase"), separator=" ", ignore_nulls=True
            ).str.strip_chars(),
            bound_by=pl.col("bound_by").str.strip_suffix("-bound").fill_null("unknown"),
        )
        .filter((pl.col("intensity") > 0) & (pl.col("achieved_flops_per_s") > 0))
    )
    peaks = unit_peaks(scope, subject.trace).head(1)
    lines = _roofs(rows, peaks)
    reason = "because no operator has both FLOPs and HBM traffic in the trace"
    chart = with_rows(
        replace(CHART, nothing_to_say=reason),
        rows,
        [
            f"{focus_note(scope)}; FLOPs in BF16-equivalents, so that one roof holds for all datatypes; operators without FLOPs, or "
            "without HBM traffic, are not drawn"
        ],
    )
    return replace(chart, lines=lines if chart.rows else ())


def _roofs(rows: pl.DataFrame, peaks: pl.DataFrame) -> tuple[dict[str, object], ...]:
    """The roofs of one core: the slope of its HBM stack, that of its DMA engines where it is lower, and the peak."""
    if not rows.height or not peaks.height:
        return ()
    peak, stack, engines = peaks.select(
        "peak_flops", "peak_bytes_per_s", "dma_peak_bytes_per_s"
    ).row(0)
    if not peak or not stack:
        return ()
    left = min(float(rows["intensity"].min() or 1.0), peak / stack) / 2  # type: ignore[arg-type]
    slopes = {"HBM stack": stack, **({"DMA engines": engines} if engines and engines < stack else {})}  # fmt: skip
    right = max(float(rows["intensity"].max() or 1.0), peak / min(slopes.values())) * 2  # type: ignore[arg-type]
    return tuple(
        {"label": label, "intensity": at, "achieved_flops_per_s": min(peak, at * rate)}
        for label, rate in slopes.items()
        for at in (left, peak / rate, right)
    )
