"""What do the ids in one set of rocprofv3's tables stand for: processes, threads, GPUs, queues, streams, names, times, events?

A database has a set of tables a process, each with the same suffix (``_`` and a UUID; none in early versions). Schemas differ in where a row says
its place (columns of its own, or a track) and its time (columns of its own, or rows of ``rocpd_timestamp``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from trnprof.tracer.formats.launcher_variables import stated_rank, stated_world_size
from trnprof.tracer.formats.rocpd.lookup import Lookup, Words
from trnprof.tracer.formats.rocpd.state import Gpu, Process, State
from trnprof.tracer.formats.tables import Bools, Ints, Rows, read_small
from trnprof.tracer.ingest.stage import UNFINISHED

_PLACES: Final = ("nid", "pid", "tid", "agent_id", "queue_id", "stream_id")
_TIMES: Final = ("start", "end", "start_id", "end_id", "timestamp", "timestamp_id")
COMMON: Final = frozenset((*_PLACES, *_TIMES, "id", "guid", "track_id", "event_id", "extdata"))
"""Columns that every table of events has, and that are read by ``Session.scan``."""
_MAX_JSON_BYTES: Final = 1 << 22
_MARK: Final = ("rocpd_kernel_dispatch", "rocpd_info_process", "rocpd_info_node", "rocpd_region")


def session_suffixes(names: Sequence[str]) -> list[str]:
    """What follows the names of tables of rocprofv3 in a database, for each set of tables.

    >>> session_suffixes(["rocpd_region_0a", "rocpd_info_node_0a", "rocpd_region_0b", "rocpd_api"])
    ['_0a', '_0b']
    """
    found = [n[len(m) :] for n in names for m in _MARK if n == m or n.startswith(m + "_")]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Place:
    """Where the rows of a block lie: number of the process in ``State.processes``, and ids, -1 where there is none."""

    process: Ints
    thread: Ints
    agent: Ints
    queue: Ints
    stream: Ints


@dataclass
class Session:
    """One set of tables.

    Attributes:
        state: the profile that it is part of.
        suffix: of the names of its tables.
        words: its strings.
        threads: id → thread id and name.
        agents: id → GPU; None for a CPU.
        queues, streams: id → name.
    """

    state: State
    suffix: str
    words: Words
    threads: dict[int, tuple[int, str]]
    agents: dict[int, Gpu | None]
    queues: dict[int, str]
    streams: dict[int, str]
    _processes: dict[int, int]
    _tracks: Mapping[str, tuple[Ints, Bools]] = field(default_factory=dict)
    _track_ids: Lookup = field(default_factory=lambda: Lookup(np.zeros(0, np.int64)))
    _stamp_ids: Lookup = field(default_factory=lambda: Lookup(np.zeros(0, np.int64)))
    _stamps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def table(self, name: str) -> str:
        """The name of a table in the file."""
        return name + self.suffix

    def columns(self, name: str) -> Sequence[str]:
        """The columns of a table, empty if there is no such table."""
        return self.state.tables.columns(self.table(name))

    def scan(
        self, name: str, ints: Sequence[str] = (), texts: Sequence[str] = ()
    ) -> Iterator[Rows]:
        """Blocks of rows of a table of events, with the columns that say place, time and event."""
        columns = [*_PLACES, *_TIMES, "track_id", "event_id", *ints]
        return self.state.tables.scan(self.table(name), ints=columns, texts=texts)

    def place(self, block: Rows) -> Place:
        """Where the rows of a block lie."""
        pid, thread, agent, queue, stream = (self._column(block, c) for c in _PLACES[1:])
        distinct, at = np.unique(pid, return_inverse=True)
        process = np.array([self._process(p) for p in distinct.tolist()], np.int64)[at]
        return Place(process, thread, agent, queue, stream)

    def track_column(self, block: Rows, name: str) -> tuple[Ints, Bools]:
        """A column of the tracks of the rows of a block, and where there is one."""
        nothing = np.zeros(block.count, np.int64), np.zeros(block.count, np.bool_)
        values, has = self._tracks.get(name, (nothing[0][:0], nothing[1][:0]))
        if not len(values):
            return nothing
        at = self._track_ids.find(block.ints("track_id"), block.has("track_id"))
        return values[at], has[at] & (at >= 0)

    def times(self, block: Rows) -> tuple[Ints, Ints]:
        """Start and end of each row, ``UNFINISHED`` where no end is known."""
        return self._time(block, "start", 0), self._time(block, "end", UNFINISHED)

    def instants(self, block: Rows) -> Ints:
        """The time of each row of samples."""
        return self._time(block, "timestamp", 0)

    def thread_of(self, id: int) -> tuple[int, str]:
        """Thread id and name."""
        return self.threads.get(id, (id, ""))

    def _time(self, block: Rows, name: str, missing: int) -> Ints:
        if name in block.numbers:
            return block.ints(name, missing)
        at = self._stamp_ids.find(block.ints(f"{name}_id"), block.has(f"{name}_id"))
        if not len(self._stamps):
            return np.full(block.count, missing, np.int64)
        return np.where(at < 0, missing, self._stamps[at])

    def _column(self, block: Rows, name: str) -> Ints:
        if name in block.numbers:
            return block.ints(name, -1)
        values, has = self.track_column(block, name)
        return np.where(has, values, -1)

    def _process(self, id: int) -> int:
        if id not in self._processes:
            self._processes[id] = len(self.state.processes)
            self.state.processes.append(Process(id, ""))
        return self._processes[id]

    def read_tracks(self) -> None:
        """Read tracks and time stamps, where the schema has them."""
        ints = ["id", *_PLACES, "name_id"]
        rows = read_small(self.state.tables, self.table("rocpd_track"), ints=ints)
        self._track_ids = Lookup(rows.ints("id"))
        self._tracks = {c: (rows.ints(c, -1), rows.has(c)) for c in ints[1:]}
        parts = [
            (block.ints("id"), block.ints("value"))
            for block in self.state.tables.scan(self.table("rocpd_timestamp"), ints=["id", "value"])
        ]
        if parts:
            ids, self._stamps = (np.concatenate(p) for p in zip(*parts, strict=True))
            self._stamp_ids = Lookup(ids)


def read_session(state: State, suffix: str) -> Session:
    """Read what the ids in a set of tables stand for, and what the set says of its host and its job."""
    tables = state.tables
    nodes = _nodes(state, suffix)
    processes = _read_processes(state, suffix, nodes)
    threads = read_small(tables, f"rocpd_info_thread{suffix}", ints=["id", "tid"], texts=["name"])
    known = zip(*(threads.list(c) for c in ("id", "tid", "name")), strict=True)
    session = Session(
        state,
        suffix,
        Words.read(tables, f"rocpd_string{suffix}", "string"),
        {i: (i if tid is None else tid, name or "") for i, tid, name in known if i is not None},
        _read_agents(state, suffix, nodes),
        _named(state, f"rocpd_info_queue{suffix}"),
        _named(state, f"rocpd_info_stream{suffix}"),
        processes,
    )
    session.read_tracks()
    _read_metadata(state, suffix)
    return session


def _named(state: State, table: str) -> dict[int, str]:
    rows = read_small(state.tables, table, ints=["id"], texts=["name"])
    pairs = zip(rows.list("id"), rows.list("name"), strict=True)
    return {i: name for i, name in pairs if i is not None and name}


def _nodes(state: State, suffix: str) -> dict[int, str]:
    """Id → host name, or what else tells the host; the first one is the profile's."""
    texts = ["hostname", "machine_id", "release", "version", "system_name"]
    rows = read_small(state.tables, f"rocpd_info_node{suffix}", ints=["id"], texts=texts)
    ids, hosts, machines, releases = (rows.list(c) for c in ("id", *texts[:3]))
    facts = state.stage.facts
    for host, release in zip(hosts, releases, strict=True):
        facts.host = facts.host or host or ""
        facts.metadata.setdefault("rocpd", {}).setdefault("os_release", release)
    return {i: host or machine or "" for i, host, machine in zip(ids, hosts, machines, strict=True)}


