"""In which step did each event of an Nsight Systems profile begin, or was it launched?"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.nsys_api import Launches
from trnprof.tracer.formats.nsys_nvtx import Annotations
from trnprof.tracer.formats.nsys_state import State
from trnprof.tracer.formats.tables import Ints

Steps = dict[int, pl.DataFrame]
"""Process → its steps in time order: ordinal, label, start_ns, end_ns."""


def stage_steps(state: State, notes: Annotations, launches: Launches) -> None:
    """Stage steps, and give each event its step: host events by their start, device events by that of the call that launched them."""
    steps = _steps(notes)
    if not steps:
        return
    for process, frame in steps.items():
        rank = _rank_of(state, process)
        rows = {
            "step": frame["ordinal"].to_numpy(),
            "start_ns": frame["start_ns"].to_numpy(),
            "end_ns": frame["end_ns"].to_numpy(),
            "label": frame["label"].to_list(),
            "source": ["marker"] * frame.height,
        }
        state.stage.add_steps(rows if rank is None else rows | {"rank": [rank] * frame.height})
    timelines = state.stage.times("timeline")
    owner = np.full(len(state.stage.timelines), -1, np.int64)
    owner[list(state.owners)] = list(state.owners.values())
    start = state.stage.times("start_ns")
    step = _step_at(steps, owner[timelines], start)
    for first, launch in launches.launched:
        of_launch = np.where(launch >= 0, step[np.maximum(launch, 0)], -1)
        step[first : first + len(launch)] = of_launch
    state.stage.set_late("step", pa.array(step.astype(np.int32), mask=step < 0))


def _steps(notes: Annotations) -> Steps:
    """Ranges that are steps, numbered from 0 by their order; those of the outermost kind only, and none that overlap."""
    if not notes.steps:
        return {}
    frame = pl.concat(notes.steps).sort("process", "start_ns", "end_ns")
    found: Steps = {}
    for (process,), rows in frame.group_by("process", maintain_order=True):
        reached = rows["end_ns"].cum_max().shift(1).fill_null(rows["start_ns"].min())
        outer = rows.filter(rows["start_ns"] >= reached)
        found[int(process)] = outer.with_columns(ordinal=pl.int_range(pl.len()))
    return found


def _step_at(steps: Steps, process: Ints, time: Ints) -> Ints:
    found = np.full(len(time), -1, np.int64)
    for owner, frame in steps.items():
        rows = np.flatnonzero(process == owner)
        at = np.searchsorted(frame["start_ns"].to_numpy(), time[rows], side="right") - 1
        inside = (at >= 0) & (time[rows] < frame["end_ns"].to_numpy()[np.maximum(at, 0)])
        found[rows] = np.where(inside, frame["ordinal"].to_numpy()[np.maximum(at, 0)], -1)
    return found


def _rank_of(state: State, process: int) -> int | None:
    for number, owner in state.owners.items():
        if owner == process:
            return state.stage.timelines[number].rank
    return None
