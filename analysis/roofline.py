"""How far is each operator and layer from what the machine can do at its arithmetic intensity?

FLOPs are those of Tensor (of kernels on a GPU), transposes included, in their own datatypes. The roof of a piece of work is the time that it needs at
least: the larger of its FLOPs over the peaks of their datatypes and of its HBM bytes over what moves them (``metrics.memory_roofline_s``).

    peak = flops / (sum over datatypes of FLOPs / peak of that datatype)
    intensity = flops / HBM bytes
    attainable = flops / roof
    achieved = flops / attributed time (the union of its events)
    share of roof = roof / attributed time = achieved / attainable
"""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.memory import levels
from trnprof.analysis.metrics import (
    DTYPE_ALIASES,
    dtype_multipliers,
    memory_roofline_s,
    ratio,
    tensor_peaks,
    unit_peaks,
    with_adjusted_flops,
)
from trnprof.analysis.operators import operator_labels, with_operator
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

COMPUTE, STACK, ENGINES = "compute", "HBM", "DMA"
"""Which roof is the lowest: the peak, the bandwidth of the HBM stack, or what DMA engines reach of it."""

_KEYS: Final = ["unit_id", "operator"]
_THROTTLE: Final = "utilization limit, throttle "


def placements(scope: Scope, trace: Trace, by: Literal["operator", "layer"]) -> pl.DataFrame:
    """Operators or layers that compute or move HBM bytes, means over cores (replicas weigh).

    Args:
        scope: of one window a unit (``focus``).
        trace: the trace.
        by: operators are (name, module, phase); a layer is a module with all operators that lie in it itself, in all phases.

    Returns:
        The one that takes longest first: name, module, phase (null for layers), dtype (of most of its FLOPs, null if it has none or nobody says), time_ns
        (attributed), flops, adjusted_flops (BF16-equivalents), hbm_bytes (null where kernels hide it), peak_flops_per_s (of its datatypes), intensity,
        achieved_flops_per_s, achieved_bytes_per_s, attainable_flops_per_s, roofline_ns, roofline_share, limit (COMPUTE, STACK or ENGINES; null
        where the memory side is unknown).
    """
    labels, numbers = operator_labels(trace.ops)
    inside = with_operator(scope, trace, numbers)
    if by == "layer":
        layers = labels.filter(pl.col("module") != "").select(
            "operator", layer=pl.col("module").rank("dense").cast(pl.Int64), module="module"
        )
        inside = inside.join(layers.lazy(), on="operator").with_columns(operator="layer")
        labels = layers.select("module", operator="layer").unique("operator").with_columns(
            name=pl.lit(None, pl.String), phase=pl.lit(None, pl.String)
        )  # fmt: skip
    sums = inside.group_by(_KEYS).agg(
        pl.col("name").first().cast(pl.String).alias("event_name"),
        flops=pl.col("matmul_flops").sum(),
        adjusted_flops=pl.col("adjusted_flops").sum(),
        hbm_bytes=(pl.col("hbm_read") + pl.col("hbm_write")).sum(),
        dma_bytes=pl.col("dma_bytes").sum(),
    )
    times = covered_ns(inside, _KEYS, "time_ns")
    dtypes = _dtypes(inside)
    frames = [frame.collect(engine="streaming") for frame in (sums, times, dtypes)]
    rows = frames[0].join(frames[1], on=_KEYS, how="left")
    placed = _over_units(rows, scope, trace).join(frames[2], on="operator", how="left")
    named = placed.join(labels, on="operator", how="left")
    return (
        named.with_columns(name=pl.coalesce("name", "event_name") if by == "operator" else "name")
        .filter((pl.col("flops") > 0) | (pl.col("hbm_bytes") > 0))
        .drop("event_name", "operator", "dma_bytes")
        .sort("time_ns", "module", "name", "phase", descending=[True, False, False, False])
    )


