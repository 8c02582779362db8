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
from trnprof.tracer.manifest import (
    FRAGMENTS,
    MAX_WRITERS,
    read_fragments,
    read_manifest,
    trace_beside,
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
        TraceError: no path, one twice, ``out`` lies inside one, or one is not a readable trace, or there are more writers than numbers.
        OutputExistsError: ``out`` exists and ``force`` was not given.
        WriteError: it could not be written; ``out`` is as before then.
    """
    if not paths:
        raise TraceError("merge: no trace was given; name at least one")
    target = Path(out)
    _check_distinct([Path(path) for path in paths], target)
    traces = [open_trace(path) for path in paths]
    with trace_beside(target, force=force) as root:
        renamed = _transfer_all(traces, root)
        _write_shared(traces, root)
        add_collective_flows(root)
        _merge_manifests(traces, renamed, root)
    return target


def add_collective_flows(root: Path) -> None:
    """Write the flows that tie collectives together across the writers of a trace, as one more writer; see ``collective_flows``.

    Raises:
        WriteError: they could not be written.
    """
    flows = collective_flows(open_trace(root))
    if flows.height:
        names = {f["writer"] for f in read_fragments(root)[0]}
        with TraceWriter(root, writer=_free_name("merge", names)) as writer:
            writer.append_flows({name: flows[name] for name in flows.columns})


def collective_flows(trace: Trace) -> pl.DataFrame:
    """Flows that tie the events of one collective together across writers.

    Two events belong to one collective if their operations share the group (name and ranks) and ``group_seq``. A writer
    arrives with the first of its events; the last to arrive is the source, the others are targets. Starts are compared on
    the Unix clock where the epoch of a track's clock is known, else as they are.

    Returns:
        Columns of ``flows``; pairs that the trace has already are left out.
    """
    ops = (
        trace.ops.filter(pl.col("group_id").is_not_null() & pl.col("group_seq").is_not_null())
        .join(
            trace.groups.lazy().select("group_id", pl.struct("name", "ranks").alias("group")),
            on="group_id",
        )
        .select("op_id", "group", "group_seq")
    )
    writer = pl.col("event_id") // (1 << (SEQUENCE_BITS + WRITER_SHARD_BITS))
    first = (
        trace.events.select("event_id", "track_id", "op_id", "start_ns", writer.alias("writer"))
        .join(ops, on="op_id")
        .join(_epochs(trace).lazy(), on="track_id", how="left")
        .with_columns(pl.col("start_ns") + pl.col("epoch_ns").fill_null(0))
        .sort("start_ns", "event_id")
        .group_by("group", "group_seq", "writer", maintain_order=True)
        .agg(pl.col("event_id", "start_ns").first())
        .sort("start_ns", "event_id", descending=[True, False])
        .collect()
    )
    source = pl.col("event_id").first().over("group", "group_seq")
    pairs = first.select(source.alias("source_event"), pl.col("event_id").alias("target_event"))
    pairs = pairs.filter(pl.col("source_event") != pl.col("target_event")).sort(pl.all())
    known = trace.flows.filter(pl.col("kind").cast(pl.String) == "collective").collect()
    new = pairs.join(known, on=["source_event", "target_event"], how="anti", maintain_order="left")
    return new.with_columns(kind=pl.lit("collective"), lag_ns=pl.lit(0, pl.Int64))


def _epochs(trace: Trace) -> pl.DataFrame:
    """``track_id`` and ``epoch_ns``, the Unix time of its clock's zero, 0 where nobody knows it."""
    epochs = {
        c["clock_id"]: c.get("epoch_unix_ns") or 0 for f in trace.fragments for c in f["clocks"]
    }
    epoch = pl.col("clock_id").replace_strict(epochs, default=0, return_dtype=pl.Int64)
    return trace.tracks.select("track_id", epoch_ns=epoch)


def _check_distinct(paths: Sequence[Path], target: Path) -> None:
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise TraceError(f"merge: {path} is given twice")
        seen.add(path.resolve())
    if seen & set(target.resolve().parents):
        raise TraceError(f"merge: {target} lies inside one of the traces; choose another output")


def _transfer_all(traces: Sequence[Trace], root: Path) -> list[dict[str, str]]:
    """Copy the writers of all traces; for each trace what its writers are called now."""
    claimed = {f["number"] for trace in traces for f in trace.fragments}
    used: set[int] = set()
    names: set[str] = set()
    renamed: list[dict[str, str]] = []
    for trace in traces:
        fragments, _ = read_fragments(trace.path)
        numbers: dict[int, int] = {}
        for fragment in fragments:
            number = fragment["number"]
            if number in used:
                numbers[number] = _next_free(claimed)
                claimed.add(numbers[number])
            used.add(numbers.get(number, number))
        renamed.append({})
        for fragment in fragments:
            name = _free_name(fragment["writer"], names)
            names.add(name)
            renamed[-1][fragment["writer"]] = name
            transfer_writer(trace.path, fragment, Destination(root, name, numbers, None))
    return renamed


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


def _merge_manifests(
    traces: Sequence[Trace], renamed: Sequence[Mapping[str, str]], root: Path
) -> None:
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
    imported = _merge_imported([t.manifest for t in traces], renamed)
    inherited = {k: v for k, v in first.items() if k not in ("schema", "tool_version", "fragments")}
    write_manifest(root, **(inherited | derived | imported))


def _merge_imported(
    manifests: Sequence[Mapping[str, Any]], renamed: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Where the profiles came from that some of the traces were imported from, and what was doubtful of them."""
    sources: list[Any] = []
    audit: list[Any] = []
    for manifest, names in zip(manifests, renamed, strict=True):
        imported = manifest.get("imported") or {}
        sources += [
            source | {"writer": names.get(source["writer"], source["writer"])}
            for source in imported.get("sources", ())
        ]
        audit += imported.get("audit", ())
    return {"imported": {"sources": sources, "audit": audit}} if sources else {}
