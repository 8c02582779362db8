"""``trnprof merge``: several recordings of one run as one trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE


def merge(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE…", help="Traces to join.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace directory to write.")],
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Join recordings of several hosts or processes into one trace.

    Example: trnprof merge host0.trnprof host1.trnprof -o run.trnprof
    """
    from trnprof.cli.diagnostics import say
    from trnprof.tracer.manifest import read_manifest
    from trnprof.tracer.merge import merge as merge_traces

    merge_traces(traces, output, force=force)
    for note in read_manifest(output).get("notes", ()):
        say(note)
    say(f"{output}: {len(traces)} recordings joined")
