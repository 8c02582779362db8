"""What did the threads of a rocprofv3 profile call and annotate, and which of it are steps?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.rocpd.events import Events
from trnprof.tracer.formats.rocpd.lookup import UNNAMED
from trnprof.tracer.formats.rocpd.session import COMMON, Session
from trnprof.tracer.formats.rocpd.state import Launches
from trnprof.tracer.formats.step_ranges import step_ranges
from trnprof.tracer.formats.table_columns import attributes, fingerprint
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows

_MARKER_CATEGORIES: Final = r"(?i)marker|roctx|^user$"
MARKERS: Final = "ROCTX"


def read_regions(session: Session, events: Events, launches: Launches) -> None:
    """Stage calls and ranges on threads, and index them by correlation."""
    state = session.state
    is_marker = events.categories.matching(_MARKER_CATEGORIES)
    others = [c for c in session.columns("rocpd_region") if c not in COMMON and c != "name_id"]
    for block in session.scan("rocpd_region", ["name_id", *others]):
        place = session.place(block)
        event = events.find(block)
        stack, has_stack = events.numbers(event, "stack_id")
        beside = is_marker[events.category(event)]
        start, end = session.times(block)
        messages = events.messages(block)
        codes = session.words.codes(block.ints("name_id"), block.has("name_id"))
        names = session.words.pick(codes)
        first = state.stage.add_events(
            timeline=_threads(session, place.process, place.thread, beside),
            start_ns=start,
            end_ns=end,
            name=names if messages is None else _named(messages, names),
            category="host",
            attributes=_attributes(events, block, event, others),
            fingerprint=fingerprint(block, ["name_id", *others]) ^ stack.view(np.uint64),
        )
        rows = first + np.flatnonzero(has_stack)
        launches.add(place.process[has_stack], stack[has_stack], rows)
        if messages is not None:
            state.steps.append(step_ranges(place.process, start, end, messages))


def read_marks(session: Session, events: Events, counted: Bools) -> None:
    """Stage samples that are no values of counters: instants on threads.

    Args:
        session: whose samples.
        events: of the session.
        counted: by place in ``events``, whether it is a value of a counter; one longer, the last for none.
    """
    state = session.state
    for block in session.scan("rocpd_sample", ["name_id"]):
        event = events.find(block)
        chosen = np.flatnonzero(~counted[event])
        if not len(chosen):
            continue
        place = session.place(block)
        at = session.instants(block)[chosen]
        by_track, has_track_name = session.track_column(block, "name_id")
        has = block.has("name_id")
        name_id = np.where(has, block.ints("name_id"), by_track)
        names = session.words.pick(session.words.codes(name_id, has | has_track_name)[chosen])
        messages = events.messages(block)
        of_thread = _threads(session, place.process, place.thread, np.ones(block.count, np.bool_))
        kept = _attributes(events, block, event, [])
        state.stage.add_events(
            timeline=of_thread[chosen],
            start_ns=at,
            end_ns=at,
            name=names if messages is None else _named(messages.gather(chosen), names),
            category="marker",
            attributes=kept.take(pa.array(chosen)),
        )


def _threads(session: Session, process: Ints, thread: Ints, beside: Bools) -> Ints:
    groups, at = distinct([process, thread, beside.astype(np.int64)])
    numbers = []
    for row in at.tolist():
        owner, (tid, name) = int(process[row]), session.thread_of(int(thread[row]))
        if beside[row]:
            numbers.append(session.state.beside_thread(owner, tid, MARKERS, name))
        else:
            numbers.append(session.state.thread(owner, tid, name))
    return np.asarray(numbers, np.int64)[groups]


def _named(messages: pl.Series, names: pa.DictionaryArray) -> pl.Series:
    """Messages, and names where there is none."""
    plain = pl.Series(names.cast(pa.string()))
    return pl.select(pl.coalesce(pl.lit(messages), pl.lit(plain))).to_series().fill_null(UNNAMED)


def _attributes(events: Events, block: Rows, event: Ints, others: list[str]) -> pa.Array:
    numbers = dict(block.numbers)
    for name in ("stack_id", "correlation_id"):
        numbers[name] = events.numbers(event, name)
    told = Rows(block.count, numbers)
    texts = [("args", events.arguments(block)), ("extdata", events.extdata(block))]
    return attributes(told, [*others, "stack_id", "correlation_id"], {}, texts)
