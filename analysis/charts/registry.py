"""Which charts are there, and which section does each belong to?"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Final

from trnprof.analysis.charts.chart import Chart
from trnprof.analysis.sections.section import Subject

CHARTS: Final = {
    "step-breakdown": "breakdown",
    "utilization-over-time": "utilization",
    "roofline": "roofline",
    "critical-path": "critical-path",
    "collective-bandwidth": "collectives",
    "memory-over-time": "memory",
}
"""By name of the chart, in the order of a report, the section it stands in; the module of that name has ``build(subject)``."""


def charts_of(subject: Subject, sections: Collection[str] | None = None) -> list[Chart]:
    """Build charts.

    Args:
        subject: what they are of.
        sections: only those that belong to one of these; None: all.
    """
    return [
        build_chart(name, subject)
        for name, section in CHARTS.items()
        if sections is None or section in sections
    ]


def build_chart(name: str, subject: Subject) -> Chart:
    """Build one chart of CHARTS."""
    module = import_module(f"trnprof.analysis.charts.{name.replace('-', '_')}")
    build: Callable[[Subject], Chart] = module.build
    return build(subject)
