"""Which ranges and marks did the program of an Nsight Systems profile annotate, and which of them are its steps?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.attribute_text import json_objects, quoted
from trnprof.tracer.formats.nsys.collectives import Calls
from trnprof.tracer.formats.nsys.names import UNNAMED, process_of
from trnprof.tracer.formats.nsys.payload import (
    COMMUNICATOR,
    FIELDS,
    MESSAGE_BYTES,
    RANK,
    RANKS,
    Schemas,
    from_json,
)
from trnprof.tracer.formats.nsys.state import State
from trnprof.tracer.formats.step_ranges import step_ranges
from trnprof.tracer.formats.table_columns import fingerprint, per_group
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows
from trnprof.tracer.ingest.stage import UNFINISHED, Timeline

_TABLE: Final = "NVTX_EVENTS"
_NAMES: Final = (33, 64, 75)
"""Kinds of event that name a category (33, 64) or a domain (75)."""
_MARKS: Final = (34, 65)
_PUSHED: Final = (59, 35, 70, 66)
"""Ranges of one thread, whole or never popped."""
_STARTED: Final = (60, 37, 71, 68)
"""Ranges of a process, whole or never ended."""
_PYTORCH: Final = r"^(.+?), ((?:seq|op_id|sizes|input_op_ids) = [^\"\\\x00-\x1f]*)$"
"""Names by torch.autograd.profiler.emit_nvtx: what follows the operator differs on every call."""
_INTS: Final = (
    *("start", "end", "eventType", "rangeId", "category", "color", "globalTid", "endGlobalTid"),
    *("textId", "domainId", "uint64Value", "int64Value", "uint32Value", "int32Value", "jsonTextId"),
)
_KNOWN: Final = frozenset((*_INTS, "text", "jsonText", "binaryData", "doubleValue", "floatValue"))


@dataclass
class Annotations:
    """What is gathered while annotations are read.

    Attributes:
        domains: (process, domain) → its name.
        categories: (process, domain, category) → its name.
        steps: blocks of ranges that are steps (``step_ranges``).
    """

    state: State
    schemas: Schemas
    domains: dict[tuple[int, int], str] = field(default_factory=dict)
    categories: dict[tuple[int, int, int], str] = field(default_factory=dict)
    steps: list[pl.DataFrame] = field(default_factory=list)
    _calls: list[pl.DataFrame] = field(default_factory=list)

    def domain(self, process: int, number: int) -> str:
        """What the domain of a process is called; empty for the default domain."""
        if number == 0:
            return ""
        known = self.domains.get((process, number))
        return known or ("NCCL" if number in self.schemas.nccl_domains else f"domain {number}")

    def calls(self) -> Calls:
        """Calls of NCCL, sorted by thread and start."""
        frame = pl.concat([*self._calls, _no_calls()]).sort("thread", "start_ns")
        return Calls(
            thread=frame["thread"].to_numpy(),
            start_ns=frame["start_ns"].to_numpy(),
            end_ns=frame["end_ns"].to_numpy(),
            name=frame["name"].to_numpy().astype(str),
            communicator=frame["communicator"].fill_null(0).to_numpy(),
            has_communicator=frame["communicator"].is_not_null().to_numpy(),
            bytes=frame["bytes"].fill_null(-1).to_numpy(),
            ranks=frame["ranks"].fill_null(-1).to_numpy(),
            rank=frame["rank"].fill_null(-1).to_numpy(),
        )

    def note_calls(
        self, rows: Ints, tid: Ints, start: Ints, end: Ints, words: pl.Series, block: Rows
    ) -> None:
        """Take note of calls of NCCL with their payloads."""
        binary = self.schemas.decode(block.text("binaryData").take(pa.array(rows)))
        text = from_json(block.text("jsonText").take(pa.array(rows)))
        columns: dict[str, pl.Series] = {}
        for member, name in zip(("communicator", "bytes", "ranks", "rank"), FIELDS, strict=True):
            values = np.where(binary[name][1], binary[name][0], text[name][0])
            has = binary[name][1] | text[name][1]
            columns[member] = pl.Series(member, values).set(pl.Series(~has), None)
        self._calls.append(
            pl.DataFrame(
                {
                    "thread": tid[rows],
                    "start_ns": start[rows],
                    "end_ns": end[rows],
                    "name": words.gather(rows),
                    **columns,
                }
            )
        )


def read_annotations(state: State) -> Annotations:
    """Stage all NVTX events."""
    notes = Annotations(state, Schemas(state.tables))
    _read_names(notes)
    skipped = 0
    for block in state.tables.scan(
        _TABLE,
        ints=_INTS,
        reals=["doubleValue", "floatValue"],
        texts=["text", "jsonText"],
        blobs=["binaryData"],
    ):
        kind = block.ints("eventType", 59)
        words = _words(state, block)
        is_mark = np.isin(kind, _MARKS)
        is_pushed = np.isin(kind, _PUSHED)
        is_started = np.isin(kind, _STARTED)
        skipped += int((~(is_mark | is_pushed | is_started | np.isin(kind, _NAMES))).sum())
        _stage(notes, block, words, is_pushed | is_mark, is_started, is_mark)
    state.stage.audit.add(
        "not_imported",
        "note",
        state.where(_TABLE),
        "NVTX events that are no ranges, marks or names were left out",
        count=skipped,
    )
    return notes


def _read_names(notes: Annotations) -> None:
    """Names of domains and categories; text is only read where there are any."""
    tables = notes.state.tables
    if not any(
        np.isin(block.ints("eventType"), _NAMES).any()
        for block in tables.scan(_TABLE, ints=["eventType"])
    ):
        return
    ints = ["eventType", "domainId", "category", "globalTid", "textId"]
    for block in tables.scan(_TABLE, ints=ints, texts=["text"]):
        rows = np.flatnonzero(np.isin(block.ints("eventType"), _NAMES))
        kind, domain, category = (block.ints(c)[rows].tolist() for c in ints[:3])
        process = process_of(block.ints("globalTid"))[rows].tolist()
        names = _words(notes.state, block).gather(rows).to_list()
        for i, name in enumerate(names):
            if kind[i] == 75:
                notes.domains.setdefault((process[i], domain[i]), name)
            else:
                notes.categories.setdefault((process[i], domain[i], category[i]), name)


def _words(state: State, block: Rows) -> pl.Series:
    """The text of each event, given or registered."""
    given = pl.Series(block.text("text")).cast(pl.String)
    if not block.has("textId").any():
        return given.fill_null(UNNAMED)
    codes = state.strings.codes(block.ints("textId"), block.has("textId"))
    registered = pl.Series(state.strings.words.take(pa.array(codes)))
    return pl.select(pl.coalesce(given, registered)).to_series()


def _stage(
    notes: Annotations,
    block: Rows,
    words: pl.Series,
    of_thread: Bools,
    of_process: Bools,
    is_mark: Bools,
) -> None:
    start = block.ints("start")
    end = np.where(block.has("end"), block.ints("end"), UNFINISHED)
    end = np.where(is_mark, start, end)
    tid, domain = block.ints("globalTid"), block.ints("domainId")
    names, suffix = _split(words)
    attributes = _attributes(notes, block, suffix)
    prints = fingerprint(block, ["eventType", "rangeId", "category", "color", "textId"], words)
    for chosen, is_thread in ((of_thread, True), (of_process, False)):
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        groups, at = distinct([tid[rows], domain[rows]])
        timelines = [
            _timeline(notes, int(tid[rows[i]]), int(domain[rows[i]]), is_thread) for i in at
        ]
        notes.state.stage.add_events(
            timeline=per_group(groups, timelines),
            start_ns=start[rows],
            end_ns=end[rows],
            name=names.gather(rows).to_arrow().cast(pa.string()).dictionary_encode(),
            category=_category(is_mark[rows]),
            attributes=attributes.take(pa.array(rows)),
            fingerprint=prints[rows],
        )
    _note(notes, block, words, of_thread | of_process, start, end, tid, domain)


def _note(
    notes: Annotations,
    block: Rows,
    words: pl.Series,
    is_range: Bools,
    start: Ints,
    end: Ints,
    tid: Ints,
    domain: Ints,
) -> None:
    """Take note of calls of NCCL and of steps among the ranges."""
    is_nccl = words.str.starts_with("nccl").to_numpy() & (domain != 0) & is_range
    rows = np.flatnonzero(is_nccl & (end != UNFINISHED))
    if len(rows):
        notes.note_calls(rows, tid, start, end, words, block)
    labels = words.set(pl.Series(~is_range), None)
    notes.steps.append(step_ranges(process_of(tid), start, end, labels))


def _timeline(notes: Annotations, tid: int, domain: int, is_thread: bool) -> int:
    process = int(process_of(np.array([tid]))[0])
    label = notes.domain(process, domain)
    title = f"NVTX {label}" if label else "NVTX"
    if is_thread:
        return notes.state.beside_thread(tid, title, sort_order=1 + min(max(domain, 0), 1000))
    number = notes.state.stage.timeline(
        ("nvtx", process, domain),
        Timeline(
            "thread", f"{notes.state.people.process(process)}: {title} ranges", sort_order=2000
        ),
    )
    notes.state.owners[number] = process
    return number


def _split(words: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Names, and what PyTorch put behind them (null where it did not)."""
    if not words.str.contains(", ", literal=True).any():
        return words, pl.repeat(None, len(words), dtype=pl.String, eager=True)
    parts = pl.DataFrame({"word": words}).select(
        pl.col("word").str.extract(_PYTORCH, 1).alias("name"),
        pl.col("word").str.extract(_PYTORCH, 2).alias("suffix"),
    )
    return pl.select(pl.coalesce(parts["name"], words)).to_series(), parts["suffix"]


