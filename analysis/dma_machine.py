"""What does a trace tell of the DMA engines it was emulated on? Rates and slots, as expressions over rows of ``events``."""

from __future__ import annotations

from typing import Any

import polars as pl

from trnprof.tracer.reader import Trace


def engines_bytes_per_s(trace: Trace) -> pl.Expr | None:
    """B/s of all DMA engines of a core for a transfer, by its direction (column source_memory); None where the trace does not tell.

    Of imported traces nothing is taken for granted.
    """
    dma = _dma(trace)
    ways = [dma.get(f"{way}_bytes_per_s_per_engine") for way in ("read", "write")]
    if not all(ways):
        return None
    read, write = (float(rate or 0.0) * float(dma.get("engines") or 1) for rate in ways)
    return pl.when(pl.col("source_memory") == "hbm").then(read).otherwise(write)


def queue_slot_ns(trace: Trace) -> pl.Expr:
    """How long a transfer holds its queue at least: a slot for each instruction of as many rows as SBUF has partitions; 0 where there is no queue.

    Over the columns kind, bytes and descriptor_bytes.
    """
    slot_ns = float(_dma(trace).get("queue_slot_ns") or 0.0)
    rows = int((trace.system.get("core") or {}).get("sbuf_partitions") or 1)
    row, size = pl.col("descriptor_bytes").fill_null(0), pl.col("bytes").fill_null(0)
    instructions = (size / pl.max_horizontal(row * rows, 1)).ceil().clip(1)
    is_queued = (pl.col("kind") == "dma_queue") & (row > 0)
    return pl.when(is_queued).then(slot_ns * instructions).otherwise(0.0)


def _dma(trace: Trace) -> dict[str, Any]:
    core = trace.system.get("core") or {}
    return dict(core.get("dma") or {}) if trace.is_simulation else {}
