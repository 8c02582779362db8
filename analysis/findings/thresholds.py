"""From where on is something a finding? The figures of ``thresholds.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Threshold:
    """A figure.

    Attributes:
        value: of it.
        unit: what it counts.
        source: who printed it; None if it is ours.
        reason: of an estimate of ours.
    """

    value: float
    unit: str
    source: str | None
    reason: str | None


@cache
def thresholds() -> dict[str, Threshold]:
    """All by name."""
    text = (files("trnprof.analysis.findings") / "thresholds.toml").read_text("utf-8")
    return {
        name: Threshold(float(entry["value"]), entry["unit"], entry.get("source"), entry.get("reason"))
        for name, entry in tomllib.loads(text).items()
    }  # fmt: skip


def limit(name: str) -> float:
    """The value of one."""
    return thresholds()[name].value
