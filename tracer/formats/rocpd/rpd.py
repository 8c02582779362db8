"""How do the tables of the rpd tracer (rocmProfileData, schema 1 to 3) become events: calls, markers, sampled clocks?

Calls lie in ``rocpd_api``, device work in ``rocpd_op`` (see ``rocpd_rpd_ops``), and ``rocpd_api_ops`` says which call made which.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.attribute_text import quoted
from trnprof.tracer.formats.rocpd.counters import our_unit
from trnprof.tracer.formats.rocpd.host import MARKERS
from trnprof.tracer.formats.rocpd.lookup import UNNAMED, TextStore, Words
from trnprof.tracer.formats.rocpd.rpd_calls import Calls
from trnprof.tracer.formats.rocpd.rpd_ops import read_op_counters, read_ops
from trnprof.tracer.formats.rocpd.state import Process, State
from trnprof.tracer.formats.step_ranges import step_ranges
from trnprof.tracer.formats.table_columns import attributes, fingerprint, spread
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows, read_small
from trnprof.tracer.ingest.stage import UNFINISHED

RPD_TABLES: Final = ("rocpd_api", "rocpd_op")
RPD_EXPECTED: Final = {
    "rocpd_op": "no device work: was anything run on a GPU?",
    "rocpd_api": "no calls: nothing is linked to what launched it",
}
RPD_PASSED_OVER: Final = {
    "rocpd_stackframe": "frames of call stacks",
    "rocpd_op_inputSignals": "signals between device operations",
    "ext_": "what other tools derived from the profile (ext_autogradapi, ext_callstack, …)",
}
_MARKER: Final = "UserMarker"
_MONITORED: Final = {"sclk": "MHz", "mclk": "MHz", "fclk": "MHz", "power": "W", "temp": "C"}


class Arguments:
    """Arguments of calls: in schema 3 one text a call, before that among all strings."""

    def __init__(self, state: State, words: Words) -> None:
        self._words = words
        self._store: TextStore | None = None
        if "rocpd_ustring" in state.tables.names():
            self._store = TextStore(state.stage.directory / "rocpd-arguments.arrow")
            for block in state.tables.scan("rocpd_ustring", ints=["id"], texts=["string"]):
                self._store.add(block.ints("id"), pl.Series(block.text("string")))
            self._store.finish()

    def take(self, block: Rows) -> pl.Series:
        """The arguments of each call, null where there is none."""
        ids, has = block.ints("args_id"), block.has("args_id")
        if self._store is None:
            texts = pl.Series(self._words.pick(self._words.codes(ids, has)).cast(pa.string()))
            return texts.replace([UNNAMED, ""], None)
        found = self._store.take(ids, has)
        return (
            pl.repeat(None, block.count, dtype=pl.String, eager=True)
            if found is None
            else found.replace("", None)
        )

    def close(self) -> None:
        """Remove the file."""
        if self._store is not None:
            self._store.close()


def read_rpd(state: State) -> None:
    """Stage everything."""
    rows = read_small(state.tables, "rocpd_metadata", texts=["tag", "value"])
    told = dict(zip(rows.list("tag"), rows.list("value"), strict=True))
    state.stage.facts.metadata["rpd"] = {"schema_version": told.get("schema_version")}
    words = Words.read(state.tables, "rocpd_string", "string")
    arguments = Arguments(state, words)
    try:
        calls = _read_calls(state, words, arguments, _stride(told.get("pid_stride")))
    finally:
        arguments.close()
    ops = read_ops(state, words, calls, _stride(told.get("gpu_stride")))
    read_op_counters(ops)
    _read_monitor(state)


def _stride(text: str | None) -> int:
    """By how much the numbers of each further host are shifted in a database of several; 0 if they are not."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else 0


