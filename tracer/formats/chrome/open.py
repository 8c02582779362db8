"""How are beginnings and ends kept until they are paired, and then staged as events?

Numbers of them are held in memory (about 40 bytes each); names and arguments lie in a file beside the stage, in blocks as they were
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from trnprof.tracer.files import writing
from trnprof.tracer.formats.chrome.match import in_time, pair, step_times
from trnprof.tracer.formats.chrome.phases import Phase
from trnprof.tracer.formats.gathered import Gathered
from trnprof.tracer.ingest.stage import UNFINISHED, Stage

Ints = NDArray[np.int64]

_STAGED: Final = (
    Phase.BEGIN,
    Phase.ASYNC_BEGIN,
    Phase.ASYNC_INSTANT,
    Phase.STEP_INTO,
    Phase.STEP_PAST,
)
_BEGINS: Final = (Phase.BEGIN, Phase.ASYNC_BEGIN)
_PRIME: Final = np.uint64(0x100000001B3)


@dataclass
class Open:
    """Beginnings and ends met so far.

    Attributes:
        path: of the file with their names and arguments.
        numbers: of each: phase, group and label to pair by, ts, code of the name, timeline, fingerprint (0: it repeats nothing).
        offsets: number of the first of each block, and one more: their number.
    """

    path: Path
    numbers: Gathered = field(
        default_factory=lambda: Gathered(
            phase=np.int8,
            group=np.uint64,
            label=np.uint64,
            ts=np.int64,
            name=np.int32,
            timeline=np.int32,
            fingerprint=np.uint64,
        )
    )
    offsets: list[int] = field(default_factory=lambda: [0])
    _writer: ipc.RecordBatchStreamWriter | None = None
    _sink: pa.NativeFile | None = None

    def add(self, columns: dict[str, pa.Array], **numbers: Any) -> int:
        """Keep some events.

        Args:
            columns: names, arguments, and what else is to be staged, of one length; the same columns each time.
            numbers: see ``numbers``.

        Returns:
            The number of the first.
        """
        first = self.numbers.count
        batch = pa.RecordBatch.from_pydict(columns)
        with writing(self.path):
            if self._writer is None:
                self._sink = pa.OSFile(str(self.path), "wb")
                self._writer = ipc.new_stream(self._sink, batch.schema)
            self._writer.write_batch(batch)
        self.numbers.add(batch.num_rows, **numbers)
        self.offsets.append(self.numbers.count)
        return first

    def finish(self, stage: Stage, pairs_by_args: bool) -> Paired:
        """Pair all, and stage what they make.

        Args:
            stage: takes the events.
            pairs_by_args: labels are of names and arguments; what these leave alone is paired by name.
        """
        if self._writer is None or self._sink is None:
            return Paired(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
        self._writer.close()
        self._sink.close()
        numbers = self.numbers
        phase, ts = numbers["phase"], numbers["ts"]
        order = in_time(ts)
        partner, others = pair(order, phase, numbers["group"], numbers["label"])
        if pairs_by_args:
            self._pair_by_name(order, partner)
        start, end = ts, ts
        if np.isin(phase, (Phase.STEP_INTO, Phase.STEP_PAST)).any():
            start, end = step_times(order, phase, numbers["group"], ts, partner)
        begins = np.isin(phase, _BEGINS)
        end = np.where(begins, np.where(partner >= 0, ts[partner], UNFINISHED), end)
        row = np.full(len(ts), -1, np.int64)
        with pa.memory_map(str(self.path)) as file:
            batches = ipc.open_stream(file).read_all().to_batches()
            for number in range(len(batches)):
                self._stage(stage, batches, number, partner, start, end, row)
            del batches
        self.path.unlink()
        return Paired(partner, others, row)

    def _pair_by_name(self, order: Ints, partner: Ints) -> None:
        """Pair what is alone so far."""
        numbers = self.numbers
        alone = order[partner[order] < 0]
        names = numbers["name"][alone].astype(np.uint64) + np.uint64(1)
        halves, _ = pair(
            np.arange(len(alone)), numbers["phase"][alone], numbers["group"][alone], names
        )
        has = halves >= 0
        partner[alone[has]] = alone[halves[has]]

    def _stage(
        self,
        stage: Stage,
        batches: list[pa.RecordBatch],
        number: int,
        partner: Ints,
        start: Ints,
        end: Ints,
        row: Ints,
    ) -> None:
        low, high = self.offsets[number], self.offsets[number + 1]
        phase = self.numbers["phase"][low:high]
        chosen = low + np.flatnonzero(np.isin(phase, _STAGED))
        if not len(chosen):
            return
        batch = batches[number].take(pa.array(chosen - low))
        columns = {name: batch[name] for name in batch.schema.names}
        columns["attributes"] = self._with_ends(batches, columns["attributes"], partner[chosen])
        row[chosen] = stage.rows + np.arange(len(chosen))
        stage.add_events(
            timeline=self.numbers["timeline"][chosen],
            start_ns=start[chosen],
            end_ns=end[chosen],
            fingerprint=self._fingerprints(chosen, partner[chosen]),
            **columns,
        )

    def _fingerprints(self, chosen: Ints, partner: Ints) -> NDArray[np.uint64]:
        own = self.numbers["fingerprint"]
        of_end = np.where(partner >= 0, own[partner], np.uint64(0))
        return np.where(own[chosen] == 0, np.uint64(0), own[chosen] * _PRIME ^ of_end)

    def _with_ends(
        self, batches: list[pa.RecordBatch], attributes: pa.Array, partner: Ints
    ) -> pa.Array:
        """Attributes of beginnings, with what their ends say otherwise as a member ``end_event``."""
        block = np.searchsorted(np.asarray(self.offsets), partner, side="right") - 1
        texts: pl.Series = pl.Series(attributes)
        for number in np.flatnonzero(np.bincount(block[partner >= 0])).tolist():
            said = batches[number]["attributes"]
            if said.null_count == len(said):
                continue
            at = np.flatnonzero((block == number) & (partner >= 0))
            of_ends = pl.Series(said.take(pa.array(partner[at] - self.offsets[number])))
            texts = texts.scatter(at, _joined(texts.gather(at), of_ends))
        return texts.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


@dataclass(frozen=True)
class Paired:
    """What became of beginnings and ends.

    Attributes:
        partner: the other half of each, -1 for none.
        others: the ends whose names are not those of their beginnings.
        row: of the stage, of each that was staged, -1 for the rest.
    """

    partner: Ints
    others: Ints
    row: Ints


def _joined(begin: pl.Series, end: pl.Series) -> pl.Series:
    frame = pl.DataFrame({"begin": begin, "end": end})
    opened = pl.col("end").str.head(-1)
    says_same = (pl.col("begin") == pl.col("end")) | pl.col("begin").str.starts_with(
        opened + pl.lit(',"event":{')
    )
    body = pl.col("begin").str.head(-1) + pl.lit(",")
    joined = pl.concat_str(
        pl.coalesce(body, pl.lit("{")), pl.lit('"end_event":'), pl.col("end"), pl.lit("}")
    )
    keep = pl.col("end").is_null() | says_same.fill_null(False)
    return frame.select(pl.when(keep).then("begin").otherwise(joined))["begin"]


def text_hash(texts: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Hash of texts, 0 where there is none or it is empty."""
    words = texts.cast(pa.string()) if pa.types.is_dictionary(texts.type) else texts
    hashes: NDArray[np.uint64] = pl.Series(words).hash(seed).to_numpy().astype(np.uint64)
    is_empty = pc.fill_null(pc.equal(pc.utf8_length(words), 0), True)
    return np.where(is_empty.to_numpy(zero_copy_only=False), np.uint64(0), hashes)
