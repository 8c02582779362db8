"""Which operators take the time, and what bounds each of them?

An operator is a (name, module path, phase): paths that differ only in numbers are one (``layers.*.mlp``); one that
stands alone keeps its number. Events that implement no operation count under their own name.

*Attributed time* of an operator: the time in which at least one of its events is active on an engine, a DMA queue or a
collective stream of the core (union). Operators run side by side, so that shares may sum to more than 1.

What bounds it: each resource's active time as a share of the attributed time is compared; DMA triggers (category sync)
are a resource of their own, *issue*.

    latency-bound         no resource is active for BUSY_SHARE of the attributed time: it waits on results
    DMA-issue-bound       issue is the busiest; or DMA is, and moves, while active, less than DISPATCH_SHARE of what the
                          core's DMA engines reach (without a known bandwidth: less than SMALL_DMA_BYTES a transfer)
    DMA-bandwidth-bound   DMA is the busiest otherwise
    tensor-, vector-, scalar-, gpsimd-, collective-bound   that one is the busiest
    copy-bound            copies on a stream are
    null                  kernels on a stream are: what bounds them inside is not in the trace
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import polars as pl

from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.metrics import memory_roofline_s, ratio, unit_peaks, with_adjusted_flops
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

BUSY_SHARE: Final = 0.5
"""Ours: what is idle more than half of the time cannot be what bounds."""
DISPATCH_SHARE: Final = 0.5
"""Ours: under half of the bandwidth, more of each transfer's time goes to its fixed cost than to its bytes."""
SMALL_DMA_BYTES: Final = int(limit("small_dma_bytes"))
"""Neuron Explorer's documented target for the average DMA size."""
TOP: Final = 20

KERNEL, COPY = "Kernel", "Copy"
"""What works on a stream, beside collectives."""
LATENCY, ISSUE, BANDWIDTH = "latency-bound", "DMA-issue-bound", "DMA-bandwidth-bound"
_KEYS: Final = ["window", "unit_id", "operator"]

Labels = tuple[pl.DataFrame, pl.LazyFrame]
"""What operators are called (operator, name, …), and the operator of each op_id."""


def top_operators(
    scope: Scope,
    trace: Trace,
    top: int = TOP,
    labels_of: Callable[[pl.LazyFrame], Labels] | None = None,
) -> pl.DataFrame:
    """The operators that take most of each window, means over its cores (replicas weigh).

    Args:
        scope: events and windows.
        trace: they are of.
        top: how many a window.
        labels_of: what makes operations one operator, from the table of them; None: ``operator_labels``.

    Returns:
        At most ``top`` rows a window, longest first: window, name, module, phase, count (operations, or events where there
        are none), event_count, time_ns (attributed), share_of_active, adjusted_flops, hbm_bytes, dma_bytes, dma_count,
        bound_by, bound_share (active share of what bounds it), roofline_ns (larger of FLOPs/peak and ``memory_roofline_s``,
        null if neither is known), roofline_share, achieved_flops_per_s, achieved_bytes_per_s (both over attributed time).
    """
    labels, numbers = (labels_of or operator_labels)(trace.ops)
    used = scope.events.select("op_id").unique()
    numbers = numbers.join(used, on="op_id", how="semi").collect(engine="streaming").lazy()
    inside = with_operator(scope, trace, numbers)
    resources = _active_by_resource(inside)
    is_event = pl.col("op_id").is_null().all()
    sums = inside.group_by(_KEYS).agg(
        pl.col("name").first().cast(pl.String).alias("event_name"),
        pl.when(is_event)
        .then(pl.col("starts_inside").sum())
        .otherwise(executions())
        .alias("count"),
        *event_sums(),
    )
    wanted = (
        sums,
        covered_ns(inside, _KEYS, "time_ns"),
        covered_ns(inside, ["window", "unit_id"], "active_ns"),
        resources,
    )
    sums_, times, active, busy = (frame.collect() for frame in wanted)  # at once takes more memory
    rows = sums_.join(times, on=_KEYS, how="left").with_columns(pl.col("time_ns").fill_null(0))
    return ranked(rows, busy, active, labels, scope, trace, top)


def executions() -> pl.Expr:
    """Aggregate of events in a window: how often their operations ran."""
    in_steps = pl.struct("op_id", "step").filter(pl.col("step").is_not_null()).n_unique()
    return pl.max_horizontal(pl.col("op_id").n_unique(), in_steps)


def event_sums() -> list[pl.Expr]:
    """Aggregates of events of ``with_adjusted_flops``, as ``over_units`` takes them: event_count, adjusted_flops, hbm_bytes, dma_bytes, dma_count."""
    return [
        pl.col("starts_inside").sum().alias("event_count"),
        pl.col("adjusted_flops").sum(),
        (pl.col("hbm_read") + pl.col("hbm_write")).sum().alias("hbm_bytes"),
        pl.col("dma_bytes").sum(),
        (pl.col("is_dma") & pl.col("starts_inside")).sum().alias("dma_count"),
    ]


