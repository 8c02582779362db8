"""Which annotated ranges are the steps of a program, and in which of them did each event begin, or was it launched?

A range is a step by its label, such as ``step 7`` or ``ProfilerStep#7``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.tables import Ints
from trnprof.tracer.ingest.stage import Stage

_STEP: Final = r"(?i)^(?:profilerstep|(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?|batch))[ _#:=-]*[0-9]{1,9}$"


def step_ranges(process: Ints, start_ns: Ints, end_ns: Ints, labels: pl.Series) -> pl.DataFrame:
    """Those of some ranges that are steps: process, start_ns, end_ns, label. One entry a range in each array.

    Args:
        process: a number of the process that annotated them.
        start_ns: starts.
        end_ns: ends; ranges that never end are no steps.
        labels: what they are annotated with.
    """
    chosen = labels.str.contains(_STEP).fill_null(False) & pl.Series(end_ns > start_ns)
    columns = {"process": process, "start_ns": start_ns, "end_ns": end_ns, "label": labels}
    return pl.DataFrame(columns).filter(chosen)


def stage_steps(
    stage: Stage,
    ranges: Sequence[pl.DataFrame],
    owners: Mapping[int, int],
    ranks: Mapping[int, int],
    launched: Sequence[tuple[int, Ints]],
) -> None:
    """Stage steps, and give each event its step: host events by their start, device events by that of the call that launched them.

    The steps of a process are numbered from 0 in their order; of ranges that overlap, the one that began first is a step.

    Args:
        stage: with all events.
        ranges: blocks that ``step_ranges`` gave.
        owners: timeline → process.
        ranks: process → rank, of those whose rank is known.
        launched: first row of a block of device events, and the rows of the calls that launched them (-1: none).
    """
    if not any(block.height for block in ranges):
        return
    steps = _outer(pl.concat(ranges))
    for (process,), rows in steps.group_by("process", maintain_order=True):
        columns = {c: rows[c].to_numpy() for c in ("step", "start_ns", "end_ns")}
        told = {"label": rows["label"].to_list(), "source": ["marker"] * rows.height}
        rank = ranks.get(int(process))
        stage.add_steps(columns | told | ({} if rank is None else {"rank": [rank] * rows.height}))
    owner = np.full(len(stage.timelines), -1, np.int64)
    owner[list(owners)] = list(owners.values())
    step = _step_at(steps, owner[stage.times("timeline")], stage.times("start_ns"))
    for first, launch in launched:
        step[first : first + len(launch)] = np.where(launch >= 0, step[launch], -1)
    stage.set_late("step", pa.array(step.astype(np.int32), mask=step < 0))


def _outer(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges that overlap none before them, with their ordinal in the process as ``step``."""
    reached = pl.col("end_ns").cum_max().shift(1).over("process")
    ordered = ranges.sort("process", "start_ns", "end_ns")
    outer = ordered.filter((pl.col("start_ns") >= reached).fill_null(True))
    return outer.with_columns(step=pl.int_range(pl.len()).over("process"))


def _step_at(steps: pl.DataFrame, process: Ints, time: Ints) -> Ints:
    """int64[rows]: the step of a process that contains a time, -1 where none does."""
    found = np.full(len(time), -1, np.int64)
    for (owner,), rows in steps.group_by("process"):
        chosen = np.flatnonzero(process == owner)
        at = np.searchsorted(rows["start_ns"].to_numpy(), time[chosen], side="right") - 1
        inside = (at >= 0) & (time[chosen] < rows["end_ns"].to_numpy()[at])
        found[chosen] = np.where(inside, rows["step"].to_numpy()[at], -1)
    return found
