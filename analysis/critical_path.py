"""Which chain of events makes a step as long as it is, and how much may every other event grow before it is on it?

The *critical path* is followed back from the event that ends last: to what bound its start, to what bound that, …, until nothing in the
step did (``step_graph``). Cut at the starts of its events it is a partition of the step, which sums to its length:

    run    an event of the path, from its start to its end or to the start of the next one, if that is earlier
    wait   from the end of an event to the start of the next one: latency, a semaphore, a queue's slot, or, where edges are inferred,
           time that nothing in the trace explains
    before, after   from the step's start to the path's first event; from its last one to the step's end

The *slack* of an event is how much later it could end, all else being equal, without the step getting longer: by its dependencies
and by the events behind it on its track. It is an upper bound where the trace has only binding edges.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.step_graph import I64, NONE, StepGraph

RUN: Final = "run"
WAIT: Final = "wait"
BEFORE: Final = "before"
AFTER: Final = "after"


def critical_path(graph: StepGraph) -> pl.DataFrame:
    """The path of a step, first to last.

    Returns:
        One row a piece: part (RUN, WAIT, BEFORE or AFTER), start_ns, end_ns, duration_ns, index (of the event that runs, or waits), and of
        that event event_id, track_id, rank, unit_id, kind, resource, name, category, op_id, wait_reason. Pieces of no length are left out.
    """
    path = _path(graph)
    starts, ends = graph.column("start_ns")[path], graph.column("end_ns")[path]
    until = np.append(starts[1:], graph.end_ns)
    run_end = np.minimum(ends, until)
    nothing = np.array([NONE])
    pieces = [
        _pieces(RUN, path, starts, run_end),
        _pieces(WAIT, path[1:], run_end[:-1], until[:-1]),
    ]
    if len(path):
        pieces.append(_pieces(BEFORE, nothing, np.array([graph.start_ns]), starts[:1]))
        pieces.append(_pieces(AFTER, nothing, run_end[-1:], until[-1:]))
    described = graph.events.with_row_index("index").select(
        pl.col("index").cast(pl.Int64),
        *("event_id", "track_id", "rank", "unit_id", "kind", "resource"),
        *("name", "category", "op_id", "wait_reason"),
    )
    return (
        pl.concat(pieces)
        .filter(pl.col("duration_ns") > 0)
        .join(described, on="index", how="left")
        .sort("start_ns", "end_ns")
    )


def rank_changes(path: pl.DataFrame) -> pl.DataFrame:
    """Where a path goes from one rank to another.

    Args:
        path: as ``critical_path`` returns it.

    Returns:
        One row a change: at_ns, from_rank, to_rank, name (of the event it goes on with), category.
    """
    runs = path.filter((pl.col("part") == RUN) & pl.col("rank").is_not_null())
    before = pl.col("rank").shift(1)
    return runs.with_columns(from_rank=before).filter(pl.col("rank") != pl.col("from_rank")).select(
        "from_rank", at_ns="start_ns", to_rank="rank", name=pl.col("name").cast(pl.String), category=pl.col("category").cast(pl.String)
    )  # fmt: skip


def by_doing(path: pl.DataFrame) -> pl.DataFrame:
    """What a path is made of.

    Args:
        path: as ``critical_path`` returns it.

    Returns:
        One row a kind, the longest first: doing, duration_ns, share (of the step), pieces.
    """
    total = pl.col("duration_ns").sum().clip(1)
    return (
        path.with_columns(doing=doing(), share=pl.col("duration_ns") / total)
        .group_by("doing")
        .agg(pl.col("duration_ns", "share").sum(), pieces=pl.len())
        .sort("duration_ns", "doing", descending=[True, False])
    )


def doing() -> pl.Expr:
    """What a piece of the path is, in words: ``Tensor``, ``DMA``, ``all_gather``, ``wait for data``, …."""
    name = pl.col("name").cast(pl.String)
    works = (
        pl.when(pl.col("category") == "collective")
        .then(name)
        .when(pl.col("kind") == "dma_queue")
        .then(pl.lit("DMA"))
        .when(pl.col("category") == "sync")
        .then(pl.lit("DMA issue"))
        .otherwise("resource")
    )
    reason = pl.col("wait_reason").cast(pl.String)
    return (
        pl.when(pl.col("part") == RUN)
        .then(works)
        .when(pl.col("part") == WAIT)
        .then(pl.concat_str(pl.lit("wait"), reason, separator=": ", ignore_nulls=True))
        .when(pl.col("part") == BEFORE)
        .then(pl.lit("before the first event"))
        .when(pl.col("part") == AFTER)
        .then(pl.lit("after the last event"))
    )


def event_slack_ns(graph: StepGraph) -> I64:
    """int64[n]: the slack of every event of a step, by its index."""
    from trnprof.analysis.path_kernel import latest_ends

    starts, ends = graph.column("start_ns"), graph.column("end_ns")
    last, following = _track_order(graph)
    bound = np.flatnonzero(graph.blockers != NONE)
    binding = graph.blockers[bound]
    sources = np.concatenate([graph.edges.sources, last, binding])
    targets = np.concatenate([graph.edges.targets, following, bound])
    unbound = np.concatenate([graph.edges.lags_ns, np.zeros(len(last), np.int64)])
    lags = np.concatenate([unbound, starts[bound] - ends[binding]])
    lags = np.minimum(
        lags, starts[targets] - ends[sources]
    )  # ns are rounded: what was, was allowed
    order = np.argsort(sources, kind="stable")
    offsets = np.searchsorted(sources[order], np.arange(len(graph) + 1))
    latest = latest_ends(starts, ends, offsets, targets[order], lags[order], graph.end_ns)
    return latest - ends


def _path(graph: StepGraph) -> I64:
    """Indices of the path, the first event first."""
    if not len(graph):
        return np.empty(0, np.int64)
    from trnprof.analysis.path_kernel import walk_back

    path: I64 = walk_back(graph.blockers, int(graph.column("end_ns").argmax()))
    return path[::-1].copy()


def _pieces(part: str, index: I64, starts: I64, ends: I64) -> pl.DataFrame:
    columns = {"part": [part] * len(index), "index": index, "start_ns": starts, "end_ns": ends}
    frame = pl.DataFrame(columns, schema_overrides={"part": pl.String})
    return frame.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))


def _track_order(graph: StepGraph) -> tuple[I64, I64]:
    """Every event that another one follows on its track, and which."""
    tracks = graph.column("track")
    order = np.argsort(tracks, kind="stable")
    follows = tracks[order[1:]] == tracks[order[:-1]]
    return order[:-1][follows], order[1:][follows]
