"""Which rows does one call of a compiled function add to the log? Its operations, with the numbers of the tensors of this call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trnprof.emulator.capture.hlo.program import Program
from trnprof.emulator.capture.hlo.values import BACKWARD, OPTIMIZER
from trnprof.emulator.capture.jax_arrays import Arrays, array_of
from trnprof.emulator.capture.replay import operation_row
from trnprof.emulator.capture.store import Row
from trnprof.emulator.workload import Operation, TensorRef

RESIDENT_ROLES = ("parameter", "optimizer_state", "buffer")


class Template:
    """A program, ready to be written as often as it is called.

    Attributes:
        program: what it does.
        groups: number of each of its groups in the log.
    """

    def __init__(self, program: Program, groups: Sequence[int]) -> None:
        self.program = program
        self.groups = tuple(groups)
        self._rows = [operation_row(_in_groups(op, groups)) for op in program.operations]
        refs = [r for op in program.operations for r in (*op.inputs, *op.outputs)]
        refs += [r for r in (*program.parameters, *program.constants, *program.results) if r]
        self._tensors = 1 + max((r.tensor for r in refs), default=-1)
        self._constants: dict[int, int] = {}

    def call(
        self,
        arrays: Arrays,
        arguments: Sequence[Any],
        results: Sequence[Any],
        step: int,
        told: Callable[[TensorRef, int, bool], object],
    ) -> list[Row]:
        """Rows of one call.

        Args:
            arrays: what arrays are.
            arguments: of the call, as the program has its parameters.
            results: what it returned.
            step: the step it belongs to.
            told: of the role of a tensor, its number, and whether it was there before anything made it.
        """
        program = self.program
        first = arrays.new_numbers(self._tensors)
        numbers = list(range(first, first + self._tensors))
        passing = self._place_arguments(arrays, arguments, numbers, told)
        self._place_constants(numbers, told)
        is_update = self._is_update(arrays, numbers)
        dead = arrays.take_dead() if self._rows else []
        rows = self._numbered(numbers, step, dead, is_update)
        for array in arguments:
            if getattr(array, "is_deleted", bool)():
                arrays.give_up(array)
        for value, ref, phase in zip(results, program.results, program.phases, strict=False):
            if ref is None:
                continue
            number = numbers[ref.tensor]
            arrays.adopt(array_of(value), number)
            if is_update or phase == BACKWARD:
                arrays.late.add(number)
            else:
                arrays.late.discard(number)
        kept = {numbers[ref.tensor] for ref in program.results if ref is not None}
        arrays.dead = [number for number in arrays.dead if number not in kept]
        arrays.dead += [numbers[tensor] for tensor in program.left]
        arrays.dead += [number for number in passing if number not in kept]
        return rows

    def _place_arguments(
        self,
        arrays: Arrays,
        arguments: Sequence[Any],
        numbers: list[int],
        told: Callable[[TensorRef, int, bool], object],
    ) -> list[int]:
        """Numbers of the arguments; those of what the host passes by value live for this call."""
        passing = []
        for ref, array in zip(self.program.parameters, arguments, strict=False):
            known = arrays.number(array)
            is_new = known is None
            if known is not None:
                numbers[ref.tensor] = known
            elif hasattr(array, "sharding"):
                arrays.adopt(array, numbers[ref.tensor])
            else:
                passing.append(numbers[ref.tensor])
                continue
            if ref.role in RESIDENT_ROLES:
                told(ref, numbers[ref.tensor], is_new)
        return passing

    def _place_constants(
        self, numbers: list[int], told: Callable[[TensorRef, int, bool], object]
    ) -> None:
        for ref in self.program.constants:
            if ref.tensor not in self._constants:
                self._constants[ref.tensor] = numbers[ref.tensor]
                told(ref, numbers[ref.tensor], True)
            numbers[ref.tensor] = self._constants[ref.tensor]

    def _is_update(self, arrays: Arrays, numbers: Sequence[int]) -> bool:
        """A function of its own that works on gradients, without products and derivatives, is the optimizer's."""
        program = self.program
        if program.differentiates or program.multiplies:
            return False
        return any(numbers[ref.tensor] in arrays.late for ref in program.parameters)

    def _numbered(
        self, numbers: Sequence[int], step: int, dead: list[int], is_update: bool
    ) -> list[Row]:
        rows = []
        for row in self._rows:
            freed = [numbers[t] for t in row.freed] if row.freed else []
            changed = row._replace(
                tensor=[numbers[t] for t in row.tensor],
                step=step,
                freed=dead + freed if dead else freed,
            )
            dead = []
            rows.append(changed._replace(phase=OPTIMIZER) if is_update else changed)
        return rows


def _in_groups(op: Operation, groups: Sequence[int]) -> Operation:
    """The operation with the group's number in the log."""
    call = op.collective
    if call is None:
        return op
    return replace(op, collective=replace(call, group=groups[call.group]))
