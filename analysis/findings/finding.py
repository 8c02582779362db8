"""What is a finding? The thing that holds a step back, its evidence in numbers, and what undoing it would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnprof.analysis.whatif.retime import Changes


@dataclass(frozen=True)
class Finding:
    """One thing that holds a step back.

    Attributes:
        key: which rule found it.
        title: one line that names it: a layer, collective, link, chip or source line.
        evidence: figures, and what would undo it.
        where: the thing's name alone, as filters take it.
        query: SQL for ``trnprof query`` that shows the evidence.
        command: of a section that shows more.
        touched_ns: how much of a step it touches (time in which it runs or makes others wait).
        gain_ns: what a step would take less.
        step_ns: the step that both are of.
        is_upper_bound: the gain is what goes away if nothing else moves, from the partition of the step; not timed again.
        changes: of the step's graph that undo it; None if it was not timed again.
    """

    key: str
    title: str
    evidence: str
    where: str
    query: str
    command: str
    touched_ns: float
    gain_ns: float
    step_ns: float
    is_upper_bound: bool = False
    changes: Changes | None = None

    @property
    def gain_share(self) -> float:
        """Of the step."""
        return self.gain_ns / self.step_ns if self.step_ns else 0.0

    def as_row(self) -> dict[str, Any]:
        """For JSON and tables."""
        return {
            "key": self.key,
            "title": self.title,
            "evidence": self.evidence,
            "where": self.where,
            "gain_ns": round(self.gain_ns),
            "gain_share": float(f"{self.gain_share:.6g}"),
            "is_upper_bound": self.is_upper_bound,
            "touched_ns": round(self.touched_ns),
            "touched_share": float(f"{self.touched_ns / self.step_ns:.6g}") if self.step_ns else 0.0,
            "query": self.query,
            "command": self.command,
        }  # fmt: skip