def _read_processes(state: State, suffix: str, nodes: Mapping[int, str]) -> dict[int, int]:
    table = f"rocpd_info_process{suffix}"
    rows = read_small(state.tables, table, ints=["id", "pid", "nid"], texts=["environment"])
    found: dict[int, int] = {}
    columns = (rows.list(c) for c in ("id", "pid", "nid", "environment"))
    for id, pid, node, environment in zip(*columns, strict=True):
        variables = parse_object(environment)
        size = stated_world_size(variables)
        state.stage.facts.world_size = state.stage.facts.world_size or size
        found[id] = len(state.processes)
        host, rank = nodes.get(node, ""), stated_rank(variables)
        state.processes.append(Process(id if pid is None else pid, host, rank))
    return found


def _read_agents(state: State, suffix: str, nodes: Mapping[int, str]) -> dict[int, Gpu | None]:
    """Id → GPU. GPUs of further hosts are numbered after those of the first."""
    ints, texts = ["id", "nid", "type_index", "absolute_index"], ["type", "product_name", "extdata"]
    table = f"rocpd_info_agent{suffix}"
    rows = read_small(state.tables, table, ints=ints, texts=texts)
    agents: dict[int, Gpu | None] = {}
    columns = (rows.list(c) for c in (*ints, *texts))
    for id, node, index, absolute, kind, model, extdata in zip(*columns, strict=True):
        if kind != "GPU":
            agents[id] = None
            continue
        host = nodes.get(node, "")
        place = next(i for i in (index, absolute, id, 0) if i is not None)
        told = parse_object(extdata)
        agents[id] = Gpu(
            *state.gpu_number(host, place),
            model or "",
            _memory_bytes(told),
            _positive(told.get("cu_count")),
        )
    return agents


def _read_metadata(state: State, suffix: str) -> None:
    rows = read_small(state.tables, f"rocpd_metadata{suffix}", texts=["tag", "value"])
    pairs = dict(zip(rows.list("tag"), rows.list("value"), strict=True))
    told = state.stage.facts.metadata.setdefault("rocpd", {})
    told.setdefault("schema_version", pairs.get("schema_version"))
    state.stage.audit.add(
        "compressed_extdata",
        "note",
        state.where(f"rocpd_metadata{suffix}"),
        "further data of events is compressed and was left out: names of markers are missing",
        unreliable="names of markers",
        count=int("compression" in pairs),
        example=str(pairs.get("compression")),
    )


def parse_object(text: str | None) -> dict[str, Any]:
    """A JSON object; empty if it is none, or too large to be looked at."""
    if not text or len(text) > _MAX_JSON_BYTES:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _memory_bytes(told: Mapping[str, Any]) -> int | None:
    banks = told.get("mem_banks")
    sizes = (
        [b.get("size_in_bytes") for b in banks if isinstance(b, dict)]
        if isinstance(banks, list)
        else []
    )
    return max((s for s in sizes if isinstance(s, int) and s > 0), default=None)
