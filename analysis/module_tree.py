"""What does each module of the model take, with everything below it and by itself? Time of the device by the tree of modules.

*Inclusive* time of a module: the time in which an event of it, or of a module below it, is active on a unit (union). Its *self* time is
the rest of that when the time in which a module below it is active is taken away. Modules run side by side, so that the inclusive times
of siblings may sum to more than their parent's. Modules deeper than MAX_DEPTH count as the one above them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from trnprof.analysis.intervals import covered_ns, union
from trnprof.analysis.metrics import with_adjusted_flops
from trnprof.analysis.operators import (
    classify,
    event_sums,
    executions,
    over_units,
    path_pattern,
    placed_ops,
    worker,
)
from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace

MAX_DEPTH: Final = 24
_WHERE: Final = ["window", "unit_id"]
_SUMS: Final = ("count", "event_count", "dma_count", "adjusted_flops", "hbm_bytes", "dma_bytes")


@dataclass(frozen=True)
class ModuleTimes:
    """The events of modules, put together: what every tree of them is made from.

    Attributes:
        scope: what they were taken from.
        trace: what it is of.
        paths: module (ordinal), path.
        active: module, place, start_ns, end_ns: when each worker of a unit is active for a module itself.
        places: place (ordinal), window, unit_id, worker, where (ordinal of window and unit): numbers, as sorting by names takes far longer.
        sums: window, unit_id, module and the sums of its events.
        unit_active: window, unit_id, active_ns: of all events, those of no module too.
    """

    scope: Scope
    trace: Trace
    paths: pl.DataFrame
    active: pl.DataFrame
    places: pl.DataFrame
    sums: pl.DataFrame
    unit_active: pl.DataFrame


def module_times(scope: Scope, trace: Trace) -> ModuleTimes:
    """Gather what the modules' events do in each window."""
    used = scope.events.select("op_id").unique()
    placed = placed_ops(trace.ops).filter(pl.col("path").is_not_null()).unique("op_id")
    known = placed.join(used, on="op_id", how="semi").select("op_id", path=_cut(pl.col("path")))
    places = known.collect(engine="streaming")
    paths = places.select("path").unique().sort("path").with_row_index("module")
    numbers = places.join(paths, on="path").select("op_id", "module")
    inside = with_adjusted_flops(scope.inside(), trace)
    own = inside.join(numbers.lazy(), on="op_id").with_columns(worker=worker())
    places = (
        own.select(*_WHERE, "worker").unique().sort(*_WHERE, "worker").collect(engine="streaming")
    )
    where = pl.struct(_WHERE).rle_id().cast(pl.Int64)
    places = places.with_row_index("place").with_columns(
        pl.col("place").cast(pl.Int64), where=where
    )
    placed_own = own.join(places.lazy(), on=[*_WHERE, "worker"])
    sums = own.group_by(*_WHERE, "module").agg(executions().alias("count"), *event_sums())
    wanted = (
        union(placed_own, ["place", "module"]),
        sums,
        covered_ns(inside, _WHERE, "active_ns"),
    )
    active, found, unit_active = (frame.collect() for frame in wanted)
    return ModuleTimes(scope, trace, paths, active, places, found, unit_active)


def module_nodes(paths: pl.DataFrame, *, is_merged: bool) -> pl.DataFrame:
    """The tree that paths make.

    Args:
        paths: of ``ModuleTimes``.
        is_merged: whether modules whose paths differ only in numbers are one.

    Returns:
        One row a path and module on the way to it (itself included): module (ordinal of the path), operator (ordinal of the node), path (of the node; ""
        is the model), parent_path (null: none), depth, instances (modules that are this node).
    """
    shown = path_pattern(pl.col("path")) if is_merged else pl.col("path")
    parts = paths.with_columns(_own=_parts(pl.col("path")), _shown=_parts(shown)).with_columns(
        depth=pl.int_ranges(0, pl.col("_own").list.len() + 1, dtype=pl.Int64)
    )
    nodes = parts.explode("depth").with_columns(
        own=pl.col("_own").list.head("depth").list.join("."),
        path=pl.col("_shown").list.head("depth").list.join("."),
        parent_path=pl.when(pl.col("depth") > 0).then(
            pl.col("_shown").list.head(pl.col("depth") - 1).list.join(".")
        ),
    )
    instances = nodes.group_by("path", "depth").agg(
        instances=pl.col("own").n_unique(), first=pl.col("own").first()
    )
    numbered = instances.sort("depth", "path").with_row_index("operator")
    return (
        nodes.drop("_own", "_shown", "own")
        .join(numbered.with_columns(pl.col("operator").cast(pl.Int64)), on=["path", "depth"])
        .sort("module", "depth")
    )  # fmt: skip


