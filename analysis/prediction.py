"""How far is a prediction from what was measured? Two runs of one workload side by side: steps, where they go, operators, collectives.

Rows are matched by the most that both sides say, and what is left by less: operators by name, layer and shapes; by name and shapes; by name. Collectives by
kind and size; by kind. Names are compared without namespace, case and the underscore of in-place operators. Times are means over units (replicas weigh),
of one step.

    difference = predicted - measured
    error = difference / measured
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from trnprof.analysis.breakdown import PARTS, mean_breakdown
from trnprof.analysis.collective_calls import collective_calls, collective_parts
from trnprof.analysis.focus import steps_only
from trnprof.analysis.intervals import covered_ns
from trnprof.analysis.metrics import IS_COLLECTIVE, ratio
from trnprof.analysis.operators import operator_labels
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

OPERATOR_KEYS: Final = (("name", "layer", "shapes"), ("name", "shapes"), ("name",))
COLLECTIVE_KEYS: Final = (("collective", "size_bytes"), ("collective",))
_SIDES: Final = ("predicted", "measured")


@dataclass(frozen=True)
class Side:
    """One of two runs, cut to the steps that the other has too.

    Attributes:
        trace: of it.
        whole: all of its device.
        scope: with windows of matched steps only, or the one of everything.
        steps: their numbers in order; None where everything is one.
    """

    trace: Trace
    whole: Scope
    scope: Scope
    steps: tuple[int, ...] | None


def matched_sides(
    traces: tuple[Trace, Trace], scopes: tuple[Scope, Scope]
) -> tuple[Side, Side]:  # fmt: skip
    """Match steps: those of the same number, else one after the other; everything against everything where a side has none."""
    numbers = [s.step_windows()["step"].unique().sort().to_list() for s in scopes]
    common = sorted(set(numbers[0]) & set(numbers[1]))
    count = min(len(found) for found in numbers)
    chosen = [common or found[:count] for found in numbers]
    if not count:
        windows = [s.windows.filter(pl.col("step").is_null()) for s in scopes]
        first, second = (
            Side(t, s, replace(s, windows=w), None)
            for t, s, w in zip(traces, scopes, windows, strict=True)
        )
        return first, second
    first, second = (_cut(t, s, steps) for t, s, steps in zip(traces, scopes, chosen, strict=True))
    return first, second


def _cut(trace: Trace, scope: Scope, steps: Sequence[int]) -> Side:
    chosen = steps_only(scope)
    windows = chosen.windows.filter(pl.col("step").is_in(list(steps)))
    return Side(trace, scope, replace(chosen, windows=windows), tuple(steps))


def steps_side_by_side(predicted: Side, measured: Side) -> pl.DataFrame:
    """Every matched step.

    Returns:
        predicted_step, measured_step, predicted_ns, measured_ns, difference_ns, error; in order.
    """
    columns = []
    for side, name in zip((predicted, measured), _SIDES, strict=True):
        rows = mean_breakdown(side.scope).sort("step", "window")
        columns.append(rows.select(pl.col("step").alias(f"{name}_step"), pl.col("total_ns").alias(f"{name}_ns")))  # fmt: skip
    return with_errors(pl.concat(columns, how="horizontal"))


def parts_side_by_side(predicted: Side, measured: Side) -> pl.DataFrame:
    """Where a mean step goes: part, predicted_ns, measured_ns, difference_ns, error; the parts sum to the step."""
    means = [mean_breakdown(side.scope).select(pl.col(PARTS).mean()) for side in (predicted, measured)]  # fmt: skip
    first, second = (frame.unpivot(variable_name="part", value_name="ns") for frame in means)
    joined = first.rename({"ns": "predicted_ns"}).join(
        second.rename({"ns": "measured_ns"}), on="part", maintain_order="left"
    )
    return with_errors(joined)


def operators_side_by_side(predicted: Side, measured: Side) -> pl.DataFrame:
    """Operators but collectives, time in which any event of one is active (union).

    Returns:
        Largest difference first: name, layer, shapes (null where rows were matched without), matched_by (null: on one side only), predicted_ns,
        measured_ns, predicted_count, measured_count (executions a step), difference_ns, error. What only one side has is 0 on the other.
    """
    return _ranked(_operators(predicted), _operators(measured), OPERATOR_KEYS)


def collectives_side_by_side(predicted: Side, measured: Side) -> pl.DataFrame:
    """Collectives, from the last start to the last end.

    Returns:
        As ``operators_side_by_side``, with collective and size_bytes.
    """
    return _ranked(_collectives(predicted), _collectives(measured), COLLECTIVE_KEYS)


def with_errors(rows: pl.DataFrame) -> pl.DataFrame:
    """Add difference_ns and error to predicted_ns and measured_ns; error is null where nothing was measured."""
    difference = pl.col("predicted_ns") - pl.col("measured_ns")
    return rows.with_columns(difference_ns=difference, error=ratio(difference, pl.col("measured_ns")))  # fmt: skip


def _operators(side: Side) -> pl.DataFrame:
    """name, layer, shapes, ns and count of a mean step."""
    labels, numbers = operator_labels(side.trace.ops)
    plain = pl.coalesce("label", pl.col("name").cast(pl.String)).str.to_lowercase()
    known = (
        numbers.join(labels.lazy().rename({"name": "label"}), on="operator")
        .join(side.trace.ops.select("op_id", "input_shapes"), on="op_id", how="left")
        .select("op_id", "label", layer=pl.col("module"), shapes="input_shapes")
    )
    used = side.scope.events.select("op_id").unique()
    known = known.join(used, on="op_id", how="semi").collect(engine="streaming").lazy()
    keys = ["name", "layer", "shapes"]
    inside = (
        side.scope.inside()
        .filter(~IS_COLLECTIVE)
        .join(known, on="op_id", how="left")
        .with_columns(
            name=plain.str.replace(r"^\w+::", "").str.replace(r"(\w)_$", "${1}"),
            layer=pl.when(pl.col("layer") != "").then("layer"),
        )
    )
    times = covered_ns(inside, [*keys, "unit_id", "window"], "ns").collect(engine="streaming")
    is_event = pl.col("op_id").is_null().all()
    executions = (
        inside.group_by(*keys, "unit_id", "window")
        .agg(count=pl.when(is_event).then(pl.col("starts_inside").sum()).otherwise(pl.col("op_id").n_unique()))
        .collect(engine="streaming")
    )  # fmt: skip
    rows = times.join(executions, on=[*keys, "unit_id", "window"], nulls_equal=True)
    units = side.scope.units.select("unit_id", "replica_count")
    total = units["replica_count"].sum() * (len(side.steps) if side.steps else 1)
    weight = pl.col("replica_count")
    return (
        rows.join(units, on="unit_id")
        .group_by(keys)
        .agg((pl.col(n) * weight).sum() / total for n in ("ns", "count"))
    )


def _collectives(side: Side) -> pl.DataFrame:
    """collective, size_bytes, ns and count of a mean step."""
    parts = collective_parts(side.trace, side.whole)
    calls = collective_calls(side.trace, parts)
    if side.steps is not None:
        calls = calls.filter(pl.col("step").is_in(list(side.steps)))
    steps = len(side.steps) if side.steps else 1
    return calls.group_by(
        pl.col("collective").cast(pl.String), pl.col("size_bytes").cast(pl.Int64)
    ).agg(ns=pl.col("time_ns").sum() / steps, count=pl.len() / steps)


def _ranked(
    predicted: pl.DataFrame, measured: pl.DataFrame, keys: Sequence[tuple[str, ...]]
) -> pl.DataFrame:
    """Match two sides by the first keys, what is left by the next, and so on; rank by the size of the difference."""
    left = [predicted, measured]
    found = []
    columns = list(keys[0])
    for level in keys:
        sums = [_summed(frame, level, name) for frame, name in zip(left, _SIDES, strict=True)]
        both = sums[0].join(sums[1], on=list(level))
        found.append(both.with_columns(matched_by=pl.lit(", ".join(level))))
        left = [frame.join(both, on=list(level), how="anti") for frame in left]
    for frame, name in zip(left, _SIDES, strict=True):
        found.append(_summed(frame, keys[0], name, known=False))
    rows = pl.concat(found, how="diagonal_relaxed")
    figures = [f"{side}_{what}" for what in ("ns", "count") for side in _SIDES]
    filled = rows.with_columns(pl.col(figures).cast(pl.Float64).fill_null(0.0))
    order = [*columns, "matched_by", *figures]
    return with_errors(filled.select(order)).sort(
        pl.col("difference_ns").abs(), *columns, descending=[True, *(False for _ in columns)]
    )


def _summed(
    frame: pl.DataFrame, keys: Sequence[str], side: str, *, known: bool = True
) -> pl.DataFrame:
    """One row a value of keys that says something (all of them, if known)."""
    rows = frame.drop_nulls(list(keys)) if known else frame
    return rows.group_by(list(keys)).agg(pl.col(n).sum().alias(f"{side}_{n}") for n in ("ns", "count"))  # fmt: skip
