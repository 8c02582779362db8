"""What does a trace say of the profiles it was imported from: which they were, and what is doubtful in them?

A trace may come from anywhere: whatever is not as the import writes it is told, not trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

from trnprof.tracer.ingest.audit import SEVERITIES, Finding, finding_from_json, gravest_first
from trnprof.tracer.reader import Trace

_TEXTS: Final = ("kind", "severity", "where", "message", "unreliable", "example")


def kept_findings(trace: Trace) -> list[Finding]:
    """The findings of all writers and of the import as a whole, gravest first."""
    parts = [(f"writer {f.get('writer')}", f.get("audit", [])) for f in trace.fragments]
    parts.append(("manifest.json", _imported(trace).get("audit", [])))
    found = [finding for where, rows in parts for finding in _read(where, rows)]
    return gravest_first(found)


def kept_sources(trace: Trace) -> list[dict[str, Any]]:
    """The profiles that a trace was imported from: ``label``, ``format``, ``rank`` (or None) and ``events`` of each."""
    rows = _imported(trace).get("sources", [])
    return [
        {
            "label": str(row.get("label", "?")),
            "format": str(row.get("format", "?")),
            "rank": _whole_number(row.get("rank")),
            "events": _whole_number(row.get("events")) or 0,
        }
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, Mapping)
    ]


def _imported(trace: Trace) -> Mapping[str, Any]:
    imported = trace.manifest.get("imported")
    return imported if isinstance(imported, Mapping) else {}


def _read(where: str, rows: object) -> Iterator[Finding]:
    """The findings in a list of JSON objects; one more for those that are none."""
    if not isinstance(rows, list):
        rows = [rows]
    malformed = [row for row in rows if not _is_finding(row)]
    for row in rows:
        if _is_finding(row):
            yield finding_from_json(row)
    if malformed:
        message = "entries of the import's audit that cannot be read; import the profile again"
        example = str(malformed[0])[:80]
        yield Finding("malformed_audit", "warning", where, message, "", len(malformed), example)


def _is_finding(row: object) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(row, Mapping):
        return False
    texts = [row.get(key, "") for key in _TEXTS]
    count = row.get("count", 1)
    return (
        all(isinstance(text, str) for text in texts)
        and all(row.get(key) for key in ("kind", "where", "message"))
        and row.get("severity") in SEVERITIES
        and _whole_number(count) is not None
    )


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
