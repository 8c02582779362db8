"""Which execution traces are a workload? One a rank, and the JSON file of groups beside them, as ASTRA-sim takes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trnprof.emulator.capture.chakra import encode, schema
from trnprof.emulator.capture.chakra.dataflow import Waits, waits_of
from trnprof.emulator.collectives.messages import ALL_GATHER, BARRIER, PERMUTE, SEND_RECV
from trnprof.emulator.given import LOAD, ON_HOST, STORE, given_cost
from trnprof.emulator.ranks.classes import owners
from trnprof.emulator.workload import CollectiveCall, Operation, Workload
from trnprof.tracer.errors import CaptureError, OutputExistsError
from trnprof.tracer.files import directory_beside

NAME: Final = "workload"
GROUPS_NAME: Final = "groups.json"
_BARRIER_BYTES: Final = 4
"""A rank's part of the all-reduce that stands for a barrier, which ASTRA-sim does not know."""

_TYPES: Final = {LOAD: schema.MEM_LOAD, STORE: schema.MEM_STORE}


@dataclass(frozen=True)
class ChakraSummary:
    """What was written.

    Attributes:
        ranks: files.
        nodes: of one rank, of several programs the most.
        groups: of ranks, beside that of all.
        nbytes: of all files.
        ragged: collectives whose ranks exchange different amounts, which a node cannot say: it has the sum.
    """

    ranks: int
    nodes: int
    groups: int
    nbytes: int
    ragged: int


def export_chakra(workload: Workload, output: Path, *, force: bool) -> ChakraSummary:
    """Write a workload as the directory of its execution traces: ``workload.0.et``, …, and ``groups.json`` if it has groups of some ranks.

    Raises:
        CaptureError: nothing in it computes or communicates.
        OutputExistsError: the directory is there and may not be replaced.
        WriteError: it could not be written.
    """
    _check_output(output, force=force)
    group_ids: dict[tuple[int, ...], int] = {}
    programs = (workload, *workload.others)
    writers = [_Writer(program, group_ids, len(programs) == 1) for program in programs]
    if not any(any(writer.works) for writer in writers):
        raise CaptureError("the workload holds no device operation: nothing to export")
    nbytes = 0
    with directory_beside(output, force=force) as folder:
        for rank, number in enumerate(owners(programs)):
            content = writers[number].content(rank)
            (folder / f"{NAME}.{rank}.et").write_bytes(content)
            nbytes += len(content)
        if group_ids:
            groups = {str(number): list(ranks) for ranks, number in group_ids.items()}
            (folder / GROUPS_NAME).write_text(json.dumps(groups) + "\n")
    return ChakraSummary(
        ranks=workload.world.size,
        nodes=max(sum(writer.works) for writer in writers),
        groups=len(group_ids),
        nbytes=nbytes,
        ragged=sum(
            bool(op.collective and (op.collective.sent_bytes or op.collective.received_bytes))
            for program in programs
            for op in program.operations
        ),
    )


def _check_output(output: Path, *, force: bool) -> None:
    """Refuse to replace anything but an earlier export."""
    if not output.exists():
        return
    is_export = output.is_dir() and all(
        entry.suffix == ".et" or entry.name == GROUPS_NAME for entry in output.iterdir()
    )
    if not is_export:
        raise OutputExistsError(
            f"{output} is there and is no export of this kind; choose another path"
        )
    if not force:
        raise OutputExistsError(
            f"{output} exists; give --force to replace it, or choose another path"
        )


