"""What does a report not know, and why? Notes beside figures that an imported profile leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trnprof.analysis.scope import Scope
from trnprof.tracer.reader import Trace
from trnprof.tracer.units import format_percent

WORTH_TELLING: Final = 0.001
"""Share of device time outside of all steps that is worth a note."""


def unit_noun(scope: Scope | None) -> str:
    """What a unit of the device is called: core, chip, GPU, or host where nothing is known below it."""
    if scope is None or not scope.units.height:
        return "core"
    if scope.units["name"].str.starts_with("GPU").all():
        return "GPU"
    kinds = scope.units["unit_kind"].unique().to_list()
    return kinds[0] if len(kinds) == 1 and kinds[0] in ("core", "chip", "host") else "unit"


def unknown_notes(window: Mapping[str, Any], trace: Trace) -> list[str]:
    """Why MFU and HBM utilization of an imported trace are null.

    Args:
        window: of a report.
        trace: what it is of.
    """
    metrics = window["metrics"]
    if "imported" not in trace.manifest or "nothing_to_say" in metrics:
        return []
    notes = []
    if metrics["mfu_estimated_percent"] is None:
        if metrics["peak_flops"] is None:
            reason = "nobody knows the peak of this device"
        elif metrics["hardware_flops"] is None:
            reason = "the profile has no FLOPs"
        else:
            reason = "no FLOPs lie in the window"
        notes.append(f"MFU and HFU are unknown: {reason}")
    if metrics["mbu_estimated_percent"] is None:
        if metrics["hbm_read_bytes"] is None:
            reason = "the profile does not say what kernels read and write"
        else:
            reason = "nobody knows the bandwidth of this device"
        notes.append(f"HBM utilization is unknown: {reason}")
    return notes


def outside_note(within_ns: int, everything_ns: int) -> list[str]:
    """Device time that no step holds: work that outlasts the step which issued it, or came before the first.

    Args:
        within_ns: summed time of events in what holds all steps.
        everything_ns: of all events.
    """
    outside = everything_ns - within_ns
    if outside <= WORTH_TELLING * everything_ns:
        return []
    return [
        f"{format_percent(outside / everything_ns)} of the device's event time lies before the first step or after the last: "
        "ranks count it, steps do not"
    ]
