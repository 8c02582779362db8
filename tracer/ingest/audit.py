"""What is doubtful in an imported profile, and what does it make unreliable?

Findings are gathered while a profile is read, kept in the fragment of the trace's writer under ``audit``, and told by
``trnprof import`` and ``trnprof validate``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

SEVERITIES: Final = ("error", "warning", "note")
"""Gravest first."""


@dataclass(frozen=True)
class Finding:
    """One kind of doubt about one source.

    Attributes:
        kind: stable key in snake_case, such as ``truncated``, ``duplicate_events``, ``unlinked_kernels``.
        severity: ``error`` (data is lost or wrong), ``warning`` (figures that rest on it are doubtful) or ``note`` (nothing
            is wrong, but a person should know what was done).
        where: source, with byte offset, row or event where there is one.
        message: one sentence for a person: what was found and what was done about it.
        unreliable: what it makes unreliable, in a few words; empty for a note that touches no figure.
        count: events, rows or places that have it.
        example: the first of them, short, for a person.
        of: how many events, rows or places there are in all; None if that does not matter.
    """

    kind: str
    severity: str
    where: str
    message: str
    unreliable: str = ""
    count: int = 1
    example: str = ""
    of: int | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, as the fragment keeps it."""
        return asdict(self)


def finding_from_json(row: Mapping[str, Any]) -> Finding:
    """The finding that ``to_json`` gave; unknown keys are left out."""
    known = {key: row[key] for key in Finding.__dataclass_fields__ if key in row}
    return Finding(**known)


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by severity, else in the order given; a severity that is not known (of a foreign format) counts as a warning."""
    rank = {severity: place for place, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda f: rank.get(f.severity, rank["warning"]))


def is_doubtful(findings: Iterable[Finding]) -> bool:
    """Whether any finding is more than a note."""
    return any(finding.severity != "note" for finding in findings)


class Audit:
    """The findings of one source; those of one kind and place become one with the sum of their counts."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str], Finding] = {}

    def add(
        self,
        kind: str,
        severity: str,
        where: str,
        message: str,
        *,
        unreliable: str = "",
        count: int = 1,
        example: str = "",
        of: int | None = None,
    ) -> None:
        """Note something; nothing happens when ``count`` is 0.

        Args:
            kind: see ``Finding``; so for the others.
            severity: ``error``, ``warning`` or ``note``.
            where: the source, and place in it if one place stands for all.
            message: one sentence; the first one of a kind and place is kept.
            unreliable: what figures it touches.
            count: how many events or places.
            example: the first of them.
            of: how many there are in all, if that matters.
        """
        if not count:
            return
        known = self._findings.get((kind, where))
        if known is None:
            found = Finding(kind, severity, where, message, unreliable, count, example, of)
            self._findings[kind, where] = found
        else:
            total = None if known.of is None or of is None else known.of + of
            self._findings[kind, where] = replace(known, count=known.count + count, of=total)

    def extend(self, findings: Iterable[Finding]) -> None:
        """Note findings made elsewhere."""
        for f in findings:
            self.add(
                f.kind,
                f.severity,
                f.where,
                f.message,
                unreliable=f.unreliable,
                count=f.count,
                example=f.example,
                of=f.of,
            )

    def has(self, kind: str) -> bool:
        """Whether anything of a kind was noted."""
        return any(known == kind for known, _ in self._findings)

    @property
    def findings(self) -> list[Finding]:
        """All of them, gravest first, else in the order they were met."""
        return gravest_first(self._findings.values())
