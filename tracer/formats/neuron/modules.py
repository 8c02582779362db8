"""When was each layer and HLO operation of a Neuron profile at work, and when did cores wait at barriers? Drawn beside the engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import polars as pl

from trnprof.tracer.formats.neuron.attributes import attributes, beside
from trnprof.tracer.formats.neuron.instructions import ends, fingerprints
from trnprof.tracer.formats.neuron.ops import Operations
from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.tables import ProfileTables

_LANES: Final = (
    ("FrameworkNode", "node_name", "framework layers"),
    ("HloInstruction", "hlo_name", "HLO"),
)


def add_modules(tables: ProfileTables, places: Places, operations: Operations) -> None:
    """Append ranges of framework layers and HLO operations, from their first to their last instruction."""
    for table, name, lane in _LANES:
        for frame in tables.batches(table):
            rows = frame.filter(
                pl.col("start_ts").is_not_null() & (pl.col("end_ts") >= pl.col("start_ts"))
            )
            if not rows.height:
                continue
            names = pl.Series([lane]).new_from_index(0, rows.height)
            ids = operations.of_rung(table, rows)
            text = attributes(rows, beside(rows, ("start_ts", "end_ts", name, "pcore_idx")))
            places.stage.add_events(
                timeline=places.by_row(rows, "beside", names),
                start_ns=rows["start_ts"].to_numpy(),
                end_ns=rows["end_ts"].to_numpy(),
                name=rows[name].fill_null("unknown"),
                category="compute",
                op_id=ids,
                attributes=text,
            )


def add_barriers(frames: Iterable[pl.DataFrame], places: Places) -> None:
    """Append what cores waited at barriers.

    Args:
        frames: blocks of rows with the columns of CoreBarriers.
        places: where they lie.
    """
    for frame in frames:
        rows = frame.filter(pl.col("start_ts").is_not_null())
        if not rows.height:
            continue
        names = rows.select(pl.col("engine_name").fill_null("core") + " barriers").to_series()
        text = attributes(rows, beside(rows, ("start_ts", "end_ts", "duration_ns", "pcore_idx")))
        rows = rows.with_columns(text.alias("text"))
        places.stage.add_events(
            timeline=places.by_row(
                rows, lambda core, name: places.beside(core, name, "thread"), names
            ),
            start_ns=rows["start_ts"].to_numpy(),
            end_ns=ends(rows),
            name="core barrier",
            category="sync",
            fingerprint=fingerprints(rows, ["text"]),
            attributes=rows["text"],
        )
