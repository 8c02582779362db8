"""What do the pages of an SQLite file say, read as columns?

SQLite's file format is frozen and documented (sqlite.org/fileformat2.html). Its library hands out one value a call: 5 million rows of
19 columns took 9.8 s through ADBC's driver and longer through Python's module, and both stop at the first damaged page. Here the
leaf pages of a table are decoded by compiled loops into columns, in 2 s, and a damaged page or row costs only itself.

Everything in the file is distrusted: each offset, length and page number is checked, each page belongs to one place only, and
nothing is allocated by a number that was not checked against the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., Any])

MAX_RECORD_BYTES: Final = 4 << 20
"""A longer row is cut here; what lies beyond is null. Nothing that is imported comes near."""

INTEGER: Final = 0
REAL: Final = 1
TEXT: Final = 2
"""What is wanted of a column."""

_TABLE_INTERIOR: Final = 0x05
_TABLE_LEAF: Final = 0x0D
_MAX_LEVELS: Final = 20
"""SQLite's own limit on the depth of a tree."""


def _inlined(function: _F) -> _F:
    inlined: _F = njit(inline="always")(function)
    return inlined


@compiled
def _big_endian(data: Bytes, at: int, size: int) -> int:
    """A two's complement number of 0 to 8 bytes."""
    if size == 0:
        return np.int64(0)
    value = np.int64(np.int8(data[at]))
    for i in range(1, size):
        value = (value << 8) | np.int64(data[at + i])
    return value


@_inlined
def _stored_integer(data: Bytes, at: int, size: int) -> int:
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
def _unsigned(data: Bytes, at: int, size: int) -> int:
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(data[at + i])
    return value


@compiled
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """SQLite's big-endian varint: value, and where it ends; -1 for the end if it runs out of ``end``."""
    value = np.int64(0)
    for i in range(8):
        if at + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(data[at + i])
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, np.int64(at + i + 1)
    if at + 8 >= end:
        return np.int64(0), np.int64(-1)
    return (value << 8) | np.int64(data[at + 8]), np.int64(at + 9)


@compiled
def _levels(data: Bytes, page_bytes: int, pages: int, root: int) -> int:
    """Levels of interior pages above the leaves of a table, as its leftmost path has them; -1 if that path is damaged."""
    page = root
    for level in range(_MAX_LEVELS):
        base = (page - 1) * page_bytes
        head = base + 100 if page == 1 else base
        if data[head] == _TABLE_LEAF:
            return level
        if data[head] != _TABLE_INTERIOR:
            return -1
        at = head + 8
        if _unsigned(data, head + 3, 2) > 0:
            at = base + _unsigned(data, head + 12, 2)
        page = _unsigned(data, at, 4) if at + 4 <= base + page_bytes else 0
        if page < 1 or page > pages:
            return -1
    return -1


@compiled
def leaf_pages(
    data: Bytes, page_bytes: int, root: int, leaves: Ints, stack: Ints, seen: Bytes
) -> tuple[int, int, int]:
    """The leaf pages of a table, in the order of its rows.

    All leaves lie on one level, so that only interior pages are looked at: whether a leaf is one is seen when it is decoded.

    Args:
        data: the file.
        page_bytes: size of a page.
        root: number of the root page, from 1.
        leaves, stack: int64[pages], overwritten.
        seen: uint8[pages + 1], zero; set for each page of the tree.

    Returns:
        How many leaves, how many pages are damaged, and the first of these (0 if none).
    """
    pages = len(leaves)
    count, damaged, first_damaged = 0, 0, 0
    if root < 1 or root > pages:
        return 0, 1, root
    levels = _levels(data, page_bytes, pages, root)
    stack[0] = root << 8
    seen[root] = 1
    depth = 1
    while depth > 0:
        depth -= 1
        page, level = stack[depth] >> 8, stack[depth] & 255
        base = (page - 1) * page_bytes
        head = base + 100 if page == 1 else base
        if level == levels or (levels < 0 and data[head] == _TABLE_LEAF):
            leaves[count] = page
            count += 1
            continue
        cells = _unsigned(data, head + 3, 2)
        pointers = head + 12
        if (
            data[head] != _TABLE_INTERIOR
            or pointers + 2 * cells > base + page_bytes
            or level == _MAX_LEVELS
        ):
            damaged += 1
            if first_damaged == 0:
                first_damaged = page
            continue
        for i in range(cells, -1, -1):  # the rightmost child is taken last: pushed first
            if i == cells:
                child = _unsigned(data, head + 8, 4)
            else:
                at = base + _unsigned(data, pointers + 2 * i, 2)
                child = _unsigned(data, at, 4) if at + 4 <= base + page_bytes else 0
            if child < 1 or child > pages or seen[child]:
                damaged += 1
                if first_damaged == 0:
                    first_damaged = page
                continue
            seen[child] = 1
            stack[depth] = child << 8 | (level + 1)
            depth += 1
    return count, damaged, first_damaged