def _attributes(notes: Annotations, block: Rows, suffix: pl.Series) -> pa.Array:
    numbers = [(n, block.ints(n), block.has(n)) for n in ("rangeId", "color")]
    other = block.ints("endGlobalTid")
    numbers.append(
        ("endGlobalTid", other, block.has("endGlobalTid") & (other != block.ints("globalTid")))
    )
    payload = ("int64Value", "uint32Value", "int32Value")
    numbers += [(n, block.ints(n), block.has(n)) for n in payload]
    texts: list[tuple[str, pa.Array]] = []
    if suffix.null_count() < len(suffix):
        texts.append(("arguments", quoted(suffix)))
    if block.has("category").any():
        texts.append(("category", _category_names(notes, block)))
    unsigned = block.has("uint64Value")
    if unsigned.any():
        shown = pl.Series(block.ints("uint64Value").view(np.uint64)).cast(pl.String)
        texts.append(("uint64Value", _only(shown, unsigned)))
    for name in ("doubleValue", "floatValue"):
        reals = block.reals(name)
        finite = np.isfinite(reals)
        if finite.any():
            texts.append((name, _only(pl.Series(reals).cast(pl.String), finite)))
    if block.has("jsonText").any():
        texts.append(("jsonText", quoted(pl.Series(block.text("jsonText")))))
    by_id = block.has("jsonTextId") & ~block.has("jsonText")
    if by_id.any():
        codes = notes.state.strings.codes(block.ints("jsonTextId"), block.has("jsonTextId"))
        registered = pl.Series(notes.state.strings.words.take(pa.array(codes)))
        texts.append(("jsonText", _only(pl.Series(quoted(registered)), by_id)))
    binary = notes.schemas.decode(block.text("binaryData"))
    shown_fields = (COMMUNICATOR, MESSAGE_BYTES, RANKS, RANK)
    numbers += [(n, *binary[n]) for n in shown_fields[1:]]
    if binary[COMMUNICATOR][1].any():
        shown = pl.Series(binary[COMMUNICATOR][0].view(np.uint64)).cast(pl.String)
        texts.append((COMMUNICATOR, _only(shown, binary[COMMUNICATOR][1])))
    return json_objects(block.count, numbers, texts)


def _category_names(notes: Annotations, block: Rows) -> pa.Array:
    columns = [process_of(block.ints("globalTid")), block.ints("domainId"), block.ints("category")]
    groups, at = distinct(columns)
    process, domain, category = (c[at].tolist() for c in columns)
    keys = zip(process, domain, category, strict=True)
    words = pl.Series([notes.categories.get(k) or str(k[2]) for k in keys])
    return _only(pl.Series(quoted(words)).gather(groups), block.has("category"))


def _only(texts: pl.Series, has: Bools) -> pa.Array:
    return texts.set(pl.Series(~has), None).to_arrow().cast(pa.string())


def _category(is_mark: Bools) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.array(is_mark.astype(np.int8)), pa.array(["host", "marker"])
    )


def _no_calls() -> pl.DataFrame:
    schema: dict[str, Any] = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    schema |= {"name": pl.String, "communicator": pl.Int64, "bytes": pl.Int64}
    return pl.DataFrame(schema=schema | {"ranks": pl.Int64, "rank": pl.Int64})
