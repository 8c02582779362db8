"""Which steps of a profile are missing, and which have nothing on the device?"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.ingest.stage import Stage


def check_step_numbers(stage: Stage) -> None:
    """Gaps in the numbers at the ends of the steps' labels."""
    labels = [str(label) for rows in stage.steps for label in rows["label"]]
    numbers = sorted({int(m[1]) for label in labels if (m := re.search(r"(\d{1,15})\s*$", label))})
    gaps = [(a, b) for a, b in pairwise(numbers) if b > a + 1]
    missing = sum(b - a - 1 for a, b in gaps)
    if gaps:
        stage.audit.add(
            "missing_steps",
            "warning",
            stage.label,
            f"the numbers of its steps have gaps: of {numbers[-1] - numbers[0] + 1}, {missing} not here",
            unreliable="means over steps, trends",
            count=missing,
            example=f"step {gaps[0][0]} is followed by step {gaps[0][1]}",
        )


def check_steps(stage: Stage, start_ns: NDArray[np.int64], step_of: NDArray[np.int32]) -> None:
    """Steps that issued no device event; by time where no event names its step.

    Args:
        stage: closed.
        start_ns: of device events.
        step_of: the step that issued each, -1 where none is known.
    """
    columns = ("step", "start_ns", "end_ns")
    if not stage.steps:
        return
    step, start, end = (
        np.concatenate([np.asarray(rows[name], np.int64) for rows in stage.steps])
        for name in columns
    )
    labels = [str(label) for rows in stage.steps for label in rows["label"]]
    if (step_of >= 0).any():
        busy = np.isin(step, step_of)
    else:
        starts = np.sort(start_ns)
        busy = np.searchsorted(starts, end) > np.searchsorted(starts, start)
    silent = np.flatnonzero(~busy)
    if len(silent):
        stage.audit.add(
            "steps_without_device_events",
            "warning",
            stage.label,
            "steps have no device event",
            unreliable="means over steps; the steps concerned",
            count=len(silent),
            example=labels[int(silent[0])],
            of=len(step),
        )
