"""How well was the machine used? Neuron Explorer's summary metrics, by its names and formulas (schema 7.4.0).

Times are seconds, sizes bytes, ``*_percent`` fractions 0–1, as Neuron Explorer stores them. The formulas reproduce its
published counters (tests/analysis/test_metrics.py): with BF16-equivalent FLOPs where datatypes are known,

    hfu = adjusted_hardware_flops / (peak x total_time)
    mfu_inst = (adjusted_hardware_flops - adjusted_transpose_flops) / (peak x total_time)
    mfu_hlo = model_flops / (peak x total_time);   mfu is mfu_hlo where the model's FLOPs are known, else mfu_inst
    mbu = (hbm_read_bytes + hbm_write_bytes) / (bandwidth x total_time)
    mm_arithmetic_intensity = (hardware_flops - transpose_flops) / HBM bytes    (raw FLOPs, as its counters do)
    peak_flops_bandwidth_ratio = peak / bandwidth
    mfu_*_max_achievable = (FLOPs / HBM bytes) / peak_flops_bandwidth_ratio

The last one is Neuron's verbatim and not capped: above 1 the memory would feed more than the peak, so the program is
compute-bound. MFU can exceed HFU: mfu_hlo counts what the model asks for (torch counts causal attention whole), HFU what the
device runs (it skips the blocks above the diagonal).

Peak and bandwidth come from the trace: the BF16 row of ``peaks`` (else the Tensor track's peak) and the core's
``peak_bytes_per_s``, which is what its HBM stack delivers. Its DMA engines may reach less; these keys are ours:

    dma_peak_bytes_per_s = min(peak_bytes_per_s, largest peak_bytes_per_s of its DMA queues), or the one that is known
    dma_bandwidth_share = dma_transfer_total_bytes / (dma_peak_bytes_per_s x total_time)
    roofline_compute_s = sum over datatypes of hardware FLOPs / peak of that datatype
    roofline_memory_s = HBM bytes / dma_peak_bytes_per_s; bytes copied within HBM pass the engines once and the stack
                        twice (``memory_roofline_s``)
    roofline_s = the larger of the two
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

ENGINES: Final = ("tensor", "vector", "scalar", "gpsimd", "sync")

DTYPE_ALIASES: Final = {
    "bfloat16": ("bf16",),
    "float16": ("fp16", "half"),
    "tfloat32": ("tf32", "fp32r"),
    "float32": ("fp32", "float"),
    "float8": ("fp8", "float8_e4m3", "float8_e5m2", "float8_e4m3fn", "float8_e4", "float8_e5"),
    "uint8": (),
    "mxfp8": (),
    "mxfp4": (),
}
DOCUMENTED_MULTIPLIERS: Final = {
    "bfloat16": 1.0,
    "float16": 1.0,
    "tfloat32": 1.0,
    "float32": 4.0,
    "float8": 0.5,
    "uint8": 0.5,
    "mxfp8": 0.25,
    "mxfp4": 0.25,
}
"""BF16-equivalents of Neuron Explorer's adjusted_hardware_flops, for traces without a peaks table (FP8: Trn2 and Trn3)."""
FP8_MULTIPLIER_V2: Final = 1.0
"""The same for FP8 on NeuronCore-v2 (Trn1, Inf2)."""

IS_DMA: Final = (pl.col("kind") == "dma_queue") | pl.col("category").is_in(["dma", "memory"])
IS_COLLECTIVE: Final = (pl.col("kind") == "collective_stream") | (
    pl.col("category") == "collective"
)
_FLOPS: Final = (
    "hardware_flops",
    "transpose_flops",
    "adjusted_hardware_flops",
    "adjusted_transpose_flops",
)
_TRAFFIC: Final = ("hbm_read_bytes", "hbm_write_bytes")
IS_MATMUL_ENGINE: Final = (pl.col("kind") != "engine") | (pl.col("resource") == "Tensor")
"""FLOPs of the other engines are not matmul FLOPs and have no part in HFU and MFU."""


def dtype_multipliers(trace: Trace) -> dict[str, float]:
    """BF16-equivalent FLOPs of one FLOP of each datatype (lower-case name or alias).

    peak(BF16) / peak(datatype) of the dense rows of ``peaks``; Neuron Explorer's documented table where it has none.
    """
    canonical = dict(DOCUMENTED_MULTIPLIERS)
    core = str((trace.system.get("core") or {}).get("name", ""))
    if core.endswith("v2"):
        canonical["float8"] = FP8_MULTIPLIER_V2
    peaks = tensor_peaks(trace)
    if "bfloat16" in peaks:
        canonical |= {dtype: peaks["bfloat16"] / peak for dtype, peak in peaks.items() if peak > 0}
    return {
        alias: value
        for dtype, value in canonical.items()
        for alias in (dtype, *DTYPE_ALIASES.get(dtype, ()))
    }


