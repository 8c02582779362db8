"""Traces of collectives, for the tests of what stands in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.collectives.trace.write import write_collectives
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.reader import Trace, open_trace

COSTS = Endpoint(
    start_ps=4_000_000,
    post_ps=100_000,
    dma_start_ps=1_000_000,
    dma_done_ps=300_000,
    dma_bytes_per_s=300e9,
    hbm_bytes_per_s=2.9e12,
    reduce_touches=2.0,
)


def fabric_of(spec: str) -> Fabric:
    """Links of 50 GB/s and 500 ns."""
    return build_fabric(made_up_topology(spec, [50e9], [500_000]))


def written(folder: Path, outcomes: list[Outcome], endpoint: Endpoint = NO_COST) -> Trace:
    path = folder / "run.trnprof"
    write_collectives(path, outcomes, endpoint)
    write_manifest(path, is_simulation=True)
    trace = open_trace(path)
    assert trace.validate() == []
    return trace


def gathered(fabric: Fabric, **more: Any) -> Outcome:
    """Segments of 50 kB: 1 µs a link."""
    request = Request(
        "all_gather", 50_000 * fabric.chips, tuple(range(fabric.chips)), ("ring",), chunks=1, **more
    )
    return run_collective(fabric, request)


def rows(trace: Trace, *columns: str) -> pl.DataFrame:
    tracks = trace.tracks.select("track_id", "kind", track="name", on="chip").lazy()
    frame = trace.events.join(tracks, on="track_id").collect()
    words = pl.col("kind", "wait_reason", "name", "category").cast(pl.String)
    return frame.with_columns(words).sort("track", "start_ns").select(columns)
