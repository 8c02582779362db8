"""How does ``validate`` say what is wrong with a trace, and what was doubtful in the profiles it was imported from?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.problems import Problem
from trnprof.tracer.units import printable


def problem_lines(
    trace: Path, problems: Sequence[Problem], findings: Sequence[Finding]
) -> list[str]:
    """A line for each problem, and a few for each finding of the import."""
    lines = [f"{p.severity}: {p.kind}: {p.where}: {p.message}" for p in problems]
    for finding in findings:
        lines += _finding_lines(finding)
    if not problems and all(finding.severity == "note" for finding in findings):
        lines.insert(0, f"{trace}: nothing wrong")
    return [printable(line) for line in lines]


def _finding_lines(finding: Finding) -> list[str]:
    times = f" ({finding.count})" if finding.count > 1 else ""
    lines = [f"{finding.severity}: {finding.kind}: {finding.where}: {finding.message}{times}"]
    if finding.example:
        lines.append(f"  for example: {finding.example}")
    if finding.unreliable:
        lines.append(f"  unreliable: {finding.unreliable}")
    return lines
