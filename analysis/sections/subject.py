"""What was asked for? Steps, ranks and names of sections from a command line, checked against what the trace has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import polars as pl

from trnprof.analysis.scope import Scope, device_scope
from trnprof.analysis.sections.registry import QUESTIONS
from trnprof.analysis.sections.section import Subject
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.nearest import nearest
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import DEVICE_KINDS

ALL: Final = "all"


def subject_of(trace: Trace, step: int | None = None, rank: int | None = None) -> Subject:
    """What sections are asked about.

    Args:
        trace: the trace.
        step: of the device's steps; None for all.
        rank: None for all; one that repeats another becomes that one.

    Raises:
        TrnprofError: the trace has no such step or rank.
    """
    scope = device_scope(trace)
    if step is not None:
        _check_step(trace, scope, step)
    return Subject(trace, scope, step, None if rank is None else _events_of(trace, rank))


def section_names(wanted: Iterable[str]) -> list[str]:
    """Names of sections in the order of a report; each may be several with commas, or ALL.

    Raises:
        TrnprofError: there is no such section; the nearest name is told.
    """
    names = [name for text in wanted for name in text.replace(" ", "").split(",") if name]
    for name in names:
        if name != ALL and name not in QUESTIONS:
            near = nearest(name, QUESTIONS, 0.5)
            meant = f"; did you mean {near}?" if near else ""
            raise TrnprofError(f"no section {name!r}{meant} (there are {', '.join([*QUESTIONS, ALL])})")  # fmt: skip
    return [name for name in QUESTIONS if ALL in names or name in names]


def _check_step(trace: Trace, scope: Scope | None, step: int) -> None:
    steps = trace.steps if scope is None else scope.windows
    known = steps["step"].drop_nulls().unique().sort().to_list()
    if step not in known:
        raise TrnprofError(f"{trace.name}: no step {step}; {_known('step', known, step)}")


def _events_of(trace: Trace, rank: int) -> int:
    """The rank whose events are those of a rank: itself, or the one that it repeats."""
    tracks = trace.tracks.filter(pl.col("kind").cast(pl.String).is_in(DEVICE_KINDS))
    own = tracks.filter(pl.col("rank") == rank)
    if not own.height:
        known = tracks["rank"].drop_nulls().unique().sort().to_list()
        raise TrnprofError(f"{trace.name}: no rank {rank}; {_known('rank', known, rank)}")
    if own["replica_of"].null_count():
        return rank
    repeated = tracks.filter(pl.col("track_id").is_in(own["replica_of"].implode()))
    ranks = repeated["rank"].drop_nulls()
    return int(ranks[0]) if len(ranks) else rank


def _known(noun: str, known: Sequence[int], wanted: int) -> str:
    """Which there are, and which is nearest to a number."""
    if not known:
        return f"the trace has no {noun}s" if noun == "step" else "no device track names a rank"
    near = min(known, key=lambda number: (abs(number - wanted), number))
    span = str(known[0]) if len(known) == 1 else f"{known[0]}..{known[-1]}"
    return f"it has {noun}s {span}" if near in (known[0], known[-1]) else f"it has {noun}s {span}, the nearest is {near}"  # fmt: skip
