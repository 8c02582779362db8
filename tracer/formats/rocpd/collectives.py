"""Which kernels of an AMD database are collectives? By name: neither tool records communicators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.collective_names import (
    POINT_TO_POINT,
    kernel_algorithm,
    kernel_dtype,
    kernel_function,
    kernel_operation,
)
from trnprof.tracer.formats.rocpd.lookup import Words
from trnprof.tracer.formats.rocpd.state import State
from trnprof.tracer.formats.tables import Bools, Ints


@dataclass
class Collectives:
    """Kernels of collectives as they are met."""

    state: State
    count: int = 0
    _names: list[pl.Series] = field(default_factory=list)
    _times: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)

    def add(
        self, words: Words, codes: Ints, chosen: Bools, process: Ints, start: Ints, end: Ints
    ) -> dict[str, Any]:
        """Take note of the collectives among some kernels; the column ``op_id`` of all of them."""
        at = np.flatnonzero(chosen)
        if not len(at):
            return {}
        op_id = np.zeros(len(codes), np.uint32)
        op_id[at] = self.count + np.arange(len(at))
        self.count += len(at)
        self._names.append(pl.Series(words.words.take(pa.array(codes[at]))))
        self._times.append((process[at], start[at], end[at]))
        return {"op_id": pa.array(op_id, mask=~chosen)}

    def finish(self) -> None:
        """Stage operations, and what ranks can be aligned by: the collectives of the first process in their order."""
        if not self.count:
            return
        process, start, end = (np.concatenate(p) for p in zip(*self._times, strict=True))
        kernel = pl.col("kernel")
        named = pl.DataFrame({"kernel": pl.concat(self._names)}).select(
            kernel,
            name=pl.coalesce(
                kernel_operation(kernel), kernel_function(kernel), pl.lit("collective")
            ),
            algorithm=kernel_algorithm(kernel),
            dtypes=kernel_dtype(kernel),
        )
        name = named["name"]
        self.state.stage.add_ops(
            {
                "op_id": np.arange(self.count, dtype=np.uint32),
                "kind": ["collective"] * self.count,
                "name": name,
                "algorithm": named["algorithm"],
                "dtypes": named["dtypes"],
            }
        )
        frame = pl.DataFrame({"name": name, "process": process, "start_ns": start, "end_ns": end})
        rows = frame.filter(
            pl.col("process") == process[0], ~pl.col("name").is_in(POINT_TO_POINT)
        ).sort("start_ns")
        self.state.stage.facts.collectives = rows.select(
            pl.lit("RCCL, by order").alias("group"),
            pl.int_range(pl.len(), dtype=pl.Int64).alias("sequence"),
            "name",
            "start_ns",
            "end_ns",
            pl.lit(None, pl.Int64).alias("bytes"),
        )
        self.state.stage.audit.add(
            "collectives_without_size",
            "note",
            self.state.tables.label,
            "message size and communicator of collectives are not recorded; they are known by the names of their kernels only",
            unreliable="bytes and bandwidth of collectives, groups",
            count=self.count,
            example=str(named["kernel"][0])[:80],
        )
