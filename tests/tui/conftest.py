"""Traces built from frames, for the tests of the timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from trnprof.tracer.schema import EVENTS, TRACKS

Span = tuple[int, int, int | None, str, str]
"""track, start_ns, duration_ns, name, category."""


def events_frame(spans: Sequence[Span], **columns: Sequence[Any]) -> pl.DataFrame:
    track, start, duration, name, category = zip(*spans, strict=True) if spans else ((),) * 5
    frame = pl.DataFrame(
        {
            "event_id": pl.Series(range(len(spans)), dtype=pl.UInt64),
            "track_id": pl.Series(track, dtype=pl.UInt32),
            "start_ns": pl.Series(start, dtype=pl.Int64),
            "duration_ns": pl.Series(duration, dtype=pl.Int64),
            "name": pl.Series(name, dtype=pl.String).cast(pl.Categorical),
            "category": pl.Series(category, dtype=pl.String).cast(pl.Categorical),
        }
    )
    kinds = {
        "op_id": pl.UInt32, "step": pl.Int32, "dtype": pl.String, "is_transpose": pl.Boolean,
        "flops": pl.Float64, "bytes": pl.Int64, "source_memory": pl.String, "target_memory": pl.String,
        "descriptor_bytes": pl.Int32, "ready_ns": pl.Int64, "blocked_by": pl.UInt64,
        "wait_reason": pl.String, "attributes": pl.String,
    }  # fmt: skip
    for key, kind in kinds.items():
        values = columns.get(key, [None] * len(spans))
        frame = frame.with_columns(pl.Series(key, values, dtype=kind))
    return frame.select(EVENTS.names)


def tracks_frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    base: dict[str, Any] = dict.fromkeys(TRACKS.names)
    base |= {
        "sort_order": 0, "lane": 0, "exclusive": True, "clock_id": 0, "host": "h", "replica_count": 1,
    }  # fmt: skip
    filled = [base | {"sort_order": i} | row for i, row in enumerate(rows)]
    schema = {
        "track_id": pl.UInt32, "parent_id": pl.UInt32, "kind": pl.String, "name": pl.String, "sort_order": pl.Int32,
        "lane": pl.Int32, "exclusive": pl.Boolean, "clock_id": pl.Int32, "host": pl.String, "rank": pl.Int32,
        "chip": pl.Int32, "core": pl.Int32, "source_chip": pl.Int32, "target_chip": pl.Int32,
        "replica_of": pl.UInt32, "replica_count": pl.Int32, "max_duration_ns": pl.Int64,
        "peak_flops": pl.Float64, "peak_bytes_per_s": pl.Float64, "unit": pl.String,
    }  # fmt: skip
    return pl.DataFrame(filled, schema=schema)


def build_trace(
    spans: Sequence[Span] | pl.DataFrame,
    tracks: Sequence[dict[str, Any]] | None = None,
    **columns: Any,
) -> Any:
    events = spans if isinstance(spans, pl.DataFrame) else events_frame(spans, **columns)
    if tracks is None:
        count = int(events["track_id"].max() or 0) + 1  # type: ignore[arg-type]
        tracks = [{"track_id": i, "kind": "engine", "name": f"t{i}"} for i in range(count)]
    return SimpleNamespace(
        path=Path("small.trnprof"),
        manifest={},
        fragments=(),
        events=events.lazy(),
        tracks=tracks_frame(tracks),
        ops=pl.LazyFrame(schema={"op_id": pl.UInt32}),
        groups=pl.DataFrame(),
        steps=pl.DataFrame(),
        peaks=pl.DataFrame(),
        flows=pl.LazyFrame(),
        counters=pl.LazyFrame(
            schema={"track_id": pl.UInt32, "timestamp_ns": pl.Int64, "value": pl.Float64}
        ),
        problems=(),
        system={},
        is_simulation=False,
    )


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., Any]:
    return build_trace