def rolled_up(times: ModuleTimes, nodes: pl.DataFrame) -> pl.DataFrame:
    """Figures of every module of a tree, means over the units of each window (replicas weigh).

    Args:
        times: what the modules' events do.
        nodes: of ``module_nodes``.

    Returns:
        One row a window and node: window, path, parent_path, depth, instances, first (path of one of them), time_ns (inclusive), self_ns, and the figures of
        ``operators.top_operators``, all inclusive.
    """
    keys = [*_WHERE, "operator"]
    tree = nodes.select("operator", "path", "parent_path", "depth", "instances", "first").unique(
        "operator"
    )
    up = tree.select("operator", "parent_path", "depth").join(
        tree.select(
            parent="operator", parent_path="path", depth=pl.col("depth") + 1
        ),
        on=["parent_path", "depth"],
    ).select("operator", "parent")  # fmt: skip
    sums = times.sums.join(nodes.select("module", "operator"), on="module").group_by(keys)
    rows = sums.agg(pl.col(*_SUMS).sum(), event_name=pl.lit(None, pl.String))
    leaf = nodes.sort("depth").unique("module", keep="last").select("module", "operator", "depth")
    own = times.active.join(leaf, on="module").drop("module")
    inclusive: list[pl.DataFrame] = []
    below: list[pl.DataFrame] = []
    carried = own.clear().drop("depth")
    for depth in range(int(nodes["depth"].max() or 0), -1, -1):  # type: ignore[arg-type]
        here = own.filter(pl.col("depth") == depth).drop("depth")
        both = pl.concat([here, carried.select(here.columns)])
        merged = union(both.lazy(), ["place", "operator"]).collect()
        below.append(_covered(carried, times.places, "below_ns"))
        inclusive.append(merged)
        carried = merged.join(up, on="operator").drop("operator").rename({"parent": "operator"})
    active = pl.concat(inclusive)
    time = _covered(active, times.places, "time_ns")
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    busy = active.group_by("place", "operator").agg(busy_ns=length).join(times.places, on="place")
    full = (
        rows.join(time, on=keys, how="left")
        .join(pl.concat(below), on=keys, how="left")
        .with_columns(pl.col("time_ns", "below_ns").fill_null(0))
        .with_columns(self_ns=pl.col("time_ns") - pl.col("below_ns"))
    )
    found = over_units(full, busy, times.unit_active, times.scope, times.trace, ["self_ns"])
    return classify(found.join(tree, on="operator")).drop("operator", "event_name")


def in_tree_order(rows: pl.DataFrame, top: int) -> pl.DataFrame:
    """The modules that take longest, each below its parent, the longest of siblings first.

    Args:
        rows: of ``rolled_up``, one window.
        top: how many.

    Returns:
        The rows with name (last part of the path).
    """
    chosen = rows.sort("time_ns", "depth", "path", descending=[True, False, False]).head(top)
    below: dict[str | None, list[str]] = {}
    for path, parent in chosen.select("path", "parent_path").iter_rows():
        below.setdefault(parent, []).append(path)
    order: list[str] = []
    waiting = list(reversed(below.get(None, [])))
    while waiting:
        path = waiting.pop()
        order.append(path)
        waiting += reversed([p for p in below.get(path, []) if p != path])
    return (
        pl.DataFrame({"path": order}, schema={"path": pl.String})
        .join(chosen, on="path", how="left", maintain_order="left")
        .with_columns(name=_last(pl.when(pl.col("instances") > 1).then("path").otherwise("first")))
    )


def _covered(active: pl.DataFrame, places: pl.DataFrame, name: str) -> pl.DataFrame:
    """Time in which any worker is active, by window, unit_id and operator."""
    where = places.select("place", "where")
    at = active.join(where, on="place").lazy()
    found = covered_ns(at, ["where", "operator"], name).collect()
    return found.join(places.unique("where").select("where", *_WHERE), on="where").drop("where")


def _parts(path: pl.Expr) -> pl.Expr:
    """The names on the way to a module; none of the model itself."""
    return pl.when(path == "").then(pl.lit([], pl.List(pl.String))).otherwise(path.str.split("."))


def _last(path: pl.Expr) -> pl.Expr:
    return path.str.split(".").list.last()


def _cut(path: pl.Expr) -> pl.Expr:
    """At most MAX_DEPTH names of a path."""
    return path.str.split(".").list.head(MAX_DEPTH).list.join(".")
