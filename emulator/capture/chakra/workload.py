"""Which workload is a set of Chakra execution traces? Nodes become operations of a given cost that wait for each other by tokens."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.alike import Meetings, guessed_siblings, meet
from trnprof.emulator.capture.chakra.decode_kernel import ABSENT
from trnprof.emulator.capture.chakra.groups import Groups, read_groups
from trnprof.emulator.capture.chakra.messages import with_messages
from trnprof.emulator.capture.chakra.programs import rank_programs
from trnprof.emulator.capture.chakra.trace import ExecutionTrace, read_trace
from trnprof.emulator.collectives.messages import ALL_GATHER, BARRIER, SEND_RECV
from trnprof.emulator.given import COMPUTE, LOAD, ON_HOST, STORE, GivenCost, given_arguments, token
from trnprof.emulator.workload import (
    CollectiveCall,
    Operation,
    ProcessGroup,
    TensorRef,
    Workload,
    WorkloadStep,
    World,
)
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.names import in_order, rank_in_name
from trnprof.tracer.units import counted

_PS_PER_US: Final = 1_000_000
_COMMUNICATION: Final = (schema.COMM_COLL, schema.COMM_SEND, schema.COMM_RECV)
_NUMBER: Final = re.compile(r"[._-](\d{1,7})\.et$")
_WHAT: Final = {schema.COMP: COMPUTE, schema.MEM_LOAD: LOAD, schema.MEM_STORE: STORE}
_NO_COST: Final = GivenCost(COMPUTE)
_EXPECTED: Final = "name the files of all ranks, or one and the JSON file of groups"


def read_workload(paths: Sequence[Path]) -> Workload:
    """The workload of execution traces, one a rank or one that stands for all, and of JSON files of groups among them.

    Ranks that do the same, each in its groups, are one program; those that do something else are ``others``.

    Raises:
        ProfileError: a file that is damaged or no execution trace; ranks that are missing; groups that nothing describes or that do not fit
            together; a collective that is not emulated.
    """
    groups: dict[str, tuple[int, ...]] = {}
    files = []
    for path in paths:
        if path.suffix.lower() == ".json":
            groups |= read_groups(path)
        else:
            files.append(path)
    if not files:
        raise ProfileError(f"{paths[0]}: no execution trace among the files; {_EXPECTED}")
    ranks = _ranks_of(files)
    if len(files) == 1:
        trace = read_trace(files[0])
        rank, world = _place(trace, ranks[0], groups)
        meetings = meet(trace, rank, groups, world)
        for met, elsewhere in meetings.elsewhere.items():
            elsewhere |= dict.fromkeys(guessed_siblings(met, groups))
        return _workload(trace, World(world, rank), meetings)
    by_rank = dict(zip(ranks, files, strict=True))
    _check_ranks(by_rank, groups)
    programs = rank_programs(by_rank, groups)
    is_one = len(programs) == 1
    first, *others = (
        _workload(p.trace, World(len(files), p.rank, () if is_one else p.members), p.meetings)
        for p in programs
    )
    return replace(first, others=tuple(others))


def _ranks_of(files: Sequence[Path]) -> list[int]:
    """The rank of each file: the number its name ends with or has behind "rank"; else its place among them."""
    twice = [path for path, count in Counter(map(os.path.realpath, files)).items() if count > 1]
    if twice:
        raise ProfileError(f"{twice[0]} is given more than once; give the file of each rank once")
    found = []
    for path in files:
        number = _NUMBER.search(path.name)
        found.append(int(number[1]) if number else rank_in_name(path.name))
    if None not in found and len(set(found)) == len(files):
        return [rank for rank in found if rank is not None]
    places = {path: place for place, path in enumerate(in_order(files))}
    return [places[path] for path in files]


def _check_ranks(by_rank: dict[int, Path], groups: Groups) -> None:
    count = len(by_rank)
    missing = [rank for rank in range(count) if rank not in by_rank]
    if missing:
        raise ProfileError(
            f"rank {missing[0]} is missing: there are files of ranks {min(by_rank)} to {max(by_rank)}, {count} in all; {_EXPECTED}"
        )
    highest = max((rank for ranks in groups.values() for rank in ranks), default=0)
    if highest >= count:
        raise ProfileError(
            f"the groups have ranks up to {highest}, and there are files of {count} ranks; {_EXPECTED}"
        )


def _place(trace: ExecutionTrace, named: int, groups: Groups) -> tuple[int, int]:
    """Rank and size of the world of a trace that is alone.

    Raises:
        ProfileError: it communicates, and nothing says with how many.
    """
    members = [rank for ranks in groups.values() for rank in ranks]
    communicates = np.isin(trace.columns.type, _COMMUNICATION)
    if communicates.any() and not members:
        raise trace.fail(
            int(np.flatnonzero(communicates)[0]),
            f'needs other ranks, and only one is there; {_EXPECTED} ({{"0": [0, 1, 2, 3]}})',
        )
    world = max(members, default=0) + 1
    return (named if named < world else 0), world


def _workload(trace: ExecutionTrace, world: World, meetings: Meetings) -> Workload:
    trace, received = with_messages(trace, meetings, world.size)
    builder = _Builder(trace, world, meetings, received)
    with _uncollected():
        for node in trace.order.tolist():
            builder.add(node)
    if not builder.operations:
        raise ProfileError(f"{trace.label}: nothing in it computes or communicates")
    return Workload(
        operations=tuple(builder.operations),
        steps=(WorkloadStep(0, "execution trace", "profiler"),),
        notes=tuple(builder.notes()),
        groups=tuple(builder.groups),
        world=world,
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles among millions of new objects, of which none is in one: that takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Plain(NamedTuple):
    """What is looked up of every node, as Python's own lists: those are faster one by one than arrays."""

    data: bytes
    types: list[int]
    places: list[int]
    durations_us: list[int]
    name_starts: list[int]
    name_ends: list[int]
    on_host: list[bool]
    flops: list[int]
    nbytes: list[int]
    offsets: list[int]
    dependencies: list[int]


