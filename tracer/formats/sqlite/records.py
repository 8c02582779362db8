"""What do the records on the leaf pages of an SQLite table say, read as columns?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.sqlite.pages import (
    Bytes,
    Ints,
    assemble,
    cell_at,
    copy,
    leaf_cells,
    unsigned,
    varint,
)

INTEGER: Final = 0
REAL: Final = 1
TEXT: Final = 2
"""What is wanted of a column."""

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Records:
    """Some rows of a table, one row an entry in each array.

    Attributes:
        values: int64[columns, rows]: integers, the bits of reals, or where in the file a text lies (behind the file's end: in ``spill``).
        valid: uint8[columns, rows]: 0 for nulls.
        spans: int64[columns, rows]: bytes of a text; one row where no texts are wanted.
        spill: uint8: records that go on over several pages, put together.
        lost: rows that could not be decoded.
        misfits: values whose type does not fit.
        damaged: pages that are no leaves.
    """

    values: Ints
    valid: Bytes
    spans: Ints
    spill: Bytes
    lost: int
    misfits: int
    damaged: int


def decode(
    data: Bytes,
    page: tuple[int, int],
    leaves: Ints,
    room: tuple[int, int],
    wanted: Ints,
    kinds: Ints,
    alias: int,
    seen: Bytes,
) -> Records:
    """Decode the rows on leaf pages into columns.

    Args:
        data: the file.
        page: size of a page, and what of it SQLite uses, in bytes.
        leaves: numbers of leaf pages.
        room: rows, and bytes of records that go on elsewhere, as ``measure`` said of these pages.
        wanted: ordinals of the columns that are wanted, ascending.
        kinds: what is wanted of each: INTEGER, REAL or TEXT.
        alias: the column that is another name of the row number, -1 if none.
        seen: uint8[pages + 1]: pages that have been used.
    """
    rows, spill_bytes = room
    slots = len(wanted)
    values = np.empty((slots, rows + 1), np.int64)
    valid = np.zeros((slots, rows + 1), np.uint8)
    spans = np.empty((slots, rows + 1 if TEXT in kinds else 1), np.int64)
    spill = np.zeros(spill_bytes, np.uint8)
    columns = (wanted, kinds, alias, values, valid, spans)
    whole = spill.view()
    whole.flags.writeable = False  # of the same type as data, so that all is compiled once
    count, lost, misfits, damaged = _extract(data, page, leaves, columns, spill, whole, seen)
    return Records(
        values[:, :count], valid[:, :count], spans[:, :count], spill, lost, misfits, damaged
    )


def texts(data: Bytes, records: Records, slot: int) -> tuple[NDArray[np.int32], Bytes]:
    """Offsets and bytes of the texts of one column, side by side."""
    valid, spans = records.valid[slot], records.spans[slot]
    offsets = np.zeros(len(valid) + 1, np.int32)
    out = np.empty(int(spans[valid != 0].sum()), np.uint8)
    _gather(data, records.spill, records.values[slot], spans, valid, offsets, out)
    return offsets, out


def _inlined(function: _F) -> _F:
    inlined: _F = njit(inline="always")(function)
    return inlined


@compiled
def _big_endian(data: Any, at: Any, size: Any) -> Any:
    """A two's complement number of 0 to 8 bytes."""
    if size == 0:
        return np.int64(0)
    value = np.int64(np.int8(data[at]))
    for i in range(1, size):
        value = (value << 8) | np.int64(data[at + i])
    return value


@_inlined
def _stored_integer(data: Any, at: Any, size: Any) -> Any:
    """A two's complement number of 1 to 8 bytes, by one load of eight bytes wherever there are eight."""
    if at + 8 > len(data):
        return _big_endian(data, at, size)
    i = np.uint64(at)
    high = (
        np.uint64(data[i]) << np.uint64(56)
        | np.uint64(data[i + np.uint64(1)]) << np.uint64(48)
        | np.uint64(data[i + np.uint64(2)]) << np.uint64(40)
        | np.uint64(data[i + np.uint64(3)]) << np.uint64(32)
        | np.uint64(data[i + np.uint64(4)]) << np.uint64(24)
        | np.uint64(data[i + np.uint64(5)]) << np.uint64(16)
        | np.uint64(data[i + np.uint64(6)]) << np.uint64(8)
        | np.uint64(data[i + np.uint64(7)])
    )
    return np.int64(high) >> np.int64(64 - 8 * size)


@compiled
def _serial_bytes(serial: Any) -> Any:
    """Bytes of a value of this serial type, -1 for a reserved one."""
    if serial >= 12:
        return (serial - 12) >> 1
    if serial <= 4:
        return serial
    if serial == 5:
        return 6
    if serial <= 7:
        return 8
    return 0 if serial <= 9 else -1


@compiled
def _integer_of_text(data: Any, at: Any, size: Any) -> Any:
    """A decimal integer of at most 18 digits written as text, and whether it is one."""
    first = at
    if size > 0 and (data[at] == 45 or data[at] == 43):
        first = at + 1
    digits = at + size - first
    if digits < 1 or digits > 18:
        return np.int64(0), False
    value = np.int64(0)
    for i in range(first, at + size):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9:
            return np.int64(0), False
        value = value * 10 + digit
    return (-value if data[at] == 45 else value), True


@compiled
def _number(data: Any, at: Any, serial: Any, kind: Any, scratch: Any) -> Any:
    """A value as the number that is wanted (a real as its bits), and whether it fits. ``scratch``: int64[1] and the same as float64[1]."""
    bits, real = scratch
    number = np.int64(0)
    if serial <= 6:
        number = _big_endian(data, at, _serial_bytes(serial))
    elif serial == 7:
        bits[0] = _big_endian(data, at, 8)
        if kind == REAL:
            return bits[0], True
        if abs(real[0]) < 9.2e18 and np.floor(real[0]) == real[0]:
            return np.int64(real[0]), True
        return number, False
    elif serial <= 9:
        number = np.int64(serial - 8)
    elif serial % 2 == 1:
        number, fits = _integer_of_text(data, at, _serial_bytes(serial))
        if not fits:
            return number, False
    else:
        return number, False
    if kind == REAL:
        real[0] = np.float64(number)
        return bits[0], True
    return number, True


@compiled
def _take_row(
    data: Any, at: Any, end: Any, shift: Any, rowid: Any, row: Any, columns: Any, scratch: Any
) -> Any:
    """Put the record at ``data[at:end]`` into row ``row``: whether it is whole, and how many of its values do not fit."""
    wanted, kinds, alias, values, valid, spans = columns
    header, pointer = varint(data, at, end)
    header_end = at + header
    if pointer < 0 or header < 1 or header_end > end:
        return False, 0
    body = header_end
    column, misfits, slot = 0, 0, 0
    slots = len(wanted)
    while slot < slots and pointer < header_end:
        serial = np.int64(data[pointer])
        if serial < 0x80:
            pointer += 1
        else:
            serial, pointer = varint(data, pointer, header_end)
            if pointer < 0 or serial < 0:
                return False, misfits
        size = serial if serial <= 4 else _serial_bytes(serial)
        if size < 0:
            return False, misfits
        if column == wanted[slot]:
            if body + size > end:
                # of a record that goes on elsewhere, its start is kept
                return shift > 0, misfits + 1
            kind = kinds[slot]
            if serial == 0:
                if column == alias:
                    values[slot, row] = rowid
                    valid[slot, row] = 1
            elif kind == INTEGER and serial <= 6:  # what nearly all values are
                values[slot, row] = _stored_integer(data, body, size)
                valid[slot, row] = 1
            elif kind == INTEGER and (serial == 8 or serial == 9):
                values[slot, row] = serial - 8
                valid[slot, row] = 1
            elif kind != TEXT:
                values[slot, row], valid[slot, row] = _number(data, body, serial, kind, scratch)
                misfits += 1 - valid[slot, row]
            elif serial >= 12:
                values[slot, row] = body + shift
                spans[slot, row] = size
                valid[slot, row] = 1
            else:
                misfits += 1
            slot += 1
        body = min(body + size, end + 1)  # no sum of sizes may wrap around
        column += 1
    return True, misfits


@compiled
def _extract(
    data: Any, page: Any, leaves: Any, columns: Any, spill: Any, whole_spill: Any, seen: Any
) -> Any:
    """Rows decoded, rows that could not be, values whose type does not fit, and pages that are no leaves."""
    page_bytes, usable = page
    valid = columns[4]
    row, lost, misfits, used, damaged = np.int64(0), 0, 0, np.int64(0), 0
    bits = np.zeros(1, np.int64)
    scratch = (bits, bits.view(np.float64))
    for leaf in leaves:
        base, pointers, cells = leaf_cells(data, page_bytes, usable, leaf)
        damaged += cells < 0
        room = usable
        for i in range(cells):
            at = base + unsigned(data, pointers + 2 * i, 2)
            payload, rowid, at, local = cell_at(data, at, base, usable, room)
            if local < 0:
                lost += 1
                continue
            room -= local
            if local == payload:
                whole, misfit = _take_row(
                    data, at, at + payload, np.int64(0), rowid, row, columns, scratch
                )
            else:
                end = used + assemble(data, page_bytes, usable, at, payload, spill, used, seen)
                shift = np.int64(len(data))
                whole, misfit = _take_row(
                    whole_spill, used, end, shift, rowid, row, columns, scratch
                )
                used = end
            misfits += misfit
            row += whole
            if not whole:
                lost += 1
                for slot in range(len(valid)):
                    valid[slot, row] = 0
    return row, lost, misfits, damaged


@compiled
def _gather(
    data: Any, spill: Any, starts: Any, spans: Any, valid: Any, offsets: Any, out: Any
) -> None:
    """Texts side by side: ``starts`` beyond ``data`` are in ``spill``."""
    at = 0
    for row in range(len(starts)):
        if valid[row]:
            start, size = starts[row], spans[row]
            if start < len(data):
                copy(data, start, out, at, size)
            else:
                copy(spill, start - len(data), out, at, size)
            at += size
        offsets[row + 1] = at
