"""How is a PyTorch profile put together when all its events are read: operators, launches, collectives, steps, arrows?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.kineto.blocks import Reader, python_flags
from trnprof.tracer.formats.kineto.collectives import Collectives, Groups, add_collectives
from trnprof.tracer.formats.kineto.facts import describe_system, device_properties, read_facts
from trnprof.tracer.formats.kineto.kinds import LAST_RANGE, Kind, Row
from trnprof.tracer.formats.kineto.links import (
    FLOW_KINDS,
    LAUNCH_ARROWS,
    Arrows,
    Sides,
    bind_arrows,
    find_launches,
)
from trnprof.tracer.formats.kineto.messages import DTYPES
from trnprof.tracer.formats.kineto.nesting import (
    AUTOGRAD,
    OPTIMIZER,
    Enclosing,
    Ranges,
    Said,
    find_enclosing,
    module_paths,
)
from trnprof.tracer.formats.kineto.ops import Surroundings
from trnprof.tracer.formats.kineto.pairs import close_ranges
from trnprof.tracer.formats.kineto.places import Places
from trnprof.tracer.formats.kineto.ranks import assign_ranks
from trnprof.tracer.formats.kineto.state import Bools, Ints, State, counted
from trnprof.tracer.formats.kineto.steps import stage_steps
from trnprof.tracer.ingest.lanes import Order, in_order
from trnprof.tracer.schema import CATEGORIES

_FRAME: Final = re.compile(r"^(.*)\((\d{1,9})\): ")
_MODULE_NAME: Final = "nn.Module: "
_EVENT_DTYPES: Final = frozenset(name for name, _ in DTYPES.values())


@dataclass(frozen=True)
class _Rows:
    """All events by row of the stage.

    Attributes:
        start_ns, end_ns: times; an event without an end has one before its start.
        timeline: number.
        kind: ``Kind``.
        order: of all rows by group: threads of the host first, then rows of devices.
        threads: number of threads.
        host, device: for each place its group on the host and on a device, -1: none.
    """

    start_ns: Ints
    end_ns: Ints
    timeline: NDArray[np.int32]
    kind: NDArray[np.int8]
    order: Order
    threads: int
    host: Ints
    device: Ints


def finish(reader: Reader, header: Mapping[str, Any]) -> None:
    """Put together what was read.

    Args:
        reader: all blocks are staged.
        header: top-level members of the file.
    """
    state, places = reader.state, reader.places
    close_ranges(state)
    _tell_left_out(state)
    moved = _move_to_devices(state, places)
    properties = device_properties(header)
    gpus = places.finish(properties)
    reader.counters.finish()
    facts = state.stage.facts
    read_facts(header, state.stage.times("start_ns"), facts)
    facts.system = describe_system(properties, list(gpus.values()))
    if state.stage.rows:
        around, launch = _link(reader, moved)
        reader.spool.finish(_surroundings(state, around))
        _stage_ops_of_events(reader, header, around, launch)


def _move_to_devices(state: State, places: Places) -> list[int]:
    """Rows of devices, by the name of their process, on which lies nothing that has a category of the host."""
    candidates = places.device_like()
    if not candidates:
        return []
    kind = state.kind()
    timeline = state.stage.times("timeline")
    is_host = (kind <= LAST_RANGE) & (kind != Kind.OTHER)
    hosts = set(np.unique(timeline[is_host]).tolist())
    work = set(np.unique(timeline[kind == Kind.OTHER]).tolist())
    chosen = [track for track in candidates if track.timeline in work - hosts]
    for track in chosen:
        places.move_to_device(track)
    return [track.timeline for track in chosen]


def _link(reader: Reader, moved: list[int]) -> tuple[Enclosing, Ints]:
    """Stage launches, arrows and steps; what is around operators and calls, and the call that launched each piece of work."""
    state = reader.state
    rows = _rows(reader, moved)
    around = _enclosing(state, rows)
    process = reader.places.process_of()[rows.timeline]
    launch = _launches(state, rows, process)
    _stage_arrows(state, rows, launch)
    work, linked = state.work["row"], launch >= 0
    call_row = np.full(len(work), -1, np.int64)
    call_row[linked] = state.calls["row"][launch[linked]]
    state.stage.add_flows(call_row[linked], work[linked], "launch")
    _tell_unlinked(state, rows, linked)
    ranks = assign_ranks(state, reader.places, process[call_row[linked]], process[work[linked]])
    stage_steps(state, (rows.start_ns, rows.end_ns), (work, call_row), process, ranks)
    if moved:
        _set_categories(state, rows, moved)
    return around, launch


def _rows(reader: Reader, moved: list[int]) -> _Rows:
    state, places = reader.state, reader.places
    stage = state.stage
    start, end, timeline = (stage.times(name) for name in ("start_ns", "end_ns", "timeline"))
    kind = state.kind()
    if moved:
        kind[np.isin(timeline, moved) & (kind == Kind.OTHER)] = Kind.KERNEL
    count = len(places.processes)
    host, device = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    group_of = np.full(len(stage.timelines), -1, np.int64)
    threads = 0
    for track in places.of_row(Row.THREAD, Row.PYTHON):
        if host[track.place] < 0:
            host[track.place], threads = threads, threads + 1
        group_of[track.timeline] = host[track.place]
    groups = threads
    for track in places.of_row(Row.STREAM):
        device[track.place] = group_of[track.timeline] = groups
        groups += 1
    group_of[group_of < 0] = groups
    order = in_order(group_of[timeline].astype(np.int32), start, end, groups + 1)
    return _Rows(start, end, timeline, kind, order, threads, host, device)


def _enclosing(state: State, rows: _Rows) -> Enclosing:
    own = np.full(len(rows.kind), -1, np.int32)
    for gathered in (state.ops, state.calls, state.annotations):
        own[gathered["row"]] = np.arange(gathered.count, dtype=np.int32)
    own[state.python["row"]] = state.python["code"]
    message = np.full(state.ops.count, -1, np.int32)
    message[state.op_messages["op"]] = state.op_messages["message"]
    said = Said(
        state.ops["flags"],
        message,
        state.annotations["flags"],
        state.annotations["message"],
        python_flags(list(state.python_names)),
    )
    ranges = Ranges(rows.start_ns, rows.end_ns, rows.kind, own)
    return find_enclosing(rows.order, rows.threads, ranges, said, state.calls.count)


def _launches(state: State, rows: _Rows, process: Ints) -> Ints:
    """The call that launched each piece of device work: its number among the calls, -1: unknown."""
    calls, work = (
        Sides(g["correlation"], rows.start_ns[g["row"]], process[g["row"]])
        for g in (state.calls, state.work)
    )
    return find_launches(calls, work)


def _stage_arrows(state: State, rows: _Rows, launch: Ints) -> None:
    """Stage arrows; those of launches complete ``launch``, where a correlation tells nothing."""
    flows, categories = state.flows, state.flow_categories
    if not flows.count:
        return
    launches = np.isin(flows["category"], [categories[c] for c in LAUNCH_ARROWS if c in categories])
    missing = np.flatnonzero(launch < 0)
    chosen = ~launches if not len(missing) else np.ones(flows.count, bool)
    holds = (rows.kind <= LAST_RANGE) & (rows.kind != Kind.PYTHON)
    arrows = bind_arrows(
        flows, chosen, rows.order, (rows.start_ns, rows.end_ns, holds), (rows.host, rows.device)
    )
    words = list(categories)
    for code in np.unique(arrows.category).tolist():
        own = arrows.category == code
        source, target = arrows.source[own], arrows.target[own]
        if words[code] in LAUNCH_ARROWS:
            _add_launches(state, len(rows.kind), launch, source, target)
        else:
            state.stage.add_flows(source, target, FLOW_KINDS.get(words[code], "data"))
    _tell_lost(state, arrows)


def _add_launches(state: State, count: int, launch: Ints, source: Ints, target: Ints) -> None:
    """Take arrows from calls to work that has none."""
    call_of = np.full(count, -1, np.int64)
    call_of[state.calls["row"]] = np.arange(state.calls.count)
    work_of = np.full(count, -1, np.int64)
    work_of[state.work["row"]] = np.arange(state.work.count)
    fits = (call_of[source] >= 0) & (work_of[target] >= 0)
    fits[fits] &= launch[work_of[target[fits]]] < 0
    launch[work_of[target[fits]]] = call_of[source[fits]]


def _tell_lost(state: State, arrows: Arrows) -> None:
    state.stage.audit.add(
        "dangling_flows",
        "note",
        state.label,
        "arrows begin or end where no event is and were left out",
        unreliable="dependencies between events",
        count=arrows.lost,
    )


def _tell_unlinked(state: State, rows: _Rows, linked: Bools) -> None:
    is_kernel = state.work["kind"] == Kind.KERNEL
    lost = np.flatnonzero(~linked & is_kernel)
    if len(lost):
        row = int(state.work["row"][lost[0]])
        state.stage.audit.add(
            "unlinked_kernels",
            "note",
            state.label,
            "kernels have no launch in the profile; they were kept, and belong to no step and no operator",
            unreliable="launch delays, queue lengths, figures by step and operator",
            count=len(lost),
            example=f"kernel at {int(rows.start_ns[row])} ns",
            of=int(is_kernel.sum()),
        )


def _tell_left_out(state: State) -> None:
    counts = {phase: count for phase, count in state.left_out.items() if count}
    state.stage.audit.add(
        "unknown_phase",
        "warning",
        state.label,
        "events of phases that PyTorch does not write were left out; --format chrome reads them",
        unreliable="what these events say",
        count=sum(counts.values()),
        example=counted(counts),
    )


def _surroundings(state: State, around: Enclosing) -> Surroundings:
    names = list(state.python_names)
    modules = [name.removeprefix(_MODULE_NAME) for name in names]
    paths, path_of = module_paths(around.module_parent, around.module_code, modules)
    used, numbered = np.unique(around.op_source, return_inverse=True)
    lines = [_line(names[code]) if code >= 0 else (None, None) for code in used.tolist()]
    source = np.where(around.op_source < 0, -1, numbered).astype(np.int32)
    return Surroundings(
        around.op_parent,
        np.append(path_of, np.int32(-1))[around.op_module],
        source,
        (around.op_flags & AUTOGRAD) > 0,
        (around.op_flags & OPTIMIZER) > 0,
        paths,
        lines,
    )


def _line(name: str) -> tuple[str | None, int | None]:
    """File and line in the name of a Python function.

    >>> _line("train.py(12): step"), _line("<built-in method linear>")
    (('train.py', 12), (None, None))
    """
    found = _FRAME.match(name)
    return (found[1], int(found[2])) if found else (None, None)


def _stage_ops_of_events(
    reader: Reader, header: Mapping[str, Any], around: Enclosing, launch: Ints
) -> None:
    """Give operators, calls and device work their operation, and collectives theirs, with bytes and datatype."""
    state = reader.state
    op = np.full(state.stage.rows, -1, np.int32)
    op[state.ops["row"]] = np.arange(state.ops.count, dtype=np.int32)
    op[state.calls["row"]] = around.call_op
    of_work = _ops_of_work(state, around, launch)
    work = state.work["row"]
    op[work] = of_work
    found = _collectives(state, around, launch, of_work)
    groups = Groups()
    distributed = header.get("distributedInfo")
    groups.state(distributed.get("pg_config") if isinstance(distributed, Mapping) else None)
    said = add_collectives(state, reader.messages, groups, found, state.ops.count)
    if said is not None:
        op[work[found.work]] = np.arange(len(found.work), dtype=np.int32) + state.ops.count
        size = np.full(state.stage.rows, -1, np.int64)
        size[work] = state.work["bytes"]
        size[work[found.work]] = said["bytes"].fill_null(-1).to_numpy()
        state.stage.set_late("bytes", pa.array(size, mask=size < 0))
        _set_dtypes(state, work[found.work], said["dtype"])
    state.stage.set_late("op_id", pa.array(op.astype(np.uint32), mask=op < 0))


def _ops_of_work(state: State, around: Enclosing, launch: Ints) -> NDArray[np.int32]:
    """The operator that each piece of device work belongs to: by External id, else the one around its launch."""
    found = np.full(state.work.count, -1, np.int32)
    if len(around.call_op):
        found = np.where(launch >= 0, around.call_op[launch], -1).astype(np.int32)
    external = state.ops["external"]
    has = np.flatnonzero(external > 0)
    if len(has):
        ids, first, count = np.unique(external[has], return_index=True, return_counts=True)
        wanted = state.work["external"]
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        is_it = (ids[at] == wanted) & (count[at] == 1)
        found[is_it] = has[first[at[is_it]]]
    return found


def _collectives(
    state: State, around: Enclosing, launch: Ints, op: NDArray[np.int32]
) -> Collectives:
    """Kernels that are collectives, by their arguments, their launch, or their name."""
    message = state.work["message"].copy()
    is_kernel = state.work["kind"] == Kind.KERNEL
    found = is_kernel & ((message >= 0) | state.work["is_named"])
    if len(around.call_message):
        of_launch = np.where(launch >= 0, around.call_message[launch], -1)
        message = np.where((message < 0) & found, of_launch, message).astype(np.int32)
    chosen = np.flatnonzero(found)
    return Collectives(chosen, message[chosen], op[chosen])


def _set_dtypes(state: State, rows: Ints, dtypes: pl.Series) -> None:
    words = sorted(_EVENT_DTYPES.intersection(dtypes.unique()))
    if not words:
        return
    codes = np.full(state.stage.rows, -1, np.int8)
    numbers = dtypes.cast(pl.Enum(words), strict=False).to_physical()
    codes[rows] = numbers.cast(pl.Int8).fill_null(-1).to_numpy()
    column = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words))
    state.stage.set_late("dtype", column)


def _set_categories(state: State, rows: _Rows, moved: list[int]) -> None:
    """Events of a device that have no category of their own are its work."""
    known = {word: code for code, word in enumerate(CATEGORIES)}
    parts = []
    for batch in state.stage.batches("events"):
        column = batch["category"]
        words = np.array([known[w] for w in column.dictionary.to_pylist()], np.int8)
        parts.append(words[column.indices.to_numpy()])
    codes = np.concatenate(parts)
    codes[np.isin(rows.timeline, moved) & (codes == known["host"])] = known["compute"]
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(CATEGORIES))
    state.stage.set_late("category", column)
