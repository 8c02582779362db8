"""What does an instruction of HLO work on, and what becomes of it? Values while a program is walked, and the operations found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.capture.hlo.module import Instruction, Module, Shape
from trnprof.emulator.capture.hlo.names import is_backward, is_differentiated, module_path
from trnprof.emulator.workload import CollectiveCall, Operation, TensorRef

Groups = tuple[tuple[int, ...], ...]
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
KNOWN_ELEMENTS: Final = 1024
"""Integers that the program computes from constants are followed up to this size: loop counters, offsets of a device."""


@dataclass(frozen=True, slots=True)
class Value:
    """The result of an instruction.

    Attributes:
        shape: as XLA has it.
        ref: where it lies; None of what needs no memory (constants, counters, tokens, tuples).
        parts: of a tuple.
        known: its elements, where they follow from constants.
        repeats: the ref is smaller: it is read again and again (a broadcast).
    """

    shape: Shape
    ref: TensorRef | None = None
    parts: tuple[Value, ...] | None = None
    known: NDArray[Any] | None = None
    repeats: bool = False


@dataclass
class Walk:
    """The walk through a program.

    Attributes:
        module: the program.
        orders: instructions of each computation, in the order in which they run.
        heavy: whether a computation has matrix products.
        replicas, partitions: copies of the program, and devices of each.
        rank: of them, the one that is followed.
        protected: parameters whose memory the program may not overwrite.
        operations: found so far; tensors are numbered from 0, parameters first.
        constants: tensors that are part of the program.
        groups: of its collectives: own ranks and those of all groups.
        notes: what is not as it should be.
        late: storages that hold what backward or the optimizer made.
        origin: phase in which a storage was last written.
    """

    module: Module
    orders: Mapping[int, tuple[int, ...]]
    heavy: Mapping[int, bool]
    replicas: int
    partitions: int
    rank: int
    protected: set[int] = field(default_factory=set)
    operations: list[Operation] = field(default_factory=list)
    constants: list[TensorRef] = field(default_factory=list)
    groups: list[tuple[tuple[int, ...], Groups]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    origin: dict[int, str] = field(default_factory=dict)
    tensors: int = 0

    def new_ref(self, shape: Shape, role: str = "activation") -> TensorRef:
        """A tensor of its own."""
        number, self.tensors = self.tensors, self.tensors + 1
        return TensorRef(number, shape.dims, shape.dtype, shape.nbytes, shape.nbytes, role)

    def emit(
        self,
        ins: Instruction,
        name: str,
        inputs: Sequence[TensorRef | None],
        outputs: Sequence[TensorRef],
        arguments: Mapping[str, Any] = {},
        *,
        flops: float = 0.0,
        collective: CollectiveCall | None = None,
    ) -> None:
        """One operation."""
        read = tuple(ref for ref in inputs if ref is not None)
        phase = self._phase(ins, read, collective is not None)
        for ref in outputs:
            self.origin[ref.tensor] = phase
        self.operations.append(
            Operation(
                name,
                phase,
                0,
                read,
                tuple(outputs),
                module_path=module_path(ins.op_name),
                source_file=ins.source_file,
                source_line=ins.source_line,
                model_flops=flops,
                arguments=arguments,
                collective=collective,
            )
        )

    def _phase(self, ins: Instruction, inputs: Sequence[TensorRef], is_collective: bool) -> str:
        """What reads results of backward without being part of it is the optimizer; exchanging them is still backward."""
        if is_backward(ins.op_name):
            return BACKWARD
        if is_differentiated(ins.op_name):
            return FORWARD
        phases = {self.origin.get(ref.tensor, FORWARD) for ref in inputs}
        if is_collective and phases == {BACKWARD}:
            return BACKWARD
        return OPTIMIZER if phases & {BACKWARD, OPTIMIZER} else FORWARD

    def result(
        self,
        ins: Instruction,
        name: str,
        inputs: Sequence[TensorRef | None],
        arguments: Mapping[str, Any] = {},
        *,
        flops: float = 0.0,
    ) -> Value:
        """One operation with a result of its own, or several where the instruction makes a tuple."""
        shapes = ins.shape.parts if ins.shape.parts is not None else (ins.shape,)
        made = [
            Value(shape, self.new_ref(shape)) if shape.dtype else Value(shape) for shape in shapes
        ]
        self.emit(ins, name, inputs, [v.ref for v in made if v.ref], arguments, flops=flops)
        return made[0] if ins.shape.parts is None else Value(ins.shape, parts=tuple(made))

    def stored(self, ins: Instruction, value: Value) -> Value:
        """The value with memory of its own size: constants and broadcasts are written out."""
        if value.ref is not None and not value.repeats:
            return value
        ref = self.new_ref(value.shape)
        self.emit(ins, "full" if value.ref is None else "expand_copy", [value.ref], [ref])
        return Value(value.shape, ref)

    def owned(self, ins: Instruction, value: Value) -> Value:
        """The value with memory that may be overwritten in part."""
        value = self.stored(ins, value)
        assert value.ref is not None
        if value.ref.tensor not in self.protected and value.ref.nbytes == value.ref.storage_nbytes:
            return value
        ref = self.new_ref(value.shape)
        self.emit(ins, "clone", [value.ref], [ref])
        return Value(value.shape, ref)


Visit = Callable[[Walk, Instruction, list[Value]], Value]


def viewed(value: Value, shape: Shape, *, is_contiguous: bool = True) -> Value:
    """The same elements, or some of them, in another shape."""
    ref = value.ref
    if ref is None or value.repeats:
        return Value(shape, ref, repeats=value.repeats)
    nbytes = min(shape.nbytes, ref.storage_nbytes)
    view = replace(
        ref,
        shape=shape.dims,
        dtype=shape.dtype,
        nbytes=nbytes,
        contiguous=is_contiguous and ref.contiguous,
    )
    return Value(shape, view)


def shaped(value: Value, dims: tuple[int, ...]) -> TensorRef | None:
    """The tensor of a value as an operator wants its dimensions."""
    if value.ref is None:
        return None
    nbytes = math.ceil(math.prod(dims) * value.shape.itemsize)
    return replace(value.ref, shape=dims, nbytes=nbytes, contiguous=True)


def constant(values: NDArray[Any], shape: Shape) -> Value:
    """What is known without running the program."""
    return Value(shape, known=np.asarray(values).reshape(shape.dims))
