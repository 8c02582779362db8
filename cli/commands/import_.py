"""``trnprof import``: profiles of other tools as one trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, Align


def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", help="Profiles: files, directories, globs, archives."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace directory to write.")],
    format: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help="Their format; auto judges each by its content."
        ),
    ] = "auto",
    align: Annotated[
        Align,
        typer.Option(
            "--align",
            help="How clocks of several ranks are related: as the profiles say, or by their collectives.",
        ),
    ] = Align.AUTO,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, help="How many processes read at a time; by default one a core."
        ),
    ] = None,
    max_input_bytes: Annotated[
        str,
        typer.Option(
            "--max-input-bytes", metavar="SIZE", help="Refuse more input than that, decompressed."
        ),
    ] = "1TB",
    system: Annotated[
        str,
        typer.Option(
            "--system", help="System on which Chakra execution traces (.et) are emulated."
        ),
    ] = "trn2",
    strict: Annotated[
        bool, typer.Option("--strict", help="End with code 1 if anything is doubtful.")
    ] = False,
    force: Annotated[bool, FORCE] = False,
) -> int:
    """Import profiles that other tools have recorded, one or many ranks, as one trace.

    Chakra execution traces (.et) say what is to run, not when it ran: they are emulated, as by trnprof emulate.

    Example: trnprof import profiles/ -o run.trnprof
    """
    from trnprof.cli.workloads import are_execution_traces, emulate_execution_traces

    if are_execution_traces(paths):
        emulate_execution_traces(paths, system, output, force=force)
        return 0
    from trnprof.cli.importing import import_and_tell
    from trnprof.tracer.units import parse_bytes

    return import_and_tell(
        paths,
        output,
        format=None if format == "auto" else format,
        align=align.value,
        jobs=jobs,
        max_input_bytes=parse_bytes(max_input_bytes),
        strict=strict,
        force=force,
    )
