"""Which sections are there? Their names, what each answers, and where it is made."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from trnprof.analysis.sections.section import Section, Subject
from trnprof.tracer.errors import TrnprofError

QUESTIONS: Final = {
    "findings": "What holds the step back, and what would undoing each of it save?",
    "breakdown": "Where does the step go, and which collectives and DMAs does nothing hide?",
    "overlap": "What of compute, DMA and collectives runs at once?",
    "utilization": "How busy was each engine, core, chip and rank, by step and over time?",
    "idle": "What did idle engines wait for?",
    "collectives": "What do collectives take and reach, and who comes late to them?",
    "dma": "Are DMAs large enough, spread over the queues, and what of their time is their bytes?",
    "operators": "Which operators, layers, lines and shapes take the time, what repeats, and what does the host add?",
    "steps": "How even are steps, which warm up, which are out of line and by what?",
    "roofline": "How much of the machine is used, and where do operators and layers stand under its roofs?",
    "memory": "How full are HBM and the other memories over time, and with what?",
    "critical-path": "Which chain of events makes the step as long as it is?",
}
"""By name of the section, in the order of a report; the module of that name (``_`` for ``-``) has ``build(subject)``."""


def build_section(name: str, subject: Subject) -> Section:
    """Answer one question.

    Raises:
        TrnprofError: there is no such section.
    """
    if name not in QUESTIONS:
        raise TrnprofError(f"no section {name!r}; there are {', '.join(QUESTIONS)}")
    build: Callable[[Subject], Section] = import_module(
        f"trnprof.analysis.sections.{name.replace('-', '_')}"
    ).build
    return build(subject)
