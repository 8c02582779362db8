"""Which of the layers that repeat takes longer or shorter than its siblings?

*Siblings* are modules whose paths differ only in numbers (``layers.0.mlp``, ``layers.1.mlp``) and which run the same operations on the same
shapes. One is out of line if its time differs from their median by more than ``robust.tolerance``.
"""

from __future__ import annotations

import polars as pl

from trnprof.analysis.module_tree import ModuleTimes, module_nodes, rolled_up
from trnprof.analysis.operators import path_pattern, placed_ops
from trnprof.analysis.robust import MIN_SIBLINGS, median_and_mad, tolerance


def repeated_layers(times: ModuleTimes) -> pl.DataFrame:
    """Modules that have siblings.

    Args:
        times: of ``module_times``, of one window.

    Returns:
        One row a module of at least MIN_SIBLINGS that are alike: path, pattern, siblings (itself included), time_ns (inclusive, mean over units),
        median_ns (of the siblings), differs_ns, is_out; in order of pattern and path.
    """
    nodes = module_nodes(times.paths, is_merged=False)
    rows = rolled_up(times, nodes).select("path", "depth", "time_ns")
    kind = ["pattern", "depth", "work"]
    alike = rows.join(_work(times, nodes), on=["path", "depth"]).with_columns(
        pattern=path_pattern(pl.col("path"))
    )
    numbered = alike.filter(pl.col("pattern") != pl.col("path"))
    siblings = numbered.group_by(kind).agg(*median_and_mad(pl.col("time_ns")), siblings=pl.len())
    differs = pl.col("time_ns") - pl.col("median")
    return (
        numbered.join(siblings.filter(pl.col("siblings") >= MIN_SIBLINGS), on=kind)
        .with_columns(
            differs_ns=differs, is_out=differs.abs() > tolerance(pl.col("median"), pl.col("mad"))
        )
        .rename({"median": "median_ns"})
        .sort("pattern", "path")
        .select("path", "pattern", "siblings", "time_ns", "median_ns", "differs_ns", "is_out")
    )


def _work(times: ModuleTimes, nodes: pl.DataFrame) -> pl.DataFrame:
    """What each module and those below it run, as one number: path, depth, work."""
    used = times.scope.events.select("op_id").unique()
    ops = times.trace.ops.select("op_id", "input_shapes").unique("op_id")
    placed = placed_ops(times.trace.ops).unique("op_id").join(used, on="op_id", how="semi")
    kinds = placed.join(ops, on="op_id").select("path", "name", "input_shapes").unique()
    found = kinds.collect(engine="streaming").join(times.paths, on="path").drop("path")
    rest = pl.col("leaf").str.slice(pl.col("path").str.len_chars())
    below = nodes.join(times.paths.rename({"path": "leaf"}), on="module")
    each = below.join(found, on="module").select(
        "path",
        "depth",
        what=pl.struct(path_pattern(rest), "name", "input_shapes").hash(),
    )
    return each.group_by("path", "depth").agg(work=pl.col("what").unique().sort())