@compiled
def _local_bytes(payload: int, usable: int) -> int:
    """How much of a record of so many bytes lies on its leaf page."""
    most = usable - 35
    if payload <= most:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    local = least + (payload - least) % (usable - 4)
    return local if local <= most else least


@compiled
def measure(data: Bytes, page_bytes: int, usable: int, leaves: Ints) -> tuple[int, int]:
    """Rows on these leaf pages at most, and bytes of those records that go on elsewhere, each cut at MAX_RECORD_BYTES."""
    rows, spill = 0, 0
    for page in leaves:
        base = (page - 1) * page_bytes
        head = base + 100 if page == 1 else base
        cells = _unsigned(data, head + 3, 2)
        if data[head] != _TABLE_LEAF or head + 8 + 2 * cells > base + usable:
            continue
        rows += cells
        for i in range(cells):
            at = base + _unsigned(data, head + 8 + 2 * i, 2)
            payload, after = _varint(data, at, base + usable)
            if after > 0 and payload > usable - 35:
                spill += min(payload, MAX_RECORD_BYTES)
    return rows, spill


@compiled
def _assemble(
    data: Bytes,
    page_bytes: int,
    usable: int,
    at: int,
    payload: int,
    spill: Bytes,
    used: int,
    seen: Bytes,
) -> int:
    """Copy a record that goes on elsewhere to ``spill[used:]``; how many bytes of it there are."""
    wanted = min(payload, MAX_RECORD_BYTES)
    local = min(_local_bytes(payload, usable), wanted)
    spill[used : used + local] = data[at : at + local]
    done = local
    page = _unsigned(data, at + _local_bytes(payload, usable), 4)
    while done < wanted:
        if page < 1 or page >= len(seen) or seen[page]:
            return done
        seen[page] = 1
        base = (page - 1) * page_bytes
        size = min(usable - 4, wanted - done)
        spill[used + done : used + done + size] = data[base + 4 : base + 4 + size]
        done += size
        page = _unsigned(data, base, 4)
    return done


@compiled
def _serial_bytes(serial: int) -> int:
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
def _integer_of_text(data: Bytes, at: int, size: int) -> tuple[int, bool]:
    """A decimal integer of at most 18 digits written as text."""
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
def _take_number(
    data: Bytes,
    at: int,
    serial: int,
    kind: int,
    slot: int,
    row: int,
    values: NDArray[np.int64],
    valid: NDArray[np.uint8],
    bits: Ints,
    real: NDArray[np.float64],
) -> int:
    """Put one number into its place; 1 if the value is of a type that does not fit. ``bits`` and ``real`` are one number."""
    number = np.int64(0)
    if serial <= 6:
        number = _big_endian(data, at, _serial_bytes(serial))
    elif serial == 7:
        bits[0] = _big_endian(data, at, 8)
        if kind == REAL:
            number = bits[0]
        elif abs(real[0]) < 9.2e18 and np.floor(real[0]) == real[0]:
            number = np.int64(real[0])
        else:
            return 1
    elif serial <= 9:
        number = np.int64(serial - 8)
    elif serial % 2 == 1:
        number, fits = _integer_of_text(data, at, _serial_bytes(serial))
        if not fits:
            return 1
    else:
        return 1
    if kind == REAL and serial != 7:
        real[0] = np.float64(number)
        number = bits[0]
    values[slot, row] = number
    valid[slot, row] = 1
    return 0


@compiled
def _take_row(
    data: Bytes,
    at: int,
    end: int,
    shift: int,
    rowid: int,
    alias: int,
    wanted: Ints,
    kinds: Ints,
    row: int,
    values: NDArray[np.int64],
    valid: NDArray[np.uint8],
    spans: NDArray[np.int64],
    bits: Ints,
    real: NDArray[np.float64],
) -> tuple[bool, int]:
    """Put the record at ``data[at:end]`` into row ``row``: whether it is whole, and how many of its values do not fit."""
    header, pointer = _varint(data, at, end)
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
            serial, pointer = _varint(data, pointer, header_end)
            if pointer < 0 or serial < 0:
                return False, misfits
        if serial <= 4:
            size = serial
        else:
            size = _serial_bytes(serial)
            if size < 0:
                return False, misfits
        if column == wanted[slot]:
            if body + size > end:
                return shift > 0, misfits + 1  # of a record that goes on elsewhere, its start is kept
            if serial == 0:
                if column == alias:
                    values[slot, row] = rowid
                    valid[slot, row] = 1
            elif kinds[slot] == INTEGER and serial <= 6:  # what nearly all values are
                values[slot, row] = _stored_integer(data, body, size)
                valid[slot, row] = 1
            elif kinds[slot] == INTEGER and (serial == 8 or serial == 9):
                values[slot, row] = serial - 8
                valid[slot, row] = 1
            elif kinds[slot] != TEXT:
                misfits += _take_number(
                    data, body, serial, kinds[slot], slot, row, values, valid, bits, real
                )
            elif serial >= 12:
                values[slot, row] = body + shift
                spans[slot, row] = size
                valid[slot, row] = 1
            else:
                misfits += 1
            slot += 1
        body += size
        column += 1
    return True, misfits


