"""What did the GPUs of a rocprofv3 profile do: kernels, copies, graphs? And which memory was allocated?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.attribute_text import quoted
from trnprof.tracer.formats.rocpd.collectives import Collectives
from trnprof.tracer.formats.rocpd.copies import agent_memories
from trnprof.tracer.formats.rocpd.events import Events
from trnprof.tracer.formats.rocpd.lookup import UNNAMED, Words
from trnprof.tracer.formats.rocpd.session import COMMON, Place, Session
from trnprof.tracer.formats.rocpd.state import Gpu, Launches
from trnprof.tracer.formats.table_columns import attributes, fingerprint, nullable, spread
from trnprof.tracer.formats.table_groups import distinct
from trnprof.tracer.formats.tables import Bools, Ints, Rows

_SHAPE: Final = {
    "grid": ("grid_size_x", "grid_size_y", "grid_size_z"),
    "workgroup": ("workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
}
_ENDS: Final = ("dst_agent_id", "src_agent_id")
_NO_GPU: Final = "copies"
"""What the timeline beside a thread is called where copies lie that touch no GPU."""


@dataclass
class Device:
    """What is needed to stage device events of one set of tables.

    Attributes:
        kernel_words: names of kernels.
        unlinked, linked: device events without and with a call that launched them.
    """

    session: Session
    events: Events
    launches: Launches
    collectives: Collectives
    is_collective: Bools
    kernel_words: Words
    dispatched: list[tuple[Ints, int]]
    unlinked: int = 0
    linked: int = 0


def read_kernels(device: Device) -> None:
    """Stage kernels."""
    session, state = device.session, device.session.state
    shape = [c for columns in _SHAPE.values() for c in columns]
    known = COMMON | {*shape, "kernel_id", "region_name_id"}
    others = [c for c in session.columns("rocpd_kernel_dispatch") if c not in known]
    ints = ["kernel_id", "region_name_id", *shape, *others]
    for block in session.scan("rocpd_kernel_dispatch", ints):
        place = session.place(block)
        start, end = session.times(block)
        codes = device.kernel_words.codes(block.ints("kernel_id"), block.has("kernel_id"))
        of_collective = device.is_collective[codes]
        launch = _launch(device, block, place)
        first = state.stage.add_events(
            timeline=_streams(session, place, place.agent, ""),
            start_ns=start,
            end_ns=end,
            name=device.kernel_words.pick(codes),
            category=spread(["compute", "collective"], of_collective.astype(np.int64)),
            attributes=attributes(block, others, _SHAPE, _texts(device, block)),
            fingerprint=fingerprint(block, ["kernel_id", *shape, *others]),
            **device.collectives.add(
                device.kernel_words, codes, of_collective, place.process, start, end
            ),
        )
        device.dispatched.append((device.events.find(block), first))
        _link(device, launch, first)


def read_copies(device: Device) -> None:
    """Stage copies: on a timeline of copies beside their stream, or beside the thread where no GPU takes part."""
    session, state = device.session, device.session.state
    known = COMMON | {"name_id", "size", "region_name_id", *_ENDS}
    others = [c for c in session.columns("rocpd_memory_copy") if c not in known]
    for block in session.scan(
        "rocpd_memory_copy", ["name_id", "size", "region_name_id", *_ENDS, *others]
    ):
        place = session.place(block)
        start, end = session.times(block)
        codes = session.words.codes(block.ints("name_id"), block.has("name_id"))
        target, source = (block.ints(c, -1) for c in _ENDS)
        groups, at = distinct([codes, source, target])
        names = [str(session.words.words[int(codes[row])].as_py()) for row in at]
        ends = [
            agent_memories(session.agents, int(source[row]), int(target[row]), name)
            for row, name in zip(at, names, strict=True)
        ]
        gpu = np.array([_gpu_end(session, int(source[r]), int(target[r])) for r in at], np.int64)
        gpu = np.where(gpu[groups] < 0, place.agent, gpu[groups])
        launch = _launch(device, block, place)
        first = state.stage.add_events(
            timeline=_streams(session, place, gpu, " copies"),
            start_ns=start,
            end_ns=end,
            name=session.words.pick(codes),
            category="dma",
            bytes=nullable(block, "size"),
            source_memory=spread([a for a, _ in ends], groups),
            target_memory=spread([b for _, b in ends], groups),
            attributes=attributes(block, others, {}, _texts(device, block)),
            fingerprint=fingerprint(block, ["name_id", "size", *others]),
        )
        _link(device, launch, first)


def read_graphs(device: Device) -> None:
    """Stage launches of HIP graphs: ranges around what they launched, which is there too, so that they occupy nothing."""
    session = device.session
    table = "rocpd_graph_launch"
    others = [c for c in session.columns(table) if c not in COMMON]
    for block in session.scan(table, others):
        place = session.place(block)
        start, end = session.times(block)
        groups, at = distinct([place.process, place.agent])
        timelines = [
            _under_gpu(
                session, int(place.process[r]), int(place.agent[r]), "graphs", 1000, "module"
            )
            for r in at
        ]
        session.state.stage.add_events(
            timeline=np.asarray(timelines, np.int64)[groups],
            start_ns=start,
            end_ns=end,
            name="graph launch",
            category="host",
            attributes=attributes(block, others, {}),
        )


def read_allocations(device: Device) -> None:
    """Stage allocations of memory beside the threads that made them, and what they add up to on each GPU."""
    session, state = device.session, device.session.state
    parts: list[pl.DataFrame] = []
    table = "rocpd_memory_allocate"
    known = COMMON | {"type", "level", "size", "name_id", "region_name_id"}
    others = [c for c in session.columns(table) if c not in known]
    if "address" not in others:
        others.append("address")
    for block in session.scan(table, ["size", *others], ["type", "level"]):
        place = session.place(block)
        start, end = session.times(block)
        kind, level = (pl.Series(block.text(c)).cast(pl.String) for c in ("type", "level"))
        groups, at = distinct([place.process, place.thread])
        timelines = []
        for row in at.tolist():
            tid, name = session.thread_of(int(place.thread[row]))
            timelines.append(state.beside_thread(int(place.process[row]), tid, "memory", name))
        state.stage.add_events(
            timeline=np.asarray(timelines, np.int64)[groups],
            start_ns=start,
            end_ns=end,
            name=(kind.fill_null("memory") + " " + level.fill_null("")).str.strip_chars(),
            category="memory",
            bytes=nullable(block, "size"),
            attributes=attributes(block, others, {}, _texts(device, block)),
        )
        columns = {
            "process": place.process,
            "agent": place.agent,
            "at": end,
            "size": block.ints("size"),
        }
        frame = pl.DataFrame(columns | {"address": block.ints("address")})
        parts.append(frame.with_columns(kind.alias("kind"), (level == "SCRATCH").alias("scratch")))
    if parts:
        _count_memory(session, pl.concat(parts))


def _count_memory(session: Session, frame: pl.DataFrame) -> None:
    """Counters of allocated memory. What frees it says neither size nor, in some versions, GPU: the address tells both."""
    over = ("process", "address", "scratch")
    is_new = pl.col("kind") == "ALLOC"
    frame = frame.sort("at", maintain_order=True).with_columns(
        freed=pl.when(is_new).then("size").shift(1).over(over),
        owner=pl.when(is_new).then("agent").forward_fill().over(over),
    )
    frame = frame.with_columns(
        change=pl.when(is_new).then("size").when(pl.col("kind") == "FREE").then(-pl.col("freed"))
    ).drop_nulls("change")
    for (agent, scratch), rows in frame.group_by("owner", "scratch", maintain_order=True):
        gpu = session.agents.get(int(agent))
        name = ("scratch memory" if scratch else "allocated memory") + (
            "" if gpu else " of the host"
        )
        session.state.stage.add_counters(
            timeline=session.state.counter(gpu, name, "B"),
            timestamp_ns=rows["at"].to_numpy(),
            value=rows["change"].cum_sum().to_numpy().astype(float),
        )


def _streams(session: Session, place: Place, agent: Ints, suffix: str) -> Ints:
    """Timelines of streams, with what follows their name; without a GPU, beside the thread."""
    state = session.state
    groups, at = distinct(
        [place.process, agent, place.queue, place.stream, place.thread * (agent < 0)]
    )
    counts = np.bincount(groups, minlength=len(at)).tolist()
    numbers = []
    for group, row in enumerate(at.tolist()):
        process, queue, stream = (int(c[row]) for c in (place.process, place.queue, place.stream))
        gpu = session.agents.get(int(agent[row]))
        if gpu is None and suffix:
            tid, thread = session.thread_of(int(place.thread[row]))
            numbers.append(state.beside_thread(process, tid, _NO_GPU, thread))
            continue
        name = _stream_name(session, queue, stream) + suffix
        order = max(stream, 0)
        numbers.append(_under_gpu(session, process, int(agent[row]), name, order, "stream"))
        unit = (process, state.stage.timelines[numbers[-1]].chip or 0)
        state.unit_rows[unit] = state.unit_rows.get(unit, 0) + counts[group]
    return np.asarray(numbers, np.int64)[groups]


def _stream_name(session: Session, queue: int, stream: int) -> str:
    names = []
    if stream >= 0:
        names.append(session.streams.get(stream, f"stream {stream}"))
    if queue >= 0:
        names.append(session.queues.get(queue, f"queue {queue}"))
    return ", ".join(names) or "queue"


def _under_gpu(session: Session, process: int, agent: int, name: str, order: int, kind: str) -> int:
    gpu = session.agents.get(agent)
    if gpu is None:  # no such agent, or a CPU that is said to run kernels
        host = session.state.processes[process].node
        gpu = Gpu(*session.state.gpu_number(host, max(agent, 0)))
    is_exclusive = kind == "stream" and not name.endswith(" copies")
    return session.state.under_chip(process, gpu, name, order, kind, exclusive=is_exclusive)


def _gpu_end(session: Session, source: int, target: int) -> int:
    """The agent that a copy is shown on: the GPU it comes from, else the one it goes to, else -1."""
    ends = (a for a in (source, target) if session.agents.get(a) is not None)
    return next(ends, -1)


def _launch(device: Device, block: Rows, place: Place) -> Ints:
    event = device.events.find(block)
    found = device.launches.rows_of(place.process, *device.events.numbers(event, "stack_id"))
    if (found < 0).any():
        parent = device.events.numbers(event, "parent_stack_id")
        found = np.where(found < 0, device.launches.rows_of(place.process, *parent), found)
    return found


def _link(device: Device, launch: Ints, first: int) -> None:
    linked = int((launch >= 0).sum())
    device.linked += linked
    device.unlinked += len(launch) - linked
    device.session.state.link(launch, first)


def _texts(device: Device, block: Rows) -> Sequence[tuple[str, Any]]:
    """Further data of events, and the annotation that they were launched in."""
    words = device.session.words
    texts = [("extdata", device.events.extdata(block))]
    if block.has("region_name_id").any():
        codes = words.codes(block.ints("region_name_id"), block.has("region_name_id"))
        region = pl.Series(words.words.take(pa.array(codes)))
        texts.append(("region", quoted(region.replace(UNNAMED, None))))
    return texts
