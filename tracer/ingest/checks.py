"""What of an imported profile should nobody rely on? Checks of a finished stage that need no knowledge of its format.

They look at times, categories and steps of the events, one column at a time, and say what they find; nothing is changed here.
Times that cannot be (ends before starts, stamps far from all others) are told by ``quarantine`` and left out here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.ingest.check_lanes import Overlaps, find_overlaps, stops_early
from trnprof.tracer.ingest.check_steps import check_step_numbers, check_steps
from trnprof.tracer.ingest.stage import UNFINISHED, Stage
from trnprof.tracer.schema import CATEGORIES, DEVICE_KINDS
from trnprof.tracer.units import counted, format_ns, format_percent

DAY_NS: Final = 86_400_000_000_000
ROUND_EVENTS: Final = 1_000_000
"""Exporters that stop at a number of events stop at a multiple of this one."""
DOMINANT_SHARE: Final = 0.5
FEW: Final = 3
"""Among fewer events one of them takes most of the time without anything being wrong."""
MANY: Final = 20
SLOW_KERNEL_NS: Final = 5_000_000
SLOW_HOST_NS: Final = 1_000_000
"""Medians of kernels and of host calls above both look like nanoseconds that were written as microseconds."""
NEVER_NEGATIVE: Final = ("fraction", "B", "B/s", "W", "FLOP/s")
TOLERANCE: Final = 1e-6

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _Events:
    """Device events of a stage that have believable times, markers left out.

    Attributes:
        row: row in the stage.
        timeline, start, end, category, step: one an event; step -1 where none is known.
        host_starts, host_lengths: of the other events, in order of start.
        first_ns, last_ns: of everything.
    """

    row: Ints
    timeline: NDArray[np.int32]
    start: Ints
    end: Ints
    category: NDArray[np.int8]
    step: NDArray[np.int32]
    host_starts: Ints
    host_lengths: Ints
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class _Pending:
    """A finding whose example is an event that has yet to be named: ``{}`` in ``example`` is its name."""

    kind: str
    severity: str
    message: str
    unreliable: str
    count: int
    row: int
    example: str


def audit_stage(stage: Stage) -> None:
    """Look through a closed stage; findings go into its audit."""
    _check_counters(stage)
    check_step_numbers(stage)
    if not stage.rows:
        return
    _check_count(stage)
    events = _load(stage)
    if not len(events.row):
        stage.audit.add(
            "no_device_events",
            "note",
            stage.label,
            "has no events of a device: only the host was recorded",
            unreliable="every figure of a device",
        )
        return
    exclusive = np.array([t.exclusive for t in stage.timelines])[events.timeline]
    fingerprint = stage.times("fingerprint")[events.row]
    overlaps = find_overlaps(events.timeline, events.start, events.end, fingerprint, exclusive)
    pending = [
        *_overlap_findings(overlaps, events),
        *_dominant(events),
        *_zero_lengths(events),
    ]
    _check_units(stage, events)
    check_steps(stage, events.start, events.step)
    _check_ends(stage, events)
    _add_named(stage, pending)


def audit_sources(ranks: Mapping[str, int], world_size: int | None) -> list[Finding]:
    """Which ranks of the job are missing, there twice, or not of it?

    Args:
        ranks: by source label.
        world_size: ranks of the job, if anybody states it.
    """
    present = sorted(set(ranks.values()))
    missing = _gaps(present, world_size or (present[-1] + 1 if present else 0))
    findings = []
    if missing:
        stated = (
            f"the job has {world_size} ranks"
            if world_size
            else f"the last one is rank {present[-1]}"
        )
        count = sum(last - first + 1 for first, last in missing)
        who = "1 rank has" if count == 1 else f"{count:,} ranks have"
        message = f"{who} no profile here ({stated}): {_ranges(missing)}"
        findings.append(
            Finding(
                "missing_ranks",
                "warning",
                "all sources",
                message,
                "sums, means and extremes over ranks; waits for ranks that are not here",
                count,
                f"rank {missing[0][0]}",
            )
        )
    by_rank: dict[int, list[str]] = {}
    for label, rank in ranks.items():
        by_rank.setdefault(rank, []).append(label)
    twice = {rank: labels for rank, labels in by_rank.items() if len(labels) > 1}
    if twice:
        rank, labels = next(iter(twice.items()))
        findings.append(
            Finding(
                "duplicate_rank",
                "warning",
                labels[1],
                "several sources are of the same rank; all were kept",
                "which rank is which",
                len(twice),
                f"rank {rank}: {', '.join(labels[:3])}",
            )
        )
    beyond = [label for label, rank in ranks.items() if world_size and rank >= world_size]
    if beyond:
        message = f"ranks beyond the world size of {world_size}: files of several jobs may be mixed"
        findings.append(
            Finding(
                "rank_beyond_world",
                "warning",
                beyond[0],
                message,
                "which rank is which",
                len(beyond),
            )
        )
    return findings


def _gaps(present: Sequence[int], end: int) -> list[tuple[int, int]]:
    """First and last of each run of numbers before ``end`` that are not among the sorted ones, however many it has."""
    edges = [-1, *(n for n in present if n < end), end]
    return [(a + 1, b - 1) for a, b in itertools.pairwise(edges) if b > a + 1]


def _ranges(runs: Sequence[tuple[int, int]]) -> str:
    """``1, 5..7``; at most eight parts."""
    shown = [str(a) if a == b else f"{a}..{b}" for a, b in runs[:8]]
    return ", ".join([*shown, *(["…"] if len(runs) > 8 else [])])


def _load(stage: Stage) -> _Events:
    timeline, start, end = (stage.times(name) for name in ("timeline", "start_ns", "end_ns"))
    middle = int(np.median(start))
    usable = (start >= middle - DAY_NS) & (start <= middle + DAY_NS)
    usable &= (end != UNFINISHED) & (end >= start) & (end <= middle + 2 * DAY_NS)
    is_device = np.array([t.kind in DEVICE_KINDS for t in stage.timelines])[timeline]
    category, step = _categories_and_steps(stage)
    device = np.flatnonzero(is_device & usable & (category != CATEGORIES.index("marker")))
    host = np.flatnonzero(~is_device & usable)
    first = int(start[usable].min()) if usable.any() else 0
    last = int(end[usable].max()) if usable.any() else 0
    return _Events(
        device,
        timeline[device],
        start[device],
        end[device],
        category[device],
        step[device],
        start[host],
        (end - start)[host],
        first,
        last,
    )


def _columns(stage: Stage, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Batches with some columns of the staged events, mapped: the others are not read."""
    path = stage.directory / "events.arrows"
    with pa.memory_map(str(path)) as file:
        schema = ipc.open_stream(file).schema
        options = ipc.IpcReadOptions(included_fields=[schema.get_field_index(n) for n in names])
        file.seek(0)
        yield from ipc.open_stream(file, options=options)


