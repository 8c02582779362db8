"""Which tables does an SQLite file have, and what are their rows?

The file is mapped, read only, and nothing is ever written beside it. ``sqlite_pages`` decodes; here is the rest: the header, the
schema (column names come from SQLite itself, which parses each CREATE TABLE in an empty database in memory), blocks and findings.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.sqlite import pages, records
from trnprof.tracer.formats.tables import Rows
from trnprof.tracer.ingest.audit import Audit

_T = TypeVar("_T")
SIGNATURE: Final = b"SQLite format 3\x00"
_BLOCK_ROWS: Final = 1 << 15
_BLOCK_SPILL_BYTES: Final = 32 << 20
_INDEX_PAGES: Final = (0x02, 0x0A)
_MEASURED_BYTES: Final = 1 << 19
_VIRTUAL: Final = 2
"""How PRAGMA table_xinfo marks a column that is computed whenever it is read, and stored nowhere."""
_NO_PAGES: Final = (
    "pages that are no part of a table, or lie beyond the end, were left out with their rows"
)
_ALLOWED: Final = (
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_REINDEX,
)
"""What a statement from a file's schema may do in the empty database: create a table, nothing else."""


@dataclass(frozen=True)
class _Table:
    """``root`` page, ``columns`` in stored order, and the ordinal of the column that is the row number (-1 if none)."""

    root: int
    columns: tuple[str, ...]
    alias: int


