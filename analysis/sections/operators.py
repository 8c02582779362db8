"""Section ``operators``: what takes the time, by operator, layer, source line and shape; what repeats; what the host adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from trnprof.analysis.excerpt import excerpt
from trnprof.analysis.focus import mean_note
from trnprof.analysis.groupings import by_name, by_shape, by_source_line
from trnprof.analysis.module_tree import in_tree_order, module_nodes, module_times, rolled_up
from trnprof.analysis.operators import Labels, top_operators
from trnprof.analysis.patterns import ARROW, frequent_patterns, telling_patterns
from trnprof.analysis.repeated_layers import repeated_layers
from trnprof.analysis.robust import MIN_SIBLINGS
from trnprof.analysis.scope import Scope
from trnprof.analysis.sections.host_tables import host_tables
from trnprof.analysis.sections.section import Column, Section, Subject, Table, silent, table
from trnprof.tracer.reader import Trace
from trnprof.tracer.units import counted

KEY: Final = "operators"
TITLE: Final = "Operators"
TOP: Final = 20
MODULES: Final = 40
PATTERNS: Final = 10
ALL: Final = 1_000_000
MAX_EVENTS: Final = 2_000_000
"""Ours: of more an excerpt is looked at, so that time and memory stay bounded."""
MODEL: Final = "(model)"
_TIME: Final = (Column("time_ns", "time", "ns"), Column("share_of_active", "of active", "percent"))
_BOUND: Final = (Column("bound", "bound by"), Column("roofline_share", "roofline", "percent"))
_WORK: Final = (
    Column("count", "count", "count"),
    *_TIME,
    Column("flops", "FLOPs", "flops"),
    Column("hbm_bytes", "HBM", "bytes"),
    *_BOUND,
)


def build(subject: Subject) -> Section:
    """Of the step and rank asked for."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    trace = subject.trace
    whole, step, left_out = excerpt(subject.scope, subject.step, subject.rank, MAX_EVENTS)
    scope = _in_memory(whole)
    operators = top_operators(scope, trace, ALL)
    if not operators.height:
        return silent(KEY, TITLE, "because no event of the device lies in the window")
    layers, layer_notes = _layers(scope, trace)
    tables = [
        _operators(operators, trace),
        _names(_by(by_name, scope, trace), trace),
        *layers,
        _lines(_known(_by(by_source_line, scope, trace)), trace),
        _shapes(_known(_by(by_shape, scope, trace)), trace),
        _patterns(scope, trace),
        *host_tables(replace(subject, step=step), whole),
    ]
    notes = [
        f"{mean_note(scope)}; time is that in which at least one event of it is active, so that shares may sum to more than 100 %; "
        "roofline: what the machine needs at least, of the time",
        *layer_notes,
        "patterns: operators in a row on one engine or stream; they overlap, so that their times do not sum",
    ]
    if left_out is not None:
        notes.insert(0, left_out)
    shown = tuple(t for t in tables if t.rows)
    return Section(KEY, TITLE, shown, (*notes, *scope.notes))


def _in_memory(scope: Scope) -> Scope:
    """The same scope, its events read once for all that is asked of them here."""
    events = scope.events.drop("event_id", "blocked_by", "descriptor_bytes")
    return replace(scope, events=events.collect(engine="streaming").lazy())


def _by(labels_of: Callable[[pl.LazyFrame], Labels], scope: Scope, trace: Trace) -> pl.DataFrame:
    """All operators, operations being put together in another way."""
    return top_operators(scope, trace, ALL, labels_of)


def _known(rows: pl.DataFrame) -> pl.DataFrame:
    """Only operators of which the trace says it."""
    return rows.filter(pl.col("operator") >= 0)


