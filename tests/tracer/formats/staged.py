"""Reads a file or directory into a stage, the way an import does, and looks at what it brought."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from trnprof.tracer.ingest.place import Place, directory_source, source_of
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage


def source_at(path: Path) -> Source:
    if path.is_dir():
        return directory_source(str(path), path, 0)
    return source_of(Place(str(path), path, path.parent, 1 << 40), path.stat().st_size)


def staged(format: Format, path: Path, into: Path) -> Stage:
    stage = Stage(into, path.name)
    with stage:
        format.read(source_at(path), stage)
    return stage


def events(stage: Stage) -> pl.DataFrame:
    """All events with their times and the names and kinds of their timelines."""
    batches = list(stage.batches("events"))
    columns = (
        pl.concat([pl.DataFrame(pl.from_arrow(b)) for b in batches]) if batches else pl.DataFrame()
    )
    columns = columns.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    for name in stage.late:
        columns = columns.with_columns(pl.Series(name, stage.late_column(name)))
    numbers = stage.times("timeline").tolist()
    return columns.with_columns(
        start_ns=pl.Series(stage.times("start_ns")),
        end_ns=pl.Series(stage.times("end_ns")),
        track=pl.Series([stage.timelines[n].name for n in numbers], dtype=pl.String),
        kind=pl.Series([stage.timelines[n].kind for n in numbers], dtype=pl.String),
    )


def table(stage: Stage, name: str) -> pl.DataFrame:
    """``ops``, ``flows`` or ``counters`` of a stage."""
    parts = [pl.DataFrame(pl.from_arrow(b)) for b in stage.batches(name)]
    frame = pl.concat(parts) if parts else pl.DataFrame()
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def counters(stage: Stage) -> dict[str, list[tuple[int, Any]]]:
    """Samples by name of the counter."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for row in table(stage, "counters").iter_rows(named=True):
        name = stage.timelines[row["timeline"]].name
        found.setdefault(name, []).append((row["timestamp_ns"], row["value"]))
    return found


def kinds(stage: Stage) -> set[str]:
    """Kinds of findings."""
    return {finding.kind for finding in stage.audit.findings}


def head_of(path: Path) -> Head:
    """What a format sees of a file."""
    return Head(path.name.lower(), path.read_bytes()[: 1 << 16])
