"""Which hardware counters and samples does a rocprofv3 profile have?

The value of a counter of a kernel holds for the whole kernel: its counter is that value from the kernel's start to its end, and 0 between kernels. Rows of one
counter and kernel, one a unit of the GPU, are added up, as AMD's own views do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from trnprof.tracer.formats.rocpd.events import Events
from trnprof.tracer.formats.rocpd.session import Session
from trnprof.tracer.formats.rocpd.state import Gpu, State
from trnprof.tracer.formats.tables import Bools, Ints, read_small

_UNITS: Final = {
    "%": ("fraction", 0.01),
    "percent": ("fraction", 0.01),
    "percentage": ("fraction", 0.01),
    "b": ("B", 1.0),
    "bytes": ("B", 1.0),
    "kb": ("B", 1e3),
    "mb": ("B", 1e6),
    "gb": ("B", 1e9),
    "w": ("W", 1.0),
    "watts": ("W", 1.0),
    "mhz": ("Hz", 1e6),
    "ghz": ("Hz", 1e9),
    "hz": ("Hz", 1.0),
    "c": ("degC", 1.0),
    "°c": ("degC", 1.0),
    "celsius": ("degC", 1.0),
}


@dataclass(frozen=True)
class Counter:
    """A counter: its GPU (None: of the host), name, unit, and what brings values to that unit."""

    gpu: Gpu | None
    name: str
    unit: str
    scale: float


def our_unit(units: str) -> tuple[str, float]:
    """Our unit for a unit as AMD writes it, and the factor that brings values to it.

    >>> our_unit("MHz"), our_unit(""), our_unit("furlongs")
    (('Hz', 1000000.0), ('1', 1.0), ('furlongs', 1.0))
    """
    return _UNITS.get(units.strip().lower(), (units.strip() or "1", 1.0))


def read_counters(
    session: Session, events: Events, dispatched: Sequence[tuple[Ints, int]]
) -> Bools:
    """Stage the counters of kernels and samples.

    Args:
        session: whose.
        events: of the session.
        dispatched: of blocks of kernels, places in ``events``, and the first row.

    Returns:
        bool[events + 1]: which events have values of counters.
    """
    counters = _read_descriptions(session)
    counted = np.zeros(events.count + 1, np.bool_)
    parts: list[pl.DataFrame] = []
    table = session.table("rocpd_pmc_event")
    for block in session.state.tables.scan(table, ints=["event_id", "pmc_id"], reals=["value"]):
        event, value = events.find(block), block.reals("value")
        known = (event >= 0) & np.isfinite(value)
        columns = {"event": event[known], "pmc": block.ints("pmc_id")[known], "value": value[known]}
        parts.append(_summed(pl.DataFrame(columns)))
        counted[event[known]] = True
    if not parts:
        return counted
    values = _summed(pl.concat(parts))
    rows = _rows_of_events(dispatched, len(counted))[values["event"].to_numpy()]
    of_kernel = pl.Series(rows >= 0)
    stage_of_rows(session.state, counters, values.filter(of_kernel), rows[rows >= 0])
    _stage_samples(session, events, counters, values.filter(~of_kernel))
    return counted


def stage_of_rows(
    state: State, counters: dict[int, Counter], values: pl.DataFrame, rows: Ints
) -> None:
    """Stage counters whose values hold for the time of an event.

    Args:
        state: the profile.
        counters: number → counter.
        values: ``pmc`` (number of the counter) and ``value``.
        rows: of the events, in the stage.
    """
    if not len(rows):
        return
    start, end = (state.stage.times(n)[rows] for n in ("start_ns", "end_ns"))
    frame = values.select("pmc", "value").with_columns(start=start, end=end)
    frame = frame.filter(pl.col("end") >= pl.col("start"))
    begins = frame.select("pmc", at="start", value="value", is_begin=True)
    ends = frame.select("pmc", at="end", value=pl.lit(0.0), is_begin=False)
    steps = pl.concat([begins, ends]).sort("pmc", "at", "is_begin")
    for (number,), samples in steps.group_by("pmc", maintain_order=True):
        _add(state, counters.get(int(number)), int(number), samples)


def _stage_samples(
    session: Session, events: Events, counters: dict[int, Counter], values: pl.DataFrame
) -> None:
    """Values whose event is a sample, which says their time."""
    parts: list[pl.DataFrame] = []
    wanted = np.zeros(events.count + 1, np.bool_)
    wanted[values["event"].to_numpy()] = True
    for block in session.scan("rocpd_sample"):
        event = events.find(block)
        chosen = wanted[event]
        columns = {"event": event[chosen], "at": session.instants(block)[chosen]}
        parts.append(pl.DataFrame(columns))
    times = pl.concat(parts) if parts else pl.DataFrame(schema={"event": pl.Int64, "at": pl.Int64})
    joined = values.join(times.unique("event"), on="event").sort("pmc", "at")
    for (number,), samples in joined.group_by("pmc", maintain_order=True):
        _add(session.state, counters.get(int(number)), int(number), samples)
    session.state.stage.audit.add(
        "untimed_counters",
        "warning",
        session.state.where(session.table("rocpd_pmc_event")),
        "values of counters belong to no kernel and no sample, so that nobody knows when; they were left out",
        unreliable="hardware counters",
        count=values.height - joined.height,
    )


def _add(state: State, counter: Counter | None, number: int, samples: pl.DataFrame) -> None:
    told = counter or Counter(None, f"counter {number}", "1", 1.0)
    state.stage.add_counters(
        timeline=state.counter(told.gpu, told.name, told.unit),
        timestamp_ns=samples["at"].to_numpy(),
        value=samples["value"].to_numpy() * told.scale,
    )


def _read_descriptions(session: Session) -> dict[int, Counter]:
    texts = ["name", "symbol", "units"]
    table = session.table("rocpd_info_pmc")
    rows = read_small(session.state.tables, table, ints=["id", "agent_id"], texts=texts)
    found: dict[int, Counter] = {}
    columns = (rows.list(c) for c in ("id", "agent_id", *texts))
    for number, agent, name, symbol, units in zip(*columns, strict=True):
        gpu = session.agents.get(agent)
        found[number] = Counter(gpu, name or symbol or f"counter {number}", *our_unit(units or ""))
    return found


def _summed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("event", "pmc", maintain_order=True).agg(pl.col("value").sum())


def _rows_of_events(dispatched: Sequence[tuple[Ints, int]], size: int) -> Ints:
    """int64[events + 1]: the row of the kernel that each event is, -1 for others."""
    rows = np.full(size, -1, np.int64)
    for event, first in dispatched:
        rows[event] = first + np.arange(len(event))
    rows[-1] = -1
    return rows
