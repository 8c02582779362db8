"""What holds a step back, most first? All rules, ranked by what undoing each would save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trnprof.analysis.findings import (
    balance,
    communication,
    intensity,
    launches,
    machine,
    partition,
    roofline,
    throttling,
    transfers,
    transposes,
)
from trnprof.analysis.findings.case import Case, StepTimes
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.scope import Scope
from trnprof.analysis.steps import median_step
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.reader import Trace

Rule = Callable[[Case], list[Finding]]
TIERS: Final[tuple[tuple[Rule, ...], ...]] = (
    (machine.find, throttling.find),
    (balance.find, transfers.small, intensity.find, transposes.find),
    (communication.find, transfers.exposed, roofline.find, launches.find, partition.find),
)
"""Rules that name a cause before those that name what comes of it: what the first explain is not charged again."""

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
    found: list[Finding] = []
    for rules in ((partition.find,),) if case.times.is_large else TIERS:
        found += [finding for rule in rules for finding in rule(case)]
        case = _explained(case, found)
    said = {_SAME[f.key] for f in found if f.key in _SAME}
    found = [f for f in found if f.key not in said]
    worth = [f for f in found if _is_worth(f)]
    ranked = sorted(worth, key=lambda f: (-f.gain_ns, f.key, f.where))
    first: dict[tuple[str, str], Finding] = {}
    for finding in ranked:
        first.setdefault((finding.key, finding.where), finding)
    return list(first.values())


def _explained(case: Case, found: list[Finding]) -> Case:
    """The case with all that was found undone."""
    parts = [f.changes for f in found if f.changes is not None and _is_worth(f)]
    if case.graph is None or not parts:
        return case
    whole = parts[0]
    for part in parts[1:]:
        # what two findings are about is not made faster twice
        both = (whole.factors < 1) & (part.factors < 1)
        least, product = np.minimum(whole.factors, part.factors), whole.factors * part.factors
        whole = Changes(np.where(both, least, product), whole.added_ns + part.added_ns)
    return replace(case, given=whole)


def _is_worth(finding: Finding) -> bool:
    return finding.gain_share >= limit("worthwhile_share")
