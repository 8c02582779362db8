"""What does a trace say of itself as a whole: clock, machine, buffers that ran over, units?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.quarantine import DAY_NS
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.units import format_ns

_KNOWN: Final = (
    "process_name",
    "thread_name",
    "process_labels",
    "process_sort_index",
    "thread_sort_index",
)
_MOST: Final = 1_000
"""Metadata events of other names that are kept."""
_MOST_TEXT: Final = 1 << 16
"""Characters of a header member that are kept."""
_UNIX_NS: Final = (1_000_000_000_000_000_000, 4_000_000_000_000_000_000)
"""Times in this range are plainly Unix times: of the years 2001 to 2096."""
_LATEST_NS: Final = _UNIX_NS[1]
_OVERFLOW: Final = "trace_buffer_overflowed"


@dataclass
class Metadata:
    """Metadata events other than names of processes and threads.

    Attributes:
        events: name, process and arguments of the first ones.
        left_out: how many there are beyond.
        overflows: buffers that ran over.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    overflows: int = 0

    def add(self, block: EventBlock) -> None:
        """Remember some metadata events."""
        codes, known = block.keys("name")
        is_other = np.array([name not in _KNOWN for (name,) in known])[codes]
        rows = np.flatnonzero(is_other)
        is_overflow = np.array([name == _OVERFLOW for (name,) in known])[codes]
        self.overflows += int(is_overflow.sum())
        kept = rows[: max(0, _MOST - len(self.events))]
        self.left_out += len(rows) - len(kept)
        if not len(kept):
            return
        own = block.take(kept)
        for name, process, text in zip(
            own.texts("name").to_pylist(),
            own.texts("pid").to_pylist(),
            own.attributes().to_pylist(),
            strict=True,
        ):
            row = {"name": name, "process": process, "args": _loaded(text)}
            self.events.append(row)


def tell_facts(stage: Stage, header: Mapping[str, Any], metadata: Metadata) -> None:
    """Put what is known of the whole into the stage's facts, and doubts into its audit.

    Args:
        stage: with all events.
        header: members of the file beside its events.
        metadata: metadata events.
    """
    kept = {
        key: value
        for key, value in header.items()
        if value is not None and len(json.dumps(value, default=str)) <= _MOST_TEXT
    }
    facts = {"header": kept, "metadata": metadata.events}
    if kept or metadata.events:
        stage.facts.metadata["chrome"] = {key: value for key, value in facts.items() if value}
    start = stage.times("start_ns")
    first = int(start.min()) if len(start) else stage.first_counter_ns
    last = int(start.max()) if len(start) else first
    stage.facts.base_unix_ns = _base_unix_ns(header, first, last)
    _tell_overflow(stage, header, metadata)
    if first is not None and last is not None:
        _tell_units(stage, header, first, last)


def _base_unix_ns(header: Mapping[str, Any], first: int | None, last: int | None) -> int | None:
    """Unix time of zero: what a writer says of it, or 0 where times are plainly Unix times."""
    if first is not None and last is not None and _UNIX_NS[0] <= first <= last <= _UNIX_NS[1]:
        return 0
    inner = header.get("viztracer_metadata")
    other = header.get("otherData")
    for holder, key, unit in (
        (header, "baseTimeNanoseconds", 1),
        (inner, "baseTimeNanoseconds", 1),
        (header, "beginningOfTime", 1_000),
        (other, "profile_start_ts", 1_000_000),
    ):
        value = holder.get(key) if isinstance(holder, Mapping) else None
        if isinstance(value, int) and _UNIX_NS[0] <= value * unit <= _UNIX_NS[1]:
            return value * unit
    return None


def _tell_overflow(stage: Stage, header: Mapping[str, Any], metadata: Metadata) -> None:
    inner = header.get("viztracer_metadata")
    says = isinstance(inner, Mapping) and inner.get("overflow") is True
    stage.audit.add(
        "ring_buffer_overwritten",
        "error",
        stage.label,
        "the recorder's buffer ran over: events are missing",
        unreliable="counts and totals; the beginning of the trace",
        count=metadata.overflows + says,
    )
    stage.audit.add(
        "too_many_metadata",
        "note",
        stage.label,
        f"metadata events beyond the first {_MOST:,} were left out",
        count=metadata.left_out,
    )


def _tell_units(stage: Stage, header: Mapping[str, Any], first: int, last: int) -> None:
    """Whether times look like nanoseconds; ``displayTimeUnit`` never decides it."""
    is_late = last > _LATEST_NS
    is_long = header.get("displayTimeUnit") == "ns" and last - first > DAY_NS
    if is_late or is_long:
        stage.audit.add(
            "suspicious_time_unit",
            "warning",
            stage.label,
            "times look as if they were written in nanoseconds; they were read as microseconds, which the format has",
            unreliable="all times and durations: they may be 1,000 times too long",
            example=f"the trace would last {format_ns(last - first)}",
        )


def _loaded(text: str | None) -> Any:
    try:
        return json.loads(text) if text and len(text) <= _MOST_TEXT else None
    except (ValueError, RecursionError):
        return None
