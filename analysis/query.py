"""What does SQL over a trace see? Its tables, lazily, and views that join them; polars answers.

Views (times in ns, means over nothing: a row a unit):

    engine_busy      step, label, unit, rank, engine, active_ns, summed_ns, total_ns, active_share, events
    step_breakdown   step, label, unit, rank, total_ns, compute_ns, exposed_collective_ns, exposed_dma_ns, host_ns, idle_ns
    operators        the report's operators of each step: step, name, module, phase, count, time_ns, bound_by, roofline_share, …
    collectives      one row a collective event of a device (not of links): step, rank, track, name, start_ns, duration_ns, bytes, group, ranks, algorithm
    critical_path    the path of the median step: start_ns, end_ns, duration_ns, part, doing, name, rank
    named_events     events with track, kind, rank, operator, module, phase and source line beside them

``step`` is null in the rows that are of all steps together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import polars as pl

from trnprof.analysis.scope import Scope, device_scope
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.nearest import nearest
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import DEVICE_KINDS, TABLES

_IS_QUESTION: Final = re.compile(r"\s*\(*\s*(select|with|from|values)\b", re.IGNORECASE)


def run_query(trace: Trace, sql: str) -> pl.DataFrame:
    """Answer a SELECT; only the views that it names are computed.

    Args:
        trace: whose tables they are: ``schema.TABLES`` by name, and VIEWS.
        sql: in the dialect of polars.

    Raises:
        TrnprofError: the query cannot be understood, or names what is not there.
    """
    if not _IS_QUESTION.match(sql):
        raise TrnprofError(f"a query begins with SELECT or WITH: {sql.strip()[:40]!r} does not")
    words = set(re.findall(r"\w+", sql.lower()))
    frames = {name: _plain(getattr(trace, name).lazy()) for name in TABLES}
    named = [name for name in VIEWS if name in words]
    scope = device_scope(trace) if set(named) & set(_OF_SCOPE) else None
    for name in named:
        frames[name] = _plain(VIEWS[name](trace, scope))
    context = pl.SQLContext(frames)
    try:
        return context.execute(sql, eager=False).collect(engine="streaming")
    except pl.exceptions.PolarsError as error:
        raise TrnprofError(f"cannot answer the query: {_told(str(error), frames)}") from None


def _plain(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Categories as text, so that they compare with strings."""
    return frame.with_columns(pl.selectors.by_dtype(pl.Categorical, pl.Enum).cast(pl.String))


def _told(error: str, frames: dict[str, pl.LazyFrame]) -> str:
    """The first line of an error, with what could have been meant."""
    first = (error.strip().splitlines() or ["unknown"])[0]
    missing = re.search(r"relation '(\w+)' was not found", error)
    if missing is not None:
        known = sorted({*TABLES, *VIEWS})
        near = nearest(missing[1], known, 0.5)
        meant = f"; did you mean {near}?" if near else ""
        return f"no table {missing[1]!r}{meant} (there are {', '.join(known)})"
    column = re.search(r"unable to find column \"([^\"]+)\"", error)
    if column is not None:
        names = {n for frame in frames.values() for n in frame.collect_schema().names()}
        near = nearest(column[1], names, 0.5)
        return f"no column {column[1]!r}" + (f"; did you mean {near}?" if near else "")
    return first


def _empty(**columns: pl.DataType | type[pl.DataType]) -> pl.LazyFrame:
    return pl.LazyFrame(schema=columns)


def _places(scope: Scope) -> pl.LazyFrame:
    """Windows by number, and units by name."""
    return scope.units.lazy().select("unit_id", "rank", "replica_count", unit="name")


def _windows(scope: Scope) -> pl.LazyFrame:
    return scope.windows.lazy().select("window", "step", "label").unique("window")


