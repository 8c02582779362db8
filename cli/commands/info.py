"""``trnprof info``: what a trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import TRACE


def info(
    trace: Annotated[Path, TRACE],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a trace holds: system, steps, tracks, events, time range, size.

    Example: trnprof info run.trnprof
    """
    import json

    from trnprof.cli.output import show
    from trnprof.tracer.info import summary, summary_lines
    from trnprof.tracer.reader import open_trace

    found = summary(open_trace(trace))
    show(json.dumps(found, indent=2) if as_json else "\n".join(summary_lines(found)))