def _categories_and_steps(stage: Stage) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    codes = {word: code for code, word in enumerate(CATEGORIES)}
    category = np.empty(stage.rows, np.int8)
    step = np.full(stage.rows, -1, np.int32)
    at = 0
    for batch in _columns(stage, ("category", "step")):
        words = batch["category"]
        lookup = np.array([codes[w] for w in words.dictionary.to_pylist()], np.int8)
        rows = slice(at, at + batch.num_rows)
        category[rows] = lookup[words.indices.to_numpy()]
        step[rows] = batch["step"].fill_null(-1).to_numpy()
        at += batch.num_rows
    if "step" in stage.late:
        step = stage.late_column("step").cast(pa.int32()).fill_null(-1).to_numpy()
    return category, step


def _add_named(stage: Stage, pending: Sequence[_Pending]) -> None:
    names: dict[int, str] = {}
    wanted = sorted({p.row for p in pending})
    first = 0
    for batch in _columns(stage, ("name",)) if wanted else ():
        for row in wanted:
            if first <= row < first + batch.num_rows:
                names[row] = str(batch["name"][row - first].as_py())[:80]
        first += batch.num_rows
    for p in pending:
        stage.audit.add(
            p.kind,
            p.severity,
            stage.label,
            p.message,
            unreliable=p.unreliable,
            count=p.count,
            example=p.example.replace("{}", names.get(p.row, f"event {p.row}"), 1),
        )


