"""Which event launched which, and in which step?

An event names its cause by a key: a correlation id of a GPU runtime, the type and id of a producer (``_pt``, ``_p``) that a consumer
(``_ct``, ``_c``) repeats, or the device and run id of a program that the host enqueued. Steps are lines of a device, or annotations of the host; an event without either has the step of what launched it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.protobuf_wire import Ints
from trnprof.tracer.formats.trace_json.value_tokens import Lifted
from trnprof.tracer.ingest.stage import Stage

CORRELATION: Final = 0
PRODUCER: Final = 1
FLOW: Final = 2
RUN: Final = 3
ENQUEUES: Final = ("DoEnqueueProgram", "DoEnqueueContinuationProgram")
"""Host events that put a run of a program on a device; others with its run id come later."""
_FLOW_ID: Final = np.uint64((1 << 56) - 1)


@dataclass
class Links:
    """Ends of edges as they are met: (family, type, id) by row."""

    sources: list[pl.DataFrame] = field(default_factory=list)
    targets: list[pl.DataFrame] = field(default_factory=list)

    def note(
        self,
        family: int,
        first: int,
        ids: Lifted,
        types: Lifted | int = 0,
        *,
        is_source: bool,
    ) -> None:
        """Events of a block that have a key.

        Args:
            family: CORRELATION, PRODUCER, FLOW or RUN.
            first: row of the block's first event.
            ids: of the rows that have one.
            types: of their types, or the type of all; rows without one have type 0.
            is_source: whether they are causes.
        """
        rows, values = ids.unsigned()
        kinds = np.zeros(len(rows), np.uint64)
        if isinstance(types, int):
            kinds[:] = types
        else:
            typed, type_values = types.unsigned()
            at = np.minimum(np.searchsorted(typed, rows), max(len(typed) - 1, 0))
            if len(typed):
                kinds = np.where(typed[at] == rows, type_values[at], np.uint64(0))
        self.add(family, first + rows, kinds, values, is_source=is_source)

    def note_flow(self, first: int, flow: Lifted) -> None:
        """TPU flows: two bits of direction (1 in, 2 out, 3 both), 56 of id, 6 of category."""
        rows, values = flow.unsigned()
        kinds, ids = values >> np.uint64(58), values >> np.uint64(2) & _FLOW_ID
        for bit, is_source in ((np.uint64(1), False), (np.uint64(2), True)):
            has = (values & bit) != np.uint64(0)
            self.add(FLOW, first + rows[has], kinds[has], ids[has], is_source=is_source)

    def add(
        self,
        family: int,
        rows: Ints,
        kinds: NDArray[np.uint64],
        ids: NDArray[np.uint64],
        *,
        is_source: bool,
    ) -> None:
        """Ends of edges by their rows in the stage, types and ids."""
        if len(rows):
            frame = pl.DataFrame({"row": rows, "type": kinds, "id": ids}).with_columns(
                pl.lit(family, pl.Int8).alias("family")
            )
            (self.sources if is_source else self.targets).append(frame)

    def edges(self, stage: Stage) -> tuple[Ints, Ints]:
        """Rows of both ends of each edge: every target, and the source of its key; the nearest in time of several."""
        none = np.zeros(0, np.int64)
        if not self.sources or not self.targets:
            return none, none
        key = ["family", "type", "id"]
        start = stage.times("start_ns")
        sources = pl.concat(self.sources).with_columns(at=_taken(start, pl.concat(self.sources)))
        targets = pl.concat(self.targets).with_columns(at=_taken(start, pl.concat(self.targets)))
        found = targets.sort("at").join_asof(
            sources.sort("at").rename({"row": "source"}),
            on="at",
            by=key,
            strategy="nearest",
            check_sortedness=False,
        )
        found = found.filter(pl.col("source").is_not_null() & (pl.col("source") != pl.col("row")))
        found = found.sort("row").unique(["source", "row"], maintain_order=True)
        return found["source"].to_numpy(), found["row"].to_numpy()


def _taken(values: Ints, frame: pl.DataFrame) -> pl.Series:
    return pl.Series(values[frame["row"].to_numpy()])


@dataclass
class Steps:
    """Steps as they are met: by the set they belong to (a device, or -1 for the host's annotations)."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def note(self, owner: int, labels: list[str], start_ns: Ints, end_ns: Ints) -> None:
        """Some steps of a set."""
        for label, start, end in zip(labels, start_ns.tolist(), end_ns.tolist(), strict=True):
            self.rows.append({"owner": owner, "label": label, "start_ns": start, "end_ns": end})

    def finish(self, stage: Stage, owner_of_timeline: Ints, edges: tuple[Ints, Ints]) -> None:
        """Give the stage its steps and each event its own.

        Args:
            stage: with all events.
            owner_of_timeline: set of steps by timeline: events there are of the step that they began in.
            edges: of launches: what is left is of the step of what launched it.
        """
        if not self.rows:
            return
        frame = pl.DataFrame(self.rows).filter(pl.col("end_ns") >= pl.col("start_ns"))
        if frame.is_empty():
            return
        shown = frame.filter(pl.col("owner") == _main_owner(frame)).sort("start_ns")
        order = {label: i for i, label in enumerate(_distinct(shown["label"].to_list()))}
        for label in _distinct(frame.sort("start_ns")["label"].to_list()):
            order.setdefault(label, len(order))
        frame = frame.with_columns(
            step=pl.col("label").replace_strict(order, return_dtype=pl.Int32)
        )
        shown = frame.filter(pl.col("owner") == _main_owner(frame)).sort("start_ns")
        shown = shown.unique("step", keep="first", maintain_order=True)
        stage.add_steps(
            {
                "step": shown["step"].to_list(),
                "start_ns": shown["start_ns"].to_list(),
                "end_ns": shown["end_ns"].to_list(),
                "label": shown["label"].to_list(),
                "source": ["profiler"] * len(shown),
            }
        )
        step = np.full(stage.rows, -1, np.int32)
        starts, owner = stage.times("start_ns"), owner_of_timeline[stage.times("timeline")]
        for each in frame["owner"].unique().to_list():
            mine = owner == each
            step[mine] = _step_at(starts[mine], frame.filter(pl.col("owner") == each))
        source, target = edges
        has = (step[target] < 0) & (step[source] >= 0)
        step[target[has]] = step[source[has]]
        stage.set_late("step", pa.array(step, pa.int32(), mask=step < 0))


def _distinct(labels: list[str]) -> list[str]:
    return list(dict.fromkeys(labels))


def _main_owner(frame: pl.DataFrame) -> int:
    """The lowest device that has steps, else the host."""
    owners = frame["owner"].unique().sort().to_list()
    return int(next((o for o in owners if o >= 0), owners[0]))


def _step_at(times: Ints, steps: pl.DataFrame) -> NDArray[np.int32]:
    """The step that each time lies in, -1 for none; of nested ones the last that began."""
    ordered = steps.sort("start_ns")
    at = np.searchsorted(ordered["start_ns"].to_numpy(), times, side="right") - 1
    inside = (at >= 0) & (times < ordered["end_ns"].to_numpy()[np.maximum(at, 0)])
    return np.where(inside, ordered["step"].to_numpy()[np.maximum(at, 0)], -1).astype(np.int32)
