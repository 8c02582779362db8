"""What does a trace hold, in a few numbers and lines?"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from trnprof.tracer.ingest.kept import kept_sources
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import SCHEMA_VERSION, STREAMED
from trnprof.tracer.units import format_bytes, format_ns, printable

_SOURCES_SHOWN: Final = 8


def summary(trace: Trace) -> dict[str, Any]:
    """A JSON-ready summary.

    Returns:
        ``schema``, ``tool_version`` (of the writer), ``system`` (name or None), ``is_simulation``, ``size_bytes``, ``writers``,
        ``imported`` (the profiles it comes from), ``rows`` by table, ``clocks`` (time range of the events on each), ``events_by_category``, ``tracks_by_kind``,
        ``steps`` and ``problems``.
    """
    return {
        "schema": trace.manifest.get("schema", SCHEMA_VERSION),
        "tool_version": trace.manifest.get("tool_version"),
        "system": trace.system.get("name"),
        "is_simulation": trace.is_simulation,
        "size_bytes": _size_bytes(trace),
        "writers": [
            {key: f.get(key) for key in ("writer", "number", "sealed", "warnings", "clocks")}
            for f in trace.fragments
        ],
        "imported": kept_sources(trace),
        "rows": _rows(trace),
        "clocks": _clocks(trace),
        "events_by_category": _counts(trace.events, "category"),
        "tracks_by_kind": _counts(trace.tracks.lazy(), "kind"),
        "steps": trace.steps["step"].n_unique(),
        "problems": [vars(p) for p in trace.problems],
    }


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The summary for people, one fact a line."""
    measured = "imported" if summary["imported"] else "recorded"
    kind = "emulated" if summary["is_simulation"] else measured
    size = format_bytes(summary["size_bytes"])
    lines = [
        f"system      {summary['system'] or 'unknown'} ({kind}), schema {summary['schema']}, {size}"
    ]
    lines += _imported_lines(summary["imported"])
    for writer in summary["writers"]:
        state = "sealed" if writer["sealed"] else "not sealed"
        lines.append(f"writer      {writer['writer']} (number {writer['number']}, {state})")
        lines += [f"  warning   {text}" for text in writer["warnings"]]
    lines += [f"{table:<11} {count} rows" for table, count in summary["rows"].items() if count]
    for clock in summary["clocks"]:
        span = format_ns(clock["end_ns"] - clock["start_ns"])
        lines.append(f"clock {clock['clock_id']:<5} {clock['events']} events over {span}")
    lines += [f"  {name:<9} {count}" for name, count in summary["events_by_category"].items()]
    lines += [f"{p['severity']:<11} {p['message']}" for p in summary["problems"]]
    return [printable(line) for line in lines]


def _imported_lines(sources: list[dict[str, Any]]) -> list[str]:
    """The profiles a trace comes from, a line each, the first few of many."""
    lines = []
    for source in sources[:_SOURCES_SHOWN]:
        rank = "" if source["rank"] is None else f"rank {source['rank']}, "
        lines.append(
            f"imported from {source['label']} ({source['format']}, {rank}{source['events']} events)"
        )
    if len(sources) > _SOURCES_SHOWN:
        lines.append(f"imported from {len(sources) - _SOURCES_SHOWN} profiles more")
    return lines


def _rows(trace: Trace) -> dict[str, int]:
    rows = {name: getattr(trace, name).height for name in ("tracks", "groups", "steps", "peaks")}
    for name in ("ops", *STREAMED):
        rows[name] = int(getattr(trace, name).select(pl.len()).collect().item())
    return rows


def _size_bytes(trace: Trace) -> int:
    if not trace.path.is_dir():
        return 0
    return sum(file.stat().st_size for file in trace.path.rglob("*") if file.is_file())


def _counts(rows: pl.LazyFrame, column: str) -> dict[str, int]:
    counted = rows.group_by(pl.col(column).cast(pl.String)).len().collect()
    ordered = counted.sort(["len", column], descending=[True, False])
    return {str(name): int(count) for name, count in ordered.iter_rows()}


def _clocks(trace: Trace) -> list[dict[str, int]]:
    end = pl.col("start_ns") + pl.col("duration_ns").fill_null(0)
    by_track = trace.events.group_by("track_id").agg(
        pl.col("start_ns").min(), end.max().alias("end_ns"), pl.len().alias("events")
    )
    clocks = (
        by_track.join(trace.tracks.lazy().select("track_id", "clock_id"), on="track_id")
        .group_by("clock_id")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("events").sum())
        .sort("clock_id")
        .collect()
    )
    return clocks.to_dicts()
