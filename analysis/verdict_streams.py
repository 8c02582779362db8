"""What holds back a device whose kernels run on streams (a GPU, or any profile without named engines)?

Two sentences, and what its partition suggests.

Nothing is said of what bounds a kernel inside: a profile of streams does not tell. What is told is what the device does, over all its
streams: it is bound by

    collectives   if they run exposed for EXPOSED_SHARE of the time and more than copies and idle each
    compute       if kernels compute for BUSY_SHARE of the time
    copies        if they run exposed for EXPOSED_SHARE of the time and more than it idles
    latency       else: it waits for launches and results

and what is proposed is whatever would save most: hiding collectives, hiding copies, or keeping the device fed. Gains are upper
bounds, as in ``verdict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trnprof.analysis.operators import LATENCY
from trnprof.analysis.verdict import (
    BUSY_SHARE,
    COLLECTIVE,
    EXPOSED_SHARE,
    WORTHWHILE,
    Advice,
    advised,
    how_far,
    noun,
    overlap_advice,
)
from trnprof.tracer.units import format_percent, printable

COMPUTE: Final = "compute-bound"
COPY: Final = "copy-bound"


def runs_on_streams(window: Mapping[str, Any]) -> bool:
    """Whether the window of a report is of a device that has streams."""
    return any(engine["kind"] == "stream" for engine in window["engines"])


def stream_verdict(window: Mapping[str, Any]) -> dict[str, Any]:
    """What to say of one window of a report; the keys of ``verdict``.

    Args:
        window: metrics, engines, breakdown, operators, steps, as ``report.build_report`` makes them.
    """
    total_ns = float(window["breakdown"]["total_ns"])
    if total_ns <= 0 or not window["metrics"]["total_active_time"]:
        return {"nothing_to_say": "because no event of the device takes time in this window"}
    without = _without_copies(window)
    roofline_s = without["metrics"]["roofline_s"]
    found = _advice(window["breakdown"])
    advice = found if found.gain_ns >= WORTHWHILE * total_ns else None
    return {
        "bound_by": stream_bound(window["breakdown"]),
        "sentences": [
            _what_bounds(window),
            how_far(without, total_ns),
        ],
        "roofline_gap": total_ns / 1e9 / roofline_s if roofline_s else None,
        **advised(advice),
    }


def _without_copies(window: Mapping[str, Any]) -> Mapping[str, Any]:
    """The window without its roofline if no kernel states FLOPs: the bytes of its copies alone say nothing of what it could take."""
    if window["metrics"]["roofline_compute_s"]:
        return window
    return {**window, "metrics": {**window["metrics"], "roofline_s": None}}


def stream_bound(parts: Mapping[str, Any]) -> str:
    """What bounds, by the rule of the module's docstring.

    Args:
        parts: breakdown of a report's window.
    """
    total, idle = parts["total_ns"], parts["idle_ns"] + parts["host_ns"]
    collective, copies = parts["exposed_collective_ns"], parts["exposed_dma_ns"]
    if collective >= EXPOSED_SHARE * total and collective > max(copies, idle):
        return COLLECTIVE
    if parts["compute_ns"] >= BUSY_SHARE * total:
        return COMPUTE
    if copies >= EXPOSED_SHARE * total and copies > idle:
        return COPY
    return LATENCY


def _what_bounds(window: Mapping[str, Any]) -> str:
    parts = window["breakdown"]
    total = parts["total_ns"]
    shares = {
        "kernels compute": parts["compute_ns"],
        "collectives run alone": parts["exposed_collective_ns"],
        "copies run alone": parts["exposed_dma_ns"],
        "nothing runs": parts["idle_ns"] + parts["host_ns"],
    }
    said = [f"{what} {format_percent(ns / total)}" for what, ns in shares.items() if ns]
    bound = {
        COLLECTIVE: "exposed collectives bound",
        COMPUTE: "compute bounds",
        COPY: "exposed copies bound",
        LATENCY: "latency and launches bound",
    }[stream_bound(parts)]
    text = f"Of the time, {', '.join(said)}: {bound} this {noun(window)}{_longest(window)}."
    return text[0].upper() + text[1:]


def _longest(window: Mapping[str, Any]) -> str:
    rows = window["operators"]
    if not isinstance(rows, list) or not rows or rows[0]["share_of_active"] is None:
        return ""
    name = printable(" ".join(p for p in (rows[0]["module"], rows[0]["name"]) if p))
    short = name if len(name) <= 48 else f"{name[:47]}…"
    return f"; the longest is {short} ({format_percent(rows[0]['share_of_active'])} of the active time)"


def _advice(parts: Mapping[str, Any]) -> Advice:
    found = (
        overlap_advice(parts),
        Advice(
            "hide-copies",
            "hiding copies behind compute (pinned memory, a stream of their own), or fewer of them",
            parts["exposed_dma_ns"],
        ),
        Advice(
            "launches",
            "keeping the device fed (fewer, longer kernels; graphs that launch many at once; no waits of the host in between)",
            parts["idle_ns"] + parts["host_ns"],
        ),
    )
    return max((a for a in found if a is not None), key=lambda a: a.gain_ns)
