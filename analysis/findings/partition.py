"""What does the partition of a step suggest where it cannot be timed again? The advice of ``verdict``, as an upper bound."""

from __future__ import annotations

from typing import Final

from trnprof.analysis.breakdown import PART_LABELS
from trnprof.analysis.findings.case import Case
from trnprof.analysis.findings.finding import Finding
from trnprof.tracer.units import format_percent

_SECTIONS: Final = {"hide-collectives": "breakdown", "hide-dma": "breakdown"}


def find(case: Case) -> list[Finding]:
    """The advice of the window; nothing of a step that is timed again: other rules do that."""
    advice = case.window["verdict"].get("advice")
    if advice is None or case.graph is not None:
        return []
    gain_ns = advice["gain_ns"] / case.steps
    text = str(advice["text"])
    return [
        Finding(
            key=advice["key"],
            title=text[0].upper() + text[1:],
            evidence=_parts(case),
            where=advice["key"],
            query=f"SELECT name, module, phase, time_ns, bound_by, roofline_share FROM operators WHERE {case.at_step()} ORDER BY time_ns DESC LIMIT 10",
            command=case.report(_SECTIONS.get(advice["key"], "idle")),
            touched_ns=gain_ns,
            gain_ns=gain_ns,
            step_ns=float(case.parts["total_ns"]) / case.steps,
            is_upper_bound=True,
        )
    ]


def _parts(case: Case) -> str:
    """``compute 40.0 %, exposed DMA 60.0 %`` of the step."""
    total = max(1.0, float(case.parts["total_ns"]))
    said = {label: case.parts[f"{part}_ns"] / total for part, label in PART_LABELS.items()}
    return "of the time " + ", ".join(f"{label} {format_percent(share)}" for label, share in said.items() if share)  # fmt: skip
