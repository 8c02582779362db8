"""How does ``validate`` say what is wrong with a trace, and what was doubtful in the profiles it was imported from?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.problems import Problem
from trnprof.tracer.units import format_count, printable


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


def times_text(count: int, whole: int | None) -> str:
    """How often something was found, of how many if that is known, to be put behind what was found."""
    if whole is not None:
        return f" ({count:,} of {whole:,})"
    return f" ({format_count(count)})" if count > 1 else ""


def _finding_lines(finding: Finding) -> list[str]:
    times = times_text(finding.count, finding.of)
    lines = [f"{finding.severity}: {finding.kind}: {finding.where}: {finding.message}{times}"]
    if finding.example:
        lines.append(f"  for example: {finding.example}")
    if finding.unreliable:
        lines.append(f"  unreliable: {finding.unreliable}")
    return lines