def tensor_peaks(trace: Trace) -> dict[str, float]:
    """Dense peak FLOP/s of a Tensor track, or of a GPU, by datatype, under the names of DTYPE_ALIASES; {} without a peaks table."""
    names = {alias: dtype for dtype, aliases in DTYPE_ALIASES.items() for alias in aliases}
    is_tensor = (pl.col("track_kind") == "engine") & pl.col("track_name").is_in(["Tensor", ""])
    is_gpu = pl.col("track_kind").is_in(["chip", "stream"])
    rows = trace.peaks.filter((is_tensor | is_gpu) & (pl.col("sparsity") == "dense"))
    lower = rows["dtype"].cast(pl.String).str.to_lowercase().to_list()
    return {names.get(d, d): float(p) for d, p in zip(lower, rows["flops_per_s"], strict=True)}


def with_adjusted_flops(events: pl.LazyFrame, trace: Trace) -> pl.LazyFrame:
    """Add ``matmul_flops``, ``adjusted_flops`` (both clipped to the window by ``share``) and ``hbm_bytes``."""
    dtype = pl.col("dtype").cast(pl.String).str.to_lowercase()
    factor = dtype.replace_strict(dtype_multipliers(trace), default=1.0, return_dtype=pl.Float64)
    flops = pl.when(IS_MATMUL_ENGINE).then(pl.col("flops")).fill_null(0.0) * pl.col("share")
    payload = pl.when(IS_DMA).then(pl.col("bytes")).fill_null(0) * pl.col("share")
    reads = (pl.col("source_memory") == "hbm").fill_null(False)
    writes = (pl.col("target_memory") == "hbm").fill_null(False)
    return events.with_columns(
        matmul_flops=flops,
        adjusted_flops=flops * factor.fill_null(1.0),
        dma_bytes=payload,
        hbm_read=payload * reads,
        hbm_write=payload * writes,
        is_dma=IS_DMA.fill_null(False),
        is_collective=IS_COLLECTIVE.fill_null(False),
        is_transpose=pl.col("is_transpose").fill_null(False),
    )


def counted_units(
    sums: pl.DataFrame, scope: Scope, trace: Trace, measured: pl.DataFrame
) -> pl.DataFrame:
    """Counters of each unit in each window, before any formula.

    Args:
        sums: one row a window and unit: window, unit_id, total_ns, and the counters (times in seconds); null counts as 0.
        scope: whose units they are.
        trace: what has the peaks.
        measured: unit_id, has_flops, has_traffic.

    Returns:
        One row a window and unit: window, unit_id, replica_count, peak_flops, peak_bytes_per_s, dma_peak_bytes_per_s,
        total_time, total_active_time, FLOPs, bytes and counts under Neuron Explorer's names. FLOPs and HBM bytes are null where the
        trace does not have them.
    """
    keys = ["window", "unit_id"]
    in_seconds = sums.with_columns(pl.col("total_ns") / 1e9).rename({"total_ns": "total_time"})
    counted = in_seconds.with_columns(pl.exclude(keys).fill_null(0))
    return (
        counted.join(measured, on="unit_id", how="left")
        .with_columns(
            *(pl.when("has_flops").then(pl.col(n)).alias(n) for n in _FLOPS),
            *(pl.when("has_traffic").then(pl.col(n)).alias(n) for n in _TRAFFIC),
        )
        .drop("has_flops", "has_traffic")
        .join(unit_peaks(scope, trace), on="unit_id", how="left")
        .sort(keys)
    )


def known_of(found: pl.DataFrame, scope: Scope, trace: Trace) -> pl.DataFrame:
    """Whether a unit's FLOPs and HBM traffic are in the trace, so that a sum of nothing is 0 and not unknown.

    The emulator gives both. A profile has the FLOPs if any computing event has some. HBM traffic goes through the DMA queues of a
    unit with engines; what kernels on streams read and write is in no profile.

    Args:
        found: unit_id, has_flops, has_traffic: whether events have them.
        scope: whose units they are.
        trace: emulated or not.

    Returns:
        The same columns.
    """
    known = pl.lit(trace.is_simulation or "imported" not in trace.manifest)
    return (
        scope.units.select("unit_id", "has_streams")
        .join(found, on="unit_id", how="left")
        .select(
            "unit_id",
            has_flops=pl.when("has_streams")
            .then("has_flops")
            .otherwise(known | pl.col("has_flops")),
            has_traffic=~pl.col("has_streams") & (known | pl.col("has_traffic")),
        )
        .with_columns(pl.exclude("unit_id").fill_null(False))
    )


