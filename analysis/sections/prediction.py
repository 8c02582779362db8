"""What ``trnprof diff`` shows: a prediction beside what was measured, as tables like those of a report."""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.breakdown import PART_LABELS
from trnprof.analysis.prediction import (
    Side,
    collectives_side_by_side,
    matched_sides,
    operators_side_by_side,
    parts_side_by_side,
    steps_side_by_side,
)
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.section import Column, Section, silent, table
from trnprof.tracer.reader import Trace
from trnprof.tracer.units import counted

KEY: Final = "diff"
TITLE: Final = "Predicted against measured"
TOP: Final = 20
_TIMES: Final = (
    Column("predicted_ns", "predicted", "ns"),
    Column("measured_ns", "measured", "ns"),
    Column("difference_ns", "difference", "ns"),
    Column("error", "error", "percent"),
)


def build(predicted: Trace, measured: Trace) -> Section:
    """Both runs side by side, each table ranked by the size of the difference but for steps and parts."""
    scopes = device_scope(predicted), device_scope(measured)
    if scopes[0] is None or scopes[1] is None:
        which = "prediction" if scopes[0] is None else "measurement"
        return silent(KEY, TITLE, f"because the {which} has no device tracks")
    ours, theirs = matched_sides((predicted, measured), (scopes[0], scopes[1]))
    steps = (Column("predicted_step", "step", "number"), Column("measured_step", "measured step", "number"))  # fmt: skip
    labels = parts_side_by_side(ours, theirs).with_columns(pl.col("part").replace(PART_LABELS))
    tables = (
        table("steps", "steps", (*steps, *_TIMES), steps_side_by_side(ours, theirs), TOP),
        table("breakdown", "where a mean step goes", (Column("part", "part"), *_TIMES), labels),
        table("operators", "operators, a step", (Column("name", "operator"), Column("layer", "layer"), *_TIMES), operators_side_by_side(ours, theirs), TOP),
        table("collectives", "collectives, a step", (Column("collective", "collective"), Column("size_bytes", "size", "bytes"), *_TIMES), collectives_side_by_side(ours, theirs), TOP),
    )  # fmt: skip
    return Section(KEY, TITLE, tuple(t for t in tables if t.rows), _notes(ours, theirs))


def _notes(predicted: Side, measured: Side) -> tuple[str, ...]:
    notes = []
    if predicted.steps is None:
        notes.append("a side has no steps: everything is held against everything")
    elif predicted.steps != measured.steps:
        notes.append("no step has the same number on both sides: they are matched in order")
    else:
        notes.append(f"{counted(len(predicted.steps), 'step')} of the same number on both sides")
    notes.append(
        "difference is predicted - measured, error its share of measured; operators are matched by name, layer and shapes, then by less; "
        "0 is what one side does not have; an operator's time is the union of its events, means over units"
    )
    if not predicted.trace.is_simulation:
        notes.append("what is called the prediction was not emulated")
    if measured.trace.is_simulation:
        notes.append("what is called the measurement was emulated")
    return tuple(notes)
