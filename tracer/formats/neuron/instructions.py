"""What did each engine of a NeuronCore do? Rows of the table Instruction (or of the older JSON, renamed) as events.

Engines overlap their own instructions (they are pipelined), so that their tracks are not exclusive. Waits for semaphores are drawn on a
track beside the engine: Neuron Explorer does not count them as active time either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.formats.neuron.attributes import attributes, beside
from trnprof.tracer.formats.neuron.ops import Operations
from trnprof.tracer.formats.neuron.places import ENGINES, MATRIX, TENSOR, Places, engine_name
from trnprof.tracer.formats.neuron.text import operand_dtype, operand_flops, ratio_dtype
from trnprof.tracer.ingest.stage import UNFINISHED

WAIT: Final = r"(?i)semaphore|sem_wait|_wait$|^wait"
"""Opcodes that only wait."""
TRIGGER: Final = r"(?i)dma"
"""Opcodes that start a DMA: the analyzers' *issue*."""
UNKNOWN: Final = r"(?i)^\s*$|unknown|invalid|^0x[0-9a-f]+$|^\d+$"
_OPCODES: Final = {
    "is_wait": WAIT,
    "is_trigger": TRIGGER,
    "is_unknown": UNKNOWN,
    "is_matmul": "(?i)matmul",
}
_MAPPED: Final = (
    *("start_ts", "end_ts", "duration_ns", "engine", "pcore_idx", "opcode", "hlo_name", "layer"),
    *("raw_flops", "flops_transpose", "nki_source_location"),
)
"""Columns that are not kept in attributes, because columns of the event or its operation say the same."""


@dataclass
class InstructionTally:
    """What was seen of the instructions, for the audit.

    Attributes:
        rows: how many.
        has_debug: rows with any place in the source.
        with_flops: matmuls with FLOPs; ``estimated_flops`` of them by their operands.
        partly_transposed: rows of which only a part is a transpose.
        unknown_opcodes: opcode → rows.
        raw_flops, adjusted_flops: sums that the profile states.
        instruction_ns: engine → summed duration.
        ids: (first row in the stage, ids) of each block.
    """

    rows: int = 0
    has_debug: int = 0
    with_flops: int = 0
    estimated_flops: int = 0
    partly_transposed: int = 0
    unknown_opcodes: dict[str, int] = field(default_factory=dict)
    raw_flops: int = 0
    adjusted_flops: int = 0
    instruction_ns: dict[str, int] = field(default_factory=dict)
    ids: list[tuple[int, NDArray[np.int64]]] = field(default_factory=list)


def add_instructions(
    frames: Iterable[pl.DataFrame], places: Places, operations: Operations
) -> InstructionTally:
    """Append instructions to the stage.

    Args:
        frames: blocks of rows with the columns of the table Instruction; columns beyond the schema's are kept.
        places: where they lie.
        operations: what they implement.
    """
    tally = InstructionTally()
    for frame in frames:
        usable = frame.filter(pl.col("start_ts").is_not_null())
        if not usable.height:
            continue
        rows = _with_meaning(usable)
        first = places.stage.add_events(
            timeline=_timelines(rows, places),
            start_ns=rows["start_ts"].to_numpy(),
            end_ns=ends(rows),
            name=rows["opcode"].fill_null("unknown").replace("", "unknown"),
            category=rows["category"],
            fingerprint=fingerprints(rows, ["id", "opcode", "text"]),
            op_id=operations.of(rows),
            dtype=rows["dtype"],
            is_transpose=rows["is_transpose"],
            flops=rows["flops"],
            wait_reason=rows["wait_reason"],
            attributes=rows["text"],
        )
        tally.ids.append((first, rows["id"].fill_null(-1).to_numpy()))
        _count(tally, usable, rows)
    return tally


def ends(rows: pl.DataFrame) -> NDArray[np.int64]:
    """The end of each row: ``end_ts``, else start and ``duration_ns``, else unfinished."""
    by_duration = pl.col("start_ts") + pl.col("duration_ns")
    has_duration = "duration_ns" in rows.columns
    known = pl.coalesce("end_ts", by_duration) if has_duration else pl.col("end_ts")
    found: NDArray[np.int64] = rows.select(known.fill_null(UNFINISHED)).to_series().to_numpy()
    return found


def fingerprints(rows: pl.DataFrame, columns: list[str]) -> NDArray[np.uint64]:
    """A hash of some columns of each row, never 0."""
    hashed: NDArray[np.uint64] = rows.select(columns).hash_rows(seed=17).to_numpy()
    return np.maximum(hashed, np.uint64(1))


