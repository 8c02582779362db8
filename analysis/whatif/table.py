"""How is the answer to a what-if shown? As a section with tables, which every format shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from trnprof.analysis.sections.section import Column, Section, table
from trnprof.tracer.units import format_ns, format_percent

_CHANGES: Final = (
    Column("change", "change"),
    Column("step_ns", "step", "ns"),
    Column("saved_ns", "saves", "ns"),
    Column("saved_share", "of step", "percent"),
)
_PATH: Final = (
    Column("doing", "doing"),
    Column("duration_ns", "time", "ns"),
    Column("share", "of step", "percent"),
)


def what_if_section(outcome: Mapping[str, Any]) -> Section:
    """The outcome of ``what_if`` as a section."""
    which = "the whole trace" if outcome["step"] is None else f"step {outcome['step']}"
    step_ns, error = outcome["step_ns"], outcome["error"]
    title = f"What if: {which} takes {format_ns(step_ns)}"
    rows = outcome["changes"] + ([outcome["together"]] if len(outcome["changes"]) > 1 else [])
    steps = outcome["steps"]
    extrapolated = (Column("all_steps_saved_ns", f"~ of {steps} steps", "ns"),) if steps > 1 else ()
    tables = (
        table("changes", "", (*_CHANGES, *extrapolated), pl.DataFrame(rows)),
        table("critical_path", "what the step would then be made of", _PATH, pl.DataFrame(outcome["critical_path"]), 10),
    )  # fmt: skip
    again = f"timed again unchanged: {format_ns(outcome['unchanged_ns'])}, {format_percent(error, 2)} off the trace"
    notes = [again]
    if steps > 1:
        notes.append(f"~ the median of {steps} steps stands for all of them")
    if outcome["is_inferred"]:
        notes.append("~ what each event waited for is inferred from times and launches")
    return Section("what_if", title, tables, tuple(notes))