@compiled
def extract(
    data: Bytes,
    page_bytes: int,
    usable: int,
    leaves: Ints,
    alias: int,
    wanted: Ints,
    kinds: Ints,
    values: NDArray[np.int64],
    valid: NDArray[np.uint8],
    spans: NDArray[np.int64],
    spill: Bytes,
    seen: Bytes,
) -> tuple[int, int, int, int]:
    """Decode the rows on leaf pages into columns.

    Args:
        data: the file.
        page_bytes, usable: size of a page, and what of it SQLite uses.
        leaves: numbers of leaf pages.
        alias: the column that is another name of the row number, -1 if none.
        wanted: ordinals of the columns that are wanted, ascending.
        kinds: what is wanted of each.
        values: int64[columns, rows], at least as many rows as ``measure`` said: integers, the bits of reals, or where in the file a text
            lies (behind the file's end: in ``spill``).
        valid: uint8[columns, rows], zero.
        spans: int64[columns, rows]: bytes of a text; one row is enough where no texts are wanted.
        spill: uint8 of as many bytes as ``measure`` said.
        seen: uint8[pages + 1]: pages that have been used.

    Returns:
        Rows decoded, rows that could not be, values whose type does not fit, and pages that are no leaves.
    """
    row, lost, misfits, used, damaged = 0, 0, 0, 0, 0
    bits = np.zeros(1, np.int64)
    real = bits.view(np.float64)
    for page in leaves:
        base = (page - 1) * page_bytes
        head = base + 100 if page == 1 else base
        page_end = base + usable
        cells = _unsigned(data, head + 3, 2)
        if data[head] != _TABLE_LEAF or head + 8 + 2 * cells > page_end:
            damaged += 1
            continue
        for i in range(cells):
            at = base + _unsigned(data, head + 8 + 2 * i, 2)
            payload, at = _varint(data, at, page_end)
            rowid, at = _varint(data, max(at, base), page_end) if at > 0 else (np.int64(0), at)
            if at < 0 or payload < 1:
                lost += 1
                continue
            if payload <= usable - 35:
                end = at + payload
                if end > page_end:
                    lost += 1
                    continue
                whole, misfit = _take_row(
                    data, at, end, 0, rowid, alias, wanted, kinds, row, values, valid, spans, bits, real
                )
            else:
                if at + _local_bytes(payload, usable) + 4 > page_end:
                    lost += 1
                    continue
                size = _assemble(data, page_bytes, usable, at, payload, spill, used, seen)
                whole, misfit = _take_row(
                    spill,
                    used,
                    used + size,
                    len(data),
                    rowid,
                    alias,
                    wanted,
                    kinds,
                    row,
                    values,
                    valid,
                    spans,
                    bits,
                    real,
                )
                used += size
            misfits += misfit
            if whole:
                row += 1
            else:
                lost += 1
                valid[:, row] = 0
    return row, lost, misfits, damaged


@compiled
def gather_text(
    data: Bytes,
    spill: Bytes,
    starts: Ints,
    spans: Ints,
    valid: Bytes,
    offsets: NDArray[np.int32],
    out: Bytes,
) -> None:
    """Copy texts side by side.

    Args:
        data, spill: where they lie: ``starts`` beyond the first are in the second.
        starts, spans: int64[rows]: where, and bytes.
        valid: uint8[rows]: null where 0.
        offsets: int32[rows + 1], zero; filled.
        out: uint8 of the sum of all valid spans.
    """
    at = 0
    for row in range(len(starts)):
        if valid[row]:
            start, size = starts[row], spans[row]
            if start < len(data):
                out[at : at + size] = data[start : start + size]
            else:
                start -= len(data)
                out[at : at + size] = spill[start : start + size]
            at += size
        offsets[row + 1] = at
