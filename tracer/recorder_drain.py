"""How do the logs of recording threads become rows of a trace?

The drain takes the records of all threads at once, pairs enters with exits, chooses lanes (:mod:`trnprof.tracer.lanes`) and appends
the spans that have ended, in order of their ends. Spans that are open wait, with the lane they have, for the next time.

Tracks: the host; under it one of kind thread for each lane of each thread (same name, lane = depth), for asyncio tasks one
for each lane of each slot ("MainThread task 1", …), and one of kind counter for each counter.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.lanes import NEVER, Ints, TaskSlots, assign_lanes, owners
from trnprof.tracer.recorder_threads import VALUES_PER_RECORD, ThreadLog
from trnprof.tracer.writer import Clock, TraceWriter

CLOCK_ID: Final = 0
MOST_RECORDS: Final = 1 << 17
"""Records taken at a time, over all threads: bounds memory and how long the interpreter is held."""

_HOST_TRACK = 0
_CATEGORIES = pa.array(["host", "marker"])
_MOST_THREADS, _MOST_SLOTS, _MOST_LANES = 1 << 18, 1 << 6, 1 << 6
_COUNTERS_SORT_ORDER = _MOST_THREADS * _MOST_SLOTS * _MOST_LANES


@dataclass(frozen=True)
class Taken:
    """Records taken from the logs, thread after thread.

    Attributes:
        records: flat, as in :class:`~trnprof.tracer.recorder_threads.ThreadLog`.
        threads: number of the thread of each log that had records.
        lengths: how many records each of them had.
        over: threads that had ended before their records were taken.
        has_more: whether some were left for the next time.
    """

    records: list[Any]
    threads: list[int]
    lengths: list[int]
    over: list[int]
    has_more: bool


@dataclass(frozen=True)
class Spans:
    """Spans as columns, in order of their enters.

    ``lane`` is -1 until it is chosen, ``end_ns`` is -1 while open; ``serial`` is negative for instants.
    """

    serial: Ints
    thread: Ints
    task: Ints
    start_ns: Ints
    end_ns: Ints
    slot: Ints
    lane: Ints
    name: pa.StringArray

    def select(self, mask: NDArray[np.bool_] | Ints) -> Spans:
        """The spans at a mask or at indices."""
        indices = np.flatnonzero(mask) if mask.dtype == np.bool_ else mask
        name = self.name.take(pa.array(indices))
        return Spans(name=name, **{k: column[indices] for k, column in self.integers().items()})

    def integers(self) -> dict[str, Ints]:
        """All columns but the name."""
        return {k: column for k, column in vars(self).items() if k != "name"}


def open_drain(
    path: str,
    *,
    writer: str,
    command: Sequence[str] | None,
    reproducible: bool,
    rank: int,
    origin_ns: int,
    epoch_unix_ns: int,
    label: str = "",
) -> Drain:
    """Claim a writer of the trace and write its host track.

    Args:
        path: trace directory.
        writer: name of the writer.
        command: what is recorded.
        reproducible: leave out host name, command and wall clock.
        rank: rank of the steps.
        origin_ns: ``perf_counter_ns`` that becomes time 0.
        epoch_unix_ns: wall clock at that moment.
        label: name of the host's track, "" for that of the host.

    Raises:
        WriteError: the trace cannot be written.
    """
    clock = Clock(CLOCK_ID, "host", None if reproducible else epoch_unix_ns)
    opened = TraceWriter(
        path, writer=writer, clocks=[clock], command=command, reproducible=reproducible
    )
    host = "host0" if reproducible else socket.gethostname()
    return Drain(opened, host, rank, origin_ns, label or host)


class Drain:
    """The one user of a recorder's TraceWriter; not thread-safe."""

    def __init__(
        self, writer: TraceWriter, host: str, rank: int, origin_ns: int, name: str
    ) -> None:
        self._writer = writer
        self._host = host
        self._rank = rank
        self._origin_ns = origin_ns
        self._open = _no_spans()
        self._slots = TaskSlots()
        self._last_ns: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._used_names: set[str] = set()
        self._tracks: dict[tuple[int, int, int], int] = {}
        self._counters: dict[tuple[str, str], int] = {}
        self._track_count = 0
        self._new_tracks: list[tuple[Any, ...]] = []
        self._first_step_ns: int | None = None
        self._step_ends: Ints = np.empty(0, np.int64)
        self._add_track("host", name, None, 0, 0, None)
        self._write_tracks()
        writer.flush()

    def take(self, logs: Sequence[ThreadLog]) -> Taken:
        """Remove records from the logs, at most MOST_RECORDS or so. Each step here is one operation of the interpreter."""
        records: list[Any] = []
        threads, lengths = [], []
        over = [log.number for log in logs if log.is_over]
        has_more = False
        most = max(256, MOST_RECORDS // max(1, len(logs))) * VALUES_PER_RECORD
        for log in logs:
            part = log.records[:most]
            if not part:
                continue
            del log.records[: len(part)]
            has_more |= len(part) == most
            records += part
            threads.append(log.number)
            lengths.append(len(part) // VALUES_PER_RECORD)
            if log.number not in self._names:
                self._names[log.number] = self._unused_name(log.name)
        return Taken(records, threads, lengths, over, has_more)

    def write_steps(self, steps: Sequence[tuple[int, int, str]], begin_ns: int | None) -> None:
        """Append steps (start, end, label) that have ended; ``begin_ns``: when the first was known to have begun."""
        if begin_ns is not None:
            self._first_step_ns = begin_ns - self._origin_ns
        if not steps:
            return
        starts, ends, labels = zip(*steps, strict=True)
        first = len(self._step_ends)
        ends_ns = np.array(ends, np.int64) - self._origin_ns
        self._step_ends = np.concatenate([self._step_ends, ends_ns])
        self._writer.add_steps(
            {
                "step": np.arange(first, first + len(steps), dtype=np.int32),
                "rank": np.full(len(steps), self._rank, np.int32),
                "clock_id": np.full(len(steps), CLOCK_ID, np.int32),
                "start_ns": np.array(starts, np.int64) - self._origin_ns,
                "end_ns": ends_ns,
                "label": _text(labels),
                "source": ["marker"] * len(steps),
            }
        )

    def write_spans(self, taken: Taken) -> bool:
        """Append the spans that have ended; whether more records wait."""
        if taken.lengths:
            spans, record_span, is_enter = self._paired(taken)
            spans = self._placed(spans, record_span, is_enter)
            is_closed = spans.end_ns >= 0
            self._append(spans.select(is_closed))
            self._open = spans.select(~is_closed)
        return taken.has_more

    def write_counters(self, counts: list[Any]) -> bool:
        """Append and remove counter samples (flat: name, unit, time, value); whether more wait."""
        part = counts[: MOST_RECORDS * VALUES_PER_RECORD]
        del counts[: len(part)]
        if not part:
            return False
        names, units = (_text(part[i::VALUES_PER_RECORD]).dictionary_encode() for i in (0, 1))
        time_ns = np.array(part[2::VALUES_PER_RECORD], np.int64) - self._origin_ns
        value = np.array(part[3::VALUES_PER_RECORD], np.float64)
        code = _codes(names) * len(units.dictionary) + _codes(units)
        track_of = np.zeros(len(names.dictionary) * len(units.dictionary), np.uint32)
        for used in np.unique(code).tolist():
            name, unit = divmod(used, len(units.dictionary))
            track_of[used] = self._counter_track(
                names.dictionary[name].as_py(), units.dictionary[unit].as_py()
            )
        order = np.argsort(time_ns, kind="stable")
        self._write_tracks()
        self._writer.append_counters(
            {
                "track_id": track_of[code[order]],
                "timestamp_ns": time_ns[order],
                "value": value[order],
            }
        )
        return len(part) == MOST_RECORDS * VALUES_PER_RECORD

    def finished(self, taken: Taken) -> list[int]:
        """Threads that have ended and have no record or open span left; they are forgotten."""
        if not taken.over or taken.has_more:
            return []
        is_open = set(self._open.thread.tolist())
        done = [number for number in taken.over if number not in is_open]
        for number in done:
            self._last_ns.pop(number, None)
            self._names.pop(number, None)
        return done

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._writer.flush()

    def finish(self) -> None:
        """Append the spans still open, without a duration, and seal."""
        self._append(self._open)
        self._open = _no_spans()
        self._writer.seal()

    def _paired(self, taken: Taken) -> tuple[Spans, Ints, NDArray[np.bool_]]:
        """Open spans and entered ones, then for each record (an enter for each open span first) its span and kind."""
        flat = taken.records
        count = len(flat) // VALUES_PER_RECORD
        serial = _column(flat, 0, count)
        thread = np.repeat(np.array(taken.threads, np.int64), taken.lengths)
        time_ns = self._in_order(_column(flat, 2, count) - self._origin_ns, taken)
        names = _text(flat[1::VALUES_PER_RECORD])
        is_enter = names.is_valid().to_numpy(zero_copy_only=False)
        entered = np.flatnonzero(is_enter)
        new = Spans(
            serial=serial[entered],
            thread=thread[entered],
            task=_column(flat, 3, count)[entered],
            start_ns=time_ns[entered],
            end_ns=np.full(len(entered), -1, np.int64),
            slot=np.zeros(len(entered), np.int64),
            lane=np.full(len(entered), -1, np.int64),
            name=names.drop_null(),
        )
        spans = _joined(self._open, new)
        waiting = len(self._open.serial)
        record_span = np.empty(count, np.int64)
        record_span[entered] = np.arange(len(entered)) + waiting
        exits = np.flatnonzero(~is_enter)
        record_span[exits] = owners(spans.serial, serial[exits])
        exits = exits[record_span[exits] >= 0]
        spans.end_ns[record_span[exits]] = time_ns[exits]
        known = record_span >= 0  # not so if two threads ended one span at once
        return (
            spans,
            np.concatenate([np.arange(waiting), record_span[known]]),
            np.concatenate([np.ones(waiting, np.bool_), is_enter[known]]),
        )

    def _in_order(self, time_ns: Ints, taken: Taken) -> Ints:
        """Times that never go back within a thread.

        They do where a signal handler, or a thread that ends another's span, records between the reading of the clock and the
        append; the order of the log counts then, and the later record gets the time of the one before.
        """
        ends = np.cumsum(taken.lengths)
        starts = ends - taken.lengths
        earlier = [self._last_ns.get(thread, 0) for thread in taken.threads]
        time_ns[starts] = np.maximum(time_ns[starts], earlier)
        back = np.diff(time_ns) < 0
        back[starts[1:] - 1] = False
        if back.any():
            thread = np.repeat(np.arange(len(ends)), taken.lengths)
            shift = thread * (int(time_ns.max()) + 1)
            time_ns = np.maximum.accumulate(time_ns + shift) - shift
        self._last_ns.update(zip(taken.threads, time_ns[ends - 1].tolist(), strict=True))
        return time_ns

    def _placed(self, spans: Spans, record_span: Ints, is_enter: NDArray[np.bool_]) -> Spans:
        """The spans with slot and lane."""
        key, group = _groups(spans.thread, spans.task)
        lane = assign_lanes(record_span, is_enter, group, spans.lane)
        if not key.task.any():
            return replace(spans, lane=lane)
        record_group = group[record_span]
        first, last = _extents(record_group, len(key.task))
        last[group[spans.end_ns < 0]] = NEVER
        slot = self._slots.assign(key.thread, key.task, first, last)[group]
        return replace(spans, lane=lane, slot=slot)

    def _append(self, spans: Spans) -> None:
        if not len(spans.serial):
            return
        order = np.argsort(spans.end_ns, kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            spans = spans.select(order)
        duration_ns = pa.array(spans.end_ns - spans.start_ns, mask=spans.end_ns < 0)
        category = pa.DictionaryArray.from_arrays((spans.serial < 0).astype(np.int8), _CATEGORIES)
        columns: dict[str, Any] = {
            "track_id": self._track_ids(spans),
            "start_ns": spans.start_ns,
            "duration_ns": duration_ns,
            "name": spans.name.dictionary_encode(),
            "category": category,
        }
        if self._first_step_ns is not None:
            step = np.searchsorted(self._step_ends, spans.start_ns, side="right")
            is_before = spans.start_ns < self._first_step_ns
            columns["step"] = pa.array(step.astype(np.int32), mask=is_before)
        self._write_tracks()
        self._writer.append_events(columns)

    def _track_ids(self, spans: Spans) -> NDArray[np.uint32]:
        key, group = _groups(spans.thread, spans.slot)
        width = int(spans.lane.max()) + 1
        code = group * width + spans.lane
        track_of = np.zeros(len(key.thread) * width, np.uint32)
        for used in np.flatnonzero(np.bincount(code, minlength=len(track_of))).tolist():
            at, lane = divmod(used, width)
            track_of[used] = self._thread_track(int(key.thread[at]), int(key.task[at]), lane)
        ids: NDArray[np.uint32] = track_of[code]
        return ids

    def _thread_track(self, thread: int, slot: int, lane: int) -> int:
        known = self._tracks.get((thread, slot, lane))
        if known is not None:
            return known
        name = self._names[thread] + (f" task {slot}" if slot else "")
        place = min(thread, _MOST_THREADS - 1) * _MOST_SLOTS + min(slot, _MOST_SLOTS - 1)
        for each in range(lane + 1):  # lanes of parents that are still open, too: they stand above
            if (thread, slot, each) not in self._tracks:
                sort_order = place * _MOST_LANES + min(each, _MOST_LANES - 1)
                track = self._add_track("thread", name, _HOST_TRACK, sort_order, each, None)
                self._tracks[thread, slot, each] = track
        return self._tracks[thread, slot, lane]

    def _counter_track(self, name: str, unit: str) -> int:
        track = self._counters.get((name, unit))
        if track is None:
            order = _COUNTERS_SORT_ORDER + len(self._counters)
            track = self._add_track("counter", name, _HOST_TRACK, order, 0, unit or None)
            self._counters[name, unit] = track
        return track

    def _add_track(
        self, kind: str, name: str, parent: int | None, sort_order: int, lane: int, unit: str | None
    ) -> int:
        track, self._track_count = self._track_count, self._track_count + 1
        self._new_tracks.append((track, parent, kind, name, sort_order, lane, unit))
        return track

    def _write_tracks(self) -> None:
        if not self._new_tracks:
            return
        track, parent, kind, name, sort_order, lane, unit = zip(*self._new_tracks, strict=True)
        count = len(track)
        self._new_tracks = []
        self._writer.add_tracks(
            {
                "track_id": track,
                "parent_id": parent,
                "kind": kind,
                "name": _text(name),
                "sort_order": sort_order,
                "lane": lane,
                "exclusive": [False] * count,
                "clock_id": [CLOCK_ID] * count,
                "host": [self._host] * count,
                "replica_count": [1] * count,
                "unit": _text(unit),
            }
        )

    def _unused_name(self, name: str) -> str:
        """The thread's name, with a number if another has it."""
        unused, number = name, 2
        while unused in self._used_names:
            unused, number = f"{name} #{number}", number + 1
        self._used_names.add(unused)
        return unused


@dataclass(frozen=True)
class _Key:
    """Thread and task (or slot) of each group."""

    thread: Ints
    task: Ints


def _groups(thread: Ints, task: Ints) -> tuple[_Key, Ints]:
    """Dense numbers for the pairs of thread and task that occur, and the number of each row."""
    threads, thread_code = np.unique(thread, return_inverse=True)
    if not task.any():
        return _Key(threads, np.zeros_like(threads)), thread_code
    tasks, task_code = np.unique(task, return_inverse=True)
    pairs, group = np.unique(thread_code * len(tasks) + task_code, return_inverse=True)
    return _Key(threads[pairs // len(tasks)], tasks[pairs % len(tasks)]), group


def _extents(group: Ints, groups: int) -> tuple[Ints, Ints]:
    """Position of the first and the last record of each group."""
    position = np.arange(len(group))
    first, last = np.empty(groups, np.int64), np.empty(groups, np.int64)
    first[group[::-1]] = position[::-1]
    last[group] = position
    return first, last


def _column(flat: list[Any], field: int, count: int) -> Ints:
    return np.fromiter(islice(flat, field, None, VALUES_PER_RECORD), np.int64, count)


def _codes(array: pa.DictionaryArray) -> Ints:
    return array.indices.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _text(words: Sequence[str | None]) -> pa.StringArray:
    """The words as Arrow strings; what UTF-8 cannot say (lone surrogates) becomes "?"."""
    try:
        return pa.array(words, pa.string())
    except UnicodeEncodeError:
        return pa.array(
            [w if w is None else w.encode("utf-8", "replace").decode() for w in words], pa.string()
        )


def _no_spans() -> Spans:
    none = np.empty(0, np.int64)
    return Spans(none, none, none, none, none, none, none, pa.array([], pa.string()))


def _joined(first: Spans, second: Spans) -> Spans:
    name = pa.concat_arrays([first.name, second.name])
    more = second.integers()
    return Spans(
        name=name,
        **{k: np.concatenate([column, more[k]]) for k, column in first.integers().items()},
    )
