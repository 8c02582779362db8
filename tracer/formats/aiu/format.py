"""How is a trace of IBM's AIU read, as its runtime (flex) writes it?

Chrome JSON whose arguments stand in ``attr``: beginnings and ends of what an accelerator does, one process a rank, one thread for each
kind of work, with five cycle stamps (TS1–TS5) and an accumulated charge each. See docs/formats/aiu.md.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.aiu.collectives import Collectives
from trnprof.tracer.formats.aiu.rows import KINDS, AiuRow, row_of
from trnprof.tracer.formats.chrome.blocks import UNNAMED
from trnprof.tracer.formats.chrome.format import finish_events, markers, read_events
from trnprof.tracer.formats.chrome.phases import Dialect, Row
from trnprof.tracer.formats.chrome.places import Places, Track
from trnprof.tracer.formats.gathered import Gathered
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.source import HEAD_BYTES, Format, Head, Source
from trnprof.tracer.ingest.stage import UNFINISHED, Stage, Timeline
from trnprof.tracer.schema import CATEGORIES, MEMORIES

Ints = NDArray[np.int64]

_STAMPS: Final = ("TS3", "TS4")
"""When the device began to compute, and when it had done so."""
_ARGS: Final = ("Bytes", "CollGroup", "Peer", "Peers", *_STAMPS)
_MARKS: Final = tuple(re.compile(rb'"%s"\s*:' % name) for name in (b"ph", b"TS1", b"TS5"))
_WORK: Final = re.compile(rb'Cmpt (Exec|Prep)"| Dma[IO]"')
_TOLERANCE: Final = 0.1
_CHIPS_AFTER: Final = 1 << 20
_RANK: Final = re.compile(r"\d{1,6}")
_HOST: Final = CATEGORIES.index("host")
_MARKER: Final = CATEGORIES.index("marker")


def recognise(head: Head) -> int:
    """By the cycle stamps of the device, and the names that flex gives to its work."""
    if head.data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        return 0
    if not all(mark.search(head.data) for mark in _MARKS):
        return 0
    return 90 if _WORK.search(head.data) else 60


def read(source: Source, stage: Stage) -> None:
    """Read a trace of an AIU into a stage.

    Raises:
        ProfileError: it is no JSON, or has no trace events.
    """
    seen = _Seen()
    member = _args_member(source)
    dialect = Dialect(member, _ARGS, row_of, seen.columns, pairs_by_args=True)
    reader, header = read_events(source, stage, dialect)
    paired = finish_events(reader, header)
    is_marker = markers(reader, paired)
    said = seen.by_row(paired.row >= 0)
    own = _timelines(stage, reader.places)
    reader.places.finish(own)
    reader.counters.finish({}, reader.places.prefixes())
    if not stage.rows:
        return
    row, rank = _rows_and_ranks(stage, reader.places)
    is_grouped = np.array([group is not None for group, _, _ in seen.words])[said["words"]]
    _give_meaning(stage, row, is_marker, is_grouped)
    names = [name or UNNAMED for (name,) in reader.names]
    Collectives(stage, rank, row, names, seen.words).add(
        np.concatenate(reader.name_codes), said["words"], said["bytes"]
    )
    _tell_cycles(stage, said, row == AiuRow.COMPUTE)
    reader.flows.finish(stage, reader.places, paired.row, ~is_marker, 1)


def _args_member(source: Source) -> str:
    """``attr``, as flex writes it; ``args`` in what other tools have made of it."""
    stream = source.open()
    try:
        return "attr" if b'"attr"' in stream.read(HEAD_BYTES) else "args"
    finally:
        stream.close()


class _Seen:
    """What the arguments of each event say, of those staged at once and those that wait for their ends."""

    def __init__(self) -> None:
        types = {"bytes": np.int64, "words": np.int32, "begin": np.int64, "end": np.int64}
        self._parts = {is_kept: Gathered(**types) for is_kept in (False, True)}
        self.words: list[tuple[str | None, str | None, str | None]] = []

    def columns(self, block: EventBlock, is_kept: bool) -> dict[str, Any]:
        """Remember what arguments say; the columns of the stage that are known by them."""
        size, has_size = block.integers("args.Bytes")
        code, self.words = block.keys("args.CollGroup", "args.Peer", "args.Peers")
        stamps = [np.where(*_known(block, name)) for name in _STAMPS]
        self._parts[is_kept].add(
            block.rows,
            bytes=np.where(has_size, size, -1),
            words=code,
            begin=stamps[0],
            end=stamps[1],
        )
        return {"bytes": pa.array(size, mask=~has_size | (size < 0))}

    def by_row(self, is_staged: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """What is said of each row of the stage; ``is_staged`` tells which of the events that waited became one."""
        direct, kept = self._parts[False], self._parts[True]
        return {
            name: np.concatenate([direct[name], kept[name][is_staged]])
            for name in ("bytes", "words", "begin", "end")
        }


def _known(block: EventBlock, name: str) -> tuple[NDArray[np.bool_], Ints, int]:
    values, valid = block.integers(f"args.{name}")
    return valid, values, -1


def _timelines(stage: Stage, places: Places) -> dict[int, Timeline]:
    """Chips and their rows; ranks are processes."""
    processes = list(dict.fromkeys(t.process for t in places.tracks))
    ranks = {p: int(p) for p in processes if p is not None and _RANK.fullmatch(p)}
    if len(ranks) == 1:
        stage.facts.rank = next(iter(ranks.values()))
    chips: dict[str | None, int] = {}
    own: dict[int, Timeline] = {}
    for track in places.tracks:
        process, rank = track.process, ranks.get(track.process or "")
        if track.row < Row.FIRST_OF_DIALECT:
            if len(ranks) > 1 and track.row == Row.THREAD:
                name = f"rank {process}: {places.thread_name(track)}"
                own[track.timeline] = Timeline("thread", name, sort_order=track.timeline, rank=rank)
            continue
        if process not in chips:
            order = _CHIPS_AFTER + (rank or 0)
            name = f"AIU {process or 0}"
            chips[process] = stage.timeline(
                ("chip", process), Timeline("chip", name, sort_order=order, rank=rank, chip=rank)
            )
        own[track.timeline] = _row_timeline(track, chips[process], rank, places)
    return own


def _row_timeline(track: Track, chip: int, rank: int | None, places: Places) -> Timeline:
    row = KINDS[AiuRow(track.row)]
    several = sum(t.row == track.row and t.process == track.process for t in places.tracks) > 1
    return Timeline(
        row.kind,
        f"{row.name} (thread {track.thread})" if several else row.name,
        chip,
        track.row,
        exclusive=track.row == AiuRow.COMPUTE,
        rank=rank,
        chip=rank,
    )


def _rows_and_ranks(stage: Stage, places: Places) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """``AiuRow`` (or ``Row``) and rank of each event; rank -1 where there is none."""
    row = np.zeros(len(stage.timelines), np.int8)
    rank = np.full(len(stage.timelines), -1, np.int32)
    for track in places.tracks:
        row[track.timeline] = track.row
        if track.process is not None and _RANK.fullmatch(track.process):
            rank[track.timeline] = int(track.process)
    timeline = stage.times("timeline")
    return row[timeline], rank[timeline]


def _give_meaning(
    stage: Stage,
    row: NDArray[np.int8],
    is_marker: NDArray[np.bool_],
    is_grouped: NDArray[np.bool_],
) -> None:
    """Category and memories of each event, as late columns; transfers of a collective are one whatever their name."""
    category = np.where(is_marker, _MARKER, _HOST).astype(np.int8)
    memories = {
        "source_memory": np.full(len(row), -1, np.int8),
        "target_memory": np.full(len(row), -1, np.int8),
    }
    for number, kind in KINDS.items():
        chosen = (row == number) & ~is_marker
        category[chosen] = CATEGORIES.index(kind.category)
        if kind.source and kind.target:
            memories["source_memory"][chosen] = MEMORIES.index(kind.source)
            memories["target_memory"][chosen] = MEMORIES.index(kind.target)
    is_transfer = np.isin(row, (AiuRow.DMA_IN, AiuRow.DMA_OUT)) & ~is_marker
    category[is_transfer & is_grouped] = CATEGORIES.index("collective")
    stage.set_late(
        "category", pa.DictionaryArray.from_arrays(pa.array(category), pa.array(CATEGORIES))
    )
    for column, codes in memories.items():
        indices = pa.array(np.maximum(codes, 0), mask=codes < 0)
        stage.set_late(column, pa.DictionaryArray.from_arrays(indices, pa.array(MEMORIES)))


def _tell_cycles(
    stage: Stage, said: dict[str, NDArray[Any]], is_compute: NDArray[np.bool_]
) -> None:
    """Compare the lengths of computations with their cycles: they should tell one frequency."""
    start, end = stage.times("start_ns"), stage.times("end_ns")
    chosen = (
        is_compute & (said["begin"] >= 0) & (said["end"] >= 0) & (end != UNFINISHED) & (end > start)
    )
    if not chosen.any():
        return
    cycles = (said["end"] - said["begin"])[chosen] % (1 << 32)
    rate = cycles / ((end - start)[chosen] / 1_000)
    usual = float(np.median(rate))
    stage.facts.metadata["aiu"] = {
        "cycles_per_us": round(usual, 3),
        "computations": int(chosen.sum()),
    }
    odd = np.flatnonzero(np.abs(rate - usual) > _TOLERANCE * usual)
    if len(odd):
        row = int(np.flatnonzero(chosen)[odd[0]])
        stage.audit.add(
            "cycles_disagree",
            "warning",
            stage.label,
            f"computations last longer or shorter than their cycles say, at the usual {usual:.1f} cycles a µs; their times were kept",
            unreliable="durations of these events: a counter may have run over",
            count=len(odd),
            example=f"event {row}: {rate[odd[0]]:.1f} cycles a µs",
        )


FORMAT: Final = Format("aiu", "IBM AIU (flex) trace", recognise, read)
