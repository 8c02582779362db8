"""How is a profile recognised and read that is an SQLite file with tables of a known name?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trnprof.tracer.formats.sqlite.tables import SIGNATURE, SqliteTables
from trnprof.tracer.formats.tables import Tables
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage


def sqlite_format(
    name: str, title: str, marks: Sequence[bytes], read_tables: Callable[[Tables, Stage], None]
) -> Format:
    """A format whose profiles are SQLite files.

    Args:
        name: of the format.
        title: for people.
        marks: what stands in the schema of its files, and in no others': names of tables.
        read_tables: fills a stage from the tables of a file.
    """
    return Format(
        name, title, recognise=partial(_recognise, tuple(marks)), read=partial(_read, read_tables)
    )


def _recognise(marks: Sequence[bytes], head: Head) -> int:
    is_marked = head.data.startswith(SIGNATURE) and any(mark in head.data for mark in marks)
    return 100 if is_marked else 0


def _read(read_tables: Callable[[Tables, Stage], None], source: Source, stage: Stage) -> None:
    with source.on_disk() as path, SqliteTables(path, source.label, stage.audit) as tables:
        read_tables(tables, stage)
