"""Which events does a change mean? ``op=attention:0.5``, ``dma-issue:0.5``, ``exposed-communication``, … as factors of a step's events.

    op=P, layer=P      events of operators, or of layers, of that name
    name=P             events of that name
    class=C            compute, dma, issue (an engine issues a DMA), collective, host
    engine=P           events on engines, queues or streams of that name; ``DMA`` is all queues
    rank=N             events of a rank, collectives left as they are
    link=P             collectives, by how much longer or shorter their bytes occupy the busiest of the links on their routes when those of that
                       name (``3>7``), or of that tier (``x``), take so much longer; their latencies stay
    dma-issue          the time an engine takes to issue a DMA
    exposed-communication    collectives take no time, so that nobody waits for their transport, only for their inputs

P matches whole names with ``*`` and ``?``, parts of names without them, capitals or not. A factor is of the time: 0.5 is twice as fast.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.analysis.attribution import with_attribution
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.whatif.retime import Changes, unchanged
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace

EXPOSED: Final = "exposed-communication"
ISSUE: Final = "dma-issue"
LINK: Final = "link"
CLASSES: Final = {
    "compute": ("compute",),
    "dma": ("dma", "memory"),
    "issue": ("sync",),
    "collective": ("collective",),
    "host": ("host",),
}
_KINDS: Final = ("op", "layer", "name", "class", "engine", "rank", LINK)
_FORMS: Final = (
    f"op=, layer=, name=, class=, engine=, rank= or link= and a name, or {ISSUE} or {EXPOSED}"
)


@dataclass(frozen=True)
class Change:
    """A change: of what (one of the kinds above), which of them, and by what factor of the time."""

    kind: str
    pattern: str
    factor: float

    def __str__(self) -> str:
        what = f"{self.kind}={self.pattern}" if self.pattern else self.kind
        return f"{what} removed" if self.factor == 0 else f"{what} x{self.factor:g}"


def parse_scale(text: str) -> Change:
    """Read ``op=attention:0.5``.

    Raises:
        TrnprofError: it is not of that form, or the factor is none.
    """
    what, colon, number = text.rpartition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not colon or not 0 <= factor <= 1e6:
        raise TrnprofError(
            f"--scale {text!r}: needs a factor of the time from 0 to 1e6 behind a colon, as in op=attention:0.5"
        )
    return _change(what, factor, "--scale", text)


def parse_remove(text: str) -> Change:
    """Read ``op=attention`` or ``exposed-communication``: what takes no time any more.

    Raises:
        TrnprofError: it is not of that form.
    """
    return _change(text, 0.0, "--remove", text)


def changes_of(trace: Trace, graph: StepGraph, wanted: Change) -> Changes:
    """A change as factors of a step's events.

    Raises:
        TrnprofError: nothing in the step is meant.
    """
    if wanted.kind == LINK:
        added = _by_links(trace, graph, wanted)
        return Changes(np.ones(len(graph)), added)
    meant = _meant(trace, graph, wanted)
    if not meant.any():
        raise TrnprofError(_nothing_meant(trace, graph, wanted))
    if wanted.kind == ISSUE:
        return Changes(np.ones(len(graph)), np.zeros(len(graph)), wanted.factor)
    return Changes(np.where(meant, wanted.factor, 1.0), np.zeros(len(graph)))


def combined(graph: StepGraph, parts: list[Changes]) -> Changes:
    """All changes together: factors multiply, additions add."""
    whole = unchanged(graph)
    for part in parts:
        whole = Changes(
            whole.factors * part.factors,
            whole.added_ns + part.added_ns,
            whole.issue_factor * part.issue_factor,
        )
    return whole


def _change(what: str, factor: float, option: str, text: str) -> Change:
    kind, equals, pattern = what.partition("=")
    if not equals and kind in (ISSUE, EXPOSED):
        return Change(kind, "", factor)
    if kind not in _KINDS or not pattern:
        raise TrnprofError(f"{option} {text!r}: says not of what: {_FORMS}")
    if kind == "class" and pattern not in CLASSES:
        raise TrnprofError(
            f"{option} {text!r}: no class {pattern!r}; there are {', '.join(CLASSES)}"
        )
    return Change(kind, pattern, factor)


def _meant(trace: Trace, graph: StepGraph, wanted: Change) -> NDArray[np.bool_]:
    events, pattern = graph.events, wanted.pattern
    category = pl.col("category").cast(pl.String)
    match wanted.kind:
        case "op" | "layer":
            column = "operator" if wanted.kind == "op" else "module_path"
            attributed = with_attribution(events.select("op_id", "name"), trace.ops)
            chosen = attributed.select(_matches(column, pattern))
        case "name":
            chosen = events.select(_matches("name", pattern))
        case "class":
            chosen = events.select(category.is_in(CLASSES[pattern]))
        case "engine" if pattern.lower() == "dma":
            chosen = events.select(pl.col("kind") == "dma_queue")
        case "engine":
            chosen = events.select(_matches("resource", pattern))
        case "rank":
            is_own = pl.col("rank").cast(pl.String) == pattern
            chosen = events.select(is_own & (category != "collective"))
        case "dma-issue":
            chosen = events.select(category == "sync")
        case _:
            chosen = events.select(category == "collective")
    return chosen.to_series().fill_null(False).to_numpy()


def _matches(column: str, pattern: str) -> pl.Expr:
    """Whether a name is meant: whole with wildcards, a part of it without."""
    is_glob = any(sign in pattern for sign in "*?")
    regex = translate(pattern).removeprefix("(?s:").removesuffix(r")\Z") if is_glob else ""
    text = pl.col(column).cast(pl.String)
    if is_glob:
        return text.str.contains(f"(?is)^{regex}$")
    return text.str.contains(f"(?i){re.escape(pattern)}")


def _by_links(trace: Trace, graph: StepGraph, wanted: Change) -> NDArray[np.float64]:
    """float64[n], ns more for each collective: what its busiest link takes longer.

    An event of a link lasts as long as the bytes of one collective (its operation) occupy it.
    """
    tracks = trace.tracks.select("track_id", "parent_id", "kind", "name")
    tiers = tracks.select(parent_id="track_id", tier="name")
    links = tracks.filter(pl.col("kind") == "link").join(tiers, on="parent_id", how="left")
    meant = links.select(_matches("name", wanted.pattern) | _matches("tier", wanted.pattern))
    links = links.with_columns(is_meant=meant.to_series().fill_null(False))
    if not links["is_meant"].any():
        names = (
            links["tier"].drop_nulls().unique().sort().to_list() + links["name"].head(3).to_list()
        )
        known = f"; there are {', '.join(names)}, …" if names else ": the trace has no links"
        raise TrnprofError(f"no link or tier of links {wanted.pattern!r}{known}")
    factor = pl.when("is_meant").then(wanted.factor).otherwise(1.0)
    return added_by_links(trace, graph, links.select("track_id", factor=factor))


def added_by_links(trace: Trace, graph: StepGraph, links: pl.DataFrame) -> NDArray[np.float64]:
    """float64[n], ns more for each collective when links carry their bytes in so many times the time.

    Args:
        trace: the graph is of.
        graph: the step.
        links: track_id and factor of all links.
    """
    length = pl.col("duration_ns")
    added = (
        trace.events.join(links.lazy(), on="track_id")
        .filter(
            pl.col("start_ns").is_between(graph.start_ns, graph.end_ns)
            & pl.col("blocked_by").is_null()
        )
        .group_by("op_id", "track_id", "factor")
        .agg(length.sum())
        .group_by("op_id")
        .agg(added_ns=(length * pl.col("factor")).max() - length.max())
        .collect(engine="streaming")
    )
    at = graph.events.select("op_id", is_call=pl.col("kind") == "collective_stream")
    found = at.join(added, on="op_id", how="left", maintain_order="left")
    is_call = found["is_call"].to_numpy()
    return np.where(is_call, found["added_ns"].fill_null(0.0).to_numpy(), 0.0)


def _nothing_meant(trace: Trace, graph: StepGraph, wanted: Change) -> str:
    where = "the trace" if graph.step is None else f"step {graph.step}"
    if not wanted.pattern:
        return f"{wanted.kind}: {where} has none"
    match wanted.kind:
        case "op" | "layer":
            column = "operator" if wanted.kind == "op" else "module_path"
            names = with_attribution(graph.events.select("op_id", "name"), trace.ops)[column]
        case "engine":
            names = graph.events["resource"]
        case "rank":
            names = graph.events["rank"].cast(pl.String)
        case "class":
            names = graph.events["category"].cast(pl.String)
        case _:
            names = graph.events["name"].cast(pl.String)
    common = names.drop_nulls().value_counts(sort=True).head(5).to_series(0).to_list()
    known = f"; the most frequent are {', '.join(common)}" if common else ""
    return f"{wanted.kind}={wanted.pattern}: {where} has no such event{known}"