def ranked(
    rows: pl.DataFrame, busy: pl.DataFrame, active: pl.DataFrame, labels: pl.DataFrame, scope: Scope, trace: Trace, top: int = TOP
) -> pl.DataFrame:  # fmt: skip
    """What ``top_operators`` returns, from sums by unit.

    Args:
        rows: window, unit_id, operator, event_name and the sums: count, event_count, adjusted_flops, hbm_bytes, dma_bytes, dma_count, time_ns.
        busy: window, unit_id, operator, worker, busy_ns.
        active: window, unit_id, active_ns.
        labels: of ``operator_labels``.
        scope: whose units they are.
        trace: what has the peaks.
        top: rows a window.
    """
    combined = over_units(rows, busy, active, scope, trace)
    named = combined.join(labels, on="operator", how="left").with_columns(
        pl.coalesce("name", "event_name").alias("name")
    )
    chosen = named.sort(
        "window", "time_ns", "name", "operator", descending=[False, True, False, False]
    )
    return classify(chosen.group_by("window", maintain_order=True).head(top))


def placed_ops(ops: pl.LazyFrame) -> pl.LazyFrame:
    """Where operations stand in the module tree: op_id, name, path (their own, else their parent's; null: unknown), phase."""
    parents = ops.select(parent_id="op_id", parent_path="module_path")
    parents = parents.filter(pl.col("parent_path").is_not_null()).unique("parent_id")
    return ops.join(parents, on="parent_id", how="left").select(
        "op_id",
        "name",
        path=pl.coalesce("module_path", "parent_path"),
        phase=pl.col("phase").cast(pl.String),
    )


def path_pattern(path: pl.Expr) -> pl.Expr:
    """A module path with ``*`` for its numbers: ``layers.*.mlp``, ``BertLayer_*``."""
    return path.str.replace_all(r"(^|[._])\d+\b", "${1}*")


def operator_labels(ops: pl.LazyFrame) -> Labels:
    """Group operations into operators.

    Args:
        ops: the trace's table.

    Returns:
        Labels (operator int64, name, module, phase) and the operator of each op_id (op_id, operator).
    """
    keys = ["name", "path", "phase"]
    placed = placed_ops(ops).with_columns(pl.col("path").fill_null(""))
    groups = (
        placed.group_by(keys)
        .agg()
        .with_columns(pattern=path_pattern(pl.col("path")))
        .group_by("name", "pattern", "phase")
        .agg("path")
        .sort("name", "pattern", "phase")
        .with_row_index("operator")
        .with_columns(pl.col("operator").cast(pl.Int64))
        .collect(engine="streaming")
    )
    paths = pl.col("path").list
    module = pl.when(paths.len() > 1).then(pl.col("pattern")).otherwise(paths.first())
    labels = groups.select("operator", "name", module=module, phase="phase")
    members = groups.lazy().select("operator", "name", "path", "phase").explode("path")
    numbers = placed.join(members, on=keys, nulls_equal=True).select("op_id", "operator")
    return labels, numbers.unique("op_id")


def classify(rows: pl.DataFrame) -> pl.DataFrame:
    """Say what bounds each row, by the rules of the module's docstring.

    Args:
        rows: time_ns, busiest (resource), busiest_ns, dma_bytes, dma_count, dma_peak_bytes_per_s.

    Returns:
        The rows with bound_by and bound_share in place of busiest and busiest_ns.
    """
    share = ratio(pl.col("busiest_ns"), pl.col("time_ns"))
    moved = ratio(pl.col("dma_bytes") * 1e9, pl.col("busiest_ns"))
    of_bandwidth = ratio(moved, pl.col("dma_peak_bytes_per_s"))
    size = ratio(pl.col("dma_bytes"), pl.col("dma_count"))
    is_dispatch = pl.coalesce(of_bandwidth < DISPATCH_SHARE, size < SMALL_DMA_BYTES, pl.lit(False))
    busiest = pl.col("busiest")
    bound = (
        pl.when(share.fill_null(0.0) < BUSY_SHARE)
        .then(pl.lit(LATENCY))
        .when((busiest == "Issue") | (busiest == "DMA") & is_dispatch)
        .then(pl.lit(ISSUE))
        .when(busiest == "DMA")
        .then(pl.lit(BANDWIDTH))
        .when(busiest == KERNEL)
        .then(pl.lit(None, pl.String))
        .otherwise(busiest.str.to_lowercase() + "-bound")
    )
    return rows.with_columns(bound_by=bound, bound_share=share).drop("busiest", "busiest_ns")


