"""Which collectives does a trace of AIUs have, who takes part, and which transfer goes where?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.aiu.rows import AiuRow
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.units import format_ns

_SYNC: Final = r"\[sync=([^\]]+)\]"
_BASE: Final = r"^(.*) Cmpt (?:Prep|Exec)$"
_ONE: Final = ("rank", "collective", "nth")
"""What makes one collective of one rank: the n-th time that its graph runs."""


@dataclass(frozen=True)
class Collectives:
    """A staged trace.

    Attributes:
        stage: with all events.
        rank: of each row, -1 for none.
        row: ``AiuRow`` of each row.
        names: of events, by code.
        words: (CollGroup, Peer, Peers) by code.
    """

    stage: Stage
    rank: NDArray[np.int32]
    row: NDArray[np.int8]
    names: list[str]
    words: list[tuple[str | None, str | None, str | None]]

    def add(
        self, name_codes: NDArray[np.int32], word_codes: NDArray[np.int32], size: NDArray[np.int64]
    ) -> None:
        """Add operations, groups, and flows between phases and ranks.

        Args:
            name_codes: of each row.
            word_codes: of each row.
            size: bytes of each row, -1 where none are said.
        """
        events = self._events(name_codes, word_codes, size)
        self._add_queue(events)
        inside = events.filter(pl.col("collective").is_not_null())
        if not inside.height:
            return
        operations = self._operations(inside)
        self._add_operations(events.height, inside, operations)
        self._add_transfers(inside)

    def _events(
        self, name_codes: NDArray[np.int32], word_codes: NDArray[np.int32], size: NDArray[np.int64]
    ) -> pl.DataFrame:
        words = pl.DataFrame(
            {
                "word": np.arange(len(self.words), dtype=np.int32),
                "collective": pl.Series([w[0] for w in self.words], dtype=pl.String),
                "peers": pl.Series(
                    [",".join(p for p in w[1:] if p) for w in self.words], dtype=pl.String
                ),
            }
        )
        names = pl.Series(self.names, dtype=pl.String)
        end = self.stage.times("end_ns")
        events = pl.DataFrame(
            {
                "at": np.arange(len(end)),
                "rank": self.rank,
                "row": self.row,
                "name": names.gather(name_codes),
                "word": word_codes,
                "start": self.stage.times("start_ns"),
                "end": pl.Series(np.where(end == UNFINISHED, self.stage.times("start_ns"), end)),
                "bytes": size,
            }
        )
        nth = pl.int_range(pl.len()).over("rank", "name")
        return events.sort("start", "at").with_columns(nth=nth).join(words, on="word", how="left")

    def _operations(self, inside: pl.DataFrame) -> pl.DataFrame:
        """One row a collective of a rank, numbered in order, with its group and its ordinal in it."""
        members = inside.group_by("collective").agg(
            ranks=pl.concat(
                [pl.col("rank"), pl.col("peers").str.extract_all(r"\d+").explode().cast(pl.Int32, strict=False)]
            ).drop_nulls().unique().sort()
        )  # fmt: skip
        members = members.with_columns(
            key=pl.col("ranks").list.eval(pl.element().cast(pl.String)).list.join(",")
        )
        groups = members.select("key", "ranks").unique("key").sort("key").with_row_index("group_id")
        self.stage.add_groups(
            {
                "group_id": groups["group_id"].to_numpy(),
                "ranks": groups["ranks"].to_list(),
                "name": [f"ranks {key}" for key in groups["key"]],
            }
        )
        operations = inside.group_by(_ONE, maintain_order=True).agg(
            pl.col("start").min(), pl.col("end").max(), pl.col("bytes").max()
        )
        keyed = members.join(groups.select("key", "group_id"), on="key").select(
            "collective", "group_id", "key"
        )
        operations = operations.join(keyed, on="collective", how="left").sort("start")
        seq = pl.int_range(pl.len()).over("rank", "group_id")
        return operations.with_columns(seq=seq).with_row_index("op_id")

    def _add_operations(self, rows: int, inside: pl.DataFrame, operations: pl.DataFrame) -> None:
        size = pl.when(pl.col("bytes") >= 0).then("bytes")
        said = operations.select(size).to_series()
        self.stage.add_ops(
            {
                "op_id": operations["op_id"].to_numpy(),
                "kind": ["collective"] * operations.height,
                "name": operations["collective"],
                "group_id": operations["group_id"],
                "group_seq": operations["seq"],
                "in_bytes": said,
                "out_bytes": said,
            }
        )
        of_event = inside.join(operations.select(*_ONE, "op_id"), on=_ONE, how="left")
        codes = np.full(rows, -1, np.int64)
        codes[of_event["at"].to_numpy()] = of_event["op_id"].to_numpy()
        self.stage.set_late(
            "op_id", pa.array(np.maximum(codes, 0).astype(np.uint32), mask=codes < 0)
        )
        if operations["rank"].n_unique() == 1:
            self.stage.facts.collectives = operations.select(
                group="key",
                sequence="seq",
                name="collective",
                start_ns="start",
                end_ns="end",
                bytes=size,
            )

    def _add_queue(self, events: pl.DataFrame) -> None:
        """Preparation → computation of the same request."""
        named = events.with_columns(base=pl.col("name").str.extract(_BASE))
        ready = named.filter(pl.col("row") == AiuRow.PREPARE)
        work = named.filter(pl.col("row") == AiuRow.COMPUTE)
        pairs = ready.join(work, on=["rank", "base", "nth"], suffix="_work")
        if pairs.height:
            self.stage.add_flows(pairs["at"].to_numpy(), pairs["at_work"].to_numpy(), "queue")

    def _add_transfers(self, inside: pl.DataFrame) -> None:
        """Sending → receiving with the same tag; and whether that goes backward in time."""
        tagged = inside.with_columns(tag=pl.col("name").str.extract(_SYNC)).filter(
            pl.col("tag").is_not_null()
        )
        sends = tagged.filter((pl.col("row") == AiuRow.RDMA_OUT) & (pl.col("bytes") > 0))
        receives = tagged.filter(pl.col("row") == AiuRow.RDMA_IN)
        pairs = sends.join(receives, on=["collective", "nth", "tag"], suffix="_in").filter(
            pl.col("rank") != pl.col("rank_in")
        )
        if not pairs.height:
            return
        self.stage.add_flows(pairs["at"].to_numpy(), pairs["at_in"].to_numpy(), "collective")
        early = pairs.filter(pl.col("end_in") < pl.col("start"))
        if early.height:
            lead = int((early["start"] - early["end_in"]).max())  # type: ignore[arg-type]
            self.stage.audit.add(
                "rank_clocks_disagree",
                "warning",
                self.stage.label,
                "transfers are received before they are sent: the clocks of the ranks in this file are apart; nothing was moved",
                unreliable="the order of events of different ranks",
                count=early.height,
                example=f"{early['name'][0]}: {format_ns(lead)} too early",
            )