def _plain(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """FLOPs and bytes that are 0 because a profile does not have them are not known."""
    unknown = not trace.is_simulation
    known = [
        (pl.when(pl.col(n) > 0).then(n) if unknown else pl.col(n)).alias(n)
        for n in ("adjusted_flops", "hbm_bytes")
    ]
    bound = pl.col("bound_by").str.strip_suffix("-bound")
    found = rows.with_columns(*known, bound=bound).rename({"adjusted_flops": "flops"})
    return found.drop(
        "window", "operator", "event_name", "dma_peak_bytes_per_s", strict=False
    )  # fmt: skip


def _present(
    key: str, title: str, columns: Sequence[Column], rows: pl.DataFrame, top: int
) -> Table:
    """A table without the columns of which its first rows have nothing: people see it in few characters."""
    first = rows.head(top)
    shown = [c for c in columns if c.key == "time_ns" or first[c.key].null_count() < first.height]
    return table(key, title, shown, rows, top)


def _operators(rows: pl.DataFrame, trace: Trace) -> Table:
    columns = (
        Column("name", "operator"),
        Column("module", "layer"),
        Column("phase", "phase"),
        *_TIME,
        *_BOUND,
    )
    named = _plain(rows, trace).with_columns(module=pl.when(pl.col("module") != "").then("module"))
    return _present(KEY, "by operator and layer", columns, named, TOP)


def _names(rows: pl.DataFrame, trace: Trace) -> Table:
    return _present("by_name", "by name", (Column("name", "operator"), *_WORK), _plain(rows, trace), TOP)  # fmt: skip


def _lines(rows: pl.DataFrame, trace: Trace) -> Table:
    """The end of the path is shown, all of it is there."""
    columns = (Column("line", "line"), _WORK[0], *_TIME, *_BOUND)
    end = pl.col("name").str.split("/").list.tail(2).list.join("/")
    rows = _plain(rows, trace).with_columns(line=end)
    return _present("by_source_line", "by source line", columns, rows, TOP)


def _shapes(rows: pl.DataFrame, trace: Trace) -> Table:
    columns = (
        Column("name", "operator"),
        Column("shapes", "shapes"),
        _WORK[0],
        *_TIME,
        Column("roofline_share", "roofline", "percent"),
    )
    return _present("by_shape", "by shape", columns, _plain(rows, trace), TOP)


def _layers(scope: Scope, trace: Trace) -> tuple[list[Table], list[str]]:
    """The tree of modules, and the layers in it that repeat and are out of line."""
    times = module_times(scope, trace)
    if not times.sums.height:
        return [], ["nothing by layer: no operation of the window names its module"]
    tree = in_tree_order(rolled_up(times, module_nodes(times.paths, is_merged=True)), MODULES)
    shown = pl.when(pl.col("name") == "").then(pl.lit(MODEL)).otherwise("name")
    indented = pl.concat_str(pl.lit("· ").repeat_by("depth").list.join(""), shown)
    named = _plain(tree, trace).with_columns(name=indented).drop("parent_path", "first")
    columns = (
        Column("name", "module"),
        Column("instances", "of", "count"),
        Column("time_ns", "time", "ns"),
        Column("self_ns", "self", "ns"),
        Column("share_of_active", "of active", "percent"),
        Column("flops", "FLOPs", "flops"),
        *_BOUND,
    )
    tables = [_present("layers", "by layer", columns, named, MODULES)]
    notes = ["by layer: self is the time in which no module below it is active; of says how many modules a line stands for"]  # fmt: skip
    repeated = repeated_layers(times)
    if not repeated.height:
        notes.append(f"no {MIN_SIBLINGS} layers run the same operations on the same shapes")
        return tables, notes
    odd = repeated.filter("is_out").sort(pl.col("differs_ns").abs(), "path", descending=[True, False])  # fmt: skip
    kinds = repeated["pattern"].n_unique()
    notes.append(
        f"{counted(repeated.height, 'module')} that repeat ({counted(kinds, 'kind')}) compared with the siblings that run the same: "
        + (f"{odd.height} out of line" if odd.height else "none is out of line")
    )
    return [*tables, _out_of_line(odd)], notes


def _out_of_line(odd: pl.DataFrame) -> Table:
    columns = (
        Column("path", "layer"),
        Column("siblings", "siblings", "count"),
        Column("time_ns", "time", "ns"),
        Column("median_ns", "median", "ns"),
        Column("differs_ns", "more", "ns"),
    )
    return table("layers_out_of_line", "repeated layers out of line with their siblings", columns, odd, TOP)  # fmt: skip


def _patterns(scope: Scope, trace: Trace) -> Table:
    found = telling_patterns(frequent_patterns(scope, trace), PATTERNS)
    columns = (
        Column("pattern", "operators in a row"),
        Column("count", "count", "number"),
        Column("time_ns", "time", "ns"),
    )
    rows = found.with_columns(pattern=pl.col("names").list.join(ARROW))
    return table("patterns", "frequent patterns", columns, rows)
