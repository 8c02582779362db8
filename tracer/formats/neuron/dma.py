"""What did the DMA queues of a NeuronCore move? Transfers (DmaPacketAggregated) and packets (DmaPacket) as events.

A profile has transfers as the compiler wrote them, the packets that the DMA engines made of them, or both. Each byte counts once: with
both, transfers lie on the queues, and packets are drawn beside, on their DMA engine, where they count nowhere. With packets
alone, they lie on the queues. Both are summed up and compared for the audit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.neuron.attributes import attributes, beside
from trnprof.tracer.formats.neuron.instructions import ends, fingerprints
from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.text import memory

_MAPPED: Final = ("start_ts", "end_ts", "duration_ns", "pcore_idx", "transfer_bytes")
SMALL_BYTES: Final = 4
"""Packets up to this size move no payload (semaphore writes)."""


@dataclass
class DmaTally:
    """What was seen of transfers or packets, for the audit.

    Attributes:
        rows: how many.
        unnamed: rows whose variable is not known.
        total_bytes: of payload, without instruction fetches and what moves at most SMALL_BYTES.
        sbuf_to_sbuf: transfers within SBUF.
        summed_ns: durations, overlaps counted twice.
        intervals: start and end of each block's rows.
        ids: (first row in the stage, ids) of each block.
    """

    rows: int = 0
    unnamed: int = 0
    total_bytes: int = 0
    sbuf_to_sbuf: int = 0
    summed_ns: int = 0
    intervals: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    ids: list[tuple[int, NDArray[np.int64]]] = field(default_factory=list)

    def covered_ns(self) -> int:
        """The time in which at least one of them was under way."""
        if not self.intervals:
            return 0
        start = np.concatenate([s for s, _ in self.intervals])
        end = np.concatenate([e for _, e in self.intervals])
        usable = end > start
        order = np.argsort(start[usable], kind="stable")
        start, end = start[usable][order], end[usable][order]
        if not len(start):
            return 0
        reach = np.maximum.accumulate(end)
        before = np.concatenate([[start[0]], reach[:-1]])
        return int(np.maximum(reach - np.maximum(start, before), 0).sum())


def add_transfers(frames: Iterable[pl.DataFrame], places: Places) -> DmaTally:
    """Append transfers on their queues.

    Args:
        frames: blocks of rows with the columns of DmaPacketAggregated; columns beyond the schema's are kept.
        places: where they lie.
    """
    tally = DmaTally()
    for frame in frames:
        rows = _transfers(frame.filter(pl.col("start_ts").is_not_null()))
        if not rows.height:
            continue
        queues = places.by_row(rows, "queue", _queue_names(rows))
        first = _add(places, rows, queues, ["id", "name", "text"])
        tally.ids.append((first, rows["id"].fill_null(-1).to_numpy()))
        is_inner = (pl.col("source_memory") == "sbuf") & (pl.col("target_memory") == "sbuf")
        tally.sbuf_to_sbuf += rows.select(is_inner.fill_null(False).sum()).item()
        _count(tally, rows)
    return tally


def add_packets(frames: Iterable[pl.DataFrame], places: Places, *, is_beside: bool) -> DmaTally:
    """Append packets: on their queues, or beside them on their DMA engines.

    Args:
        frames: blocks of rows with the columns of DmaPacket; columns beyond the schema's are kept.
        places: where they lie.
        is_beside: there are transfers on the queues already.
    """
    tally = DmaTally()
    for frame in frames:
        rows = _packets(frame.filter(pl.col("start_ts").is_not_null()))
        if not rows.height:
            continue
        if is_beside:
            engines = rows.select(
                pl.lit("DMA engine ") + pl.col("engine_idx").cast(pl.String).fill_null("?")
            )
            timelines = places.by_row(rows, "beside", engines.to_series())
        else:
            timelines = places.by_row(rows, "queue", _queue_names(rows))
        # a packet that is reported twice has another id each time, but no engine moves two at once
        same = [
            n
            for n in rows.columns
            if n not in ("id", "packet_idx", "text", "packet_aggregation_id")
        ]
        _add(places, rows, timelines, same)
        _count(tally, rows)
    return tally


def _transfers(rows: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("queue_type").fill_null("")
    op = pl.when(pl.col("op").str.len_bytes() > 0).then(pl.col("op"))
    return rows.with_columns(
        attributes(rows, beside(rows, _MAPPED)).alias("text"),
        name=pl.coalesce(_variable(), op, pl.when(kind != "").then(kind), pl.lit("dma")),
        source_memory=memory(pl.col("source"), pl.col("read_num_sbuf_partitions")),
        target_memory=memory(pl.col("dest"), pl.col("write_num_sbuf_partitions")),
        descriptor_bytes=pl.lit(None, pl.Int64),
        is_payload=kind.str.to_lowercase() != "instruction",
    )


def _packets(rows: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("queue_type").fill_null("")
    size = pl.col("transfer_bytes")
    fits = (size >= 0) & (size < 1 << 31)
    return rows.with_columns(
        attributes(rows, beside(rows, _MAPPED)).alias("text"),
        name=pl.coalesce(_variable(), pl.when(kind != "").then(kind), pl.lit("dma packet")),
        source_memory=pl.lit(None, pl.String),
        target_memory=pl.lit(None, pl.String),
        descriptor_bytes=pl.when(fits).then(size),
        is_payload=(kind.str.to_lowercase() != "instruction") & (size > SMALL_BYTES),
    )


def _variable() -> pl.Expr:
    """The tensor that is moved, null if nobody knows it."""
    name = pl.col("variable")
    is_known = (name.str.len_bytes() > 0) & ~name.str.to_lowercase().is_in(
        ["unknown", "none", "null"]
    )
    return pl.when(is_known).then(name)


def _queue_names(rows: pl.DataFrame) -> pl.Series:
    by_number = pl.lit("queue ") + pl.col("queue_idx").cast(pl.String)
    name = pl.when(pl.col("queue_name").str.len_bytes() > 0).then(pl.col("queue_name"))
    by_type = pl.col("queue_type") + " queue"
    return rows.select(pl.coalesce(name, by_number, by_type, pl.lit("unknown queue"))).to_series()


def _add(places: Places, rows: pl.DataFrame, timelines: NDArray[np.int32], same: list[str]) -> int:
    return places.stage.add_events(
        timeline=timelines,
        start_ns=rows["start_ts"].to_numpy(),
        end_ns=ends(rows),
        name=rows["name"],
        category="dma",
        fingerprint=fingerprints(rows, same),
        bytes=rows["transfer_bytes"],
        source_memory=rows["source_memory"],
        target_memory=rows["target_memory"],
        descriptor_bytes=rows["descriptor_bytes"].cast(pl.Int32, strict=False),
        attributes=rows["text"],
    )


def _count(tally: DmaTally, rows: pl.DataFrame) -> None:
    start, end = rows["start_ts"].to_numpy(), ends(rows)
    payload = pl.when("is_payload").then(pl.col("transfer_bytes")).sum()
    tally.rows += rows.height
    tally.unnamed += rows.select(_variable().is_null().sum()).item()
    tally.total_bytes += rows.select(payload).item() or 0
    tally.summed_ns += int(np.maximum(end - start, 0)[end > start].sum())
    tally.intervals.append((start, end))
