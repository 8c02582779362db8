"""How does compiled code look at many bytes in one step, and at raw addresses without what arrays cost?

LLVM vector comparisons as numba intrinsics: LLVM turns them into the vector instructions of the processor it compiles for, and
into scalar code where there are none. ``base`` is the address of a buffer, ``i`` an index that the caller has checked; up to 32
bytes past it are read: buffers need that much padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PADDING: Final = 64
"""Bytes that must be readable past the end of every buffer that is scanned."""
WIDTH: Final = 32

_intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_I8, WIDTH)


def _pointer(builder: Any, base: Any, index: Any, type_: Any, size: int) -> Any:
    offset = index if size == 1 else builder.mul(index, ir.Constant(_I64, size))
    return builder.inttoptr(builder.add(base, offset), ir.PointerType(type_))


def _load(builder: Any, base: Any, index: Any, type_: Any, size: int = 1) -> Any:
    load = builder.load(_pointer(builder, base, index, type_, size))
    load.align = 1
    return load


def _store(builder: Any, base: Any, index: Any, value: Any, type_: Any, size: int = 1) -> None:
    store = builder.store(builder.trunc(value, type_), _pointer(builder, base, index, type_, size))
    store.align = 1


def _all(byte: int) -> Any:
    return ir.Constant(_VECTOR, [byte] * WIDTH)


def _first(builder: Any, lanes: Any) -> Any:
    """Index of the first lane that is set, WIDTH if none."""
    mask = builder.zext(builder.bitcast(lanes, ir.IntType(WIDTH)), _I64)
    bounded = builder.or_(mask, ir.Constant(_I64, 1 << WIDTH))
    return builder.cttz(bounded, ir.Constant(ir.IntType(1), 1))


_AT = types.int64(types.int64, types.int64)


@_intrinsic
def special_at(_context: Any, base: Any, i: Any) -> Any:
    """Bytes before the first quote, backslash or control character; 32 if there is none in 32 bytes."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block = _load(builder, arguments[0], arguments[1], _VECTOR)
        found = builder.icmp_unsigned("==", block, _all(0x22))
        found = builder.or_(found, builder.icmp_unsigned("==", block, _all(0x5C)))
        found = builder.or_(found, builder.icmp_unsigned("<", block, _all(0x20)))
        return _first(builder, found)

    return _AT, code


@_intrinsic
def not_space_at(_context: Any, base: Any, i: Any) -> Any:
    """Bytes before the first that is not JSON white space; 32 if there is none in 32 bytes."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block = _load(builder, arguments[0], arguments[1], _VECTOR)
        space = builder.icmp_unsigned("==", block, _all(0x20))
        for byte in (0x0A, 0x0D, 0x09):
            space = builder.or_(space, builder.icmp_unsigned("==", block, _all(byte)))
        return _first(builder, builder.not_(space))

    return _AT, code


@_intrinsic
def not_digit_at(_context: Any, base: Any, i: Any) -> Any:
    """Bytes before the first that is no decimal digit; 32 if there is none in 32 bytes."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block = builder.sub(_load(builder, arguments[0], arguments[1], _VECTOR), _all(0x30))
        return _first(builder, builder.icmp_unsigned(">", block, _all(9)))

    return _AT, code


@_intrinsic
def high_at(_context: Any, base: Any, i: Any) -> Any:
    """Bytes before the first that is not ASCII; 32 if there is none in 32 bytes."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block = _load(builder, arguments[0], arguments[1], _VECTOR)
        return _first(builder, builder.icmp_signed("<", block, _all(0)))

    return _AT, code


@_intrinsic
def byte_at(_context: Any, base: Any, i: Any) -> Any:
    """One byte, as an int64."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(_load(builder, arguments[0], arguments[1], _I8), _I64)

    return _AT, code


@_intrinsic
def word_at(_context: Any, base: Any, i: Any) -> Any:
    """Eight bytes as one unsigned number in the order of this machine."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], arguments[1], _I64)

    return types.uint64(types.int64, types.int64), code


@_intrinsic
def int32_at(_context: Any, base: Any, i: Any) -> Any:
    """Element ``i`` of an array of int32."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.sext(_load(builder, arguments[0], arguments[1], _I32, 4), _I64)

    return _AT, code


@_intrinsic
def set_int32(_context: Any, base: Any, i: Any, value: Any) -> Any:
    """Set element ``i`` of an array of int32."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _store(builder, arguments[0], arguments[1], arguments[2], _I32, 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@_intrinsic
def set_byte(_context: Any, base: Any, i: Any, value: Any) -> Any:
    """Set byte ``i``."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _store(builder, arguments[0], arguments[1], arguments[2], _I8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@_intrinsic
def copy_bytes(_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy ``count`` bytes from one address to another."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.PointerType(_I8)
        pointers = [builder.inttoptr(address, byte_pointer) for address in arguments[:2]]
        cgutils.raw_memcpy(builder, *pointers, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code
