"""Is what was emulated good enough for who asked? How much was lowered exactly, whether it fits memory, and what then fails."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trnprof.cli.diagnostics import ExitCode, say

_MOST_NAMES: Final = 6
DEFAULT_STRICT: Final = "5"
"""Percent of busy time that ``--strict`` without a number lets the fallback have."""
_NUMBER: Final = re.compile(r"[-+]?\.?\d")


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


def with_default_strict(arguments: Sequence[str]) -> list[str]:
    """The arguments of the command line, a bare ``--strict`` of record and emulate given its number; the parser has no options that may stand alone.

    >>> with_default_strict(["record", "--strict", "--", "python", "train.py", "--strict"])
    ['record', '--strict', '5', '--', 'python', 'train.py', '--strict']
    >>> with_default_strict(["emulate", "run.trnprof", "--strict", "0"])
    ['emulate', 'run.trnprof', '--strict', '0']
    """
    own = list(arguments)
    if own[:1] not in (["record"], ["emulate"]):
        return own
    end = own.index("--") if "--" in own else len(own)
    for at in (i for i in range(end - 1, 0, -1) if own[i] == "--strict"):
        following = own[at + 1] if at + 1 < end else ""
        if not _NUMBER.match(following):
            own.insert(at + 1, DEFAULT_STRICT)
    return own


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