def _overlap_findings(overlaps: Overlaps, events: _Events) -> list[_Pending]:
    found = []
    if len(overlaps.late):
        place = int(overlaps.late[0])
        message = (
            "events overlap on a resource that runs one at a time; they were kept as they are, on lanes of their own: together they "
            f"sum to {format_ns(overlaps.sum_ns)}, but cover {format_ns(overlaps.union_ns)}"
        )
        example = f"{{}} begins {format_ns(int(overlaps.before_end_ns[0]))} before the event before it ends"
        row = int(events.row[place])
        found.append(
            _Pending(
                "overlapping_exclusive",
                "warning",
                message,
                "sums of durations (unions are not touched)",
                len(overlaps.late),
                row,
                example,
            )
        )
    if len(overlaps.covering):
        place = int(overlaps.covering[0])
        length = format_ns(int(events.end[place] - events.start[place]))
        message = (
            f"events run over {counted(overlaps.covered, 'whole successor')} of their own stream: their ends may be wrong; they were kept as "
            "they are"
        )
        found.append(
            _Pending(
                "covering_events",
                "warning",
                message,
                "busy and idle time, sums of durations",
                len(overlaps.covering),
                int(events.row[place]),
                f"{{}}, {length}",
            )
        )
    return found


def _dominant(events: _Events) -> list[_Pending]:
    """Events of more than DOMINANT_SHARE of the device span of their step, or of the whole."""
    length = events.end - events.start
    share = _share_of_span(events, np.zeros(len(length), np.int64), length)
    if events.step.max(initial=-1) >= 0:
        known = np.flatnonzero(events.step >= 0)
        _, group = np.unique(events.step[known], return_inverse=True)
        share[known] = np.maximum(share[known], _share_of_span(events, group, length, known))
    is_collective = events.category == CATEGORIES.index("collective")
    found = []
    for kind, severity, mask, message in (
        (
            "dominant_event",
            "warning",
            ~is_collective,
            f"single events take more than {format_percent(DOMINANT_SHARE, 0)} of the device's time span of their step or of the "
            "whole profile: one wrong duration would decide every figure",
        ),
        (
            "dominant_collective",
            "note",
            is_collective,
            f"single collectives take more than {format_percent(DOMINANT_SHARE, 0)} of the device's time span of their step or of "
            "the whole profile: they wait for other ranks, or their duration is wrong",
        ),
    ):
        places = np.flatnonzero(mask & (share > DOMINANT_SHARE))
        if len(places):
            worst = int(places[share[places].argmax()])
            example = (
                f"{{}}: {format_ns(int(length[worst]))}, {format_percent(float(share[worst]))}"
            )
            row = int(events.row[worst])
            unreliable = "busy and idle time, shares of kernels"
            found.append(_Pending(kind, severity, message, unreliable, len(places), row, example))
    return found


def _share_of_span(
    events: _Events, group: Ints, length: Ints, places: Ints | None = None
) -> NDArray[np.float64]:
    """Length of each event over the span of its group; 0 in groups of FEW or less."""
    chosen = np.arange(len(length)) if places is None else places
    groups = int(group.max(initial=0)) + 1
    first = np.full(groups, np.iinfo(np.int64).max)
    last = np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(first, group, events.start[chosen])
    np.maximum.at(last, group, events.end[chosen])
    count = np.bincount(group, minlength=groups)
    span = np.where(count > FEW, last - first, 0)[group]
    share: NDArray[np.float64] = np.where(span > 0, length[chosen] / np.maximum(span, 1), 0.0)
    return share


def _zero_lengths(events: _Events) -> list[_Pending]:
    places = np.flatnonzero(events.end == events.start)
    if not len(places):
        return []
    message = "device events have no duration: they count as events and take no time"
    row = int(events.row[places[0]])
    return [
        _Pending(
            "zero_duration", "note", message, "mean durations of kernels", len(places), row, "{}"
        )
    ]


