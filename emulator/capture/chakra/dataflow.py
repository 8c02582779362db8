"""Which operations of a workload wait for which, and why? From the storages they read and write, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trnprof.emulator.collectives.messages import BARRIER
from trnprof.emulator.given import given_cost
from trnprof.emulator.workload import Operation


@dataclass(frozen=True, slots=True)
class Waits:
    """What one operation waits for, as positions in the workload.

    Attributes:
        data: those whose results it reads.
        ctrl: others: those that read what it overwrites, and the order in which the program is run.
    """

    data: tuple[int, ...]
    ctrl: tuple[int, ...]


@dataclass
class _Program:
    """How far the program has come.

    Attributes:
        writer: last operation that wrote a storage.
        readers: those that read it since.
        computing: the two last operations that are no collectives, the latest last.
        loose: collectives that no barrier or step has waited for.
        fence: the last barrier, or end of a step.
    """

    writer: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)
    computing: list[int] = field(default_factory=list)
    loose: list[int] = field(default_factory=list)
    fence: list[int] = field(default_factory=list)


def waits_of(operations: Sequence[Operation], works: Sequence[bool]) -> list[Waits]:
    """What each operation waits for.

    Computing operations follow one another; a collective is issued when the operation before it has begun, which is when the one before
    that has ended. A barrier waits for all before it and all behind it for the barrier, and so it is with the end of a step. Operations of a
    given cost wait for nothing but their tokens.

    Args:
        operations: in program order.
        works: which of them do something; the others (views) have no entry of their own and are waited for by nobody.
    """
    program = _Program()
    found: list[Waits] = []
    step = operations[0].step if operations else 0
    for position, op in enumerate(operations):
        if not works[position]:
            found.append(Waits((), ()))
            continue
        if op.step != step:
            program.fence = program.computing[-1:] + program.loose
            program.loose, step = [], op.step
        data = {program.writer[r.tensor] for r in op.inputs if r.tensor in program.writer}
        ctrl = _overwritten(program, op)
        if given_cost(op) is None:
            ctrl |= _order(program, op)
            _go_on(program, op, position)
        _touch(program, op, position)
        found.append(Waits(tuple(sorted(data)), tuple(sorted(ctrl - data))))
    return found


def _overwritten(program: _Program, op: Operation) -> set[int]:
    """Who wrote what it overwrites, and who read that since."""
    found: set[int] = set()
    for ref in op.outputs:
        if ref.tensor in program.writer:
            found.add(program.writer[ref.tensor])
        found.update(program.readers.get(ref.tensor, ()))
    return found


def _order(program: _Program, op: Operation) -> set[int]:
    call = op.collective
    if call is None:
        return {*program.computing[-1:], *program.fence}
    if call.kind == BARRIER:
        return {*program.computing[-1:], *program.loose, *program.fence}
    return {*program.computing[:-1], *program.fence}


def _go_on(program: _Program, op: Operation, position: int) -> None:
    if op.collective is None:
        program.computing = [*program.computing[-1:], position]
    elif op.collective.kind == BARRIER:
        program.loose, program.fence = [], [position]
    else:
        program.loose.append(position)


def _touch(program: _Program, op: Operation, position: int) -> None:
    for ref in op.inputs:
        program.readers.setdefault(ref.tensor, []).append(position)
    for ref in op.outputs:
        program.writer[ref.tensor] = position
        program.readers[ref.tensor] = []
