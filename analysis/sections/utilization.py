"""Section ``utilization``: how busy each engine, core, chip and rank was, on average, by step and over time."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.focus import focus, mean_note, steps_only
from trnprof.analysis.heat_map import heat_map
from trnprof.analysis.metrics import ratio
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.analysis.utilization import engine_utilization

KEY: Final = "utilization"
TITLE: Final = "Utilization"
TOP: Final = 20
HEAT_ROWS: Final = 64
STEP_RESOURCES: Final = 5
BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_TIMES: Final = (
    Column("active_share", "active", "percent"),
    Column("active_ns", "active", "ns"),
    Column("summed_ns", "summed", "ns"),
)


def build(subject: Subject) -> Section:
    """Of the step and rank asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    scope = focus(subject.scope, subject.step, subject.rank)
    used = engine_utilization(scope)
    if not used["active_ns"].sum():
        return silent(KEY, TITLE, "because no event of the device takes time in this window")
    steps = steps_only(subject.scope, subject.step, subject.rank)
    tables = [
        _engines(used, scope),
        _over_time(scope, "engine", "engines_over_time", "engine", HEAT_ROWS),
        _by_step(steps),
        *_by_places(scope),
        _over_time(scope, "rank", "ranks_over_time", "rank", TOP),
    ]
    notes = (
        f"{mean_note(scope)}; active is the union, summed counts what runs side by side twice",
        *scope.notes,
    )
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), notes)


def _engines(used: pl.DataFrame, scope: Scope) -> Table:
    columns = (Column("resource", "engine"), *_TIMES, Column("events", "events", "count"))
    return table("engines", "engines", columns, _means(used, scope, ["resource"]), TOP)


def _means(used: pl.DataFrame, scope: Scope, keys: list[str]) -> pl.DataFrame:
    """Means over units, replicas weighing: keys, active_share, active_ns, summed_ns, events (of all units)."""
    weight = pl.col("replica_count")
    mean = [(pl.col(n) * weight).sum() / weight.sum() for n in ("active_ns", "total_ns")]
    summed = (pl.col("instruction_ns") * weight).sum() / weight.sum()
    first_seen = used.select("resource").unique(maintain_order=True).with_row_index("order")
    return (
        used.join(scope.units.select("unit_id", "replica_count"), on="unit_id")
        .join(first_seen, on="resource")
        .group_by(keys)
        .agg(
            pl.col("order").min(),
            *mean,
            summed_ns=summed,
            events=(pl.col("instruction_count") * weight).sum(),
        )
        .with_columns(active_share=ratio(pl.col("active_ns"), pl.col("total_ns")))
        .sort("order", *keys)
        .drop("order", "total_ns")
    )


def _over_time(scope: Scope, level: str, key: str, title: str, top: int) -> Table:
    """Engines or ranks, means over units: a row of blocks that people see, the numbers in JSON."""
    weight = pl.col("replica_count")
    mean = [
        ((pl.col(n) * weight).sum() / weight.sum()).alias(n) for n in ("active_share", "summed_ns")
    ]
    label = "resource" if level == "engine" else level
    bins = heat_map(scope, level).filter(pl.col(label).is_not_null())
    order = bins.select(label).unique(maintain_order=True).with_row_index("order")
    lists = (
        bins.group_by(label, "bin").agg(*mean, pl.col("start_ns", "end_ns").first())
        .sort("bin").join(order, on=label).group_by(label, "order", maintain_order=True)
        .agg(pl.col("active_share", "summed_ns").round(6), bin_start_ns=pl.col("start_ns"), bin_end_ns=pl.col("end_ns"))
        .sort("order").drop("order")
    )  # fmt: skip
    shown = lists.with_columns(
        blocks=pl.col("active_share").map_elements(blocks, return_dtype=pl.String)
    )
    name = Column(label, title, "text" if label == "resource" else "number")
    columns = (name, Column("blocks", "from the first start to the last end"))
    return table(key, f"{title} over time", columns, shown, top)


def blocks(shares: pl.Series | list[float]) -> str:
    """Fractions 0–1 as one block each, an eighth higher for every eighth; anything above 0 shows.

    >>> blocks([0.0, 0.01, 0.5, 1.0])
    ' ▁▄█'
    """
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[min(top, max(int(s > 0), round(s * top)))] for s in shares)


def _by_step(scope: Scope) -> Table:
    """One row a step, one column an engine: the STEP_RESOURCES that are busiest."""
    used = engine_utilization(scope)
    steps = scope.windows.select("window", "label", "step").unique("window")
    means = _means(used.join(steps, on="window"), scope, ["window", "label", "step", "resource"])
    busiest = means.group_by("resource").agg(pl.col("active_ns").sum())
    names = busiest.sort("active_ns", "resource", descending=[True, False])["resource"].to_list()
    chosen = names[:STEP_RESOURCES]
    wide = means.filter(pl.col("resource").is_in(chosen)).pivot(
        "resource", index=["window", "step", "label"], values="active_share"
    )
    columns = (Column("label", "step"), *(Column(n, n, "percent") for n in chosen))
    return table("steps", "active by step", columns, wide.sort("window").drop("window"), TOP)


def _by_places(scope: Scope) -> list[Table]:
    """Cores; chips and ranks where they have several."""
    count = scope.units.height
    chips = scope.units.select("host", "chip").n_unique()
    ranks = scope.units["rank"].n_unique()
    levels = ("core", *(["chip"] if chips < count else []), *(["rank"] if ranks < count else []))
    return [_by_place(scope, level) for level in levels]


def _by_place(scope: Scope, level: str) -> Table:
    """Cores, chips or ranks, the least busy first: in a job of equal ranks that one wants a look."""
    whole = heat_map(scope, level, bins=1).drop("bin", "start_ns", "end_ns", "row")
    named = whole
    if level == "core":
        named = whole.join(scope.units.select("unit_id", "name", "rank"), on="unit_id")
    labels = {
        "core": (Column("name", "core or device"), Column("rank", "rank", "number")),
        "chip": (Column("host", "host"), Column("chip", "chip", "number")),
        "rank": (Column("rank", "rank", "number"),),
    }[level]
    known = [c.key for c in labels if c.form == "number"]
    rows = named.filter(pl.any_horizontal(pl.col(known).is_not_null()) | (level == "core"))
    columns = (*labels, *_TIMES, Column("replica_count", "stands for", "count"))
    keys = [c.key for c in labels]
    return table(f"by_{level}", f"by {level}, the least active first", columns, rows.sort("active_share", *keys), TOP)  # fmt: skip
