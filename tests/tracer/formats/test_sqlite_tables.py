"""Our reader of SQLite's pages against SQLite itself, and what is left of a file that is damaged."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.sqlite.tables import SqliteTables
from trnprof.tracer.ingest.audit import Audit

Row = tuple[Any, ...]
PAGE_SIZES = [512 << i for i in range(8)]
HUGE = 1 << 63


def written(
    path: Path, *statements: str, page_size: int = 4096, rows: list[Row] | None = None
) -> Path:
    """A database with these statements run, and rows put into its table ``t``."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute(f"PRAGMA page_size={page_size}")
        for statement in statements:
            sql.execute(statement)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            sql.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        sql.commit()
    return path


def read(path: Path, table: str = "t", **wanted: list[str]) -> tuple[list[Row], Audit]:
    """Rows of the columns that are wanted, in the order given."""
    audit = Audit()
    found: list[Row] = []
    with SqliteTables(path, path.name, audit) as tables:
        for block in tables.scan(table, **wanted):
            names = [name for group in wanted.values() for name in group]
            found += zip(*(block.list(name) for name in names), strict=True)
    return found, audit


def kinds(audit: Audit) -> dict[str, int]:
    return {finding.kind: finding.count for finding in audit.findings}


def as_integer(value: Any) -> int | None:
    """What of a stored value is an integer: also a whole real and decimal digits, as columns without a type hold them."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 9.2e18 else None
    if isinstance(value, str):
        digits = value[1:] if value[:1] in ("-", "+") else value
        plain = digits.isascii() and digits.isdigit() and len(digits) <= 18
        return int(value) if plain else None
    return value if isinstance(value, int) else None


def as_real(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    whole = as_integer(value)
    return None if whole is None else float(whole)


INTEGERS = st.one_of(
    st.integers(-HUGE, HUGE - 1),
    st.integers(-300, 300),
    st.sampled_from(
        [s * (1 << b) + d for b in (7, 15, 23, 31, 47) for s in (-1, 1) for d in (-1, 0)]
    ),
)
ANY = st.one_of(
    st.none(),
    INTEGERS,
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.from_regex(r"[-+]?[0-9]{1,20}", fullmatch=True),
    st.binary(max_size=12),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(ANY, ANY, ANY), max_size=40),
    st.sampled_from(PAGE_SIZES),
    st.booleans(),
)
def test_any_value_is_read_as_sqlite_reads_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], page_size: int, has_key: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.sqlite"
    key = "k INTEGER PRIMARY KEY" if has_key else "k"
    numbered = [(2 * i - 7, *row) for i, row in enumerate(rows)]
    written(path, f"CREATE TABLE t ({key}, a, b, c)", page_size=page_size, rows=numbered)
    found, audit = read(path, ints=["k", "a"], reals=["b"], blobs=["c"])
    with contextlib.closing(sqlite3.connect(path)) as sql:
        expected = sql.execute("SELECT k, a, b, c FROM t ORDER BY rowid").fetchall()
    assert [row[:2] for row in found] == [(k, as_integer(a)) for k, a, _, _ in expected]
    assert [row[2] for row in found] == [as_real(b) for _, _, b, _ in expected]
    # bytes and texts alike; numbers are no texts
    texts = [
        c.encode() if isinstance(c, str) else c if isinstance(c, bytes) else None
        for *_, c in expected
    ]
    assert [row[3] for row in found] == texts
    misfits = sum(a is not None and as_integer(a) is None for _, a, _, _ in expected)
    misfits += sum(b is not None and as_real(b) is None for _, _, b, _ in expected)
    misfits += sum(isinstance(c, int | float) for *_, c in expected)
    assert kinds(audit) == ({"unreadable_values": misfits} if misfits else {})


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_long_texts_go_on_over_other_pages(tmp_path: Path, page_size: int) -> None:
    usable = page_size
    edges = [usable - 40 + i for i in range(10)] + [2 * usable + i for i in range(-10, 10)]
    rows = [(i, "x" * size + f"é{i}", i * i) for i, size in enumerate([0, 1, 100, 70_000, *edges])]
    random.Random(1).shuffle(rows)
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (i INT, s TEXT, j INT)",
        page_size=page_size,
        rows=rows,
    )
    found, audit = read(path, ints=["i"], texts=["s"])
    assert found == [(i, s) for i, s, _ in rows]
    assert [j for (j,) in read(path, ints=["j"])[0]] == [j for *_, j in rows]
    assert not audit.findings


def test_many_rows_in_many_blocks_and_levels(tmp_path: Path) -> None:
    rows = [(i * 7919 % 100_003, f"name {i % 97}") for i in range(60_000)]
    path = written(
        tmp_path / "a.sqlite", "CREATE TABLE t (i INT, s TEXT)", page_size=512, rows=rows
    )
    assert read(path, ints=["i"], texts=["s"])[0] == rows
    with SqliteTables(path, "a", Audit()) as tables:
        assert tables.rows("t") == 60_000
        assert next(block.count for block in tables.scan("t", ints=["i"])) < 60_000


def test_rows_keep_their_order_after_deletions_and_vacuum(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (i INT, s TEXT)",
        rows=[(i, "s" * (i % 700)) for i in range(3000)],
    )
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("DELETE FROM t WHERE i % 3 = 1")
        sql.execute("UPDATE t SET s = s || s WHERE i % 5 = 0")
        sql.execute("INSERT INTO t SELECT i + 10000, s FROM t")
        sql.commit()
        expected = sql.execute("SELECT i, s FROM t ORDER BY rowid").fetchall()
        assert read(path, ints=["i"], texts=["s"])[0] == expected
        sql.execute("VACUUM")
        assert read(path, ints=["i"], texts=["s"])[0] == expected


def test_generated_columns_lie_where_sqlite_stores_them(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INT, v INT AS (a + 1) VIRTUAL, s INT AS (a * 2) STORED, b INT)",
        "INSERT INTO t (a, b) VALUES (5, 6), (7, 8)",
    )
    with SqliteTables(path, "a", Audit()) as tables:
        assert tables.columns("t") == ("a", "s", "b")
    assert read(path, ints=["a", "s", "b"])[0] == [(5, 10, 6), (7, 14, 8)]


def test_a_column_that_was_added_later_is_null_in_older_rows(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INT)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD b INT",
        "INSERT INTO t VALUES (2, 3)",
    )
    assert read(path, ints=["a", "b"])[0] == [(1, None), (2, 3)]


def test_tables_without_rowid_are_left_out_and_told(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INT PRIMARY KEY, b) WITHOUT ROWID",
        "CREATE TABLE u (a)",
        "INSERT INTO t VALUES (1, 2)",
    )
    audit = Audit()
    with SqliteTables(path, "a.sqlite", audit) as tables:
        assert list(tables.names()) == ["u"]
        assert not list(tables.scan("t", ints=["a"]))
    assert [(f.kind, f.where) for f in audit.findings] == [("unreadable_table", "a.sqlite: t")]


def test_no_statement_of_the_schema_is_run(tmp_path: Path) -> None:
    """A definition that would count for ever, one that attaches a file, and one that is none: left out, and told."""
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a)",
        "CREATE TABLE u (a)",
        "CREATE TABLE w (a)",
        "CREATE TABLE z (a)",
    )
    evil = tmp_path / "evil"
    endless = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT i FROM c"
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA writable_schema=ON")
        for name, text in (
            ("t", f"CREATE TABLE t AS {endless}"),
            ("u", f"ATTACH '{evil}' AS e"),
            ("w", "nonsense("),
        ):
            sql.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, name))
        sql.commit()
    audit = Audit()
    with SqliteTables(path, "a.sqlite", audit) as tables:
        assert list(tables.names()) == ["z"]
    assert kinds(audit) == {"unreadable_table": 1}
    assert len(audit.findings) == 3
    assert not evil.exists()


def test_changes_in_a_write_ahead_log_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA journal_mode=WAL")
        sql.execute("CREATE TABLE t (a)")
        sql.execute("INSERT INTO t VALUES (1)")
        sql.commit()
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sql.execute("INSERT INTO t VALUES (2)")
        sql.commit()
        found, audit = read(path, ints=["a"])
    assert found == [(1,)]
    assert kinds(audit) == {"unfinished_transaction": 1}
    assert read(path, ints=["a"])[0] == [(1,), (2,)]  # closed, and written back by SQLite


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "too few"),
        (b"SQLite format 3\0" + bytes(200), "too few"),
        (b"x" * 600, "no signature at byte 0"),
        (b"SQLite format 3\0\0\7" + bytes(600), "page size 7 at byte 16"),
        (b"SQLite format 3\0\x02\0\1\1\xff" + bytes(600), "page size 512"),
    ],
)
def test_what_is_no_database_is_refused_in_one_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=f"^a.sqlite: .*{reason}"):
        SqliteTables(path, "a.sqlite", Audit())


def test_text_in_utf_16_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.sqlite", "PRAGMA encoding = 'UTF-16'", "CREATE TABLE t (a)")
    with pytest.raises(ProfileError, match="UTF-16"):
        SqliteTables(path, "a.sqlite", Audit())


def test_text_that_is_not_utf_8_is_read_with_replacements(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (s)",
        "INSERT INTO t VALUES ('ok'), (CAST(x'61ff62' AS TEXT))",
    )
    found, audit = read(path, texts=["s"])
    assert found == [("ok",), ("a�b",)]
    assert kinds(audit) == {"invalid_utf8": 1}


def test_a_cut_file_keeps_the_rows_before_the_cut(tmp_path: Path) -> None:
    rows = [(i, f"row {i}") for i in range(5000)]
    path = written(tmp_path / "a.sqlite", "CREATE TABLE t (i INT, s TEXT)", rows=rows)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size * 6 // 10 + 100)
    found, audit = read(path, ints=["i"], texts=["s"])
    assert found == rows[: len(found)]
    assert 2000 < len(found) < 4000
    assert {"truncated", "damaged_pages"} <= set(kinds(audit))


def test_a_damaged_page_costs_only_itself(tmp_path: Path) -> None:
    rows = [(i,) for i in range(5000)]
    path = written(tmp_path / "a.sqlite", "CREATE TABLE t (i INT)", rows=rows)
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    found, audit = read(path, ints=["i"])
    missing = {i for (i,) in rows} - {i for (i,) in found}
    assert 0 < len(missing) < 700
    assert max(missing) - min(missing) == len(missing) - 1
    assert kinds(audit) == {"damaged_pages": 1}


def test_cells_that_share_bytes_are_not_believed(tmp_path: Path) -> None:
    """A page whose 600 cells all point at one record of 2 kB would be 600 times as large as it is."""
    path = written(tmp_path / "a.sqlite", "CREATE TABLE t (s)", rows=[("x" * 2000,)])
    content = bytearray(path.read_bytes())
    page = content[4096:8192]
    at = page[8:10]
    page[3:5] = (600).to_bytes(2, "big")
    page[8 : 8 + 1200] = bytes(at) * 600
    content[4096:8192] = page
    path.write_bytes(content)
    found, audit = read(path, texts=["s"])
    assert found == [("x" * 2000,)] * 2  # as many as fit into a page
    assert kinds(audit) == {"damaged_rows": 598}


def test_sizes_whose_sum_wraps_around_are_not_followed(tmp_path: Path) -> None:
    """A header that claims two blobs of nearly 2^62 bytes each: the place of the column after them would be negative."""
    path = written(
        tmp_path / "a.sqlite", "CREATE TABLE t (a, b, c)", rows=[(b"z" * 60, None, None)]
    )
    content = bytearray(path.read_bytes())
    record = content.index(b"z" * 60) - 5  # five bytes of header
    huge = bytes([0xBF] + [0xFF] * 7 + [0xFE])  # 2^63 - 2
    content[record : record + 20] = bytes([20]) + huge + huge + bytes([1])
    path.write_bytes(content)
    found, audit = read(path, ints=["c"])
    assert found == []
    assert kinds(audit) == {"damaged_rows": 1, "unreadable_values": 1}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_mutated_files_end_in_rows_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "original.sqlite"
    if not path.exists():
        long = [(i, "y" * (i * 37 % 3000), i / 3) for i in range(400)]
        written(path, "CREATE TABLE t (i INT, s TEXT, r REAL)", page_size=1024, rows=long)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.one_of(st.integers(0, 2100), st.integers(0, len(content) - 1)))
        content[at] = data.draw(st.sampled_from([0, 1, 2, 5, 13, 127, 128, 129, 255]))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    mutated = tmp_path_factory.mktemp("mutated") / "m.sqlite"
    mutated.write_bytes(content)
    with contextlib.suppress(ProfileError):
        found, _ = read(mutated, ints=["i"], texts=["s"], reals=["r"])
        assert sum(len(s or "") for _, s, _ in found) <= 2 * len(content)