def unit_peaks(scope: Scope, trace: Trace) -> pl.DataFrame:
    """What each unit can do at most.

    Returns:
        unit_id, replica_count, peak_flops (BF16, dense), peak_bytes_per_s (its HBM stack), dma_peak_bytes_per_s (what its
        DMA engines reach of that).
    """
    peaks = scope.units.select(
        "unit_id", "replica_count", "peak_flops", "peak_bytes_per_s", "dma_peak_bytes_per_s"
    )
    bfloat16 = tensor_peaks(trace).get("bfloat16")
    if bfloat16 is None:
        return peaks
    own = pl.when(scope.units["has_streams"]).then("peak_flops")
    return peaks.with_columns(peak_flops=pl.coalesce(own, pl.lit(bfloat16)))


def model_flops(executions: pl.LazyFrame, scope: Scope, trace: Trace) -> pl.LazyFrame:
    """Each operation's model FLOPs once a step and rank, in the window that its step names (else where it starts).

    Cores that share a rank share its operations: each counts an equal part, one that repeats another too.

    Args:
        executions: window, unit_id, op_id, step of events with an operation, each at least once.
        scope: whose windows they are.
        trace: what has the operations.

    Returns:
        window, unit_id, model_flops.
    """
    flops = trace.ops.select("op_id", "model_flops").filter(pl.col("model_flops") > 0)
    owner = (
        scope.units.lazy()
        .join(_repeats_within_rank(trace), on=["unit_id", "rank"], how="left")
        .select(
            "unit_id",
            rank_of=pl.coalesce(pl.col("rank"), -1 - pl.col("unit_id").cast(pl.Int64)),
            cores=1 + pl.col("repeats").fill_null(0),
        )
    )
    steps = scope.windows.lazy().select("window", "unit_id", window_step="step")
    once = (
        executions.join(flops, on="op_id")
        .join(steps, on=["window", "unit_id"])
        .filter(
            pl.col("window_step").is_null()
            | pl.col("step").is_null()
            | (pl.col("window_step") == pl.col("step"))
        )
        .with_columns(
            pl.col("step").fill_null(pl.col("step").max().over("window", "unit_id", "op_id"))
        )
        .unique(["window", "unit_id", "op_id", "step"])
        .join(owner, on="unit_id")
    )
    sharers = pl.col("cores").sum().over("window", "rank_of", "op_id", "step")
    return (
        once.with_columns(part=pl.col("model_flops") / sharers)
        .group_by("window", "unit_id")
        .agg(pl.col("part").sum().alias("model_flops"))
    )


def _repeats_within_rank(trace: Trace) -> pl.LazyFrame:
    """How many other cores of its own rank each core stands for: unit_id, rank, repeats."""
    cores = trace.tracks.lazy().filter(pl.col("kind").cast(pl.String) == "core")
    return (
        cores.filter(pl.col("replica_of").is_not_null())
        .group_by(unit_id="replica_of", rank="rank")
        .agg(repeats=pl.len().cast(pl.Int64))
    )


def combine_units(counters: pl.DataFrame) -> pl.DataFrame:
    """All units of a window as one: times are means over cores, everything else sums; replicas weigh.

    Returns:
        One row a window, the columns of ``counted_units`` without unit_id; replica_count is the number of cores.
    """
    weight = pl.col("replica_count")
    is_time = [n for n in counters.columns if n.endswith(("_time", "_time_s"))]
    is_sum = [
        n for n in counters.columns if n not in (*is_time, "window", "unit_id", "replica_count")
    ]
    return (
        counters.group_by("window")
        .agg(
            *((pl.col(n) * weight).sum() / weight.sum() for n in is_time),
            *(
                pl.when(pl.col(n).null_count() == 0).then((pl.col(n) * weight).sum()).alias(n)
                for n in is_sum
            ),
            weight.sum(),
        )
        .sort("window")
    )


