"""In which step did each event of an AMD database begin, or was it launched?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.rocpd_state import State
from trnprof.tracer.formats.tables import Ints

_STEP: Final = r"(?i)^(?:profilerstep|(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?|batch))[ _#:=-]*[0-9]{1,9}$"


def note_steps(
    state: State, process: Ints, start_ns: Ints, end_ns: Ints, labels: pl.Series
) -> None:
    """Take note of the ranges that are steps by their label, such as ``step 7``."""
    chosen = labels.str.contains(_STEP).fill_null(False)
    columns = {"process": process, "start_ns": start_ns, "end_ns": end_ns, "label": labels}
    found = pl.DataFrame(columns).filter(chosen & pl.Series(end_ns > start_ns))
    if found.height:
        state.steps.append(found)


def stage_steps(state: State) -> None:
    """Stage steps, and give each event its step: host events by their start, device events by that of the call that launched them."""
    if not state.steps:
        return
    frame = pl.concat(state.steps).sort("process", "start_ns", "end_ns")
    reached = pl.col("end_ns").cum_max().shift(1).over("process")
    outer = frame.filter((pl.col("start_ns") >= reached).fill_null(True))
    outer = outer.with_columns(step=pl.int_range(pl.len()).over("process"))
    for (process,), rows in outer.group_by("process", maintain_order=True):
        rank = state.processes[int(process)].rank
        columns = {c: rows[c].to_numpy() for c in ("step", "start_ns", "end_ns")}
        told = {"label": rows["label"].to_list(), "source": ["marker"] * rows.height}
        ranks = {} if rank is None else {"rank": [rank] * rows.height}
        state.stage.add_steps(columns | told | ranks)
    owner = np.full(len(state.stage.timelines), -1, np.int64)
    owner[list(state.owners)] = list(state.owners.values())
    step = _step_at(outer, owner[state.stage.times("timeline")], state.stage.times("start_ns"))
    for first, launch in state.launched:
        step[first : first + len(launch)] = np.where(launch >= 0, step[launch], -1)
    state.stage.set_late("step", pa.array(step, mask=step < 0))


def _step_at(steps: pl.DataFrame, process: Ints, time: Ints) -> NDArray[np.int32]:
    """int32[rows]: the step of a process that contains a time, -1 where none does."""
    found = np.full(len(time), -1, np.int32)
    for (owner,), rows in steps.group_by("process"):
        chosen = np.flatnonzero(process == owner)
        at = np.searchsorted(rows["start_ns"].to_numpy(), time[chosen], side="right") - 1
        inside = (at >= 0) & (time[chosen] < rows["end_ns"].to_numpy()[at])
        found[chosen] = np.where(inside, rows["step"].to_numpy()[at], -1)
    return found