def _with_meaning(rows: pl.DataFrame) -> pl.DataFrame:
    kept = attributes(rows, beside(rows, _MAPPED)).alias("text")
    rows = _with_operands(_with_opcode(rows))
    raw, transposed = pl.col("raw_flops"), pl.col("flops_transpose").fill_null(0)
    said = pl.col("tensor_instruction_type").str.to_uppercase() == "TRANSPOSE"
    stated = pl.when(raw > 0).then(raw.cast(pl.Float64))
    by_operands = pl.when("is_matmul").then(pl.col("operand_flops"))
    flops = pl.when(raw.is_not_null()).then(stated).otherwise(by_operands)
    waits, dma_waits = pl.col("evt_wait_time_ns"), pl.col("dma_wait_time_ns")
    return rows.with_columns(
        kept,
        flops=flops,
        is_estimated=raw.is_null() & by_operands.is_not_null(),
        is_transpose=pl.when(flops.is_not_null()).then(
            said.fill_null(False) | (transposed >= raw).fill_null(False)
        ),
        is_partly=(transposed > 0) & (transposed < raw),
        dtype=pl.when(flops.is_not_null()).then(
            pl.coalesce("operand_dtype", ratio_dtype(pl.col("adjusted_flops"), raw))
        ),
        wait_reason=pl.when(waits > 0)
        .then(pl.lit("semaphore"))
        .when(dma_waits > 0)
        .then(pl.lit("queue")),
        category=pl.when(pl.col("is_wait") | pl.col("is_trigger"))
        .then(pl.lit("sync"))
        .otherwise(pl.lit("compute")),
    )


def _with_opcode(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what opcodes mean, looked at once each: is_wait, is_trigger, is_unknown, is_matmul."""
    opcodes = rows.select(pl.col("opcode").unique()).with_columns(
        **{
            name: pl.col("opcode").fill_null("").str.contains(pattern)
            for name, pattern in _OPCODES.items()
        }
    )
    joined = rows.join(opcodes, on="opcode", how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.col("is_matmul") & engine_is(TENSOR))


def _with_operands(rows: pl.DataFrame) -> pl.DataFrame:
    """Add operand_dtype and operand_flops of rows that may have FLOPs; each text is parsed once."""
    may = (pl.col("raw_flops") > 0) | (pl.col("raw_flops").is_null() & pl.col("is_matmul"))
    key = pl.when(may).then(pl.coalesce("operands", "compiler_operands"))
    keyed = rows.with_columns(key.alias("operand_key"))
    texts = keyed.select(pl.col("operand_key").drop_nulls().unique()).with_columns(
        operand_dtype=operand_dtype(pl.col("operand_key")),
        operand_flops=operand_flops(pl.col("operand_key")),
    )
    return keyed.join(texts, on="operand_key", how="left", maintain_order="left")


def engine_is(engine: str) -> pl.Expr:
    """Whether a row of Instruction is of an engine (of any of its names)."""
    names = [name for name, meant in ENGINES.items() if meant == engine]
    return pl.col("engine").str.strip_chars().str.to_lowercase().is_in(names).fill_null(False)


def _timelines(rows: pl.DataFrame, places: Places) -> NDArray[np.int32]:
    """The matrix lane has a track of its own; the engine decides for all others."""
    track = pl.col("timeline_track").str.strip_chars().str.to_lowercase()
    named = pl.coalesce("engine", "timeline_track", pl.lit("unknown engine"))
    name = pl.when(engine_is(TENSOR) & (track == MATRIX)).then(pl.lit(MATRIX)).otherwise(named)
    names = rows.select(name).to_series()
    engines = places.by_row(rows, "engine", names)
    if not rows["is_wait"].any():
        return engines
    waits = places.by_row(rows.filter("is_wait"), "waits", names.filter(rows["is_wait"]))
    engines = engines.copy()
    engines[rows["is_wait"].to_numpy()] = waits
    return engines


def _count(tally: InstructionTally, given: pl.DataFrame, rows: pl.DataFrame) -> None:
    places_known = (
        "nki_source_location",
        "bir_debug_info_source_location",
        "kernel_instruction_name",
        "stack_frame_ids",
    )
    known = [(pl.col(c).str.len_bytes() > 0).fill_null(False) for c in places_known]
    sums = rows.select(
        debug=pl.any_horizontal(known).sum(),
        flops=pl.col("flops").is_not_null().sum(),
        estimated=pl.col("is_estimated").sum(),
        partly=pl.col("is_partly").fill_null(False).sum(),
        raw=pl.col("raw_flops").sum(),
        adjusted=pl.col("adjusted_flops").sum(),
    ).row(0, named=True)
    tally.rows += given.height
    tally.has_debug += sums["debug"]
    tally.with_flops += sums["flops"]
    tally.estimated_flops += sums["estimated"]
    tally.partly_transposed += sums["partly"]
    tally.raw_flops += sums["raw"] or 0
    tally.adjusted_flops += sums["adjusted"] or 0
    length = (pl.col("end_ts") - pl.col("start_ts")).sum().alias("ns")
    for engine, total in rows.filter(~pl.col("is_wait")).group_by("engine").agg(length).iter_rows():
        name = engine_name(engine or "")
        tally.instruction_ns[name] = tally.instruction_ns.get(name, 0) + (total or 0)
    for opcode, count in rows.filter("is_unknown").group_by("opcode").len().iter_rows():
        name = opcode or ""
        tally.unknown_opcodes[name] = tally.unknown_opcodes.get(name, 0) + count