def derive(counters: pl.DataFrame, base_clock_ghz: float | None = None) -> pl.DataFrame:
    """Add the metrics that follow from counters by formula (see the module's docstring for their source).

    Args:
        counters: total_time, total_active_time, model_flops, hardware_flops, transpose_flops,
            adjusted_hardware_flops, adjusted_transpose_flops, hbm_read_bytes, hbm_write_bytes, peak_flops,
            peak_bytes_per_s, dma_peak_bytes_per_s, and the dma_* and cc_* counters of ``counted_units``.
        base_clock_ghz: the core's base clock, for cycle counts.

    Returns:
        The frame with the metrics; null where a peak, the bandwidth, the clock or a divisor is missing.
    """
    peak_s = pl.col("peak_flops") * pl.col("total_time")
    hbm = pl.col("hbm_read_bytes") + pl.col("hbm_write_bytes")
    useful = pl.col("hardware_flops") - pl.col("transpose_flops")
    adjusted = pl.col("adjusted_hardware_flops") - pl.col("adjusted_transpose_flops")
    model = pl.when(pl.col("model_flops") > 0).then(pl.col("model_flops"))
    frame = counters.with_columns(
        total_active_time_percent=ratio(pl.col("total_active_time"), pl.col("total_time")),
        hfu_estimated_percent=ratio(pl.col("adjusted_hardware_flops"), peak_s),
        mfu_hlo_estimated_percent=ratio(model, peak_s),
        mfu_inst_estimated_percent=ratio(adjusted, peak_s),
        mbu_estimated_percent=ratio(hbm, pl.col("peak_bytes_per_s") * pl.col("total_time")),
        mm_arithmetic_intensity=ratio(useful, hbm),
        peak_flops_bandwidth_ratio=ratio(pl.col("peak_flops"), pl.col("peak_bytes_per_s")),
        hbm_bytes_per_s=ratio(hbm, pl.col("total_time")),
        dma_active_time_percent=ratio(pl.col("dma_active_time"), pl.col("total_time")),
        dma_bandwidth_share=ratio(
            pl.col("dma_transfer_total_bytes"),
            pl.col("dma_peak_bytes_per_s") * pl.col("total_time"),
        ),
        dma_transfer_average_bytes=ratio(
            pl.col("dma_transfer_total_bytes"), pl.col("dma_transfer_count")
        ),
        cc_op_active_time_percent=ratio(pl.col("cc_op_active_time"), pl.col("total_time")),
        neuroncore_cycle_count=pl.col("total_time") * pl.lit(base_clock_ghz, pl.Float64) * 1e9,
        roofline_compute_s=ratio(pl.col("adjusted_hardware_flops"), pl.col("peak_flops")),
        roofline_memory_s=memory_roofline_s(hbm, pl.col("dma_transfer_total_bytes")),
    )
    ridge = pl.col("peak_flops_bandwidth_ratio")
    return frame.with_columns(
        mfu_estimated_percent=pl.coalesce(
            "mfu_hlo_estimated_percent", "mfu_inst_estimated_percent"
        ),
        mfu_hlo_max_achievable_estimated_percent=ratio(ratio(model, hbm), ridge),
        mfu_inst_max_achievable_estimated_percent=ratio(pl.col("mm_arithmetic_intensity"), ridge),
        roofline_s=pl.max_horizontal("roofline_compute_s", "roofline_memory_s"),
    ).with_columns(
        mfu_max_achievable_estimated_percent=pl.coalesce(
            "mfu_hlo_max_achievable_estimated_percent", "mfu_inst_max_achievable_estimated_percent"
        )
    )


def engine_metrics(engines: pl.DataFrame) -> dict[tuple[int, int], dict[str, float | int | None]]:
    """``{engine}_engine_*`` metrics from ``engine_utilization``.

    Returns:
        By (window, unit_id): instruction_time, active_time (s), active_time_percent, instruction_count of each engine.
    """
    named = engines.with_columns(key=pl.col("resource").str.to_lowercase()).filter(
        pl.col("key").is_in(ENGINES)
    )
    found: dict[tuple[int, int], dict[str, float | int | None]] = {}
    for row in named.iter_rows(named=True):
        found.setdefault((row["window"], row["unit_id"]), {}).update(_engine_entries(row))
    return found


def _engine_entries(row: Mapping[str, float | int | None]) -> dict[str, float | int | None]:
    prefix = f"{row['key']}_engine"
    return {
        f"{prefix}_instruction_time": (row["instruction_ns"] or 0) / 1e9,
        f"{prefix}_active_time": (row["active_ns"] or 0) / 1e9,
        f"{prefix}_active_time_percent": row["active_percent"],
        f"{prefix}_instruction_count": row["instruction_count"],
    }


def memory_roofline_s(hbm_bytes: pl.Expr, dma_bytes: pl.Expr) -> pl.Expr:
    """Seconds that HBM traffic takes at least, from columns peak_bytes_per_s and dma_peak_bytes_per_s.

    Args:
        hbm_bytes: read and written: a copy within HBM counts twice.
        dma_bytes: payload of all DMAs, each once.
    """
    through_engines = ratio(pl.min_horizontal(hbm_bytes, dma_bytes), pl.col("dma_peak_bytes_per_s"))
    return pl.max_horizontal(through_engines, ratio(hbm_bytes, pl.col("peak_bytes_per_s")))


def ratio(numerator: pl.Expr, denominator: pl.Expr) -> pl.Expr:
    """Null instead of a division by zero."""
    return pl.when(denominator > 0).then(numerator / denominator)
