"""What is in a serialized HLO module? Computations of instructions, with shapes and the lines of the program they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf.message import DecodeError

from trnprof.emulator.capture.hlo.proto import HLO, MODULE
from trnprof.tracer.errors import CaptureError

DTYPES: Final[dict[int, tuple[str, float]]] = {
    1: ("bool", 1),
    2: ("int8", 1),
    3: ("int16", 2),
    4: ("int32", 4),
    5: ("int64", 8),
    6: ("uint8", 1),
    7: ("uint16", 2),
    8: ("uint32", 4),
    9: ("uint64", 8),
    10: ("float16", 2),
    11: ("float32", 4),
    12: ("float64", 8),
    15: ("complex64", 8),
    16: ("bfloat16", 2),
    18: ("complex128", 16),
    19: ("float8_e5m2", 1),
    20: ("float8_e4m3fn", 1),
    21: ("int4", 0.5),
    22: ("uint4", 0.5),
    23: ("float8_e4m3b11fnuz", 1),
    24: ("float8_e5m2fnuz", 1),
    25: ("float8_e4m3fnuz", 1),
    28: ("float8_e4m3", 1),
    29: ("float8_e3m4", 1),
    32: ("float4_e2m1fn", 0.5),
    33: ("float8_e8m0fnu", 1),
}
"""Element type of XLA → our name, bytes."""
TUPLE: Final = 13


@dataclass(frozen=True, slots=True)
class Shape:
    """An array, or a tuple of shapes.

    Attributes:
        dtype: short name; "" of tuples, tokens and what else holds no elements.
        dims: sizes.
        itemsize: bytes of an element.
        parts: of a tuple; None of anything else.
    """

    dtype: str
    dims: tuple[int, ...]
    itemsize: float
    parts: tuple[Shape, ...] | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, whole ones."""
        return math.ceil(self.numel * self.itemsize)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: as XLA spells it: dot, all-reduce, …
        shape: of its result.
        operands: ids of instructions of the same computation.
        called: ids of computations.
        op_name: JAX's path: transforms, scopes, primitive.
        source_file: innermost file of the program, "" unknown.
        source_line: its line, 0 unknown.
        proto: the message, for what only some opcodes have.
    """

    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    called: tuple[int, ...]
    op_name: str
    source_file: str
    source_line: int
    proto: Any


@dataclass(frozen=True)
class Computation:
    """Instructions by id, operands before their users, and the id of the result."""

    name: str
    instructions: Mapping[int, Instruction]
    root: int

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """By number."""
        found = [ins for ins in self.instructions.values() if ins.opcode == "parameter"]
        return tuple(sorted(found, key=lambda ins: int(ins.proto.parameter_number)))


@dataclass(frozen=True)
class Module:
    """A program for one device.

    Attributes:
        name: jit_ and the name of the function.
        computations: by id.
        entry: id of the one that is the program.
        aliases: place in the result → parameter whose memory it takes over.
        donors: parameters whose memory any result of their shape may take over.
    """

    name: str
    computations: Mapping[int, Computation]
    entry: int
    aliases: Mapping[int, int]
    donors: tuple[int, ...] = ()


def parse_module(data: bytes, *, is_hlo: bool = True) -> Module:
    """A module from its bytes.

    Args:
        data: a serialized ``HloProto``, as XLA dumps it, or ``HloModuleProto``.
        is_hlo: whether it is the former.

    Raises:
        CaptureError: it is neither.
    """
    message = HLO() if is_hlo else MODULE()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CaptureError(f"XLA's module cannot be read ({error})") from error
    proto = message.module if is_hlo else message
    lines = _lines(proto)
    computations = {
        c.id: Computation(
            c.name, {ins.id: _instruction(ins, lines) for ins in c.instructions}, c.root_id
        )
        for c in proto.computations
    }
    if proto.entry_id not in computations:
        raise CaptureError(
            "XLA's module has no entry computation: this version of jaxlib is unknown"
        )
    aliases = {
        (entry.output_index[0] if entry.output_index else 0): entry.parameter_number
        for entry in proto.aliases.entries
    }
    donors = tuple(sorted(entry.parameter_number for entry in proto.donors.entries))
    return Module(proto.name, computations, proto.entry_id, aliases, donors)


def _lines(proto: Any) -> list[tuple[str, int]]:
    """File and line by number of a stack frame; numbers count from 1."""
    table = proto.stack_frames
    found = [("", 0)]
    for frame in table.frames:
        at = table.locations[frame.file_location_id - 1]
        found.append((table.file_names[at.file_name_id - 1], at.line))
    return found


def _instruction(proto: Any, lines: list[tuple[str, int]]) -> Instruction:
    meta = proto.metadata
    file, line = meta.source_file, meta.source_line
    if meta.stack_frame_id and meta.stack_frame_id < len(lines):
        file, line = lines[meta.stack_frame_id]
    return Instruction(
        proto.opcode,
        _shape(proto.shape),
        tuple(proto.operand_ids),
        tuple(proto.called_ids),
        meta.op_name,
        file,
        line,
        proto,
    )


def _shape(proto: Any) -> Shape:
    if proto.element_type == TUPLE:
        return Shape("", (), 0, tuple(map(_shape, proto.tuple_shapes)))
    dtype, itemsize = DTYPES.get(proto.element_type, ("", 0))
    return Shape(dtype, tuple(proto.dimensions), itemsize)
