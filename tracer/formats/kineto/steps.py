"""Which steps does a PyTorch profile have, and which step issued each event?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from trnprof.tracer.formats.kineto.state import Bools, Ints, State
from trnprof.tracer.ingest.stage import UNFINISHED


def stage_steps(
    state: State,
    times: tuple[Ints, Ints],
    launch: tuple[Ints, Ints],
    process: Ints,
    ranks: Mapping[int, int],
) -> None:
    """Stage steps and give events theirs: that in which they began, device work that of the call that launched it.

    Args:
        state: the profile, all read.
        times: start and end of all events.
        launch: rows of device work, and row of the call that launched each, -1: unknown.
        process: number of the process of all events.
        ranks: of processes, if they are several ranks; steps are theirs then.
    """
    rows = state.steps["row"]
    step = np.full(len(process), -1, np.int32)
    owners = sorted(ranks) if ranks else [None]
    for owner in owners:
        own = np.ones(len(rows), np.bool_) if owner is None else process[rows] == owner
        if not own.any():
            continue
        first, last = _add_steps(state, times, own, None if owner is None else ranks[owner])
        chosen = slice(None) if owner is None else np.flatnonzero(process == owner)
        start = times[0][chosen]
        at = (np.searchsorted(first, start, side="right") - 1).astype(np.int32)
        step[chosen] = np.where(start >= last[at], np.int32(-1), at)
    if len(rows):
        work, call = launch
        step[work] = np.where(call >= 0, step[call], -1)
        state.stage.set_late("step", pa.array(step, mask=step < 0))


def _add_steps(
    state: State, times: tuple[Ints, Ints], chosen: Bools, rank: int | None
) -> tuple[Ints, Ints]:
    """Stage the steps of some ranges, those of the same label as one; starts and ends in order."""
    start_ns, end_ns = times
    rows = state.steps["row"][chosen]
    used, label = np.unique(state.steps["label"][chosen], return_inverse=True)
    first = np.full(len(used), np.iinfo(np.int64).max)
    last = np.full(len(used), np.iinfo(np.int64).min)
    np.minimum.at(first, label, start_ns[rows])
    is_open = end_ns[rows] == UNFINISHED
    ends = np.where(is_open, max(int(end_ns.max()), int(start_ns.max())), end_ns[rows])
    np.maximum.at(last, label, ends)
    order = np.argsort(first, kind="stable")
    words = list(state.step_labels)
    first, last = first[order], np.maximum(last, first)[order]
    columns = {
        "step": np.arange(len(used), dtype=np.int32),
        "start_ns": first,
        "end_ns": last,
        "label": [words[code] for code in used[order].tolist()],
        "source": ["profiler"] * len(used),
    }
    state.stage.add_steps(columns if rank is None else columns | {"rank": [rank] * len(used)})
    return first, last
