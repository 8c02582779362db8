"""How do the events of one block of a trace become rows of a stage, and what is remembered of them?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.chrome.counters import Counters
from trnprof.tracer.formats.chrome.facts import Metadata
from trnprof.tracer.formats.chrome.flows import Flows
from trnprof.tracer.formats.chrome.open import Open, Paired, text_hash
from trnprof.tracer.formats.chrome.phases import (
    FAMILY,
    KEPT,
    LAST_PAIRED,
    PHASES,
    Dialect,
    Phase,
    Row,
)
from trnprof.tracer.formats.chrome.places import Places
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.stage import UNFINISHED, Stage

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

UNNAMED: Final = "(no name)"
_SPELLED_ALIKE: Final = ("",)
"""No member: it has attributes written in one way, so that those of an end can be compared with those of its beginning."""
_FINE_NS: Final = 1_000
"""rocprof's exact times are those of its ts in µs, or less than one µs later."""


@dataclass
class Reader:
    """What blocks are read into.

    Attributes:
        stage: takes the events.
        dialect: what is special about the file.
        places: timelines.
        open: beginnings and ends.
        counters: counters.
        flows: flow events.
        metadata: what is said of the whole.
        seed: of hashes that stand for ids.
        first_ns: earliest start so far; None before the first.
        fine_times: events whose exact times were in their arguments.
        name_codes: code of each staged event's name in ``names``, block by block.
        names: of all events.
        markers: (first row, rows) of staged instants.
    """

    stage: Stage
    dialect: Dialect
    places: Places
    open: Open
    counters: Counters
    flows: Flows
    metadata: Metadata
    seed: int
    first_ns: int | None = None
    fine_times: int = 0
    name_codes: list[NDArray[np.int32]] = field(default_factory=list)
    names: list[tuple[str | None]] = field(default_factory=list)
    markers: list[tuple[int, int]] = field(default_factory=list)
    _phases: list[int] = field(default_factory=list)

    def add(self, block: EventBlock) -> None:
        """Read a block."""
        phase = self._phase(block)
        for wanted, take in (
            (Phase.METADATA, self._take_metadata),
            (Phase.COUNTER, self.counters.add),
            (Phase.COMPLETE, self._take_complete),
        ):
            rows = np.flatnonzero(phase == wanted)
            if len(rows):
                take(block if len(rows) == block.rows else block.take(rows))
        is_instant = (phase == Phase.INSTANT) | (phase == Phase.UNKNOWN)
        if is_instant.any():
            self._take_instants(block.take(is_instant))
        is_paired = phase <= LAST_PAIRED
        if is_paired.any():
            self._take_paired(block.take(is_paired), phase[is_paired])
        is_flow = (phase >= Phase.FLOW_START) & (phase <= Phase.FLOW_END)
        if is_flow.any():
            own = block.take(is_flow)
            self.flows.add(own, phase[is_flow], self._key(own, "flow", "name"))

    def _phase(self, block: EventBlock) -> NDArray[np.int8]:
        codes, known = block.keys("ph")
        for (text,) in known[len(self._phases) :]:
            unknown = Phase.UNKNOWN if text else Phase.NOTHING
            self._phases.append(PHASES.get(text or "", unknown))
        phase = np.array(self._phases or [Phase.NOTHING], np.int8)[codes]
        is_unknown = phase == Phase.UNKNOWN
        if is_unknown.any():
            self.stage.audit.add(
                "unknown_phase",
                "note",
                self.stage.label,
                "events of phases that the format does not have were kept as instants",
                unreliable="what they stand for",
                count=int(is_unknown.sum()),
                example=f"ph {known[int(codes[is_unknown.argmax()])][0]!r}",
            )
        return phase

    def _take_metadata(self, block: EventBlock) -> None:
        self.places.read_names(block)
        self.metadata.add(block)

    def _columns(self, block: EventBlock, *kept: str) -> dict[str, Any]:
        """Names, arguments and what else is said of each event."""
        return {
            "name": with_names(block.texts("name")),
            "attributes": block.attributes(keep=(*KEPT, *kept)),
            **self.dialect.columns(block, False),
        }

    def _rows_by_name(self, names: pa.DictionaryArray) -> NDArray[np.int8]:
        by_name = self.dialect.rows(names.dictionary.to_pylist())
        found: NDArray[np.int8] = by_name[names.indices.to_numpy(zero_copy_only=False)]
        return found

    def _take_complete(self, block: EventBlock) -> None:
        start, end, has_ts, has_dur = block.times_ns()
        start, end = self._finer(block, start, end, has_ts & has_dur)
        end = np.where(has_dur, end, UNFINISHED)
        columns = self._columns(block)
        row = self._rows_by_name(columns["name"])
        first = self._stage(block, row, start, end, has_ts, "host", columns)
        self.flows.add_bound(block, first + np.arange(block.rows), self.seed)

    def _take_instants(self, block: EventBlock) -> None:
        start, _, has_ts, _ = block.times_ns()
        scope, scopes = block.keys("s")
        of_scope = {"p": Row.PROCESS, "g": Row.GLOBAL}
        row = np.array([of_scope.get(s or "", Row.THREAD) for (s,) in scopes], np.int8)[scope]
        codes, phases = block.keys("ph")
        is_dump = np.array([p in ("v", "V") for (p,) in phases])[codes]
        row = np.where(is_dump, np.int8(Row.PROCESS), row)
        columns = self._columns(block, "ph", "s")
        self._stage(block, row, start, start, has_ts, "marker", columns)

    def _stage(
        self,
        block: EventBlock,
        row: NDArray[np.int8],
        start: Ints,
        end: Ints,
        has_ts: Bools,
        category: str,
        columns: dict[str, Any],
    ) -> int:
        if has_ts.any():
            earliest = int(start[has_ts].min())
            self.first_ns = earliest if self.first_ns is None else min(self.first_ns, earliest)
        if not has_ts.all():
            start = np.where(has_ts, start, self.first_ns or 0)
            end = np.where(has_ts, end, UNFINISHED)
            row = np.where(has_ts, row, np.int8(Row.NO_TIME))
            self._tell_no_time(block, has_ts, "stand unfinished on a track of their own")
        if category == "marker":
            self.markers.append((self.stage.rows, block.rows))
        self.name_codes.append(self._name_codes(block))
        return self.stage.add_events(
            timeline=self.places.timelines(block, row),
            start_ns=start,
            end_ns=end,
            category=category,
            fingerprint=block.fingerprints(),
            **columns,
        )

    def _name_codes(self, block: EventBlock) -> NDArray[np.int32]:
        codes, self.names = block.keys("name")
        return codes.astype(np.int32)

    def finish(self) -> Paired:
        """Stage what was kept until its other half was known."""
        paired = self.open.finish(self.stage, self.dialect.pairs_by_args)
        self.name_codes.append(self.open.numbers["name"][paired.row >= 0])
        return paired

    def _tell_no_time(self, block: EventBlock, has_ts: Bools, what: str) -> None:
        row = int(np.flatnonzero(~has_ts)[0])
        self.stage.audit.add(
            "missing_time",
            "warning",
            self.stage.label,
            f"events without a time (ts) {what}",
            unreliable="these events",
            count=int((~has_ts).sum()),
            example=f"{block.texts('name')[row].as_py()} at byte {int(block.positions()[row]):,}",
        )

    def _finer(
        self, block: EventBlock, start: Ints, end: Ints, has_times: Bools
    ) -> tuple[Ints, Ints]:
        """Exact times where rocprof writes them beside those in whole µs."""
        if not block.has("args.BeginNs").any():
            return start, end
        begin, has_begin = block.integers("args.BeginNs")
        finish, has_finish = block.integers("args.EndNs")
        is_finer = has_times & has_begin & has_finish & (finish >= begin)
        is_finer &= (begin - start >= 0) & (begin - start < _FINE_NS)
        self.fine_times += int(is_finer.sum())
        return np.where(is_finer, begin, start), np.where(is_finer, finish, end)

    def _take_paired(self, block: EventBlock, phase: NDArray[np.int8]) -> None:
        start, _, has_ts, _ = block.times_ns()
        if not has_ts.all():
            self._tell_no_time(block, has_ts, "that begin or end something were left out")
            block, phase, start = block.take(has_ts), phase[has_ts], start[has_ts]
            if not block.rows:
                return
        if len(start):
            self.first_ns = min(
                int(start.min()), self.first_ns if self.first_ns is not None else int(start.min())
            )
        is_sync = phase <= Phase.END
        group = np.zeros(block.rows, np.uint64)
        row = np.zeros(block.rows, np.int8)
        names = with_names(block.texts("name"))
        label = text_hash(block.texts("name"), self.seed)
        if is_sync.any():
            own = block if is_sync.all() else block.take(is_sync)
            row[is_sync] = self._rows_by_name(names)[is_sync]
            place, _ = own.keys("pid", "tid")
            group[is_sync] = place.astype(np.uint64) + np.uint64(1)
            if self.dialect.pairs_by_args:
                said = text_hash(own.raw(self.dialect.args_member), self.seed + 1)
                label[is_sync] ^= said * np.uint64(3)
        if not is_sync.all():
            own = block.take(~is_sync)
            group[~is_sync] = self._async_key(own, phase[~is_sync])
            codes, known = own.keys("ph")
            is_object = np.array([FAMILY.get(p) == "object" for (p,) in known])[codes]
            row[~is_sync] = np.where(is_object, Row.OBJECTS, Row.ASYNC)
        if self.dialect.pairs_by_args:
            phase = np.where(phase == Phase.END, np.int8(Phase.ASYNC_END), phase)
        self._keep(block, phase, group, label, row, start)

    def _keep(
        self,
        block: EventBlock,
        phase: NDArray[np.int8],
        group: NDArray[np.uint64],
        label: NDArray[np.uint64],
        row: NDArray[np.int8],
        start: Ints,
    ) -> None:
        is_end = (phase == Phase.END) | (phase == Phase.ASYNC_END)
        attributes = pl.Series(block.attributes(keep=KEPT))
        marked = np.flatnonzero(phase == Phase.ASYNC_INSTANT)
        if len(marked):
            said = pl.Series(block.take(marked).attributes(keep=("ph", *KEPT)))
            attributes = attributes.scatter(marked, said)
        own = pl.Series(block.attributes(keep=_SPELLED_ALIKE))
        is_worded = own.is_not_null().to_numpy()
        attributes = attributes.zip_with(~pl.Series(is_end), own)
        columns = self.dialect.columns(block, True)
        category = np.where(phase == Phase.ASYNC_INSTANT, 1, 0).astype(np.int8)
        first = self.open.add(
            {
                "name": _step_names(block, phase),
                "category": pa.DictionaryArray.from_arrays(pa.array(category), ["host", "marker"]),
                "attributes": attributes.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string()),
                **columns,
            },
            phase=phase,
            group=group,
            label=label,
            ts=start,
            name=self._name_codes(block),
            timeline=self.places.timelines(block, row),
            fingerprint=np.where(is_worded | (phase >= Phase.ASYNC_BEGIN), block.fingerprints(), 0),
        )  # fmt: skip
        begins = np.flatnonzero(phase == Phase.BEGIN)
        if len(begins) and block.has("bind_id").any():
            self.flows.add_bound(block.take(begins), -2 - (first + begins), self.seed)

    def _async_key(self, block: EventBlock, phase: NDArray[np.int8]) -> NDArray[np.uint64]:
        codes, known = block.keys("ph")
        family = pa.array([FAMILY.get(p, "") for (p,) in known]).take(pa.array(codes))
        is_named = np.array([FAMILY.get(p) == "legacy async" for (p,) in known])[codes]
        names = pl.Series(block.texts("name").cast(pa.string()))
        key = self._key(
            block, family, pl.select(pl.when(pl.Series(is_named)).then(names)).to_series()
        )
        return np.where(key <= 1 << 32, key + np.uint64(1 << 40), key)

    def _key(self, block: EventBlock, family: Any, name: Any) -> NDArray[np.uint64]:
        """Hash of all that makes an id unique: family, category, scope, id, the process of a local one, perhaps its name."""
        texts = {
            m: pl.Series(block.texts(m).cast(pa.string()))
            for m in ("cat", "scope", "id", "id2", "pid", "tid")
        }
        names = pl.Series(block.texts("name").cast(pa.string())) if isinstance(name, str) else name
        families = (
            pl.Series(family)
            if not isinstance(family, str)
            else pl.repeat(family, block.rows, eager=True)
        )
        frame = pl.DataFrame({**texts, "family": families, "name": names})
        local = pl.col("id2").str.extract(r'"local"\s*:\s*"?([^",}]+)')
        shared = pl.col("id2").str.extract(r'"global"\s*:\s*"?([^",}]+)')
        is_process = pl.col("family").is_in(["object", "context"]) | local.is_not_null()
        identity = pl.struct(
            "family",
            pl.when(pl.col("family") != "object").then("cat").alias("cat"),
            "scope",
            "name",
            pl.coalesce("id", local, shared).alias("id"),
            pl.when(is_process).then("pid").alias("pid"),
            pl.when(pl.col("family") == "context").then("tid").alias("tid"),
        )
        hashed: NDArray[np.uint64] = frame.select(identity.hash(self.seed)).to_series().to_numpy()
        return hashed


def with_names(names: pa.DictionaryArray) -> pa.DictionaryArray:
    """Names; events without one get a name that says so."""
    if not names.null_count:
        return names
    words = pa.concat_arrays([names.dictionary, pa.array([UNNAMED])])
    indices = names.indices.fill_null(len(words) - 1)
    return pa.DictionaryArray.from_arrays(indices, words)


def _step_names(block: EventBlock, phase: NDArray[np.int8]) -> pa.StringArray:
    names = with_names(block.texts("name")).cast(pa.string())
    is_step = (phase == Phase.STEP_INTO) | (phase == Phase.STEP_PAST)
    if not is_step.any():
        return names
    step = pl.Series(block.texts("args.step").cast(pa.string()))
    frame = pl.DataFrame({"name": pl.Series(names), "step": step, "is_step": is_step})
    whole = pl.col("name") + pl.lit(": ") + pl.col("step")
    chosen = frame.select(
        pl.when(pl.col("is_step")).then(pl.coalesce(whole, "name")).otherwise("name")
    )
    return chosen.to_series().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
