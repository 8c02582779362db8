"""How does a directory of Parquet or Arrow tables that Nsight Systems exported become a trace?

``nsys export --type parquetdir`` and ``--type arrowdir`` write one file a table, with the tables and columns of the SQLite export.
"""

from __future__ import annotations

from typing import Final

from trnprof.tracer.formats.arrow_tables import ENDINGS, ArrowTables
from trnprof.tracer.formats.nsys.format import EVENT_TABLES, read_tables
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage


def _recognise(head: Head) -> int:
    stems = {name.rpartition(".")[0] for name in head.files if name.endswith(ENDINGS)}
    return 95 if stems & set(EVENT_TABLES) else 0


def _read(source: Source, stage: Stage) -> None:
    read_tables(ArrowTables(source.path, source.label, stage.audit), stage)


FORMAT: Final = Format(
    "nsys-parquet",
    "Nsight Systems, directory of Parquet or Arrow tables",
    recognise=_recognise,
    read=_read,
)
