"""What is each storage of a program for, and where does it come from? From what the operations do with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from trnprof.emulator.lowering.elementwise import base_name
from trnprof.emulator.lowering.movement import COPIES, JOINS, SHARDS
from trnprof.emulator.workload import Operation, TensorRef, Workload
from trnprof.tracer.memory_names import (
    ACTIVATIONS,
    BUFFERS,
    COLLECTIVES,
    GRADIENTS,
    HBM_USES,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    WORKSPACE,
)

_KEPT: Final = {
    "parameter": PARAMETERS,
    "optimizer_state": OPTIMIZER_STATE,
    "buffer": BUFFERS,
}
_MOVES: Final = JOINS | SHARDS | COPIES | {"zero", "fill"}
_SCALES: Final = frozenset(("mul", "div"))
"""What is exchanged may be multiplied on its way: gradients by one over the number of ranks."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation that first writes a storage; of what is there from the start, the first that touches it.

    Attributes:
        operator: its name, "" where the storage was there before.
        phase: of it.
        module_path, source_file, source_line: as ``Operation`` has them.
        dtype, shape: of the largest view that it touches.
    """

    operator: str
    phase: str
    module_path: str
    source_file: str
    source_line: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class _Uses:
    """What was seen of all storages.

    Attributes:
        roles: the last one.
        made_in: phase of the operation that first writes it.
        updates: the optimizer reads it.
        exchanged: a collective reads or writes it.
        computed: something else reads or writes it than collectives and operators that only move or scale data.
        of_parameters: nothing but parameters was moved into it.
        gathered: of_parameters that others sent.
        freed: it dies.
        has_optimizer: any phase is the optimizer.
    """

    roles: dict[int, str] = field(default_factory=dict)
    made_in: dict[int, str] = field(default_factory=dict)
    updates: set[int] = field(default_factory=set)
    exchanged: set[int] = field(default_factory=set)
    computed: set[int] = field(default_factory=set)
    of_parameters: set[int] = field(default_factory=set)
    gathered: set[int] = field(default_factory=set)
    freed: set[int] = field(default_factory=set)
    has_optimizer: bool = False

    def see(self, op: Operation) -> None:
        """Another operation."""
        self.freed.update(op.freed)
        if op.is_view and op.collective is None:
            return
        read = {ref.tensor for ref in op.inputs}
        written = {ref.tensor for ref in op.outputs}
        for ref in (*op.inputs, *op.outputs):
            self.roles[ref.tensor] = ref.role
        for storage in written:
            self.made_in.setdefault(storage, op.phase)
        if op.phase == "optimizer":
            self.has_optimizer = True
            self.updates |= read
        if op.collective is not None:
            self.exchanged |= read | written
            if op.collective.kind == "all_gather" and self._are_parameters(read):
                self.of_parameters |= written
                self.gathered |= written
        elif base_name(op.name) in _MOVES:
            sources = read - written
            if sources and self._are_parameters(sources):
                self.of_parameters |= written
                if sources <= self.gathered:
                    self.gathered |= written
        elif base_name(op.name) not in _SCALES:
            self.computed |= read | written

    def _are_parameters(self, storages: Collection[int]) -> bool:
        return all(s in self.of_parameters or self.roles[s] == "parameter" for s in storages)

    def category(self, storage: int) -> str:
        """What a storage is for."""
        role = self.roles[storage]
        if role in _KEPT:
            return _KEPT[role]
        is_kept = storage in self.updates if self.has_optimizer else storage not in self.freed
        if role == "gradient" and is_kept:
            return GRADIENTS
        if storage in self.gathered or storage in self.exchanged - self.computed:
            return COLLECTIVES
        if role == "input":
            return INPUTS
        is_forward = role == "activation" and self.made_in.get(storage, "forward") == "forward"
        return ACTIVATIONS if is_forward else WORKSPACE


def categories(program: Workload) -> dict[int, str]:
    """By storage, what it is for.

    Parameters, optimizer state and buffers are what the program calls so. Gradients are what the optimizer reads of what backward made (of a
    program without one: what is never freed). Collectives' buffers are what collectives read and write and nothing computes with, and the
    copies of parameters that others sent. What forward makes is an activation; what else backward and optimizer make is workspace.
    """
    uses = _Uses()
    for ref in program.resident:
        uses.roles[ref.tensor] = ref.role
    for op in program.operations:
        uses.see(op)
    return {storage: uses.category(storage) for storage in uses.roles}


def use_places(program: Workload) -> dict[int, int]:
    """By storage, the place in HBM_USES of what it is for."""
    return {storage: HBM_USES.index(use) for storage, use in categories(program).items()}


def origins(program: Workload, storages: Collection[int]) -> dict[int, Origin]:
    """By storage, where it comes from.

    Args:
        program: whose they are.
        storages: those asked for.
    """
    there = {ref.tensor: ref for ref in program.resident if ref.tensor in storages}
    missing = set(storages)
    found: dict[int, Origin] = {}
    for op in program.operations:
        if op.is_view:
            continue
        for ref in op.outputs:
            if ref.tensor in missing and ref.tensor not in there:
                found[ref.tensor] = _origin(op, op.name, ref)
        for ref in (*op.inputs, *op.outputs):
            if ref.tensor in missing and ref.tensor not in found:
                found[ref.tensor] = _origin(op, "", there.get(ref.tensor, ref))
        missing -= found.keys()
    never = {number: ref for number, ref in there.items() if number not in found}
    nothing = Operation("", "", 0, (), ())
    return found | {number: _origin(nothing, "", ref) for number, ref in never.items()}


def _origin(op: Operation, operator: str, ref: TensorRef) -> Origin:
    place = op.module_path, op.source_file, op.source_line
    return Origin(operator, op.phase, *place, ref.dtype, ref.shape)
