"""Section ``findings``: what holds the step back, with what undoing it would save, the evidence, and the query that shows it."""

from __future__ import annotations

import re
import shlex
from typing import Final

import polars as pl

from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.report import build_report, focused_window
from trnprof.analysis.sections.section import Column, Section, Subject, silent, table
from trnprof.analysis.verdict import what_remains
from trnprof.tracer.units import format_percent

KEY: Final = "findings"
TITLE: Final = "What holds it back"
_COLUMNS: Final = (
    Column("title", "finding"),
    Column("gain_ns", "would save", "ns"),
    Column("gain_share", "of step", "percent"),
    Column("touched_share", "touches", "percent"),
)


def build(subject: Subject) -> Section:
    """All findings of the step asked for, or of the median one."""
    if subject.scope is None:
        return silent(KEY, TITLE, "because the trace has no device tracks")
    report = subject.report or build_report(subject.trace, subject.step, subject.rank)
    window, rows = focused_window(report), report["findings"]
    if "nothing_to_say" in window["verdict"]:
        return silent(KEY, TITLE, window["verdict"]["nothing_to_say"])
    if not rows:
        return silent(KEY, TITLE, f"because {_lower(what_remains(window))}")
    frame = pl.DataFrame(rows, infer_schema_length=None)
    tables = (table("findings", "", _COLUMNS, frame),)
    told = [
        text
        for number, row in enumerate(rows, 1)
        for text in (
            f"{number}: {row['evidence']}",
            f"→ {row['command']}",
            f"→ trnprof query {shlex.quote(subject.trace.name)} {_quoted(row['query'])}",
        )
    ]
    least = format_percent(limit("worthwhile_share"), 0)
    notes = [*told, f"what would save less than {least} of the step is left out; gains do not add up: each is timed alone"]  # fmt: skip
    if any(row["is_upper_bound"] for row in rows):
        notes.append("~ some gains are what goes away if nothing else moves: the step could not be timed again")  # fmt: skip
    return Section(KEY, TITLE, tables, tuple(notes))


def _quoted(sql: str) -> str:
    """In double quotes of a shell: SQL has single ones of its own."""
    return '"' + re.sub(r'(["$`\\])', r"\\\1", sql) + '"'


def _lower(text: str) -> str:
    return text[0].lower() + text[1:].removesuffix(".")
