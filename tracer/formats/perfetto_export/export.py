"""How does a trace become a file for the Perfetto UI and trace processor?

One file, one packet sequence. Tracks are a tree of their own (no processes or threads, whose order and labels Perfetto would
choose), times are those of the trace, plus what :attr:`ExportSummary.offsets_ns` says. Events stream through in batches.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.files import check_output_file, written_beside
from trnprof.tracer.formats.perfetto_export.arguments import (
    EVENT_ARGUMENTS,
    TEXT,
    OperationArguments,
    argument_pieces,
    text_argument,
)
from trnprof.tracer.formats.perfetto_export.encode import (
    Bytes,
    Slices,
    encode_counters,
    encode_slices,
    no_pieces,
)
from trnprof.tracer.formats.perfetto_export.flows import (
    FLOW_CHOICES,
    FlowChoice,
    Flows,
    chosen_edges,
    place_flows,
)
from trnprof.tracer.formats.perfetto_export.intern import CATEGORIES, NAMES, Interning, clean
from trnprof.tracer.formats.perfetto_export.order import UnorderedError, batches, event_batches
from trnprof.tracer.formats.perfetto_export.plan import Plan, make_plan
from trnprof.tracer.formats.perfetto_export.tracks import descriptors
from trnprof.tracer.reader import Trace

_COLUMNS: Final = [
    "event_id",
    "track_id",
    "start_ns",
    "duration_ns",
    "name",
    "category",
    "op_id",
    *EVENT_ARGUMENTS,
    TEXT,
]


@dataclass(frozen=True)
class ExportSummary:
    """What was written.

    Attributes:
        path: the file.
        size_bytes: its size.
        tracks: tracks described, groups included.
        slices: events.
        unfinished: those of them that were still open when the recording ended; Perfetto gives them a duration of -1.
        steps: further slices, one a step.
        samples: counter samples.
        flows: arrows.
        flows_undrawn: chosen edges that no arrow can show: an end is missing, on another time axis, or the target ends before
            the source begins.
        offsets_ns: for each time axis, by name, what was added to the times of the trace.
    """

    path: Path
    size_bytes: int
    tracks: int
    slices: int
    unfinished: int
    steps: int
    samples: int
    flows: int
    flows_undrawn: int
    offsets_ns: Mapping[str, int]


def export(
    trace: Trace,
    out_path: str | os.PathLike[str],
    *,
    flows: FlowChoice = "critical",
    force: bool = False,
) -> ExportSummary:
    """Write a trace as a Perfetto file.

    Args:
        trace: what to export.
        out_path: the file; with the suffix ``.gz`` it is compressed.
        flows: which dependencies become arrows: ``critical`` (``blocked_by``, back from the end of each step), ``none``,
            ``collective`` or ``all`` (rows of the flows table).
        force: replace a file that is there.

    Raises:
        OutputExistsError: the output exists and ``force`` was not given, or it is a directory.
        WriteError: it could not be written; nothing is left of it then.
        TraceError: the trace breaks its own rules, so that Perfetto would show it wrongly.
        TrnprofError: there is no such choice of flows.
    """
    target = Path(out_path)
    if flows not in FLOW_CHOICES:
        raise TrnprofError(f"no flows {flows!r}; choose one of {', '.join(FLOW_CHOICES)}")
    check_output_file(target, force=force)
    plan = make_plan(trace)
    arrows = place_flows(trace, chosen_edges(trace, flows, plan.placement), plan.placement)
    with written_beside(target, force=force) as beside:
        try:
            slices, unfinished, samples = _write(trace, beside, target, plan, arrows, sort=False)
        except UnorderedError:
            slices, unfinished, samples = _write(trace, beside, target, plan, arrows, sort=True)
    return ExportSummary(
        path=target,
        size_bytes=target.stat().st_size,
        tracks=plan.tree.count,
        slices=slices,
        unfinished=unfinished,
        steps=plan.steps.height,
        samples=samples,
        flows=arrows.drawn,
        flows_undrawn=arrows.undrawn,
        offsets_ns={a.name: s for a, s in zip(plan.axes.axes, plan.shifts_ns, strict=True)},
    )


def _write(
    trace: Trace, beside: Path, target: Path, plan: Plan, arrows: Flows, *, sort: bool
) -> tuple[int, int, int]:
    """Write the whole file; the numbers of slices, unfinished ones and counter samples."""
    interning = Interning()
    operations = OperationArguments(trace.ops, interning)
    slices = unfinished = samples = 0
    with _opened(beside, is_compressed=target.suffix == ".gz") as file:
        file.write(interning.packets())
        for descriptor in descriptors(plan.tree):
            file.write(descriptor)
        steps = _step_packets(plan, interning)
        file.write(interning.packets())
        file.write(steps.data)
        for batch in event_batches(trace, _COLUMNS, plan.placement, sort=sort):
            data = _event_packets(batch, plan, arrows, operations, interning)
            file.write(interning.packets())
            file.write(data.data)
            slices += batch.height
            unfinished += batch["duration_ns"].null_count()
        for batch in batches(trace.counters):
            file.write(_sample_packets(batch, plan).data)
            samples += batch.height
    return slices, unfinished, samples


@contextmanager
def _opened(path: Path, *, is_compressed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if is_compressed:
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
                yield compressed  # type: ignore[misc]
        else:
            yield file


def _event_packets(
    batch: pl.DataFrame,
    plan: Plan,
    arrows: Flows,
    operations: OperationArguments,
    interning: Interning,
) -> Bytes:
    row = plan.placement.rows(batch["track_id"].to_numpy())
    offset = plan.placement.offset_ns[row]
    start = batch["start_ns"].to_numpy() + offset
    columns = batch.select(EVENT_ARGUMENTS).with_columns(
        pl.col("ready_ns") + pl.Series(offset, dtype=pl.Int64)
    )
    texts = text_argument(TEXT, batch[TEXT], interning)
    slices = Slices(
        start=start.view(np.uint64),
        end=(start + batch["duration_ns"].fill_null(0).to_numpy()).view(np.uint64),
        is_open=batch["duration_ns"].is_null().to_numpy(),
        uuid=plan.placement.uuid[row],
        name=_named(batch["name"], interning),
        category=interning.column(CATEGORIES, batch["category"])[0],
    )
    ids = batch["event_id"].to_numpy()
    return encode_slices(
        slices,
        argument_pieces(columns.to_dict(), interning, texts),
        operations.of(batch["op_id"]),
        arrows.begin.of(ids),
        arrows.end.of(ids),
    )


def _named(names: pl.Series, interning: Interning) -> NDArray[np.uint64]:
    """Numbers of names; a null is given the name for what has none."""
    numbers, present = interning.column(NAMES, names)
    if present.all():
        return numbers
    return np.where(present, numbers, np.uint64(interning.iids(NAMES, [clean(None)])[0]))


def _step_packets(plan: Plan, interning: Interning) -> Bytes:
    steps, rows = plan.steps, plan.steps.height
    offset = steps["offset_ns"].to_numpy()
    label = (
        pl.when(pl.col("label") == "")
        .then(pl.lit("step ") + pl.col("step").cast(pl.String))
        .otherwise(pl.col("label"))
    )
    slices = Slices(
        start=(steps["start_ns"].to_numpy() + offset).view(np.uint64),
        end=(steps["end_ns"].to_numpy() + offset).view(np.uint64),
        is_open=np.zeros(rows, np.bool_),
        uuid=steps["uuid"].to_numpy(),
        name=_named(steps.select(label).to_series(), interning),
        category=interning.column(CATEGORIES, pl.Series(["step"] * rows, dtype=pl.String))[0],
    )
    arguments = argument_pieces(steps.select("step", "rank", "source").to_dict(), interning)
    nothing = no_pieces(rows)
    return encode_slices(slices, arguments, nothing, nothing, nothing)


def _sample_packets(batch: pl.DataFrame, plan: Plan) -> Bytes:
    row = plan.placement.rows(batch["track_id"].to_numpy())
    time = batch["timestamp_ns"].to_numpy() + plan.placement.offset_ns[row]
    return encode_counters(
        time.view(np.uint64),
        plan.placement.uuid[row],
        np.ascontiguousarray(batch["value"].to_numpy()),
    )