@dataclass
class _Writer:
    """Turns operations into nodes: operation i has the id 2 i, and what it receives 2 i + 1.

    Attributes:
        workload: what is written, of the ranks of one program.
        group_ids: numbers of groups of some ranks, of all programs.
        is_alone: whether all ranks run this program: messages are then numbered by their operations, else by their ends.
        works: which operations have nodes.
        waits: for what.
    """

    workload: Workload
    group_ids: dict[tuple[int, ...], int]
    is_alone: bool
    works: list[bool] = field(init=False)
    waits: list[Waits] = field(init=False)
    _common: list[bytes] = field(default_factory=list)
    _tags: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many messages from one rank to another came before: both number them so."""

    def __post_init__(self) -> None:
        operations = self.workload.operations
        self.works = [_works(op) for op in operations]
        self.waits = waits_of(operations, self.works)
        self._receives = {
            position
            for position, op in enumerate(operations)
            if op.collective and op.collective.kind in (SEND_RECV, PERMUTE)
        }
        for group in self.workload.groups:
            for ranks in (group.ranks, *group.siblings):
                if len(ranks) not in (1, self.workload.world.size):
                    self.group_ids.setdefault(ranks, len(self.group_ids) + 1)
        self._common = [
            self._computing(position, op) if op.collective is None and self.works[position] else b""
            for position, op in enumerate(operations)
        ]

    def content(self, rank: int) -> bytes:
        """The file of a rank."""
        parts = list(self._common)
        self._tags = Counter()
        for position, op in enumerate(self.workload.operations):
            if op.collective is not None:
                parts[position] = self._communicating(position, op, op.collective, rank)
        return encode.metadata() + b"".join(parts)

    def _computing(self, position: int, op: Operation) -> bytes:
        cost = given_cost(op)
        if cost is None:
            tensors = {ref.tensor: ref.nbytes for ref in (*op.inputs, *op.outputs)}
            work = _work(op.model_flops, sum(tensors.values()))
            return self._node(position, op, schema.COMP, work)
        duration_us = round(cost.duration_ps / 1e6)
        if cost.what == ON_HOST:
            attributes: dict[int, int | bool | str] = {schema.IS_CPU_OP: True}
            return self._node(position, op, schema.COMP, attributes, duration_us=duration_us)
        kind = _TYPES.get(cost.what, schema.COMP)
        work = _work(cost.flops, cost.nbytes)
        return self._node(position, op, kind, work, duration_us=duration_us)

    def _communicating(
        self, position: int, op: Operation, call: CollectiveCall, rank: int
    ) -> bytes:
        """The node of a collective for a rank, or those by which it sends and receives; one without work if it does neither."""
        group = self.workload.groups[call.group]
        own = [ranks for ranks in (group.siblings or (group.ranks,)) if rank in ranks]
        if call.kind in (SEND_RECV, PERMUTE):
            return self._messages(position, op, call, own, rank)
        if not own or len(own[0]) == 1:
            return self._node(position, op, schema.COMP, _work(0, 0))
        kind, nbytes = call.kind, call.nbytes
        if kind == BARRIER:
            kind, nbytes = "all_reduce", _BARRIER_BYTES * len(own[0])
        elif kind == ALL_GATHER:
            nbytes = -(-nbytes // len(own[0]))
        attributes: dict[int, int | bool | str] = {
            schema.IS_CPU_OP: False,
            schema.COMM_TYPE: schema.WRITTEN_KINDS[kind],
            schema.COMM_SIZE: nbytes,
        }
        if own[0] in self.group_ids:
            attributes[schema.PG_NAME] = str(self.group_ids[own[0]])
        return self._node(position, op, schema.COMM_COLL, attributes)

    def _messages(
        self,
        position: int,
        op: Operation,
        call: CollectiveCall,
        groups: Sequence[tuple[int, ...]],
        rank: int,
    ) -> bytes:
        pairs = [pair for ranks in groups for pair in _pairs(call, ranks)]
        targets = [target for source, target in pairs if source == rank != target]
        sources = [source for source, target in pairs if target == rank != source]
        common: dict[int, int | bool | str] = {
            schema.IS_CPU_OP: False,
            schema.COMM_SIZE: call.nbytes,
        }
        if targets:
            ends = self._ends(position, rank, targets[0])
            sent = self._node(position, op, schema.COMM_SEND, common | ends)
        else:
            sent = self._node(position, op, schema.COMP, _work(0, 0))
        if sources:
            ends = self._ends(position, sources[0], rank)
            received = self._node(position, op, schema.COMM_RECV, common | ends, is_second=True)
        else:
            received = self._node(position, op, schema.COMP, _work(0, 0), is_second=True)
        return sent + received

    def _ends(self, position: int, source: int, target: int) -> dict[int, int]:
        self._tags[source, target] += 1
        tag = position if self.is_alone else self._tags[source, target]
        return {schema.COMM_TAG: tag, schema.COMM_SRC: source, schema.COMM_DST: target}

    def _node(
        self,
        position: int,
        op: Operation,
        kind: int,
        attributes: Mapping[int, int | bool | str],
        *,
        duration_us: int = 0,
        is_second: bool = False,
    ) -> bytes:
        waits = self.waits[position]
        return encode.node(
            2 * position + is_second,
            op.name,
            kind,
            attributes,
            data=self._ids(waits.data),
            ctrl=self._ids(waits.ctrl),
            duration_us=duration_us,
        )

    def _ids(self, positions: Sequence[int]) -> list[int]:
        ids = [2 * position for position in positions]
        return ids + [2 * position + 1 for position in positions if position in self._receives]


def _works(op: Operation) -> bool:
    """Whether an operation moves, computes or waits."""
    if op.collective is not None or given_cost(op) is not None:
        return True
    return not op.is_view and any(ref.nbytes for ref in (*op.inputs, *op.outputs))


def _work(flops: float, nbytes: int) -> dict[int, int | bool | str]:
    return {
        schema.IS_CPU_OP: False,
        schema.NUM_OPS: round(flops),
        schema.TENSOR_SIZE: nbytes,
    }


def _pairs(call: CollectiveCall, ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Who sends to whom in a group."""
    count = len(ranks)
    if call.kind == PERMUTE:
        return [(ranks[at], ranks[(at + 1) % count]) for at in range(count)]
    target = call.target if call.target >= 0 else (call.root + 1) % count
    return [(ranks[call.root], ranks[target])]
