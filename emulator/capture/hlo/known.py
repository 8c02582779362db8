"""Which values of a program follow from its constants alone? Loop counters, bounds and a device's offsets do; they cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.capture.hlo.module import Instruction
from trnprof.emulator.capture.hlo.values import KNOWN_ELEMENTS

_COMPARE: Final[dict[str, Callable[..., Any]]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": lambda a: ~a,
    "negate": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "select": np.where,
    "clamp": lambda low, a, high: np.clip(a, low, high),
    # XLA rounds towards zero
    "divide": lambda a, b: (np.abs(a) // np.maximum(np.abs(b), 1)) * np.sign(a) * np.sign(b),
    "remainder": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
}
_LITERALS: Final = {
    "bool": "preds",
    "int32": "s32s",
    "int64": "s64s",
    "uint32": "u32s",
    "uint64": "u64s",
}
_BYTES: Final = {"int8": "s8s", "uint8": "u8s"}


def literal(ins: Instruction) -> NDArray[Any] | None:
    """The integers of a constant; None for others, and for large ones."""
    dtype, count = ins.shape.dtype, ins.shape.numel
    if count > KNOWN_ELEMENTS:
        return None
    if dtype in _LITERALS:
        values = list(getattr(ins.proto.literal, _LITERALS[dtype]))
        array = np.array(values, np.uint64 if dtype == "uint64" else np.int64)
    elif dtype in _BYTES:
        array = np.frombuffer(getattr(ins.proto.literal, _BYTES[dtype]), dtype).astype(np.int64)
    else:
        return None
    return _typed(array, dtype).reshape(ins.shape.dims) if array.size == count else None


def evaluate(ins: Instruction, operands: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """The result of an instruction whose operands are known; None where it is not followed."""
    known = [a for a in operands if a is not None]
    if not operands or len(known) < len(operands) or ins.shape.numel > KNOWN_ELEMENTS:
        return None
    dims, dtype = ins.shape.dims, ins.shape.dtype
    if not dtype.startswith(("int", "uint", "bool")):
        return None
    match ins.opcode:
        case "compare":
            return np.asarray(_COMPARE[ins.proto.comparison_direction](*known))
        case "convert" | "copy":
            return _typed(known[0], dtype)
        case "reshape" | "bitcast":
            return known[0].reshape(dims)
        case "broadcast":
            return _broadcast(known[0], tuple(ins.proto.dimensions), dims)
        case "slice":
            cut = tuple(slice(s.start, s.limit, s.stride) for s in ins.proto.slices)
            return known[0][cut]
        case "dynamic-slice":
            return _dynamic_slice(known[0], known[1:], dims)
    action = _ARITHMETIC.get(ins.opcode)
    return None if action is None else _typed(np.asarray(action(*known)), dtype)


def _broadcast(
    array: NDArray[Any], dimensions: tuple[int, ...], dims: tuple[int, ...]
) -> NDArray[Any]:
    shape = [1] * len(dims)
    for at, size in zip(dimensions, array.shape, strict=True):
        shape[at] = size
    return np.broadcast_to(array.reshape(shape), dims)


def _dynamic_slice(
    array: NDArray[Any], starts: Sequence[NDArray[Any]], dims: tuple[int, ...]
) -> NDArray[Any]:
    cut = []
    for start, size, whole in zip(starts, dims, array.shape, strict=True):
        first = min(max(0, int(start)), whole - size)
        cut.append(slice(first, first + size))
    return array[tuple(cut)]


def _typed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Cut to the width of the datatype, as a machine wraps around."""
    return array.astype(dtype if dtype in np.sctypeDict else np.int64)