def _plain(trace: ExecutionTrace) -> _Plain:
    """Tokens are numbered (``places``) as ids are ordered."""
    columns = trace.columns
    values = np.where(columns.values == ABSENT, 0, columns.values)
    return _Plain(
        data=trace.data.tobytes(),
        types=columns.type.tolist(),
        places=np.argsort(np.argsort(columns.id, kind="stable")).tolist(),
        durations_us=columns.duration_us.tolist(),
        name_starts=columns.names[:, 0].tolist(),
        name_ends=columns.names[:, 1].tolist(),
        on_host=(values[:, schema.IS_CPU_OP] != 0).tolist(),
        flops=values[:, schema.NUM_OPS].tolist(),
        nbytes=values[:, schema.TENSOR_SIZE].tolist(),
        offsets=columns.dependency_offsets.tolist(),
        dependencies=trace.dependencies.tolist(),
    )


@dataclass
class _Builder:
    """Operations of a trace, as far as they have been made.

    Attributes:
        trace: of the rank.
        world: its place.
        meetings: its groups.
        received: receives that only wait for the rank's own sends.
        groups: those that became groups of the workload.
        operations: so far.
        measured: how many nodes keep a measured duration.
        skipped: how many computing nodes have neither work nor duration.
    """

    trace: ExecutionTrace
    world: World
    meetings: Meetings
    received: frozenset[int]
    groups: list[ProcessGroup] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    measured: int = 0
    skipped: int = 0
    _plain: _Plain = field(init=False)
    _group_ids: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    _stands_for: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _tokens: dict[int, TensorRef] = field(default_factory=dict)
    _names: dict[bytes, str] = field(default_factory=dict)
    _arguments: dict[tuple[object, ...], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plain = _plain(self.trace)

    def add(self, node: int) -> None:
        """Append the operation of a node; one that does nothing stands for what it waits for."""
        kind = self._plain.types[node]
        waits_for = self._waits_for(node)
        if kind in _COMMUNICATION and node not in self.received:
            call = self._collective(node, kind)
            if call is not None:
                self._append(node, waits_for, _NO_COST, call)
                return
        cost = self._cost(node, kind)
        if cost is None:
            self._stands_for[node] = tuple(dict.fromkeys(waits_for))
        else:
            self._append(node, waits_for, cost, None)

    def notes(self) -> list[str]:
        """What should be said of the conversion."""
        found = []
        if self.measured:
            found.append(
                f"{counted(self.measured, 'node')} of the execution trace keep the duration that was measured, whatever the system"
            )
        if self.meetings.durations_differ:
            found.append(
                f"ranks were measured to take different times for the same; those of rank {self.world.rank} count"
            )
        if self.skipped:
            found.append(
                f"{counted(self.skipped, 'computing node')} of the execution trace say neither work nor duration: they take no time"
            )
        return found

    def _arguments_of(self, cost: GivenCost) -> Mapping[str, Any]:
        """Nodes of one cost share them: of a million nodes few differ."""
        key = (cost.what, cost.flops, cost.nbytes, cost.duration_ps)
        known = self._arguments.get(key)
        if known is None:
            known = self._arguments[key] = given_arguments(cost)
        return known

    def _waits_for(self, node: int) -> list[int]:
        plain, known = self._plain, self._stands_for
        sources = plain.dependencies[plain.offsets[node] : plain.offsets[node + 1]]
        if not known:
            return sources
        return [stand for source in sources for stand in known.get(source, (source,))]

    def _append(
        self, node: int, waits_for: Sequence[int], cost: GivenCost, call: CollectiveCall | None
    ) -> None:
        tokens = self._tokens
        tokens[node] = token(self._plain.places[node])
        self.operations.append(
            Operation(
                name=self._name(node),
                phase="",
                step=0,
                inputs=tuple(tokens[source] for source in dict.fromkeys(waits_for)),
                outputs=(tokens[node],),
                model_flops=cost.flops if cost.what == COMPUTE else 0.0,
                arguments=self._arguments_of(cost),
                collective=call,
            )
        )

    def _name(self, node: int) -> str:
        plain = self._plain
        text = plain.data[plain.name_starts[node] : plain.name_ends[node]]
        known = self._names.get(text)
        if known is None:
            kind = plain.types[node]
            known = text.decode("utf-8", "replace") or schema.TYPE_NAMES[kind].lower()
            self._names[text] = known
        return known

    def _cost(self, node: int, kind: int) -> GivenCost | None:
        """Of a node that does not communicate; None if it takes no time."""
        plain = self._plain
        duration_ps = plain.durations_us[node] * _PS_PER_US
        if plain.on_host[node]:
            if not duration_ps:
                return None
            self.measured += 1
            return GivenCost(ON_HOST, duration_ps=duration_ps)
        if kind not in _WHAT:
            return None
        nbytes, flops = plain.nbytes[node], plain.flops[node]
        if min(nbytes, flops, duration_ps) < 0:
            raise self.trace.fail(node, "has a negative size, amount of work or duration")
        if not (nbytes or flops or duration_ps):
            self.skipped += kind == schema.COMP
            return None
        self.measured += duration_ps > 0
        return GivenCost(_WHAT[kind], float(flops), nbytes, duration_ps)

    def _collective(self, node: int, kind: int) -> CollectiveCall | None:
        """What a node asks of other ranks; None if it is alone."""
        trace = self.trace
        met = self.meetings.own[node]
        nbytes = trace.value(node, schema.COMM_SIZE)
        if kind != schema.COMM_COLL:
            self._check_size(node, nbytes)
            if met[0] == met[1]:
                return None
            tag = f" {trace.value(node, schema.COMM_TAG)}" if self.meetings.has_tags else ""
            return CollectiveCall(SEND_RECV, self._group(met, f"pairs{tag}"), nbytes, 0, 1)
        number = trace.value(node, schema.COMM_TYPE)
        name = schema.KINDS.get(number)
        if name is None:
            known = 0 <= number < len(schema.COLLECTIVE_NAMES)
            called = schema.COLLECTIVE_NAMES[number] if known else "not known"
            raise trace.fail(
                node, f"is a collective of type {number} ({called}), which is not emulated"
            )
        if trace.value(node, schema.INVOLVED_DIM) and not trace.group_name(node):
            raise trace.fail(
                node,
                "goes along some dimensions of a network (involved_dim), whose sizes a trace does not say; name a group (pg_name)",
            )
        if name == BARRIER:
            nbytes = 0
        else:
            self._check_size(node, nbytes)
        if len(met) == 1:
            return None
        is_all = len(met) == self.world.size
        called = "world" if is_all else f"group {self.meetings.group_name(met)}"
        group = self._group(met, called)
        return CollectiveCall(name, group, nbytes * len(met) if name == ALL_GATHER else nbytes)

    def _check_size(self, node: int, nbytes: int) -> None:
        if nbytes <= 0:
            raise self.trace.fail(node, f"communicates {nbytes} bytes (comm_size)")

    def _group(self, met: tuple[int, ...], name: str) -> int:
        index = self._group_ids.setdefault((name, met), len(self.groups))
        if index == len(self.groups):
            self.groups.append(ProcessGroup(name, met, tuple(self.meetings.elsewhere[met])))
        return index
