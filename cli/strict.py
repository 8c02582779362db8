"""Is what was emulated good enough for who asked? How much was lowered exactly, whether it fits memory, and what then fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trnprof.cli.diagnostics import ExitCode, say

_MOST_NAMES: Final = 6


@dataclass(frozen=True)
class Checks:
    """What makes a command fail although its trace is written.

    Attributes:
        fallback_percent: the largest share of busy time by the roofline fallback, in percent; None: any.
        memory: more than the emulated HBM holds.
    """

    fallback_percent: float | None = None
    memory: bool = False


NO_CHECKS: Final = Checks()


def tell_coverage(details: Mapping[str, Any]) -> None:
    """How many operations were lowered exactly, how many by the fallback, the share of time of each, and by which names.

    Args:
        details: what the manifest says of an emulation.
    """
    share = details["fallback_time_percent"]
    text = f"lowered exactly: {details['exact_ops']} operation(s), {1 - share:.1%} of busy time"
    if details["fallback_ops"]:
        counts = details["fallback_names"]
        names = [f"{n} ({counts[n]}, {s:.1%})" for n, s in details["fallback_shares"].items()]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        text += (
            f"; by the roofline fallback: {details['fallback_ops']}, {share:.1%}: "
            f"{', '.join(names[:_MOST_NAMES] + more)}"
        )
    say(text)


def failed(details: Mapping[str, Any], checks: Checks) -> ExitCode:
    """FOUND, with a line for each, if a check failed; else FINE."""
    found = []
    percent, most = 100 * details["fallback_time_percent"], checks.fallback_percent
    if most is not None and percent > most:
        found.append(f"--strict {most:g}: the roofline fallback has {percent:.2f} % of busy time")
    hbm = details["hbm"]
    if checks.memory and hbm["peak_bytes"] > hbm["capacity_bytes"]:
        found.append("--strict-memory: the workload does not fit the emulated HBM")
    for text in found:
        say(text)
    return ExitCode.FOUND if found else ExitCode.FINE
