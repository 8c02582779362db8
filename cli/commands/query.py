"""``trnprof query``: SQL over a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TO_FILE, TRACE, QueryFormat


def query(
    trace: Annotated[Path, TRACE],
    sql: Annotated[str, typer.Argument(metavar="SELECT", help="The query, as one word.")],
    format: Annotated[
        QueryFormat, typer.Option("--format", help="How rows are written; parquet needs -o.")
    ] = QueryFormat.TABLE,
    output: Annotated[Path | None, TO_FILE] = None,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Answer a SELECT over the tables of a trace and views of it; docs/report.md lists their columns.

    Example: trnprof query run.trnprof "SELECT engine, active_share FROM engine_busy WHERE step = 1"
    """
    from trnprof.analysis import query_output
    from trnprof.analysis.query import run_query
    from trnprof.cli.output import show, write_text
    from trnprof.cli.progress import bar
    from trnprof.cli.reading import open_and_tell
    from trnprof.tracer.errors import TrnprofError
    from trnprof.tracer.files import check_output_file, written_beside

    if format is QueryFormat.PARQUET and output is None:
        raise TrnprofError("parquet goes to a file: give -o FILE.parquet")
    if output is not None:
        check_output_file(output, force=force)
    opened = open_and_tell(trace)
    with bar("answering"):
        answer = run_query(opened, sql)
    if format is QueryFormat.PARQUET and output is not None:
        with written_beside(output, force=force) as beside:
            answer.write_parquet(beside)
        return
    text = getattr(query_output, f"as_{format.value}")(answer).removesuffix("\n")
    if output is None:
        show(text)
    else:
        write_text(output, text, force=force)
