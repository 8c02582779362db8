"""Traces for tests of the analyzers, from rows in memory: no file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import TABLES, Table
from trnprof.tracer.shards import empty_frame

Row = Mapping[str, Any]

ENGINE_NAMES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")
PEAK_FLOPS = 78.64e12
BANDWIDTH = 362.5e9
TENSOR, VECTOR, SCALAR, GPSIMD, SYNC, DMA0, DMA1 = range(10, 17)
"""Track ids of core 0; those of core 1 are 10 higher."""

_DEFAULTS: dict[str, Row] = {
    "events": {"category": "compute", "name": "op"},
    "tracks": {
        "sort_order": 0,
        "lane": 0,
        "exclusive": True,
        "clock_id": 0,
        "host": "host0",
        "replica_count": 1,
    },
    "peaks": {"track_kind": "engine", "track_name": "Tensor", "sparsity": "dense"},
    "ops": {"kind": "aten"},
    "steps": {"rank": 0, "clock_id": 0, "label": "", "source": "marker"},
    "groups": {},
    "flows": {"kind": "data", "lag_ns": 0},
    "counters": {},
}


def frame(table: Table, rows: Sequence[Row]) -> pl.DataFrame:
    """Rows as the reader gives them; columns that are not given are null or a default."""
    empty = empty_frame(table)
    full = [
        {name: row.get(name, _DEFAULTS[table.name].get(name)) for name in table.names}
        for row in rows
    ]
    return pl.DataFrame(full, schema=empty.schema, orient="row") if full else empty


def core_tracks(
    cores: int = 1, *, dma_bytes_per_s: float | None = None, **overrides: Any
) -> list[Row]:
    """host0 ▸ chip 0 ▸ core i ▸ five engines and two DMA queues (rank i), each with the rate of all DMA engines."""
    rows: list[Row] = [
        {"track_id": 0, "kind": "host", "name": "host0"},
        {"track_id": 1, "parent_id": 0, "kind": "chip", "name": "chip 0", "chip": 0},
    ]
    for core in range(cores):
        place = {"rank": core, "chip": 0, "core": core, **overrides}
        core_id = 2 + core
        rows.append(
            {
                "track_id": core_id,
                "parent_id": 1,
                "kind": "core",
                "name": f"core {core}",
                "peak_bytes_per_s": BANDWIDTH,
                **place,
            }
        )
        for index, name in enumerate((*ENGINE_NAMES, "DMA q0", "DMA q1")):
            is_engine = index < len(ENGINE_NAMES)
            rows.append(
                {
                    "track_id": TENSOR + 10 * core + index,
                    "parent_id": core_id,
                    "kind": "engine" if is_engine else "dma_queue",
                    "name": name,
                    "sort_order": index,
                    "peak_flops": PEAK_FLOPS if name == "Tensor" else None,
                    "peak_bytes_per_s": None if is_engine else dma_bytes_per_s,
                    **place,
                }
            )
    return rows


def build(
    events: Sequence[Row] = (),
    *,
    tracks: Sequence[Row] | None = None,
    ops: Sequence[Row] = (),
    steps: Sequence[Row] = (),
    peaks: Sequence[Row] = (),
    groups: Sequence[Row] = (),
    flows: Sequence[Row] = (),
    manifest: Mapping[str, Any] | None = None,
    fragments: Sequence[Mapping[str, Any]] = (),
) -> Trace:
    """A trace of one core unless ``tracks`` says otherwise; event ids are ordinals."""
    numbered = [{"event_id": i, **row} for i, row in enumerate(events)]
    return Trace(
        path=Path("test.trnprof"),
        manifest=manifest or {},
        fragments=tuple(fragments),
        events=frame(TABLES["events"], numbered).lazy(),
        tracks=frame(TABLES["tracks"], core_tracks() if tracks is None else tracks),
        ops=frame(TABLES["ops"], ops).lazy(),
        groups=frame(TABLES["groups"], groups),
        steps=frame(TABLES["steps"], steps),
        peaks=frame(TABLES["peaks"], peaks),
        flows=frame(TABLES["flows"], flows).lazy(),
        counters=frame(TABLES["counters"], []).lazy(),
    )


def event(track_id: int, start_ns: int, duration_ns: int | None, **columns: Any) -> Row:
    """One row of events."""
    if track_id % 10 in (DMA0 % 10, DMA1 % 10):
        columns = {"category": "dma", **columns}
    return {"track_id": track_id, "start_ns": start_ns, "duration_ns": duration_ns, **columns}


def step(number: int, start_ns: int, end_ns: int, rank: int = 0, clock_id: int = 0) -> Row:
    """One row of steps."""
    return {
        "step": number,
        "rank": rank,
        "clock_id": clock_id,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "label": f"step {number}",
    }
