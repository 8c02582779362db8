"""Which of a Neuron tool's own summary figures can be believed, and how are they kept?

One table a profile, under the tool's names: times in seconds, sizes in bytes, what is called percent as a fraction 0–1, as every real
dump stores them. Figures that cannot be are told and kept apart as ``raw``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trnprof.tracer.ingest.audit import Audit

DEFINITIONS: Final = "neuron-7.4.0"
MOST_METRICS: Final = 4_096
_TOLERANCE: Final = 1e-4
_MAY_EXCEED_ONE: Final = "max_achievable"
"""Roofline caps: above 1 the memory would feed more than the peak."""
VERSIONS: Final = ("profiler_version", "explorer_version")

Figures = dict[str, float | int | str | bool]


def metric_table(
    profiles: Mapping[str, Mapping[str, Any]], source: str, label: str, audit: Audit
) -> dict[str, Any]:
    """For ``Facts.metrics``: definitions, source, tool_version, profiles (name → metric → value) and raw (what is impossible).

    Args:
        profiles: figures by profile, percents as fractions; values that are neither number nor text are left out.
        source: what they come from, such as ``summary-json``.
        label: of the source, for findings.
        audit: where they go.
    """
    believed: dict[str, Figures] = {}
    raw: dict[str, Figures] = {}
    for name, figures in profiles.items():
        kept: Figures = {}
        apart: Figures = {}
        for metric, value in list(figures.items())[:MOST_METRICS]:
            if isinstance(value, (bool, int, float, str)):
                why = impossible(metric, value)
                (apart if why else kept)[str(metric)] = _plain(value)
                if why:
                    _tell(audit, label, name, metric, value, why)
        believed[name] = kept
        if apart:
            raw[name] = apart
    table: dict[str, Any] = {
        "definitions": DEFINITIONS,
        "source": source,
        "tool_version": _version(believed),
        "profiles": believed,
    }
    return table | ({"raw": raw} if raw else {})


def impossible(metric: str, value: Any) -> str:
    """Why a figure cannot be; empty if it can."""
    if isinstance(value, (bool, str)):
        return ""
    if not math.isfinite(value):
        return "not a number"
    if metric.endswith("_percent") and _MAY_EXCEED_ONE not in metric and value > 1 + _TOLERANCE:
        return "a fraction above 1"
    is_amount = metric.endswith(
        ("_percent", "_time", "_bytes", "_count", "_flops", "_size", "_cycles", "_time_ns")
    )
    return "below 0" if is_amount and value < 0 else ""


def _tell(audit: Audit, label: str, profile: str, metric: str, value: Any, why: str) -> None:
    shown = f"{value * 100:.6g} %" if metric.endswith("_percent") else f"{value:g}"
    audit.add(
        "impossible_metric",
        "warning",
        f"{label}: {profile}" if profile else label,
        f"figures of the tool that cannot be ({why}) are kept apart, as raw",
        unreliable="these figures",
        example=f"{metric} = {shown}",
    )


def _plain(value: Any) -> float | int | str | bool:
    if isinstance(value, str):
        return value[:500]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value  # type: ignore[no-any-return]


def _version(profiles: Mapping[str, Figures]) -> str | None:
    for figures in profiles.values():
        for name in VERSIONS:
            if figures.get(name):
                return str(figures[name])
    return None
