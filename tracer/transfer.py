"""How does a writer's part of one trace become part of another directory: copied, renumbered, compressed, sealed if need be?"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trnprof.tracer.files import sync, writing
from trnprof.tracer.manifest import claim_exactly, write_fragment
from trnprof.tracer.schema import SEQUENCE_BITS, STREAMED, TABLES, WRITER_SHARD_BITS
from trnprof.tracer.seal import seal_shard, with_max_durations
from trnprof.tracer.shards import read_batches, writer_files

_EVENT_ID_COLUMNS = ("event_id", "blocked_by", "source_event", "target_event")
_ORDER = ("events", "flows", "counters", "groups", "ops", "steps", "tracks")
"""Tracks last: sealing them needs the longest event of each."""


@dataclass(frozen=True)
class Destination:
    """Where a writer's files go.

    Attributes:
        root: the new trace directory.
        writer: its name there.
        numbers: old writer number → new one, for every writer of its trace that changes.
        compression: of the new files: None or ``zstd``.
    """

    root: Path
    writer: str
    numbers: Mapping[int, int]
    compression: str | None


def transfer_writer(source: Path, fragment: Mapping[str, Any], to: Destination) -> None:
    """Bring the files of one writer into another directory and write its fragment there, sealed.

    Files are copied where nothing changes; else their rows are sealed anew. What cannot be read is left out, with a warning in
    the fragment.

    Raises:
        WriteError: a file could not be written.
    """
    number = to.numbers.get(fragment["number"], fragment["number"])
    claim_exactly(to.root, to.writer, number)
    entries: list[dict[str, Any]] = []
    warnings: list[str] = list(fragment["warnings"])
    if not fragment["sealed"]:
        warnings.append("this recording was stopped before its end")
    longest_ns: dict[int, int] = {}
    files = sorted(writer_files(source, fragment), key=lambda f: _ORDER.index(f[0]))
    for table, path, entry in files:
        suffix = f"-{path.stem.rpartition('-')[2]}" if table in STREAMED else ""
        target = f"{table}/{to.writer}{suffix}.arrow"
        if entry is not None and _may_copy(path, entry, table, to):
            entries.append(_copy(source, entry, to.root, target))
            continue
        batches, problems = read_batches(TABLES[table], path, entry)
        warnings += [p.message for p in problems]
        if not batches:
            continue
        if table == "tracks":
            batches = with_max_durations(batches, longest_ns)
        batches = [renumbered(batch, to.numbers) for batch in batches]
        sealed = seal_shard(to.root, target, TABLES[table], batches, to.compression)
        for track, longest in zip(
            sealed.track_ids.tolist(), sealed.max_duration_ns.tolist(), strict=True
        ):
            longest_ns[track] = max(longest_ns.get(track, 0), longest)
        entries.append(sealed.entry)
    write_fragment(
        to.root,
        {
            **fragment,
            "writer": to.writer,
            "number": number,
            "shards": entries,
            "sealed": True,
            "warnings": warnings,
        },
    )


def renumbered(batch: pa.RecordBatch, numbers: Mapping[int, int]) -> pa.RecordBatch:
    """The rows with the event ids of renumbered writers shifted to their new shards."""
    shift = np.uint64(SEQUENCE_BITS + WRITER_SHARD_BITS)
    for name in _EVENT_ID_COLUMNS if numbers else ():
        place = batch.schema.get_field_index(name)
        if place < 0:
            continue
        column = batch[name]
        ids = column.fill_null(0).to_numpy(zero_copy_only=False)
        writer = ids >> shift
        moved = ids.copy()
        for old, new in numbers.items():
            mine = writer == old
            moved[mine] = (ids[mine] & np.uint64((1 << int(shift)) - 1)) | np.uint64(
                new << int(shift)
            )
        nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        batch = batch.set_column(place, batch.schema.field(place), pa.array(moved, mask=nulls))
    return batch


def _may_copy(path: Path, entry: Mapping[str, Any], table: str, to: Destination) -> bool:
    if to.compression is not None or (to.numbers and table in ("events", "flows")):
        return False
    return path.exists() and path.stat().st_size == entry["bytes"]


def _copy(source: Path, entry: Mapping[str, Any], root: Path, target: str) -> dict[str, Any]:
    copied = {**entry, "file": target}
    names: Sequence[tuple[str, str]] = [
        ("file", ".arrow"),
        ("rows_index", ".rows.arrow"),
        ("tracks_index", ".tracks.arrow"),
    ]
    for key, suffix in names:
        if entry.get(key) is None:
            continue
        name = target.removesuffix(".arrow") + suffix
        with writing(root / name):
            (root / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / entry[key], root / name)
            sync(root / name)
        copied[key] = name
    return copied
