"""What is wrong with a trace, in a form that both a person and a program can use?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One kind of fault at one place.

    Attributes:
        severity: ``error`` (the data is wrong or lost) or ``warning`` (the data is incomplete, but what is there holds).
        kind: stable key, such as ``negative_duration``, ``torn_stream``, ``unsealed``.
        where: file or table, with the first offending row or event.
        message: one sentence for a person, with an example.
        count: how many rows or places have it.
    """

    severity: str
    kind: str
    where: str
    message: str
    count: int = 1


def error(kind: str, where: str, message: str, count: int = 1) -> Problem:
    """A problem of severity ``error``."""
    return Problem("error", kind, where, message, count)


def warning(kind: str, where: str, message: str, count: int = 1) -> Problem:
    """A problem of severity ``warning``."""
    return Problem("warning", kind, where, message, count)
