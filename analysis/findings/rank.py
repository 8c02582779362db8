"""What holds a step back, most first? All rules, ranked by what undoing each would save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnprof.analysis.findings import (
    balance,
    communication,
    intensity,
    launches,
    machine,
    partition,
    transfers,
)
from trnprof.analysis.findings.case import Case, StepTimes
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.scope import Scope
from trnprof.analysis.steps import median_step
from trnprof.tracer.reader import Trace

PROGRAM = (balance, communication, transfers, intensity, launches, partition)
"""Rules about the program; what is wrong with the machine is told first, and not charged to it."""

_SAME = {launches.KEY: "launches", communication.KEY: "hide-collectives"}
"""Rules that say more exactly what an advice of the partition is."""


def findings_of(trace: Trace, scope: Scope, window: Mapping[str, Any]) -> list[Finding]:
    """What holds a window back.

    Args:
        trace: the trace.
        scope: of its device tracks, of the rank asked for or all.
        window: of ``report.build_report``: a step, or all of them, of which the median one is timed again.

    Returns:
        Those worth ``worthwhile_share`` of the step or more, the largest gain first; of one key and thing one.
    """
    if "nothing_to_say" in window["verdict"]:
        return []
    step = median_step(scope) if window["step"] is None else window["step"]
    case = Case(StepTimes(trace, scope, step), window)
    faults = machine.find(case)
    rest = machine.undone(case, faults)
    found = [*faults, *(f for rule in PROGRAM for f in rule.find(rest))]
    said = {_SAME[f.key] for f in found if f.key in _SAME}
    found = [f for f in found if f.key not in said]
    worth = [f for f in found if f.gain_share >= limit("worthwhile_share")]
    ranked = sorted(worth, key=lambda f: (-f.gain_ns, f.key, f.where))
    return list({(f.key, f.where): f for f in reversed(ranked)}.values())[::-1]
