"""Which collectives did a NeuronCore take part in, and what did its CC-cores do for them?

A collective (CcOp) is an event on its stream and an operation with its replica group; CC-core instructions are drawn beside, because they
are the inside of these collectives and would count twice. Without any CcOp they lie on streams themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from trnprof.tracer.formats.neuron.attributes import attributes, beside
from trnprof.tracer.formats.neuron.instructions import ends, fingerprints
from trnprof.tracer.formats.neuron.ops import Operations
from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.text import known_dtype

_MAPPED: Final = ("start_ts", "end_ts", "duration_ns", "operation", "algorithm")
_MAX_RANKS: Final = 1 << 20


@dataclass
class Collectives:
    """Collectives of one profile.

    Attributes:
        rows: how many.
        open_groups: collectives of which the profile does not say which of several groups this core was in.
        groups: numbers of the replica groups by their text.
    """

    rows: int = 0
    open_groups: int = 0
    groups: dict[str, int] = field(default_factory=dict)


def add_collectives(
    frames: Iterable[pl.DataFrame], places: Places, operations: Operations
) -> Collectives:
    """Append collectives, their operations and groups, and what ranks can be aligned by.

    Args:
        frames: blocks of rows with the columns of CcOp; columns beyond the schema's are kept.
        places: where they lie.
        operations: of the profile.
    """
    found = Collectives()
    tables: list[pl.DataFrame] = []
    seen: dict[str, int] = {}
    for frame in frames:
        rows = frame.filter(pl.col("start_ts").is_not_null()).sort("start_ts", maintain_order=True)
        if not rows.height:
            continue
        rows = _with_groups(rows, found, seen, places)
        ids = operations.add(
            kind="collective",
            name=rows["name"],
            dtypes=rows["dtype"],
            group_id=rows["group_id"],
            group_seq=rows["sequence"],
            algorithm=rows["algorithm"],
            in_bytes=rows["input_size"],
            out_bytes=rows["output_size"],
        )
        streams = rows.select(
            pl.lit("CC stream ") + pl.col("stream_id").cast(pl.String).fill_null("?")
        )
        places.stage.add_events(
            timeline=places.by_row(rows, "stream", streams.to_series()),
            start_ns=rows["start_ts"].to_numpy(),
            end_ns=ends(rows),
            name=rows["name"],
            category="collective",
            fingerprint=fingerprints(rows, ["name", "text"]),
            op_id=ids,
            dtype=rows.select(known_dtype(pl.col("dtype"))).to_series(),
            bytes=rows["bytes"],
            attributes=rows["text"],
        )
        found.rows += rows.height
        tables.append(
            rows.filter(pl.col("end_ts").is_not_null()).select(
                group="group",
                sequence="sequence",
                name="name",
                start_ns="start_ts",
                end_ns="end_ts",
                bytes="bytes",
            )
        )
    if tables:
        places.stage.facts.collectives = pl.concat(tables)
    return found


def add_cc_instructions(frames: Iterable[pl.DataFrame], places: Places, *, is_beside: bool) -> int:
    """Append what CC-cores did; returns the number of rows.

    Args:
        frames: blocks of rows with the columns of CcInstruction.
        places: where they lie.
        is_beside: there are collectives on streams already.
    """
    count = 0
    for frame in frames:
        rows = frame.filter(pl.col("start_ts").is_not_null())
        if not rows.height:
            continue
        cores = rows.select(
            pl.lit("CC core ") + pl.col("core_idx").cast(pl.String).fill_null("?")
        ).to_series()
        text = attributes(rows, beside(rows, ("start_ts", "end_ts", "duration_ns", "description")))
        rows = rows.with_columns(text.alias("text"))
        places.stage.add_events(
            timeline=places.by_row(rows, "beside" if is_beside else "stream", cores),
            start_ns=rows["start_ts"].to_numpy(),
            end_ns=ends(rows),
            name=rows["description"].fill_null("CC instruction"),
            category="collective",
            fingerprint=fingerprints(rows, ["description", "text"]),
            attributes=rows["text"],
        )
        count += rows.height
    return count


def _with_groups(
    rows: pl.DataFrame, found: Collectives, seen: dict[str, int], places: Places
) -> pl.DataFrame:
    """Add name, bytes, group (text), group_id, sequence (ordinal within the group) and text."""
    said = pl.col("replica_group").fill_null("").str.replace_all(r"\s", "")
    number = pl.col("replica_group_id").cast(pl.String)
    has_several = said.str.count_matches(r"\[") > 2
    group = (
        pl.when(said == "")
        .then(pl.lit("group ") + number.fill_null("unknown"))
        .when(has_several & number.is_not_null())
        .then(said + "#" + number)
        .otherwise(said)
    )
    rows = rows.with_columns(
        attributes(rows, beside(rows, _MAPPED)).alias("text"),
        group=group,
        name=pl.when(pl.col("operation").str.len_bytes() > 0)
        .then(pl.col("operation"))
        .otherwise(pl.lit("collective")),
        bytes=pl.max_horizontal("input_size", "output_size"),
    )
    found.open_groups += rows.select(has_several.sum()).item()
    before = rows.select(
        pl.col("group").replace_strict(seen, default=0, return_dtype=pl.Int64)
        if seen
        else pl.lit(0, pl.Int64).alias("group")
    ).to_series()
    ordinal = rows.select(pl.int_range(pl.len()).over("group")).to_series()
    for name, count in rows.group_by("group", maintain_order=True).len().iter_rows():
        seen[name] = seen.get(name, 0) + count
        _add_group(name, found, places)
    numbers = rows["group"].replace_strict(found.groups, return_dtype=pl.UInt32)
    return rows.with_columns(sequence=ordinal + before, group_id=numbers)


def _add_group(name: str, found: Collectives, places: Places) -> None:
    if name in found.groups:
        return
    number = len(found.groups)
    found.groups[name] = number
    places.stage.add_groups({"group_id": [number], "ranks": [_ranks(name)], "name": [name[:200]]})


def _ranks(text: str) -> list[int]:
    """The ranks of ``[0,1]`` or ``[[0,1]]``; of several groups those of the one numbered behind ``#``, else none."""
    body, _, number = text.partition("#")
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(parsed, list):
        return []
    if parsed and isinstance(parsed[0], list):
        place = int(number) if number.isdigit() else 0
        parsed = parsed[place] if len(parsed) == 1 or (number and place < len(parsed)) else []
    ranks = np.array([r for r in parsed if isinstance(r, int) and 0 <= r < _MAX_RANKS], np.int64)
    return [int(r) for r in ranks]
