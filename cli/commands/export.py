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
    CHAKRA = "chakra"


def export(
    trace: Annotated[Path, TRACE],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="File to write (.gz compresses it), for chakra a directory."
        ),
    ],
    to: Annotated[Format, typer.Option("--to", help="Format to write.")] = Format.PERFETTO,
    flows: Annotated[
        Flows,
        typer.Option("--flows", help="Arrows to draw: the critical path, all dependencies, …"),
    ] = Flows.CRITICAL,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Write a trace for the Perfetto UI (https://ui.perfetto.dev), or its workload as Chakra execution traces.

    Example: trnprof export run.trnprof --to perfetto -o run.pftrace

    Example: trnprof export run.trnprof --to chakra -o traces
    """
    if to == Format.CHAKRA:
        from trnprof.cli.workloads import export_execution_traces

        export_execution_traces(trace, output, force=force)
        return
    from trnprof.cli.diagnostics import say
    from trnprof.cli.reading import open_and_tell
    from trnprof.tracer.formats.perfetto_export.export import export as export_perfetto
    from trnprof.tracer.units import format_bytes

    summary = export_perfetto(open_and_tell(trace), output, flows=flows.value, force=force)
    size = format_bytes(output.stat().st_size)
    say(
        f"{output}: {summary.slices} slices, {summary.flows} arrows, {size}; open it in ui.perfetto.dev"
    )