def _read_calls(state: State, words: Words, arguments: Arguments, stride: int) -> Calls:
    numbers: dict[int, int] = {}
    ids: list[Ints] = []
    processes: list[Ints] = []
    is_marker = words.matching(f"^{_MARKER}$")
    columns = [
        "id",
        "pid",
        "tid",
        "start",
        "end",
        "apiName_id",
        "args_id",
        "category_id",
        "domain_id",
    ]
    first = state.stage.rows
    for block in state.tables.scan("rocpd_api", ints=columns):
        process = _processes(state, numbers, block.ints("pid"), stride)
        codes = words.codes(block.ints("apiName_id"), block.has("apiName_id"))
        texts = arguments.take(block)
        of_marker = is_marker[codes]
        start, end = block.ints("start"), block.ints("end", UNFINISHED)
        state.stage.add_events(
            timeline=_threads(state, process, block.ints("tid"), of_marker),
            start_ns=start,
            end_ns=end,
            name=_names(words, codes, texts, of_marker),
            category=spread(["host", "marker"], (of_marker & (start == end)).astype(np.int64)),
            attributes=_attributes(block, words, texts.set(pl.Series(of_marker), None)),
            fingerprint=fingerprint(block, ["apiName_id", "args_id"]),
        )
        ids.append(block.ints("id"))
        processes.append(process)
        if of_marker.any():
            labels = texts.set(pl.Series(~of_marker), None)
            state.steps.append(step_ranges(process, start, end, labels))
    nothing = [np.zeros(0, np.int64)]
    return Calls(np.concatenate(ids or nothing), np.concatenate(processes or nothing), first)


def _processes(state: State, numbers: dict[int, int], pid: Ints, stride: int) -> Ints:
    groups, at = distinct([pid])
    for row in at.tolist():
        key = int(pid[row])
        if key not in numbers:
            numbers[key] = len(state.processes)
            node, own = divmod(key, stride) if stride else (0, key)
            state.processes.append(Process(own, f"node {node}" if node else ""))
    return np.array([numbers[int(pid[row])] for row in at], np.int64)[groups]


def _threads(state: State, process: Ints, thread: Ints, of_marker: Bools) -> Ints:
    groups, at = distinct([process, thread, of_marker.astype(np.int64)])
    timelines = []
    for row in at.tolist():
        owner, tid = int(process[row]), int(thread[row])
        beside = bool(of_marker[row])
        timelines.append(
            state.beside_thread(owner, tid, MARKERS) if beside else state.thread(owner, tid)
        )
    return np.array(timelines, np.int64)[groups]


def _names(
    words: Words, codes: Ints, texts: pl.Series, of_marker: Bools
) -> pa.DictionaryArray | pl.Series:
    """Names of calls; of markers, what they say."""
    names = words.pick(codes)
    if not of_marker.any():
        return names
    plain = pl.Series(names.cast(pa.string()))
    return plain.zip_with(pl.Series(~of_marker) | texts.is_null(), texts)


def _attributes(block: Rows, words: Words, texts: pl.Series) -> pa.Array:
    members = [("args", quoted(texts))]
    for name in ("category", "domain"):
        column = f"{name}_id"
        if block.has(column).any():
            word = pl.Series(
                words.pick(words.codes(block.ints(column), block.has(column))).cast(pa.string())
            )
            members.append((name, quoted(word.replace([UNNAMED, "", _MARKER], None))))
    return attributes(block, [], {}, members)


def _read_monitor(state: State) -> None:
    """Clocks and the like as they were sampled: a value holds from its start on."""
    texts = ["deviceType", "monitorType", "value"]
    for block in state.tables.scan("rocpd_monitor", ints=["deviceId", "start"], texts=texts):
        frame = pl.DataFrame({n: pl.Series(block.text(n)).cast(pl.String) for n in texts})
        frame = frame.with_columns(
            pl.col("value").cast(pl.Float64, strict=False),
            device=block.ints("deviceId"),
            at=block.ints("start"),
        ).filter(pl.col("value").is_finite())
        for (kind, device, what), rows in frame.group_by(
            "deviceType", "device", "monitorType", maintain_order=True
        ):
            gpu = state.gpus.get(int(device)) if kind == "gpu" else None
            unit, scale = our_unit(_MONITORED.get(str(what), ""))
            name = str(what) if gpu else f"{kind} {device} {what}"
            state.stage.add_counters(
                timeline=state.counter(gpu, name, unit),
                timestamp_ns=rows["at"].to_numpy(),
                value=rows["value"].to_numpy() * scale,
            )
