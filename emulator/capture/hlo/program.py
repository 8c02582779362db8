"""Which operations does a compiled function run on one device, each time it is called?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trnprof.emulator.capture.hlo.control import walk_computation
from trnprof.emulator.capture.hlo.donation import in_donated_memory
from trnprof.emulator.capture.hlo.module import Instruction, Module
from trnprof.emulator.capture.hlo.names import is_differentiated
from trnprof.emulator.capture.hlo.order import heavy_computations, program_order
from trnprof.emulator.capture.hlo.roles import roles_of
from trnprof.emulator.capture.hlo.values import BACKWARD, FORWARD, OPTIMIZER, Groups, Value, Walk
from trnprof.emulator.workload import Operation, TensorRef


@dataclass(frozen=True)
class Program:
    """A compiled function, as what one rank does.

    Attributes:
        name: of the function.
        operations: their tensors are numbered: parameters first, then constants and what is made; ``freed`` tells what died within.
        parameters: tensors of the arguments.
        results: tensors of the results; None of what has no memory.
        phases: in which each result was made.
        constants: tensors that are part of the program.
        left: what dies when the last operation has run.
        groups: own ranks and those of all groups, by index.
        differentiates: whether it computes gradients.
        multiplies: whether it has matrix products.
        notes: what people should know of it.
    """

    name: str
    operations: tuple[Operation, ...]
    parameters: tuple[TensorRef, ...]
    results: tuple[TensorRef | None, ...]
    phases: tuple[str, ...]
    constants: tuple[TensorRef, ...]
    left: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], Groups], ...]
    differentiates: bool
    multiplies: bool
    notes: tuple[str, ...]


def program_of(module: Module, replicas: int = 1, partitions: int = 1, rank: int = 0) -> Program:
    """What a device does when the program is called.

    Args:
        module: the program of one device.
        replicas: copies of the program.
        partitions: devices of each.
        rank: of the device: replica x partitions + partition.
    """
    heavy = heavy_computations(module)
    orders = {n: program_order(c, heavy) for n, c in module.computations.items()}
    walk = Walk(module, orders, heavy, replicas, partitions, rank)
    entry = module.computations[module.entry]
    arguments = [Value(p.shape, walk.new_ref(p.shape, "input")) for p in entry.parameters]
    parameters = [value.ref for value in arguments if value.ref is not None]
    walk.protected = set(range(len(parameters))) - {*module.aliases.values(), *module.donors}
    result = walk_computation(walk, module.entry, arguments)
    root = entry.instructions[entry.root]
    values = result.parts if result.parts is not None else (result,)
    results = tuple(_result(walk, root, value) for value in values)
    phases = tuple(FORWARD if r is None else walk.origin.get(r.tensor, FORWARD) for r in results)
    operations, results = in_donated_memory(
        _for_the_optimizer(walk.operations), results, parameters, module
    )
    roles = roles_of(operations, parameters, [p.op_name for p in entry.parameters])
    held = {r.tensor for r in (*parameters, *walk.constants, *results) if r is not None}
    operations = [_with_roles(op, roles) for op in operations]
    operations, left = _with_deaths(operations, held)
    return Program(
        module.name.removeprefix("jit_"),
        tuple(operations),
        tuple(replace(ref, role=roles.get(ref.tensor, ref.role)) for ref in parameters),
        results,
        phases,
        tuple(walk.constants),
        left,
        tuple(walk.groups),
        any(
            is_differentiated(i.op_name)
            for c in module.computations.values()
            for i in c.instructions.values()
        )
        or any(op.phase == BACKWARD for op in operations),
        heavy[module.entry],
        tuple(walk.notes),
    )


def _result(walk: Walk, root: Instruction, value: Value) -> TensorRef | None:
    """Where a result lies; what is only known or broadcast is written out."""
    if not value.shape.dtype:
        return None
    value = walk.stored(root, value)
    assert value.ref is not None
    return value.ref


def _for_the_optimizer(operations: list[Operation]) -> list[Operation]:
    """What only the optimizer reads belongs to it: momentum that decays, a learning rate."""
    readers: dict[int, set[str]] = {}
    told: list[Operation] = []
    for op in reversed(operations):
        reading = set().union(*(readers.get(ref.tensor, ()) for ref in op.outputs))
        if op.phase == FORWARD and reading == {OPTIMIZER}:
            op = replace(op, phase=OPTIMIZER)
        told.append(op)
        for ref in op.inputs:
            readers.setdefault(ref.tensor, set()).add(op.phase)
    return told[::-1]


def _with_roles(op: Operation, roles: Mapping[int, str]) -> Operation:
    def told(refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
        return tuple(replace(r, role=roles[r.tensor]) if r.tensor in roles else r for r in refs)

    return replace(op, inputs=told(op.inputs), outputs=told(op.outputs))


def _with_deaths(
    operations: list[Operation], held: set[int]
) -> tuple[list[Operation], tuple[int, ...]]:
    """Each operation with the tensors that nobody reads after the one before it."""
    last: dict[int, int] = {}
    for position, op in enumerate(operations):
        for ref in (*op.inputs, *op.outputs):
            if ref.tensor not in held:
                last[ref.tensor] = position
    dead: dict[int, list[int]] = {}
    for tensor, position in last.items():
        dead.setdefault(position + 1, []).append(tensor)
    mortal = [replace(op, freed=tuple(dead.get(i, ()))) for i, op in enumerate(operations)]
    return mortal, tuple(dead.get(len(operations), ()))
