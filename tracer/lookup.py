"""Where are the rows of these events? A gather through the rows index, not a join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from trnprof.tracer.schema import EVENTS, SEQUENCE_BITS
from trnprof.tracer.seal import BATCH_ROWS, NO_ROW
from trnprof.tracer.shards import Shard, rebased


def rows_of_events(shards: Sequence[Shard], ids: NDArray[np.uint64]) -> Iterator[pl.DataFrame]:
    """The rows of some events, shard by shard.

    Args:
        shards: shards of ``events``.
        ids: sorted, distinct event ids.

    Yields:
        Rows, ids rebased, in no order; ids that do not exist give none.
    """
    for shard in shards:
        first, end = np.searchsorted(
            ids, [shard.number << SEQUENCE_BITS, (shard.number + 1) << SEQUENCE_BITS]
        )
        mine = ids[first:end]
        if not len(mine):
            continue
        gathered = _gathered(shard, mine) if shard.is_mapped else None
        if gathered is None:
            wanted = pl.Series("event_id", mine, pl.UInt64).implode()
            gathered = shard.frame.filter(pl.col("event_id").is_in(wanted)).collect()
        yield gathered


def _gathered(shard: Shard, ids: NDArray[np.uint64]) -> pl.DataFrame | None:
    """The rows by their places; None if the index cannot be used or leads elsewhere."""
    assert shard.entry is not None
    sequence = (ids & np.uint64((1 << SEQUENCE_BITS) - 1)).astype(np.int64)
    try:
        rows = _rows_of(shard, sequence)
        rows = np.sort(rows[rows < shard.entry["rows"]])
        batches = _take(shard.path, rows)
    except (pa.ArrowException, OSError, KeyError):
        return None
    frame = pl.from_arrow(pa.Table.from_batches(batches, schema=EVENTS.arrow))
    assert isinstance(frame, pl.DataFrame)
    if not np.isin(frame["event_id"].to_numpy(), ids).all():
        return None
    return rebased("events", frame.lazy(), shard.bases).collect()


def _take(path: Path, rows: NDArray[np.int64]) -> list[pa.RecordBatch]:
    """Rows of a sealed file; ``rows`` is sorted."""
    batches = []
    with pa.memory_map(str(path)) as source:
        reader = ipc.open_file(source)
        for number in np.unique(rows // BATCH_ROWS).tolist():
            inside = rows[rows // BATCH_ROWS == number] % BATCH_ROWS
            batches.append(reader.get_batch(number).take(pa.array(inside)))
    return batches


def _rows_of(shard: Shard, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    assert shard.entry is not None
    name = shard.entry["rows_index"]
    if name is None:
        return sequence
    root = shard.path.parent.parent
    with pa.memory_map(str(root / name)) as source:
        reader = ipc.open_file(source)
        result = np.full(len(sequence), NO_ROW, np.int64)
        for number in range(reader.num_record_batches):
            mine = sequence // BATCH_ROWS == number
            if mine.any():
                index = reader.get_batch(number)["row"].to_numpy()
                inside = sequence[mine] % BATCH_ROWS
                known = inside < len(index)
                result[np.flatnonzero(mine)[known]] = index[inside[known]]
    return result