class SqliteTables:
    """The tables of an SQLite file. ``close`` it, or use it as a context manager."""

    def __init__(self, path: Path, label: str, audit: Audit) -> None:
        """Map the file and read its schema.

        Args:
            path: the file.
            label: what people know it by.
            audit: where doubts go.

        Raises:
            ProfileError: it is not an SQLite file, or nothing of its schema can be read.
        """
        self.label = label
        self.audit = audit
        with _reading(path, label) as file:
            size = os.fstat(file.fileno()).st_size
            if size < 512:
                raise ProfileError(f"{label}: {size} bytes are too few for an SQLite file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data: pages.Bytes = np.frombuffer(self._map, np.uint8)
        head = self._data[:100].tobytes()
        if head[:16] != SIGNATURE:
            raise ProfileError(f"{label}: not an SQLite file (no signature at byte 0)")
        self._page_bytes = int.from_bytes(head[16:18], "big")
        self._page_bytes = 65536 if self._page_bytes == 1 else self._page_bytes
        self._usable = self._page_bytes - head[20]
        if (
            self._page_bytes < 512
            or self._page_bytes & (self._page_bytes - 1)
            or self._usable < 480
        ):
            raise ProfileError(
                f"{label}: impossible page size {self._page_bytes} at byte 16; the file is damaged"
            )
        if head[56:60] not in (b"\0\0\0\0", b"\0\0\0\1"):
            raise ProfileError(
                f"{label}: its text is UTF-16, which is not read; copy it into a new database with PRAGMA encoding = 'UTF-8'"
            )
        self._pages = size // self._page_bytes
        self._check_whole(path, size, int.from_bytes(head[28:32], "big"))
        self._tables = self._read_schema()

    def __enter__(self) -> SqliteTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._data = np.zeros(0, np.uint8)
        try:
            self._map.close()
        except BufferError:  # an array still looks into it: it goes with the last of these
            return

    def names(self) -> Sequence[str]:
        """The tables there are."""
        return tuple(self._tables)

    def columns(self, table: str) -> Sequence[str]:
        """The columns of a table, empty if there is no such table."""
        return self._tables[table].columns if table in self._tables else ()

    def rows(self, table: str) -> int:
        """Rows of a table as its pages count them."""
        if table not in self._tables:
            return 0
        leaves, _ = self._leaves(table, told=False)
        count = 0
        for part in np.array_split(leaves, max(1, len(leaves) // 4096)):
            count += pages.measure(self._data, self._page_bytes, self._usable, part)[0]
            self._forget()
        return count

    def scan(
        self,
        table: str,
        *,
        ints: Sequence[str] = (),
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        blobs: Sequence[str] = (),
    ) -> Iterator[Rows]:
        """Blocks of rows in stored order, with the columns of those named that exist; nothing if there is no such table."""
        if table not in self._tables:
            return
        known = {name: i for i, name in enumerate(self._tables[table].columns)}
        asked = [(n, records.INTEGER) for n in ints] + [(n, records.REAL) for n in reals]
        asked += [(n, records.TEXT) for n in (*texts, *blobs)]
        wanted = sorted({known[n]: (n, kind) for n, kind in asked if n in known}.items())
        names = [(name, kind, name in blobs) for _, (name, kind) in wanted]
        ordinals = np.array([at for at, _ in wanted], np.int64)
        leaves, seen = self._leaves(table, told=True)
        totals = [0, 0, 0]
        decoded = (
            self._decode(table, block, ordinals, names, seen) for block in self._blocks(leaves)
        )
        for block, doubts in _ahead(decoded):
            totals = [a + b for a, b in zip(totals, doubts, strict=True)]
            if block.count:
                yield block
        self._tell(table, *totals)

    def _tell(self, table: str, lost: int, misfits: int, damaged: int) -> None:
        where, unreliable = f"{self.label}: {table}", f"everything that comes from {table}"
        self.audit.add(
            "damaged_rows",
            "error",
            where,
            "rows that cannot be decoded were left out",
            unreliable=unreliable,
            count=lost,
        )
        self.audit.add(
            "damaged_pages", "error", where, _NO_PAGES, unreliable=unreliable, count=damaged
        )
        self.audit.add(
            "unreadable_values",
            "warning",
            where,
            "values of another type than the column should have were taken as missing",
            unreliable=f"columns of {table}",
            count=misfits,
        )

    def _check_whole(self, path: Path, size: int, pages_stated: int) -> None:
        if pages_stated > self._pages:
            self.audit.add(
                "truncated",
                "error",
                self.label,
                f"the file ends at byte {size:,} of {pages_stated * self._page_bytes:,}; what lies before is imported",
                unreliable="everything: rows are missing",
            )
        for suffix in ("-wal", "-journal"):
            beside = path.with_name(path.name + suffix)
            if beside.is_file() and beside.stat().st_size:
                self.audit.add(
                    "unfinished_transaction",
                    "warning",
                    self.label,
                    f"{beside.name} holds changes that were not written back; the file is read as it is, without them",
                    unreliable="rows may be missing",
                )

    def _read_schema(self) -> dict[str, _Table]:
        schema = _Table(1, ("type", "name", "tbl_name", "rootpage", "sql"), -1)
        self._tables = {"sqlite_schema": schema}
        found: dict[str, _Table] = {}
        for block in self.scan("sqlite_schema", ints=["rootpage"], texts=["type", "name", "sql"]):
            kind, name, root, sql = (block.list(c) for c in ("type", "name", "rootpage", "sql"))
            for i in range(block.count):
                if kind[i] != "table" or not name[i] or not root[i] or not sql[i]:
                    continue
                if name[i].startswith("sqlite_"):  # SQLite's own, such as sqlite_sequence
                    continue
                columns, alias = _columns(sql[i], name[i])
                why = "its definition cannot be read" if not columns else ""
                if self._is_index(root[i]):
                    why = "it is stored WITHOUT ROWID, as Nsight Systems stores none"
                if not why:
                    found[name[i]] = _Table(root[i], columns, alias)
                    continue
                self.audit.add(
                    "unreadable_table",
                    "error",
                    f"{self.label}: {name[i]}",
                    f"{why}; the table was left out",
                    unreliable=f"everything that comes from {name[i]}",
                )
        return found

    def _is_index(self, root: int) -> bool:
        """Whether a root page is that of an index, which tables WITHOUT ROWID are."""
        is_there = 1 < root <= self._pages
        return is_there and int(self._data[(root - 1) * self._page_bytes]) in _INDEX_PAGES

    def _leaves(self, table: str, *, told: bool) -> tuple[pages.Ints, pages.Bytes]:
        leaves, seen, damaged, first = pages.leaf_pages(
            self._data, self._page_bytes, self._pages, self._tables[table].root
        )
        if told:
            self.audit.add(
                "damaged_pages",
                "error",
                f"{self.label}: {table}",
                _NO_PAGES,
                unreliable=f"everything that comes from {table}",
                count=damaged,
                example=f"page {first} at byte {max(first - 1, 0) * self._page_bytes:,}",
            )
        return leaves, seen

    def _blocks(self, leaves: pages.Ints) -> Iterator[tuple[pages.Ints, int, int]]:
        """Leaf pages that are decoded together, their rows at most, and bytes that lie elsewhere."""
        first = rows = spill = 0
        measured = max(1, _MEASURED_BYTES // self._page_bytes)
        for at in range(0, len(leaves), measured):
            part = leaves[at : at + measured]
            more = pages.measure(self._data, self._page_bytes, self._usable, part)
            if more[1] > _BLOCK_SPILL_BYTES:
                if first < at:
                    yield leaves[first:at], rows, spill
                for page in range(at, at + len(part)):
                    alone = leaves[page : page + 1]
                    size = pages.measure(self._data, self._page_bytes, self._usable, alone)
                    yield alone, size[0], size[1]
                first, rows, spill = at + len(part), 0, 0
                continue
            rows, spill = rows + more[0], spill + more[1]
            if rows >= _BLOCK_ROWS or spill >= _BLOCK_SPILL_BYTES:
                yield leaves[first : at + len(part)], rows, spill
                first, rows, spill = at + len(part), 0, 0
        if first < len(leaves):
            yield leaves[first:], rows, spill

    def _decode(
        self,
        table: str,
        block: tuple[pages.Ints, int, int],
        ordinals: pages.Ints,
        names: Sequence[tuple[str, int, bool]],
        seen: pages.Bytes,
    ) -> tuple[Rows, list[int]]:
        leaves, rows, spill_bytes = block
        found = records.decode(
            self._data,
            (self._page_bytes, self._usable),
            leaves,
            (rows, spill_bytes),
            ordinals,
            np.array([kind for _, kind, _ in names], np.int64),
            self._tables[table].alias,
            seen,
        )
        numbers: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        words: dict[str, pa.Array] = {}
        for slot, (name, kind, is_blob) in enumerate(names):
            if kind == records.TEXT:
                words[name] = self._words(found, slot, is_blob, f"{table}.{name}")
            else:
                column = found.values[slot]
                typed = column.view(np.float64) if kind == records.REAL else column
                numbers[name] = (typed, found.valid[slot].view(np.bool_))
        self._forget()
        doubts = [found.lost, found.misfits, found.damaged]
        return Rows(found.values.shape[1], numbers, words), doubts

    def _words(self, found: records.Records, slot: int, is_blob: bool, where: str) -> pa.Array:
        offsets, data = records.texts(self._data, found, slot)
        bits = pa.array(found.valid[slot] != 0).buffers()[1]
        buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
        binary = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return binary if is_blob else as_text(binary, self.audit, f"{self.label}: {where}")

    def _forget(self) -> None:
        """Let go of the pages that were read, so that a large file does not fill the memory of this process."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """The items; each is made in a thread of its own while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def as_text(binary: pa.Array, audit: Audit, where: str) -> pa.Array:
    """A binary array as text; bytes that are not UTF-8 are replaced, with a finding."""
    text = binary.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        decoded = [None if v is None else v.decode("utf-8", "replace") for v in binary.to_pylist()]
        odd = [v for v, b in zip(decoded, binary.to_pylist(), strict=True) if v and v.encode() != b]
        audit.add(
            "invalid_utf8",
            "note",
            where,
            "texts that are not UTF-8 were read with replacement characters",
            unreliable="names",
            count=max(len(odd), 1),
            example=odd[0][:80] if odd else "",
        )
        return pa.array(decoded, pa.string())
    return text


def _reading(path: Path, label: str) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise ProfileError(f"{label}: cannot be read ({error.strerror or error})") from error


def _columns(sql: str, name: str) -> tuple[tuple[str, ...], int]:
    """Column names of a CREATE TABLE, and the ordinal of the one that is the row number; nothing if SQLite refuses it."""
    with sqlite3.connect(":memory:") as empty:
        empty.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )
        try:
            empty.execute(sql)
            quoted = name.replace('"', '""')
            rows = empty.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return (), -1
        finally:
            empty.set_authorizer(None)
    empty.close()
    stored = [row for row in rows if row[6] != _VIRTUAL]
    keys = [i for i, row in enumerate(stored) if row[5]]
    is_alias = len(keys) == 1 and str(stored[keys[0]][2]).upper() == "INTEGER"
    return tuple(str(row[1]) for row in stored), keys[0] if is_alias else -1
