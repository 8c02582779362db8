"""When did each event of a PyTorch profile start and end, whatever its stamps look like?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.tracer.formats.kineto.state import Bools, Ints
from trnprof.tracer.formats.trace_json.scan import EventBlock
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.stage import UNFINISHED

_BEGINNING: Final = r"^\s*(\d{1,16})(?:\.(\d*))?"
"""What of a stamp is read where the whole is no number: microseconds, and their decimals."""


def read_times(block: EventBlock, audit: Audit, label: str) -> tuple[Ints, Ints, Bools]:
    """Start and end in ns, ``UNFINISHED`` where no duration is said, and which events have a start at all.

    A start that is no number is read as far as it is one. Either is told.
    """
    start, end, has_ts, has_dur = block.times_ns()
    if has_ts.all() and has_dur.all():
        return start, end, has_ts
    if not has_ts.all():
        begun = _beginnings(block, np.flatnonzero(~has_ts))
        found = np.flatnonzero(~has_ts)[begun >= 0]
        start[found] = begun[begun >= 0]
        end[found] += start[found]  # which was the duration
        has_ts[found] = True
        message = "times are no numbers and were read as far as they are"
        _tell(audit, label, block, found, "odd_timestamps", message)
        message = "events without a time (ts) stand unfinished on a track of their own"
        _tell(audit, label, block, np.flatnonzero(~has_ts), "missing_time", message)
    return start, np.where(has_dur & has_ts, end, UNFINISHED), has_ts


def _beginnings(block: EventBlock, rows: Ints) -> Ints:
    """Start in ns as far as it is a number, rounded half up; -1 where it does not begin with one."""
    texts = pl.Series(block.take(rows).texts("ts").cast("string"))
    whole = texts.str.extract(_BEGINNING, 1).cast(pl.Int64)
    decimals = texts.str.extract(_BEGINNING, 2).fill_null("").str.pad_end(4, "0").str.slice(0, 4)
    fine = decimals.cast(pl.Int64)
    found: Ints = (whole * 1000 + (fine + 5) // 10).fill_null(-1).to_numpy()
    return found


def _tell(audit: Audit, label: str, block: EventBlock, rows: Ints, kind: str, message: str) -> None:
    if len(rows):
        at = int(rows[0])
        name = block.texts("name")[at].as_py()
        audit.add(
            kind,
            "warning",
            label,
            message,
            unreliable="these events",
            count=len(rows),
            example=f"{str(name)[:80]} at byte {int(block.positions()[at]):,}",
        )
