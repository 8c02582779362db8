"""How do several traces of one run become one?

Event ids are kept, except where two recordings claimed one writer number: then the later one's shards get the next free number
and every id of its trace that names them (``event_id``, ``blocked_by``, flows) is shifted with them. A writer name that
is taken gets ``_2``, ``_3``, …
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from trnprof.tracer.batches import to_batch
from trnprof.tracer.errors import TraceError
from trnprof.tracer.files import directory_beside
from trnprof.tracer.manifest import (
    FRAGMENTS,
    MAX_WRITERS,
    check_replaceable,
    read_fragments,
    read_manifest,
    write_manifest,
)
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.schema import PEAKS, SEQUENCE_BITS, WRITER_SHARD_BITS
from trnprof.tracer.seal import write_sealed
from trnprof.tracer.transfer import Destination, transfer_writer
from trnprof.tracer.writer import TraceWriter

_WORKLOAD = "workload.arrow"


def merge(
    paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], force: bool = False
) -> Path:
    """Write one trace with everything that several hold; recordings that were killed are sealed on the way.

    Args:
        paths: trace directories, in the order in which their writers keep numbers and names.
        out: the new trace directory.
        force: replace the trace that is there.

    Returns:
        ``out``.

    Raises:
        TraceError: no path, or one is not a readable trace, or there are more writers than numbers.
        OutputExistsError: ``out`` exists and ``force`` was not given.
        WriteError: it could not be written; ``out`` is as before then.
    """
    if not paths:
        raise TraceError("merge: no trace was given; name at least one")
    traces = [open_trace(path) for path in paths]
    target = Path(out)
    check_replaceable(target, force=force)
    with directory_beside(target) as root:
        _transfer_all(traces, root)
        _write_shared(traces, root)
        flows = collective_flows(open_trace(root))
        if flows.height:
            names = {f["writer"] for f in read_fragments(root)[0]}
            with TraceWriter(root, writer=_free_name("merge", names)) as writer:
                writer.append_flows({name: flows[name] for name in flows.columns})
        _merge_manifests(traces, root)
    return target


def collective_flows(trace: Trace) -> pl.DataFrame:
    """Flows that tie the events of one collective together across writers.

    Two events belong to one collective if their operations share the group's name and ``group_seq``. The first event of the
    writer with the lowest number is the source, the first of every other writer a target. It says that they belong together,
    not which was earlier: their clocks may differ.

    Returns:
        Columns of ``flows``; pairs that the trace has already are left out.
    """
    ops = (
        trace.ops.filter(pl.col("group_id").is_not_null() & pl.col("group_seq").is_not_null())
        .join(trace.groups.select("group_id", pl.col("name").alias("group")), on="group_id")
        .select("op_id", "group", "group_seq")
    )
    writer = pl.col("event_id") // (1 << (SEQUENCE_BITS + WRITER_SHARD_BITS))
    first = (
        trace.events.select("event_id", "op_id", "start_ns", writer.alias("writer"))
        .join(ops.lazy(), on="op_id")
        .group_by("group", "group_seq", "writer")
        .agg(pl.col("event_id").sort_by("start_ns", "event_id").first())
        .sort("group", "group_seq", "writer")
        .collect()
    )
    source = pl.col("event_id").first().over("group", "group_seq")
    pairs = first.select(
        source.alias("source_event"), pl.col("event_id").alias("target_event")
    ).filter(pl.col("source_event") != pl.col("target_event"))
    known = trace.flows.filter(pl.col("kind").cast(pl.String) == "collective").collect()
    new = pairs.join(known, on=["source_event", "target_event"], how="anti", maintain_order="left")
    return new.with_columns(kind=pl.lit("collective"), lag_ns=pl.lit(0, pl.Int64))


def _transfer_all(traces: Sequence[Trace], root: Path) -> None:
    claimed = {f["number"] for trace in traces for f in trace.fragments}
    used: set[int] = set()
    names: set[str] = set()
    for trace in traces:
        fragments, _ = read_fragments(trace.path)
        numbers: dict[int, int] = {}
        for fragment in fragments:
            number = fragment["number"]
            if number in used:
                numbers[number] = _next_free(claimed)
                claimed.add(numbers[number])
            used.add(numbers.get(number, number))
        for fragment in fragments:
            name = _free_name(fragment["writer"], names)
            names.add(name)
            transfer_writer(trace.path, fragment, Destination(root, name, numbers, None))


def _next_free(claimed: Iterable[int]) -> int:
    taken = set(claimed)
    for number in range(MAX_WRITERS):
        if number not in taken:
            return number
    raise TraceError(f"merge: more than {MAX_WRITERS} writers; merge fewer traces at once")


def _free_name(name: str, taken: Iterable[str]) -> str:
    names = set(taken)
    candidates = itertools.chain([name], (f"{name[:90]}_{n}" for n in itertools.count(2)))
    return next(c for c in candidates if c not in names)


def _write_shared(traces: Sequence[Trace], root: Path) -> None:
    (root / FRAGMENTS).mkdir(exist_ok=True)
    peaks = pl.concat([trace.peaks for trace in traces]).unique(maintain_order=True)
    if peaks.height:
        batch = to_batch(PEAKS, {name: peaks[name] for name in peaks.columns})
        write_sealed(root / "peaks.arrow", batch.schema, [batch], None)
    workloads = [t.path / _WORKLOAD for t in traces if (t.path / _WORKLOAD).exists()]
    if workloads:
        shutil.copyfile(workloads[0], root / _WORKLOAD)


def _merge_manifests(traces: Sequence[Trace], root: Path) -> None:
    manifests = [m for m in (read_manifest(t.path) for t in traces) if m]
    first: Mapping[str, Any] = manifests[0] if manifests else {}
    notes = [note for m in manifests for note in m.get("notes", ())]
    systems = [m["system"] for m in manifests if m.get("system")]
    if any(system != systems[0] for system in systems):
        notes.append("the merged traces describe different systems; that of the first is kept")
    derived = {
        "is_simulation": any(m.get("is_simulation") for m in manifests),
        "system": systems[0] if systems else None,
        "notes": list(dict.fromkeys(notes)),
    }
    inherited = {k: v for k, v in first.items() if k not in ("schema", "tool_version", "fragments")}
    write_manifest(root, **(inherited | derived))