def with_operator(scope: Scope, trace: Trace, numbers: pl.LazyFrame) -> pl.LazyFrame:
    """Events in windows with their operator and adjusted FLOPs; events without operation get numbers below 0, one a name."""
    own = -1 - pl.col("name").cast(pl.Categorical).to_physical().cast(pl.Int64)
    inside = with_adjusted_flops(scope.inside(), trace)
    return inside.join(numbers, on="op_id", how="left").with_columns(
        operator=pl.coalesce("operator", own)
    )


def worker() -> pl.Expr:
    """What an event keeps busy: an engine's name, DMA, Collective, Issue, KERNEL or COPY; of ``with_adjusted_flops``."""
    return (
        pl.when(pl.col("category") == "sync")
        .then(pl.lit("Issue"))
        .when("is_collective")
        .then(pl.lit("Collective"))
        .when("is_dma")
        .then(pl.when(pl.col("kind") == "stream").then(pl.lit(COPY)).otherwise(pl.lit("DMA")))
        .when(pl.col("kind") == "stream")
        .then(pl.lit(KERNEL))
        .otherwise("resource")
    )


def _active_by_resource(inside: pl.LazyFrame) -> pl.LazyFrame:
    return covered_ns(inside.with_columns(worker=worker()), [*_KEYS, "worker"], "busy_ns")


def over_units(
    rows: pl.DataFrame,
    busy: pl.DataFrame,
    active: pl.DataFrame,
    scope: Scope,
    trace: Trace,
    more: Sequence[str] = (),
) -> pl.DataFrame:
    """Means over the cores of each window; a core where an operator does not run counts as 0.

    Args:
        rows: by window, unit_id and operator: event_name, time_ns, adjusted_flops, hbm_bytes, dma_bytes, count, event_count, dma_count.
        busy: by window, unit_id, operator and worker (``worker``): busy_ns.
        active: by window and unit_id: active_ns.
        scope: the units.
        trace: they are of.
        more: further columns of ``rows`` to take the mean of.

    Returns:
        One row a window and operator, as ``classify`` takes it.
    """
    peaks = unit_peaks(scope, trace).join(
        scope.units.select("unit_id", "has_streams"), on="unit_id"
    )
    weight = pl.col("replica_count")
    totals = (
        scope.windows.join(peaks, on="unit_id")
        .join(active, on=["window", "unit_id"], how="left")
        .group_by("window")
        .agg(
            weight.sum().alias("total"),
            pl.col("dma_peak_bytes_per_s").mean(),
            (pl.col("active_ns") * weight).sum() / weight.sum(),
        )
    )
    # of kernels on streams only FLOPs can be known, and 0 means that they are not
    on_engines = ~pl.col("has_streams")
    has_flops = on_engines | (pl.col("adjusted_flops") > 0)
    compute_ns = pl.when(has_flops).then(pl.col("adjusted_flops") / pl.col("peak_flops") * 1e9)
    memory_ns = pl.when(on_engines).then(
        memory_roofline_s(pl.col("hbm_bytes"), pl.col("dma_bytes")) * 1e9
    )
    means = ["time_ns", "roofline_ns", "adjusted_flops", "hbm_bytes", "dma_bytes", *more]
    combined = (
        rows.join(peaks, on="unit_id")
        .with_columns(roofline_ns=pl.max_horizontal(compute_ns, memory_ns))
        .group_by("window", "operator")
        .agg(
            pl.col("event_name").first(),
            *((pl.col(n) * weight).sum().alias(n) for n in means),
            *(pl.col(n).sum() for n in ("count", "event_count", "dma_count")),
            pl.col("roofline_ns").null_count().alias("unknown"),
        )
        .join(totals, on="window")
        .with_columns(pl.col(n) / pl.col("total") for n in means)
        .with_columns(roofline_ns=pl.when(pl.col("unknown") == 0).then("roofline_ns"))
    )
    workers = (
        busy.join(peaks, on="unit_id")
        .group_by("window", "operator", "worker")
        .agg((pl.col("busy_ns") * weight).sum())
        .sort("busy_ns", "worker", descending=[True, False])
        .group_by("window", "operator", maintain_order=True)
        .agg(
            pl.col("worker").first().alias("busiest"), pl.col("busy_ns").first().alias("busiest_ns")
        )
    )
    return (
        combined.join(workers, on=["window", "operator"], how="left")
        .with_columns(pl.col("busiest_ns") / pl.col("total"))
        .with_columns(
            share_of_active=ratio(pl.col("time_ns"), pl.col("active_ns")),
            roofline_share=ratio(pl.col("roofline_ns"), pl.col("time_ns")),
            achieved_flops_per_s=ratio(pl.col("adjusted_flops") * 1e9, pl.col("time_ns")),
            achieved_bytes_per_s=ratio(pl.col("hbm_bytes") * 1e9, pl.col("time_ns")),
        )
        .drop("active_ns", "total", "unknown")
    )
