"""Programs of many ranks to emulate: their groups, their collectives, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from tests.emulator.programs import op, program, ref

from trnprof.emulator.emulate import Emulation, emulate
from trnprof.emulator.system import System
from trnprof.emulator.workload import (
    CollectiveCall,
    Operation,
    ProcessGroup,
    TensorRef,
    Workload,
    World,
)
from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.reader import Trace, open_trace


def mesh(*sizes: int) -> list[tuple[tuple[int, ...], ...]]:
    """The groups of each dimension of a mesh of ranks whose last dimension counts fastest."""
    count = 1
    for size in sizes:
        count *= size
    dimensions = []
    stride = count
    for size in sizes:
        stride //= size
        firsts = [r for r in range(count) if r // stride % size == 0]
        dimensions.append(tuple(tuple(f + stride * i for i in range(size)) for f in firsts))
    return dimensions


def group(name: str, siblings: Sequence[tuple[int, ...]]) -> ProcessGroup:
    """The group of rank 0."""
    own = next(ranks for ranks in siblings if 0 in ranks)
    return ProcessGroup(name, own, tuple(siblings))


def collective(
    kind: str,
    nbytes: int,
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    *,
    group: int = 0,
    step: int = 0,
    **call: Any,
) -> Operation:
    plain = op(f"_c10d_functional::{kind}", inputs, outputs, step=step)
    return replace(plain, collective=CollectiveCall(kind, group, nbytes, **call))


def world(
    operations: Sequence[Operation],
    groups: Sequence[ProcessGroup],
    size: int,
    resident: Sequence[TensorRef] = (),
) -> Workload:
    return replace(
        program(operations, resident), groups=tuple(groups), world=World(size, groups[0].ranks[0])
    )


def layers(
    depth: int, width: int, tokens: int, ranks: int, step: int = 0, first: int = 1000
) -> list[Operation]:
    """Forward of layers whose weights are gathered one layer ahead, as FSDP does: rank 0's shard lies in storage ``i``."""
    operations: list[Operation] = []
    x = ref(first, tokens, width, dtype="bfloat16")
    nbytes = width * width * 2

    def gathered(layer: int) -> TensorRef:
        return ref(first + 100 + layer, width, width, dtype="bfloat16")

    def gather(layer: int) -> Operation:
        shard = ref(layer, width // ranks, width, dtype="bfloat16", role="parameter")
        return collective("all_gather", nbytes, [shard], [gathered(layer)], step=step)

    operations.append(gather(0))
    for layer in range(depth):
        if layer + 1 < depth:
            operations.append(gather(layer + 1))
        y = ref(first + 200 + layer, tokens, width, dtype="bfloat16")
        freed = [gathered(layer - 1).tensor] if layer else []
        operations.append(op("mm", [x, gathered(layer)], [y], step=step, freed=freed))
        x = y
    return operations


class Run(NamedTuple):
    trace: Trace
    outcome: Emulation
    events: pl.DataFrame

    def of(self, position: int) -> pl.DataFrame:
        """Device events of the operation at a position."""
        tracks = self.trace.tracks.filter(pl.col("kind").cast(pl.String) != "link")["track_id"]
        # modules come before operations among the ids, and these programs have none
        return self.events.filter(
            (pl.col("op_id") == position) & pl.col("track_id").is_in(tracks.implode())
        )


def run(path: Path, workload: Workload, system: System, **options: Any) -> Run:
    path.mkdir(parents=True, exist_ok=True)
    outcome = emulate(workload, system, path, reproducible=True, **options)
    write_manifest(
        path, command=None, is_simulation=True, system=system.describe(), emulation=outcome.details
    )
    trace = open_trace(path)
    events = trace.events.with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    return Run(trace, outcome, events.collect().sort("event_id"))