def _engine_busy(trace: Trace, scope: Scope | None) -> pl.LazyFrame:
    from trnprof.analysis.utilization import engine_utilization

    if scope is None:
        text, number = pl.String, pl.Int64
        return _empty(step=pl.Int32, label=text, unit=text, rank=pl.Int32, replica_count=pl.Int32, engine=text, active_ns=number,
                      summed_ns=number, total_ns=number, active_share=pl.Float64, events=number)  # fmt: skip
    return (
        engine_utilization(scope)
        .lazy()
        .join(_windows(scope), on="window")
        .join(_places(scope), on="unit_id")
        .select(
            *("step", "label", "unit", "rank", "replica_count"),
            "active_ns",
            "total_ns",
            engine="resource",
            summed_ns="instruction_ns",
            active_share="active_percent",
            events="instruction_count",
        )
    )


def _step_breakdown(trace: Trace, scope: Scope | None) -> pl.LazyFrame:
    from trnprof.analysis.breakdown import PARTS, step_breakdown

    parts = [f"{p}_ns" for p in PARTS]
    if scope is None:
        return _empty(step=pl.Int32, label=pl.String, unit=pl.String, rank=pl.Int32, replica_count=pl.Int32, total_ns=pl.Int64,
                      **dict.fromkeys(parts, pl.Int64))  # fmt: skip
    return (
        step_breakdown(scope)
        .lazy()
        .rename(dict(zip(PARTS, parts, strict=True)))
        .join(_windows(scope), on="window")
        .join(_places(scope), on="unit_id")
        .select("step", "label", "unit", "rank", "replica_count", "total_ns", *parts)
    )


def _operators(trace: Trace, scope: Scope | None) -> pl.LazyFrame:
    from trnprof.analysis.operators import top_operators

    if scope is None:
        return _empty(step=pl.Int32, name=pl.String, time_ns=pl.Float64)
    rows = top_operators(scope, trace, top=1_000_000).lazy().join(_windows(scope), on="window")
    return rows.select("step", pl.exclude("step", "window", "operator", "event_name", "label"))


def _critical_path(trace: Trace, scope: Scope | None) -> pl.LazyFrame:
    from trnprof.analysis.critical_path import critical_path, doing
    from trnprof.analysis.step_graph import step_or_median_graph

    columns = ("start_ns", "end_ns", "duration_ns", "part", "doing", "name", "category", "rank", "op_id")  # fmt: skip
    if scope is None:
        return _empty(start_ns=pl.Int64, end_ns=pl.Int64, duration_ns=pl.Int64, doing=pl.String)
    graph = step_or_median_graph(trace, scope, None)
    path = critical_path(graph).with_columns(doing=doing())
    return path.lazy().select(columns, wait_reason="wait_reason")


def _collectives(trace: Trace, scope: Scope | None) -> pl.LazyFrame:
    groups = trace.groups.lazy().select("group_id", group="name", ranks=pl.col("ranks").list.len())
    ops = trace.ops.select("op_id", "group_id", "group_seq", "algorithm", "in_bytes", "out_bytes")
    return (
        _named_events(trace, scope)
        .filter((pl.col("category") == "collective") & pl.col("kind").is_in(DEVICE_KINDS))
        .join(ops, on="op_id", how="left")
        .join(groups, on="group_id", how="left")
        .drop("group_id", "flops", "dtype")
    )


def _named_events(trace: Trace, scope: Scope | None) -> pl.LazyFrame:
    tracks = trace.tracks.lazy().unique("track_id", keep="first")
    where = tracks.select("track_id", "kind", "rank", "chip", "core", track="name")
    what = trace.ops.select("op_id", "phase", operator="name", module="module_path",
                            source=pl.format("{}:{}", "source_file", "source_line"))  # fmt: skip
    columns = ("event_id", "step", "name", "category", "start_ns", "duration_ns", "bytes", "flops", "dtype", "wait_reason", "op_id")  # fmt: skip
    return (
        trace.events.select("track_id", *columns)
        .join(where, on="track_id", how="left")
        .join(what, on="op_id", how="left")
        .drop("track_id")
    )


VIEWS: Final[dict[str, Callable[[Trace, Scope | None], pl.LazyFrame]]] = {
    "engine_busy": _engine_busy,
    "step_breakdown": _step_breakdown,
    "operators": _operators,
    "collectives": _collectives,
    "critical_path": _critical_path,
    "named_events": _named_events,
}
"""By name, what makes each."""
_OF_SCOPE: Final = ("engine_busy", "step_breakdown", "operators", "critical_path")
