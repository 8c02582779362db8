"""Where in an SQLite file do the rows of a table lie? Its tree of pages, and records that go on over several of them.

SQLite's file format is frozen and documented (sqlite.org/fileformat2.html). Its library hands out one value a call: 5 million rows of
19 columns took 9.8 s through ADBC's driver and longer through Python's module, and both stop at the first damaged page. Here the
leaf pages of a table are decoded by compiled loops into columns (``sqlite_records``), in 2 s, and a damaged page or row costs only itself.

Everything in the file is distrusted: each offset, length and page number is checked, each page belongs to one place only, and
nothing is allocated by a number that was not checked against the file.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

MAX_RECORD_BYTES: Final = 4 << 20
"""A longer row is cut here; what lies beyond is null. Nothing that is imported comes near."""

_TABLE_INTERIOR: Final = 0x05
_TABLE_LEAF: Final = 0x0D
_MAX_LEVELS: Final = 20
"""SQLite's own limit on the depth of a tree."""


@compiled
def unsigned(data: Any, at: Any, size: Any) -> Any:
    """A big-endian number of so many bytes."""
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | np.int64(data[at + i])
    return value


@compiled
def varint(data: Any, at: Any, end: Any) -> Any:
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
def leaf_cells(data: Any, page_bytes: Any, usable: Any, page: Any) -> Any:
    """Where a page begins, where its list of cells does, and how many there are; -1 if it is no leaf of a table."""
    base = (page - 1) * page_bytes
    head = base + 100 if page == 1 else base
    cells = unsigned(data, head + 3, 2)
    if data[head] != _TABLE_LEAF or head + 8 + 2 * cells > base + usable:
        return base, head + 8, np.int64(-1)
    return base, head + 8, cells


@compiled
def _levels(data: Any, page_bytes: Any, pages: Any, root: Any) -> Any:
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
        if unsigned(data, head + 3, 2) > 0:
            at = base + unsigned(data, head + 12, 2)
        page = unsigned(data, at, 4) if at + 4 <= base + page_bytes else 0
        if page < 1 or page > pages:
            return -1
    return -1


def leaf_pages(data: Bytes, page_bytes: int, pages: int, root: int) -> tuple[Ints, Bytes, int, int]:
    """The leaf pages of a table, in the order of its rows.

    Args:
        data: the file.
        page_bytes: size of a page.
        pages: whole pages in the file.
        root: number of the root page, from 1.

    Returns:
        int64[leaves]: their page numbers; uint8[pages + 1]: 1 for each page of the tree; how many pages are damaged, and the first of
        these (0 if none).
    """
    leaves = np.empty(pages, np.int64)
    seen = np.zeros(pages + 1, np.uint8)
    count, damaged, first = _walk(data, page_bytes, root, leaves, np.empty(pages, np.int64), seen)
    return leaves[:count].copy(), seen, damaged, first


@compiled
def _walk(data: Any, page_bytes: Any, root: Any, leaves: Any, stack: Any, seen: Any) -> Any:
    """All leaves lie on one level, so that only interior pages are looked at: whether a leaf is one is seen when it is decoded."""
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
        cells = unsigned(data, head + 3, 2)
        pointers = head + 12
        is_damaged = data[head] != _TABLE_INTERIOR or level == _MAX_LEVELS
        is_damaged |= pointers + 2 * cells > base + page_bytes
        damaged += is_damaged
        # the rightmost child is taken last: pushed first
        for i in range(-1 if is_damaged else cells, -1, -1):
            at = head + 8 if i == cells else base + unsigned(data, pointers + 2 * i, 2)
            child = unsigned(data, at, 4) if at + 4 <= base + page_bytes else 0
            if child < 1 or child > pages or seen[child]:
                is_damaged = True
                damaged += 1
            else:
                seen[child] = 1
                stack[depth] = child << 8 | (level + 1)
                depth += 1
        if is_damaged and first_damaged == 0:
            first_damaged = page
    return count, damaged, first_damaged


@compiled
def local_bytes(payload: Any, usable: Any) -> Any:
    """How much of a record of so many bytes lies on its leaf page."""
    most = usable - 35
    if payload <= most:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    local = least + (payload - least) % (usable - 4)
    return local if local <= most else least


def measure(data: Bytes, page_bytes: int, usable: int, leaves: Ints) -> tuple[int, int]:
    """Rows on some leaf pages at most, and bytes of those records that go on elsewhere, each cut at MAX_RECORD_BYTES."""
    rows, spill = _measure(data, page_bytes, usable, leaves)
    return int(rows), int(spill)


@compiled
def cell_at(data: Any, at: Any, base: Any, usable: Any, room: Any) -> Any:
    """What the cell at a place of the leaf page at ``base`` says.

    Args:
        data: the file.
        at: place of the cell.
        base: place of its page.
        usable: bytes of the page that SQLite uses.
        room: bytes of the page that no cell before has taken: pages on which many cells share bytes are not SQLite's, and would
            make far more of a file than it has.

    Returns:
        Bytes of the record; its row number; where it begins; how much of it lies here, -1 if that cannot be.
    """
    end = base + usable
    payload, start = varint(data, at, end)
    if start < 0 or payload < 1:
        return payload, np.int64(0), start, np.int64(-1)
    rowid, start = varint(data, start, end)
    local = local_bytes(payload, usable)
    link = 4 if local < payload else 0
    if start < 0 or start + local + link > end or local + link > room:
        return payload, rowid, start, np.int64(-1)
    return payload, rowid, start, local


@compiled
def _measure(data: Any, page_bytes: Any, usable: Any, leaves: Any) -> Any:
    rows, spill = 0, 0
    for page in leaves:
        base, pointers, cells = leaf_cells(data, page_bytes, usable, page)
        room = usable
        for i in range(cells):
            at = base + unsigned(data, pointers + 2 * i, 2)
            payload, _, _, local = cell_at(data, at, base, usable, room)
            if local < 0:
                continue
            rows += 1
            room -= local
            if local < payload:
                spill += min(payload, MAX_RECORD_BYTES)
    return rows, spill


@compiled
def copy(source: Any, at: Any, target: Any, to: Any, size: Any) -> None:
    """Copy bytes. A loop: slices compile five times as long and run no faster."""
    for i in range(size):
        target[to + i] = source[at + i]


@compiled
def assemble(
    data: Any,
    page_bytes: Any,
    usable: Any,
    at: Any,
    payload: Any,
    spill: Any,
    used: Any,
    seen: Any,
) -> Any:
    """Copy a record that goes on elsewhere to ``spill[used:]``; how many bytes of it there are."""
    wanted = min(payload, MAX_RECORD_BYTES)
    local = local_bytes(payload, usable)
    copy(data, at, spill, used, local)
    done = local
    page = unsigned(data, at + local, 4)
    while done < wanted:
        if page < 1 or page >= len(seen) or seen[page]:
            return done
        seen[page] = 1
        base = (page - 1) * page_bytes
        size = min(usable - 4, wanted - done)
        copy(data, base + 4, spill, used + done, size)
        done += size
        page = unsigned(data, base, 4)
    return done
