"""The first screen as a section: how good it is, what holds it back, and where the time goes, for Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from trnprof.analysis.breakdown import PART_LABELS
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.report import focused_window
from trnprof.analysis.sections.section import Column, Section, Table, silent, table
from trnprof.analysis.verdict import what_remains

KEY: Final = "overview"
TITLE: Final = "Overview"
TOP: Final = 12
_PARTS: Final = {f"{part}_ns": label for part, label in PART_LABELS.items()}
_HEADLINE: Final = (
    Column("time_ns", "a step", "ns"),
    Column("mfu", "MFU", "percent"),
    Column("hfu", "HFU", "percent"),
    Column("mbu", "HBM", "percent"),
    Column("roofline_ns", "roofline", "ns"),
)
_OPERATORS: Final = (
    Column("module", "layer"),
    Column("name", "operator"),
    Column("phase", "phase"),
    Column("time_ns", "time", "ns"),
    Column("share_of_active", "of active time", "percent"),
    Column("count", "calls", "count"),
    Column("bound_by", "bound by"),
    Column("roofline_share", "of roofline", "percent"),
)
_STEPS: Final = (
    Column("label", "step"),
    Column("time_ns", "time", "ns"),
    Column("mfu", "MFU", "percent"),
    Column("mbu", "HBM", "percent"),
    Column("idle", "idle", "percent"),
    Column("bound_by", "bound by"),
)


def overview(report: Mapping[str, Any]) -> Section:
    """The window that a report is about.

    Args:
        report: as ``build_report`` returns it.
    """
    window = focused_window(report)
    if "nothing_to_say" in window["metrics"]:
        return silent(KEY, TITLE, window["metrics"]["nothing_to_say"])
    tables = [
        _of("headline", "", _HEADLINE, [_headline(window)]),
        _of(
            "verdict",
            "what holds it back",
            (Column("sentence", "in short"),),
            [{"sentence": s} for s in _said(window, report)],
        ),
        _findings(report),
        _where(window),
        _engines(window),
        _of("operators", "operators", _OPERATORS, _operators(window)),
        _of("steps", "steps", _STEPS, [_step(s) for s in report["steps"]], TOP),
    ]
    notes = [*(report["execution"] or {}).get("notes", ()), *report["notes"]]
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), tuple(map(str, notes)))


def _of(
    key: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    top: int | None = None,
) -> Table:
    frame = pl.DataFrame(
        [{c.key: row.get(c.key) for c in columns} for row in rows], infer_schema_length=None
    )
    known = tuple(c for c in columns if not rows or frame[c.key].null_count() < frame.height)
    return table(key, title, known, frame, top)


def _headline(window: Mapping[str, Any]) -> dict[str, Any]:
    metrics, steps = window["metrics"], max(1, window["steps"])
    # of nothing known to do, the least time is not known either
    is_known = any(metrics.get(f"{n}_estimated_percent") is not None for n in ("hfu", "mbu"))
    roofline = metrics.get("roofline_s") if is_known else None
    return {
        "time_ns": window["breakdown"]["total_ns"] / steps,
        "mfu": metrics.get("mfu_estimated_percent"),
        "hfu": metrics.get("hfu_estimated_percent"),
        "mbu": metrics.get("mbu_estimated_percent"),
        "roofline_ns": None if roofline is None else roofline * 1e9 / steps,
    }


def _said(window: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """What bounds, how far from the roofline; and that there is nothing, where there is nothing."""
    said = list(window["verdict"].get("sentences", ()))
    return said if report["findings"] or not said else [*said, what_remains(window)]


def _findings(report: Mapping[str, Any]) -> Table:
    columns = (
        Column("title", "finding"),
        Column("evidence", "evidence"),
        Column("gain_ns", "would save", "ns"),
        Column("gain_share", "of the step", "percent"),
        Column("command", "shows more"),
    )
    return _of("findings", "what undoing it would save", columns, report["findings"], int(limit("first_screen")))  # fmt: skip


def _where(window: Mapping[str, Any]) -> Table:
    parts, steps = window["breakdown"], max(1, window["steps"])
    total = max(1, parts["total_ns"])
    rows = [
        {"part": label, "time_ns": parts[key] / steps, "share": parts[key] / total}
        for key, label in _PARTS.items()
        if parts[key]
    ]
    columns = (
        Column("part", "part"),
        Column("time_ns", "time", "ns"),
        Column("share", "of the step", "percent"),
    )
    return _of("breakdown", "where the step goes", columns, rows)


def _engines(window: Mapping[str, Any]) -> Table:
    total_s = window["breakdown"]["total_ns"] / 1e9
    reasons = sorted(
        {r for e in window["engines"] for r, s in e["idle_by_reason_s"].items() if s > 0},
        key=lambda r: (r == "none_after", r),
    )
    rows = [
        {"name": e["name"] if e["tracks"] == 1 else f"{e['name']} ×{e['tracks']}", "active": e["active_time_percent"]}
        | {r: e["idle_by_reason_s"].get(r, 0.0) / total_s for r in reasons}
        for e in window["engines"]
        if total_s
    ]  # fmt: skip
    columns = (
        Column("name", "engine"),
        Column("active", "active", "percent"),
        *(
            Column(r, "idle: end" if r == "none_after" else f"idle: {r.replace('_', ' ')}", "percent")
            for r in reasons
        ),
    )  # fmt: skip
    return _of("engines", "engines", columns, rows)


def _operators(window: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows, steps = window["operators"], max(1, window["steps"])
    if not isinstance(rows, list):
        return []
    return [r | {"time_ns": r["time_ns"] / steps, "count": r["count"] / steps} for r in rows[:TOP]]


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    metrics, parts = step["metrics"], step["breakdown"]
    total = parts["total_ns"]
    return {
        "label": step["label"] or f"step {step['step']}",
        "time_ns": step["end_ns"] - step["start_ns"],
        "mfu": metrics.get("mfu_estimated_percent"),
        "mbu": metrics.get("mbu_estimated_percent"),
        "idle": parts["idle_ns"] / total if total else None,
        "bound_by": step["verdict"].get("bound_by", "–").removesuffix("-bound"),
    }
