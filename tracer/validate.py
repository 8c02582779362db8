"""Does a trace keep its promises: do all references resolve, do lanes not overlap, are files what was sealed?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.event_ids import EventIds
from trnprof.tracer.manifest import read_fragments
from trnprof.tracer.overlap import overlapping_events
from trnprof.tracer.problems import Problem, error
from trnprof.tracer.reader import Trace
from trnprof.tracer.schema import SEQUENCE_BITS, TABLES
from trnprof.tracer.seal import file_crc32
from trnprof.tracer.shards import Shard, reread


@dataclass(frozen=True)
class Check:
    """One thing that no row of a table may do.

    Attributes:
        kind: of the problem.
        mask: true where a row does it.
        message: what is wrong, for a person; the number of rows and an example are added.
        severity: of the problem.
    """

    kind: str
    mask: pl.Expr
    message: str
    severity: str = "error"


def validate(trace: Trace) -> list[Problem]:
    """Everything that is wrong with a trace, errors first.

    Every row is read, shard by shard; memory is that of one shard, plus eight bytes an event where ids have holes, plus the
    intervals of tracks whose shards overlap in time.

    Returns:
        Problems met while opening, then those of files, small tables, events, flows and counters.
    """
    problems = [*trace.problems]
    damaged = damaged_files(trace)
    problems += damaged.values()
    problems += _tracks(trace)
    problems += _ops(trace)
    problems += _steps(trace)
    parts = _parts(trace, "events", damaged)
    ids = EventIds()
    for where, part, shard in parts:
        problems += _event_ids(where, part, shard, ids)
    for where, part, shard in parts:
        problems += _run(where, part, _event_checks(trace, shard), "event_id", "event")
        problems += _references(where, part, ("blocked_by",), "event_id", ids)
    problems += _overlaps([part for _, part, _ in parts])
    for where, part, _ in _parts(trace, "flows", damaged):
        problems += _run(where, part, _vocabulary("flows"), "target_event", "flow to event")
        problems += _references(where, part, ("source_event", "target_event"), "target_event", ids)
    for where, part, shard in _parts(trace, "counters", damaged):
        problems += _run(where, part, _counter_checks(trace, shard), "timestamp_ns", "sample at")
    return sorted(problems, key=lambda p: p.severity != "error")


def damaged_files(trace: Trace) -> dict[Path, Problem]:
    """Sealed files whose checksum is not that of their fragment, read whole."""
    damaged: dict[Path, Problem] = {}
    if not (trace.path / "manifest.d").is_dir():
        return {}
    for fragment in read_fragments(trace.path)[0]:
        for entry in fragment["shards"]:
            path = trace.path / entry["file"]
            if not path.exists() or path.stat().st_size != entry["bytes"]:
                continue  # told while opening
            for key in ("file", "rows_index", "tracks_index"):
                if entry.get(key) is not None:
                    crc32 = entry.get("crc32" if key == "file" else f"{key}_crc32")
                    damaged |= _damage(trace.path, entry[key], crc32)
    return damaged


def _damage(root: Path, name: str, crc32: int | None) -> dict[Path, Problem]:
    path = root / name
    if not path.exists():
        return {
            path: error("missing_file", name, f"{name} is missing, though the fragment lists it")
        }
    if file_crc32(path) == crc32:
        return {}
    message = f"{name} is not what was sealed (its crc32 differs); restore it from a copy"
    return {path: error("crc_mismatch", name, message)}


def _parts(
    trace: Trace, table: str, damaged: Mapping[Path, Problem]
) -> list[tuple[str, pl.LazyFrame, Shard | None]]:
    """(where, rows, shard) of a streamed table; of a damaged file only the batches that match their checksum."""
    shards = [s for s in trace.shards if s.table == table]
    if not shards:
        return [(table, getattr(trace, table), None)]
    return [
        (f"{table}/{s.path.name}", reread(s) if s.path in damaged else s.frame, s) for s in shards
    ]


def _run(
    where: str, rows: pl.LazyFrame, checks: Sequence[Check], key: str, noun: str
) -> Iterator[Problem]:
    """All checks in one pass over the rows."""
    if not checks:
        return
    aggregates = []
    for i, check in enumerate(checks):
        aggregates.append(check.mask.sum().alias(f"count{i}"))
        aggregates.append(pl.col(key).filter(check.mask).first().alias(f"first{i}"))
    result = rows.select(aggregates).collect().row(0, named=True)
    for i, check in enumerate(checks):
        count, first = int(result[f"count{i}"] or 0), result[f"first{i}"]
        if count:
            message = f"{check.message}: {count}, the first is {noun} {first}"
            yield Problem(check.severity, check.kind, f"{where}, {noun} {first}", message, count)


def _vocabulary(table: str) -> list[Check]:
    """Nulls where none may be, and words outside a closed vocabulary."""
    checks = []
    for column in TABLES[table].columns:
        if not column.nullable:
            mask = pl.col(column.name).is_null()
            checks.append(Check("null_value", mask, f"{table}.{column.name} is null"))
        if column.domain:
            words = pl.col(column.name).cast(pl.String)
            foreign = words.is_not_null() & ~words.is_in(list(column.domain))
            message = f"{table}.{column.name} is none of {', '.join(column.domain)}"
            checks.append(Check(f"unknown_{column.name}", foreign, message))
    return checks


def _dangling(column: str, kind: str, known: pl.Series, message: str) -> Check:
    mask = pl.col(column).is_not_null() & ~pl.col(column).is_in(known.implode())
    return Check(kind, mask, message)


def _own(trace: Trace, shard: Shard | None, table: str) -> pl.Series:
    """The ids of the table that rows of this shard may name: those of its writer."""
    key = table.removesuffix("s")
    ids: pl.Series = getattr(trace, table).lazy().select(f"{key}_id").collect().to_series()
    if shard is None:
        return ids
    first = getattr(shard.bases, key)
    place = next(i for i, f in enumerate(trace.fragments) if f["writer"] == shard.writer)
    following = trace.fragments[place + 1 : place + 2]
    own = ids >= first
    return ids.filter(own & (ids < following[0][f"{key}_base"]) if following else own)


def _event_checks(trace: Trace, shard: Shard | None) -> list[Check]:
    track, op = _own(trace, shard, "tracks"), _own(trace, shard, "ops")
    return [
        Check("negative_duration", pl.col("duration_ns") < 0, "events with a negative duration"),
        Check(
            "unfinished",
            pl.col("duration_ns").is_null(),
            "events still open when the recording ended",
            "warning",
        ),
        _dangling("track_id", "dangling_track", track, "events on a track that does not exist"),
        _dangling("op_id", "dangling_op", op, "events of an operation that does not exist"),
        *_vocabulary("events"),
    ]


def _counter_checks(trace: Trace, shard: Shard | None) -> list[Check]:
    tracks = trace.tracks
    other = tracks.filter(pl.col("kind").cast(pl.String) != "counter")["track_id"]
    backwards = pl.col("timestamp_ns") < pl.col("timestamp_ns").shift(1).over("track_id")
    return [
        _dangling(
            "track_id",
            "dangling_track",
            _own(trace, shard, "tracks"),
            "samples on a track that does not exist",
        ),
        Check(
            "not_a_counter",
            pl.col("track_id").is_in(other.implode()),
            "samples on a track that is not a counter",
        ),
        Check("counter_order", backwards, "samples earlier than the one before on their track"),
        *_vocabulary("counters"),
    ]


def _event_ids(
    where: str, events: pl.LazyFrame, shard: Shard | None, known: EventIds
) -> Iterator[Problem]:
    ids = events.select("event_id").collect()["event_id"].drop_nulls().to_numpy()
    again = known.add(ids)
    if len(again):
        message = f"event ids that more than one event has: {len(again)}, the first is {again[0]}"
        yield error("duplicate_event_id", f"{where}, event {again[0]}", message, len(again))
    if shard is None:
        return
    foreign = ids[ids >> np.uint64(SEQUENCE_BITS) != shard.number]
    if len(foreign):
        message = f"events whose id names another shard: {len(foreign)}, the first is {foreign[0]}"
        yield error("foreign_event_id", f"{where}, event {foreign[0]}", message, len(foreign))


def _references(
    where: str, rows: pl.LazyFrame, columns: Sequence[str], key: str, ids: EventIds
) -> Iterator[Problem]:
    frame = rows.select({*columns, key}).collect()
    for column in columns:
        missing = ids.missing(frame[column].drop_nulls().to_numpy())
        if not len(missing):
            continue
        bad = frame.filter(pl.col(column).is_in(pl.Series(missing).implode()))
        first = bad[key][0]
        message = f"{column} names an event that does not exist: {bad.height}, the first is {bad[column][0]} (of {key} {first})"
        yield error(f"dangling_{column}", f"{where}, {key} {first}", message, bad.height)


def _overlaps(parts: Sequence[pl.LazyFrame]) -> Iterator[Problem]:
    found = overlapping_events(parts)
    if found.height:
        row = found.row(0, named=True)
        message = (
            f"events that begin before their lane is free: {found.height}, the first is event {row['event_id']} on track "
            f"{row['track_id']}: it begins at {row['start_ns']} ns, the lane is busy until {row['busy_until_ns']} ns"
        )
        yield error("overlap", f"events, event {row['event_id']}", message, found.height)


def _tracks(trace: Trace) -> Iterator[Problem]:
    ids = trace.tracks["track_id"]
    checks = [
        Check("duplicate_track_id", pl.col("track_id").is_duplicated(), "tracks that share an id"),
        _dangling("parent_id", "dangling_parent", ids, "tracks under a track that does not exist"),
        _dangling(
            "replica_of", "dangling_replica", ids, "tracks that repeat a track that does not exist"
        ),
        *_vocabulary("tracks"),
    ]
    yield from _run("tracks", trace.tracks.lazy(), checks, "track_id", "track")
    yield from _cycles("tracks", trace.tracks, "track_id", "track")


def _ops(trace: Trace) -> Iterator[Problem]:
    groups = trace.groups["group_id"]
    links = trace.ops.select("op_id", "parent_id").collect()
    checks = [
        Check("duplicate_op_id", pl.col("op_id").is_duplicated(), "operations that share an id"),
        _dangling(
            "parent_id",
            "dangling_parent",
            links["op_id"],
            "operations of one that does not exist",
        ),
        _dangling(
            "group_id", "dangling_group", groups, "collectives of a group that does not exist"
        ),
        *_vocabulary("ops"),
    ]
    yield from _run("ops", trace.ops, checks, "op_id", "op")
    yield from _cycles("ops", links, "op_id", "op")
    duplicate = Check(
        "duplicate_group_id", pl.col("group_id").is_duplicated(), "groups that share an id"
    )
    yield from _run("groups", trace.groups.lazy(), [duplicate], "group_id", "group")


def _steps(trace: Trace) -> Iterator[Problem]:
    ordered = trace.steps.sort("clock_id", "rank", "step", maintain_order=True)
    previous_end = pl.col("end_ns").shift(1).over("clock_id", "rank")
    described = [c["clock_id"] for f in trace.fragments for c in f.get("clocks", ())]
    clocks = pl.Series([*described, *trace.tracks["clock_id"].drop_nulls()], dtype=pl.Int32)
    checks = [
        Check(
            "negative_duration",
            pl.col("end_ns") < pl.col("start_ns"),
            "steps that end before they begin",
        ),
        Check(
            "duplicate_step",
            pl.struct("clock_id", "rank", "step").is_duplicated(),
            "steps that a rank has twice on one clock",
        ),
        _dangling(
            "clock_id",
            "dangling_clock",
            clocks,
            "steps on a clock that no writer describes and no track is on",
        ),
        Check(
            "step_order",
            pl.col("start_ns") < previous_end,
            "steps that begin before the one before has ended",
        ),
        *_vocabulary("steps"),
    ]
    yield from _run("steps", ordered.lazy(), checks, "step", "step")


def _cycles(table: str, rows: pl.DataFrame, key: str, noun: str) -> Iterator[Problem]:
    """Rows that are their own ancestor, found by pointer jumping: log2(rows) gathers."""
    ids = rows[key].to_numpy()
    parent = _parent_rows(ids, rows["parent_id"])
    for _ in range(max(1, len(ids)).bit_length()):
        parent = parent[parent]
    stuck = np.flatnonzero(parent[:-1] != len(ids))
    if len(stuck):
        first = ids[stuck[0]]
        message = f"{table} that stand under themselves: {len(stuck)}, the first is {noun} {first}"
        yield error("parent_cycle", f"{table}, {noun} {first}", message, len(stuck))


def _parent_rows(ids: NDArray[np.uint32], parents: pl.Series) -> NDArray[np.int64]:
    """Row of each row's parent; roots, dangling ones and the extra last element point at row ``len(ids)``."""
    root = len(ids)
    result = np.full(root + 1, root, np.int64)
    has_parent = parents.is_not_null().to_numpy()
    if root and has_parent.any():
        order = np.argsort(ids, kind="stable")
        wanted = parents.drop_nulls().to_numpy()
        place = np.minimum(np.searchsorted(ids[order], wanted), root - 1)
        row = order[place]
        result[np.flatnonzero(has_parent)] = np.where(ids[row] == wanted, row, root)
    return result
