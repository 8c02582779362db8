"""Traces built from rows, for the tests of the exporter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES
from trnprof.tracer.shards import empty_frame

Row = dict[str, Any]


def frame(table: str, rows: Sequence[Row]) -> pl.DataFrame:
    """Rows as a frame with all columns of a table; columns that a row lacks are null."""
    schema = empty_frame(TABLES[table]).schema
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def track(track_id: int, kind: str, name: str, parent: int | None = None, **more: Any) -> Row:
    defaults = {
        "track_id": track_id,
        "parent_id": parent,
        "kind": kind,
        "name": name,
        "sort_order": track_id,
        "lane": 0,
        "exclusive": False,
        "clock_id": 0,
        "host": "host0",
        "replica_count": 1,
    }
    return defaults | more


def event(
    event_id: int, track_id: int, start: int, duration: int | None, name: str = "op", **more: Any
) -> Row:
    defaults = {
        "event_id": event_id,
        "track_id": track_id,
        "start_ns": start,
        "duration_ns": duration,
        "name": name,
        "category": "compute",
    }
    return defaults | more


def flow(source: int, target: int, kind: str = "data") -> Row:
    return {"source_event": source, "target_event": target, "kind": kind, "lag_ns": 0}


def step(
    number: int, start: int, end: int, rank: int = 0, label: str = "", clock_id: int = 0
) -> Row:
    return {
        "step": number,
        "rank": rank,
        "clock_id": clock_id,
        "start_ns": start,
        "end_ns": end,
        "label": label,
        "source": "marker",
    }


CORE = [
    track(0, "host", "host0"),
    track(1, "chip", "chip 0", 0, chip=0),
    track(2, "core", "core 0", 1, rank=0, chip=0, core=0),
    track(3, "engine", "Tensor", 2, rank=0, exclusive=True, peak_flops=78.64e12),
    track(4, "engine", "Vector", 2, rank=0, exclusive=True),
    track(5, "dma_queue", "DMA q0", 2, rank=0, exclusive=True),
    track(6, "counter", "HBM bytes", 2, rank=0, unit="B"),
]
"""One core: tracks 3 and 4 are engines, 5 a DMA queue, 6 a counter."""


def trace_of(
    *,
    events: Sequence[Row] | pl.DataFrame = (),
    tracks: Sequence[Row] = CORE,
    ops: Sequence[Row] = (),
    steps: Sequence[Row] = (),
    flows: Sequence[Row] = (),
    counters: Sequence[Row] = (),
    clocks: Sequence[Row] = ({"clock_id": 0, "kind": "device", "epoch_unix_ns": None},),
    manifest: Row | None = None,
) -> Trace:
    """A trace that was never on disk."""
    rows = events if isinstance(events, pl.DataFrame) else frame("events", events)
    return Trace(
        path=Path("built.trnprof"),
        manifest=manifest or {},
        fragments=({"writer": "test", "number": 0, "clocks": list(clocks)},),
        events=rows.lazy(),
        tracks=frame("tracks", tracks),
        ops=frame("ops", ops).lazy(),
        groups=frame("groups", ()),
        steps=frame("steps", steps),
        peaks=frame("peaks", ()),
        flows=frame("flows", flows).lazy(),
        counters=frame("counters", counters).lazy(),
    )