def _check_units(stage: Stage, events: _Events) -> None:
    length = (events.end - events.start)[events.category == CATEGORIES.index("compute")]
    host = events.host_lengths[events.host_lengths > 0]
    if len(length) < MANY or len(host) < MANY:
        return
    kernel_ns, host_ns = int(np.median(length)), int(np.median(host))
    if kernel_ns >= SLOW_KERNEL_NS and host_ns >= SLOW_HOST_NS:
        stage.audit.add(
            "suspicious_time_unit",
            "warning",
            stage.label,
            f"the median kernel takes {format_ns(kernel_ns)} and the median host event {format_ns(host_ns)}: times may be nanoseconds "
            "that were written where microseconds are defined; they were taken as defined",
            unreliable="every time, by a factor of 1000",
        )


def _check_count(stage: Stage) -> None:
    if stage.audit.has("event_limit"):
        return  # the format knows its exporter's
    counters = sum(batch.num_rows for batch in stage.batches("counters"))
    for count, what in (
        (stage.rows, "events"),
        (stage.rows + counters, "events and counter samples"),
    ):
        if count % ROUND_EVENTS == 0:
            stage.audit.add(
                "event_limit",
                "warning",
                stage.label,
                f"has exactly {count:,} {what}: exporters that stop at such a number leave no mark in the file, so the end is "
                "probably missing",
                unreliable="totals, everything towards the end, missing lanes",
                example=f"{count:,}",
            )
            return


def _check_ends(stage: Stage, events: _Events) -> None:
    """Devices that fall silent long before the profile ends, although they never paused as long before."""
    owner = _owners(stage)[events.timeline]
    for group, stop_ns in stops_early(owner, events.start, events.end, events.last_ns):
        is_own = owner == group
        others = int((events.start[~is_own] > stop_ns).sum())
        host = int((events.host_starts > stop_ns).sum())
        if others + host < MANY or others + host < 0.01 * (len(owner) + len(events.host_starts)):
            continue
        span = max(1, events.last_ns - events.first_ns)
        name = stage.timelines[group].name
        stage.audit.add(
            "lanes_stop_early",
            "warning",
            stage.label,
            f"all lanes of a device stop {format_ns(events.last_ns - stop_ns)} ({format_percent((events.last_ns - stop_ns) / span)}) "
            "before the profile ends, longer than they ever paused: their last events may be missing",
            unreliable="idle time, and everything towards the end",
            example=f"{name} at {stop_ns} ns",
        )


def _owners(stage: Stage) -> Ints:
    """The chip above each timeline, else the topmost one."""
    found = np.arange(len(stage.timelines))
    for number in range(len(stage.timelines)):
        at, hops = number, 0
        while (
            stage.timelines[at].kind != "chip"
            and stage.timelines[at].parent is not None
            and hops < 64
        ):
            at, hops = int(stage.timelines[at].parent or 0), hops + 1
        found[number] = at
    return found


def _check_counters(stage: Stage) -> None:
    units = [t.unit for t in stage.timelines]
    is_fraction = np.array([u == "fraction" for u in units], bool)
    not_negative = np.array([u in NEVER_NEGATIVE for u in units], bool)
    count, worst, example = 0, 0.0, ""
    for batch in stage.batches("counters"):
        timeline, value = batch["timeline"].to_numpy(), batch["value"].to_numpy()
        off = np.maximum(
            np.where(is_fraction[timeline], value - 1 - TOLERANCE, 0.0),
            np.where(not_negative[timeline], -value, 0.0),
        )
        off = np.where(np.isfinite(value), off, np.inf)
        count += int((off > 0).sum())
        place = int(off.argmax())
        if off[place] > worst:
            worst = float(off[place])
            t = stage.timelines[int(timeline[place])]
            at = int(batch["timestamp_ns"][place].as_py())
            example = f"{t.name} = {value[place]:g} ({t.unit}) at {at} ns"
    stage.audit.add(
        "counter_out_of_range",
        "warning",
        stage.label,
        "counter samples are outside of what their unit allows (a fraction above 1, anything below 0); they were kept as they are",
        unreliable="the counters concerned",
        count=count,
        example=example,
    )
