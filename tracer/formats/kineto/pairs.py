"""Which end belongs to which beginning, where a PyTorch profile has been through a tool that writes ranges in two halves?

An end closes the range of its thread that began last, in order of time, as the trace event format says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.kineto.state import State


def close_ranges(state: State) -> None:
    """Give ranges that were staged without an end the ends that were met."""
    halves = state.halves
    if not halves.count:
        return
    row, place, ts = halves["row"], halves["place"], halves["ts"]
    order = np.lexsort((ts, place))
    closes = _matched(order, place, row)
    is_end = row < 0
    matched = np.flatnonzero(closes >= 0)
    if len(matched):
        state.stage.set_ends(row[closes[matched]], ts[matched])
    lost = np.flatnonzero(is_end & (closes < 0))
    if len(lost):
        state.stage.audit.add(
            "unmatched_ends",
            "warning",
            state.label,
            "ends of ranges have no beginning and were left out",
            unreliable="the ranges concerned",
            count=len(lost),
            example=f"at {int(ts[lost[0]])} ns",
        )


@compiled
def _matched(order: Any, place: Any, row: Any) -> Any:
    """For each end the beginning that it closes, -1: none; ``row`` is negative for ends."""
    closes = np.full(len(order), -1, np.int64)
    stack = np.empty(len(order), np.int64)
    depth = 0
    for at in range(len(order)):
        half = order[at]
        if at > 0 and place[half] != place[order[at - 1]]:
            depth = 0
        if row[half] >= 0:
            stack[depth] = half
            depth += 1
        elif depth > 0:
            depth -= 1
            closes[half] = stack[depth]
    return closes
