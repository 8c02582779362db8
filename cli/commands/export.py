"""``trnprof export``: a trace in another tool's format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TRACE, Flows


class Format(StrEnum):
    """Formats that can be written."""

    PERFETTO = "perfetto"


def export(
    trace: Annotated[Path, TRACE],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write; .gz compresses it.")
    ],
    to: Annotated[Format, typer.Option("--to", help="Format to write.")] = Format.PERFETTO,
    flows: Annotated[
        Flows,
        typer.Option("--flows", help="Arrows to draw: the critical path, all dependencies, …"),
    ] = Flows.CRITICAL,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Write a trace for the Perfetto UI (https://ui.perfetto.dev).

    Example: trnprof export run.trnprof --to perfetto -o run.pftrace
    """
    from trnprof.cli.diagnostics import say
    from trnprof.cli.reading import open_and_tell
    from trnprof.tracer.formats.perfetto_export.export import export as export_perfetto
    from trnprof.tracer.units import format_bytes

    summary = export_perfetto(open_and_tell(trace), output, flows=flows.value, force=force)
    size = format_bytes(output.stat().st_size)
    say(
        f"{output}: {summary.slices} slices, {summary.flows} arrows, {size}; open it in ui.perfetto.dev"
    )