def _dtypes(inside: pl.LazyFrame) -> pl.LazyFrame:
    """operator, dtype: that of most of its FLOPs."""
    return (
        inside.filter(pl.col("matmul_flops") > 0)
        .group_by("operator", "dtype")
        .agg(pl.col("matmul_flops").sum())
        .with_columns(pl.col("dtype").cast(pl.String))
        .sort("matmul_flops", "dtype", descending=[True, False])
        .group_by("operator", maintain_order=True)
        .agg(pl.col("dtype").first())
    )


def _over_units(rows: pl.DataFrame, scope: Scope, trace: Trace) -> pl.DataFrame:
    """Means over all units; one on which an operator does not run counts as 0."""
    units = unit_peaks(scope, trace).join(scope.units.select("unit_id", "has_streams"), on="unit_id")  # fmt: skip
    weight = pl.col("replica_count")
    total = units["replica_count"].sum()
    on_engines = ~pl.col("has_streams")
    hbm, moved = pl.col("hbm_bytes"), pl.col("dma_bytes")
    memory_s = memory_roofline_s(hbm, moved)
    limits = rows.join(units, on="unit_id").with_columns(
        compute_s=pl.when(on_engines | (pl.col("flops") > 0)).then(
            pl.col("adjusted_flops") / pl.col("peak_flops")
        ),
        memory_s=pl.when(on_engines).then(memory_s),
        stack_s=ratio(hbm, pl.col("peak_bytes_per_s")),
        hbm_bytes=pl.when(on_engines).then(hbm),
    )
    sides = ("compute_s", "memory_s", "stack_s", "hbm_bytes")
    sums = ("time_ns", "flops", "adjusted_flops", "dma_bytes")
    combined = limits.group_by("operator").agg(
        pl.col("event_name").first(),
        *((pl.col(n) * weight).sum().alias(n) / total for n in sums),
        *(
            pl.when(pl.col(n).null_count() == 0).then((pl.col(n) * weight).sum() / total).alias(n)
            for n in sides
        ),
    )
    compute, memory = pl.col("compute_s"), pl.col("memory_s")
    limit = (
        pl.when(memory.is_null() | compute.is_null())
        .then(None)
        .when(compute >= memory)
        .then(pl.lit(COMPUTE))
        .when(pl.col("stack_s") >= memory)
        .then(pl.lit(STACK))
        .otherwise(pl.lit(ENGINES))
    )
    # without a peak there is no roof; without the traffic that of FLOPs alone
    roof = pl.when(compute.is_not_null()).then(pl.max_horizontal("compute_s", "memory_s"))
    flops, time_s = pl.col("flops"), pl.col("time_ns") / 1e9
    has_flops = pl.when(flops > 0)
    return (
        combined.with_columns(limit=limit, roofline_ns=roof * 1e9)
        .with_columns(
            peak_flops_per_s=has_flops.then(ratio(flops, compute)),
            intensity=has_flops.then(ratio(flops, pl.col("hbm_bytes"))),
            attainable_flops_per_s=has_flops.then(ratio(flops, pl.col("roofline_ns") / 1e9)),
            achieved_flops_per_s=has_flops.then(ratio(flops, time_s)),
            achieved_bytes_per_s=ratio(pl.col("hbm_bytes"), time_s),
            roofline_share=ratio(pl.col("roofline_ns"), pl.col("time_ns")),
        )
        .drop("compute_s", "memory_s", "stack_s")
    )


def datatypes(scope: Scope, trace: Trace) -> pl.DataFrame:
    """What one unit can do in each datatype, and how many of its FLOPs are in it.

    Returns:
        One row a datatype that has a peak or is used: dtype, peak_flops_per_s (dense; BF16's over the documented multiplier where
        the trace has no peak of it; null if that is unknown too), ridge (FLOP a byte of the HBM stack), dma_ridge (of the DMA engines), flops (mean over
        units), flops_share, peak_s (time that these FLOPs need at the peak).
    """
    units = unit_peaks(scope, trace)
    weight, total = pl.col("replica_count"), units["replica_count"].sum()
    canonical = {alias: name for name, aliases in DTYPE_ALIASES.items() for alias in aliases}
    text = pl.col("dtype").cast(pl.String).str.to_lowercase()
    used = (
        with_adjusted_flops(scope.inside(), trace)
        .filter(pl.col("matmul_flops") > 0)
        .group_by("unit_id", text.replace(canonical).fill_null("not known").alias("dtype"))
        .agg(pl.col("matmul_flops").sum())
        .collect(engine="streaming")
        .join(units, on="unit_id")
        .group_by("dtype")
        .agg(flops=(pl.col("matmul_flops") * weight).sum() / total)
    )
    bf16, stack, engines = (
        float(units[n].max()) if units[n].max() is not None else None  # type: ignore[arg-type]
        for n in ("peak_flops", "peak_bytes_per_s", "dma_peak_bytes_per_s")
    )
    known = tensor_peaks(trace)
    factors = dtype_multipliers(trace)
    names = list(dict.fromkeys([*known, *used["dtype"].sort().to_list()]))
    peaks = [known.get(n, bf16 / factors.get(n, 1.0) if bf16 else None) for n in names]
    rows = pl.DataFrame(
        {"dtype": names, "peak_flops_per_s": peaks},
        schema={"dtype": pl.String, "peak_flops_per_s": pl.Float64},
    ).join(used, on="dtype", how="left").with_columns(pl.col("flops").fill_null(0.0))  # fmt: skip
    return rows.with_columns(
        ridge=ratio(pl.col("peak_flops_per_s"), pl.lit(stack, pl.Float64)),
        dma_ridge=ratio(pl.col("peak_flops_per_s"), pl.lit(engines, pl.Float64)),
        flops_share=ratio(pl.col("flops"), pl.col("flops").sum()),
        peak_s=ratio(pl.col("flops"), pl.col("peak_flops_per_s")),
    ).sort("flops", "peak_flops_per_s", "dtype", descending=[True, True, False])


def throttles(trace: Trace, scope: Scope, rank: int | None = None) -> pl.DataFrame:
    """How far throttles limit the utilization, where a profile counts it.

    Returns:
        One row a kind of throttle and rank: throttle, rank, mean_limit (over the window, 1: none), lowest_limit, limited_share (of the time).
    """
    kept = pl.lit(True) if rank is None else pl.col("rank") == rank
    tracks = trace.tracks.filter(
        pl.col("name").str.starts_with(_THROTTLE)
        & (pl.col("kind").cast(pl.String) == "counter")
        & kept
    ).unique("track_id")
    schema = {"throttle": pl.String, "rank": pl.Int64, "mean_limit": pl.Float64, "lowest_limit": pl.Float64, "limited_share": pl.Float64}  # fmt: skip
    start, end = scope.windows["window_start_ns"].min(), scope.windows["window_end_ns"].max()
    if not tracks.height or start is None or end is None:
        return pl.DataFrame(schema=schema)
    start_ns, end_ns = int(start), int(end)  # type: ignore[arg-type]
    length = pl.col("end_ns") - pl.col("start_ns")
    total = max(1, end_ns - start_ns)
    return (
        levels(trace, tracks, start_ns, end_ns)
        .group_by("track_id")
        .agg(
            mean_limit=1 - ((1 - pl.col("value")) * length).sum() / total,
            lowest_limit=pl.col("value").min(),
            limited_share=length.filter(pl.col("value") < 1).sum() / total,
        )
        .join(tracks.select("track_id", "name", "rank"), on="track_id")
        .select(
            pl.col("name").str.strip_prefix(_THROTTLE).alias("throttle"),
            pl.col("rank").cast(pl.Int64),
            "mean_limit",
            "lowest_limit",
            "limited_share",
        )
        .sort("mean_limit", "throttle", "rank")
    )
